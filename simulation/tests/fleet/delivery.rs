//! A fleet against a real Flight server.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use gatescope_simulation::{Delivery, Files, Fleet, Options, drive};

use crate::{collector::Collector, joined, options};

fn delivery(collector: String) -> Delivery {
    Delivery { collector, token: None, rate: 0, duration: None, drain: Duration::from_secs(30) }
}

#[test]
fn what_a_fleet_tells_arrives_and_is_whole() {
    // given
    let collector = Collector::start();
    let options = Options { requests: Some(80), ..options() };
    let mut fleet = Fleet::new(options.clone()).unwrap();
    let mut truth = Vec::new();
    let mut files = Files { truth: Some(&mut truth), ..Files::default() };

    // when
    let stop = AtomicBool::new(false);
    let summary = drive(&mut fleet, &delivery(collector.url()), &mut files, &stop, &mut |_| ()).unwrap();

    // then
    assert!(summary.is_complete(), "{summary:?}");
    assert_eq!(summary.requests, 80);
    assert_eq!(summary.sum(|agent| agent.captured_positions), summary.positions);
    assert_eq!(truth.iter().filter(|&&byte| byte == b'\n').count(), 80);
    let requests = joined(&collector.taken(), &options);
    assert_eq!(requests.len() as u64, summary.sequences);
    let rows: u64 = requests.values().map(|joined| u64::from(joined.rows())).sum();
    assert_eq!(rows, summary.expected_rows);
    assert!(requests.values().all(|joined| joined.findings.is_empty()));
}

#[test]
fn a_stop_ends_it_with_whole_requests() {
    // given
    let collector = Collector::start();
    let options = Options { requests: None, ..options() };
    let mut fleet = Fleet::new(options.clone()).unwrap();
    let stop = AtomicBool::new(false);

    // when
    let mut looked = 0;
    let mut progress = |_| {
        looked += 1;
        stop.store(looked > 200, Ordering::Relaxed);
    };
    let summary = drive(&mut fleet, &delivery(collector.url()), &mut Files::default(), &stop, &mut progress).unwrap();

    // then
    assert!(summary.is_complete(), "{summary:?}");
    let requests = joined(&collector.taken(), &options);
    assert!(!requests.is_empty());
    assert!(requests.values().all(|joined| joined.findings.is_empty()));
}

#[test]
fn a_rate_is_kept_and_a_duration_ends_it() {
    // given
    let collector = Collector::start();
    let mut fleet = Fleet::new(Options { requests: None, concurrency: 2, ..options() }).unwrap();
    let duration = Some(Duration::from_millis(1500));
    let delivery = Delivery { rate: 4_000, duration, ..delivery(collector.url()) };

    // when
    let (mut at_end, stop) = (0, AtomicBool::new(false));
    let mut progress = |progress: gatescope_simulation::Progress| {
        if !progress.ending {
            at_end = progress.positions;
        }
    };
    let summary = drive(&mut fleet, &delivery, &mut Files::default(), &stop, &mut progress).unwrap();

    // then
    assert!(summary.is_complete());
    assert!((4_000..=9_000).contains(&at_end), "{at_end} positions in 1.5 s at 4000 a second");
}

#[test]
fn a_collector_that_is_away_is_no_reason_to_wait_for_ever() {
    // given
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut fleet = Fleet::new(Options { requests: Some(20), ..options() }).unwrap();
    let delivery = Delivery { drain: Duration::from_millis(300), ..delivery(format!("grpc://{address}")) };

    // when
    let stop = AtomicBool::new(false);
    let summary = drive(&mut fleet, &delivery, &mut Files::default(), &stop, &mut |_| ()).unwrap();

    // then
    assert!(!summary.is_complete());
    assert!(summary.agents.iter().any(|agent| agent.left_events > 0));
}
