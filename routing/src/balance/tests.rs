use super::*;

/// DeepSeek's published example: 12 experts, two layers.
const LAYERS: [[u64; 12]; 2] =
    [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]];

fn close(value: f64, expected: f64) {
    assert!((value - expected).abs() < 5e-7, "{value}: expected {expected}");
}

#[test]
fn loads_of_four_ranks_are_those_of_the_example() {
    assert_eq!(rank_loads(&LAYERS[0], 4), [262, 330, 116, 325]);
    assert_eq!(rank_loads(&LAYERS[1], 4), [231, 280, 516, 129]);
}

#[test]
fn named_balances_agree_with_what_engines_print_for_the_example() {
    let ranks = LAYERS.map(|layer| Balance::of(&rank_loads(&layer, 4)).unwrap());

    // SGLang: the mean over layers of mean over max. vLLM: means over maxima, summed over layers first. TensorRT-LLM: max over mean,
    // minus 1.
    close((ranks[0].mean_over_max + ranks[1].mean_over_max) / 2.0, 0.671_327);
    let mean = |balance: &Balance| balance.total as f64 / balance.parts as f64;
    let vllm = (mean(&ranks[0]) + mean(&ranks[1])) / (ranks[0].max + ranks[1].max) as f64;
    close(vllm, 0.646_868);
    close(ranks[0].max_over_mean - 1.0, 0.277_832);
    close(ranks[1].max_over_mean - 1.0, 0.785_467);
}

#[test]
fn an_even_layer_and_one_on_a_single_expert_are_the_two_ends() {
    let even = Balance::of(&[5; 8]).unwrap();
    assert_eq!((even.hottest, even.dead, even.total), (0, 0, 40));
    for (value, expected) in [
        (even.max_over_mean, 1.0),
        (even.mean_over_max, 1.0),
        (even.variation, 0.0),
        (even.gini, 0.0),
        (even.entropy, 3.0),
        (even.normalized_entropy, 1.0),
        (even.top_share, 0.125),
    ] {
        close(value, expected);
    }

    let single = Balance::of(&[0, 0, 0, 7, 0, 0, 0, 0]).unwrap();
    assert_eq!((single.hottest, single.dead, single.max), (3, 7, 7));
    for (value, expected) in [
        (single.max_over_mean, 8.0),
        (single.variation, 7.0_f64.sqrt()),
        (single.gini, 0.875),
        (single.entropy, 0.0),
        (single.normalized_entropy, 0.0),
        (single.top_share, 1.0),
    ] {
        close(value, expected);
    }
}

#[test]
fn a_layer_without_tokens_has_no_balance() {
    assert_eq!(Balance::of(&[0; 4]), None);
    assert_eq!(Balance::of(&[]), None);
}

#[test]
fn experts_that_do_not_divide_leave_the_last_rank_with_fewer() {
    assert_eq!(rank_loads(&[1, 2, 3, 4, 5], 2), [6, 9]);
    assert_eq!(rank_loads(&[1, 2], 4), [1, 2, 0, 0]);
    assert_eq!(rank_loads(&[1, 2, 3], 0), [6]);
    assert_eq!(rank_loads(&[], 3), [0, 0, 0]);
}

#[test]
fn an_even_load_is_1_and_one_expert_for_all_is_the_worst() {
    let figures = |tokens: &[u64]| {
        let balance = Balance::of(tokens).unwrap();
        (balance.max_over_mean, balance.normalized_entropy, balance.dead, balance.top_share)
    };

    assert_eq!(figures(&[5, 5, 5, 5]), (1.0, 1.0, 0, 0.25));
    assert_eq!(figures(&[0, 20, 0, 0]), (4.0, 0.0, 3, 1.0));
    assert_eq!(figures(&[8, 8, 0, 0]), (2.0, 0.5, 2, 0.5));
}
