//! What is sent arrives: once, in order, whatever happens on the way.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use gatescope_capture::{Exporter, Options, Sent, StartError};

use crate::{
    LONG,
    collector::{Collector, Manner},
    eventually, finish, options, span,
};

fn expected(requests: u32) -> Vec<(String, u32)> {
    let mut positions: Vec<_> =
        (0..requests).flat_map(|i| (0..16).map(move |position| (format!("r{i}"), position))).collect();
    positions.sort();
    positions
}

#[test]
fn everything_arrives_once_and_in_order_and_is_counted() {
    let collector = Collector::start();
    let exporter = Exporter::start(Options { token: Some("secret".into()), ..options(&collector.url()) }).unwrap();

    for i in 0..500 {
        assert_eq!(exporter.send(span(&format!("r{i}"), 0, 16)), Sent::Queued);
        assert_eq!(exporter.send(finish(&format!("r{i}"))), Sent::Queued);
    }
    exporter.flush(LONG).unwrap();

    let metrics = exporter.metrics();
    assert_eq!((metrics.captured_events, metrics.captured_positions), (1000, 8000));
    assert_eq!((metrics.acked_events, metrics.acked_messages), (1000, metrics.sent_messages));
    assert_eq!((metrics.queue_bytes, metrics.in_flight_bytes, metrics.resent_messages), (0, 0, 0));
    assert!(metrics.connected && metrics.sent_bytes > 500 * 1024);
    let stopped = exporter.stop(LONG);
    assert_eq!(stopped.left_events, 0);
    let disk = collector.disk.lock().unwrap();
    assert_eq!(disk.positions(), (expected(500), vec![]));
    assert_eq!(disk.authorization.as_deref(), Some("Bearer secret"));
    let requests: Vec<String> = disk.taken.iter().map(crate::request_of).collect();
    assert_eq!(requests, (0..500).flat_map(|i| [format!("r{i}"), format!("r{i}")]).collect::<Vec<_>>());
    assert!(disk.streams.len() == 1 && disk.streams[0].is_sorted());
    assert!(disk.streams[0].len() < 400, "{} messages for 1000 events", disk.streams[0].len());
}

#[test]
fn a_collector_killed_and_started_again_misses_nothing_and_sees_no_other_order() {
    // Given a collector that says seldom what it has, so that much is sent again.
    let mut collector = Collector::behaving(Manner::Seldom);
    let exporter = Arc::new(Exporter::start(options(&collector.url())).unwrap());
    let done = Arc::new(AtomicBool::new(false));
    let sender = thread::spawn({
        let (exporter, done) = (exporter.clone(), done.clone());
        move || {
            let mut sent = 0;
            while !done.load(Ordering::Acquire) {
                assert_eq!(exporter.send(span(&format!("r{sent}"), 0, 16)), Sent::Queued);
                sent += 1;
                if sent % 20 == 0 {
                    thread::sleep(Duration::from_millis(5));
                }
            }
            sent
        }
    });

    // When it is killed in the middle, again and again.
    let begun = Instant::now();
    while exporter.metrics().connects < 5 || exporter.metrics().resent_messages == 0 {
        assert!(begun.elapsed() < LONG, "{:?}", exporter.metrics());
        thread::sleep(Duration::from_millis(40));
        let (address, disk) = collector.kill();
        thread::sleep(Duration::from_millis(10));
        collector = Collector::start_on(address, disk);
    }
    done.store(true, Ordering::Release);
    let sent = sender.join().unwrap();
    collector.set(Manner::Acknowledge);
    assert_eq!(exporter.send(finish("last")), Sent::Queued);
    exporter.flush(LONG).unwrap();

    // Then nothing is missing, nothing is there twice, nothing is out of order.
    let disk = collector.disk.lock().unwrap();
    assert_eq!(disk.positions(), (expected(sent), vec![]));
    let requests: Vec<String> = disk.taken.iter().map(crate::request_of).collect();
    assert_eq!(requests, (0..sent).map(|i| format!("r{i}")).chain(["last".into()]).collect::<Vec<_>>());
    for stream in &disk.streams {
        // What turns out to be durable while it is being sent again is passed over.
        assert!(stream.windows(2).all(|pair| pair[0] < pair[1]), "{stream:?}");
    }
    let metrics = exporter.metrics();
    assert_eq!((metrics.acked_events, metrics.dropped_events), (u64::from(sent) + 1, 0));
}

#[test]
fn a_collector_that_fails_every_stream_and_recovers_misses_nothing() {
    let collector = Collector::behaving(Manner::Fail);
    let exporter = Exporter::start(options(&collector.url())).unwrap();
    for i in 0..50 {
        assert_eq!(exporter.send(span(&format!("r{i}"), 0, 16)), Sent::Queued);
    }
    eventually("five streams", || exporter.metrics().connects >= 5);
    assert!(!exporter.metrics().connected);

    collector.set(Manner::Acknowledge);
    exporter.flush(LONG).unwrap();

    assert_eq!(collector.disk.lock().unwrap().positions(), (expected(50), vec![]));
}

#[test]
fn a_collector_may_come_later_than_what_is_sent() {
    let (address, disk) = Collector::start().kill();
    let exporter = Exporter::start(options(&format!("grpc://{address}"))).unwrap();
    assert_eq!(exporter.send(span("r0", 0, 16)), Sent::Queued);
    assert!(exporter.flush(Duration::from_millis(50)).is_err());

    let collector = Collector::start_on(address, disk);
    exporter.flush(LONG).unwrap();

    assert_eq!(collector.disk.lock().unwrap().positions(), (expected(1), vec![]));
}

#[test]
fn a_span_larger_than_a_message_arrives_in_pieces_and_small_events_do_not_wait() {
    let collector = Collector::start();
    let exporter = Exporter::start(options(&collector.url())).unwrap();

    // 6.4 MB
    assert_eq!(exporter.send(span("r0", 5, 100_000)), Sent::Queued);
    exporter.flush(LONG).unwrap();

    let disk = collector.disk.lock().unwrap();
    let (rows, lost) = disk.positions();
    assert_eq!((rows.len(), rows.first().unwrap().1, rows.last().unwrap().1), (100_000, 5, 100_004));
    assert!(lost.is_empty() && disk.largest < 2 << 20);
}

#[test]
fn stop_keeps_its_deadline_when_the_collector_never_acknowledges() {
    let collector = Collector::behaving(Manner::Silent);
    let exporter = Exporter::start(options(&collector.url())).unwrap();
    for i in 0..10 {
        assert_eq!(exporter.send(span(&format!("r{i}"), 0, 16)), Sent::Queued);
    }

    let begun = Instant::now();
    let stopped = exporter.stop(Duration::from_millis(200));

    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!((stopped.left_events, stopped.metrics.acked_events), (10, 0));
}

#[test]
fn what_comes_after_a_stop_is_dropped_and_counted() {
    let collector = Collector::start();
    let exporter = Exporter::start(options(&collector.url())).unwrap();
    assert_eq!(exporter.send(finish("a")), Sent::Queued);
    assert_eq!(exporter.stop(LONG).left_events, 0);

    assert_eq!(exporter.send(span("a", 0, 3)), Sent::Dropped);
    assert!(exporter.flush(Duration::from_secs(1)).is_err());

    let stopped = exporter.stop(LONG);
    assert_eq!((stopped.left_events, stopped.metrics.dropped_positions), (0, 3));
}

#[test]
fn options_that_cannot_work_are_refused_with_what_was_expected() {
    let refused = |collector: &str| Exporter::start(options(collector)).unwrap_err().to_string();
    assert_eq!(refused("localhost:1"), "collector \"localhost:1\": no scheme: expected grpc://HOST:PORT");
    assert_eq!(refused("https://localhost:1"), "collector \"https://localhost:1\": scheme https: expected grpc");
    assert_eq!(refused("grpc://localhost"), "collector \"grpc://localhost\": no port: expected grpc://HOST:PORT");
    assert!(refused("grpc://a b:1").starts_with("collector \"grpc://a b:1\": "));
    let options = options("grpc://localhost:1");
    assert!(matches!(Exporter::start(Options { agent: "".into(), ..options.clone() }), Err(StartError::Agent(0))));
    assert!(matches!(Exporter::start(Options { token: Some("a\nb".into()), ..options }), Err(StartError::Token)));
}
