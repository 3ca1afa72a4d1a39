//! What can be set.

use std::time::Duration;

use super::{error::LogError, frame::FRAME_HEADER};

/// Sizes and times of a log. The defaults suit spans of some 30 kB from tens of agents.
#[derive(Debug, Clone)]
pub struct Options {
    /// Largest record, in bytes; one above is refused. 16 MiB. Below 4 GiB.
    pub record_bytes: usize,
    /// A file of this size gets no more records. 128 MiB.
    pub roll_bytes: u64,
    /// Waiting bytes at which a group is written at once. 1 MiB.
    pub sync_bytes: usize,
    /// How long the first record of a group waits for others. 5 ms.
    pub sync_delay: Duration,
    /// Bytes that are accepted and not yet durable, frames included; above it appending waits. 64 MiB. Below 4 GiB.
    pub pending_bytes: usize,
    /// Bytes of all files; a record that would go above it is refused. No limit.
    pub disk_bytes: Option<u64>,
    /// How long to wait after a failed write or sync before trying again. 200 ms.
    pub retry_delay: Duration,
    /// Go on past damage, and say what is lost, instead of stopping there. Off.
    pub salvage: bool,
    /// Tell before the sync: the fault that crash tests must find.
    #[cfg(any(test, feature = "fail-points"))]
    pub acknowledge_before_sync: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            record_bytes: 16 << 20,
            roll_bytes: 128 << 20,
            sync_bytes: 1 << 20,
            sync_delay: Duration::from_millis(5),
            pending_bytes: 64 << 20,
            disk_bytes: None,
            retry_delay: Duration::from_millis(200),
            salvage: false,
            #[cfg(any(test, feature = "fail-points"))]
            acknowledge_before_sync: false,
        }
    }
}

impl Options {
    /// Whether the numbers go together.
    pub(super) fn check(&self) -> Result<(), LogError> {
        let frame = self.record_bytes.saturating_add(FRAME_HEADER);
        if u32::try_from(self.pending_bytes).is_err() {
            return Err(LogError::Options("pending bytes: expected less than 4 GiB"));
        }
        if frame > self.pending_bytes {
            return Err(LogError::Options(
                "pending bytes: expected room for the largest record and its header of 24 bytes",
            ));
        }
        Ok(())
    }
}
