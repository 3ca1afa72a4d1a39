//! The threads behind the join: they write closed requests into the batch.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use crossbeam_channel::{Receiver, Sender};

use crate::tables::{Batch, BatchWriter, ClosedRequest, TablesError};

/// Bytes of rows between the join and the writers.
const BUDGET: usize = 32 << 20;
/// What a request weighs besides its rows.
const REQUEST_BYTES: usize = 1 << 10;

/// Writes closed requests, on as many threads as there are cores. Dropped instead of finished, it gives up what is not
/// written yet.
pub(crate) struct Encoders {
    to_write: Option<Sender<Arc<ClosedRequest>>>,
    threads: Vec<JoinHandle<Result<(), TablesError>>>,
    room: Arc<Room>,
}

impl Encoders {
    /// Starts writers into this batch.
    pub(crate) fn start(batch: &Batch) -> std::io::Result<Self> {
        let (to_write, closed) = crossbeam_channel::unbounded();
        let mut encoders = Self { to_write: Some(to_write), threads: Vec::new(), room: Arc::default() };
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let (writer, closed, room) = (batch.writer(), closed.clone(), Arc::clone(&encoders.room));
            let thread = thread::Builder::new().name("gatescope-write".into());
            let thread = thread.spawn(move || write_all(writer, &closed, &room))?;
            encoders.threads.push(thread);
        }
        Ok(encoders)
    }

    /// Hands a request over; waits while much is waiting to be written. Says whether the writers are still at work:
    /// where not, [`Self::finish`] says why.
    pub(crate) fn send(&self, request: Arc<ClosedRequest>) -> bool {
        let Some(to_write) = &self.to_write else { return false };
        self.room.enter(weight(&request)) && to_write.send(request).is_ok()
    }

    /// Waits until all is written.
    pub(crate) fn finish(mut self) -> Result<(), TablesError> {
        self.to_write = None;
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(ended) => result = result.and(ended),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        result
    }
}

impl Drop for Encoders {
    fn drop(&mut self) {
        self.to_write = None;
        if !self.threads.is_empty() {
            self.room.close();
        }
        for thread in self.threads.drain(..) {
            // What went wrong there does not matter to who gives up.
            let _ = thread.join();
        }
    }
}

fn weight(request: &ClosedRequest) -> usize {
    REQUEST_BYTES + request.joined.segments.iter().map(|segment| segment.rows.bytes().len()).sum::<usize>()
}

fn write_all(mut writer: BatchWriter, closed: &Receiver<Arc<ClosedRequest>>, room: &Room) -> Result<(), TablesError> {
    let ending = Ending(room);
    for request in closed {
        if room.state().closed {
            return Ok(());
        }
        let weight = weight(&request);
        writer.add(&request)?;
        drop(request);
        room.leave(weight);
    }
    writer.finish()?;
    std::mem::forget(ending);
    Ok(())
}

/// A writer that ends early, by an error or a panic, leaves the others nothing to write for.
struct Ending<'a>(&'a Room);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
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

    /// Lets nobody in any more.
    fn close(&self) {
        self.state().closed = true;
        self.left.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, RoomState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
