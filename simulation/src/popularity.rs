//! Which experts are popular: ready rows to choose from, per topic.
//!
//! A gate's choice depends on the token in the first layers and ever more on what came before in the later ones. So a row
//! is put together from three ready rows of its token's topic: the first layers follow the token, the middle ones the
//! token and the one before it, the last ones all tokens so far. Ready rows are drawn once, expert by expert without
//! replacement and in the order of their scores, from weights of their own for each layer and topic.

use bytes::Bytes;
use gatescope_routing::{IdWidth, ModelShape, RowShape, Rows, rows::RowsError};
use rand::{RngExt, seq::SliceRandom};
use rand_distr::{Distribution, Exp1, StandardNormal};
use rand_pcg::Pcg64;

/// Topics of which texts can be.
pub(crate) const TOPICS: usize = 16;
/// Ready rows per topic, at most; a power of two.
const ROWS: usize = 256;
/// Bytes of all ready rows, about: beyond it there are fewer of them.
const POOL_BYTES: usize = 32 << 20;
/// Scores drawn for all ready rows, about: it bounds the time that a large model takes.
const SCORES: usize = 64 << 20;

/// A row, by its ready rows: topic and three of its rows, a byte each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) [u8; 4]);

/// Ready rows of a model.
#[derive(Debug)]
pub(crate) struct Popularity {
    shape: RowShape,
    width: IdWidth,
    /// `[topic][row]`
    pool: Vec<u8>,
    /// Rows per topic.
    rows: usize,
    /// Bytes of a row where its second and its third part begin.
    cuts: [usize; 2],
}

impl Popularity {
    /// Draws the rows.
    pub(crate) fn new(model: &ModelShape, random: &mut Pcg64) -> Self {
        let shape = model.row();
        let width = IdWidth::for_experts(model.num_experts());
        let (row_bytes, experts) = (shape.row_bytes(width), model.num_experts() as usize);
        let scores = model.moe_layers().len().max(1) * experts;
        let most = (POOL_BYTES / row_bytes).min(SCORES / scores) / TOPICS;
        let rows = ROWS.min(1 << most.max(4).ilog2());
        let layer_bytes = shape.top_k() * width.bytes();
        let cut = |third: usize| shape.layers().div_ceil(3).saturating_mul(third).min(shape.layers()) * layer_bytes;
        let mut pool = vec![0; TOPICS * rows * row_bytes];
        let mut list = Vec::with_capacity(shape.top_k() + 1);
        for layer in model.moe_layers().iter() {
            let base = base_weights(experts, random);
            for topic in 0..TOPICS {
                let rates: Vec<f32> = base.iter().map(|weight| 1.0 / (weight * topical(random))).collect();
                for row in 0..rows {
                    draw(&rates, shape.top_k(), &mut list, random);
                    let at = (topic * rows + row) * row_bytes + layer * layer_bytes;
                    write_ids(&list, width, &mut pool[at..at + layer_bytes]);
                }
            }
        }
        Self { shape, width, pool, rows, cuts: [cut(1), cut(2)] }
    }

    /// The code of a row whose parts are chosen by these hashes.
    pub(crate) fn code(&self, topic: usize, hashes: [u64; 3]) -> Code {
        let [a, b, c] = hashes.map(|hash| (hash >> 32) as u8 & (self.rows - 1) as u8);
        Code([topic as u8, a, b, c])
    }

    /// The rows of these codes.
    pub(crate) fn rows(&self, codes: impl Iterator<Item = Code>, count: usize) -> Result<Rows, RowsError> {
        let mut bytes = Vec::with_capacity(count * self.shape.row_bytes(self.width));
        let [second, third] = self.cuts;
        for code in codes {
            let [a, b, c] = self.parts(code);
            bytes.extend_from_slice(&a[..second]);
            bytes.extend_from_slice(&b[second..third]);
            bytes.extend_from_slice(&c[third..]);
        }
        Rows::new(Bytes::from(bytes), self.shape, self.width)
    }

    fn parts(&self, Code([topic, rows @ ..]): Code) -> [&[u8]; 3] {
        let row_bytes = self.shape.row_bytes(self.width);
        rows.map(|row| {
            let at = (usize::from(topic) * self.rows + usize::from(row)) * row_bytes;
            &self.pool[at..at + row_bytes]
        })
    }
}

/// Zipf's weights, in an order of the layer's own and as steep as chance has it.
fn base_weights(experts: usize, random: &mut Pcg64) -> Vec<f32> {
    let steepness = random.random_range(0.3..0.9_f32);
    let mut weights: Vec<f32> = (1..=experts).map(|rank| (rank as f32).powf(-steepness)).collect();
    weights.shuffle(random);
    weights
}

/// How much more or less a topic uses an expert.
fn topical(random: &mut Pcg64) -> f32 {
    let normal: f32 = StandardNormal.sample(random);
    (0.7 * normal).exp()
}

/// Draws `top_k` different experts in the order of their scores: a race of exponential clocks is a draw without
/// replacement.
fn draw(rates: &[f32], top_k: usize, list: &mut Vec<(f32, u16)>, random: &mut Pcg64) {
    list.clear();
    for (expert, rate) in rates.iter().enumerate() {
        let clock: f32 = Exp1.sample(random);
        let score = clock * rate;
        if list.len() == top_k && list.last().is_some_and(|last| last.0 <= score) {
            continue;
        }
        let at = list.partition_point(|other| other.0 <= score);
        list.insert(at, (score, expert as u16));
        list.truncate(top_k);
    }
}

fn write_ids(list: &[(f32, u16)], width: IdWidth, into: &mut [u8]) {
    for (id, (_, expert)) in into.chunks_exact_mut(width.bytes()).zip(list) {
        id.copy_from_slice(&expert.to_le_bytes()[..width.bytes()]);
    }
}

#[cfg(test)]
mod tests {
    use gatescope_routing::{LayerSet, check::inspect};
    use rand::SeedableRng;

    use super::*;

    fn popularity(layers: u64, top_k: u64, experts: u64, dense: usize) -> Popularity {
        let row = RowShape::new(layers, top_k).unwrap();
        let moe: LayerSet = (dense..layers as usize).collect();
        Popularity::new(&ModelShape::new(row, experts, moe).unwrap(), &mut Pcg64::seed_from_u64(7))
    }

    fn all(popularity: &Popularity) -> Rows {
        let codes = (0..20_000_u64).map(|i| {
            let hash = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            popularity.code(i as usize % TOPICS, [hash, hash.rotate_left(21), hash.rotate_left(42)])
        });
        popularity.rows(codes, 20_000).unwrap()
    }

    #[test]
    fn every_row_is_a_choice_that_a_gate_can_make() {
        for (layers, top_k, experts, dense) in [(9, 8, 128, 0), (3, 2, 2, 1), (1, 1, 4, 0), (6, 6, 300, 2)] {
            let rows = all(&popularity(layers, top_k, experts, dense));
            for (layer, values) in inspect(&rows).layers.iter().enumerate() {
                if layer < dense {
                    assert_eq!(values.highest, 0);
                } else {
                    assert!(u64::from(values.highest) < experts);
                    assert_eq!((values.repeating_rows, values.zero_rows), (0, 0), "{layers}x{top_k} of {experts}");
                }
            }
        }
    }

    #[test]
    fn some_experts_are_far_more_popular_than_others_and_not_the_same_in_every_layer() {
        // given
        let rows = all(&popularity(4, 8, 128, 0));

        // when
        let mut counts = vec![[0_u32; 128]; 4];
        for row in 0..rows.len() {
            for (layer, counts) in counts.iter_mut().enumerate() {
                rows.experts(row, layer).iter().for_each(|&expert| counts[usize::from(expert)] += 1);
            }
        }

        // then
        let mean = 20_000 * 8 / 128;
        let hottest: Vec<usize> =
            counts.iter().map(|counts| (0..128).max_by_key(|&expert| counts[expert]).unwrap()).collect();
        assert!(counts.iter().all(|counts| *counts.iter().max().unwrap() > 2 * mean));
        assert!(hottest.iter().any(|expert| *expert != hottest[0]));
    }

    #[test]
    fn a_model_that_would_take_gigabytes_of_rows_gets_fewer_of_them() {
        let popularity = popularity(1024, 256, 300, 1022);
        assert!(popularity.pool.len() <= TOPICS * 4 * 1024 * 256 * 2, "{}", popularity.pool.len());
    }
}
