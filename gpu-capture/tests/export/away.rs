//! The agent while there is no room or no collector: what is not sent is on disk or told as lost.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    time::Duration,
};

use gatescope_capture::{Agent, AgentOptions, Begun, Options, SpoolOptions, StepPart, StepRows};
use gatescope_routing::{IdWidth, Role, RowShape};

use crate::{
    LONG,
    collector::{Collector, Positions, Shared},
    eventually, options,
};

const ROW: usize = 64;

fn step(agent: &Agent, request: &str, first: u32, count: usize) {
    let rows: Vec<u8> = (0..count * ROW).map(|id| (id as u32 + first) as u8).collect();
    let part = StepPart { request, first_position: i64::from(first), from: 0, to: count as i64, rejected: 0 };
    let shape = RowShape::new(8, 8).unwrap();
    agent.capture_step(StepRows { bytes: &rows, shape, width: IdWidth::U8 }, [part].into_iter());
}

fn begun(outer: &str) -> Begun {
    Begun {
        outer_id: outer.into(),
        choice: 0,
        role: Role::Decode,
        prompt_tokens: Some(1),
        first_forward: Some(0),
        prompt_start: None,
        attempt: 0,
        name: None,
        prefill: None,
    }
}

/// Nobody listens here.
fn nowhere() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn agent(address: SocketAddr, spool: Option<(&Path, u64)>) -> AgentOptions {
    let export = Options { queue_bytes: 64 << 10, ..options(&format!("grpc://{address}")) };
    let spool = spool.map(|(folder, bytes)| SpoolOptions { folder: folder.to_owned(), bytes });
    AgentOptions { spool, linger: Duration::from_millis(4), ..AgentOptions::new(export, "d0") }
}

fn all(count: u32) -> Positions {
    (0..count).map(|position| ("a".to_owned(), position)).collect()
}

/// Every position is there once, as a row or as lost; says how many are lost.
fn each_once(collector: &Collector, count: u32) -> usize {
    let (rows, lost) = collector.disk.lock().unwrap().positions();
    let mut both = [&rows[..], &lost[..]].concat();
    both.sort();
    assert!(both == all(count), "{} rows and {} lost of {count}", rows.len(), lost.len());
    lost.len()
}

#[test]
fn a_full_ring_drops_steps_and_tells_their_positions() {
    let collector = Collector::start();
    let options = AgentOptions { ring_bytes: 40 * ROW, ..agent(collector.address, None) };
    let agent = Agent::start(&options).unwrap();
    agent.begun("inner", begun("a"));
    for number in 0..500 {
        step(&agent, "inner", number * 16, 16);
    }
    step(&agent, "inner", 8000, 100);
    assert!(agent.flush(LONG));

    let lost = each_once(&collector, 8100);
    let (metrics, export) = agent.metrics();
    assert!(lost >= 100, "a step above the ring's size was taken");
    // The exporter's queue is small as well.
    assert_eq!((metrics.dropped_positions + export.dropped_positions, metrics.unreported_positions), (lost as u64, 0));
    assert_eq!((metrics.positions + metrics.dropped_positions, metrics.ring_bytes), (8100, 0));
}

#[test]
fn without_a_spool_a_collector_that_is_away_costs_rows_and_says_which() {
    let address = nowhere();
    let agent = Agent::start(&agent(address, None)).unwrap();
    agent.begun("inner", begun("a"));
    (0..1000).for_each(|number| step(&agent, "inner", number * 16, 16));
    eventually("rows are dropped", || agent.metrics().1.dropped_positions > 0);

    let collector = Collector::start_on(address, Shared::default());
    assert!(agent.flush(LONG));

    assert!(each_once(&collector, 16_000) > 0);
}

#[test]
fn with_a_spool_a_collector_that_is_away_costs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let address = nowhere();
    let agent = Agent::start(&agent(address, Some((folder.path(), 64 << 20)))).unwrap();
    agent.begun("inner", begun("a"));
    (0..2000).for_each(|number| step(&agent, "inner", number * 16, 16));
    eventually("events are spooled", || agent.metrics().0.spool_events > 0);

    let collector = Collector::start_on(address, Shared::default());
    step(&agent, "inner", 32_000, 16);
    assert!(agent.flush(LONG));

    assert_eq!(each_once(&collector, 32_016), 0);
    eventually("the spool's files go", || std::fs::read_dir(folder.path()).unwrap().count() == 1);
    let in_order: Vec<u32> = collector.disk.lock().unwrap().starts();
    assert!(in_order.is_sorted(), "what was spooled came in another order");
}

#[test]
fn a_restart_without_a_collector_loses_nothing_that_the_spool_can_hold() {
    let folder = tempfile::tempdir().unwrap();
    let address = nowhere();
    let options = agent(address, Some((folder.path(), 64 << 20)));
    let first = Agent::start(&options).unwrap();
    first.begun("inner", begun("a"));
    (0..2000).for_each(|number| step(&first, "inner", number * 16, 16));
    step(&first, "inner", 32_000, 3);
    assert!(!first.stop(Duration::from_millis(200)), "there is no collector");
    drop(first);

    let second = Agent::start(&options).unwrap();
    let collector = Collector::start_on(address, Shared::default());
    assert!(second.flush(LONG));

    // What had gone ahead of the stop comes twice: the same spans, which a collector recognises.
    let (mut rows, lost) = collector.disk.lock().unwrap().positions();
    let twice = rows.len() - 32_003;
    rows.dedup();
    assert!(rows == all(32_003) && lost.is_empty(), "{} rows and {} lost", rows.len(), lost.len());
    assert!(twice * ROW < 4 << 20, "{twice} rows came twice");
}

#[test]
fn a_full_spool_tells_what_it_could_not_take() {
    let folder = tempfile::tempdir().unwrap();
    let address = nowhere();
    let agent = Agent::start(&agent(address, Some((folder.path(), 300 << 10)))).unwrap();
    agent.begun("inner", begun("a"));
    (0..2000).for_each(|number| step(&agent, "inner", number * 16, 16));
    eventually("rows are dropped", || agent.metrics().1.dropped_positions > 0);
    assert!(agent.metrics().0.spool_bytes <= 300 << 10);

    let collector = Collector::start_on(address, Shared::default());
    assert!(agent.flush(LONG));

    assert!(each_once(&collector, 32_000) > 0);
}

#[test]
fn rows_of_a_request_that_nobody_started_are_told_under_the_engines_id() {
    let collector = Collector::start();
    let agent = Agent::start(&agent(collector.address, None)).unwrap();
    step(&agent, "a", 0, 16);
    assert!(agent.flush(LONG));
    assert_eq!(collector.disk.lock().unwrap().taken.len(), 0, "they wait for a start");

    agent.finished("a", Some(16));
    eventually("a finish ends the wait", || collector.disk.lock().unwrap().positions().0 == all(16));

    step(&agent, "b", 0, 1);
    assert!(agent.stop(LONG));
    assert_eq!(collector.disk.lock().unwrap().positions().0.len(), 17);
}
