//! A verdict written as lines for people or as one JSON document.

use std::{
    fmt,
    io::{self, BufWriter, Write},
};

use serde::Serialize;

use super::{
    Comparing, Comparison, FindingVerdict, RequestDifference, RequestVerdict, Scope, SideVerdict, Summary, Verdicts,
};
use gatescope_routing::Check;

use super::rows::{check_request, check_run};
use crate::{catalog::Catalog, error::QueryError};

/// How a verdict is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A line per request, then a summary.
    Text,
    /// `{"requests": [...], "summary": {...}, "comparison": {"requests": [...], "summary": {...}}}`.
    Json,
}

/// What a verdict came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every request is whole and without a finding, and the same in both runs.
    Clean,
    /// Anything else.
    Findings,
}

/// A verdict to be written.
#[derive(Debug, Clone)]
pub struct Report {
    /// Which requests.
    pub scope: Scope,
    /// The run to compare with, row by row.
    pub against: Option<String>,
    /// How.
    pub style: Style,
}

impl Report {
    /// Writes the verdict on a catalog; holds one request at a time.
    ///
    /// # Errors
    /// If the tables cannot be read, a run or a request is not there, or `output` fails.
    pub async fn write(&self, catalog: &Catalog, output: impl Write) -> Result<Outcome, QueryError> {
        let mut output = BufWriter::new(output);
        if let Some(run) = &self.scope.run {
            check_run(catalog, run).await?;
        }
        check_request(catalog, &self.scope).await?;
        let mut verdicts = Verdicts::of(catalog, &self.scope).await?;
        let mut comparing = match &self.against {
            Some(against) => Some(Comparing::of(catalog, &self.scope, against).await?),
            None => None,
        };
        let mut clean = true;
        let mut requests = List::open(self.style, &mut output, "requests")?;
        while let Some(request) = verdicts.next().await? {
            clean = false;
            requests.item(&mut output, &request, |f| text_of_request(&request, f))?;
        }
        requests.close(&mut output)?;
        section(self.style, &mut output, "summary", verdicts.summary(), |f| text_of_summary(verdicts.summary(), f))?;
        if let Some(comparing) = &mut comparing {
            let comparison = comparing.summary();
            match self.style {
                Style::Text => writeln!(output, "\nrun {} against run {}", comparison.run, comparison.against)?,
                Style::Json => write!(output, ",\"comparison\":")?,
            }
            let mut differences = List::open(self.style, &mut output, "requests")?;
            while let Some(request) = comparing.next().await? {
                differences.item(&mut output, &request, |f| text_of_difference(&request, &comparison, f))?;
            }
            differences.close(&mut output)?;
            let summary = comparing.summary();
            clean &= summary.is_identical();
            section(self.style, &mut output, "summary", &summary, |f| text_of_comparison(&summary, f))?;
            if self.style == Style::Json {
                write!(output, "}}")?;
            }
        }
        if self.style == Style::Json {
            writeln!(output, "}}")?;
        }
        output.flush()?;
        Ok(if clean { Outcome::Clean } else { Outcome::Findings })
    }
}

/// Items written as they come: the first member of a JSON object, or lines.
struct List {
    style: Style,
    items: u64,
}

impl List {
    fn open(style: Style, output: &mut impl Write, name: &str) -> io::Result<Self> {
        if style == Style::Json {
            write!(output, "{{\"{name}\":[")?;
        }
        Ok(Self { style, items: 0 })
    }

    fn item(
        &mut self,
        output: &mut impl Write,
        item: &impl Serialize,
        text: impl Fn(&mut fmt::Formatter) -> fmt::Result,
    ) -> Result<(), QueryError> {
        match self.style {
            Style::Text => writeln!(output, "{}", fmt::from_fn(text))?,
            Style::Json => {
                write!(output, "{}", if self.items == 0 { "\n" } else { ",\n" })?;
                serde_json::to_writer(output, item).map_err(io::Error::from)?;
            }
        }
        self.items += 1;
        Ok(())
    }

    fn close(self, output: &mut impl Write) -> io::Result<()> {
        match self.style {
            Style::Json if self.items > 0 => write!(output, "\n]"),
            Style::Json => write!(output, "]"),
            Style::Text if self.items > 0 => writeln!(output),
            Style::Text => Ok(()),
        }
    }
}

fn section(
    style: Style,
    output: &mut impl Write,
    name: &str,
    value: &impl Serialize,
    text: impl Fn(&mut fmt::Formatter) -> fmt::Result,
) -> io::Result<()> {
    match style {
        Style::Text => writeln!(output, "{}", fmt::from_fn(text)),
        Style::Json => {
            write!(output, ",\"{name}\":")?;
            serde_json::to_writer(output, value).map_err(io::Error::from)
        }
    }
}

fn text_of_request(request: &RequestVerdict, f: &mut fmt::Formatter) -> fmt::Result {
    name(f, &request.request_id, request.choice)?;
    if request.run != "default" {
        write!(f, " run {}", request.run)?;
    }
    match (&request.status, request.rows, request.expected_rows) {
        (None, ..) => write!(f, ": not stored")?,
        (Some(status), Some(rows), Some(expected)) if rows != expected => {
            write!(f, ": {status}, {rows} of {expected} rows")?;
        }
        (Some(status), ..) => write!(f, ": {status}")?,
    }
    for finding in &request.findings {
        write!(f, "; {finding}")?;
    }
    match request.more_findings {
        0 => Ok(()),
        more => write!(f, "; and {more} more finding{}", plural(more)),
    }
}

impl fmt::Display for FindingVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.check)?;
        if !self.name.is_empty() {
            write!(f, " {}", self.name)?;
        }
        write!(f, ":")?;
        if let Some(position) = self.position {
            write!(f, " position {position}")?;
        }
        if let Some(layer) = self.layer {
            write!(f, " layer {layer}")?;
        }
        let ids = |side: &Option<SideVerdict>| side.as_ref().is_some_and(|side| side.experts.is_some());
        match (&self.a, &self.b) {
            (Some(a), Some(b)) if ids(&self.a) || ids(&self.b) => write!(f, ": {a} / {b}")?,
            (Some(side), _) if ids(&self.a) => write!(f, ": {side}")?,
            _ => {
                let colon = if self.position.is_some() || self.layer.is_some() { ": " } else { " " };
                return write!(f, "{colon}{}", self.detail);
            }
        }
        // Where a shift explains rows, the shift says more than the rows.
        if [Check::ExtraRows, Check::MisplacedRows, Check::TwoAnswers].iter().any(|check| check.code() == self.check) {
            write!(f, ": {}", self.detail)?;
        }
        match self.positions {
            0 | 1 => Ok(()),
            positions => write!(f, " ({positions} positions)"),
        }
    }
}

impl fmt::Display for SideVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.role.as_deref().unwrap_or("?"))?;
        match &self.experts {
            Some(experts) => write!(f, " {}", list(experts)),
            None => Ok(()),
        }
    }
}

fn text_of_summary(summary: &Summary, f: &mut fmt::Formatter) -> fmt::Result {
    write!(
        f,
        "{}: {} whole, {} incomplete, {} conflict; {} clean",
        counted(summary.requests, "request"),
        summary.whole,
        summary.incomplete,
        summary.conflict,
        summary.clean
    )?;
    for (i, (check, findings)) in summary.findings.iter().enumerate() {
        write!(f, "{} {check} {findings}", if i == 0 { "\nfindings:" } else { "," })?;
    }
    Ok(())
}

fn text_of_difference(request: &RequestDifference, runs: &Comparison, f: &mut fmt::Formatter) -> fmt::Result {
    name(f, &request.request_id, request.choice)?;
    let mut separator = ": ";
    if let Some(first) = &request.first {
        let side = |ids: &Option<Vec<u16>>| ids.as_ref().map_or_else(|| "no such layer".to_owned(), |ids| list(ids));
        write!(
            f,
            ": position {} layer {}: {} {} / {} {}",
            first.position,
            first.layer,
            runs.run,
            side(&first.a),
            runs.against,
            side(&first.b)
        )?;
        write!(
            f,
            "; {} of {} differ, {} of them as sets",
            request.differing,
            counted(request.rows, "row"),
            request.differing_sets
        )?;
        separator = "; ";
    }
    for (rows, run) in [(request.only_a, &runs.run), (request.only_b, &runs.against)] {
        if rows > 0 {
            write!(f, "{separator}{} only in {run}", counted(rows, "row"))?;
            separator = "; ";
        }
    }
    Ok(())
}

fn text_of_comparison(summary: &Comparison, f: &mut fmt::Formatter) -> fmt::Result {
    write!(
        f,
        "{} compared: {} identical, {} differing; {} only in {}, {} only in {}",
        counted(summary.requests, "request"),
        summary.identical,
        summary.differing,
        summary.only_a,
        summary.run,
        summary.only_b,
        summary.against
    )?;
    write!(f, "\n{} compared: {} differing", counted(summary.rows, "row"), summary.differing_rows)?;
    for layer in summary.layers.iter().filter(|layer| layer.differing > 0) {
        write!(
            f,
            "\nlayer {}: {} of {} rows differ ({:.3}%), {} as sets",
            layer.layer,
            layer.differing,
            layer.rows,
            100.0 * layer.differing as f64 / layer.rows as f64,
            layer.differing_sets
        )?;
    }
    Ok(())
}

fn name(f: &mut fmt::Formatter, request_id: &str, choice: i32) -> fmt::Result {
    // Ids come from clients: what they contain stays on its line.
    for c in request_id.chars() {
        match c.is_control() {
            true => write!(f, "{}", c.escape_default())?,
            false => write!(f, "{c}")?,
        }
    }
    if choice != 0 { write!(f, " choice {choice}") } else { Ok(()) }
}

/// `1 request`, `2 requests`.
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", plural(count))
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn list<T: fmt::Display>(ids: &[T]) -> String {
    let ids: Vec<String> = ids.iter().map(T::to_string).collect();
    format!("[{}]", ids.join(","))
}
