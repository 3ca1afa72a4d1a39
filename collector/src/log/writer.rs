//! The one thread that writes: takes a group, writes it, syncs it, tells.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    error::FileFailure,
    group_commit::GroupCommit,
    options::Options,
    recovery::Sealed,
    segment::{Entry, Segment},
    storage::Storage,
};
use crate::fail_point::{self, Step};

/// What the writer owns.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) folder: PathBuf,
    pub(super) options: Options,
    pub(super) shared: Arc<GroupCommit>,
    /// Files that get no more records, ascending.
    pub(super) sealed: Arc<Mutex<Vec<Sealed>>>,
    /// The file that is written; none where the next group needs a new one.
    pub(super) active: Option<Segment>,
}

/// Tells all who wait that nothing more comes, however the thread ends.
struct Ended(Arc<GroupCommit>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.ended();
    }
}

impl Writer {
    /// Writes until the log closes.
    ///
    /// A group that fails is kept and tried again; while it fails, nothing else is accepted and nothing acknowledged.
    /// So the positions in the files stay dense, and once the cause is gone the log goes on as if it had only been slow.
    pub(super) fn run(mut self) {
        let _ended = Ended(self.shared.clone());
        while let Some(group) = self.shared.next_group(self.room()) {
            let mut is_last_attempt = false;
            while let Err(failure) = self.commit(&group) {
                self.shared.fail(failure);
                if is_last_attempt {
                    return;
                }
                is_last_attempt = !self.shared.rest();
            }
        }
    }

    /// Bytes that fit into the file that the next group goes to.
    fn room(&self) -> u64 {
        let written = self.active.as_ref().map_or(0, Segment::length);
        match self.options.roll_bytes.saturating_sub(written) {
            0 => self.options.roll_bytes,
            room => room,
        }
    }

    fn commit(&mut self, group: &[Entry]) -> Result<(), FileFailure> {
        let Some(first) = group.first().map(|entry| entry.position) else { return Ok(()) };
        fail_point::reach(Step::LogBeforeWrite);
        let mut segment = self.segment_for(first)?;
        let written = match segment.write(group) {
            Ok(written) => written,
            Err(failure) => {
                self.active = Some(segment);
                return Err(failure);
            }
        };
        fail_point::reach(Step::LogAfterWrite);
        #[cfg(any(test, feature = "fail-points"))]
        if self.options.acknowledge_before_sync {
            self.shared.publish_unsynced(&written);
        }
        let synced = match segment.sync(written) {
            Ok(synced) => synced,
            Err(failure) => {
                self.give_up(segment, group, first);
                return Err(failure);
            }
        };
        fail_point::reach(Step::LogAfterSync);
        self.active = Some(segment);
        self.shared.publish(&synced, group);
        Ok(())
    }

    /// The file for a group that begins with `first`: the active one, or a new one where that is full or given up.
    fn segment_for(&mut self, first: u64) -> Result<Segment, FileFailure> {
        if let Some(segment) =
            self.active.take_if(|segment| segment.is_empty() || segment.length() < self.options.roll_bytes)
        {
            return Ok(segment);
        }
        fail_point::reach(Step::LogBeforeRoll);
        let segment = Segment::create(self.storage.as_ref(), &self.folder, first)?;
        self.shared.count_used(segment.length(), 0);
        if let Some(full) = self.active.take() {
            self.seal(full.seal(first - 1));
        }
        Ok(segment)
    }

    /// Leaves a file whose sync failed. The system may have dropped what was written and call the next sync a success, so
    /// the group goes to a new file, whose first position says where this one ends.
    fn give_up(&mut self, segment: Segment, group: &[Entry], first: u64) {
        if segment.is_empty() {
            // Creating its successor, of the same name, removes it.
            self.shared.count_used(0, segment.length());
            return;
        }
        let unsynced: usize = group.iter().map(Entry::frame_bytes).sum();
        self.shared.count_used(unsynced as u64, 0);
        let mut sealed = segment.seal(first - 1);
        sealed.bytes += unsynced as u64;
        self.seal(sealed);
    }

    fn seal(&self, file: Sealed) {
        self.sealed.lock().unwrap_or_else(PoisonError::into_inner).push(file);
    }
}
