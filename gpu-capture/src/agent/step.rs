//! One engine step on its way to the agent's thread: copied once, into memory that is used again.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
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

impl Idle {
    /// The smallest step that is large enough; else the largest one.
    fn take(&mut self, bytes: usize) -> Option<Step> {
        let capacity = |index: &usize| self.steps[*index].rows.capacity();
        let enough = (0..self.steps.len()).filter(|index| capacity(index) >= bytes).min_by_key(capacity);
        let index = enough.or_else(|| (0..self.steps.len()).max_by_key(capacity))?;
        let step = self.steps.swap_remove(index);
        self.bytes -= step.capacity();
        Some(step)
    }
}

/// A step's memory is a multiple of so many bytes.
const SPARE: usize = 64 << 10;
/// Steps whose memory waits to be used again.
const MOST_IDLE: usize = 64;

impl Ring {
    /// At most so many bytes are on their way; together with those that wait to be used again they are hardly more.
    pub(super) fn new(bytes: usize) -> Self {
        let idle = Idle { steps: Vec::with_capacity(MOST_IDLE), bytes: 0 };
        Self { bytes, used: AtomicUsize::new(0), idle: Mutex::new(idle) }
    }

    /// Takes room for so many bytes; `false` where there is none. [`Ring::release`] gives it back.
    pub(super) fn hold(&self, bytes: usize) -> bool {
        let most = self.bytes;
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(bytes).filter(|&used| used <= most)
            })
            .is_ok()
    }

    pub(super) fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// A step of so many bytes of rows; `None` where there is no room.
    pub(super) fn begin(&self, shape: RowShape, width: IdWidth, bytes: usize) -> Option<Step> {
        if !self.hold(bytes) {
            return None;
        }
        let reused = self.idle().take(bytes);
        let mut step = reused.unwrap_or_else(|| Step::empty(shape, width));
        (step.shape, step.width, step.held) = (shape, width, bytes);
        if step.rows.capacity() < bytes {
            // Steps of a kind differ a little: with some room to spare their memory fits the next one as well.
            step.rows.reserve(bytes.next_multiple_of(SPARE));
        }
        Some(step)
    }

    /// Takes a step's memory back.
    pub(super) fn end(&self, mut step: Step) {
        let used = self.used.fetch_sub(step.held, Ordering::AcqRel) - step.held;
        step.held = 0;
        step.names.clear();
        step.parts.clear();
        step.rows.clear();
        let capacity = step.capacity();
        let mut idle = self.idle();
        if idle.steps.len() < MOST_IDLE && idle.bytes + used + capacity <= self.bytes {
            idle.bytes += capacity;
            idle.steps.push(step);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
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
        let ring = Ring::new(100_000);
        let first = ring.begin(shape(), IdWidth::U8, 60_000).unwrap();
        assert!(ring.begin(shape(), IdWidth::U8, 60_000).is_none(), "there was room for 40,000 bytes");
        let memory = first.rows.as_ptr();
        ring.end(first);
        assert_eq!(ring.used(), 0);

        let again = ring.begin(shape(), IdWidth::U8, 50_000).unwrap();

        assert_eq!(again.rows.as_ptr(), memory);
        assert!(again.is_empty());
    }

    #[test]
    fn small_steps_leave_the_memory_of_large_ones_alone() {
        let ring = Ring::new(8 << 20);
        let (small, large) = (ring.begin(shape(), IdWidth::U8, 100), ring.begin(shape(), IdWidth::U8, 1 << 20));
        let memory = large.as_ref().unwrap().rows.as_ptr();
        [small, large].into_iter().flatten().for_each(|step| ring.end(step));

        let (small, large) = (ring.begin(shape(), IdWidth::U8, 100), ring.begin(shape(), IdWidth::U8, 1 << 20));

        assert!(small.unwrap().rows.capacity() < 1 << 20 && large.unwrap().rows.as_ptr() == memory);
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
