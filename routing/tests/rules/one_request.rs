//! The rules of the join, for random routings, cuts, orders, duplicates and policies; and with one fault injected, exactly
//! that fault.

use std::sync::Arc;

use gatescope_routing::{
    finding::Check,
    join::{Context, Part, Policy, RequestJoin, Rules, Status},
    rows::Rows,
    shape::{LayerSet, ModelShape, RowShape},
    span::{Anchor, Role, Span},
};
use proptest::prelude::*;

use crate::deployment::{Deployment, alter, codes, deployment, join, join_as, pieces};

fn policy(kv: bool) -> Policy {
    if kv { Policy::Kv } else { Policy::Prefill }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400, max_global_rejects: 1 << 16, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn the_join_of_any_split_in_any_order_with_duplicates_is_the_routing(
        deployment in deployment(),
        cuts in prop::collection::vec(0u32..64, 0..8),
        order in prop::collection::vec(any::<u16>(), 1..40),
        again in prop::collection::vec(any::<bool>(), 1..20),
        kv in any::<bool>(),
    ) {
        let joined = join(pieces(&deployment, &cuts, &order, &again), policy(kv));
        deployment.check_routing(&joined)?;
        prop_assert_eq!(joined.status, Status::Whole);
        prop_assert_eq!(codes(&joined), vec![]);
        prop_assert_eq!(joined.mismatched_rows, 0);
        if !deployment.colocated {
            prop_assert_eq!(joined.overlap_rows, deployment.prompt - deployment.first_forward);
        }
    }

    #[test]
    fn answers_without_a_start_are_placed_from_their_end(deployment in deployment(), kv in any::<bool>()) {
        let mut request = RequestJoin::default();
        for part in deployment.answers() {
            prop_assert!(!request.is_whole());
            request.apply(part);
        }
        prop_assert!(request.is_whole());
        let joined = request.close(&Rules { policy: policy(kv), model: None }, &Context::default());
        deployment.check_routing(&joined)?;
        prop_assert_eq!(codes(&joined), vec![]);
    }

    #[test]
    fn rows_that_never_came_are_found_missing_and_nothing_else_is(
        deployment in deployment(), from in 0u32..60, length in 1u32..20,
    ) {
        let expected = deployment.expected();
        prop_assume!(expected > 1);
        let from = from % expected;
        let to = (from + length).min(expected);
        prop_assume!((from, to) != (0, expected));
        let mut parts = Vec::new();
        for (source, start, end, sampled) in deployment.sources() {
            for (a, b) in [(start, end.min(from)), (start.max(to), end)] {
                if a < b { parts.push(Part::Span(deployment.span(&source, a, b))); }
            }
            parts.push(deployment.finish(&source, sampled));
        }
        let joined = join(parts, Policy::Prefill);
        prop_assert_eq!(codes(&joined), vec![Check::MissingRows]);
        prop_assert_eq!(joined.findings[0].position, Some(from));
        prop_assert_eq!(joined.findings[0].positions, to - from);
        let gap = from..to;
        prop_assert_eq!(&joined.gaps[..], std::slice::from_ref(&gap));
        prop_assert_eq!(joined.status, Status::Incomplete);
    }

    #[test]
    fn one_id_changed_in_the_overlap_is_found_at_its_position_and_layer(
        deployment in deployment(), at in any::<u32>(), layer in 0usize..6,
    ) {
        prop_assume!(!deployment.colocated);
        let position = deployment.first_forward + at % (deployment.prompt - deployment.first_forward);
        let layer = layer % deployment.layers;
        prop_assume!(Some(layer) != deployment.dense);
        let mut parts = deployment.answers();
        alter(&mut parts, Role::Decode, (position - deployment.first_forward) as usize, layer, |list| list[0] = 200);
        let joined = join(parts, Policy::Prefill);
        prop_assert_eq!(codes(&joined), vec![Check::OverlapDisagrees]);
        prop_assert_eq!(joined.findings[0].position, Some(position));
        prop_assert_eq!(joined.findings[0].layer, Some(layer as u16));
        prop_assert_eq!(joined.mismatched_rows, 1);
        deployment.check_routing(&joined)?;
    }

    #[test]
    fn one_list_that_repeats_an_expert_is_found_at_its_position_and_layer(
        deployment in deployment(), at in any::<u32>(), layer in 0usize..6,
    ) {
        prop_assume!(deployment.colocated && deployment.expected() > 0);
        let position = at % deployment.expected();
        let layer = layer % deployment.layers;
        prop_assume!(Some(layer) != deployment.dense);
        let mut parts = deployment.answers();
        alter(&mut parts, Role::Colocated, position as usize, layer, |list| { list[0] = 7; list[1] = 7 });
        let joined = join(parts, Policy::Prefill);
        prop_assert_eq!(codes(&joined), vec![Check::RepeatedExpert]);
        prop_assert_eq!(joined.findings[0].position, Some(position));
        prop_assert_eq!(joined.findings[0].layer, Some(layer as u16));
    }

    #[test]
    fn one_list_of_zeros_is_found_unless_its_layer_is_dense(
        deployment in deployment(), at in any::<u32>(), layer in 0usize..6,
    ) {
        prop_assume!(deployment.colocated && deployment.expected() > 1);
        let position = at % deployment.expected();
        let layer = layer % deployment.layers;
        let mut parts = deployment.answers();
        alter(&mut parts, Role::Colocated, position as usize, layer, |list| list.fill(0));
        let joined = join(parts, Policy::Prefill);
        if Some(layer) == deployment.dense {
            prop_assert_eq!(codes(&joined), vec![]);
        } else {
            prop_assert_eq!(codes(&joined), vec![Check::ZeroRows]);
            prop_assert_eq!(joined.findings[0].position, Some(position));
            prop_assert_eq!(joined.findings[0].layer, Some(layer as u16));
        }
    }

    #[test]
    fn one_id_that_the_model_does_not_have_is_found_at_its_position_and_layer(
        deployment in deployment(), at in any::<u32>(), layer in 0usize..6,
    ) {
        prop_assume!(deployment.colocated && deployment.expected() > 0);
        let position = at % deployment.expected();
        let layer = layer % deployment.layers;
        prop_assume!(Some(layer) != deployment.dense);
        let mut parts = deployment.answers();
        alter(&mut parts, Role::Colocated, position as usize, layer, |list| list[0] = 255);
        let gated = (0..deployment.layers).filter(|layer| Some(*layer) != deployment.dense).collect::<LayerSet>();
        let model = ModelShape::new(deployment.shape(), 250, gated).unwrap();
        let joined = join_as(parts, Rules { policy: Policy::Prefill, model: Some(Arc::new(model)) });
        prop_assert_eq!(codes(&joined), vec![Check::ExpertOutOfRange]);
        prop_assert_eq!(joined.findings[0].position, Some(position));
        prop_assert_eq!(joined.findings[0].layer, Some(layer as u16));
    }

    #[test]
    fn a_decode_placed_at_a_wrong_start_is_found_with_its_shift(deployment in deployment(), by in 1u32..9) {
        prop_assume!(!deployment.colocated && deployment.prompt > 10 + by && deployment.completion > by);
        let mut parts = Vec::new();
        for (source, from, to, sampled) in deployment.sources() {
            let mut span = deployment.span(&source, from, to);
            if source.role == Role::Decode {
                // Said to begin too early: its rows reach into the prompt, and the end of the answer has none.
                span.anchor = Anchor::Start(from - by);
            }
            parts.extend([Part::Span(span), deployment.finish(&source, sampled)]);
        }
        let joined = join(parts, Policy::Prefill);
        // What begins with a KV block of 16 positions or more by this start was taken to begin with it.
        let placed = deployment.first_forward - by;
        let in_block = placed > 0 && placed % 16 == 0;
        let check = if in_block { Check::StartsInsideBlock } else { Check::MisplacedRows };
        prop_assert_eq!(codes(&joined), vec![Check::MissingRows, check]);
        let shift = &joined.findings[1];
        prop_assert!(shift.detail.contains(&format!("a shift by +{by} positions")), "{}", shift.detail);
        prop_assert_eq!(joined.status, Status::Conflict);
    }

    #[test]
    fn a_decode_row_too_many_is_found_by_the_overlap(deployment in deployment()) {
        prop_assume!(!deployment.colocated && deployment.first_forward > 0 && deployment.expected() > deployment.prompt);
        let mut parts = deployment.answers();
        let Part::Span(decode) = &mut parts[2] else { unreachable!() };
        let mut bytes = decode.rows.bytes().to_vec();
        bytes.extend_from_slice(&deployment.truth[..deployment.row_bytes()]);
        decode.rows = Rows::new(bytes.into(), deployment.shape(), deployment.width).unwrap();
        let joined = join(parts, Policy::Prefill);
        prop_assert_eq!(codes(&joined), vec![Check::ExtraRows], "{:?}", joined.findings);
        prop_assert!(joined.findings[0].detail.contains("a shift by +1 positions"));
    }

    #[test]
    fn a_decode_row_too_few_is_found(deployment in deployment()) {
        prop_assume!(!deployment.colocated && deployment.completion > 1);
        prop_assume!(deployment.first_forward == deployment.prompt - 1);
        let mut parts = deployment.answers();
        let Part::Span(decode) = &mut parts[2] else { unreachable!() };
        decode.rows = decode.rows.slice(0..decode.rows.len() - 1);
        let joined = join(parts, Policy::Prefill);
        prop_assert_eq!(codes(&joined), vec![Check::MissingRows]);
        prop_assert_eq!(joined.status, Status::Conflict);
    }

    #[test]
    fn a_row_too_many_of_a_whole_answer_is_found_and_cut(deployment in deployment()) {
        prop_assume!(deployment.colocated && deployment.expected() > 0);
        let (source, _, to, sampled) = deployment.sources().remove(0);
        let mut bytes = deployment.truth.clone();
        bytes.extend_from_within(0..deployment.row_bytes());
        let rows = Rows::new(bytes.into(), deployment.shape(), deployment.width).unwrap();
        let anchor = Anchor::End { completion_tokens: sampled };
        let span = Span { rows, anchor, ..deployment.span(&source, 0, to) };
        let joined = join([Part::Span(span), deployment.finish(&source, sampled)], Policy::Prefill);
        prop_assert_eq!(codes(&joined), vec![Check::ExtraRows]);
        prop_assert_eq!(joined.findings[0].position, Some(to));
        deployment.check_routing(&joined)?;
    }

    #[test]
    fn an_order_changed_in_the_overlap_is_no_disagreement_of_sets(deployment in deployment(), layer in 0usize..6) {
        let layer = layer % deployment.layers;
        prop_assume!(!deployment.colocated && Some(layer) != deployment.dense);
        let mut parts = deployment.answers();
        alter(&mut parts, Role::Decode, 0, layer, |list| list.swap(0, 1));
        let joined = join(parts, Policy::Prefill);
        prop_assert_eq!(codes(&joined), vec![Check::SlotOrder]);
        prop_assert_eq!(joined.findings[0].position, Some(deployment.first_forward));
        prop_assert_eq!(joined.findings[0].layer, Some(layer as u16));
        prop_assert_eq!(joined.mismatched_rows, 0);
    }

    #[test]
    fn other_layer_counts_on_two_sides_are_found(deployment in deployment()) {
        prop_assume!(!deployment.colocated && deployment.completion > 1);
        let mut parts = deployment.answers();
        let Part::Span(decode) = &mut parts[2] else { unreachable!() };
        let shape = RowShape::new(1, deployment.top_k as u64).unwrap();
        let bytes = decode.rows.bytes().slice(0..decode.rows.len() * shape.row_bytes(deployment.width));
        decode.rows = Rows::new(bytes, shape, deployment.width).unwrap();
        let joined = join(parts, Policy::Prefill);
        prop_assert_eq!(codes(&joined), vec![Check::ShapeChange]);
        prop_assert_eq!(joined.findings[0].position, Some(deployment.first_forward));
        prop_assert_eq!(joined.status, Status::Conflict);
    }
}

/// What vLLM's router did before v0.2.3: it dropped the first `prompt` rows of the decode's answer, whatever its start.
fn merged_by_the_old_router(deployment: &Deployment) -> Vec<Part> {
    let mut parts = deployment.answers();
    let Part::Span(decode) = &mut parts[2] else { unreachable!() };
    let dropped = decode.rows.len().min(deployment.prompt as usize);
    decode.rows = decode.rows.slice(dropped..decode.rows.len());
    parts
}

#[test]
fn a_stated_start_past_the_end_leaves_open_where_the_rows_belong() {
    let deployment = Deployment::random(12, 6, 3, 4, 5);
    let stated = |role: Role, start: u32| {
        let mut parts = deployment.answers();
        for part in &mut parts {
            if let Part::Span(span) = part
                && span.source.role == role
            {
                span.anchor = Anchor::Start(start);
            }
        }
        join(parts, Policy::Prefill)
    };

    // when
    let decode = stated(Role::Decode, 40);
    let prefill = stated(Role::Prefill, 12);

    // then
    assert_eq!(codes(&decode), vec![Check::MissingRows, Check::MisplacedRows]);
    assert_eq!(decode.status, Status::Conflict);
    assert_eq!((decode.findings[1].position, decode.findings[1].positions), (Some(40), 6));
    let expected = "decode d0 states position 40 for the first of 6 rows, past position 16, the last it fed";
    assert_eq!(decode.findings[1].detail, expected);
    assert_eq!((codes(&prefill)[1], prefill.status), (Check::MisplacedRows, Status::Conflict));

    // A request that is whole without those rows is in conflict all the same.
    let one_token = Deployment { completion: 1, ..Deployment::random(12, 6, 3, 4, 5) };
    let mut parts = vec![];
    for (source, from, to, sampled) in one_token.sources() {
        let mut span = one_token.span(&source, from, to);
        if source.role == Role::Decode {
            span.anchor = Anchor::Start(to + 7);
        }
        parts.extend([Part::Span(span), one_token.finish(&source, sampled)]);
    }
    let joined = join(parts, Policy::Prefill);
    assert_eq!((codes(&joined), joined.status), (vec![Check::MisplacedRows], Status::Conflict));
    assert!(joined.gaps.is_empty());
}

#[test]
fn rows_past_the_end_behind_rows_in_place_are_only_too_many() {
    let deployment = Deployment { colocated: true, ..Deployment::random(12, 6, 3, 4, 6) };
    let (source, from, to, sampled) = deployment.sources().remove(0);
    let extra = Span { anchor: Anchor::Start(to), ..deployment.span(&source, 0, 2) };
    let parts =
        [Part::Span(deployment.span(&source, from, to)), Part::Span(extra), deployment.finish(&source, sampled)];
    let joined = join(parts, Policy::Prefill);
    assert_eq!((codes(&joined), joined.status), (vec![Check::ExtraRows], Status::Whole));
}

#[test]
fn a_prompt_of_64_with_128_completion_tokens_merged_by_the_old_router_lacks_63_rows() {
    let deployment = Deployment::random(64, 128, 4, 4, 7);
    let joined = join(merged_by_the_old_router(&deployment), Policy::Prefill);
    assert_eq!(joined.rows(), 128, "the router answered 128 rows");
    assert_eq!(joined.expected_rows(), Some(191), "a whole answer has 191");
    assert_eq!(codes(&joined), vec![Check::MissingRows]);
    assert_eq!(joined.gaps, vec![64..127]);
}
