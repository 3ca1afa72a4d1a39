//! What `check` says: which requests are not clean and why, and whether two runs routed the same requests alike.
//!
//! Both read the tables in the order of requests and hold one request at a time, so that a verdict on millions of
//! requests takes no more memory than one on ten. Sorts go to disk beyond the memory that the catalog was given.

mod columns;
mod report;
mod requests;
mod rows;
mod twin;

use serde::Serialize;

pub use self::{
    report::{Outcome, Report, Style},
    requests::Verdicts,
    twin::Comparing,
};

/// Findings that are shown of one request; the rest is counted.
pub const SHOWN_FINDINGS: usize = 20;

/// Which requests a verdict is about.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// This run only.
    pub run: Option<String>,
    /// This request id only, in whatever run and choice.
    pub request_id: Option<String>,
}

impl Scope {
    /// A condition in SQL for tables with these two columns.
    fn condition(&self) -> String {
        let run = self.run.as_ref().map(|run| format!("run = {}", quoted(run)));
        let request = self.request_id.as_ref().map(|id| format!("request_id = {}", quoted(id)));
        let conditions: Vec<String> = run.into_iter().chain(request).collect();
        if conditions.is_empty() { "true".to_owned() } else { conditions.join(" AND ") }
    }
}

/// A text literal in SQL.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A request that is not clean: it is not whole, or a check found something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestVerdict {
    /// Deployment or experiment.
    pub run: String,
    /// The outer id.
    pub request_id: String,
    /// Index among the sequences sampled for the id.
    pub choice: i32,
    /// `whole`, `incomplete` or `conflict`; none where findings name a request that was never stored.
    pub status: Option<String>,
    /// Rows that the request should have, where that is known.
    pub expected_rows: Option<i32>,
    /// Rows that were accepted.
    pub rows: Option<i32>,
    /// The first [`SHOWN_FINDINGS`], by check, position and layer.
    pub findings: Vec<FindingVerdict>,
    /// Findings beyond those.
    pub more_findings: u64,
}

/// One finding of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FindingVerdict {
    /// The code, `GS013`.
    pub check: String,
    /// The check's name for people.
    pub name: String,
    /// `warning` or `error`.
    pub severity: String,
    /// First position concerned.
    pub position: Option<i32>,
    /// Positions concerned, from `position` on.
    pub positions: i32,
    /// Layer concerned, or the first of them.
    pub layer: Option<i32>,
    /// The accepted or only side.
    pub a: Option<SideVerdict>,
    /// The side that differs from it.
    pub b: Option<SideVerdict>,
    /// One sentence.
    pub detail: String,
}

/// One side of a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SideVerdict {
    /// What the instance does for the request.
    pub role: Option<String>,
    /// Which instance.
    pub instance: Option<String>,
    /// Its ids in slot order, where the finding is about ids.
    pub experts: Option<Vec<i32>>,
}

/// Counts over everything in scope.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Requests in scope.
    pub requests: u64,
    /// Of these: every expected position has one accepted row.
    pub whole: u64,
    /// Of these: closed with gaps.
    pub incomplete: u64,
    /// Of these: sources contradict each other.
    pub conflict: u64,
    /// Of these: whole and without a finding.
    pub clean: u64,
    /// Findings by code.
    pub findings: std::collections::BTreeMap<String, u64>,
}

/// A request whose rows are not the same in both runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestDifference {
    /// The outer id.
    pub request_id: String,
    /// Index among the sequences sampled for the id.
    pub choice: i32,
    /// Positions with a row in both runs.
    pub rows: u64,
    /// Of these: rows with other bytes.
    pub differing: u64,
    /// Of these: rows with other experts, whatever their order.
    pub differing_sets: u64,
    /// Positions with a row in the first run alone.
    pub only_a: u64,
    /// Positions with a row in the second run alone.
    pub only_b: u64,
    /// Where the ids differ first.
    pub first: Option<FirstDifference>,
}

/// Where two runs differ first, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FirstDifference {
    /// The position.
    pub position: i32,
    /// The layer.
    pub layer: u16,
    /// The first run's ids in slot order; none where it has no such layer.
    pub a: Option<Vec<u16>>,
    /// The second run's.
    pub b: Option<Vec<u16>>,
}

/// Counts over all requests of two runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// The first run.
    pub run: String,
    /// The second run.
    pub against: String,
    /// Requests with rows in both runs.
    pub requests: u64,
    /// Of these: the same positions, and the same bytes in each.
    pub identical: u64,
    /// Of these: anything else.
    pub differing: u64,
    /// Requests with rows in the first run alone.
    pub only_a: u64,
    /// Requests with rows in the second run alone.
    pub only_b: u64,
    /// Positions with a row in both runs.
    pub rows: u64,
    /// Of these: rows with other bytes.
    pub differing_rows: u64,
    /// Positions of requests in both runs with a row in the first run alone.
    pub rows_only_a: u64,
    /// Positions of requests in both runs with a row in the second run alone.
    pub rows_only_b: u64,
    /// By layer.
    pub layers: Vec<LayerComparison>,
}

impl Comparison {
    /// Whether the runs hold the same requests with the same rows, at least one.
    pub fn is_identical(&self) -> bool {
        self.requests > 0 && self.differing == 0 && self.only_a == 0 && self.only_b == 0
    }
}

/// Counts of one layer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LayerComparison {
    /// The layer.
    pub layer: u16,
    /// Rows compared.
    pub rows: u64,
    /// Of these: other bytes.
    pub differing: u64,
    /// Of these: other experts, whatever their order.
    pub differing_sets: u64,
}
