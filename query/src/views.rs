//! Views that answer what is asked most, and what each column means.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch, StringArray};
use datafusion::{catalog::MemTable, common::Result, prelude::SessionContext};

use crate::session::{CATALOG, PUBLIC};

/// The views, and what they are made of.
const VIEWS: [(&str, &str); 3] = [
    (
        "layer_load",
        "SELECT minute, run, model, instance, role, phase, layer, sum(tokens) AS tokens, count(*) AS experts, \
         max(tokens) AS hottest_tokens FROM expert_load \
         GROUP BY minute, run, model, instance, role, phase, layer",
    ),
    (
        "overlap",
        "SELECT run, request_id, choice, model, prefill_instance, decode_instance, closed_at, overlap_rows, \
         mismatched_rows, 1.0 - CAST(mismatched_rows AS DOUBLE) / overlap_rows AS agreement \
         FROM requests WHERE overlap_rows > 0",
    ),
    (
        "mismatch_rate",
        "SELECT date_trunc('minute', closed_at) AS minute, run, model, prefill_instance, decode_instance, \
         count(*) AS requests, sum(overlap_rows) AS overlap_rows, sum(mismatched_rows) AS mismatched_rows, \
         CAST(sum(mismatched_rows) AS DOUBLE) / nullif(sum(overlap_rows), 0) AS mismatch_rate \
         FROM requests GROUP BY 1, 2, 3, 4, 5",
    ),
];

/// What columns mean, under the same name wherever they are.
const COMMENTS: [(&str, &str); 47] = [
    ("agreement", "share of overlap positions in which all sources chose the same experts in the same order, 0 to 1"),
    ("at", "when the check ran"),
    ("attempt", "how often the instance had started the request again"),
    ("attempts", "highest attempt seen"),
    ("block_hash", "hash of the KV block, where the span is one"),
    ("check", "code of the check: see checks.md"),
    ("choice", "which of several sampled sequences of a request, from 0"),
    ("closed_at", "when the request was closed; now for an open one"),
    ("completion_tokens", "tokens of the completion"),
    ("decode_instance", "instance that decoded"),
    ("detail", "the finding as a sentence"),
    ("expected_rows", "prompt and completion tokens, less one: the last sampled token is never fed back"),
    ("expert", "logical expert id, from 0"),
    ("experts", "in routing(): ids in slot order; in layer_load: how many had a token"),
    ("experts_a", "ids that side a chose"),
    ("experts_b", "ids that side b chose"),
    ("findings", "findings of all checks"),
    ("finished_at", "when the answer was finished"),
    ("first_forward", "first position that the decode instance computed"),
    ("gaps", "positions without a row: start, end (exclusive)"),
    ("generation", "prefix-cache resets (weight updates) of the instance before"),
    ("hottest_tokens", "tokens of the expert with the most"),
    ("instance", "engine process group"),
    ("layer", "index among all hidden layers, dense ones included"),
    ("minute", "minute in which the requests were closed, UTC"),
    ("mismatch_rate", "mismatched positions over overlap positions; NULL without overlap"),
    ("mismatched_rows", "overlap positions in which sources differ"),
    ("model", "model's name, as the engine said it"),
    ("overlap_rows", "positions that more than one source captured"),
    ("phase", "prompt or completion"),
    ("policy", "whose row is accepted where prefill and decode both have one"),
    ("position", "index of a token in prompt and completion, from 0"),
    ("positions", "how many positions the finding is about"),
    ("prefill_instance", "instance that computed the prompt"),
    ("prefix_omitted", "positions that the caller asked to leave out"),
    ("prompt_tokens", "tokens of the prompt"),
    ("request_id", "the request, as the router names it"),
    ("requests", "closed requests"),
    ("role", "prefill, decode, colocated or trainer"),
    ("routing_table", "table that has the request's rows"),
    ("rows", "positions that have a row"),
    ("run", "deployment or experiment; requests of two runs never join"),
    ("segments", "who computed which positions: start, end (exclusive), role, instance, attempt"),
    ("severity", "error, warning or note"),
    ("slot", "place in the top-k list, in the engine's order"),
    ("status", "whole, incomplete, conflict or open"),
    ("tokens", "assignments: a token counts once for each expert it was sent to"),
];

/// Puts the views, and `columns` which describes every table, into a session.
pub(crate) async fn register(context: &SessionContext) -> Result<()> {
    for (name, sql) in VIEWS {
        let view = context.sql(sql).await?.into_view();
        context.register_table(name, view)?;
    }
    let columns = columns(context).await?;
    context.register_table("columns", Arc::new(MemTable::try_new(columns.schema(), vec![vec![columns]])?))?;
    Ok(())
}

async fn columns(context: &SessionContext) -> Result<RecordBatch> {
    let mut rows = Vec::new();
    let public = context.catalog(CATALOG).and_then(|catalog| catalog.schema(PUBLIC));
    if let Some(public) = public {
        let mut names = public.table_names();
        names.sort();
        for name in names {
            let Some(table) = public.table(&name).await? else { continue };
            for (index, field) in table.schema().fields().iter().enumerate() {
                rows.push((name.clone(), index as i32 + 1, Arc::clone(field)));
            }
        }
    }
    let text = |each: &dyn Fn(usize) -> Option<String>| -> ArrayRef {
        Arc::new((0..rows.len()).map(each).collect::<StringArray>())
    };
    let positions: Int32Array = rows.iter().map(|(_, position, _)| Some(*position)).collect();
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("table_name", text(&|row| Some(rows[row].0.clone())), false),
        ("position", Arc::new(positions) as ArrayRef, false),
        ("column_name", text(&|row| Some(rows[row].2.name().clone())), false),
        ("data_type", text(&|row| Some(rows[row].2.data_type().to_string())), false),
        ("comment", text(&|row| comment(rows[row].2.name())), true),
    ])?)
}

fn comment(column: &str) -> Option<String> {
    if let Some((_, comment)) = COMMENTS.iter().find(|(name, _)| *name == column) {
        return Some((*comment).to_owned());
    }
    let layer = column.strip_prefix('l')?.parse::<u32>().ok()?;
    Some(format!("ids that layer {layer} chose, as bytes in slot order: experts({column}) is a list"))
}
