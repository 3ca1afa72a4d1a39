/*!
The capture agent: it runs inside an inference worker and brings rows to a collector without holding the engine up.

[`Agent`] is the way in: engine steps and what the engine does with requests. [`Exporter`] is the way out: [`Exporter::send`] never waits. What it takes is sent in order, again after every broken
connection, until the collector has said that it is durable; what it cannot take is told as lost, position by position.

```no_run
use std::time::Duration;

use gatescope_capture::{Exporter, Options};
# fn events() -> Vec<gatescope_wire::Event> { Vec::new() }

let exporter = Exporter::start(Options::new("grpc://127.0.0.1:7879", "host-3/gpu-0"))?;
for event in events() {
    exporter.send(event);
}
let stopped = exporter.stop(Duration::from_secs(5));
assert_eq!(stopped.left_events, 0);
# Ok::<(), gatescope_capture::StartError>(())
```
*/
#![deny(unsafe_code)]

mod agent;
pub mod device;
mod export;

pub use agent::{Agent, AgentMetrics, AgentOptions, Begun, Figure, STEP_MICROS, SpoolOptions, StepPart, StepRows};
pub use export::{Exporter, Metrics, NotFlushed, Options, Sent, StartError, Stopped};
