//! What version 1 wrote stays readable.

use std::{fs, path::PathBuf};

use gatescope_routing::{
    Anchor, Finish, IdWidth, KvLink, ModelShape, Role, RowShape, Rows, Source, Span, Start, WireType,
    join::{BlockReference, Lost},
    span::{BlockHash, Unknown},
};
use gatescope_wire::{Block, Event, Link, ModelSeen, Started, Told, decode, encode, ipc};

use crate::events::{everything, of_request};

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/wire/version-1.arrows")
}

/// One event of every kind, every column in use but the reserved one.
fn events() -> Vec<Event> {
    let source = |role| Source { role, instance: "engine-0".into(), attempt: 2 };
    let link = KvLink { engine_id: "8f2e".into(), request_id: "a-85eeda8a".into() };
    let hash = BlockHash([9u8, 8, 7, 6][..].into());
    let rows = |width: IdWidth| {
        let bytes = (0..4 * width.bytes()).map(|i| i as u8).collect::<Vec<u8>>();
        Rows::new(bytes.into(), RowShape::new(2, 1).unwrap(), width).unwrap()
    };
    let span = |width, anchor, block| Span {
        source: source(Role::Decode),
        anchor,
        rows: rows(width),
        wire_type: WireType::I32,
        unknown: vec![Unknown { rows: 1..2, layer: 1 }],
        generation: 3,
        block,
    };
    let start = Start {
        source: source(Role::Prefill),
        prompt_tokens: Some(33),
        first_forward: Some(16),
        prompt_start: Some(8),
        parent: Some("earlier".into()),
    };
    let reference = BlockReference { source: source(Role::Colocated), start: 16, hash: hash.clone(), generation: 3 };
    let shape = ModelShape::new(RowShape::new(10, 4).unwrap(), 300, (1..10).collect())
        .unwrap()
        .with_repeating_layers([1].into_iter().collect());
    let finish = Finish {
        source: source(Role::Trainer),
        prompt_tokens: Some(33),
        completion_tokens: Some(5),
        uniform_prompt: Some(false),
    };
    vec![
        of_request(Told::Start(Started { start, name: Some(link.clone()), model: Some("qwen".into()) })),
        of_request(Told::Span(span(IdWidth::U8, Anchor::Start(32), Some(hash)))),
        of_request(Told::Span(span(IdWidth::U16, Anchor::End { completion_tokens: 5 }, None))),
        of_request(Told::Block(Block { reference, rows: 16 })),
        of_request(Told::Link(Link { source: source(Role::Decode), prefill: link })),
        of_request(Told::Preempt(source(Role::Decode))),
        of_request(Told::Lost(Lost { source: source(Role::Decode), start: 40, positions: 7 })),
        of_request(Told::Finish(finish)),
        Event::Model(ModelSeen {
            run: "default".into(),
            instance: "engine-0".into(),
            at: 1_700_000_000_000_001,
            model: "qwen".into(),
            shape,
        }),
    ]
}

/// Not run with the others: writes the file anew, for a change before the version's first release.
#[test]
#[ignore]
fn write_version_1() {
    let batch = encode(&events()).unwrap();
    let mut writer =
        arrow::ipc::writer::StreamWriter::try_new(fs::File::create(file()).unwrap(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
}

#[test]
fn a_file_of_version_1_reads_as_it_did() {
    let stream = fs::read(file()).unwrap();

    let batches: Vec<_> = ipc::read_stream(stream.into()).unwrap().collect::<Result<_, _>>().unwrap();

    let [batch] = &batches[..] else { panic!("{} batches", batches.len()) };
    let decoded = decode(batch).unwrap();
    assert_eq!((&decoded.refused[..], &decoded.skipped[..]), (&[][..], &[][..]));
    let came: Vec<String> = decoded.events.iter().map(everything).collect();
    let expected: Vec<String> = events().iter().map(everything).collect();
    assert_eq!(came, expected);
}

#[test]
fn version_1_is_written_as_it_was() {
    let stream = fs::read(file()).unwrap();
    let was = arrow::ipc::reader::StreamReader::try_new(&stream[..], None).unwrap().next().unwrap().unwrap();

    assert_eq!(encode(&events()).unwrap(), was);
}
