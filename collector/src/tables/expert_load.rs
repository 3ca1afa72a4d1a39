//! The table `expert_load`: how many tokens each expert got, per minute and source. Its rows are increments: rows of
//! equal key add up, and a request that is stored anew takes away what it had added.

use std::{collections::HashMap, sync::Arc};

use arrow::{
    array::{ArrayRef, Int64Array},
    datatypes::{DataType, Field, Schema, SchemaRef},
};
use gatescope_routing::{join::Segment, span::Role};

use super::{
    arrow_file::{ArrowFile, Columns},
    columns::{ints, texts, time, times},
    counts::LayerCounts,
    error::Result,
    request::ClosedRequest,
    routing::Phase,
};

/// What the tokens of a count have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct LoadKey {
    /// Start of the minute, microseconds since 1970 UTC.
    pub(super) minute: i64,
    pub(super) run: Arc<str>,
    /// Empty where nobody said.
    pub(super) model: Arc<str>,
    pub(super) instance: Arc<str>,
    pub(super) role: Role,
    pub(super) phase: Phase,
}

impl LoadKey {
    /// What rows of this segment and phase count for.
    pub(super) fn of(request: &ClosedRequest, segment: &Segment, phase: Phase) -> Self {
        Self {
            minute: request.minute(),
            run: request.key.run.clone(),
            model: request.model.clone().unwrap_or_else(|| "".into()),
            instance: segment.source.instance.clone(),
            role: segment.source.role,
            phase,
        }
    }
}

/// What one source's experts got in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SourceLoad {
    pub(crate) run: Arc<str>,
    /// Empty where nobody said.
    pub(crate) model: Arc<str>,
    pub(crate) instance: Arc<str>,
    pub(crate) role: Role,
    /// Tokens, `[layers][experts]`; empty for layers without a gate.
    pub(crate) layers: Vec<Vec<i64>>,
}

/// Counts in memory go to the file when they are larger than this.
const MOST_BYTES: usize = 32 << 20;

/// Counts that are not in the file yet.
#[derive(Debug, Default)]
pub(super) struct Load {
    counts: HashMap<LoadKey, LayerCounts>,
}

impl Load {
    /// The counts of this key.
    pub(super) fn of(&mut self, key: LoadKey) -> &mut LayerCounts {
        self.counts.entry(key).or_default()
    }

    /// Whether it should go to the file.
    pub(super) fn is_large(&self) -> bool {
        self.counts.values().map(LayerCounts::bytes).sum::<usize>() > MOST_BYTES
    }

    /// The counts, minutes and phases apart. What went to the file before is not among them.
    pub(super) fn by_source(&self) -> Vec<SourceLoad> {
        let load = |(key, counts): (&LoadKey, &LayerCounts)| SourceLoad {
            run: Arc::clone(&key.run),
            model: Arc::clone(&key.model),
            instance: Arc::clone(&key.instance),
            role: key.role,
            layers: counts.layers().to_vec(),
        };
        self.counts.iter().map(load).collect()
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (key, counts) in other.counts {
            self.of(key).merge(&counts);
        }
    }

    /// Writes every count that is not 0 and starts anew.
    pub(super) fn write_to(&mut self, file: &mut ArrowFile<ExpertLoad>) -> Result<()> {
        self.drain().try_for_each(|row| file.add(|columns| columns.rows.push(row)))
    }

    /// Every count that is not 0.
    pub(super) fn into_rows(mut self) -> ExpertLoad {
        ExpertLoad { rows: self.drain().collect() }
    }

    fn drain(&mut self) -> impl Iterator<Item = Row> {
        let mut counts: Vec<_> = self.counts.drain().collect();
        counts.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        counts.into_iter().flat_map(|(key, counts)| {
            let key = Arc::new(key);
            let rows: Vec<Row> = counts
                .iter()
                .map(|(layer, expert, tokens)| Row {
                    key: key.clone(),
                    layer: layer as u32,
                    expert: expert as u32,
                    tokens,
                })
                .collect();
            rows
        })
    }
}

/// Rows of `expert_load` in the making.
#[derive(Default)]
pub(super) struct ExpertLoad {
    rows: Vec<Row>,
}

impl ExpertLoad {
    pub(super) fn push(&mut self, key: &Arc<LoadKey>, layer: u32, expert: u32, tokens: i64) {
        self.rows.push(Row { key: key.clone(), layer, expert, tokens });
    }
}

struct Row {
    key: Arc<LoadKey>,
    layer: u32,
    expert: u32,
    tokens: i64,
}

impl Columns for ExpertLoad {
    const TABLE: &'static str = "expert_load";

    fn schema() -> SchemaRef {
        let text = |name: &str| Field::new(name, DataType::Utf8, false);
        let number = |name: &str| Field::new(name, DataType::Int32, false);
        Arc::new(Schema::new(vec![
            Field::new("minute", time(), false),
            text("run"),
            text("model"),
            text("instance"),
            text("role"),
            text("phase"),
            number("layer"),
            number("expert"),
            Field::new("tokens", DataType::Int64, false),
        ]))
    }

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn take(&mut self) -> Vec<ArrayRef> {
        let rows = std::mem::take(&mut self.rows);
        let text = |of: fn(&Row) -> Option<&str>| texts(rows.iter().map(of).collect());
        let number = |of: fn(&Row) -> Option<u32>| ints(rows.iter().map(of).collect());
        vec![
            times(rows.iter().map(|row| Some(row.key.minute)).collect()),
            text(|row| Some(&row.key.run)),
            text(|row| Some(&row.key.model)),
            text(|row| Some(&row.key.instance)),
            text(|row| Some(row.key.role.name())),
            text(|row| Some(row.key.phase.name())),
            number(|row| Some(row.layer)),
            number(|row| Some(row.expert)),
            Arc::new(rows.iter().map(|row| row.tokens).collect::<Int64Array>()),
        ]
    }
}
