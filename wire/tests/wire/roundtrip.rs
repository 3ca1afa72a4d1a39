//! What is written is read back.

use arrow::array::AsArray;
use gatescope_routing::{Anchor, RowShape};
use gatescope_wire::{
    Batcher, Event, MAX_MESSAGE_BYTES, MessageId, Request, Told, decode, encode,
    flight::{self, Stream},
    ipc, wire_bytes,
};
use proptest::prelude::*;

use crate::events::{event, everything, of_request, span_at};

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_come_back_as_they_went(events in prop::collection::vec(event(), 0..20)) {
        let decoded = decode(&encode(&events).unwrap()).unwrap();

        prop_assert_eq!(&decoded.refused, &[]);
        prop_assert_eq!(&decoded.skipped, &[]);
        let went: Vec<String> = events.iter().map(everything).collect();
        let came: Vec<String> = decoded.events.iter().map(everything).collect();
        prop_assert_eq!(went, came);
    }

    #[test]
    fn a_message_is_never_larger_than_its_events_said(events in prop::collection::vec(event(), 1..40)) {
        let said: usize = events.iter().map(wire_bytes).sum();
        let id = MessageId { agent: "a".repeat(256).into(), boot: uuid::Uuid::max(), seq: u64::MAX };

        let message = flight::message(&id, &events).unwrap();

        let is = message.data_header.len() + message.app_metadata.len() + message.data_body.len();
        prop_assert!(is <= said + (16 << 10), "{is} bytes, {said} said");
    }

    #[test]
    fn batches_hold_all_events_in_order(events in prop::collection::vec(event(), 0..60), target in 1usize..4000) {
        let mut batcher = Batcher::new(target);
        let mut came = Vec::new();
        for event in &events {
            batcher.push(event.clone()).unwrap();
            while let Some(batch) = batcher.full() {
                prop_assert!(batch.len() == 1 || batch.iter().map(wire_bytes).sum::<usize>() <= target);
                came.extend(batch);
            }
            prop_assert!(batcher.bytes() < target);
        }
        while let Some(batch) = batcher.rest() {
            came.extend(batch);
        }
        prop_assert!(batcher.is_empty() && batcher.bytes() == 0);
        let went: Vec<String> = events.iter().map(everything).collect();
        let came: Vec<String> = came.iter().map(everything).collect();
        prop_assert_eq!(went, came);
    }
}

#[test]
fn decoded_rows_share_the_memory_of_their_message() {
    let events = [of_request(Told::Span(span_at(3, 16, RowShape::new(48, 8).unwrap())))];
    let id = MessageId { agent: "a".into(), boot: uuid::Uuid::nil(), seq: 1 };
    let message = flight::message(&id, &events).unwrap();
    let mut stream = Stream::new();
    let schema = flight::schema_message().unwrap();
    assert!(flight::begins_stream(&schema) && !flight::begins_stream(&message));
    assert!(stream.read(&schema).unwrap().is_none());

    let received = stream.read(&message).unwrap().unwrap();
    let batch = received.batch.unwrap();
    let decoded = decode(&batch).unwrap();

    assert_eq!(received.id, id);
    let Event::Request(Request { told: Told::Span(span), .. }) = &decoded.events[0] else { panic!("not a span") };
    let ids = span.rows.bytes().as_ptr() as usize;
    let body = message.data_body.as_ptr() as usize;
    assert!((body..body + message.data_body.len()).contains(&ids), "the rows were copied");
    assert_eq!(batch.column_by_name("payload").unwrap().as_binary::<i64>().value(0).as_ptr() as usize, ids);
}

#[test]
fn a_message_is_kept_as_a_stream_that_every_arrow_reads() {
    let events = [of_request(Told::Span(span_at(3, 7, RowShape::new(3, 1).unwrap())))];
    let id = MessageId { agent: "a".into(), boot: uuid::Uuid::nil(), seq: 1 };
    let message = flight::message(&id, &events).unwrap();
    let mut stream = Stream::new();
    assert!(stream.record(&message).is_empty());
    stream.read(&flight::schema_message().unwrap()).unwrap();

    let record = stream.record(&message);

    let ours: Vec<_> = ipc::read_stream(record.clone().into()).unwrap().collect::<Result<_, _>>().unwrap();
    let theirs: Vec<_> =
        arrow::ipc::reader::StreamReader::try_new(&record[..], None).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(ours, [encode(&events).unwrap()]);
    assert_eq!(theirs, ours);
    for cut in 1..record.len() - 8 {
        let cut = ipc::read_stream(record[..cut].to_vec().into());
        assert!(cut.is_err() || cut.unwrap().all(|batch| batch.is_err()));
    }
}

#[test]
fn a_span_above_the_size_of_a_message_is_cut_between_blocks() {
    // Given 24,576 positions of 384 bytes: 9 MiB.
    let span = span_at(1000, 24_576, RowShape::new(48, 8).unwrap());
    let mut batcher = Batcher::new(1 << 20);

    batcher.push(of_request(Told::Span(span.clone()))).unwrap();
    let batches: Vec<_> = std::iter::from_fn(|| batcher.rest()).collect();

    let mut next = 1000;
    let mut ids = Vec::new();
    for (i, batch) in batches.iter().enumerate() {
        let id = MessageId { agent: "a".into(), boot: uuid::Uuid::nil(), seq: i as u64 + 1 };
        let message = flight::message(&id, batch).unwrap();
        assert!(message.data_body.len() < MAX_MESSAGE_BYTES);
        for event in batch {
            let Event::Request(Request { told: Told::Span(piece), .. }) = event else { panic!("not a span") };
            assert_eq!(piece.anchor, Anchor::Start(next));
            next += piece.rows.len() as u32;
            assert!(next.is_multiple_of(64) || next == 25_576, "cut inside a block, at {next}");
            ids.extend_from_slice(piece.rows.bytes());
        }
    }
    assert!(batches.len() > 4);
    assert_eq!(next, 25_576);
    assert!(ids == *span.rows.bytes());
}

#[test]
fn what_fits_no_message_is_refused_and_leaves_the_batcher_as_it_was() {
    let mut batcher = Batcher::new(1 << 20);
    let placed_by_its_end = gatescope_routing::Span {
        anchor: Anchor::End { completion_tokens: 1 },
        ..span_at(0, 6000, RowShape::new(48, 8).unwrap())
    };

    let refused = batcher.push(of_request(Told::Span(placed_by_its_end))).unwrap_err();

    assert!(refused.to_string().contains("expected less than 2097152"), "{refused}");
    assert!(batcher.is_empty());
}
