/*!
A reverse proxy before an engine that nothing can be installed into. It passes every byte through unchanged, streams included, and tells a
collector what the answers say about routing.

[`Tap::start`] binds and begins to deliver; [`Tap::serve`] proxies until it is told to stop. What passes is copied, within a budget
of bytes, while it passes; a thread of its own looks at the copies, makes recorded responses of those that have routing, and
posts them (`POST /api/v1/responses`). Nothing of that is waited for by what passes: where the budget or the queue is full, or the
collector stays away for long, an answer is not told, and counted ([`Metrics`]).

A client that reads slowly slows the engine's connection alone, as without the tap; one that goes away closes it; an engine that dies
in the middle of an answer breaks the client's off at the same byte.
*/
#![forbid(unsafe_code)]

mod answer;
mod budget;
mod deliver;
mod events;
mod metrics;
mod options;
mod proxy;
mod tee;

pub use metrics::Metrics;
pub use options::{Options, OptionsError, Role};
pub use proxy::{StartError, Tap};
