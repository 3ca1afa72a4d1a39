//! A disk in memory that loses what was not synced: bytes, lengths and names, in the ways in which real ones do.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, ErrorKind, IoSlice},
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

use super::storage::{Storage, StoredFile};

/// A machine's disk, seen by what runs between two power cuts.
#[derive(Debug, Clone)]
pub(super) struct MemoryDisk {
    machine: Arc<(Mutex<Machine>, Condvar)>,
    boot: u64,
}

#[derive(Debug, Default)]
struct Machine {
    boot: u64,
    files: Vec<Contents>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    faults: Faults,
}

/// What the disk refuses.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Faults {
    /// Bytes until writes fail half-way, as on a full disk.
    pub(super) room: Option<usize>,
    /// How many syncs of files will fail, each dropping what it should have made durable.
    pub(super) failing_syncs: u32,
    /// Folders cannot be synced.
    pub(super) failing_folder_sync: bool,
    /// Files cannot be cut.
    pub(super) failing_truncate: bool,
    /// Files cannot be deleted.
    pub(super) failing_remove: bool,
    /// Syncs wait until this is over.
    pub(super) stuck_syncs: bool,
}

#[derive(Debug, Default, Clone)]
struct Contents {
    /// What readers see.
    seen: Vec<u8>,
    durable: Vec<u8>,
    /// Seen and not durable.
    dirty: Vec<Range<usize>>,
}

/// What a power cut leaves of the bytes that were not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// None.
    All,
    /// Some of their first ones; then the file ends.
    Tail,
    /// Blocks of them here and there; the others read as zeroes.
    Blocks,
    /// All of them, as when only the process dies.
    Nothing,
}

impl MemoryDisk {
    pub(super) fn new() -> Self {
        Self { machine: Arc::default(), boot: 0 }
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.0.lock().unwrap()
    }

    fn running(&self) -> io::Result<MutexGuard<'_, Machine>> {
        let machine = self.machine();
        if machine.boot == self.boot { Ok(machine) } else { Err(io::Error::other("the power is off")) }
    }

    pub(super) fn set(&self, faults: Faults) {
        self.machine().faults = faults;
        self.machine.1.notify_all();
    }

    /// Cuts the power and starts again: the same disk for whoever opens it next, and none for who had it open.
    pub(super) fn cut_power(&self, loss: Loss, seed: u64) -> Self {
        let mut machine = self.machine();
        let mut random = Random(seed);
        machine.boot += 1;
        machine.faults = Faults::default();
        for file in &mut machine.files {
            file.lose(loss, &mut random);
        }
        let Machine { names, durable_names, .. } = &mut *machine;
        let touched: Vec<_> = names.keys().chain(durable_names.keys()).cloned().collect();
        for path in touched {
            let keeps = loss == Loss::Nothing || (loss != Loss::All && random.next().is_multiple_of(2));
            let (from, to) = if keeps { (&*names, &mut *durable_names) } else { (&*durable_names, &mut *names) };
            match from.get(&path) {
                Some(file) => to.insert(path, *file),
                None => to.remove(&path),
            };
        }
        let boot = machine.boot;
        drop(machine);
        self.machine.1.notify_all();
        Self { machine: self.machine.clone(), boot }
    }

    /// The names that are there, ascending.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.machine().names.keys().cloned().collect()
    }

    /// A file's bytes.
    pub(super) fn read(&self, path: &Path) -> Vec<u8> {
        let machine = self.machine();
        machine.files[machine.names[path]].seen.clone()
    }

    /// Replaces a file's bytes, durably.
    pub(super) fn write(&self, path: &Path, bytes: Vec<u8>) {
        let mut machine = self.machine();
        let file = machine.files.len();
        machine.files.push(Contents { seen: bytes.clone(), durable: bytes, dirty: Vec::new() });
        machine.names.insert(path.to_owned(), file);
        machine.durable_names.insert(path.to_owned(), file);
    }

    /// Takes a file away, durably.
    pub(super) fn delete(&self, path: &Path) {
        let mut machine = self.machine();
        machine.names.remove(path);
        machine.durable_names.remove(path);
    }

    /// A disk of its own with the same durable files.
    pub(super) fn copy(&self) -> Self {
        let copy = Self::new();
        for path in self.paths() {
            copy.write(&path, self.read(&path));
        }
        copy
    }
}

impl Storage for MemoryDisk {
    fn create_folder(&self, _folder: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _folder: &Path) -> io::Result<Option<Box<dyn fmt::Debug + Send + Sync>>> {
        Ok(Some(Box::new(())))
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let machine = self.running()?;
        let inside = machine.names.keys().filter(|path| path.parent() == Some(folder));
        Ok(inside.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        let mut machine = self.running()?;
        if machine.names.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let file = machine.files.len();
        machine.files.push(Contents::default());
        machine.names.insert(path.to_owned(), file);
        Ok(Box::new(MemoryFile { disk: self.clone(), file }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        let file = *self.running()?.names.get(path).ok_or(ErrorKind::NotFound)?;
        Ok(Box::new(MemoryFile { disk: self.clone(), file }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut machine = self.running()?;
        if machine.faults.failing_remove {
            return Err(ErrorKind::PermissionDenied.into());
        }
        machine.names.remove(path).map(drop).ok_or(ErrorKind::NotFound.into())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut machine = self.running()?;
        let file = machine.names.remove(from).ok_or(ErrorKind::NotFound)?;
        machine.names.insert(to.to_owned(), file);
        Ok(())
    }

    fn sync_folder(&self, _folder: &Path) -> io::Result<()> {
        let mut machine = self.running()?;
        if machine.faults.failing_folder_sync {
            return Err(io::Error::other("I/O error"));
        }
        machine.durable_names = machine.names.clone();
        Ok(())
    }
}

#[derive(Debug)]
struct MemoryFile {
    disk: MemoryDisk,
    file: usize,
}

impl StoredFile for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.running()?.files[self.file].seen.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let machine = self.disk.running()?;
        let left = machine.files[self.file].seen.get(offset as usize..).unwrap_or_default();
        let count = left.len().min(buffer.len());
        buffer[..count].copy_from_slice(&left[..count]);
        Ok(count)
    }

    fn append(&mut self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut machine = self.disk.running()?;
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let fits = machine.faults.room.map_or(bytes.len(), |room| room.min(bytes.len()));
        if let Some(room) = &mut machine.faults.room {
            *room -= fits;
        }
        let file = &mut machine.files[self.file];
        let from = file.seen.len();
        file.seen.extend_from_slice(&bytes[..fits]);
        file.dirty.push(from..from + fits);
        if fits == bytes.len() { Ok(()) } else { Err(ErrorKind::StorageFull.into()) }
    }

    fn overwrite(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut machine = self.disk.running()?;
        let range = offset as usize..offset as usize + bytes.len();
        let file = &mut machine.files[self.file];
        file.seen[range.clone()].copy_from_slice(bytes);
        file.dirty.push(range);
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        let mut machine = self.disk.running()?;
        if machine.faults.failing_truncate {
            return Err(io::Error::other("I/O error"));
        }
        let file = &mut machine.files[self.file];
        file.seen.truncate(length as usize);
        for range in &mut file.dirty {
            *range = range.start.min(length as usize)..range.end.min(length as usize);
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut machine = self.disk.running()?;
        while machine.faults.stuck_syncs && machine.boot == self.disk.boot {
            machine = self.disk.machine.1.wait(machine).unwrap();
        }
        drop(machine);
        let mut machine = self.disk.running()?;
        let fails = machine.faults.failing_syncs > 0;
        machine.faults.failing_syncs = machine.faults.failing_syncs.saturating_sub(1);
        let file = &mut machine.files[self.file];
        if fails {
            // As Linux does: the pages count as clean from here on, and the next sync as a success.
            file.dirty.clear();
            return Err(io::Error::other("I/O error"));
        }
        file.durable.resize(file.seen.len(), 0);
        for range in file.dirty.drain(..) {
            file.durable[range.clone()].copy_from_slice(&file.seen[range]);
        }
        Ok(())
    }
}

impl Contents {
    fn lose(&mut self, loss: Loss, random: &mut Random) {
        let mut left = self.durable.clone();
        match loss {
            Loss::All => {}
            Loss::Nothing => left = self.seen.clone(),
            Loss::Tail => {
                let synced = left.len().min(self.seen.len());
                let kept = synced + random.below(self.seen.len() - synced + 1);
                left.truncate(kept);
                left.extend_from_slice(&self.seen[left.len()..kept]);
            }
            Loss::Blocks => {
                left.resize(left.len().max(self.seen.len()), 0);
                let block = 1 + random.below(64);
                for range in &self.dirty {
                    for start in range.clone().step_by(block) {
                        if random.next().is_multiple_of(2) {
                            let kept = start..(start + block).min(range.end);
                            left[kept.clone()].copy_from_slice(&self.seen[kept]);
                        }
                    }
                }
            }
        }
        *self = Self { seen: left.clone(), durable: left, dirty: Vec::new() };
    }
}

/// Numbers that look random (SplitMix64), the same for the same seed.
#[derive(Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Below `limit`, which is above 0.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
