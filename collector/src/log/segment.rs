//! The file that is being written, and the proof of what is durable in it.
//!
//! [`Written`] comes only from a write, [`Synced`] only from a sync of it, and only [`Synced`] moves the watermark: nobody
//! can be told too early without changing this file.

use std::{
    hash::{BuildHasher, RandomState},
    io::{ErrorKind, IoSlice},
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{
    error::{Context, FileFailure},
    folder::{file_path, sync_folder},
    frame::{FILE_HEADER, FRAME_HEADER, FileHeader, FrameHeader},
    reader::Reader,
    recovery::Sealed,
    storage::{Storage, StoredFile},
};
use crate::fail_point::{self, Step};

/// A record on its way to the disk.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) position: u64,
    pub(super) payload: Bytes,
    /// CRC32C of the payload alone.
    pub(super) payload_crc: u32,
}

impl Entry {
    /// Bytes of its frame.
    pub(super) fn frame_bytes(&self) -> usize {
        FRAME_HEADER + self.payload.len()
    }
}

/// Everything up to a position is in the file; nothing is said of the disk.
#[derive(Debug)]
#[must_use = "written is not durable"]
pub(super) struct Written {
    through: u64,
    length: u64,
}

impl Written {
    /// The fault that crash tests must find.
    #[cfg(any(test, feature = "fail-points"))]
    pub(super) fn pretend_synced(&self) -> Synced {
        Synced { through: self.through }
    }
}

/// Everything up to a position is on the disk.
#[derive(Debug)]
#[must_use = "somebody waits for this"]
pub(super) struct Synced {
    through: u64,
}

impl Synced {
    pub(super) fn through(&self) -> u64 {
        self.through
    }
}

/// The file that is being written.
#[derive(Debug)]
pub(super) struct Segment {
    file: Box<dyn StoredFile>,
    path: PathBuf,
    header: FileHeader,
    /// Durable bytes: those after them are of no record that anybody was told of.
    length: u64,
    /// Whether a failed write may have left bytes after `length`.
    is_torn: bool,
}

impl Segment {
    /// A new file for records from `first` on, durable with its name.
    ///
    /// Every record below `first` must be durable. So a file of that name holds none that anybody was told of: it comes
    /// from an attempt that failed, and goes.
    pub(super) fn create(storage: &dyn Storage, folder: &Path, first: u64) -> Result<Self, FileFailure> {
        let path = file_path(folder, first);
        match storage.remove(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).context(&path, "remove the file"),
            _ => {}
        }
        let header = FileHeader { first, salt: RandomState::new().hash_one(first) };
        let mut file = storage.create(&path).context(&path, "create the file")?;
        file.append(&mut [IoSlice::new(&header.encode())]).context(&path, "write the header")?;
        file.sync().context(&path, "sync the file")?;
        fail_point::reach(Step::LogAfterCreate);
        sync_folder(storage, folder)?;
        Ok(Self { file, path, header, length: FILE_HEADER as u64, is_torn: false })
    }

    /// Goes on writing a file that was read to its end, at `length`.
    pub(super) fn reopen(reader: Reader, length: u64) -> Self {
        let Reader { file, path, header, .. } = reader;
        Self { file, path, header, length, is_torn: false }
    }

    pub(super) fn first(&self) -> u64 {
        self.header.first
    }

    /// Durable bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length <= FILE_HEADER as u64
    }

    /// Ends it after the record at `last`.
    pub(super) fn seal(self, last: u64) -> Sealed {
        Sealed { last, path: self.path, bytes: self.length }
    }

    /// Puts a group at the end. After an error the same group can be written again: what there is of it is cut away,
    /// now or, if the disk refuses that too, before the next write.
    pub(super) fn write(&mut self, group: &[Entry]) -> Result<Written, FileFailure> {
        self.cut_torn_bytes()?;
        let first = group.first().map_or(self.header.first, |entry| entry.position);
        let headers: Vec<_> = group
            .iter()
            .map(|Entry { position, payload, payload_crc }| {
                // Appending refuses records of 4 GiB.
                let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
                FrameHeader::new(length, *payload_crc, *position, first, self.header.salt).encode()
            })
            .collect();
        let mut parts: Vec<_> = headers
            .iter()
            .zip(group)
            .flat_map(|(header, entry)| [IoSlice::new(header), IoSlice::new(&entry.payload)])
            .collect();
        let written = self.file.append(&mut parts).context(&self.path, "write");
        if let Err(failure) = written {
            self.is_torn = true;
            // The write's failure is the one to tell; this one comes again if it lasts.
            let _later = self.cut_torn_bytes();
            return Err(failure);
        }
        let bytes: usize = group.iter().map(Entry::frame_bytes).sum();
        let through = group.last().map_or(first, |entry| entry.position);
        Ok(Written { through, length: self.length + bytes as u64 })
    }

    fn cut_torn_bytes(&mut self) -> Result<(), FileFailure> {
        if self.is_torn {
            self.file.truncate(self.length).context(&self.path, "cut a half-written record off")?;
            self.is_torn = false;
        }
        Ok(())
    }

    /// Makes what was written durable. After an error this file must not be written or synced again.
    pub(super) fn sync(&mut self, written: Written) -> Result<Synced, FileFailure> {
        self.file.sync().context(&self.path, "sync the file")?;
        self.length = written.length;
        Ok(Synced { through: written.through })
    }
}
