//! The threads behind the join: they write closed requests into the batch.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use crossbeam_channel::{Receiver, Sender};

use super::error::ImportError;
use crate::tables::{Batch, BatchWriter, ClosedRequest, TablesError};

/// Bytes of rows between the join and the writers.
const BUDGET: usize = 64 << 20;
/// What a request weighs besides its rows.
const REQUEST_BYTES: usize = 1 << 10;

/// Writes closed requests, on as many threads as there are cores.
pub(super) struct Encoders {
    to_write: Sender<ClosedRequest>,
    threads: Vec<JoinHandle<Result<(), TablesError>>>,
    room: Arc<Room>,
}

impl Encoders {
    /// Starts writers into this batch.
    pub(super) fn start(batch: &Batch) -> Result<Self, ImportError> {
        let (to_write, closed) = crossbeam_channel::unbounded();
        let room = Arc::new(Room::default());
        let count = thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..count).map(|_| {
            let (writer, closed, room) = (batch.writer(), closed.clone(), Arc::clone(&room));
            let thread = thread::Builder::new().name("gatescope-write".into());
            thread.spawn(move || write_all(writer, &closed, &room)).map_err(ImportError::Thread)
        });
        Ok(Self { threads: threads.collect::<Result<_, _>>()?, to_write, room })
    }

    /// Hands a request over; waits while much is waiting to be written. Says whether the writers are still at work:
    /// where not, [`Self::finish`] says why.
    pub(super) fn send(&self, request: ClosedRequest) -> bool {
        self.room.enter(weight(&request)) && self.to_write.send(request).is_ok()
    }

    /// Waits until all is written.
    pub(super) fn finish(self) -> Result<(), ImportError> {
        drop(self.to_write);
        let mut result = Ok(());
        for thread in self.threads {
            let ended = match thread.join() {
                Ok(ended) => ended.map_err(ImportError::Tables),
                Err(panic) => std::panic::resume_unwind(panic),
            };
            result = result.and(ended);
        }
        result
    }
}

fn weight(request: &ClosedRequest) -> usize {
    REQUEST_BYTES + request.joined.segments.iter().map(|segment| segment.rows.bytes().len()).sum::<usize>()
}

fn write_all(mut writer: BatchWriter, closed: &Receiver<ClosedRequest>, room: &Room) -> Result<(), TablesError> {
    // Whoever ends early, by an error or a panic, has nobody to write for: the others end as well.
    let _closing = Closing(room);
    for request in closed {
        let weight = weight(&request);
        writer.add(&request)?;
        drop(request);
        room.leave(weight);
    }
    writer.finish()
}

/// Bounds the bytes of requests under way.
#[derive(Default)]
struct Room {
    state: Mutex<RoomState>,
    left: Condvar,
}

#[derive(Default)]
struct RoomState {
    used: usize,
    closed: bool,
}

impl Room {
    /// Waits for room. Says whether anyone is still writing.
    fn enter(&self, bytes: usize) -> bool {
        let mut state = self.state();
        while !state.closed && state.used > 0 && state.used + bytes > BUDGET {
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.used += bytes;
        !state.closed
    }

    fn leave(&self, bytes: usize) {
        self.state().used -= bytes;
        self.left.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, RoomState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Closing<'a>(&'a Room);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.left.notify_all();
    }
}
