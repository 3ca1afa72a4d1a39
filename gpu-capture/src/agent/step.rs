//! One engine step on its way to the agent's thread: copied once, into memory that is used again.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use gatescope_routing::{IdWidth, RowShape};

/// The accepted rows of one step.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) shape: RowShape,
    pub(super) width: IdWidth,
    /// The engine's ids of the requests, one after the other.
    names: String,
    parts: Vec<Part>,
    rows: Vec<u8>,
    /// Bytes that it holds of the ring's.
    held: usize,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    name_end: usize,
    first: u32,
    rows: u32,
}

/// The rows of one request in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    /// The engine's id of the request.
    pub(super) request: &'a str,
    /// Position of the first row.
    pub(super) first: u32,
    /// How many.
    pub(super) rows: u32,
    /// `[rows, layers, top_k]`.
    pub(super) bytes: &'a [u8],
}

impl Step {
    fn empty(shape: RowShape, width: IdWidth) -> Self {
        Self { shape, width, names: String::new(), parts: Vec::new(), rows: Vec::new(), held: 0 }
    }

    /// Copies the rows of one request.
    pub(super) fn push(&mut self, request: &str, first: u32, rows: u32, bytes: &[u8]) {
        self.names.push_str(request);
        self.rows.extend_from_slice(bytes);
        self.parts.push(Part { name_end: self.names.len(), first, rows });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The requests of the step, in its order.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let row = self.shape.row_bytes(self.width);
        let (mut name, mut byte) = (0, 0);
        self.parts.iter().map(move |part| {
            let request = &self.names[name..part.name_end];
            let bytes = &self.rows[byte..byte + part.rows as usize * row];
            name = part.name_end;
            byte += bytes.len();
            Piece { request, first: part.first, rows: part.rows, bytes }
        })
    }

    fn capacity(&self) -> usize {
        self.rows.capacity() + self.names.capacity() + self.parts.capacity() * size_of::<Part>()
    }
}

/// Steps between the engine and the agent's thread, bounded in bytes, and the memory of those that have passed.
#[derive(Debug)]
pub(super) struct Ring {
    bytes: usize,
    used: AtomicUsize,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    steps: Vec<Step>,
    bytes: usize,
}

/// Steps whose memory waits to be used again.
const MOST_IDLE: usize = 64;

impl Ring {
    /// At most so many bytes are on their way, and as many again wait to be used again.
    pub(super) fn new(bytes: usize) -> Self {
        let idle = Idle { steps: Vec::with_capacity(MOST_IDLE), bytes: 0 };
        Self { bytes, used: AtomicUsize::new(0), idle: Mutex::new(idle) }
    }

    /// A step of so many bytes of rows; `None` where there is no room.
    pub(super) fn begin(&self, shape: RowShape, width: IdWidth, bytes: usize) -> Option<Step> {
        let most = self.bytes;
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(bytes).filter(|&used| used <= most)
            })
            .ok()?;
        let reused = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            let step = idle.steps.pop();
            idle.bytes -= step.as_ref().map_or(0, |step| step.capacity());
            step
        };
        let mut step = reused.unwrap_or_else(|| Step::empty(shape, width));
        (step.shape, step.width, step.held) = (shape, width, bytes);
        step.rows.reserve(bytes);
        Some(step)
    }

    /// Takes a step's memory back.
    pub(super) fn end(&self, mut step: Step) {
        self.used.fetch_sub(step.held, Ordering::AcqRel);
        step.held = 0;
        step.names.clear();
        step.parts.clear();
        step.rows.clear();
        let capacity = step.capacity();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.steps.len() < MOST_IDLE && idle.bytes + capacity <= self.bytes {
            idle.bytes += capacity;
            idle.steps.push(step);
        }
    }

    /// Bytes on their way.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Most bytes on their way.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> RowShape {
        RowShape::new(2, 2).unwrap()
    }

    #[test]
    fn a_step_gives_back_what_was_put_into_it() {
        let ring = Ring::new(1 << 20);
        let mut step = ring.begin(shape(), IdWidth::U8, 12).unwrap();
        step.push("a", 7, 1, &[1, 2, 3, 4]);
        step.push("bc", 0, 2, &[5, 6, 7, 8, 9, 10, 11, 12]);

        let pieces: Vec<_> = step.pieces().collect();

        assert_eq!(pieces[0], Piece { request: "a", first: 7, rows: 1, bytes: &[1, 2, 3, 4] });
        assert_eq!(pieces[1], Piece { request: "bc", first: 0, rows: 2, bytes: &[5, 6, 7, 8, 9, 10, 11, 12] });
    }

    #[test]
    fn the_ring_is_bounded_and_its_memory_is_used_again() {
        let ring = Ring::new(1000);
        let first = ring.begin(shape(), IdWidth::U8, 600).unwrap();
        assert!(ring.begin(shape(), IdWidth::U8, 600).is_none(), "there was room for 400 bytes");
        let memory = first.rows.as_ptr();
        ring.end(first);
        assert_eq!(ring.used(), 0);

        let again = ring.begin(shape(), IdWidth::U8, 500).unwrap();

        assert_eq!(again.rows.as_ptr(), memory);
        assert!(again.is_empty());
    }

    #[test]
    fn a_large_step_does_not_stay_in_a_small_ring() {
        let ring = Ring::new(100);
        let mut step = ring.begin(shape(), IdWidth::U8, 10).unwrap();
        step.rows.reserve(10_000);

        ring.end(step);

        assert!(ring.idle.lock().unwrap().steps.is_empty());
    }
}
