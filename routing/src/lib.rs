/*!
The domain of gatescope: what every gate of a mixture-of-experts model chose, and whether the rows that say so are whole
and in the right place.

A **row** is the expert ids that all layers chose for one position, `[layers, top_k]`. Engines send rows in **spans**
(`[positions, layers, top_k]`, [`Span`]); a prefill instance sends those of the prompt, a decode instance those from the
first position that it computed itself. A [`RequestJoin`] takes the spans of one request, in any order and any number of
times, places them by position, accepts one row for each and compares every other with it. What comes out is a [`Joined`]:
the routing of the whole request, and what is wrong with it ([`Finding`]).

The crate is pure: it is given bytes, positions and times, and knows no file, socket, clock or thread.

# Joining two answers by hand

A prompt of three tokens and two sampled ones make a request of four rows: the last token is never fed back. Prefill
computed positions 0 to 2, decode started at 2, the last token of the prompt, so both have a row for position 2.

```
use std::sync::Arc;

use gatescope_routing::{
    Anchor, Context, Finish, IdWidth, Part, RequestJoin, Role, Rows, RowShape, Rules, Source, Span, Status, WireType,
};

// Two layers, two experts a token in each: four ids make a row.
let shape = RowShape::new(2, 2)?;
let answer = |role, sampled, ids: &'static [u8]| {
    let source = Source { role, instance: Arc::from("engine-0"), attempt: 0 };
    let span = Span {
        source: source.clone(),
        // The answer does not say where its rows begin: they are placed from the end.
        anchor: Anchor::End { completion_tokens: sampled },
        rows: Rows::new(ids.into(), shape, IdWidth::U8)?,
        wire_type: WireType::U8,
        unknown: Vec::new(),
        generation: 0,
        block: None,
    };
    let finish =
        Finish { source, prompt_tokens: Some(3), completion_tokens: Some(sampled), uniform_prompt: None };
    Ok::<_, gatescope_routing::rows::RowsError>([Part::Span(span), Part::Finish(finish)])
};
let mut join = RequestJoin::default();
for part in answer(Role::Prefill, 1, &[5, 1, 0, 7, 2, 6, 7, 3, 4, 1, 0, 2])? {
    join.apply(part);
}
assert!(!join.is_whole(), "a prefill alone never ends a request");
for part in answer(Role::Decode, 2, &[4, 1, 0, 2, 6, 5, 3, 1])? {
    join.apply(part);
}
assert!(join.is_whole());

let joined = join.close(&Rules::default(), &Context::default());
assert_eq!(joined.status, Status::Whole);
assert!(joined.findings.is_empty());
assert_eq!((joined.first_forward, joined.overlap_rows, joined.mismatched_rows), (Some(2), 1, 0));
let routing = joined.routing().expect("no gap");
assert_eq!(routing.experts(3, 0), [6, 5], "position 3, layer 0, in the engine's slot order");
# Ok::<(), Box<dyn std::error::Error>>(())
```

# Rooms

- [`shape`], [`rows`], [`span`]: the words. A value that exists is valid: constructors refuse what cannot be.
- [`engine`]: one codec per engine payload, both ways. [`record`]: recorded responses, one JSON object a line.
- [`join`]: linking, placing, accepting, comparing, closing; [`join::Join`] holds many open requests.
- [`check`], [`finding`]: what can be wrong, under stable codes.
- [`model_config`]: what a model's `config.json` says of its layers.
*/
#![forbid(unsafe_code)]

pub mod balance;
pub mod check;
pub mod engine;
pub mod finding;
pub mod join;
pub mod model_config;
pub mod record;
pub mod rows;
pub mod shape;
pub mod span;

pub use finding::{Check, Finding, Severity};
pub use join::{Context, Finish, Join, Joined, Part, Policy, RequestJoin, Rules, Segment, Start, Status};
pub use rows::Rows;
pub use shape::{IdWidth, LayerSet, ModelShape, RowShape};
pub use span::{Anchor, KvLink, RequestKey, Role, Source, Span, WireType};
