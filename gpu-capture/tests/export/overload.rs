//! More than the collector takes: memory stays bounded, and what is dropped is told, position by position.

use std::time::{Duration, Instant};

use gatescope_capture::{Exporter, Options, Sent};

use crate::{
    LONG,
    collector::{Collector, Manner, Positions},
    finish, options, span,
};

const QUEUE: usize = 1 << 20;

fn small(collector: &str) -> Options {
    Options { queue_bytes: QUEUE, in_flight_bytes: 4 << 20, batch_bytes: 64 << 10, ..options(collector) }
}

/// Sends many rows; says of which positions rows were taken and of which dropped.
fn overload(exporter: &Exporter, spans: u32) -> (Positions, Positions) {
    let (mut queued, mut dropped) = (Vec::new(), Vec::new());
    for i in 0..spans {
        let (request, start) = (format!("r{}", i % 7), i / 7 * 64);
        let positions = (start..start + 64).map(|position| (request.clone(), position));
        match exporter.send(span(&request, start, 64)) {
            Sent::Queued => queued.extend(positions),
            Sent::Dropped => dropped.extend(positions),
        }
        let metrics = exporter.metrics();
        assert!(metrics.queue_bytes <= QUEUE as u64, "{metrics:?}");
        assert!(metrics.in_flight_bytes <= 4 << 20, "{metrics:?}");
    }
    queued.sort();
    dropped.sort();
    (queued, dropped)
}

#[test]
fn what_a_slow_collector_does_not_take_is_told_exactly() {
    // Given a collector that takes 64 KiB every 20 ms, and 16 MiB for it.
    let collector = Collector::behaving(Manner::Slow(Duration::from_millis(20)));
    let exporter = Exporter::start(small(&collector.url())).unwrap();

    let (queued, dropped) = overload(&exporter, 4000);
    assert_eq!(exporter.send(finish("r0")), Sent::Queued, "small events have room where rows have none");
    collector.set(Manner::Acknowledge);
    exporter.flush(LONG).unwrap();

    let metrics = exporter.metrics();
    assert!(!dropped.is_empty() && !queued.is_empty());
    assert_eq!(metrics.dropped_positions, dropped.len() as u64);
    assert_eq!(metrics.unreported_positions, 0);
    assert!(metrics.gap_records > 0);
    assert_eq!(collector.disk.lock().unwrap().positions(), (queued, dropped));
}

#[test]
fn gaps_are_told_as_soon_as_there_is_room_without_anyone_asking() {
    let collector = Collector::behaving(Manner::Silent);
    let exporter = Exporter::start(small(&collector.url())).unwrap();
    let (_, dropped) = overload(&exporter, 4000);
    assert!(!dropped.is_empty());

    // The exporter gives the silent stream up and sends again, now to one that answers.
    let (address, disk) = collector.kill();
    let collector = Collector::start_on(address, disk);
    collector.set(Manner::Acknowledge);

    crate::eventually("gap records", || collector.disk.lock().unwrap().positions().1 == dropped);
}

#[test]
fn sending_never_waits_though_nobody_listens() {
    let (address, _) = Collector::start().kill();
    let exporter = Exporter::start(small(&format!("grpc://{address}"))).unwrap();

    let begun = Instant::now();
    let mut longest = Duration::ZERO;
    let mut event_made = Duration::ZERO;
    for i in 0..20_000 {
        let making = Instant::now();
        let event = span("r0", i, 1);
        let sending = Instant::now();
        event_made += sending - making;
        let _ = exporter.send(event);
        longest = longest.max(sending.elapsed());
    }

    let took = begun.elapsed().saturating_sub(event_made);
    assert!(took < Duration::from_secs(5), "{took:?} for 20,000 events, {longest:?} the longest");
    let metrics = exporter.metrics();
    assert!(metrics.dropped_events > 0 && metrics.captured_events > 0);
    assert_eq!(metrics.dropped_events + metrics.captured_events, 20_000);
}
