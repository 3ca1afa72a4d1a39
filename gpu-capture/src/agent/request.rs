//! What the agent knows of one request: who it is, and rows that wait for their block to be whole.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use gatescope_routing::{IdWidth, KvLink, Role, RowShape, span::BlockHash};

/// What a start says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// The id that the client or router gave.
    pub outer_id: Arc<str>,
    /// Index among the sequences sampled for this id.
    pub choice: u32,
    /// What the instance does for this request.
    pub role: Role,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u32>,
    /// First position that this instance computes itself.
    pub first_forward: Option<u32>,
    /// Rows below this position were left out at the caller's wish.
    pub prompt_start: Option<u32>,
    /// How often this instance has started the request before.
    pub attempt: u32,
    /// What the instance calls itself and the request inside, by which a decode names its prefill.
    pub name: Option<KvLink>,
    /// The prefill whose KV cache it takes.
    pub prefill: Option<KvLink>,
}

/// Something to tell of a request, before it is known who it is.
#[derive(Debug, Clone)]
pub(super) enum Piece {
    Rows { start: u32, bytes: Bytes, shape: RowShape, width: IdWidth, hash: Option<BlockHash>, generation: u32 },
    Block { start: u32, rows: u32, hash: BlockHash, generation: u32 },
    Start(Box<Begun>),
    Preempt,
    Finish { completion_tokens: Option<u32> },
    Lost { start: u32, rows: u32 },
}

/// Bytes that a piece is taken to hold besides its rows.
const PIECE_BYTES: usize = 192;
/// Bytes of rows above which blocks without hashes do not go together: a message, and a record of the spool, has room for a few of
/// these.
const MOST_TOGETHER: usize = 256 << 10;

impl Piece {
    pub(super) fn bytes(&self) -> usize {
        PIECE_BYTES + if let Self::Rows { bytes, .. } = self { bytes.len() } else { 0 }
    }
}

/// Rows of adjacent positions that are not sent yet.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) start: u32,
    pub(super) rows: u32,
    pub(super) bytes: Vec<u8>,
    pub(super) shape: RowShape,
    pub(super) width: IdWidth,
    /// When the oldest of them came.
    pub(super) since: Instant,
}

impl Pending {
    pub(super) fn end(&self) -> u32 {
        self.start + self.rows
    }

    /// Forgets the rows from this position on.
    fn cut(&mut self, end: u32) {
        self.rows = end - self.start;
        self.bytes.truncate(self.rows as usize * self.shape.row_bytes(self.width));
    }
}

/// One request inside the engine.
#[derive(Debug)]
pub(super) struct RequestState {
    /// Who it is, once a start has said so.
    pub(super) begun: Option<Begun>,
    pub(super) attempt: u32,
    /// What waits for a start, and the attempt in which it came.
    pub(super) parked: VecDeque<(u32, Piece)>,
    pub(super) parked_bytes: usize,
    pub(super) pending: Option<Pending>,
    /// Hashes of its KV blocks, by index. Those of blocks that have been sent are gone.
    pub(super) hashes: BTreeMap<u32, BlockHash>,
    pub(super) finished: bool,
    /// When it became known.
    pub(super) known: Instant,
    /// When anything was last heard of it.
    pub(super) heard: Instant,
}

impl RequestState {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            begun: None,
            attempt: 0,
            parked: VecDeque::new(),
            parked_bytes: 0,
            pending: None,
            hashes: BTreeMap::new(),
            finished: false,
            known: now,
            heard: now,
        }
    }

    /// Adds rows and takes those that are to be sent now: whole blocks, a hashed one by itself, others together; and what was
    /// pending of other positions.
    ///
    /// A step that begins inside what is pending takes the place of its rows from there on: the engine has gone back and computed
    /// other tokens. One that begins before it is sent as well: rows of positions that were sent before are compared there.
    pub(super) fn append(
        &mut self,
        first: u32,
        rows: &[u8],
        (shape, width): (RowShape, IdWidth),
        block: u32,
        generation: u32,
        now: Instant,
    ) -> Vec<Piece> {
        let mut out = Vec::new();
        let row = shape.row_bytes(width);
        let fits = |pending: &Pending| pending.end() == first && (pending.shape, pending.width) == (shape, width);
        if let Some(pending) = self.pending.as_mut().filter(|pending| (pending.start..pending.end()).contains(&first)) {
            pending.cut(first);
        }
        self.pending.take_if(|pending| pending.rows == 0);
        if !self.pending.as_ref().is_some_and(fits) {
            out.extend(self.flush(generation));
        }
        let count = (rows.len() / row) as u32;
        // Where nothing waits, whole blocks go without a detour.
        let mut held = self.pending.take();
        let since = held.as_ref().map_or(now, |pending| pending.since);
        let (start, bytes) = match &mut held {
            Some(pending) => {
                pending.bytes.extend_from_slice(rows);
                (pending.start, pending.bytes.as_slice())
            }
            None => (first, rows),
        };
        let end = first + count;
        let mut sent = start;
        let slice = |from: u32, to: u32| &bytes[(from - start) as usize * row..(to - start) as usize * row];
        let whole = end / block * block;
        let together = (MOST_TOGETHER / row / block as usize).max(1) as u32 * block;
        while sent < whole {
            let own = (sent % block == 0).then(|| self.hashes.remove(&(sent / block))).flatten();
            let until = match &own {
                Some(_) => sent + block,
                // Up to the next block that has a hash.
                None => {
                    let here = sent / block;
                    let next =
                        self.hashes.range(here + 1..).next().map_or(whole, |(&index, _)| index.saturating_mul(block));
                    next.min(here * block + together).clamp(here * block + block, whole)
                }
            };
            let bytes = Bytes::copy_from_slice(slice(sent, until));
            out.push(Piece::Rows { start: sent, bytes, shape, width, hash: own, generation });
            sent = until;
        }
        if sent < end {
            let bytes = slice(sent, end).to_vec();
            self.pending = Some(Pending { start: sent, rows: end - sent, bytes, shape, width, since });
        }
        out
    }

    /// Takes what is pending, as it is.
    pub(super) fn flush(&mut self, generation: u32) -> Option<Piece> {
        let Pending { start, bytes, shape, width, .. } = self.pending.take()?;
        Some(Piece::Rows { start, bytes: bytes.into(), shape, width, hash: None, generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> (RowShape, IdWidth) {
        (RowShape::new(1, 1).unwrap(), IdWidth::U8)
    }

    fn hash(byte: u8) -> BlockHash {
        BlockHash([byte][..].into())
    }

    fn sent(pieces: &[Piece]) -> Vec<(u32, Vec<u8>, bool)> {
        let of = |piece: &Piece| match piece {
            Piece::Rows { start, bytes, hash, .. } => (*start, bytes.to_vec(), hash.is_some()),
            other => panic!("{other:?}"),
        };
        pieces.iter().map(of).collect()
    }

    #[test]
    fn whole_blocks_go_at_once_and_the_rest_waits() {
        let now = Instant::now();
        let mut request = RequestState::new(now);
        request.hashes.insert(1, hash(1));

        let out = request.append(3, &[3, 4, 5, 6, 7, 8, 9, 10, 11, 12], shape(), 4, 0, now);

        assert_eq!(sent(&out), [(3, vec![3], false), (4, vec![4, 5, 6, 7], true), (8, vec![8, 9, 10, 11], false)]);
        assert_eq!(request.pending.as_ref().map(|pending| (pending.start, pending.rows)), Some((12, 1)));
        assert_eq!(sent(&request.append(13, &[13, 14, 15], shape(), 4, 0, now)), [(12, vec![12, 13, 14, 15], false)]);
        assert!(request.pending.is_none());
    }

    #[test]
    fn a_step_that_goes_back_replaces_what_was_not_sent() {
        let now = Instant::now();
        let mut request = RequestState::new(now);
        assert!(request.append(0, &[0, 1, 90], shape(), 4, 0, now).is_empty());

        assert_eq!(sent(&request.append(2, &[2, 3, 4], shape(), 4, 0, now)), [(0, vec![0, 1, 2, 3], false)]);
        assert!(request.append(4, &[40], shape(), 4, 0, now).is_empty());
        assert!(request.append(4, &[41], shape(), 4, 0, now).is_empty());

        assert_eq!(sent(&Vec::from_iter(request.flush(0))), [(4, vec![41], false)]);
    }

    #[test]
    fn blocks_without_hashes_go_together_up_to_a_size() {
        let now = Instant::now();
        let mut request = RequestState::new(now);
        let rows: Vec<u8> = (0..3 * MOST_TOGETHER + 5).map(|position| position as u8).collect();

        let out = sent(&request.append(0, &rows, shape(), 4, 0, now));

        assert!(out.iter().all(|(_, rows, _)| rows.len() <= MOST_TOGETHER) && out.len() <= 4);
        let mut all: Vec<u8> = out.into_iter().flat_map(|(_, rows, _)| rows).collect();
        all.extend(sent(&Vec::from_iter(request.flush(0))).remove(0).1);
        assert!(all == rows);
    }

    #[test]
    fn rows_of_other_positions_send_what_waits() {
        let now = Instant::now();
        let mut request = RequestState::new(now);
        assert!(request.append(0, &[0, 1], shape(), 4, 0, now).is_empty());

        let out = request.append(9, &[9], shape(), 4, 0, now);

        assert_eq!(sent(&out), [(0, vec![0, 1], false)]);
        assert_eq!(request.pending.as_ref().map(|pending| pending.start), Some(9));
    }
}
