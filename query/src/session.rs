//! The session that queries run in: bounded memory, nothing but the data folder within reach.

use std::{path::Path, sync::Arc};

use datafusion::{
    common::{Result, exec_err},
    execution::{
        SessionStateBuilder,
        memory_pool::{FairSpillPool, TrackConsumersPool},
        object_store::{ObjectStoreRegistry, ObjectStoreUrl},
        runtime_env::{RuntimeEnv, RuntimeEnvBuilder},
    },
    prelude::{SessionConfig, SessionContext},
};
use object_store::{ObjectStore, local::LocalFileSystem};
use url::Url;

use crate::{error::QueryError, functions::bounded, yielding::YieldingJoins};

/// Where the data folder stands in plans.
const STORE: &str = "gatescope://data/";

/// What tables are in, in the view of tools that ask for a catalog (a database).
pub(crate) const CATALOG: &str = "gatescope";
/// The schema that they are in there.
pub(crate) const PUBLIC: &str = "public";

/// Sorted runs on disk that are merged at once. Without a limit one merge takes all memory, and the next sort has none.
const MERGED_RUNS: usize = 16;

/// Bytes of all temporary files together.
const SPILLED: u64 = 32 << 30;

/// How a catalog runs its queries.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes that sorts, joins and aggregates may hold, of all queries together that share it; beyond it they spill to the system's folder for
    /// temporary files.
    pub memory_bytes: usize,
    /// Threads that a query is spread over.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { memory_bytes: 1 << 30, threads }
    }
}

/// What sessions on a folder share: the bound of their memory, and what was read of files.
pub(crate) fn runtime(folder: &Path, options: &Options) -> Result<Arc<RuntimeEnv>, QueryError> {
    let store = LocalFileSystem::new_with_prefix(folder).map_err(|error| QueryError::Query(error.to_string()))?;
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(TrackConsumersPool::new(
            FairSpillPool::new(options.memory_bytes),
            std::num::NonZero::<usize>::MIN,
        )))
        .with_max_spill_merge_fan_in(MERGED_RUNS)
        .with_max_temp_directory_size(SPILLED)
        .with_object_store_registry(Arc::new(DataFolderOnly { store: Arc::new(store) }))
        .build_arc()?;
    Ok(runtime)
}

/// A session without tables, and the address of the data folder in it.
pub(crate) fn session(
    runtime: Arc<RuntimeEnv>,
    options: &Options,
) -> Result<(SessionContext, ObjectStoreUrl), QueryError> {
    let mut config = SessionConfig::new()
        .with_information_schema(true)
        .with_default_catalog_and_schema(CATALOG, PUBLIC)
        .with_target_partitions(options.threads.max(1))
        .with_repartition_file_min_size(1 << 20);
    let parquet = &mut config.options_mut().execution.parquet;
    // Filters are evaluated before the other columns are decoded: a query for one request decodes its rows alone.
    parquet.pushdown_filters = true;
    parquet.reorder_filters = true;
    parquet.enable_page_index = true;
    parquet.bloom_filter_on_read = true;
    parquet.pruning = true;
    let state = SessionStateBuilder::new()
        .with_config(config)
        .with_runtime_env(runtime)
        .with_default_features()
        .with_physical_optimizer_rule(Arc::new(YieldingJoins))
        .build();
    let context = SessionContext::new_with_state(state);
    bounded::bind(&context);
    Ok((context, ObjectStoreUrl::parse(STORE)?))
}

/// Hands out the data folder and no other file, folder or address.
#[derive(Debug)]
struct DataFolderOnly {
    store: Arc<LocalFileSystem>,
}

impl ObjectStoreRegistry for DataFolderOnly {
    fn register_store(&self, _url: &Url, _store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        None
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        if url.as_str() == STORE {
            Ok(self.store.clone())
        } else {
            exec_err!("{url}: queries read the data folder only")
        }
    }
}
