//! What open requests are said to weigh is what they take, and nothing of them is left when they are closed.
//!
//! The heap is watched for the whole process, so this file has one test.
#![allow(clippy::unwrap_used, reason = "a test may end where it is wrong")]

use std::{alloc::System, sync::Arc};

use cap::Cap;
use gatescope_routing::{
    engine::vllm,
    join::{Context, Finish, Join, Part, Rules, Start},
    record::{Record, RecordOptions, read_record},
    rows::Rows,
    shape::{IdWidth, RowShape},
    span::RequestKey,
};

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

const REQUESTS: usize = 3000;

fn answer(role: &str, id: &str, prefill: usize, rows: u64) -> Record {
    let shape = RowShape::new(2, 2).unwrap();
    let ids: Vec<u8> = (0..rows * 4).map(|id| id as u8).collect();
    let rows = vllm::encode(&Rows::new(ids.into(), shape, IdWidth::U8).unwrap());
    let line = format!(
        r#"{{"role": "{role}", "request_id": "{id}", "response": {{"model": "tiny", "choices": [{{"token_ids": [1],
           "routed_experts": "{rows}"}}], "usage": {{"prompt_tokens": 4, "completion_tokens": 1}}, "kv_transfer_params":
           {{"remote_engine_id": "engine-p", "remote_request_id": "cmpl-{prefill}-0-85eeda8a"}}}}}}"#
    );
    read_record(line.as_bytes(), &RecordOptions::default()).unwrap()
}

fn tell(join: &mut Join, run: &Arc<str>, record: Record) -> RequestKey {
    let key = RequestKey { run: Arc::clone(run), request_id: record.request_id, choice: 0 };
    let Record { source, identity, link, mut choices, .. } = record;
    let choice = choices.remove(0);
    let (prompt_tokens, completion_tokens) = (choice.prompt_tokens, choice.completion_tokens);
    let start = Start { source: source.clone(), prompt_tokens, first_forward: None, prompt_start: None, parent: None };
    join.apply(&key, Part::Start(start));
    for span in choice.spans.unwrap() {
        join.apply(&key, Part::Span(span));
    }
    join.apply(&key, Part::Finish(Finish { source, prompt_tokens, completion_tokens, uniform_prompt: None }));
    if let Some(name) = identity {
        join.identify(&key, name);
    }
    if let Some(name) = link {
        join.link(&key, name);
    }
    join.take_ready();
    key
}

#[test]
fn open_requests_take_what_they_are_said_to_weigh_and_leave_nothing() {
    // given
    let run: Arc<str> = "default".into();
    let mut join = Join::new(Rules::default());
    let empty = HEAP.allocated();

    // when
    for index in 0..REQUESTS {
        tell(&mut join, &run, answer("prefill", &format!("p-{index:06}"), index, 4));
    }

    // then
    let (taken, weight) = (HEAP.allocated() - empty, join.weight());
    assert!(taken <= weight && weight <= 2 * taken, "{} bytes a request, {} said", taken / REQUESTS, weight / REQUESTS);
    assert!(weight <= 1800 * REQUESTS, "{} bytes a request", weight / REQUESTS);

    // when
    for index in 0..REQUESTS {
        let key = tell(&mut join, &run, answer("decode", &format!("d-{index:06}"), index, 1));
        assert!(join.close(&key, &Context::default()).is_some_and(|joined| joined.captures.len() == 2), "{key}");
    }

    // then
    assert_eq!((join.len(), join.weight(), join.held_bytes()), (0, 0, 0));
    // Maps keep their room.
    let left = HEAP.allocated() - empty;
    assert!(left < 400 * REQUESTS, "{} bytes a request are left", left / REQUESTS);
}
