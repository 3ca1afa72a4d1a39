/*!
A simulated fleet: prefill and decode instances that serve requests, and the capture agents in them.

A [`Fleet`] tells what the agents of its instances would tell, event by event, in simulated time: it never looks at a clock,
and the same [`Options`] give the same events. [`drive`] brings them to a collector through the real agent, one
[`Exporter`](gatescope_capture::Exporter) per instance. What should come out of it is known: each request that was
[`Answered`] can be written as the answer of a colocated engine, and each [`Injection`] names the check that must find it.

```
use gatescope_routing::{LayerSet, ModelShape, RowShape};
use gatescope_simulation::{Fleet, Options, Output};

let shape = ModelShape::new(RowShape::new(4, 2)?, 16, LayerSet::all(4))?;
let options = Options { requests: Some(3), ..Options::new(shape) };
let answered = Fleet::new(options)?.filter(|output| matches!(output, Ok(Output::Finished(_)))).count();
assert_eq!(answered, 3);
# Ok::<(), Box<dyn std::error::Error>>(())
```

# What is like real traffic, and what is not
Experts are as unequal as gates make them, by layer and topic; topics come and go. Prompts and completions are short, mostly;
many prompts begin with one of a few system prompts, which instances have in their prefix caches. Prompts come in chunks,
completions by blocks; a decode begins with the last position of the prompt. Some requests are preempted, aborted,
sampled several times, or known to prefill and decode by two names. Simulated time orders all of this; how long a real model
takes it does not say.
*/
#![forbid(unsafe_code)]

mod answer;
mod drive;
mod fault;
mod fleet;
mod inject;
mod options;
mod popularity;
mod request;
mod serving;
mod text;

pub use answer::{Answered, WriteError};
pub use drive::{Agent, Delivery, DriveError, Files, Progress, Summary, drive};
pub use fault::{Fault, UnknownFault};
pub use fleet::{Fleet, Output};
pub use inject::Injection;
pub use options::{Options, OptionsError};
