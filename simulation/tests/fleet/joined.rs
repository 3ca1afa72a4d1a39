//! A right join makes of a fleet's events exactly the truth.

use gatescope_routing::{
    Status,
    record::{RecordOptions, read_record},
};
use gatescope_simulation::Options;

use crate::{Order, joined, options, ordered, run};

fn every_request_is_whole(options: &Options, order: Order) {
    let told = run(options);
    assert_eq!(told.injected, vec![]);

    let requests = joined(&ordered(&told.events, order), options);

    assert_eq!(requests.keys().collect::<Vec<_>>(), told.truth.keys().collect::<Vec<_>>());
    for (request, joined) in &requests {
        assert_eq!(joined.findings, vec![], "{request:?} {order:?}");
        assert_eq!(joined.status, Status::Whole, "{request:?} {order:?}");
        assert_eq!(joined.routing().unwrap().bytes(), told.truth[request].bytes(), "{request:?} {order:?}");
    }
}

#[test]
fn every_request_is_whole_and_true_whatever_stream_comes_first() {
    for order in [Order::AsTold, Order::Backwards, Order::Mixed(1), Order::Mixed(2)] {
        every_request_is_whole(&options(), order);
    }
}

#[test]
fn colocated_instances_beside_a_pair_tell_whole_requests_too() {
    let options = Options { colocated: 2, update_every: 60, ..options() };
    for order in [Order::AsTold, Order::Backwards, Order::Mixed(3)] {
        every_request_is_whole(&options, order);
    }
    every_request_is_whole(&Options { prefill: 0, decode: 0, ..options }, Order::Mixed(4));
}

#[test]
fn everything_that_real_traffic_has_is_there() {
    // given
    let options = Options { requests: Some(600), ..options() };
    let told = run(&options);

    // when
    let requests = joined(&ordered(&told.events, Order::AsTold), &options);

    // then
    let some = |what: &str, is: &dyn Fn(&gatescope_routing::Joined) -> bool| {
        assert!(requests.values().filter(|joined| is(joined)).count() >= 3, "{what}");
    };
    some("preempted", &|joined| joined.attempts > 1);
    some("blocks by hash", &|joined| joined.captures.iter().any(|capture| capture.block.is_some()));
    some("one token sampled", &|joined| joined.completion_tokens == Some(1));
    some("a long prompt", &|joined| joined.prompt_tokens > Some(600));
    some("a failed KV load", &|joined| joined.first_forward.unwrap() + 1 < joined.prompt_tokens.unwrap());
    assert!(requests.keys().filter(|(_, choice)| *choice > 0).count() >= 3, "several choices");
    assert!(requests.values().any(|joined| joined.prompt_tokens == Some(1)), "a prompt of one token");
}

#[test]
fn recorded_answers_are_those_that_engines_give() {
    // given
    let told = run(&options());
    let read = |lines: &[u8]| {
        let lines = lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| read_record(line, &RecordOptions::default()).unwrap()).collect::<Vec<_>>()
    };

    // when
    let (truth, answers) = told.lines();
    let (truth, answers) = (read(&truth), read(&answers));

    // then
    assert_eq!(truth.len(), 300);
    assert_eq!(answers.len(), 600);
    for record in &truth {
        for choice in &record.choices {
            let span = &choice.spans.as_ref().unwrap()[0];
            assert_eq!(&span.rows, &told.truth[&(record.request_id.clone(), choice.choice)]);
        }
    }
    let links = answers.iter().filter_map(|record| record.link.as_ref());
    let identities: Vec<_> = answers.iter().filter_map(|record| record.identity.as_ref()).collect();
    assert_eq!(links.filter(|link| identities.contains(link)).count(), 300);
}
