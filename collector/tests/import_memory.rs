//! Unfinished requests take the memory that they are given, and little beyond it when they are put aside.
//!
//! The heap is watched for the whole process, so this file has one test.
#![allow(clippy::unwrap_used, reason = "a test may end where it is wrong")]

use std::{
    alloc::System,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use cap::Cap;
use gatescope_collector::import::{ImportOptions, Input, Observer, Progress, Stop, import};
use gatescope_routing::{
    engine::vllm,
    rows::Rows,
    shape::{IdWidth, RowShape},
};

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// So many that all lines fit into one block of input.
const REQUESTS: u64 = 3000;
/// What a request that was put aside may take.
const ASIDE: usize = 200;

/// Looks at the heap when all lines are joined, and ends the import there.
struct Watch<'a> {
    held: usize,
    interrupted: &'a AtomicBool,
}

impl Observer for Watch<'_> {
    fn progressed(&mut self, progress: Progress) {
        if progress.lines == REQUESTS && !self.interrupted.swap(true, Ordering::Relaxed) {
            self.held = HEAP.allocated();
        }
    }
}

/// Answers of prefills whose decodes never come; with another role, as many lines that are refused.
fn answers(role: &str) -> String {
    let rows = Rows::new(vec![1; 16].into(), RowShape::new(2, 2).unwrap(), IdWidth::U8).unwrap();
    let rows = vllm::encode(&rows);
    let line = |id: u64| {
        format!(
            r#"{{"role": "{role}", "request_id": "request-{id:08}", "response": {{"model": "tiny", "choices": [{{"token_ids":
               [1], "routed_experts": "{rows}"}}], "usage": {{"prompt_tokens": 4}}, "kv_transfer_params": {{
               "remote_engine_id": "p", "remote_request_id": "cmpl-{id:08}-0-85eeda8a"}}}}}}"#
        )
        .replace('\n', "")
    };
    (0..REQUESTS).map(|id| line(id) + "\n").collect()
}

fn held(folder: &Path, role: &str, held_bytes: usize) -> usize {
    let path = folder.join(role);
    std::fs::write(&path, answers(role)).unwrap();
    let interrupted = AtomicBool::new(false);
    let mut watch = Watch { held: 0, interrupted: &interrupted };
    let options = ImportOptions { held_bytes, ..ImportOptions::default() };
    let data = tempfile::tempdir().unwrap();
    let summary = import(&[Input::File(path)], data.path(), &options, &mut watch, &interrupted).unwrap();
    assert_eq!((summary.lines, summary.stopped), (REQUESTS, Some(Stop::Interrupted)));
    watch.held
}

#[test]
fn unfinished_requests_take_what_they_are_given_and_little_when_put_aside() {
    let folder = tempfile::tempdir().unwrap();
    // What an import takes besides: told as refused lines of the same length. The first one also starts what stays.
    held(folder.path(), "prefilx", 1 << 20);
    let besides = held(folder.path(), "prefilx", 1 << 20);
    for held_bytes in [64 << 10, 1 << 20, 4 << 20] {
        // when
        let taken = held(folder.path(), "prefill", held_bytes).saturating_sub(besides);

        // then
        let allowed = held_bytes + ASIDE * REQUESTS as usize;
        assert!(
            taken < allowed,
            "{taken} bytes taken, {held_bytes} given, {} a request beyond",
            (taken - held_bytes) / REQUESTS as usize
        );
        assert!(taken > held_bytes / 3, "{taken} bytes taken of {held_bytes}: nothing was held");
    }
}
