//! Blocks of input: a fixed budget of bytes that travels from the reader to the join and back.
//!
//! Lines are slices of the block that they were read into. A block goes back to the pool when its last line has been
//! joined, so the budget bounds everything between the two, whatever the stages do.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;

/// A budget of bytes for blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    budget: usize,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes of blocks handed out and not yet returned.
    out: usize,
    /// Returned blocks, kept for their pages.
    spare: Vec<Vec<u8>>,
    closed: bool,
}

impl Blocks {
    pub(super) fn new(budget: usize) -> Arc<Self> {
        Arc::new(Self { budget, state: Mutex::default(), returned: Condvar::new() })
    }

    /// A block of at least `size` bytes; waits for blocks to come back while the budget is spent. `held` are the bytes
    /// of blocks that the caller itself keeps: it does not wait for those, so that a line larger than the budget gets
    /// through alone. `None` once closed.
    pub(super) fn take(self: &Arc<Self>, size: usize, held: usize) -> Option<Block> {
        let mut state = self.state();
        while !state.closed && state.out > held && state.out + size > self.budget {
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return None;
        }
        let fitting = state.spare.iter().position(|spare| spare.len() >= size && spare.len() <= size.saturating_mul(2));
        let bytes = match fitting {
            Some(index) => state.spare.swap_remove(index),
            None => {
                state.spare.clear();
                drop(state);
                let bytes = vec![0; size];
                state = self.state();
                bytes
            }
        };
        state.out += bytes.len();
        Some(Block { bytes, pool: Arc::clone(self) })
    }

    /// Nobody takes blocks any more: wakes and refuses who waits for one.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.returned.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes on loan from [`Blocks`].
#[derive(Debug)]
pub(super) struct Block {
    bytes: Vec<u8>,
    pool: Arc<Blocks>,
}

impl Block {
    /// Shares the block; it goes back to the pool with its last slice.
    pub(super) fn share(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut state = self.pool.state();
        state.out = state.out.saturating_sub(bytes.len());
        let spare: usize = state.spare.iter().map(Vec::len).sum();
        if !state.closed && state.out + spare + bytes.len() <= self.pool.budget {
            state.spare.push(bytes);
        }
        drop(state);
        self.pool.returned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[test]
    fn a_block_waits_until_the_budget_has_room() {
        // given
        let blocks = Blocks::new(100);
        let first = blocks.take(60, 0).unwrap();
        let (send, receive) = mpsc::channel();
        let waiting = std::thread::spawn({
            let blocks = Arc::clone(&blocks);
            move || send.send(blocks.take(60, 0).map(|block| block.len())).unwrap()
        });

        // when
        let early = receive.recv_timeout(Duration::from_millis(50));
        drop(first.share());

        // then
        assert!(early.is_err());
        assert_eq!(receive.recv().unwrap(), Some(60));
        waiting.join().unwrap();
    }

    #[test]
    fn a_block_larger_than_the_budget_is_lent_when_nothing_else_is_out() {
        // given
        let blocks = Blocks::new(100);
        let held = blocks.take(80, 0).unwrap();

        // when
        let large = blocks.take(1000, held.len());

        // then
        assert_eq!(large.unwrap().len(), 1000);
    }

    #[test]
    fn closing_refuses_who_waits() {
        // given
        let blocks = Blocks::new(10);
        let _held = blocks.take(10, 0).unwrap();
        let waiting = std::thread::spawn({
            let blocks = Arc::clone(&blocks);
            move || blocks.take(10, 0).is_none()
        });

        // when
        blocks.close();

        // then
        assert!(waiting.join().unwrap());
    }
}
