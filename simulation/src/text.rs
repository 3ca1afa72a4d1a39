//! Tokens, and the rows that follow from them.

use rand::RngExt;
use rand_pcg::Pcg64;

use crate::popularity::{Code, Popularity, TOPICS};

/// Positions of a KV block.
pub(crate) const BLOCK: u32 = 16;
/// Words of each topic.
const WORDS: usize = 2048;
/// Draws of a word to choose from, in which each word is as frequent as Zipf has it.
const DRAWS: usize = 1 << 14;
/// The topic of words that every text has.
const COMMON: usize = 0;

/// The words of all topics: token ids and how frequent they are.
#[derive(Debug)]
pub(crate) struct Words {
    draws: Vec<u16>,
}

impl Words {
    pub(crate) fn new() -> Self {
        let weight = |word: usize| 1.0 / (word as f64 + 2.7);
        let sum: f64 = (0..WORDS).map(weight).sum();
        let (mut word, mut passed) = (0, weight(0) / sum);
        let draws = (0..DRAWS)
            .map(|draw| {
                while (draw as f64 + 0.5) / DRAWS as f64 > passed && word + 1 < WORDS {
                    word += 1;
                    passed += weight(word) / sum;
                }
                word as u16
            })
            .collect();
        Self { draws }
    }

    /// A token of a text of this topic.
    pub(crate) fn draw(&self, topic: usize, random: &mut Pcg64) -> u32 {
        let bits: u32 = random.random();
        let topic = if bits >> 29 == 0 { COMMON } else { topic };
        (topic * WORDS) as u32 + u32::from(self.draws[bits as usize % DRAWS])
    }
}

/// Tokens in a row with what their rows follow from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Text {
    pub(crate) tokens: Vec<u32>,
    pub(crate) codes: Vec<Code>,
    /// What came before each block, in one number.
    pub(crate) blocks: Vec<u64>,
    context: u64,
    last: u32,
}

impl Text {
    /// An empty text under the weights of this generation.
    pub(crate) fn new(generation: u32) -> Self {
        Self { context: mix(u64::from(generation) ^ 0x6761_7465), ..Self::default() }
    }

    /// An empty text that follows this one.
    pub(crate) fn followed(&self) -> Self {
        Self { context: self.context, last: self.last, ..Self::default() }
    }

    pub(crate) fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Appends a token.
    pub(crate) fn push(&mut self, token: u32, popularity: &Popularity) {
        if self.tokens.len().is_multiple_of(BLOCK as usize) {
            self.blocks.push(self.context);
        }
        self.context = mix(self.context ^ u64::from(token));
        let alone = mix(u64::from(token));
        let pair = mix(alone ^ u64::from(self.last));
        let topic = (token as usize / WORDS).min(TOPICS - 1);
        self.codes.push(popularity.code(topic, [alone, pair, self.context]));
        self.tokens.push(token);
        self.last = token;
    }

    /// Whether all tokens are one and the same.
    pub(crate) fn is_uniform(&self) -> bool {
        self.tokens.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// The hash of a full block: of its tokens and all before it.
    pub(crate) fn block_hash(&self, block: u32) -> [u8; 32] {
        let behind = self.blocks.get(block as usize + 1).copied().unwrap_or(self.context);
        let mut hash = [0; 32];
        for (i, part) in hash.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&mix(behind.wrapping_add(i as u64)).to_le_bytes());
        }
        hash
    }
}

/// Scatters a number over all 64 bits.
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use gatescope_routing::{LayerSet, ModelShape, RowShape};
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn equal_tokens_have_equal_rows_and_hashes_up_to_where_they_part() {
        // given
        let model = ModelShape::new(RowShape::new(6, 2).unwrap(), 16, LayerSet::all(6)).unwrap();
        let popularity = Popularity::new(&model, &mut Pcg64::seed_from_u64(1));
        let mut texts = [Text::new(0), Text::new(0), Text::new(1)];

        // when
        for position in 0..64 {
            for (i, text) in texts.iter_mut().enumerate() {
                text.push(if position == 40 { 100 + i as u32 } else { position % 7 }, &popularity);
            }
        }

        // then
        let [one, other, reset] = &texts;
        assert_eq!(one.codes[..40], other.codes[..40]);
        assert_ne!(one.codes[40..], other.codes[40..]);
        assert_eq!((one.block_hash(0), one.block_hash(1)), (other.block_hash(0), other.block_hash(1)));
        assert_ne!(one.block_hash(2), other.block_hash(2));
        assert_ne!(one.block_hash(0), reset.block_hash(0));
        assert_ne!(one.block_hash(0), one.block_hash(1));
    }

    #[test]
    fn frequent_words_are_drawn_often_and_rare_ones_at_all() {
        let (words, mut random) = (Words::new(), Pcg64::seed_from_u64(3));
        let drawn: Vec<u32> = (0..200_000).map(|_| words.draw(5, &mut random)).collect();
        let of = |word: u32| drawn.iter().filter(|&&token| token == 5 * WORDS as u32 + word).count();
        assert!(of(0) > 4_000, "{}", of(0));
        assert!((1_500..1_600).map(of).sum::<usize>() > 100);
        assert!(drawn.iter().any(|&token| token < WORDS as u32));
    }
}
