//! Each fault is found by the check that it names, and nothing else is.

use gatescope_routing::Status;
use gatescope_simulation::{Fault, Fleet, Options, OptionsError};

use crate::{Order, joined, options, ordered, run};

#[test]
fn each_fault_is_found_where_it_was_put_and_nothing_else_is() {
    for &fault in Fault::ALL {
        // given
        let options = Options { faults: vec![fault], fault_rate: 0.6, requests: Some(200), ..options() };
        let told = run(&options);
        assert!(told.injected.len() >= 2, "{fault}: {} injected", told.injected.len());

        for order in [Order::Mixed(5)] {
            // when
            let requests = joined(&ordered(&told.events, order), &options);

            // then
            for ((request_id, choice), joined) in &requests {
                let injection = told.injected.iter().find(|injection| injection.request_id == *request_id);
                let codes: Vec<_> = joined.findings.iter().map(|finding| finding.check).collect();
                let Some(injection) = injection else {
                    assert_eq!(codes, vec![], "{fault}, {order:?}: {request_id} {choice} has no fault");
                    assert_eq!(joined.status, Status::Whole);
                    continue;
                };
                let detail = format!("{fault}, {order:?}: {injection:?} {:?}", joined.findings);
                let mut findings = joined.findings.iter().filter(|finding| finding.check == fault.check());
                let is_there = findings.any(|finding| {
                    injection.position.is_none_or(|position| finding.position == Some(position))
                        && injection.layer.is_none_or(|layer| finding.layer == Some(layer))
                });
                assert!(is_there, "{detail}");
                assert!(codes.iter().all(|code| *code == fault.check() || fault.also().contains(code)), "{detail}");
            }
            let found = requests.values().filter(|joined| !joined.findings.is_empty()).count();
            assert_eq!(found, told.injected.len(), "{fault}");
        }
    }
}

#[test]
fn a_mixture_has_every_kind() {
    let options = Options { faults: Fault::ALL.to_vec(), fault_rate: 0.5, requests: Some(600), ..options() };
    let told = run(&options);
    for fault in Fault::ALL {
        assert!(told.injected.iter().any(|injection| injection.fault == *fault), "{fault}");
    }
}

#[test]
fn a_fault_that_the_model_cannot_have_is_refused_with_what_it_needs() {
    let shape = gatescope_routing::ModelShape::new(
        gatescope_routing::RowShape::new(4, 1).unwrap(),
        256,
        gatescope_routing::LayerSet::all(4),
    );
    for fault in [Fault::OutOfRange, Fault::ZeroRow, Fault::DuplicateExpert, Fault::DenseLayer, Fault::SlotOrder] {
        let options = Options { faults: vec![fault], ..Options::new(shape.clone().unwrap()) };
        assert!(matches!(Fleet::new(options), Err(OptionsError::Fault { .. })), "{fault}");
    }
}
