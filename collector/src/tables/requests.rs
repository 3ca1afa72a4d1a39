//! The table `requests`: one row per request.

use std::{ops::Range, sync::Arc};

use arrow::{
    array::{ArrayRef, AsArray, Int32Array, ListArray, RecordBatch, StructArray},
    datatypes::{DataType, Field, Fields, Schema, SchemaRef},
};
use gatescope_routing::{
    join::{Policy, Status},
    span::{RequestKey, Role, Source},
};

use super::{
    arrow_file::Columns,
    columns::{Cells, int_at, ints, lists, text_at, texts, time, time_at, times},
    error::Result,
    request::{ClosedRequest, minute},
};

/// Where the accepted rows came from.
fn segment() -> Fields {
    Fields::from(vec![
        Field::new("start", DataType::Int32, false),
        Field::new("end", DataType::Int32, false),
        Field::new("role", DataType::Utf8, false),
        Field::new("instance", DataType::Utf8, false),
        Field::new("attempt", DataType::Int32, false),
    ])
}

/// Positions that should have a row and have none.
fn gap() -> Fields {
    Fields::from(vec![Field::new("start", DataType::Int32, false), Field::new("end", DataType::Int32, false)])
}

/// An entry of a list: Delta calls it `element`.
fn entry(fields: Fields) -> Field {
    Field::new("element", DataType::Struct(fields), false)
}

/// A row of `requests`: what is known of a closed request, without its ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRow {
    /// Its name.
    pub key: RequestKey,
    /// The model that answered.
    pub model: Option<Arc<str>>,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u32>,
    /// Tokens sampled.
    pub completion_tokens: Option<u32>,
    /// Positions that should have a row.
    pub expected_rows: Option<u32>,
    /// Accepted rows.
    pub rows: u32,
    /// State.
    pub status: Status,
    /// Whose rows were accepted where several sources had one.
    pub policy: Policy,
    /// Instance of the accepted prefill.
    pub prefill_instance: Option<Arc<str>>,
    /// Instance of the decode.
    pub decode_instance: Option<Arc<str>>,
    /// First position that the decode computed itself.
    pub first_forward: Option<u32>,
    /// Positions that more than one source captured.
    pub overlap_rows: u32,
    /// Overlap positions in which two sources differ.
    pub mismatched_rows: u32,
    /// Rows below this position were left out at the caller's wish.
    pub prefix_omitted: u32,
    /// Highest number of attempts of any instance.
    pub attempts: u32,
    /// Prefix-cache resets that the engine had seen.
    pub generation: u32,
    /// Number of findings.
    pub findings: u32,
    /// The table that has its rows; `None` where it has none.
    pub routing_table: Option<Arc<str>>,
    /// When the first instance began it, microseconds since 1970 UTC.
    pub started_at: Option<i64>,
    /// When the last instance finished it.
    pub finished_at: Option<i64>,
    /// When it was closed.
    pub closed_at: i64,
    /// Where its rows came from, ascending by position.
    pub segments: Vec<StoredSegment>,
    /// Expected positions without a row, ascending.
    pub gaps: Vec<Range<u32>>,
}

/// Accepted rows of adjacent positions from one source, without the ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSegment {
    /// The positions.
    pub positions: Range<u32>,
    /// Who computed them.
    pub source: Source,
}

impl RequestRow {
    /// The row of a request whose rows of ids are in `routing_table`.
    pub(super) fn of(request: &ClosedRequest, routing_table: Option<Arc<str>>) -> Self {
        let joined = &request.joined;
        Self {
            key: request.key.clone(),
            model: request.model.clone(),
            prompt_tokens: joined.prompt_tokens,
            completion_tokens: joined.completion_tokens,
            expected_rows: joined.expected_rows(),
            rows: joined.rows(),
            status: joined.status,
            policy: joined.policy,
            prefill_instance: joined.prefill_instance.clone(),
            decode_instance: joined.decode_instance.clone(),
            first_forward: joined.first_forward,
            overlap_rows: joined.overlap_rows,
            mismatched_rows: joined.mismatched_rows,
            prefix_omitted: joined.prefix_omitted,
            attempts: joined.attempts,
            generation: joined.generation,
            findings: joined.findings.len() as u32,
            routing_table,
            started_at: request.started_at,
            finished_at: request.finished_at,
            closed_at: request.closed_at,
            segments: joined
                .provenance()
                .into_iter()
                .map(|(positions, source)| StoredSegment { positions, source: source.clone() })
                .collect(),
            gaps: joined.gaps.clone(),
        }
    }

    /// The rows of these columns.
    pub(super) fn read(cells: Cells<'_>) -> Result<Vec<Self>> {
        let keys = cells.keys()?;
        let text = |name| cells.text(name);
        let int = |name| cells.ints(name);
        let (model, status, policy) = (text("model")?, text("status")?, text("policy")?);
        let (prompt_tokens, completion_tokens) = (int("prompt_tokens")?, int("completion_tokens")?);
        let (expected_rows, rows) = (int("expected_rows")?, int("rows")?);
        let (prefill_instance, decode_instance) = (text("prefill_instance")?, text("decode_instance")?);
        let (first_forward, prefix_omitted) = (int("first_forward")?, int("prefix_omitted")?);
        let (overlap_rows, mismatched_rows) = (int("overlap_rows")?, int("mismatched_rows")?);
        let (attempts, generation, findings) = (int("attempts")?, int("generation")?, int("findings")?);
        let routing_table = text("routing_table")?;
        let (started_at, finished_at) = (cells.times("started_at")?, cells.times("finished_at")?);
        let closed_at = cells.times("closed_at")?;
        let (segments, gaps) = (cells.column::<ListArray>("segments")?, cells.column::<ListArray>("gaps")?);
        let number = |column: &Int32Array, row: usize| int_at(column, row).unwrap_or(0);
        keys.into_iter()
            .enumerate()
            .map(|(row, key)| {
                Ok(Self {
                    key,
                    model: text_at(model, row),
                    prompt_tokens: int_at(prompt_tokens, row),
                    completion_tokens: int_at(completion_tokens, row),
                    expected_rows: int_at(expected_rows, row),
                    rows: number(rows, row),
                    status: [Status::Whole, Status::Incomplete, Status::Conflict]
                        .into_iter()
                        .find(|known| known.name() == status.value(row))
                        .ok_or_else(|| cells.damaged(format!("status {:?} is none", status.value(row))))?,
                    policy: [Policy::Prefill, Policy::Kv]
                        .into_iter()
                        .find(|known| known.name() == policy.value(row))
                        .ok_or_else(|| cells.damaged(format!("policy {:?} is none", policy.value(row))))?,
                    prefill_instance: text_at(prefill_instance, row),
                    decode_instance: text_at(decode_instance, row),
                    first_forward: int_at(first_forward, row),
                    overlap_rows: number(overlap_rows, row),
                    mismatched_rows: number(mismatched_rows, row),
                    prefix_omitted: number(prefix_omitted, row),
                    attempts: number(attempts, row),
                    generation: number(generation, row),
                    findings: number(findings, row),
                    routing_table: text_at(routing_table, row),
                    started_at: time_at(started_at, row),
                    finished_at: time_at(finished_at, row),
                    closed_at: closed_at.value(row),
                    segments: read_segments(cells, &segments.value(row))?,
                    gaps: read_gaps(cells, &gaps.value(row))?,
                })
            })
            .collect()
    }

    /// The start of the minute that its load counts for, microseconds since 1970 UTC.
    pub(super) fn minute(&self) -> i64 {
        minute(self.started_at.unwrap_or(self.closed_at))
    }
}

/// Rows of `requests` in the making.
#[derive(Default)]
pub(super) struct Requests {
    rows: Vec<RequestRow>,
}

impl Requests {
    pub(super) fn push(&mut self, row: RequestRow) {
        self.rows.push(row);
    }
}

impl Columns for Requests {
    const TABLE: &'static str = "requests";

    fn schema() -> SchemaRef {
        let text = |name: &str| Field::new(name, DataType::Utf8, false);
        let number = |name: &str| Field::new(name, DataType::Int32, false);
        let optional = |name: &str, of: DataType| Field::new(name, of, true);
        Arc::new(Schema::new(vec![
            text("run"),
            text("request_id"),
            number("choice"),
            optional("model", DataType::Utf8),
            optional("prompt_tokens", DataType::Int32),
            optional("completion_tokens", DataType::Int32),
            optional("expected_rows", DataType::Int32),
            number("rows"),
            text("status"),
            text("policy"),
            optional("prefill_instance", DataType::Utf8),
            optional("decode_instance", DataType::Utf8),
            optional("first_forward", DataType::Int32),
            number("overlap_rows"),
            number("mismatched_rows"),
            number("prefix_omitted"),
            number("attempts"),
            number("generation"),
            number("findings"),
            optional("routing_table", DataType::Utf8),
            optional("started_at", time()),
            optional("finished_at", time()),
            Field::new("closed_at", time(), false),
            Field::new("segments", DataType::List(Arc::new(entry(segment()))), false),
            Field::new("gaps", DataType::List(Arc::new(entry(gap()))), false),
        ]))
    }

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn take(&mut self) -> Vec<ArrayRef> {
        let rows = std::mem::take(&mut self.rows);
        let text = |of: fn(&RequestRow) -> Option<&str>| texts(rows.iter().map(of).collect());
        let number = |of: fn(&RequestRow) -> Option<u32>| ints(rows.iter().map(of).collect());
        let time = |of: fn(&RequestRow) -> Option<i64>| times(rows.iter().map(of).collect());
        vec![
            text(|row| Some(&row.key.run)),
            text(|row| Some(&row.key.request_id)),
            number(|row| Some(row.key.choice)),
            text(|row| row.model.as_deref()),
            number(|row| row.prompt_tokens),
            number(|row| row.completion_tokens),
            number(|row| row.expected_rows),
            number(|row| Some(row.rows)),
            text(|row| Some(row.status.name())),
            text(|row| Some(row.policy.name())),
            text(|row| row.prefill_instance.as_deref()),
            text(|row| row.decode_instance.as_deref()),
            number(|row| row.first_forward),
            number(|row| Some(row.overlap_rows)),
            number(|row| Some(row.mismatched_rows)),
            number(|row| Some(row.prefix_omitted)),
            number(|row| Some(row.attempts)),
            number(|row| Some(row.generation)),
            number(|row| Some(row.findings)),
            text(|row| row.routing_table.as_deref()),
            time(|row| row.started_at),
            time(|row| row.finished_at),
            time(|row| Some(row.closed_at)),
            segments(&rows),
            gaps(&rows),
        ]
    }
}

fn read_segments(cells: Cells<'_>, list: &ArrayRef) -> Result<Vec<StoredSegment>> {
    let batch = RecordBatch::from(list.as_struct());
    let cells = Cells { batch: &batch, ..cells };
    let (starts, ends, attempts) = (cells.ints("start")?, cells.ints("end")?, cells.ints("attempt")?);
    let (roles, instances) = (cells.text("role")?, cells.text("instance")?);
    (0..batch.num_rows())
        .map(|row| {
            let role = roles.value(row).parse::<Role>().map_err(|error| cells.damaged(format!("{error}")))?;
            let attempt = attempts.value(row) as u32;
            Ok(StoredSegment {
                positions: starts.value(row) as u32..ends.value(row) as u32,
                source: Source { role, instance: instances.value(row).into(), attempt },
            })
        })
        .collect()
}

fn read_gaps(cells: Cells<'_>, list: &ArrayRef) -> Result<Vec<Range<u32>>> {
    let batch = RecordBatch::from(list.as_struct());
    let cells = Cells { batch: &batch, ..cells };
    let (starts, ends) = (cells.ints("start")?, cells.ints("end")?);
    Ok((0..batch.num_rows()).map(|row| starts.value(row) as u32..ends.value(row) as u32).collect())
}

fn segments(rows: &[RequestRow]) -> ArrayRef {
    let all: Vec<&StoredSegment> = rows.iter().flat_map(|row| &row.segments).collect();
    let columns = vec![
        ints(all.iter().map(|segment| Some(segment.positions.start)).collect()),
        ints(all.iter().map(|segment| Some(segment.positions.end)).collect()),
        texts(all.iter().map(|segment| Some(segment.source.role.name())).collect()),
        texts(all.iter().map(|segment| Some(&*segment.source.instance)).collect()),
        ints(all.iter().map(|segment| Some(segment.source.attempt)).collect()),
    ];
    let entries = StructArray::new(segment(), columns, None);
    lists(entry(segment()), rows.iter().map(|row| row.segments.len()), Arc::new(entries))
}

fn gaps(rows: &[RequestRow]) -> ArrayRef {
    let all: Vec<&Range<u32>> = rows.iter().flat_map(|row| &row.gaps).collect();
    let columns = vec![
        ints(all.iter().map(|gap| Some(gap.start)).collect()),
        ints(all.iter().map(|gap| Some(gap.end)).collect()),
    ];
    let entries = StructArray::new(gap(), columns, None);
    lists(entry(gap()), rows.iter().map(|row| row.gaps.len()), Arc::new(entries))
}
