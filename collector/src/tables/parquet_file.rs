//! One data file: created under a name of its own, removed again unless a journal comes to name it.

use std::{
    fmt,
    fs::File,
    path::{Path, PathBuf},
    time::SystemTime,
};

use deltalake::kernel::Add;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{
    closed::Closed,
    error::{Context, Result},
};

/// What a data file is called: a position, which is that of its commit or, for a compacted file, of the first commit
/// whose rows it has, and an id of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileName {
    pub(super) position: u64,
    pub(super) id: Uuid,
}

impl FileName {
    /// The name of a new file of the commit at `position`.
    pub(super) fn new(position: u64) -> Self {
        Self { position, id: Uuid::new_v4() }
    }

    /// `None` where the name is not one of ours.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (position, id) = name.strip_suffix(".parquet")?.split_at_checked(20)?;
        let id = Uuid::parse_str(id.strip_prefix('-')?).ok()?;
        let position = position.bytes().all(|byte| byte.is_ascii_digit()).then(|| position.parse().ok())??;
        Some(Self { position, id })
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}-{}.parquet", self.position, self.id)
    }
}

/// A file that nobody refers to yet: removed when dropped, unless kept.
#[derive(Debug)]
pub(super) struct Unreferenced {
    path: PathBuf,
    kept: bool,
}

impl Unreferenced {
    /// Creates a data file in the folder of a table.
    pub(super) fn create(root: &Path, table: &str, name: FileName) -> Result<(Self, File)> {
        let folder = root.join(table);
        std::fs::create_dir_all(&folder).context(&folder, "create the folder")?;
        let path = folder.join(name.to_string());
        let file = File::options().create_new(true).write(true).open(&path).context(&path, "create the file")?;
        Ok((Self { path, kept: false }, file))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file is written: makes it durable and describes it. Its folder has yet to be synced.
    pub(super) fn finish(self, file: File, stats: Stats) -> Result<DataFile> {
        file.sync_all().context(&self.path, "sync")?;
        let metadata = file.metadata().context(&self.path, "read the size of")?;
        Ok(DataFile { size: metadata.len(), stats, closed: None, file: self })
    }
}

impl Drop for Unreferenced {
    fn drop(&mut self) {
        if !self.kept {
            // A file left behind is removed at the next opening.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A durable data file that no journal names yet.
#[derive(Debug)]
pub(super) struct DataFile {
    size: u64,
    stats: Stats,
    closed: Option<Closed>,
    file: Unreferenced,
}

impl DataFile {
    /// Says when the requests were closed that came with its rows.
    pub(super) fn closed(self, closed: Option<Closed>) -> Self {
        Self { closed, ..self }
    }

    /// The action that adds the file to its table.
    pub(super) fn add(&self) -> Add {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Add {
            path: self.file.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            size: self.size as i64,
            modification_time: now.as_millis() as i64,
            data_change: true,
            stats: Some(self.stats.to_json()),
            tags: self.closed.map(Closed::to_tags),
            ..Default::default()
        }
    }

    /// A journal names the file: it stays.
    pub(super) fn keep(mut self) {
        self.file.kept = true;
    }
}

/// Row count and value ranges of a file, for readers that skip files by them.
#[derive(Debug, Clone, Default)]
pub(super) struct Stats {
    rows: u64,
    min: Map<String, Value>,
    max: Map<String, Value>,
}

/// Longer strings are left out: readers expect short ones here.
const LONGEST_STRING: usize = 256;

impl Stats {
    pub(super) fn count_rows(&mut self, rows: usize) {
        self.rows += rows as u64;
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Widens the range of a string column.
    pub(super) fn see_str(&mut self, column: &str, value: &str) {
        let below = self.min.get(column).and_then(Value::as_str).is_none_or(|min| value < min);
        let above = self.max.get(column).and_then(Value::as_str).is_none_or(|max| value > max);
        if below {
            self.min.insert(column.to_owned(), value.into());
        }
        if above {
            self.max.insert(column.to_owned(), value.into());
        }
    }

    /// Widens the range of a time column, given in microseconds.
    pub(super) fn see_time(&mut self, column: &str, value: i64) {
        // Fixed width, so that the order of the strings is that of the times.
        if let Some(time) = chrono::DateTime::from_timestamp_micros(value) {
            self.see_str(column, &time.format("%Y-%m-%dT%H:%M:%S%.6fZ").to_string());
        }
    }

    /// Widens the range of an integer column.
    pub(super) fn see_int(&mut self, column: &str, value: i64) {
        if self.min.get(column).and_then(Value::as_i64).is_none_or(|min| value < min) {
            self.min.insert(column.to_owned(), value.into());
        }
        if self.max.get(column).and_then(Value::as_i64).is_none_or(|max| value > max) {
            self.max.insert(column.to_owned(), value.into());
        }
    }

    /// Widens the ranges by those of other rows.
    pub(super) fn merge(&mut self, other: &Self) {
        self.rows += other.rows;
        for (column, value) in other.min.iter().chain(&other.max) {
            match value {
                Value::String(value) => self.see_str(column, value),
                value => value.as_i64().into_iter().for_each(|value| self.see_int(column, value)),
            }
        }
    }

    fn to_json(&self) -> String {
        let short = |values: &Map<String, Value>| -> Map<String, Value> {
            // Both ends or neither: a reader may take a range with one end for complete.
            let fits = |name: &String| {
                [&self.min, &self.max]
                    .iter()
                    .all(|values| values.get(name).and_then(Value::as_str).is_none_or(|s| s.len() <= LONGEST_STRING))
            };
            values.iter().filter(|(name, _)| fits(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        serde_json::json!({
            "numRecords": self.rows,
            "minValues": short(&self.min),
            "maxValues": short(&self.max),
            "nullCount": {},
        })
        .to_string()
    }
}

/// Makes new and removed names in a folder durable. Without it a synced file may be gone after a power cut.
pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).context(folder, "sync the folder")
}
