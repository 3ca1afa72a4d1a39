//! Events of every kind, at random and by hand.

use std::sync::Arc;

use gatescope_routing::{
    Anchor, Finish, IdWidth, KvLink, LayerSet, ModelShape, RequestKey, Role, RowShape, Rows, Source, Span, Start,
    WireType,
    join::{BlockReference, Lost},
    span::{BlockHash, Unknown},
};
use gatescope_wire::{Block, Event, Link, ModelSeen, Request, Started, Told};
use proptest::{collection::vec, option, prelude::*};

fn name() -> impl Strategy<Value = Arc<str>> {
    "[a-z0-9é-]{1,12}".prop_map(Arc::from)
}

fn source() -> impl Strategy<Value = Source> {
    (0usize..4, name(), 0u32..5).prop_map(|(role, instance, attempt)| Source {
        role: Role::ALL[role],
        instance,
        attempt,
    })
}

fn hash() -> impl Strategy<Value = BlockHash> {
    vec(any::<u8>(), 1..40).prop_map(|hash| BlockHash(hash.into()))
}

fn kv_link() -> impl Strategy<Value = KvLink> {
    (name(), name()).prop_map(|(engine_id, request_id)| KvLink { engine_id, request_id })
}

fn span() -> impl Strategy<Value = Span> {
    let shape = (1u64..5, 1u64..4, 1usize..9, any::<bool>());
    shape.prop_flat_map(|(layers, top_k, count, wide)| {
        let shape = RowShape::new(layers, top_k).unwrap();
        let width = if wide { IdWidth::U16 } else { IdWidth::U8 };
        let anchor = prop_oneof![
            (0u32..100_000).prop_map(Anchor::Start),
            (1u32..100).prop_map(|completion_tokens| Anchor::End { completion_tokens }),
        ];
        let bytes = vec(any::<u8>(), count * shape.row_bytes(width));
        // Every second row at most, so that the ranges are apart.
        let unknown = vec(option::of(0..layers as u16), count.div_ceil(2));
        (source(), anchor, bytes, any::<bool>(), unknown, 0u32..9, option::of(hash())).prop_map(
            move |(source, anchor, bytes, as_i32, unknown, generation, block)| Span {
                source,
                anchor,
                rows: Rows::new(bytes.into(), shape, width).unwrap(),
                wire_type: if as_i32 { WireType::I32 } else { WireType::of(width) },
                unknown: unknown
                    .into_iter()
                    .enumerate()
                    .filter_map(|(i, layer)| Some(Unknown { rows: i as u32 * 2..i as u32 * 2 + 1, layer: layer? }))
                    .collect(),
                generation,
                block,
            },
        )
    })
}

fn told() -> impl Strategy<Value = Told> {
    let number = || option::of(0u32..100_000);
    let start = (source(), number(), number(), number(), option::of(name()));
    prop_oneof![
        4 => span().prop_map(Told::Span),
        1 => (source(), 0u32..9999, hash(), 0u32..9, 1u32..65).prop_map(|(source, start, hash, generation, rows)| {
            Told::Block(Block { reference: BlockReference { source, start, hash, generation }, rows })
        }),
        1 => (start, option::of(kv_link()), option::of(name())).prop_map(
            |((source, prompt_tokens, first_forward, prompt_start, parent), name, model)| {
                let start = Start { source, prompt_tokens, first_forward, prompt_start, parent };
                Told::Start(Started { start, name, model })
            }
        ),
        1 => (source(), number(), number(), any::<Option<bool>>()).prop_map(
            |(source, prompt_tokens, completion_tokens, uniform_prompt)| {
                Told::Finish(Finish { source, prompt_tokens, completion_tokens, uniform_prompt })
            }
        ),
        1 => source().prop_map(Told::Preempt),
        1 => (source(), kv_link()).prop_map(|(source, prefill)| Told::Link(Link { source, prefill })),
        1 => (source(), 0u32..9999, 1u32..9999).prop_map(|(source, start, positions)| {
            Told::Lost(Lost { source, start, positions })
        }),
    ]
}

fn model() -> impl Strategy<Value = ModelSeen> {
    (name(), name(), 0i64..1 << 50, name(), vec(any::<(bool, bool)>(), 1..70), 2u64..400).prop_map(
        |(run, instance, at, model, layers, experts)| {
            let set = |of: fn(&(bool, bool)) -> bool| -> LayerSet {
                layers.iter().enumerate().filter(|(_, layer)| of(layer)).map(|(i, _)| i).collect()
            };
            let shape = ModelShape::new(RowShape::new(layers.len() as u64, 2).unwrap(), experts, set(|layer| layer.0))
                .unwrap()
                .with_repeating_layers(set(|layer| layer.1));
            ModelSeen { run, instance, at, model, shape }
        },
    )
}

/// Some event.
pub(crate) fn event() -> impl Strategy<Value = Event> {
    let request = (name(), name(), 0u32..4, 0i64..1 << 50, told()).prop_map(|(run, request_id, choice, at, told)| {
        Event::Request(Request { key: RequestKey { run, request_id, choice }, at, told })
    });
    prop_oneof![15 => request, 1 => model().prop_map(Event::Model)]
}

/// Everything that an event says, ids included.
pub(crate) fn everything(event: &Event) -> String {
    match event {
        Event::Request(Request { told: Told::Span(span), .. }) => format!("{event:?} {:?}", span.rows.bytes()),
        _ => format!("{event:?}"),
    }
}

/// A span of these many rows at this position.
pub(crate) fn span_at(start: u32, rows: usize, shape: RowShape) -> Span {
    let bytes: Vec<u8> = (0..rows * shape.ids()).map(|i| (i % 251) as u8).collect();
    Span {
        source: Source { role: Role::Decode, instance: "d0".into(), attempt: 0 },
        anchor: Anchor::Start(start),
        rows: Rows::new(bytes.into(), shape, IdWidth::U8).unwrap(),
        wire_type: WireType::U8,
        unknown: Vec::new(),
        generation: 0,
        block: None,
    }
}

/// An event of a request named `a`.
pub(crate) fn of_request(told: Told) -> Event {
    let key = RequestKey { run: "default".into(), request_id: "a".into(), choice: 0 };
    Event::Request(Request { key, at: 1_700_000_000_000_000, told })
}
