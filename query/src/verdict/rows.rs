//! The rows of a run in order, whatever tables they are in.

use std::cmp::Ordering;

use arrow::{
    array::{AsArray, FixedSizeBinaryArray, Int32Array, RecordBatch, StringViewArray},
    datatypes::Int32Type,
};

use super::{Scope, quoted};
use crate::{answer::Answer, catalog::Catalog, error::QueryError, layer_column::LayerColumn};

/// Columns in front of the layers.
const KEYS: usize = 3;
/// Bytes of these columns in a row, about.
const KEY_BYTES: usize = 80;

/// The accepted rows of one run by request id, choice and position.
pub(super) struct RunRows {
    /// One per table that may hold rows of the run, each in order.
    tables: Vec<TableRows>,
    /// The table with the least next row.
    least: Option<usize>,
}

/// The rows of one run in one table.
pub(super) struct TableRows {
    /// Index of the table in the catalog.
    pub(super) table: usize,
    pub(super) layers: Vec<LayerColumn>,
    answer: Answer,
    batch: Option<Batch>,
}

struct Batch {
    request_id: StringViewArray,
    choice: Int32Array,
    position: Int32Array,
    layers: Vec<FixedSizeBinaryArray>,
    row: usize,
    rows: usize,
}

impl RunRows {
    pub(super) async fn of(catalog: &Catalog, run: &str, scope: &Scope) -> Result<Self, QueryError> {
        let scope = Scope { run: Some(run.to_owned()), request_id: scope.request_id.clone() };
        let mut tables = Vec::new();
        for (index, table) in catalog.routing().iter().enumerate() {
            let schema = table.schema();
            let columns = table.layers().map(|(column, _)| format!(", \"{}\"", schema.field(column).name()));
            let query = format!(
                "SELECT request_id, choice, position{} FROM \"{}\" WHERE {} ORDER BY request_id, choice, position",
                columns.collect::<String>(),
                table.name,
                scope.condition(),
            );
            let layers: Vec<LayerColumn> = table.layers().map(|(_, column)| column).collect();
            let row_bytes = KEY_BYTES + layers.iter().map(|layer| layer.bytes()).sum::<usize>();
            let answer = catalog.query_sorted(&query, row_bytes).await?;
            tables.push(TableRows { table: index, layers, answer, batch: None });
        }
        let mut rows = Self { tables, least: None };
        for table in &mut rows.tables {
            table.fill().await?;
        }
        rows.find_least();
        Ok(rows)
    }

    /// The next row's table, standing at that row.
    pub(super) fn current(&self) -> Option<&TableRows> {
        self.least.map(|least| &self.tables[least])
    }

    pub(super) async fn advance(&mut self) -> Result<(), QueryError> {
        if let Some(least) = self.least {
            let table = &mut self.tables[least];
            if let Some(batch) = &mut table.batch {
                batch.row += 1;
            }
            table.fill().await?;
            if self.tables.len() > 1 || self.tables[least].batch.is_none() {
                self.find_least();
            }
        }
        Ok(())
    }

    fn find_least(&mut self) {
        let open = (0..self.tables.len()).filter(|&table| self.tables[table].batch.is_some());
        self.least = open.min_by(|&a, &b| self.tables[a].compare(&self.tables[b]));
    }
}

impl TableRows {
    pub(super) fn request_id(&self) -> &str {
        self.batch.as_ref().map_or("", |batch| batch.request_id.value(batch.row))
    }

    pub(super) fn choice(&self) -> i32 {
        self.batch.as_ref().map_or(0, |batch| batch.choice.value(batch.row))
    }

    pub(super) fn position(&self) -> i32 {
        self.batch.as_ref().map_or(0, |batch| batch.position.value(batch.row))
    }

    /// The bytes of the `index`th layer of the current row.
    pub(super) fn layer(&self, index: usize) -> &[u8] {
        self.batch.as_ref().map_or(&[], |batch| batch.layers[index].value(batch.row))
    }

    /// By request id, choice and position.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        self.request_id()
            .cmp(other.request_id())
            .then_with(|| self.choice().cmp(&other.choice()))
            .then_with(|| self.position().cmp(&other.position()))
    }

    /// Makes the current row be there, unless all have been.
    async fn fill(&mut self) -> Result<(), QueryError> {
        while self.batch.as_ref().is_none_or(|batch| batch.row >= batch.rows) {
            self.batch = match self.answer.next().await {
                Some(batch) => Some(Batch::of(&batch?, self.layers.len())?),
                None => {
                    self.batch = None;
                    return Ok(());
                }
            };
        }
        Ok(())
    }
}

impl Batch {
    fn of(batch: &RecordBatch, layers: usize) -> Result<Self, QueryError> {
        let wrong = || {
            QueryError::Query("a routing table has columns of other types than a writer of ours gives it".to_owned())
        };
        let int = |index: usize| batch.column(index).as_primitive_opt::<Int32Type>().cloned().ok_or_else(wrong);
        let layer = |index: usize| batch.column(index).as_fixed_size_binary_opt().cloned().ok_or_else(wrong);
        Ok(Self {
            request_id: batch.column(0).as_string_view_opt().cloned().ok_or_else(wrong)?,
            choice: int(1)?,
            position: int(2)?,
            layers: (KEYS..KEYS + layers).map(layer).collect::<Result<_, _>>()?,
            row: 0,
            rows: batch.num_rows(),
        })
    }
}

/// The runs that have requests, in order.
pub(super) async fn runs(catalog: &Catalog) -> Result<Vec<String>, QueryError> {
    let mut answer = catalog.query("SELECT DISTINCT run FROM requests ORDER BY run").await?;
    let mut runs = Vec::new();
    while let Some(batch) = answer.next().await {
        let batch = batch?;
        runs.extend(super::columns::Columns(&batch).text("run")?.iter().flatten().map(str::to_owned));
    }
    Ok(runs)
}

/// Refuses a run that has no request.
pub(super) async fn check_run(catalog: &Catalog, run: &str) -> Result<(), QueryError> {
    let runs = runs(catalog).await?;
    if runs.iter().any(|known| known == run) {
        return Ok(());
    }
    let known: Vec<String> = runs.iter().map(|run| quoted(run)).collect();
    let known =
        if known.is_empty() { "there is none yet".to_owned() } else { format!("expected one of {}", known.join(", ")) };
    Err(QueryError::Query(format!("there is no run {}: {known}", quoted(run))))
}

/// Refuses a request id that nothing is known of in its scope.
pub(super) async fn check_request(catalog: &Catalog, scope: &Scope) -> Result<(), QueryError> {
    let Some(id) = &scope.request_id else { return Ok(()) };
    let condition = scope.condition();
    // Findings may name a request that was never stored.
    for table in ["requests", "mismatches"] {
        let mut answer = catalog.query(&format!("SELECT run FROM {table} WHERE {condition} LIMIT 1")).await?;
        while let Some(batch) = answer.next().await {
            if batch?.num_rows() > 0 {
                return Ok(());
            }
        }
    }
    let run = scope.run.as_ref().map(|run| format!(" in run {}", quoted(run))).unwrap_or_default();
    Err(QueryError::Query(format!("there is no request {}{run}", quoted(id))))
}

/// The run to compare with `against`: the one that is named, or the only other one.
pub(super) async fn first_run(catalog: &Catalog, named: Option<&str>, against: &str) -> Result<String, QueryError> {
    for run in named.into_iter().chain([against]) {
        check_run(catalog, run).await?;
    }
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let runs = runs(catalog).await?;
    let others: Vec<&String> = runs.iter().filter(|run| *run != against).collect();
    match others.as_slice() {
        [only] => Ok((*only).clone()),
        _ => Err(QueryError::Query(format!(
            "which run to compare with {}: there are {} others; name one",
            quoted(against),
            others.len()
        ))),
    }
}
