//! Reads one file of the log, and finds its way past bytes that are no frame.

use std::{fmt, path::PathBuf};

use bytes::Bytes;

use super::{
    damage::Lost,
    error::{Context, FileFailure, LogError},
    frame::{FILE_HEADER, FRAME_HEADER, FileHeader, FrameHeader, HeaderFault, VERSION},
    storage::{Storage, StoredFile},
};

/// Bytes read ahead.
pub(super) const WINDOW: usize = 1 << 20;

/// One file, opened.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) file: Box<dyn StoredFile>,
    pub(super) path: PathBuf,
    pub(super) header: FileHeader,
    /// Length when it was opened; what is appended later is not read.
    pub(super) length: u64,
    window: Vec<u8>,
    window_start: u64,
}

/// What opening a file found.
#[derive(Debug)]
pub(super) enum Opened {
    /// A file of the log.
    Whole(Reader),
    /// Neither copy of the header is whole, or it belongs to a file of another name.
    Unreadable {
        /// Bytes in the file.
        length: u64,
        /// What is there instead of the header.
        found: String,
    },
}

impl Reader {
    pub(super) fn open(storage: &dyn Storage, path: PathBuf, first: u64) -> Result<Opened, LogError> {
        let file = storage.open(&path).context(&path, "open the file")?;
        let length = file.len().context(&path, "read the length")?;
        let header = FileHeader { first, salt: 0 };
        let mut reader = Self { file, path, header, length, window: Vec::new(), window_start: 0 };
        let found = match FileHeader::decode(reader.bytes(0, FILE_HEADER)?) {
            // Frames follow the second copy.
            Ok(_) if length < FILE_HEADER as u64 => "half a header".to_owned(),
            Ok(header) if header.first == first => {
                reader.header = header;
                return Ok(Opened::Whole(reader));
            }
            Ok(header) => header_of(header.first),
            Err(HeaderFault::Unreadable) => "no whole header".to_owned(),
            Err(HeaderFault::Version(found)) => {
                return Err(LogError::Version { path: reader.path, found, supported: VERSION });
            }
        };
        Ok(Opened::Unreadable { length, found })
    }

    /// Up to `count` bytes from `offset` on, fewer only at the end of the file.
    pub(super) fn bytes(&mut self, offset: u64, count: usize) -> Result<&[u8], FileFailure> {
        let count = within(count as u64, self.length.saturating_sub(offset));
        if count == 0 {
            return Ok(&[]);
        }
        let covered =
            offset >= self.window_start && offset + count as u64 <= self.window_start + self.window.len() as u64;
        if !covered {
            self.fill(offset, count)?;
        }
        let from = (offset - self.window_start) as usize;
        Ok(&self.window[from..(from + count).min(self.window.len())])
    }

    fn fill(&mut self, offset: u64, count: usize) -> Result<(), FileFailure> {
        let wanted = within(count.max(WINDOW) as u64, self.length - offset);
        self.window.resize(wanted, 0);
        self.window_start = offset;
        let mut filled = 0;
        while filled < wanted {
            let read = self.file.read_at(&mut self.window[filled..], offset + filled as u64);
            match read.context(&self.path, "read")? {
                0 => break,
                read => filled += read,
            }
        }
        self.window.truncate(filled);
        // One large frame must not hold its memory for the rest of the file.
        self.window.shrink_to(WINDOW.max(filled));
        Ok(())
    }

    /// The frame at `offset`, if it is whole and its checksum is right.
    fn frame(&mut self, offset: u64) -> Result<Result<FrameHeader, Fault>, FileFailure> {
        let left = self.length.saturating_sub(offset);
        let Some(header) = FrameHeader::decode(self.bytes(offset, FRAME_HEADER)?) else {
            return Ok(Err(Fault::End { left }));
        };
        if header.frame_bytes() > left {
            return Ok(Err(Fault::Length { length: header.length, left }));
        }
        let salt = self.header.salt;
        let payload = self.bytes(offset + FRAME_HEADER as u64, header.length as usize)?;
        let expected = header.expected_crc(payload, salt);
        let whole = expected == header.crc && payload.len() == header.length as usize;
        Ok(if whole { Ok(header) } else { Err(Fault::Checksum { expected, found: header.crc }) })
    }

    /// The first whole frame from `from` on that `wanted` accepts, with `position` or a later one, below `limit`.
    fn find(
        &mut self,
        from: u64,
        position: u64,
        limit: Option<u64>,
        wanted: impl Fn(&FrameHeader) -> bool,
    ) -> Result<Option<(u64, FrameHeader)>, FileFailure> {
        let mut offset = from;
        while let Some(header) = FrameHeader::decode(self.bytes(offset, FRAME_HEADER)?) {
            // Positions are dense, so as many records as fit into the bytes passed can be missing and no more. This, not
            // the checksum, rejects nearly every offset that is not a frame's.
            let highest = position.saturating_add((offset - from) / FRAME_HEADER as u64 + 1);
            let possible = (position..=highest).contains(&header.position)
                && limit.is_none_or(|limit| header.position < limit)
                && header.group <= header.position;
            match possible.then(|| self.frame(offset)).transpose()? {
                Some(Ok(header)) if wanted(&header) => return Ok(Some((offset, header))),
                Some(Ok(header)) => offset += header.frame_bytes(),
                _ => offset += 1,
            }
        }
        Ok(None)
    }
}

/// `count`, or `most` if that is less.
fn within(count: u64, most: u64) -> usize {
    usize::try_from(count.min(most)).unwrap_or(usize::MAX)
}

/// Goes through a file's records in order.
#[derive(Debug)]
pub(super) struct Walk {
    pub(super) reader: Reader,
    /// Where the next frame begins.
    pub(super) offset: u64,
    /// The position that it must have.
    pub(super) expected: u64,
    /// The position at which the next file begins. What this file holds from there on was given up after a failed sync.
    limit: Option<u64>,
}

/// What comes next in a file.
#[derive(Debug)]
pub(super) enum Next {
    /// A record; [`Walk::payload`] has its bytes.
    Record(FrameHeader),
    /// Bytes that are no frame. The walk goes on after them.
    Damage(Damage),
    /// The last record was before.
    End,
}

/// Bytes that should be a frame and are not.
#[derive(Debug)]
pub(super) struct Damage {
    /// Where, and which records were there.
    pub(super) lost: Lost,
    /// The first of them, in words.
    pub(super) expected: String,
    /// What is there instead.
    pub(super) found: Fault,
    /// Whether the first of them is known to have been durable; if not, this is where a crash stopped the writer.
    pub(super) was_durable: bool,
}

impl Walk {
    pub(super) fn new(reader: Reader, limit: Option<u64>) -> Self {
        let expected = reader.header.first;
        Self { reader, offset: FILE_HEADER as u64, expected, limit }
    }

    pub(super) fn next(&mut self) -> Result<Next, FileFailure> {
        let ended = self.offset >= self.reader.length;
        if self.limit == Some(self.expected) || (ended && self.limit.is_none()) {
            return Ok(Next::End);
        }
        let fault = match self.reader.frame(self.offset)? {
            Ok(header) if header.position == self.expected => {
                self.offset += header.frame_bytes();
                self.expected += 1;
                return Ok(Next::Record(header));
            }
            Ok(header) => Fault::Position { found: header.position },
            Err(Fault::End { left: 0 }) => Fault::Ended { next: self.limit.unwrap_or(self.expected) },
            Err(fault) => fault,
        };
        self.pass(fault).map(Next::Damage)
    }

    /// Goes on at the next whole frame, or at the end.
    fn pass(&mut self, found: Fault) -> Result<Damage, FileFailure> {
        let (from, first, limit) = (self.offset, self.expected, self.limit);
        let resumed = self.reader.find(from + 1, first, limit, |_| true)?;
        let was_durable = match (&resumed, limit) {
            (_, Some(_)) => true,
            (None, None) => false,
            (Some((at, header)), None) => {
                self.reader.find(*at, header.position, None, |later| later.group > first)?.is_some()
            }
        };
        let (to, last) = match resumed {
            Some((at, header)) => (at, Some(header.position - 1)),
            None => (self.reader.length, limit.map(|limit| limit - 1)),
        };
        self.offset = to;
        self.expected = last.map_or(first, |last| last + 1);
        let path = self.reader.path.clone();
        let lost = Lost { path, from, to, first, last };
        Ok(Damage { lost, expected: format!("record {first}"), found, was_durable })
    }

    /// The bytes of the record that [`Walk::next`] has just returned.
    pub(super) fn payload(&mut self, header: &FrameHeader) -> Result<Bytes, FileFailure> {
        let start = self.offset - u64::from(header.length);
        Ok(Bytes::copy_from_slice(self.reader.bytes(start, header.length as usize)?))
    }
}

/// What the first bytes of a file should be.
pub(super) fn header_of(first: u64) -> String {
    format!("the header of a file that begins with record {first}")
}

/// What is there instead of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// No more bytes, and another file.
    Ended { next: u64 },
    /// Too few bytes for a frame's header.
    End { left: u64 },
    /// A length beyond the end of the file.
    Length { length: u32, left: u64 },
    /// A checksum that does not belong to these bytes.
    Checksum { expected: u32, found: u32 },
    /// A whole frame of another position.
    Position { found: u64 },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended { next } => write!(f, "the end of the file, and the next one begins with record {next}"),
            Self::End { left } => write!(f, "the end of the file after {left} bytes"),
            Self::Length { length, left } => {
                write!(f, "a length of {length} bytes where the file has {left} left")
            }
            Self::Checksum { expected, found } => {
                write!(f, "checksum {found:08x} over bytes whose checksum is {expected:08x}")
            }
            Self::Position { found } => write!(f, "record {found}"),
        }
    }
}
