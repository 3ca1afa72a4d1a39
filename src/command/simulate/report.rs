//! What a person sees of a simulation, and what a program reads of it.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

use clap::ValueEnum;
use gatescope_simulation::{Progress, Summary};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

/// How often the bar is drawn.
const EVERY: Duration = Duration::from_millis(200);
const TEMPLATE: &str = "{pos} of {len} requests {bar:30} {msg}";
const TEMPLATE_WITHOUT_END: &str = "{spinner} {pos} requests, {msg}";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people
    Text,
    /// One JSON object
    Json,
}

/// A progress bar, where stderr is a terminal.
pub(super) struct Console {
    bar: Option<ProgressBar>,
    begun: Instant,
    drawn: Option<Instant>,
}

impl Console {
    pub(super) fn new(requests: Option<u64>, quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| bar(requests));
        Self { bar, begun: Instant::now(), drawn: None }
    }

    pub(super) fn progressed(&mut self, progress: Progress) {
        let Some(bar) = &self.bar else { return };
        let now = Instant::now();
        if self.drawn.is_some_and(|drawn| now - drawn < EVERY) {
            return;
        }
        self.drawn = Some(now);
        bar.set_position(progress.requests);
        let rate = progress.positions as f64 / self.begun.elapsed().as_secs_f64().max(1e-3);
        let state = match (progress.connected, progress.ending) {
            (false, _) => "; waiting for the collector",
            (true, true) => "; answering open requests",
            (true, false) => "",
        };
        bar.set_message(format!("{} positions, {rate:.0}/s{state}", progress.positions));
    }

    /// Takes the bar away.
    pub(super) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(requests: Option<u64>) -> ProgressBar {
    let (bar, template) = match requests {
        Some(requests) => (ProgressBar::new(requests), TEMPLATE),
        None => (ProgressBar::new_spinner(), TEMPLATE_WITHOUT_END),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Prints how it went, on stdout.
pub(super) fn print(summary: &Summary, seed: u64, format: Format, agents: bool) -> std::io::Result<()> {
    let text = match format {
        Format::Text => text(summary, seed, agents),
        Format::Json => format!("{}\n", object(summary, seed, agents)),
    };
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}

fn rate(summary: &Summary) -> f64 {
    summary.positions as f64 / summary.took.as_secs_f64().max(1e-9)
}

fn left(summary: &Summary) -> u64 {
    summary.agents.iter().map(|agent| agent.left_events).sum()
}

fn text(summary: &Summary, seed: u64, agents: bool) -> String {
    let sum = |of: fn(&gatescope_capture::Metrics) -> u64| summary.sum(of);
    let mut lines = vec![
        format!(
            "{} requests, {} sequences, {} rows to expect (seed {seed})",
            summary.requests, summary.sequences, summary.expected_rows
        ),
        format!(
            "{} positions in {:.1} s: {:.0} positions/s",
            summary.positions,
            summary.took.as_secs_f64(),
            rate(summary)
        ),
        format!(
            "events: {} taken, {} acknowledged, {} dropped, {} refused, {} not acknowledged",
            sum(|agent| agent.captured_events),
            sum(|agent| agent.acked_events),
            sum(|agent| agent.dropped_events),
            sum(|agent| agent.refused_events),
            left(summary),
        ),
    ];
    if summary.faults > 0 {
        lines.push(format!("faults: {} put in", summary.faults));
    }
    for agent in summary.agents.iter().filter(|_| agents) {
        let metrics = &agent.metrics;
        lines.push(format!(
            "{}: {} positions, {} messages, {} sent again, {:.1} MiB, {} connections",
            agent.instance,
            metrics.captured_positions,
            metrics.sent_messages,
            metrics.resent_messages,
            metrics.sent_bytes as f64 / f64::from(1 << 20),
            metrics.connects,
        ));
    }
    lines.join("\n") + "\n"
}

fn object(summary: &Summary, seed: u64, agents: bool) -> serde_json::Value {
    let mut object = json!({
        "seed": seed,
        "requests": summary.requests,
        "sequences": summary.sequences,
        "expected_rows": summary.expected_rows,
        "positions": summary.positions,
        "seconds": summary.took.as_secs_f64(),
        "positions_per_second": rate(summary),
        "faults": summary.faults,
        "events": {
            "taken": summary.sum(|agent| agent.captured_events),
            "acknowledged": summary.sum(|agent| agent.acked_events),
            "dropped": summary.sum(|agent| agent.dropped_events),
            "refused": summary.sum(|agent| agent.refused_events),
            "not_acknowledged": left(summary),
        },
    });
    if agents {
        object["agents"] = summary
            .agents
            .iter()
            .map(|agent| {
                let metrics = &agent.metrics;
                json!({
                    "instance": &*agent.instance,
                    "events": metrics.captured_events,
                    "positions": metrics.captured_positions,
                    "messages": metrics.sent_messages,
                    "messages_sent_again": metrics.resent_messages,
                    "bytes": metrics.sent_bytes,
                    "acknowledged": metrics.acked_events,
                    "dropped": metrics.dropped_events,
                    "refused": metrics.refused_events,
                    "gap_records": metrics.gap_records,
                    "connections": metrics.connects,
                })
            })
            .collect();
    }
    object
}
