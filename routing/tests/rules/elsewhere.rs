//! Rows that are some other place's: another layer's, another block's, cut to another width.

use std::sync::Arc;

use gatescope_routing::{
    finding::Check,
    join::{Context, Join, Part, Policy, Rules, Status},
    rows::Rows,
    shape::{IdWidth, LayerSet, ModelShape},
    span::{Anchor, BlockHash, RequestKey, Role, Span},
};
use proptest::prelude::*;

use crate::deployment::{Deployment, codes, join, join_as, source};

/// The rows of a span with its layers in another order.
fn reordered(span: Span, order: &[usize]) -> Span {
    let rows = &span.rows;
    let bytes: Vec<u8> =
        (0..rows.len()).flat_map(|row| order.iter().flat_map(move |&layer| rows.layer(row, layer).to_vec())).collect();
    Span { rows: Rows::new(bytes.into(), rows.shape(), rows.width()).unwrap(), ..span }
}

fn with_decode(deployment: &Deployment, change: impl Fn(Span) -> Span) -> Vec<Part> {
    let change = |part| match part {
        Part::Span(span) if span.source.role == Role::Decode => Part::Span(change(span)),
        part => part,
    };
    deployment.answers().into_iter().map(change).collect()
}

#[test]
fn layers_of_one_side_in_another_order_are_found() {
    let mut deployment = Deployment::random(40, 9, 6, 4, 3);
    deployment.first_forward = 36;
    for (order, moved) in [([0, 2, 1, 3, 4, 5], 1), ([1, 2, 3, 4, 5, 0], 0)] {
        let joined = join(with_decode(&deployment, |span| reordered(span, &order)), Policy::Prefill);
        assert_eq!(codes(&joined), vec![Check::LayersMoved], "{order:?}");
        let found = &joined.findings[0];
        assert_eq!((found.position, found.layer), (Some(36), Some(moved)), "{}", found.detail);
        assert_eq!(joined.status, Status::Conflict);
    }
}

#[test]
fn a_start_that_was_taken_for_its_blocks_start_is_found() {
    // The first forward is 100, in the block that begins at 96: decode's rows are told as if they began there.
    let mut deployment = Deployment::random(108, 30, 4, 4, 5);
    deployment.first_forward = 100;
    let joined = join(with_decode(&deployment, |span| Span { anchor: Anchor::Start(96), ..span }), Policy::Prefill);
    assert!(codes(&joined).contains(&Check::StartsInsideBlock), "{:?}", joined.findings);
    assert!(!codes(&joined).contains(&Check::MisplacedRows));
    assert_eq!(joined.status, Status::Conflict);

    // Taken as if they began at 0 is another fault, and 10 too low is no block.
    for start in [0, 90] {
        let moved = with_decode(&deployment, |span| Span { anchor: Anchor::Start(start), ..span });
        assert!(!codes(&join(moved, Policy::Prefill)).contains(&Check::StartsInsideBlock), "{start}");
    }
}

fn model(deployment: &Deployment, experts: u64) -> Rules {
    let model = ModelShape::new(deployment.shape(), experts, LayerSet::all(deployment.layers)).unwrap();
    Rules { policy: Policy::Prefill, model: Some(Arc::new(model)) }
}

#[test]
fn ids_that_went_through_eight_bits_are_found() {
    let deployment = Deployment::random(64, 16, 4, 4, 7);
    let narrow = join_as(deployment.answers(), model(&deployment, 300));
    assert_eq!(codes(&narrow), vec![Check::WrongWidth]);
    assert_eq!(narrow.findings[0].position, Some(0));

    assert_eq!(codes(&join_as(deployment.answers(), model(&deployment, 256))), vec![]);
    // Too few rows to tell.
    let short = Deployment::random(5, 4, 4, 4, 7);
    assert_eq!(codes(&join_as(short.answers(), model(&short, 300))), vec![]);
}

#[test]
fn a_block_that_comes_with_other_rows_is_found_and_a_few_other_experts_are_not() {
    let one = Deployment::random(16, 5, 4, 4, 11);
    let other = Deployment::random(16, 5, 4, 4, 12);
    let block = |deployment: &Deployment| {
        let span = deployment.span(&source(Role::Prefill, "p0"), 0, 16);
        Part::Span(Span { block: Some(BlockHash([7u8][..].into())), ..span })
    };
    let mut slightly = one.clone();
    slightly.truth[..4].reverse();
    slightly.truth[4] = 30;
    for (second, found) in [(&one, false), (&slightly, false), (&other, true)] {
        let mut join = Join::new(Rules::default());
        for (request_id, deployment) in [("a", &one), ("b", second)] {
            let key = RequestKey { run: "default".into(), request_id: request_id.into(), choice: 0 };
            join.apply(&key, block(deployment));
            let joined = join.close(&key, &Context::default()).unwrap();
            let differs = codes(&joined).contains(&Check::BlockDiffers);
            assert_eq!(differs, found && request_id == "b", "{request_id}: {:?}", joined.findings);
        }
    }
}

proptest! {
    #[test]
    fn experts_chosen_at_random_are_no_moved_layers(seed in any::<u64>(), other in any::<u64>(), layers in 2usize..7) {
        let deployment = Deployment::random(30, 9, layers, 2, seed);
        let noise = Deployment::random(30, 9, layers, 2, other);
        let rows = |span: Span| Span { rows: noise.span(&span.source, 29, 38).rows, ..span };

        let joined = join(with_decode(&deployment, rows), Policy::Prefill);

        // Layer 1 of the two is the same: its list says the position.
        prop_assert!(!codes(&joined).contains(&Check::LayersMoved), "{:?}", joined.findings);
        prop_assert_eq!(deployment.width, IdWidth::U8);
    }
}
