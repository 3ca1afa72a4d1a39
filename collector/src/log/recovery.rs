//! Finds the end of the log after a crash.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use super::{
    damage::{Lost, Tolerance},
    error::{Context, LogError},
    folder::{file_path, first_positions, sync_folder},
    frame::FILE_HEADER,
    reader::{Next, Opened, Reader, WINDOW, Walk, header_of},
    segment::Segment,
    storage::Storage,
};

/// Half-written records that were cut off the end of the last file. A crash leaves none there that was acknowledged; a
/// newest group that was damaged later looks the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The file.
    pub path: PathBuf,
    /// Its new length.
    pub length: u64,
    /// Bytes cut off.
    pub bytes: u64,
    /// The position that the first record in them had, and that the next record gets.
    pub position: u64,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, length, bytes, position } = self;
        let path = path.display();
        write!(f, "{path}: cut {bytes} half-written bytes off at byte {length}, from record {position} on")
    }
}

/// A file that gets no more records.
#[derive(Debug, Clone)]
pub(super) struct Sealed {
    /// Position of its last record.
    pub(super) last: u64,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// A log as a crash left it, made whole at its end.
#[derive(Debug)]
pub(super) struct Recovered {
    /// First positions of all files, ascending.
    pub(super) files: Vec<u64>,
    /// The last position in the files.
    pub(super) last: u64,
    pub(super) sealed: Vec<Sealed>,
    /// The file to go on with; none where the next record needs a new one.
    pub(super) active: Option<Segment>,
    pub(super) cut: Option<Cut>,
    /// The last file, where salvage had to set it aside. Everything else that is lost the replay finds.
    pub(super) set_aside: Option<Lost>,
}

/// Reads the last file to its end, cuts what a crash left half-written and makes the rest durable.
pub(super) fn recover(
    storage: &dyn Storage,
    folder: &Path,
    tolerance: Tolerance,
    roll_bytes: u64,
) -> Result<Recovered, LogError> {
    let mut files = first_positions(storage, folder)?;
    let next = tolerance.committed + 1;
    let end = match files.last() {
        Some(&first) => last_file(storage, folder, first, tolerance)?,
        None => End::empty(Segment::create(storage, folder, next)?),
    };
    // The last file's name may be as new as its bytes.
    sync_folder(storage, folder)?;
    if files.is_empty() {
        files.push(next);
    }
    let mut sealed = Vec::with_capacity(files.len());
    for (&first, &next) in files.iter().zip(files.iter().skip(1)) {
        let path = file_path(folder, first);
        let bytes = storage.open(&path).and_then(|file| file.len()).context(&path, "read the length")?;
        sealed.push(Sealed { last: next - 1, path, bytes });
    }
    // Positions that the tables have must not come again, so a log that ends before them goes on in a new file.
    let has_room = end.segment.is_empty() || end.segment.length() < roll_bytes;
    let goes_on = end.is_whole && end.last + 1 >= next && has_room;
    let active = if goes_on {
        Some(end.segment)
    } else {
        sealed.push(end.segment.seal(end.last));
        None
    };
    Ok(Recovered { files, last: end.last, sealed, active, cut: end.cut, set_aside: end.set_aside })
}

/// The end of the last file.
struct End {
    segment: Segment,
    last: u64,
    /// Whether every record before the end can be read.
    is_whole: bool,
    cut: Option<Cut>,
    set_aside: Option<Lost>,
}

impl End {
    fn empty(segment: Segment) -> Self {
        Self { last: segment.first() - 1, segment, is_whole: true, cut: None, set_aside: None }
    }
}

fn last_file(storage: &dyn Storage, folder: &Path, first: u64, tolerance: Tolerance) -> Result<End, LogError> {
    let path = file_path(folder, first);
    let (length, found) = match Reader::open(storage, path.clone(), first)? {
        Opened::Whole(reader) => return find_end(Walk::new(reader, None), tolerance),
        Opened::Unreadable { length, found } => (length, found),
    };
    let mut set_aside = None;
    // Records follow only when the header is durable, so a shorter file is one that a crash kept from beginning.
    if length > FILE_HEADER as u64 {
        let lost = Lost { path: path.clone(), from: 0, to: length, first, last: None };
        set_aside = tolerance.judge(lost, header_of(first), found)?;
        storage.rename(&path, &path.with_extension("log.damaged")).context(&path, "set the file aside")?;
        sync_folder(storage, folder)?;
    }
    Ok(End { set_aside, ..End::empty(Segment::create(storage, folder, first)?) })
}

fn find_end(mut walk: Walk, tolerance: Tolerance) -> Result<End, LogError> {
    let mut is_whole = true;
    let mut cut = None;
    let mut newest = Newest { group: 0, offset: 0 };
    loop {
        let offset = walk.offset;
        let damage = match walk.next()? {
            Next::Record(header) => {
                newest.meet(header.group, offset);
                continue;
            }
            Next::End => break,
            Next::Damage(damage) => damage,
        };
        if !damage.was_durable {
            let Lost { path, from, first, .. } = damage.lost;
            walk.reader.file.truncate(from).context(&path, "cut half-written records off")?;
            (walk.offset, walk.expected) = (from, first);
            cut = Some(Cut { path, length: from, bytes: walk.reader.length - from, position: first });
            break;
        }
        is_whole = false;
        // The replay meets this damage again and reports it.
        tolerance.judge(damage.lost, damage.expected, damage.found)?;
    }
    write_again(&mut walk.reader, newest.offset, walk.offset)?;
    let Walk { reader, offset, expected, .. } = walk;
    Ok(End { segment: Segment::reopen(reader, offset), last: expected - 1, is_whole, cut, set_aside: None })
}

/// Where the newest group begins: all before it is durable, and of it nobody knows.
struct Newest {
    group: u64,
    offset: u64,
}

impl Newest {
    fn meet(&mut self, group: u64, offset: u64) {
        if self.group == 0 {
            // The first group of a file proves nothing, not even the header.
            self.group = group;
        } else if self.group != group {
            *self = Self { group, offset };
        }
    }
}

/// Makes the bytes from `from` to `to`, which can be read, durable.
///
/// A process that died while the machine lived leaves bytes that no sync has covered, or one that failed: then the system
/// may count them as written, still show them, and say yes to the next sync. So they are written once more, where they
/// are, before the sync.
fn write_again(reader: &mut Reader, from: u64, to: u64) -> Result<(), LogError> {
    let mut offset = from;
    while offset < to {
        let count = usize::try_from(to - offset).unwrap_or(usize::MAX).min(WINDOW);
        let bytes = reader.bytes(offset, count)?.to_vec();
        reader.file.overwrite(&bytes, offset).context(&reader.path, "write")?;
        offset += bytes.len().max(1) as u64;
    }
    Ok(reader.file.sync().context(&reader.path, "sync the file")?)
}
