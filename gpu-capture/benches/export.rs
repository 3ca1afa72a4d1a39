//! Blocks of 48 layers x 8 slots through the exporter, over loopback, to a collector that reads every event and
//! acknowledges. `cargo bench -p gatescope-capture`
#![allow(missing_docs, clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../tests/export/collector.rs"]
mod collector;

use std::{sync::Arc, time::Duration};

use collector::{Collector, Manner};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gatescope_capture::{Exporter, Options, Sent};
use gatescope_routing::{Anchor, IdWidth, RequestKey, Role, RowShape, Rows, Source, Span, WireType, span::BlockHash};
use gatescope_wire::{Event, MessageId, Request, Told, decode, encode, flight, wire_bytes};

/// Blocks of a few requests, one after the other, as an engine's steps give them.
fn blocks(count: usize, rows: usize) -> Vec<Event> {
    let shape = RowShape::new(48, 8).unwrap();
    let source = Source { role: Role::Prefill, instance: Arc::from("8f2e51f0-dp0"), attempt: 0 };
    (0..count)
        .map(|i| {
            let bytes: Vec<u8> = (0..rows * shape.ids()).map(|id| (id * 7 + i) as u8 % 128).collect();
            let span = Span {
                source: source.clone(),
                anchor: Anchor::Start((i / 8 * rows) as u32),
                rows: Rows::new(bytes.into(), shape, IdWidth::U8).unwrap(),
                wire_type: WireType::U8,
                unknown: Vec::new(),
                generation: 0,
                block: Some(BlockHash(Arc::from([i as u8; 32]))),
            };
            let request_id = Arc::from(format!("chatcmpl-{:032x}", i % 8));
            let key = RequestKey { run: Arc::from("default"), request_id, choice: 0 };
            Event::Request(Request { key, at: 1_700_000_000_000_000, told: Told::Span(span) })
        })
        .collect()
}

fn throughput(events: &[Event]) -> Throughput {
    Throughput::ElementsAndBytes {
        elements: events.len() as u64,
        bytes: events.iter().map(|event| wire_bytes(event) as u64).sum(),
    }
}

fn wire(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wire");
    for rows in [16, 64] {
        let events = blocks((256 << 10) / (rows * 384), rows);
        group.throughput(throughput(&events));
        let id = MessageId { agent: "host-3/gpu-0".into(), boot: uuid::Uuid::nil(), seq: 1 };
        group.bench_function(format!("write, blocks of {rows}"), |bencher| {
            bencher.iter(|| flight::message(&id, &events).unwrap());
        });
        let batch = encode(&events).unwrap();
        group.bench_function(format!("decode, blocks of {rows}"), |bencher| bencher.iter(|| decode(&batch).unwrap()));
        let (schema, message) = (flight::schema_message().unwrap(), flight::message(&id, &events).unwrap());
        let mut stream = flight::Stream::new();
        stream.read(&schema).unwrap();
        group.bench_function(format!("read, blocks of {rows}"), |bencher| {
            bencher.iter(|| decode(&stream.read(&message).unwrap().unwrap().batch.unwrap()).unwrap());
        });
    }
    group.finish();
}

fn export(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("export");
    group.sample_size(20).measurement_time(Duration::from_secs(8));
    for rows in [16, 64] {
        let events = blocks((48 << 20) / (rows * 384), rows);
        group.throughput(throughput(&events));
        let collector = Collector::behaving(Manner::Forget);
        let exporter = Exporter::start(Options::new(collector.url(), "host-3/gpu-0")).unwrap();
        group.bench_function(format!("48 MiB acknowledged, blocks of {rows}"), |bencher| {
            bencher.iter(|| {
                for event in &events {
                    assert_eq!(exporter.send(event.clone()), Sent::Queued);
                }
                exporter.flush(Duration::from_secs(60)).unwrap();
            });
        });
        assert_eq!(exporter.metrics().dropped_events, 0);
    }
    group.finish();
}

criterion_group!(benches, wire, export);
criterion_main!(benches);
