//! A bounded ring of steps: the engine's thread puts in, another takes out, and neither waits for the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use super::host::{self, Tallies};
use super::layout::Faults;
use super::{DeviceError, Layout, cuda};

/// Where an engine's buffer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the GPU whose context is current on the calling thread. Takes the CUDA driver and NVRTC, which engines bring.
    Device,
    /// In host memory.
    Host,
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Taken {
    /// It will come out of [`Steps::oldest`].
    Kept,
    /// Every slot is in use: nothing was read, and it counts in [`Capture::dropped`].
    Dropped,
}

enum Memory {
    Host { rows: Vec<u8>, faults: Vec<u32>, counts: Vec<u32> },
    Device(cuda::Slot),
}

struct Filled {
    memory: Memory,
    tag: u64,
    tokens: usize,
    counts: bool,
}

/// The engine's end of the ring.
pub struct Capture {
    layout: Arc<Layout>,
    free: Receiver<Memory>,
    freed: SyncSender<Memory>,
    filled: SyncSender<Filled>,
    dropped: Arc<AtomicU64>,
}

/// The other end: steps in the order in which they were captured.
pub struct Steps {
    layout: Arc<Layout>,
    filled: Receiver<Filled>,
    freed: SyncSender<Memory>,
    first: Option<Filled>,
}

/// Makes a ring of `slots` steps (at least 1). All memory is taken here: per slot the packed rows of `max_tokens`, counts and faults, on
/// the device also once on the host (pinned).
pub fn ring(place: Place, layout: Layout, slots: usize) -> Result<(Capture, Steps), DeviceError> {
    let layout = Arc::new(layout);
    let slots = slots.max(1);
    let (freed, free) = sync_channel(slots);
    let (fill, filled) = sync_channel(slots);
    let device = match place {
        Place::Device => Some(cuda::Device::current(&layout)?),
        Place::Host => None,
    };
    for _ in 0..slots {
        let memory = match &device {
            Some(device) => Memory::Device(cuda::Slot::new(Arc::clone(device), Arc::clone(&layout))?),
            None => Memory::Host {
                rows: vec![0; layout.packed_bytes(layout.max_tokens())],
                faults: vec![0; layout.fault_cells()],
                counts: vec![0; layout.count_cells()],
            },
        };
        give_back(&freed, memory);
    }
    let capture = Capture {
        layout: Arc::clone(&layout),
        free,
        freed: freed.clone(),
        filled: fill,
        dropped: Arc::new(AtomicU64::new(0)),
    };
    Ok((capture, Steps { layout, filled, freed, first: None }))
}

/// The channel has room for every slot there is; where the other end has gone, the slot goes too.
fn give_back(freed: &SyncSender<Memory>, memory: Memory) {
    let _ = freed.try_send(memory);
}

impl Capture {
    /// Takes one step: reads `tokens` rows at the address `ids`, in the order of `stream`, and returns at once.
    ///
    /// `tag` comes out with the step. With `counts`, ids are counted per layer and expert as well, which costs their
    /// `[layers, experts]` in the copy to the host.
    ///
    /// # Safety
    /// `ids` is the address (`data_ptr`) of a contiguous `int32 [tokens, layers, top_k]` at [`Place`], and `stream` the
    /// `CUstream` on which it is written, on the device that was current when the ring was made (on the host it is not looked
    /// at). The rows must not be written by anything that is not in that stream's order; on the host, not during the call.
    #[allow(unsafe_code)]
    pub unsafe fn capture(
        &mut self,
        ids: u64,
        tokens: usize,
        stream: u64,
        tag: u64,
        counts: bool,
    ) -> Result<Taken, DeviceError> {
        if tokens > self.layout.max_tokens() {
            return Err(DeviceError::TooManyTokens { tokens, most: self.layout.max_tokens() });
        }
        if tokens == 0 {
            return Ok(Taken::Kept);
        }
        if ids == 0 || !ids.is_multiple_of(4) {
            return Err(DeviceError::Address(ids));
        }
        let Ok(mut memory) = self.free.try_recv() else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return Ok(Taken::Dropped);
        };
        let done = match &mut memory {
            // SAFETY: the caller's promise; the size was checked above.
            Memory::Device(slot) => unsafe { slot.launch(ids, tokens, stream, counts) },
            Memory::Host { rows, faults, counts: cells } => {
                let length = tokens * self.layout.shape().ids();
                // SAFETY: the caller's promise: so many initialised ids, that nobody writes now; aligned, as checked above.
                let ids = unsafe { std::slice::from_raw_parts(ids as usize as *const i32, length) };
                faults.fill(0);
                if counts {
                    cells.fill(0);
                }
                let rows = &mut rows[..self.layout.packed_bytes(tokens)];
                host::pack(&self.layout, ids, rows, Tallies { faults, counts: counts.then_some(cells) });
                Ok(())
            }
        };
        match done {
            Ok(()) => {
                let _ = self.filled.try_send(Filled { memory, tag, tokens, counts });
                Ok(Taken::Kept)
            }
            Err(error) => {
                give_back(&self.freed, memory);
                Err(error)
            }
        }
    }

    /// Steps for which no slot was free.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The counter behind [`Capture::dropped`], for whoever reports it.
    pub fn dropped_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.dropped)
    }
}

impl Steps {
    /// The oldest step, if it has arrived on the host. Does not wait.
    pub fn oldest(&mut self) -> Result<Option<Step<'_>>, DeviceError> {
        if self.first.is_none() {
            match self.filled.try_recv() {
                Ok(filled) => self.first = Some(filled),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Ok(None),
            }
        }
        let arrived = match &self.first {
            Some(Filled { memory: Memory::Device(slot), .. }) => slot.arrived()?,
            Some(_) => true,
            None => false,
        };
        if !arrived {
            return Ok(None);
        }
        Ok(self.first.take().map(|filled| Step { filled: Some(filled), steps: self }))
    }
}

/// A captured step on the host. Its slot is free again when this is dropped.
pub struct Step<'a> {
    filled: Option<Filled>,
    steps: &'a Steps,
}

impl Step<'_> {
    /// As given to [`Capture::capture`].
    pub fn tag(&self) -> u64 {
        self.filled.as_ref().map_or(0, |filled| filled.tag)
    }

    /// Rows in the step.
    pub fn tokens(&self) -> usize {
        self.filled.as_ref().map_or(0, |filled| filled.tokens)
    }

    /// Packed rows, `[tokens, layers, top_k]`, ids `u8` or `u16` little-endian ([`Layout::width`]).
    pub fn rows(&self) -> &[u8] {
        match self.filled.as_ref() {
            Some(Filled { memory: Memory::Device(slot), tokens, .. }) => slot.rows(*tokens),
            Some(Filled { memory: Memory::Host { rows, .. }, tokens, .. }) => {
                &rows[..self.steps.layout.packed_bytes(*tokens)]
            }
            None => &[],
        }
    }

    /// Three counters per layer: ids out of range, rows with an id twice, rows of zeros alone.
    pub fn faults_by_layer(&self) -> &[u32] {
        match self.filled.as_ref().map(|filled| &filled.memory) {
            Some(Memory::Device(slot)) => slot.faults(),
            Some(Memory::Host { faults, .. }) => faults,
            None => &[],
        }
    }

    /// What no gate can have chosen, over all layers.
    pub fn faults(&self) -> Faults {
        Faults::of(self.faults_by_layer())
    }

    /// Tokens per `[layer, expert]` of this step, where they were asked for.
    pub fn counts(&self) -> Option<&[u32]> {
        match self.filled.as_ref().filter(|filled| filled.counts).map(|filled| &filled.memory) {
            Some(Memory::Device(slot)) => Some(slot.counts()),
            Some(Memory::Host { counts, .. }) => Some(counts),
            None => None,
        }
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if let Some(filled) = self.filled.take() {
            give_back(&self.steps.freed, filled.memory);
        }
    }
}
