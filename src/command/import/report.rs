//! The summary at the end of an import, on stdout.

use std::io::{self, Write};

use clap::ValueEnum;
use gatescope_collector::import::Summary;
use serde_json::json;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people
    Text,
    /// One JSON object
    Json,
}

/// Prints the summary. `quiet` leaves out the text for people, not the object for machines.
pub(super) fn print(summary: &Summary, format: Format, quiet: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let printed = match format {
        Format::Json => writeln!(out, "{}", as_json(summary)),
        Format::Text if quiet => Ok(()),
        Format::Text => out.write_all(as_text(summary).as_bytes()),
    };
    match printed.and_then(|()| out.flush()) {
        // Who closed the pipe does not want the rest.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn as_json(summary: &Summary) -> serde_json::Value {
    let findings: Vec<_> = summary
        .findings
        .iter()
        .map(|(check, count)| json!({"check": check.code(), "name": check.name(), "count": count}))
        .collect();
    json!({
        "files": summary.files,
        "lines": summary.lines,
        "refused": summary.refused,
        "requests": summary.requests,
        "whole": summary.whole,
        "incomplete": summary.incomplete,
        "conflict": summary.conflict,
        "duplicates": summary.duplicates,
        "completed": summary.completed,
        "findings": findings,
        "rows": summary.rows,
        "bytes": summary.bytes,
        "seconds": summary.elapsed.as_secs_f64(),
        "stopped": summary.stopped.map(|stop| stop.name()),
    })
}

fn as_text(summary: &Summary) -> String {
    let seconds = summary.elapsed.as_secs_f64();
    let mut text = format!(
        "read      {} in {} of {}, {} refused\n\
         stored    {}: {} whole, {} incomplete, {} in conflict\n\
         known     {} stored before, {} completed\n\
         rows      {} in {seconds:.1} s\n",
        bytes(summary.bytes),
        count(summary.lines, "line"),
        count(summary.files, "file"),
        summary.refused,
        count(summary.requests, "request"),
        summary.whole,
        summary.incomplete,
        summary.conflict,
        summary.duplicates,
        summary.completed,
        summary.rows,
    );
    for (check, found) in &summary.findings {
        text.push_str(&format!("{}     {}: {found}\n", check.code(), check.name()));
    }
    text
}

/// What to know of an import that was interrupted.
pub(super) fn interrupted(summary: &Summary) -> String {
    match summary.requests {
        0 => "interrupted; nothing was stored".to_owned(),
        stored => {
            let (requests, is) = (count(stored, "request"), if stored == 1 { "is" } else { "are" });
            format!("interrupted; {requests} {is} stored, importing the same again adds the rest")
        }
    }
}

pub(super) fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

fn bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}
