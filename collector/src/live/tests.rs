//! A whole collector on a folder: what goes in comes out, once, whatever happens in between.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use gatescope_routing::{
    Anchor, Finish, IdWidth, KvLink, RequestKey, Role, RowShape, Rows, Source, Span, Start, Status, WireType,
    join::BlockReference, span::BlockHash,
};
use gatescope_wire::{Block, Event, Link, Request, Started, Told as Say, decode, encode, ipc};
use proptest::prelude::*;

use super::{
    Collector, Intake, Options,
    record::{Header, Kind},
    told::Told,
};
use crate::{metrics::Metrics, tables::Tables};

const LAYERS: u64 = 3;
const TOP_K: u64 = 2;
const ROW: usize = (LAYERS * TOP_K) as usize;

fn options() -> Options {
    Options {
        commit_interval: Duration::from_millis(30),
        join_timeout: Duration::from_millis(400),
        ..Options::default()
    }
}

/// Rows that any two positions and requests tell apart.
fn row(request: usize, position: u32) -> Vec<u8> {
    (0..ROW).map(|slot| (slot % 2 * 100 + (request * 31 + position as usize * 7 + slot * 3) % 99 + 1) as u8).collect()
}

/// A request that was prefilled by `p0` under another name and decoded by `d0`.
#[derive(Debug, Clone)]
struct Traffic {
    request: usize,
    prompt: u32,
    completion: u32,
    /// Lengths of the pieces in which rows are sent.
    piece: u32,
}

impl Traffic {
    fn expected(&self) -> Vec<u8> {
        (0..self.prompt + self.completion - 1).flat_map(|position| row(self.request, position)).collect()
    }

    fn key(&self) -> RequestKey {
        RequestKey { run: "r".into(), request_id: format!("d-{}", self.request).into(), choice: 0 }
    }

    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let prefill = RequestKey { request_id: format!("p-{}", self.request).into(), ..self.key() };
        let name = KvLink { engine_id: "engine-p0".into(), request_id: format!("p-{}-x", self.request).into() };
        for (role, key, range) in [
            (Role::Prefill, prefill, 0..self.prompt),
            (Role::Decode, self.key(), self.prompt - 1..self.prompt + self.completion - 1),
        ] {
            let instance: Arc<str> = if role == Role::Prefill { "p0".into() } else { "d0".into() };
            let source = Source { role, instance, attempt: 0 };
            let mut say =
                |told| events.push(Event::Request(Request { key: key.clone(), at: 1_700_000_000_000_000, told }));
            let start = Start {
                source: source.clone(),
                prompt_tokens: Some(self.prompt),
                first_forward: Some(range.start),
                prompt_start: None,
                parent: None,
            };
            let own_name = (role == Role::Prefill).then(|| name.clone());
            say(Say::Start(Started { start, name: own_name, model: Some("m".into()) }));
            if role == Role::Decode {
                say(Say::Link(Link { source: source.clone(), prefill: name.clone() }));
            }
            let mut at = range.start;
            while at < range.end {
                let end = (at + self.piece).min(range.end);
                say(Say::Span(self.span(&source, at, end)));
                at = end;
            }
            let completion = if role == Role::Prefill { 1 } else { self.completion };
            say(Say::Finish(Finish {
                source: source.clone(),
                prompt_tokens: Some(self.prompt),
                completion_tokens: Some(completion),
                uniform_prompt: None,
            }));
        }
        events
    }

    fn span(&self, source: &Source, start: u32, end: u32) -> Span {
        let bytes: Vec<u8> = (start..end).flat_map(|position| row(self.request, position)).collect();
        let shape = RowShape::new(LAYERS, TOP_K).unwrap();
        Span {
            source: source.clone(),
            anchor: Anchor::Start(start),
            rows: Rows::new(bytes.into(), shape, IdWidth::U8).unwrap(),
            wire_type: WireType::U8,
            unknown: Vec::new(),
            generation: 0,
            block: None,
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

async fn start(data: &Path, options: Options) -> Collector {
    let data = data.to_owned();
    let starting = move || Collector::start(&data, options, Arc::new(Metrics::default())).unwrap();
    let mut collector = tokio::task::spawn_blocking(starting).await.unwrap();
    collector.replayed().await.unwrap();
    collector
}

async fn send(intake: &Intake, events: &[Event]) -> u64 {
    let batch = encode(events).unwrap();
    let told = decode(&batch).unwrap().events.into_iter().map(Told::from).collect();
    let header = Header { kind: Kind::Events, at: 1_700_000_000_000_000, message: None, run: None };
    intake.take(&header, &ipc::stream_of(&batch).unwrap(), told, None).await.unwrap()
}

/// Rows and status of everything stored.
fn stored(data: &Path, keys: &[RequestKey]) -> BTreeMap<RequestKey, (Status, usize, Vec<u8>)> {
    let tables = Tables::open(data).unwrap();
    let mut listed = Vec::new();
    tables
        .request_keys(|key| {
            listed.push(key);
            true
        })
        .unwrap();
    let mut expected = keys.to_vec();
    expected.sort();
    listed.sort();
    assert_eq!(listed, expected, "each request is stored once");
    let stored = tables.stored(keys).unwrap();
    stored
        .into_iter()
        .map(|(key, stored)| {
            let rows = tables.stored_rows(&stored.request).unwrap();
            let rows = rows.iter().flat_map(|segment| segment.rows.bytes().to_vec()).collect();
            (key, (stored.request.status, stored.findings.len(), rows))
        })
        .collect()
}

fn traffic() -> impl Strategy<Value = Vec<Traffic>> {
    let one = (1u32..20, 1u32..20, 1u32..9);
    prop::collection::vec(one, 1..6).prop_map(|all| {
        let all = all.into_iter().enumerate();
        all.map(|(request, (prompt, completion, piece))| Traffic { request, prompt, completion, piece }).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn what_goes_in_in_any_order_any_number_of_times_comes_out_once(
        traffic in traffic(),
        seed in any::<u64>(),
        restart_after in 0.0f64..1.0,
        little_memory in any::<bool>(),
    ) {
        // given
        let mut events: Vec<Event> = traffic.iter().flat_map(Traffic::events).collect();
        // Every third event comes twice, and all in an order that the seed decides.
        events.extend(events.clone().into_iter().step_by(3));
        let mut order: Vec<(u64, usize)> = (0..events.len())
            .map(|index| ((index as u64 + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7, index))
            .collect();
        order.sort_unstable();
        let events: Vec<Event> = order.into_iter().map(|(_, index)| events[index].clone()).collect();
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let mut options = options();
        // Once everything is told it closes at once; what is told after that is late and closes after a second.
        options.join_timeout = Duration::from_secs(600);
        if little_memory {
            options.open_bytes = 200;
        }
        let (before, after) = events.split_at((events.len() as f64 * restart_after) as usize);

        // when
        runtime().block_on(async {
            for part in [before, after] {
                let collector = start(data, options.clone()).await;
                for events in part.chunks(3) {
                    send(collector.intake(), events).await;
                }
                collector.stop(Duration::from_secs(20)).await.unwrap();
            }
            // What came late is open: another start and its time settle it.
            let collector = start(data, options.clone()).await;
            tokio::time::sleep(Duration::from_millis(1300)).await;
            collector.stop(Duration::from_secs(20)).await.unwrap();
        });

        // then
        let keys: Vec<RequestKey> = traffic.iter().map(Traffic::key).collect();
        let stored = stored(data, &keys);
        for traffic in &traffic {
            let (status, findings, rows) = &stored[&traffic.key()];
            prop_assert_eq!((*status, *findings), (Status::Whole, 0));
            prop_assert_eq!(rows, &traffic.expected());
        }
    }
}

#[test]
fn a_look_sees_everything_acknowledged_at_every_moment() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_owned();
    runtime().block_on(async {
        let mut options = options();
        // The names of merged files do not tell whose requests are in them.
        options.maintenance.compact = false;
        let collector = start(&data, options).await;
        let viewer = collector.viewer();
        let all: Vec<Traffic> =
            (0..40).map(|request| Traffic { request, prompt: 9, completion: 5, piece: 4 }).collect();

        // when
        let mut seen_committed = 0;
        for (sent, traffic) in all.iter().enumerate() {
            let position = send(collector.intake(), &traffic.events()).await;
            collector.intake().watermark().reached(position).await.unwrap();
            let view = viewer.view().await.unwrap();
            // then
            let committed = committed_at(&data, view.number());
            seen_committed = seen_committed.max(committed);
            let (closed, open) = view.requests();
            assert_eq!(committed + closed + open, sent + 1, "all is there, and nothing twice");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(seen_committed > 0, "commits happened meanwhile");
        collector.stop(Duration::from_secs(20)).await.unwrap();
        assert_eq!(committed_at(&data, u64::MAX), all.len());
    });
}

/// Requests in commits up to this number, by the names of the files.
fn committed_at(data: &Path, number: u64) -> usize {
    let mut requests = 0;
    for entry in std::fs::read_dir(data.join("requests")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some(of) = name.split('-').find_map(|part| part.parse::<u64>().ok()) else { continue };
        if of <= number && name.ends_with(".parquet") {
            let file = std::fs::File::open(&path).unwrap();
            let Ok(file) = parquet::file::serialized_reader::SerializedFileReader::new(file) else { continue };
            requests += parquet::file::reader::FileReader::metadata(&file).file_metadata().num_rows() as usize;
        }
    }
    requests
}

#[test]
fn a_request_for_which_nothing_comes_any_more_is_closed_as_it_is() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let traffic = Traffic { request: 1, prompt: 8, completion: 8, piece: 8 };
    let mut events = traffic.events();
    events.retain(|event| {
        !matches!(event, Event::Request(Request { told: Say::Finish(finish), .. }) if finish.source.role == Role::Decode)
    });

    // when
    runtime().block_on(async {
        let collector = start(folder.path(), options()).await;
        send(collector.intake(), &events).await;
        tokio::time::sleep(Duration::from_millis(900)).await;
        collector.stop(Duration::from_secs(20)).await.unwrap();
    });

    // then
    let stored = stored(folder.path(), &[traffic.key()]);
    assert_eq!(stored[&traffic.key()].2, traffic.expected());
}

#[test]
fn rows_that_contradict_stored_ones_are_reported_and_change_nothing() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let traffic = Traffic { request: 1, prompt: 8, completion: 8, piece: 8 };
    let other = Source { role: Role::Prefill, instance: "p0".into(), attempt: 0 };
    let wrong = Traffic { request: 2, ..traffic.clone() }.span(&other, 0, 8);
    let late = Event::Request(Request { key: traffic.key(), at: 1_700_000_000_000_000, told: Say::Span(wrong) });

    // when
    runtime().block_on(async {
        let collector = start(folder.path(), options()).await;
        send(collector.intake(), &traffic.events()).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        send(collector.intake(), &[late]).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        collector.stop(Duration::from_secs(20)).await.unwrap();
    });

    // then
    let stored = stored(folder.path(), &[traffic.key()]);
    let (status, findings, rows) = &stored[&traffic.key()];
    assert_eq!(rows, &traffic.expected());
    assert_eq!(*status, Status::Conflict);
    assert!(*findings > 0);
}

#[test]
fn a_block_that_is_named_after_a_restart_has_the_rows_that_were_stored() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let first = Traffic { request: 1, prompt: 16, completion: 3, piece: 16 };
    let second = Traffic { request: 2, ..first.clone() };
    let hash = BlockHash(vec![9; 32].into());
    let with_block = |event: Event| match event {
        Event::Request(Request { key, at, told: Say::Span(span) }) if span.source.role == Role::Prefill => {
            Event::Request(Request { key, at, told: Say::Span(Span { block: Some(hash.clone()), ..span }) })
        }
        other => other,
    };
    let by_hash = |event: Event| match event {
        Event::Request(Request { key, at, told: Say::Span(span) }) if span.source.role == Role::Prefill => {
            let reference =
                BlockReference { source: span.source, start: 0, hash: hash.clone(), generation: span.generation };
            Event::Request(Request { key, at, told: Say::Block(Block { reference, rows: 16 }) })
        }
        other => other,
    };

    // when
    runtime().block_on(async {
        let collector = start(folder.path(), options()).await;
        let events: Vec<Event> = first.events().into_iter().map(with_block).collect();
        send(collector.intake(), &events).await;
        collector.stop(Duration::from_secs(20)).await.unwrap();
        let collector = start(folder.path(), Options { join_timeout: Duration::from_secs(600), ..options() }).await;
        let events: Vec<Event> = second.events().into_iter().map(by_hash).collect();
        send(collector.intake(), &events).await;
        tokio::time::sleep(Duration::from_millis(2600)).await;
        collector.stop(Duration::from_secs(20)).await.unwrap();
    });

    // then
    let stored = stored(folder.path(), &[first.key(), second.key()]);
    // The same block of the same engine has the same rows, and the decode recomputed the last of them.
    let (_, _, rows) = &stored[&second.key()];
    assert_eq!(rows[..16 * ROW], first.expected()[..16 * ROW]);
    assert_eq!(rows[16 * ROW..], second.expected()[16 * ROW..]);
}
