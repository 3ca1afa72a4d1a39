//! Bringing what a fleet tells to a collector, through an agent for each instance.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use gatescope_capture::{Exporter, Metrics, Sent, StartError};
use gatescope_routing::rows::RowsError;
use gatescope_wire::Event;
use serde::Serialize;

use crate::{Fleet, Injection, Output, WriteError};

/// How long to look away where there is nothing to do.
const PAUSE: Duration = Duration::from_micros(500);
/// Events after which the clock is looked at.
const EVENTS_AT_ONCE: u32 = 16;
/// Bytes of events that may wait in an agent's queue while the fleet waits for the collector.
const QUEUED_BYTES: u64 = 16 << 20;

/// Where and how fast.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The collector: `grpc://HOST:PORT`.
    pub collector: String,
    /// Bearer token, where the collector wants one.
    pub token: Option<String>,
    /// Positions a second, over all instances; 0 for as fast as the collector takes them. A fleet with a rate does not
    /// wait for its collector, as no engine does: agents drop what they have no room for.
    pub rate: u64,
    /// No request begins after this time.
    pub duration: Option<Duration>,
    /// Longest wait for acknowledgements at the end.
    pub drain: Duration,
}

/// Where else to tell what happens; each is flushed at the end.
#[derive(Default)]
pub struct Files<'a> {
    /// The rows as they should be, as recorded responses of a colocated engine.
    pub truth: Option<&'a mut dyn Write>,
    /// What the instances answered, as recorded responses.
    pub record: Option<&'a mut dyn Write>,
    /// The faults put in, as JSON Lines.
    pub faults: Option<&'a mut dyn Write>,
}

/// How far it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// Requests answered.
    pub requests: u64,
    /// Positions told.
    pub positions: u64,
    /// Whether every agent has its collector.
    pub connected: bool,
    /// Whether no request begins any more.
    pub ending: bool,
}

/// How it went.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Requests answered.
    pub requests: u64,
    /// Sequences of them.
    pub sequences: u64,
    /// Positions that should have a row.
    pub expected_rows: u64,
    /// Positions told, some of them twice.
    pub positions: u64,
    /// From the first event to the last acknowledgement.
    pub took: Duration,
    /// Faults put in.
    pub faults: u64,
    /// Instances with what their agents counted, and the events whose fate is not known.
    pub agents: Vec<Agent>,
}

/// How an agent ended.
#[derive(Debug, Clone)]
pub struct Agent {
    /// Its instance.
    pub instance: Arc<str>,
    /// What it counted.
    pub metrics: Metrics,
    /// Events sent and never acknowledged.
    pub left_events: u64,
}

impl Summary {
    /// Whether everything was told and acknowledged.
    pub fn is_complete(&self) -> bool {
        self.agents.iter().all(|agent| {
            agent.left_events == 0 && agent.metrics.dropped_events == 0 && agent.metrics.refused_events == 0
        })
    }

    /// A sum over all agents.
    pub fn sum(&self, of: impl Fn(&Metrics) -> u64) -> u64 {
        self.agents.iter().map(|agent| of(&agent.metrics)).sum()
    }
}

/// Why a simulation ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// An agent could not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The truth, the answers or the faults could not be written.
    #[error("writing {file}: {error}")]
    Write {
        /// Which of them.
        file: &'static str,
        /// Why.
        error: WriteError,
    },
    /// Rows that are none: a fault of the simulation's.
    #[error(transparent)]
    Rows(#[from] RowsError),
}

#[derive(Serialize)]
struct FaultLine<'a> {
    request_id: &'a str,
    choice: u32,
    fault: &'static str,
    check: &'static str,
    also: Vec<&'static str>,
    instance: &'a str,
    position: Option<u32>,
    layer: Option<u16>,
}

impl Injection {
    /// Writes the fault with the check that must find it, as a line of JSON.
    ///
    /// # Errors
    /// Where the writer fails.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let line = FaultLine {
            request_id: &self.request_id,
            choice: 0,
            fault: self.fault.name(),
            check: self.fault.check().code(),
            also: self.fault.also().iter().map(|check| check.code()).collect(),
            instance: &self.instance,
            position: self.position,
            layer: self.layer,
        };
        serde_json::to_writer(&mut *to, &line)?;
        to.write_all(b"\n")
    }
}

/// Runs a fleet until its last request is answered, `stop` is set or its time is over; then ends the requests that are
/// open, and waits for the collector to acknowledge everything.
///
/// # Errors
/// Where an agent cannot start or a file cannot be written. A collector that is away is no such case.
pub fn drive(
    fleet: &mut Fleet,
    delivery: &Delivery,
    files: &mut Files<'_>,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Summary, DriveError> {
    let mut driver = Driver::start(fleet, delivery)?;
    while let Some(output) = fleet.next() {
        match output? {
            Output::Event { instance, event, positions, prefix } => {
                driver.pace(fleet, instance, stop, progress);
                driver.send(fleet, instance, event, positions, prefix);
            }
            Output::Finished(answered) => {
                driver.summary.requests += 1;
                driver.summary.sequences += answered.choices() as u64;
                driver.summary.expected_rows += answered.expected_rows();
                if let Some(mut truth) = files.truth.as_deref_mut() {
                    answered.write_truth(&mut truth).map_err(|error| DriveError::Write { file: "truth", error })?;
                }
                if let Some(mut record) = files.record.as_deref_mut() {
                    answered
                        .write_answers(&mut record)
                        .map_err(|error| DriveError::Write { file: "answers", error })?;
                }
            }
            Output::Injected(injection) => {
                driver.summary.faults += 1;
                if let Some(mut faults) = files.faults.as_deref_mut() {
                    let written = injection.write(&mut faults);
                    written.map_err(|error| DriveError::Write { file: "faults", error: error.into() })?;
                }
            }
        }
    }
    let named = [
        ("truth", files.truth.as_deref_mut()),
        ("answers", files.record.as_deref_mut()),
        ("faults", files.faults.as_deref_mut()),
    ];
    for (file, writer) in named {
        writer.map_or(Ok(()), Write::flush).map_err(|error| DriveError::Write { file, error: error.into() })?;
    }
    progress(driver.progress());
    Ok(driver.end())
}

struct Driver<'a> {
    delivery: &'a Delivery,
    exporters: Vec<Exporter>,
    begun: Instant,
    /// Set once no request begins any more: when to wait for nothing.
    ends_by: Option<Instant>,
    /// Events since the clock was looked at.
    unlooked: u32,
    summary: Summary,
}

impl<'a> Driver<'a> {
    fn start(fleet: &Fleet, delivery: &'a Delivery) -> Result<Self, StartError> {
        let seed = fleet.options().seed;
        let exporters = fleet.instances().iter().map(|instance| {
            let agent = format!("simulate-{seed}/{instance}");
            let mut options = gatescope_capture::Options::new(delivery.collector.as_str(), agent);
            options.token.clone_from(&delivery.token);
            Exporter::start(options)
        });
        let agents = fleet.instances().iter();
        let agents =
            agents.map(|instance| Agent { instance: instance.clone(), metrics: Metrics::default(), left_events: 0 });
        Ok(Self {
            delivery,
            exporters: exporters.collect::<Result<_, _>>()?,
            begun: Instant::now(),
            ends_by: None,
            unlooked: 0,
            summary: Summary {
                requests: 0,
                sequences: 0,
                expected_rows: 0,
                positions: 0,
                took: Duration::ZERO,
                faults: 0,
                agents: agents.collect(),
            },
        })
    }

    /// Waits until the next event may be told, and looks whether it is time to end.
    fn pace(&mut self, fleet: &mut Fleet, instance: usize, stop: &AtomicBool, progress: &mut dyn FnMut(Progress)) {
        self.unlooked += 1;
        if self.unlooked < EVENTS_AT_ONCE {
            return;
        }
        self.unlooked = 0;
        progress(self.progress());
        loop {
            let over = self.delivery.duration.is_some_and(|duration| self.begun.elapsed() >= duration);
            if self.ends_by.is_none() && (over || stop.load(Ordering::Relaxed)) {
                fleet.stop();
                self.ends_by = Some(Instant::now() + self.delivery.drain);
            }
            let Some(wait) = self.wait(instance) else { return };
            thread::sleep(wait);
            progress(self.progress());
        }
    }

    /// How long to wait before more is told.
    fn wait(&self, instance: usize) -> Option<Duration> {
        if self.ends_by.is_some_and(|ends_by| Instant::now() >= ends_by) {
            return None;
        }
        match self.delivery.rate {
            0 => {
                let queued = self.exporters[instance].metrics().queue_bytes;
                (queued > QUEUED_BYTES).then_some(PAUSE)
            }
            // What is open at the end is told at once.
            _ if self.ends_by.is_some() => None,
            rate => {
                let due = Duration::from_secs_f64(self.summary.positions as f64 / rate as f64);
                let wait = due.checked_sub(self.begun.elapsed())?;
                // Never so long that an end would not be noticed.
                (wait >= Duration::from_millis(1)).then(|| wait.min(Duration::from_millis(100)))
            }
        }
    }

    fn send(&mut self, fleet: &mut Fleet, instance: usize, event: Event, positions: u32, prefix: Option<usize>) {
        self.summary.positions += u64::from(positions);
        // A copy shares the rows; only what begins with a shared prefix is asked for again.
        let copy = prefix.is_some().then(|| event.clone());
        if self.exporters[instance].send(stamped(event)) == Sent::Dropped
            && let Some(event) = copy
        {
            fleet.dropped(instance, &event, prefix);
        }
    }

    fn progress(&self) -> Progress {
        Progress {
            requests: self.summary.requests,
            positions: self.summary.positions,
            connected: self.exporters.iter().all(|exporter| exporter.metrics().connected),
            ending: self.ends_by.is_some(),
        }
    }

    fn end(mut self) -> Summary {
        let deadline = Instant::now() + self.delivery.drain;
        // All of them flush before the first one is stopped.
        for exporter in &self.exporters {
            let _ = exporter.flush(deadline.saturating_duration_since(Instant::now()));
        }
        self.summary.took = self.begun.elapsed();
        for (exporter, agent) in self.exporters.iter().zip(&mut self.summary.agents) {
            let stopped = exporter.stop(deadline.saturating_duration_since(Instant::now()));
            (agent.metrics, agent.left_events) = (stopped.metrics, stopped.left_events);
        }
        self.summary
    }
}

/// The event, told now.
fn stamped(event: Event) -> Event {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros() as i64);
    match event {
        Event::Request(request) => Event::Request(gatescope_wire::Request { at, ..request }),
        Event::Model(model) => Event::Model(gatescope_wire::ModelSeen { at, ..model }),
    }
}
