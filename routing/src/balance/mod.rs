//! How evenly tokens are spread over experts or over expert-parallel ranks. One layer at a time: a layer without tokens has no
//! balance, and is to be left out rather than scored.
//!
//! Engines call different numbers *balancedness*; here every number is named by its formula.

/// The balance of one layer's counts. A count is a number of assignments: a token counts once for each of its `top_k` experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Balance {
    /// All assignments.
    pub total: u64,
    /// How many experts (or ranks) were counted, those without a token included.
    pub parts: usize,
    /// The one with the most; of several, the first.
    pub hottest: usize,
    /// Its assignments.
    pub max: u64,
    /// The most over the mean, from 1 (even) to `parts` (all on one).
    pub max_over_mean: f64,
    /// The mean over the most, from 1 (even) down to `1 / parts`: what SGLang averages over layers.
    pub mean_over_max: f64,
    /// Standard deviation over the mean, of the whole population (`ddof = 0`).
    pub variation: f64,
    /// Gini coefficient: 0 (even) to `1 - 1 / parts`.
    pub gini: f64,
    /// Shannon entropy of the shares, in bits: 0 to `log2(parts)`.
    pub entropy: f64,
    /// Entropy over its maximum: 0 (all on one) to 1 (even). 1 where there is only one part.
    pub normalized_entropy: f64,
    /// How many have no assignment.
    pub dead: usize,
    /// The hottest one's share of all: 0 to 1.
    pub top_share: f64,
}

impl Balance {
    /// Of counts per expert or rank; `None` where nothing was counted.
    pub fn of(counts: &[u64]) -> Option<Self> {
        let total: u64 = counts.iter().fold(0, |sum, count| sum.saturating_add(*count));
        if total == 0 {
            return None;
        }
        let (hottest, max) = counts.iter().copied().enumerate().rev().max_by_key(|(_, count)| *count)?;
        let parts = counts.len() as f64;
        let (all, most) = (total as f64, max as f64);
        let mean = all / parts;
        let variance = counts.iter().map(|&count| (count as f64 - mean).powi(2)).sum::<f64>() / parts;
        let shares = counts.iter().filter(|count| **count > 0).map(|&count| count as f64 / all);
        let entropy = -shares.map(|share| share * share.log2()).sum::<f64>();
        Some(Self {
            total,
            parts: counts.len(),
            hottest,
            max,
            max_over_mean: most / mean,
            mean_over_max: mean / most,
            variation: variance.sqrt() / mean,
            gini: gini(counts, all),
            entropy: entropy.max(0.0),
            normalized_entropy: if counts.len() > 1 { (entropy.max(0.0) / parts.log2()).min(1.0) } else { 1.0 },
            dead: counts.iter().filter(|count| **count == 0).count(),
            top_share: most / all,
        })
    }
}

fn gini(counts: &[u64], all: f64) -> f64 {
    let mut sorted = counts.to_vec();
    sorted.sort_unstable();
    let parts = sorted.len() as f64;
    let weighted: f64 = sorted.iter().enumerate().map(|(index, &count)| (index as f64 + 1.0) * count as f64).sum();
    (2.0 * weighted / (parts * all) - (parts + 1.0) / parts).max(0.0)
}

/// Assignments per rank where experts stand in order, as many on each rank: expert `e` of `counts` on rank `e / (experts / ranks)`,
/// the layout that engines begin with. Where they do not divide, the last rank has fewer. No ranks is one rank.
pub fn rank_loads(counts: &[u64], ranks: usize) -> Vec<u64> {
    let ranks = ranks.max(1);
    let each = counts.len().div_ceil(ranks).max(1);
    let mut loads = vec![0_u64; ranks];
    for (load, experts) in loads.iter_mut().zip(counts.chunks(each)) {
        *load = experts.iter().fold(0, |sum, count| sum.saturating_add(*count));
    }
    loads
}

#[cfg(test)]
mod tests;
