//! A file that a table has, by what its log says of it.

use deltalake::kernel::{Add, LogicalFileView, Remove};
use serde_json::Value;

use super::{closed::Closed, log::milliseconds_before_now};

/// A file of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableFile {
    /// Its path in the table's folder.
    pub(super) path: String,
    pub(super) bytes: u64,
    /// Rows; 0 where the log does not say.
    pub(super) rows: u64,
    /// The least and the greatest request id in it, where the log says.
    pub(super) ids: Option<(String, String)>,
    /// When its requests were closed; `None` for a file of a build that did not say it.
    pub(super) closed: Option<Closed>,
}

impl TableFile {
    /// A file that this action adds.
    pub(super) fn added(add: &Add) -> Self {
        let stats = add.stats.as_deref().and_then(|stats| serde_json::from_str::<Value>(stats).ok());
        let stats = stats.unwrap_or_default();
        let id = |end: &str| Some(stats.get(end)?.get("request_id")?.as_str()?.to_owned());
        Self {
            path: add.path.clone(),
            bytes: add.size.max(0) as u64,
            rows: stats.get("numRecords").and_then(Value::as_u64).unwrap_or(0),
            ids: id("minValues").zip(id("maxValues")),
            closed: add.tags.as_ref().and_then(Closed::from_tags),
        }
    }

    /// A file of a log that was read.
    pub(super) fn of(view: &LogicalFileView) -> Self {
        #[expect(deprecated, reason = "nothing else gives the tags")]
        Self::added(&view.add_action())
    }

    /// The action that takes the file out, now.
    pub(super) fn remove(&self, data_change: bool) -> Remove {
        Remove {
            path: self.path.clone(),
            data_change,
            deletion_timestamp: Some(milliseconds_before_now(std::time::Duration::ZERO)),
            extended_file_metadata: Some(true),
            partition_values: Some(Default::default()),
            size: Some(self.bytes as i64),
            ..Default::default()
        }
    }
}
