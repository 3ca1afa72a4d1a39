//! A disk that keeps what was written in memory until the sync, so that killing the process loses what cutting the power
//! would lose. With it, a log that acknowledges before the sync loses acknowledged records to a `SIGKILL`.

use std::{
    fmt,
    io::{self, IoSlice},
    path::Path,
    thread,
    time::Duration,
};

use super::storage::{Disk, Storage, StoredFile};

/// How long a sync takes before the bytes are safe: a moment for a kill to hit.
const SYNC_TIME: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct HeldDisk;

impl Storage for HeldDisk {
    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        Disk.create_folder(folder)
    }

    fn lock(&self, folder: &Path) -> io::Result<Option<Box<dyn fmt::Debug + Send + Sync>>> {
        Disk.lock(folder)
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        Disk.names(folder)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        Ok(Box::new(HeldFile { file: Disk.create(path)?, held: Vec::new() }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        Ok(Box::new(HeldFile { file: Disk.open(path)?, held: Vec::new() }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Disk.remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Disk.rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        Disk.sync_folder(folder)
    }
}

#[derive(Debug)]
struct HeldFile {
    file: Box<dyn StoredFile>,
    /// Written and not synced.
    held: Vec<u8>,
}

impl StoredFile for HeldFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.len()? + self.held.len() as u64)
    }

    /// Readers open a file of their own, as in another process, and see what was synced.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn append(&mut self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        for part in parts {
            self.held.extend_from_slice(part);
        }
        Ok(())
    }

    /// Opening writes again what was read, and nothing is held then.
    fn overwrite(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.overwrite(bytes, offset)
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        let synced = self.file.len()?;
        self.held.truncate(usize::try_from(length.saturating_sub(synced)).unwrap_or(usize::MAX));
        self.file.truncate(length.min(synced))
    }

    fn sync(&mut self) -> io::Result<()> {
        thread::sleep(SYNC_TIME);
        self.file.append(&mut [IoSlice::new(&self.held)])?;
        self.held.clear();
        self.file.sync()
    }
}
