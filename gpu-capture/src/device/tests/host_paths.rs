//! The vector path of the host against the rule.

use rand::RngExt;

use super::{layout, seeded, trial};
use crate::device::host;

#[test]
fn the_vector_path_and_the_rule_agree_on_random_and_hostile_steps() {
    let mut random = seeded(1);
    let mut faulty = 0;
    for round in 0..600 {
        let top_k = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16, 32][round % 13];
        let tokens = [0, 1, 2, 3, 65, 200][random.random_range(0..6)];
        let layout = layout(&mut random, top_k, 200);
        let trial = trial(&mut random, layout, tokens);
        let expected = trial.expected();
        faulty += usize::from(expected.faults.iter().any(|count| *count > 0));
        assert_eq!(trial.packed_by(host::pack), expected, "round {round}: {:?}, {tokens} tokens", trial.layout);
    }
    assert!((50..550).contains(&faulty), "{faulty} of 600 steps had a fault: both kinds must be among them");
}

#[test]
fn the_rule_counts_what_the_words_say() {
    use gatescope_routing::{LayerSet, RowShape};
    let moe: LayerSet = [1, 2].into_iter().collect();
    let layout = super::Layout::new(RowShape::new(3, 2).unwrap(), 300, &moe, 8).unwrap();
    let ids = vec![
        0, 0, /* dense: not looked at */ 5, 299, /* fine */ 0, 0, // zeros alone
        0, 0, 300, -1, /* two out of range */ 7, 7, // twice
    ];
    let outcome = super::Trial { layout, ids }.expected();
    assert_eq!(outcome.faults, [0, 0, 0, 2, 0, 0, 0, 1, 1]);
    assert_eq!(outcome.rows[4..8], [5, 0, 43, 1], "ids are little-endian");
    assert_eq!(outcome.rows[16..20], [44, 1, 255, 255], "an id out of range keeps its low bits");
    let chosen: Vec<(usize, u32)> = outcome.counts.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect();
    assert_eq!(chosen, [(305, 1), (599, 1), (600, 2), (607, 2)]);
}
