//! The write-ahead log: what was acknowledged is on the disk.
//!
//! A record is opaque bytes and gets the next position, from 1 on, without gaps. Many threads append; one writes them in
//! groups, syncs the group and moves the watermark. Who waits for a record gets a [`Durable`], and only a sync makes one.
//!
//! ```text
//! append -> group_commit (queue) -> writer -> segment: Written -> Synced -> watermark -> whoever waits
//! open   -> recovery (end of the last file) -> replay (records above the committed position)
//! ```
//!
//! | when | then |
//! |---|---|
//! | the process dies | what was acknowledged is replayed; what was not may be |
//! | the machine dies | as above; half-written bytes at the end are cut off, and [`Replay::cut`] says so |
//! | a write fails, the disk is full | half-written bytes are cut off, the group is kept and tried again; until it is durable nothing is accepted or acknowledged |
//! | a sync fails | as above, but in a new file: the system may have dropped the bytes and would call the next sync a success |
//! | a byte that was durable changes | opening or replay stops there with file and offset, or goes past it with [`Options::salvage`] and says what is lost |
//! | what was changed is committed already | nobody needs it: not an error |
//! | the newest group changes | it reads like half-written bytes and is cut off: nothing later proves that it was durable |
//!
//! The last line is the price of starting without a question after every power cut.
//!
//! ```
//! use gatescope_collector::log::{Log, Options};
//! # let folder = tempfile::tempdir()?;
//! let (log, replay) = Log::open(folder.path(), 0, Options::default())?;
//! assert_eq!(replay.count(), 0);
//! let position = log.append_blocking("a span".into())?;
//! assert!(log.reached_blocking(position)?.position() >= position);
//! drop(log);
//!
//! let (_log, replay) = Log::open(folder.path(), 0, Options::default())?;
//! for record in replay {
//!     assert_eq!(record?.bytes, "a span");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "fail-points")]
mod crash;
mod damage;
mod error;
mod folder;
mod frame;
mod group_commit;
#[cfg(any(test, feature = "fail-points"))]
mod held;
#[cfg(test)]
mod memory;
mod options;
mod reader;
mod recovery;
mod replay;
mod segment;
mod storage;
#[cfg(test)]
mod tests;
mod watermark;
mod writer;

use std::{
    fmt,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};

use bytes::Bytes;
use futures::executor::block_on;

pub use self::{
    damage::Lost,
    error::{AppendError, FileFailure, LogError, NotDurable},
    options::Options,
    recovery::Cut,
    replay::{Record, Replay},
    watermark::{Durable, Watermark},
};
use self::{
    damage::Tolerance,
    error::Context,
    folder::sync_folder,
    group_commit::GroupCommit,
    recovery::{Sealed, recover},
    storage::Storage,
    writer::Writer,
};
use crate::fail_point::{self, Step};

/// The log of one folder, open for appending.
///
/// Dropping it writes and syncs what it has taken, once, and then lets go of the folder.
#[derive(Debug)]
pub struct Log {
    folder: PathBuf,
    storage: Arc<dyn Storage>,
    shared: Arc<GroupCommit>,
    /// Files that get no more records, ascending.
    sealed: Arc<Mutex<Vec<Sealed>>>,
    /// One deletion at a time.
    deleting: Mutex<()>,
    writer: Option<JoinHandle<()>>,
    _lock: Box<dyn fmt::Debug + Send + Sync>,
}

/// What [`Log::delete_below`] has deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Deleted {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Log {
    /// Opens the log of a folder, creating it where it is not there. `committed` is the last position that the tables
    /// have, 0 for none: the replay begins after it, and no position up to it is given out again.
    ///
    /// Reads the last file, at most [`Options::roll_bytes`] and a record; everything else is read by the replay.
    ///
    /// # Errors
    /// When another process has the log, the file system refuses, or the last file is damaged before its end.
    pub fn open(folder: &Path, committed: u64, options: Options) -> Result<(Self, Replay), LogError> {
        #[cfg(not(feature = "fail-points"))]
        let storage = Arc::new(storage::Disk);
        #[cfg(feature = "fail-points")]
        let (storage, options) = (crash::storage(), crash::mutated(options));
        Self::open_on(storage, folder, committed, options)
    }

    fn open_on(
        storage: Arc<dyn Storage>,
        folder: &Path,
        committed: u64,
        options: Options,
    ) -> Result<(Self, Replay), LogError> {
        options.check()?;
        storage.create_folder(folder).context(folder, "create the folder")?;
        let lock = storage.lock(folder).context(folder, "lock the folder")?;
        let lock = lock.ok_or_else(|| LogError::Locked(folder.to_owned()))?;
        let tolerance = Tolerance { committed, salvage: options.salvage };
        let mut recovered = recover(storage.as_ref(), folder, tolerance, options.roll_bytes)?;
        let replay = Replay::new(storage.clone(), folder.to_owned(), tolerance, &mut recovered);

        let active = recovered.active.as_ref().map_or(0, segment::Segment::length);
        let used = active + recovered.sealed.iter().map(|file| file.bytes).sum::<u64>();
        let shared = Arc::new(GroupCommit::new(options.clone(), recovered.last.max(committed), used));
        let sealed = Arc::new(Mutex::new(recovered.sealed));
        let writer = Writer {
            storage: storage.clone(),
            folder: folder.to_owned(),
            options,
            shared: shared.clone(),
            sealed: sealed.clone(),
            active: recovered.active,
        };
        let thread = std::thread::Builder::new().name("gatescope-log".to_owned());
        let writer = thread.spawn(|| writer.run()).context(folder, "start a thread to write to the folder")?;
        let folder = folder.to_owned();
        let log =
            Self { folder, storage, shared, sealed, deleting: Mutex::default(), writer: Some(writer), _lock: lock };
        Ok((log, replay))
    }

    /// Takes a record and returns its position; waits while too much waits for the disk. The record is not durable yet:
    /// see [`Watermark::reached`].
    ///
    /// Dropped half-way, nothing was taken.
    ///
    /// # Errors
    /// When the record was not taken; never [`AppendError::Busy`].
    pub async fn append(&self, record: Bytes) -> Result<u64, AppendError> {
        self.shared.append(record).await
    }

    /// As [`Log::append`], for threads that may block.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn append_blocking(&self, record: Bytes) -> Result<u64, AppendError> {
        block_on(self.shared.append(record))
    }

    /// As [`Log::append`], but does not wait.
    ///
    /// # Errors
    /// As [`Log::append`], and [`AppendError::Busy`] where that would wait.
    pub fn try_append(&self, record: Bytes) -> Result<u64, AppendError> {
        self.shared.try_append(record)
    }

    /// The last durable position.
    pub fn durable(&self) -> Durable {
        self.watermark().now()
    }

    /// A handle to wait for the durable position with.
    pub fn watermark(&self) -> Watermark {
        self.shared.watermark()
    }

    /// Blocks until `position` is durable.
    ///
    /// # Errors
    /// As [`Watermark::reached`].
    pub fn reached_blocking(&self, position: u64) -> Result<Durable, NotDurable> {
        block_on(self.watermark().reached(position))
    }

    /// Bytes of all files and of all records on their way there; what [`Options::disk_bytes`] bounds.
    pub fn used_bytes(&self) -> u64 {
        self.shared.used()
    }

    /// Deletes files that hold nothing above `committed`, the last position that the tables have durably. The file that
    /// is written stays. Blocks on the file system.
    ///
    /// # Errors
    /// When the file system refuses; what was deleted before is gone. When records up to `committed` are not durable.
    pub fn delete_below(&self, committed: u64) -> Result<Deleted, LogError> {
        let durable = self.durable().position();
        if committed > durable {
            return Err(LogError::AheadOfLog { committed, durable });
        }
        let _one = self.deleting.lock().unwrap_or_else(PoisonError::into_inner);
        let unneeded: Vec<_> = self.sealed().iter().take_while(|file| file.last <= committed).cloned().collect();
        let mut deleted = Deleted::default();
        let mut outcome = Ok(());
        for file in unneeded {
            fail_point::reach(Step::LogBeforeDelete);
            outcome = match self.storage.remove(&file.path) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                removed => removed.context(&file.path, "delete the file"),
            };
            if outcome.is_err() {
                break;
            }
            fail_point::reach(Step::LogAfterDelete);
            self.sealed().retain(|other| other.path != file.path);
            self.shared.count_used(0, file.bytes);
            deleted.files += 1;
            deleted.bytes += file.bytes;
        }
        if deleted.files > 0 {
            sync_folder(self.storage.as_ref(), &self.folder)?;
        }
        outcome?;
        Ok(deleted)
    }

    fn sealed(&self) -> MutexGuard<'_, Vec<Sealed>> {
        self.sealed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes no more records and waits until those taken are durable. Where the disk refuses they get one more attempt.
    ///
    /// # Errors
    /// When some are not durable.
    pub async fn close(&self) -> Result<Durable, NotDurable> {
        self.shared.close();
        self.watermark().reached_or_closed(self.shared.last()).await
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has told all who wait, and there is nobody else to tell.
            let _ended = writer.join();
        }
    }
}
