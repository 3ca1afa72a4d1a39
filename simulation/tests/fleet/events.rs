//! The same seed tells the same, and rows are such as gates choose.

use gatescope_routing::check::inspect;
use gatescope_simulation::{Fault, Fleet, Options, OptionsError};
use gatescope_wire::{Event, Request, Told, encode};

use crate::{options, run};

#[test]
fn the_same_seed_tells_the_same_and_another_one_does_not() {
    // given
    let options = Options { faults: Fault::ALL.to_vec(), fault_rate: 0.2, requests: Some(60), ..options() };

    // when
    let (one, again) = (run(&options), run(&options));
    let other = run(&Options { seed: 12, ..options.clone() });

    // then
    let text = |told: &crate::Run| {
        let events: Vec<Event> = told.events.iter().map(|(_, event)| event.clone()).collect();
        let batches: Vec<_> = events.chunks(1000).map(|events| encode(events).unwrap()).collect();
        (told.events.iter().map(|(instance, _)| *instance).collect::<Vec<_>>(), batches)
    };
    assert_eq!(text(&one), text(&again));
    assert_eq!(one.lines(), again.lines());
    assert_eq!(one.injected, again.injected);
    assert_ne!(one.lines().0, other.lines().0);
}

#[test]
fn every_row_is_a_choice_that_the_gates_can_make() {
    let options = options();
    let mut rows = 0;
    for (_, event) in run(&options).events {
        let Event::Request(Request { told: Told::Span(span), .. }) = event else { continue };
        rows += span.rows.len();
        for (layer, values) in inspect(&span.rows).layers.iter().enumerate() {
            if options.shape.moe_layers().contains(layer) {
                assert!(u32::from(values.highest) < options.shape.num_experts());
                assert_eq!((values.zero_rows, values.repeating_rows), (0, 0));
            } else {
                assert_eq!(values.highest, 0);
            }
        }
    }
    assert!(rows > 20_000, "{rows}");
}

#[test]
fn a_block_is_referred_to_only_after_its_rows_and_only_inside_its_generation() {
    // given
    let options = Options { update_every: 50, ..options() };
    let mut known = std::collections::HashSet::new();
    let (mut referred, mut generations) = (0, std::collections::HashSet::new());

    for (instance, event) in run(&options).events {
        let Event::Request(request) = event else { continue };
        match request.told {
            Told::Span(span) => {
                generations.insert(span.generation);
                if let Some(hash) = span.block {
                    // then
                    assert_eq!(span.rows.len(), 16);
                    assert!(known.insert((instance, span.generation, hash)) || span.generation > 0);
                }
            }
            Told::Block(block) => {
                referred += 1;
                let reference = block.reference;
                assert!(known.contains(&(instance, reference.generation, reference.hash)));
            }
            _ => {}
        }
    }
    assert!(referred > 100, "{referred}");
    assert_eq!(generations.len(), 6);
}

#[test]
fn what_makes_no_fleet_is_refused() {
    let half = Fleet::new(Options { prefill: 0, ..options() });
    assert!(matches!(half, Err(OptionsError::HalfAPair { prefill: 0, decode: 3 })));
    let none = Fleet::new(Options { prefill: 0, decode: 0, ..options() });
    assert!(matches!(none, Err(OptionsError::NoInstance)));
    let idle = Fleet::new(Options { concurrency: 0, ..options() });
    assert!(matches!(idle, Err(OptionsError::Number { name: "concurrency", .. })));
    assert!(matches!(Fleet::new(Options { fault_rate: 1.5, ..options() }), Err(OptionsError::Rate(_))));
}
