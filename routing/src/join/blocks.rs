//! Blocks by hash: rows that an agent sends once and then names.

use std::collections::{BTreeMap, HashMap};

use super::{Applied, BlockReference};
use crate::{rows::Rows, span::BlockHash, span::Span};

/// References that wait for their block.
#[derive(Debug, Clone, Default)]
pub(super) struct Blocks {
    waiting: Vec<BlockReference>,
}

impl Blocks {
    pub(super) fn insert(&mut self, reference: BlockReference) -> Applied {
        let same = |known: &BlockReference| {
            known.source == reference.source && known.start == reference.start && known.hash == reference.hash
        };
        if self.waiting.iter().any(same) {
            return Applied::Duplicate;
        }
        self.waiting.push(reference);
        Applied::Taken
    }

    pub(super) fn resolve(
        &mut self,
        mut find: impl FnMut(&BlockReference) -> Option<Rows>,
    ) -> Vec<(BlockReference, Rows)> {
        let mut found = Vec::new();
        self.waiting.retain(|reference| match find(reference) {
            Some(rows) => {
                found.push((reference.clone(), rows));
                false
            }
            None => true,
        });
        found
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &BlockReference> {
        self.waiting.iter()
    }

    pub(super) fn weight(&self) -> usize {
        self.waiting.capacity() * size_of::<BlockReference>()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// A block's name: the same hash on another instance or in another generation is another block.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct BlockName {
    instance: std::sync::Arc<str>,
    generation: u32,
    hash: BlockHash,
}

/// Rows of hashed blocks, bounded in bytes: the block that was used longest ago goes first.
#[derive(Debug)]
pub(super) struct BlockStore {
    blocks: HashMap<BlockName, (Rows, u64)>,
    by_use: BTreeMap<u64, BlockName>,
    bytes: usize,
    limit: usize,
    uses: u64,
}

impl BlockStore {
    pub(super) fn new(limit: usize) -> Self {
        Self { blocks: HashMap::new(), by_use: BTreeMap::new(), bytes: 0, limit, uses: 0 }
    }

    /// Keeps the span's rows if it is a block. The first rows under a name stay; where these are others than the span's, they
    /// are given back.
    pub(super) fn keep(&mut self, span: &Span) -> Option<Rows> {
        let hash = span.block.clone()?;
        if !span.unknown.is_empty() {
            return None;
        }
        let name = BlockName { instance: span.source.instance.clone(), generation: span.generation, hash };
        let known = self.touch(&name);
        if known.is_none() {
            self.bytes += span.rows.bytes().len();
            self.uses += 1;
            self.by_use.insert(self.uses, name.clone());
            self.blocks.insert(name, (span.rows.clone(), self.uses));
        }
        while self.bytes > self.limit {
            let Some((_, name)) = self.by_use.pop_first() else { break };
            if let Some((rows, _)) = self.blocks.remove(&name) {
                self.bytes -= rows.bytes().len();
            }
        }
        known.filter(|known| *known != span.rows)
    }

    /// The rows of a block.
    pub(super) fn find(&mut self, reference: &BlockReference) -> Option<Rows> {
        self.touch(&BlockName {
            instance: reference.source.instance.clone(),
            generation: reference.generation,
            hash: reference.hash.clone(),
        })
    }

    fn touch(&mut self, name: &BlockName) -> Option<Rows> {
        let (rows, used) = self.blocks.get_mut(name)?;
        self.by_use.remove(used);
        self.uses += 1;
        *used = self.uses;
        self.by_use.insert(self.uses, name.clone());
        Some(rows.clone())
    }
}
