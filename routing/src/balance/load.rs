//! One layer's load in four numbers, from the tokens of each of its experts. The slice holds every expert of the model:
//! an expert without tokens is a 0 in it, or the numbers would be better than the layer is.

/// How evenly the experts of one layer are loaded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerLoad {
    /// Tokens of the busiest expert over the mean of all experts; 1 is even.
    pub imbalance: f64,
    /// Entropy of the shares over that of an even load, 0 to 1; 1 is even.
    pub entropy: f64,
    /// Experts without a token.
    pub dead: u64,
    /// The busiest expert's share of all tokens, 0 to 1.
    pub top_share: f64,
}

impl LayerLoad {
    /// The load of `tokens[expert]`; `None` where there is no token.
    pub fn of(tokens: &[u64]) -> Option<Self> {
        let total: u64 = tokens.iter().sum();
        let most = tokens.iter().copied().max().filter(|&most| most > 0)?;
        let (total, experts) = (total as f64, tokens.len() as f64);
        let shares = tokens.iter().filter(|&&tokens| tokens > 0).map(|&tokens| tokens as f64 / total);
        let entropy: f64 = -shares.map(|share| share * share.ln()).sum::<f64>();
        Some(Self {
            imbalance: most as f64 * experts / total,
            entropy: if tokens.len() > 1 { (entropy / experts.ln()).clamp(0.0, 1.0) } else { 1.0 },
            dead: tokens.iter().filter(|&&tokens| tokens == 0).count() as u64,
            top_share: most as f64 / total,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_load_is_1_and_one_expert_for_all_is_the_worst() {
        let even = LayerLoad::of(&[5, 5, 5, 5]).unwrap();
        assert_eq!(even, LayerLoad { imbalance: 1.0, entropy: 1.0, dead: 0, top_share: 0.25 });

        let one = LayerLoad::of(&[0, 20, 0, 0]).unwrap();
        assert_eq!(one, LayerLoad { imbalance: 4.0, entropy: 0.0, dead: 3, top_share: 1.0 });
    }

    #[test]
    fn two_of_four_experts_have_half_the_entropy() {
        let half = LayerLoad::of(&[8, 8, 0, 0]).unwrap();

        assert!((half.entropy - 0.5).abs() < 1e-12);
        assert_eq!((half.imbalance, half.dead), (2.0, 2));
    }

    #[test]
    fn without_tokens_there_is_no_load() {
        assert_eq!(LayerLoad::of(&[]), None);
        assert_eq!(LayerLoad::of(&[0, 0]), None);
    }
}
