//! The few things that the log asks of a file system, as a seam: tests put one there that loses what was not synced.

use std::{
    fmt,
    fs::{File, TryLockError},
    io::{self, ErrorKind, IoSlice, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
    path::Path,
};

/// Names and files of one folder.
pub(super) trait Storage: fmt::Debug + Send + Sync {
    /// Creates the folder and those above it, where they are not there; durable in the end.
    fn create_folder(&self, folder: &Path) -> io::Result<()>;
    /// Takes the folder for this process until the lock is dropped; none where another one has it.
    fn lock(&self, folder: &Path) -> io::Result<Option<Box<dyn fmt::Debug + Send + Sync>>>;
    /// The names in the folder, in no order. Names that are not Unicode are none of the log's.
    fn names(&self, folder: &Path) -> io::Result<Vec<String>>;
    /// A new, empty file; an error where the name is taken.
    fn create(&self, path: &Path) -> io::Result<Box<dyn StoredFile>>;
    /// A file that is there, for reading and appending.
    fn open(&self, path: &Path) -> io::Result<Box<dyn StoredFile>>;
    /// Takes the name away.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Gives the file another name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the names in the folder durable. Call it through [`super::folder::sync_folder`].
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// One file.
pub(super) trait StoredFile: fmt::Debug + Send {
    /// Bytes in it.
    fn len(&self) -> io::Result<u64>;
    /// Reads some bytes from `offset` on: 0 only at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Puts all parts at the end, in order. After an error any number of their bytes may be there.
    fn append(&mut self, parts: &mut [IoSlice<'_>]) -> io::Result<()>;
    /// Writes these bytes at `offset`, where the file has as many or more.
    fn overwrite(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Cuts the file.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
    /// Makes the file's bytes and length durable. After an error they must be given up: the system may have dropped
    /// them and would report the next sync as a success.
    fn sync(&mut self) -> io::Result<()>;
}

/// The file system of this machine.
#[derive(Debug)]
pub(super) struct Disk;

impl Storage for Disk {
    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        if folder.is_dir() {
            return Ok(());
        }
        let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.create_folder(parent)?;
        match std::fs::create_dir(folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => self.sync_folder(parent),
        }
    }

    fn lock(&self, folder: &Path) -> io::Result<Option<Box<dyn fmt::Debug + Send + Sync>>> {
        let file = File::options().create(true).truncate(false).write(true).open(folder.join("lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(names)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        Ok(Box::new(File::options().read(true).write(true).create_new(true).open(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        Ok(Box::new(File::options().read(true).write(true).open(path)?))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

impl StoredFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match FileExt::read_at(self, buffer, offset) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }

    fn append(&mut self, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.seek(SeekFrom::End(0))?;
        // Empty parts in front would read as a write of nothing.
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match self.write_vectored(parts) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut parts, written),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn overwrite(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}
