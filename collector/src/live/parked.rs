//! Open requests that memory has no room for: their parts in a temporary file, until they are needed.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use gatescope_routing::{
    IdWidth, RowShape,
    check::inspect,
    join::{BlockReference, Finish, Lost, Part, Start},
    rows::Rows,
    span::{Anchor, BlockHash, Source, Span, Unknown, WireType},
};
use serde::{Deserialize, Serialize};

/// A part without its rows' bytes, which follow all descriptions.
#[derive(Serialize, Deserialize)]
enum Piece {
    Span {
        source: Of,
        start: Option<u32>,
        completion_tokens: u32,
        layers: u64,
        top_k: u64,
        wide: bool,
        bytes: usize,
        wire_type: String,
        unknown: Vec<(u32, u32, u16)>,
        generation: u32,
        block: Option<Arc<[u8]>>,
    },
    Start {
        source: Of,
        prompt_tokens: Option<u32>,
        first_forward: Option<u32>,
        prompt_start: Option<u32>,
        parent: Option<Arc<str>>,
    },
    Finish {
        source: Of,
        prompt_tokens: Option<u32>,
        completion_tokens: Option<u32>,
        uniform_prompt: Option<bool>,
    },
    Block {
        source: Of,
        start: u32,
        hash: Arc<[u8]>,
        generation: u32,
    },
    Lost {
        source: Of,
        start: u32,
        positions: u32,
    },
}

#[derive(Serialize, Deserialize)]
struct Of {
    role: String,
    instance: Arc<str>,
    attempt: u32,
}

impl From<Source> for Of {
    fn from(source: Source) -> Self {
        Self { role: source.role.name().to_owned(), instance: source.instance, attempt: source.attempt }
    }
}

impl Of {
    fn source(self) -> Option<Source> {
        Some(Source { role: self.role.parse().ok()?, instance: self.instance, attempt: self.attempt })
    }
}

const WIRE_TYPES: [WireType; 9] = [
    WireType::U8,
    WireType::I8,
    WireType::U16,
    WireType::I16,
    WireType::U32,
    WireType::I32,
    WireType::U64,
    WireType::I64,
    WireType::Json,
];

/// Parts as bytes.
pub(super) fn to_bytes(parts: Vec<Part>) -> Bytes {
    let mut rows = Vec::new();
    let pieces: Vec<Piece> = parts
        .into_iter()
        .map(|part| match part {
            Part::Span(span) | Part::Inspected(span, _) => {
                let (start, completion_tokens) = match span.anchor {
                    Anchor::Start(start) => (Some(start), 0),
                    Anchor::End { completion_tokens } => (None, completion_tokens),
                };
                let piece = Piece::Span {
                    source: span.source.into(),
                    start,
                    completion_tokens,
                    layers: span.rows.shape().layers() as u64,
                    top_k: span.rows.shape().top_k() as u64,
                    wide: span.rows.width() == IdWidth::U16,
                    bytes: span.rows.bytes().len(),
                    wire_type: span.wire_type.name().to_owned(),
                    unknown: span.unknown.into_iter().map(|of| (of.rows.start, of.rows.end, of.layer)).collect(),
                    generation: span.generation,
                    block: span.block.map(|hash| hash.0),
                };
                rows.push(span.rows);
                piece
            }
            Part::Start(start) => Piece::Start {
                source: start.source.into(),
                prompt_tokens: start.prompt_tokens,
                first_forward: start.first_forward,
                prompt_start: start.prompt_start,
                parent: start.parent,
            },
            Part::Finish(finish) => Piece::Finish {
                source: finish.source.into(),
                prompt_tokens: finish.prompt_tokens,
                completion_tokens: finish.completion_tokens,
                uniform_prompt: finish.uniform_prompt,
            },
            Part::Block(block) => Piece::Block {
                source: block.source.into(),
                start: block.start,
                hash: block.hash.0,
                generation: block.generation,
            },
            Part::Lost(lost) => {
                Piece::Lost { source: lost.source.into(), start: lost.start, positions: lost.positions }
            }
        })
        .collect();
    // Serialising text and numbers into memory has no way to fail.
    let header = serde_json::to_vec(&pieces).unwrap_or_default();
    let payload: usize = rows.iter().map(|rows| rows.bytes().len()).sum();
    let mut bytes = BytesMut::with_capacity(8 + header.len() + payload);
    bytes.put_u64_le(header.len() as u64);
    bytes.put_slice(&header);
    rows.iter().for_each(|rows| bytes.put_slice(rows.bytes()));
    bytes.freeze()
}

/// The parts that [`to_bytes`] wrote; `None` where these are no such bytes.
pub(super) fn from_bytes(mut bytes: Bytes) -> Option<Vec<Part>> {
    let length = usize::try_from(bytes.try_get_u64_le().ok()?).ok()?;
    if length > bytes.len() {
        return None;
    }
    let pieces: Vec<Piece> = serde_json::from_slice(&bytes.split_to(length)).ok()?;
    pieces.into_iter().map(|piece| part(piece, &mut bytes)).collect()
}

fn part(piece: Piece, payload: &mut Bytes) -> Option<Part> {
    Some(match piece {
        Piece::Span {
            source,
            start,
            completion_tokens,
            layers,
            top_k,
            wide,
            bytes,
            wire_type,
            unknown,
            generation,
            block,
        } => {
            if bytes > payload.len() {
                return None;
            }
            let width = if wide { IdWidth::U16 } else { IdWidth::U8 };
            let rows = Rows::new(payload.split_to(bytes), RowShape::new(layers, top_k).ok()?, width).ok()?;
            let inspection = inspect(&rows);
            let span = Span {
                source: source.source()?,
                anchor: start.map_or(Anchor::End { completion_tokens }, Anchor::Start),
                rows,
                wire_type: WIRE_TYPES.into_iter().find(|known| known.name() == wire_type)?,
                unknown: unknown.into_iter().map(|(from, to, layer)| Unknown { rows: from..to, layer }).collect(),
                generation,
                block: block.map(BlockHash),
            };
            Part::Inspected(span, inspection)
        }
        Piece::Start { source, prompt_tokens, first_forward, prompt_start, parent } => {
            Part::Start(Start { source: source.source()?, prompt_tokens, first_forward, prompt_start, parent })
        }
        Piece::Finish { source, prompt_tokens, completion_tokens, uniform_prompt } => {
            Part::Finish(Finish { source: source.source()?, prompt_tokens, completion_tokens, uniform_prompt })
        }
        Piece::Block { source, start, hash, generation } => {
            Part::Block(BlockReference { source: source.source()?, start, hash: BlockHash(hash), generation })
        }
        Piece::Lost { source, start, positions } => Part::Lost(Lost { source: source.source()?, start, positions }),
    })
}

/// Where parts are.
#[derive(Debug, Clone)]
pub(super) struct Parked {
    file: Arc<File>,
    offset: u64,
    length: usize,
}

impl Parked {
    /// The parts.
    pub(super) fn read(&self) -> io::Result<Vec<Part>> {
        let mut bytes = vec![0; self.length];
        self.file.read_exact_at(&mut bytes, self.offset)?;
        from_bytes(bytes.into()).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "parked parts are damaged"))
    }

    /// Bytes in the file.
    pub(super) fn bytes(&self) -> usize {
        self.length
    }
}

/// The file of parked parts. It has no name and goes with the process: the log has all that is in it.
#[derive(Debug)]
pub(super) struct Parking {
    folder: PathBuf,
    file: Option<Arc<File>>,
    end: u64,
    /// Bytes in it that are still needed.
    needed: u64,
}

impl Parking {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), file: None, end: 0, needed: 0 }
    }

    /// Writes parts.
    pub(super) fn park(&mut self, parts: Vec<Part>) -> io::Result<Parked> {
        // A new file once nothing of the old one is needed: who still reads that keeps it.
        if self.needed == 0 {
            (self.file, self.end) = (None, 0);
        }
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => Arc::clone(self.file.insert(Arc::new(tempfile::tempfile_in(&self.folder)?))),
        };
        let bytes = to_bytes(parts);
        file.write_all_at(&bytes, self.end)?;
        let parked = Parked { file, offset: self.end, length: bytes.len() };
        self.end += bytes.len() as u64;
        self.needed += bytes.len() as u64;
        Ok(parked)
    }

    /// What was parked is needed no more.
    pub(super) fn release(&mut self, parked: &Parked) {
        if self.file.as_ref().is_some_and(|file| Arc::ptr_eq(file, &parked.file)) {
            self.needed = self.needed.saturating_sub(parked.length as u64);
        }
    }

    /// Bytes of the file, those that are needed no more among them.
    #[cfg(test)]
    fn file_bytes(&self) -> u64 {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use gatescope_routing::span::Role;

    use super::*;

    fn parts() -> Vec<Part> {
        let source = Source { role: Role::Decode, instance: "d0".into(), attempt: 1 };
        let span = |anchor| Span {
            source: source.clone(),
            anchor,
            rows: Rows::new(vec![1, 2, 3, 4, 5, 6, 7, 8].into(), RowShape::new(2, 2).unwrap(), IdWidth::U8).unwrap(),
            wire_type: WireType::I32,
            unknown: vec![Unknown { rows: 1..2, layer: 1 }],
            generation: 3,
            block: Some(BlockHash(vec![9; 32].into())),
        };
        vec![
            Part::Start(Start {
                source: source.clone(),
                prompt_tokens: Some(5),
                first_forward: Some(4),
                prompt_start: None,
                parent: Some("before".into()),
            }),
            Part::Span(span(Anchor::Start(4))),
            Part::Span(span(Anchor::End { completion_tokens: 3 })),
            Part::Block(BlockReference {
                source: source.clone(),
                start: 6,
                hash: BlockHash([1][..].into()),
                generation: 3,
            }),
            Part::Lost(Lost { source: source.clone(), start: 8, positions: 2 }),
            Part::Finish(Finish {
                source,
                prompt_tokens: None,
                completion_tokens: Some(9),
                uniform_prompt: Some(false),
            }),
        ]
    }

    #[test]
    fn parked_parts_come_back_as_they_were() {
        // given
        let folder = tempfile::tempdir().unwrap();
        let mut parking = Parking::new(folder.path());
        parking.park(parts()).unwrap();

        // when
        let parked = parking.park(parts()).unwrap();

        // then
        let expected: Vec<Part> = parts()
            .into_iter()
            .map(|part| match part {
                Part::Span(span) => {
                    let inspection = inspect(&span.rows);
                    Part::Inspected(span, inspection)
                }
                other => other,
            })
            .collect();
        assert_eq!(format!("{:?}", parked.read().unwrap()), format!("{expected:?}"));
    }

    #[test]
    fn the_file_is_begun_anew_once_nothing_in_it_is_needed() {
        // given
        let folder = tempfile::tempdir().unwrap();
        let mut parking = Parking::new(folder.path());
        let first = parking.park(parts()).unwrap();
        let bytes = parking.file_bytes();
        let kept = first.clone();

        // when
        parking.release(&first);
        parking.park(parts()).unwrap();

        // then
        assert_eq!(parking.file_bytes(), bytes);
        assert!(kept.read().is_ok());
    }
}
