//! Answers that say no, and answers that say nothing.

use std::time::Duration;

use gatescope_capture::{Exporter, Options, Sent};
use gatescope_wire::{Ack, Nack, NackCode};
use uuid::Uuid;

use crate::{
    LONG,
    collector::{Collector, Manner},
    eventually, options, span,
};

fn nack(seq: u64, row: Option<u32>, retryable: bool) -> Nack {
    Nack { seq, row, code: NackCode::Storage, reason: "told to refuse".into(), retryable }
}

/// One message for each event.
fn one_by_one(collector: &str) -> Options {
    Options { batch_bytes: 1, ..options(collector) }
}

fn positions(of: impl IntoIterator<Item = u32>) -> Vec<(String, u32)> {
    of.into_iter().map(|position| ("r".to_owned(), position)).collect()
}

#[test]
fn what_is_refused_for_now_is_sent_again_in_order() {
    let collector = Collector::start();
    collector.disk.lock().unwrap().refuse.insert(5, (nack(5, None, true), 3));
    let exporter = Exporter::start(one_by_one(&collector.url())).unwrap();

    for i in 0..20 {
        assert_eq!(exporter.send(span("r", i, 1)), Sent::Queued);
    }
    exporter.flush(LONG).unwrap();

    let metrics = exporter.metrics();
    assert_eq!((metrics.acked_events, metrics.refused_events, metrics.connects), (20, 0, 4));
    let disk = collector.disk.lock().unwrap();
    assert_eq!(disk.positions(), (positions(0..20), vec![]));
    assert!(
        disk.streams.iter().skip(1).all(|stream| stream.first().is_none_or(|&first| first == 5)),
        "{:?}",
        disk.streams
    );
}

#[test]
fn what_is_refused_for_good_is_counted_and_its_positions_are_told_as_lost() {
    let collector = Collector::start();
    collector.disk.lock().unwrap().refuse.insert(5, (nack(5, None, false), usize::MAX));
    let exporter = Exporter::start(one_by_one(&collector.url())).unwrap();

    for i in 0..20 {
        assert_eq!(exporter.send(span("r", i, 1)), Sent::Queued);
    }
    eventually("all but one, and the gap", || exporter.metrics().acked_events == 20);

    let metrics = exporter.metrics();
    assert_eq!((metrics.refused_events, metrics.gap_records, metrics.resent_messages), (1, 1, 0));
    let (rows, lost) = collector.disk.lock().unwrap().positions();
    assert_eq!(rows, positions((0..20).filter(|&position| position != 4)));
    assert_eq!(lost, positions([4]));
}

#[test]
fn one_row_that_is_refused_takes_no_other_with_it() {
    let collector = Collector::start();
    collector.disk.lock().unwrap().refuse.insert(1, (nack(1, Some(2), false), usize::MAX));
    let exporter =
        Exporter::start(Options { linger: Duration::from_millis(200), ..options(&collector.url()) }).unwrap();

    for i in 0..5 {
        assert_eq!(exporter.send(span("r", i, 1)), Sent::Queued);
    }
    eventually("all but one, and the gap", || exporter.metrics().acked_events == 5);

    assert_eq!(exporter.metrics().refused_events, 1);
    let (rows, lost) = collector.disk.lock().unwrap().positions();
    assert_eq!((rows, lost), (positions([0, 1, 3, 4]), positions([2])));
    assert_eq!(exporter.stop(LONG).left_events, 0);
}

#[test]
fn answers_that_cannot_be_are_passed_over_and_settle_nothing() {
    let other = Ack { agent: "another".into(), boot: Uuid::nil(), durable: 1, nacks: vec![nack(1, None, false)] };
    let garbage: [Vec<u8>; 4] = [
        vec![],
        b"\xff\xfe{]".to_vec(),
        br#"{"wire":9,"agent":"agent-0","boot":"00000000-0000-0000-0000-000000000000","durable":1}"#.to_vec(),
        other.metadata()[0].to_vec(),
    ];
    for bytes in garbage {
        let collector = Collector::behaving(Manner::Say(bytes));
        let patience = Options { ack_timeout: Duration::from_millis(100), ..options(&collector.url()) };
        let exporter = Exporter::start(patience).unwrap();
        assert_eq!(exporter.send(span("r", 0, 3)), Sent::Queued);

        // Given up after a while, tried again.
        eventually("a second stream", || exporter.metrics().connects >= 2);
        let metrics = exporter.metrics();
        assert!(metrics.bad_acks > 0 && metrics.in_flight_bytes > 0 && metrics.acked_events == 0, "{metrics:?}");

        collector.set(Manner::Acknowledge);
        exporter.flush(LONG).unwrap();
        assert_eq!(collector.disk.lock().unwrap().positions().0, positions(0..3));
    }
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_settles_nothing() {
    let collector = Collector::start();
    collector.disk.lock().unwrap().durable = 1_000_000;
    let patience = Options { ack_timeout: Duration::from_millis(100), ..options(&collector.url()) };
    let exporter = Exporter::start(patience).unwrap();

    assert_eq!(exporter.send(span("r", 0, 3)), Sent::Queued);
    eventually("answers", || exporter.metrics().bad_acks >= 2);

    assert_eq!(exporter.metrics().acked_events, 0);
    collector.disk.lock().unwrap().durable = 0;
    exporter.flush(LONG).unwrap();
    assert_eq!(collector.disk.lock().unwrap().positions().0, positions(0..3));
}
