//! The mark of a compaction under way.
//!
//! `DIR/journal/compaction-<id>` is there from before the compaction's first file until the last of them is in its table
//! or gone, and the id is in the names of its files. The next opening removes those that no table has.

use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use uuid::Uuid;

use super::super::{
    error::{Context, Result},
    parquet_file::sync_folder,
};

const PREFIX: &str = "compaction-";

/// Removed when dropped, unless left.
#[derive(Debug)]
pub(in super::super) struct Mark {
    root: Arc<Path>,
    id: Option<Uuid>,
}

impl Mark {
    /// Sets the mark, durably.
    pub(super) fn set(root: Arc<Path>, id: Uuid) -> Result<Self> {
        let path = path(&root, id);
        File::options().create_new(true).write(true).open(&path).context(&path, "create the file")?;
        let mark = Self { root, id: Some(id) };
        if let Some(folder) = path.parent() {
            sync_folder(folder)?;
        }
        Ok(mark)
    }

    /// Leaves it to the next opening.
    pub(super) fn leave(mut self) {
        self.id = None;
    }

    /// The marks that are set.
    pub(in super::super) fn all(root: &Path) -> Result<BTreeSet<Uuid>> {
        let folder = root.join("journal");
        let mut marks = BTreeSet::new();
        for entry in std::fs::read_dir(&folder).context(&folder, "list")? {
            let name = entry.context(&folder, "list")?.file_name();
            let id = name.to_str().and_then(|name| Uuid::parse_str(name.strip_prefix(PREFIX)?).ok());
            marks.extend(id);
        }
        Ok(marks)
    }

    /// Removes one whose files are settled.
    pub(in super::super) fn remove(root: &Path, id: Uuid) -> Result<()> {
        let path = path(root, id);
        std::fs::remove_file(&path).context(&path, "remove")
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // A mark left behind costs the next opening a look.
            let _ = Self::remove(&self.root, id);
        }
    }
}

fn path(root: &Path, id: Uuid) -> PathBuf {
    root.join("journal").join(format!("{PREFIX}{id}"))
}
