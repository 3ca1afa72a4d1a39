//! Events on disk while the collector is away: bounded, in order, still there after a restart.
//!
//! A folder of segments. A record is its length, the CRC32C of its bytes, and one wire batch as an Arrow IPC stream. A record that
//! was torn by a crash ends its segment; one that is damaged is skipped. A segment is deleted when the collector has
//! acknowledged all that was read from it, so a crash sends some of it again, which the collector recognises.

use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use gatescope_wire::{Event, MAX_MESSAGE_BYTES, decode, encode, ipc, wire_bytes};

/// A segment that has grown to so much is followed by another.
const SEGMENT_BYTES: u64 = 16 << 20;
/// Events are written together up to so many bytes.
const RECORD_BYTES: usize = 256 << 10;
/// Longest record that is believed.
const MOST_RECORD_BYTES: usize = 2 * MAX_MESSAGE_BYTES;

/// Where an agent spools, and how much.
#[derive(Debug, Clone)]
pub struct SpoolOptions {
    /// A folder that no other agent uses.
    pub folder: PathBuf,
    /// Most bytes of files.
    pub bytes: u64,
}

#[derive(Debug)]
pub(super) struct Spool {
    folder: PathBuf,
    most: u64,
    /// Held as long as the spool is used.
    _lock: File,
    /// Oldest first; the last one is written to.
    segments: VecDeque<Segment>,
    next: u64,
    writing: Option<File>,
    /// Events that are not in a record yet.
    gathered: Vec<Event>,
    gathered_bytes: usize,
    reading: Option<Reading>,
    /// Events of the record that was read last, not handed over yet.
    read: VecDeque<Event>,
    /// Segments that are read, and how many events the exporter had taken when they were.
    leaving: VecDeque<(Segment, u64)>,
    /// Events in the spool: counted from those written by this process.
    events: u64,
}

#[derive(Debug)]
struct Segment {
    path: PathBuf,
    bytes: u64,
}

#[derive(Debug)]
struct Reading {
    file: File,
    at: u64,
}

impl Spool {
    /// Opens the folder, with what an earlier process has left there.
    pub(super) fn open(options: &SpoolOptions) -> io::Result<Self> {
        fs::create_dir_all(&options.folder)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(options.folder.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => io::Error::other("another process uses this spool"),
            fs::TryLockError::Error(error) => error,
        })?;
        let mut found: Vec<(u64, PathBuf, u64)> = Vec::new();
        for entry in fs::read_dir(&options.folder)? {
            let entry = entry?;
            if let Some(number) = number(&entry.path()) {
                found.push((number, entry.path(), entry.metadata()?.len()));
            }
        }
        found.sort_unstable();
        let next = found.last().map_or(0, |(number, ..)| number + 1);
        let segments = found.into_iter().map(|(_, path, bytes)| Segment { path, bytes }).collect();
        Ok(Self {
            folder: options.folder.clone(),
            most: options.bytes,
            _lock: lock,
            segments,
            next,
            writing: None,
            gathered: Vec::new(),
            gathered_bytes: 0,
            reading: None,
            read: VecDeque::new(),
            leaving: VecDeque::new(),
            events: 0,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.gathered.is_empty() && self.read.is_empty()
    }

    /// Bytes of files, and of what is about to be written.
    pub(super) fn bytes(&self) -> u64 {
        let files = self.segments.iter().chain(self.leaving.iter().map(|(segment, _)| segment));
        files.map(|segment| segment.bytes).sum::<u64>() + self.gathered_bytes as u64
    }

    /// Room that is kept for what a record has around its events: Arrow's header and padding, and the schema before it.
    fn frames(&self) -> u64 {
        (self.most / 4).min(32 << 10)
    }

    /// Events that this process has spooled and not handed over.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// Takes an event; `false` where there is no room.
    pub(super) fn append(&mut self, event: &Event) -> io::Result<bool> {
        let bytes = wire_bytes(event);
        // Larger ones are cut by who sends them, which is not here.
        if bytes > MAX_MESSAGE_BYTES / 2 || self.bytes() + bytes as u64 + self.frames() > self.most {
            return Ok(false);
        }
        self.gathered.push(event.clone());
        self.gathered_bytes += bytes;
        self.events += 1;
        if self.gathered_bytes >= RECORD_BYTES {
            self.write()?;
        }
        Ok(true)
    }

    /// Hands events over until one comes back, oldest first.
    pub(super) fn drain(&mut self, mut offer: impl FnMut(Event) -> Result<(), Box<Event>>) {
        loop {
            while let Some(event) = self.read.pop_front() {
                if let Err(event) = offer(event) {
                    self.read.push_front(*event);
                    return;
                }
                self.events = self.events.saturating_sub(1);
            }
            if self.read_record() {
                continue;
            }
            if self.gathered.is_empty() {
                return;
            }
            // What has not come to disk need not go there.
            self.gathered_bytes = 0;
            let mut gathered = std::mem::take(&mut self.gathered).into_iter();
            while let Some(event) = gathered.next() {
                if let Err(event) = offer(event) {
                    self.gathered = std::iter::once(*event).chain(gathered).collect();
                    self.gathered_bytes = self.gathered.iter().map(wire_bytes).sum();
                    return;
                }
                self.events = self.events.saturating_sub(1);
            }
        }
    }

    /// Deletes segments that have been read and whose events are settled: `taken` and `settled` count the exporter's.
    pub(super) fn settle(&mut self, taken: u64, settled: u64) {
        if self.read.is_empty() {
            for (_, at) in self.leaving.iter_mut().filter(|(_, at)| *at == u64::MAX) {
                *at = taken;
            }
        }
        while let Some((segment, at)) = self.leaving.front() {
            if *at > settled {
                break;
            }
            // One that cannot be deleted is sent again by the next process.
            let _ = fs::remove_file(&segment.path);
            self.leaving.pop_front();
        }
    }

    /// Events that a failed write has left behind: who asks takes care of them.
    pub(super) fn take_unwritten(&mut self) -> Vec<Event> {
        self.events = self.events.saturating_sub(self.gathered.len() as u64);
        self.gathered_bytes = 0;
        std::mem::take(&mut self.gathered)
    }

    /// Writes what is gathered. Where that fails it stays gathered.
    pub(super) fn write(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let record = encode(&self.gathered).and_then(|batch| ipc::stream_of(&batch)).map_err(io::Error::other)?;
        let mut framed = Vec::with_capacity(record.len() + 8);
        framed.extend_from_slice(&(record.len() as u32).to_le_bytes());
        framed.extend_from_slice(&crc32c::crc32c(&record).to_le_bytes());
        framed.extend_from_slice(&record);
        if self.bytes() - self.gathered_bytes as u64 + framed.len() as u64 > self.most {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if self.writing.is_none() || self.segments.back().is_none_or(|segment| segment.bytes >= SEGMENT_BYTES) {
            let path = self.folder.join(format!("{:020}.spool", self.next));
            self.writing = Some(File::options().create_new(true).write(true).open(&path)?);
            self.next += 1;
            self.segments.push_back(Segment { path, bytes: 0 });
        }
        let (Some(file), Some(segment)) = (&mut self.writing, self.segments.back_mut()) else { return Ok(()) };
        if let Err(error) = file.write_all(&framed) {
            // What is half written ends this segment.
            self.writing = None;
            return Err(error);
        }
        segment.bytes += framed.len() as u64;
        self.gathered.clear();
        self.gathered_bytes = 0;
        Ok(())
    }

    /// Reads the next record; `false` where there is none.
    fn read_record(&mut self) -> bool {
        loop {
            let Some(segment) = self.segments.front() else { return false };
            // A segment that cannot be read any more ends where that shows: the ones behind it can.
            let record = match &mut self.reading {
                Some(reading) => next_record(reading),
                None => {
                    File::open(&segment.path).and_then(|file| next_record(self.reading.insert(Reading { file, at: 0 })))
                }
            };
            match record.map(|record| record.map(events_of)) {
                Ok(Some(Ok(events))) => {
                    self.read.extend(events);
                    return true;
                }
                Ok(Some(Err(error))) => {
                    tracing::warn!("a record in the spool that cannot be read was skipped: {error}");
                    continue;
                }
                Ok(None) => {}
                Err(error) => tracing::warn!("{}: the rest of it is skipped: {error}", segment.path.display()),
            }
            self.reading = None;
            if self.segments.len() == 1 {
                self.writing = None;
            }
            let Some(segment) = self.segments.pop_front() else { return false };
            self.leaving.push_back((segment, u64::MAX));
        }
    }
}

fn events_of(record: Bytes) -> io::Result<Vec<Event>> {
    let mut events = Vec::new();
    for batch in ipc::read_stream(record).map_err(io::Error::other)? {
        events.extend(decode(&batch.map_err(io::Error::other)?).map_err(io::Error::other)?.events);
    }
    Ok(events)
}

/// The next record that is whole; a damaged one is skipped.
fn next_record(reading: &mut Reading) -> io::Result<Option<Bytes>> {
    loop {
        let mut head = [0; 8];
        reading.file.seek(SeekFrom::Start(reading.at))?;
        if !filled(&mut reading.file, &mut head)? {
            return Ok(None);
        }
        let [a, b, c, d, e, f, g, h] = head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > MOST_RECORD_BYTES {
            return Ok(None);
        }
        let mut record = vec![0; length];
        if !filled(&mut reading.file, &mut record)? {
            return Ok(None);
        }
        reading.at += 8 + length as u64;
        if crc32c::crc32c(&record) == u32::from_le_bytes([e, f, g, h]) {
            return Ok(Some(record.into()));
        }
        tracing::warn!("a damaged record in the spool was skipped");
    }
}

/// Fills the buffer; `false` where the file ends before.
fn filled(file: &mut File, buffer: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn number(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?.strip_suffix(".spool")?;
    name.bytes().all(|byte| byte.is_ascii_digit()).then(|| name.parse().ok())?
}

#[cfg(test)]
mod tests {
    use gatescope_routing::{Finish, RequestKey, Role, Source};
    use gatescope_wire::{Request, Told};

    use super::*;

    fn event(number: u32) -> Event {
        let source = Source { role: Role::Decode, instance: "d0".into(), attempt: 0 };
        let key = RequestKey { run: "default".into(), request_id: format!("{number}").into(), choice: 0 };
        let finish = Finish { source, prompt_tokens: None, completion_tokens: Some(number), uniform_prompt: None };
        Event::Request(Request { key, at: 0, told: Told::Finish(finish) })
    }

    fn name(event: &Event) -> u32 {
        let Event::Request(request) = event else { panic!("{event:?}") };
        request.key.request_id.parse().unwrap()
    }

    fn drained(spool: &mut Spool) -> Vec<u32> {
        let mut out = Vec::new();
        spool.drain(|event| {
            out.push(name(&event));
            Ok(())
        });
        out
    }

    fn options(folder: &Path, bytes: u64) -> SpoolOptions {
        SpoolOptions { folder: folder.to_owned(), bytes }
    }

    #[test]
    fn events_come_out_in_order_and_files_go_when_they_are_settled() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(&options(folder.path(), 1 << 20)).unwrap();
        (0..10).for_each(|number| assert!(spool.append(&event(number)).unwrap()));
        spool.write().unwrap();

        assert_eq!(drained(&mut spool), (0..10).collect::<Vec<_>>());
        assert!(spool.is_empty());
        spool.settle(10, 9);
        assert!(spool.bytes() > 0, "a file went before all of it was settled");
        spool.settle(10, 10);
        assert_eq!((spool.bytes(), fs::read_dir(folder.path()).unwrap().count()), (0, 1));

        assert!(spool.append(&event(11)).unwrap());
        assert_eq!(drained(&mut spool), [11]);
    }

    #[test]
    fn what_finds_no_taker_stays_first() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(&options(folder.path(), 1 << 20)).unwrap();
        (0..4).for_each(|number| assert!(spool.append(&event(number)).unwrap()));
        let mut room = 2;
        spool.drain(|event| {
            if room > 0 {
                room -= 1;
                Ok(())
            } else {
                Err(Box::new(event))
            }
        });
        assert!(spool.append(&event(4)).unwrap());

        assert_eq!(drained(&mut spool), [2, 3, 4]);
    }

    #[test]
    fn a_restart_finds_what_was_spooled_and_a_torn_tail_costs_itself_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(&options(folder.path(), 1 << 20)).unwrap();
        for number in 0..3 {
            assert!(spool.append(&event(number)).unwrap());
            spool.write().unwrap();
        }
        assert!(Spool::open(&options(folder.path(), 1 << 20)).is_err(), "two processes in one spool");
        drop(spool);
        let segment = folder.path().join(format!("{:020}.spool", 0));
        let length = fs::metadata(&segment).unwrap().len();
        File::options().write(true).open(&segment).unwrap().set_len(length - 3).unwrap();

        let mut spool = Spool::open(&options(folder.path(), 1 << 20)).unwrap();

        assert!(!spool.is_empty());
        assert!(spool.append(&event(7)).unwrap());
        assert_eq!(drained(&mut spool), [0, 1, 7]);
    }

    #[test]
    fn a_damaged_record_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(&options(folder.path(), 1 << 20)).unwrap();
        for number in 0..3 {
            assert!(spool.append(&event(number)).unwrap());
            spool.write().unwrap();
        }
        let segment = folder.path().join(format!("{:020}.spool", 0));
        let mut bytes = fs::read(&segment).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&segment, bytes).unwrap();

        assert_eq!(drained(&mut spool), [0, 2]);
    }

    #[test]
    fn a_segment_that_is_gone_holds_nothing_up() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(&options(folder.path(), 1 << 20)).unwrap();
        assert!(spool.append(&event(0)).unwrap());
        spool.write().unwrap();
        drop(spool);
        let mut spool = Spool::open(&options(folder.path(), 1 << 20)).unwrap();
        assert!(spool.append(&event(1)).unwrap());
        fs::remove_file(folder.path().join(format!("{:020}.spool", 0))).unwrap();

        assert_eq!(drained(&mut spool), [1]);
        assert!(spool.is_empty());
    }

    #[test]
    fn what_cannot_be_written_is_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(&options(folder.path(), 1 << 20)).unwrap();
        (0..3).for_each(|number| assert!(spool.append(&event(number)).unwrap()));
        // A file where the next segment belongs: it cannot be made.
        fs::write(folder.path().join(format!("{:020}.spool", 0)), "").unwrap();

        assert!(spool.write().is_err());
        let back: Vec<u32> = spool.take_unwritten().iter().map(name).collect();

        assert_eq!((back, spool.bytes(), spool.events()), (vec![0, 1, 2], 0, 0));
    }

    #[test]
    fn a_full_spool_refuses() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(&options(folder.path(), 2000)).unwrap();

        let taken = (0..100).filter(|&number| spool.append(&event(number)).unwrap()).count();

        assert!((1..20).contains(&taken), "{taken} events in 2,000 bytes");
        assert!(spool.bytes() <= 2000);
    }
}
