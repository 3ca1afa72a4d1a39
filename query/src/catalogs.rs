//! Catalogs for a server: each query sees the newest data, and what did not change is not read again.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use datafusion::execution::runtime_env::RuntimeEnv;
use tokio::sync::{Mutex, OnceCell};

use crate::{
    catalog::Catalog,
    error::QueryError,
    live::Live,
    session::{Options, runtime},
    snapshot::{TableSnapshot, read_tables_at},
};

/// The tables at a position.
type Read = (u64, Arc<BTreeMap<String, TableSnapshot>>);

/// Opens the catalog of a folder that a collector writes to, as often as it is asked.
pub struct Catalogs {
    folder: PathBuf,
    options: Options,
    live: Arc<dyn Live>,
    /// Shared by all queries: made with the first, when the folder is there.
    runtime: OnceCell<Arc<RuntimeEnv>>,
    /// The tables as they were read last, and the position that they were read at.
    last: Mutex<Option<Read>>,
}

impl Catalogs {
    /// Of this folder, together with what the collector has not stored yet.
    pub fn new(folder: &Path, options: Options, live: Arc<dyn Live>) -> Self {
        Self { folder: folder.to_owned(), options, live, runtime: OnceCell::new(), last: Mutex::new(None) }
    }

    /// The catalog as of now.
    ///
    /// # Errors
    /// Where the collector has stopped or a table cannot be read.
    pub async fn open(&self) -> Result<Catalog, QueryError> {
        let look = self.live.look().await?;
        let tables = self.tables_at(look.position()).await?;
        let runtime = self.runtime.get_or_try_init(async || runtime(&self.folder, &self.options)).await?;
        Catalog::of_live(&self.folder, Arc::clone(runtime), &self.options, &tables, &look).await
    }

    async fn tables_at(&self, position: u64) -> Result<Arc<BTreeMap<String, TableSnapshot>>, QueryError> {
        let mut last = self.last.lock().await;
        if let Some((_, tables)) = last.as_ref().filter(|(at, _)| *at == position) {
            return Ok(Arc::clone(tables));
        }
        let tables = Arc::new(read_tables_at(&self.folder, position).await?);
        if last.as_ref().is_none_or(|(at, _)| *at < position) {
            *last = Some((position, Arc::clone(&tables)));
        }
        Ok(tables)
    }
}

impl fmt::Debug for Catalogs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalogs").field("folder", &self.folder).finish_non_exhaustive()
    }
}
