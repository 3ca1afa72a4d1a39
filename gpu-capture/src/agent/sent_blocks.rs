//! Which blocks have been sent, so that they need not be sent again.

use std::collections::{HashSet, VecDeque};

use gatescope_routing::span::BlockHash;

/// Hashes of blocks of one generation, bounded: the oldest are forgotten, which costs sending their rows once more.
#[derive(Debug)]
pub(super) struct SentBlocks {
    known: HashSet<BlockHash>,
    order: VecDeque<BlockHash>,
    most: usize,
}

impl SentBlocks {
    pub(super) fn new(most: usize) -> Self {
        Self { known: HashSet::new(), order: VecDeque::new(), most: most.max(1) }
    }

    pub(super) fn contains(&self, hash: &BlockHash) -> bool {
        self.known.contains(hash)
    }

    pub(super) fn insert(&mut self, hash: BlockHash) {
        if self.known.insert(hash.clone()) {
            self.order.push_back(hash);
            if self.order.len() > self.most
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
    }

    /// A new generation: the engine has reset its prefix cache.
    pub(super) fn clear(&mut self) {
        self.known.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten() {
        let hash = |byte: u8| BlockHash([byte][..].into());
        let mut sent = SentBlocks::new(2);
        for byte in [1, 2, 2, 3] {
            sent.insert(hash(byte));
        }

        assert!(!sent.contains(&hash(1)) && sent.contains(&hash(2)) && sent.contains(&hash(3)));
    }
}
