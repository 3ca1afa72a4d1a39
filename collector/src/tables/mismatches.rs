//! The table `mismatches`: one row per finding.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, Int32Array, ListArray, ListBuilder, PrimitiveBuilder, StringArray},
    datatypes::{DataType, Field, Int32Type, Schema, SchemaRef},
};
use gatescope_routing::{
    finding::{Check, Finding, Severity, Side},
    span::{RequestKey, Role},
};

use super::{
    arrow_file::Columns,
    columns::{Cells, int_at, ints, text_at, texts, time, times},
    error::Result,
};

/// Rows of `mismatches` in the making.
#[derive(Default)]
pub(super) struct Mismatches {
    rows: Vec<Row>,
}

struct Row {
    at: i64,
    key: RequestKey,
    finding: Finding,
}

impl Mismatches {
    /// Adds a finding about a request that was closed at this time.
    pub(super) fn push(&mut self, at: i64, key: &RequestKey, finding: &Finding) {
        self.rows.push(Row { at, key: key.clone(), finding: finding.clone() });
    }

    /// The findings in rows that were read, each with the request that it is about.
    pub(super) fn read(cells: Cells<'_>) -> Result<Vec<(RequestKey, Finding)>> {
        let keys = cells.keys()?;
        let (checks, severities, details) = (cells.text("check")?, cells.text("severity")?, cells.text("detail")?);
        let (position, positions) = (cells.ints("position")?, cells.ints("positions")?);
        let layers = cells.ints("layer")?;
        let a = Sides { cells, roles: cells.text("role_a")?, instances: cells.text("instance_a")? };
        let b = Sides { cells, roles: cells.text("role_b")?, instances: cells.text("instance_b")? };
        let ids = (cells.column::<ListArray>("experts_a")?, cells.column::<ListArray>("experts_b")?);
        keys.into_iter()
            .enumerate()
            .map(|(row, key)| {
                let check: Check =
                    checks.value(row).parse().map_err(|error| cells.damaged(format!("check: {error}")))?;
                let severity = match severities.value(row) {
                    name if name == Severity::Error.name() => Severity::Error,
                    name if name == Severity::Warning.name() => Severity::Warning,
                    name => return Err(cells.damaged(format!("severity {name:?} is none"))),
                };
                let finding = Finding {
                    severity,
                    position: int_at(position, row),
                    positions: positions.value(row) as u32,
                    layer: int_at(layers, row).map(|layer| layer as u16),
                    a: a.read(row, ids.0)?,
                    b: b.read(row, ids.1)?,
                    ..Finding::new(check, details.value(row))
                };
                Ok((key, finding))
            })
            .collect()
    }
}

/// The columns that say which source is one side of a finding.
struct Sides<'a> {
    cells: Cells<'a>,
    roles: &'a StringArray,
    instances: &'a StringArray,
}

impl Sides<'_> {
    fn read(&self, row: usize, ids: &ListArray) -> Result<Option<Side>> {
        let (Some(role), Some(instance)) = (text_at(self.roles, row), text_at(self.instances, row)) else {
            return Ok(None);
        };
        let role: Role = role.parse().map_err(|error| self.cells.damaged(format!("{error}")))?;
        let mut experts = Vec::new();
        if ids.is_valid(row)
            && let Some(ids) = ids.value(row).as_any().downcast_ref::<Int32Array>()
        {
            experts.extend(ids.values().iter().map(|&id| id as u16));
        }
        Ok(Some(Side { role, instance, experts }))
    }
}

/// The ids of one side, in slot order.
fn experts() -> Field {
    Field::new("element", DataType::Int32, false)
}

impl Columns for Mismatches {
    const TABLE: &'static str = "mismatches";

    fn schema() -> SchemaRef {
        let text = |name: &str| Field::new(name, DataType::Utf8, false);
        let number = |name: &str| Field::new(name, DataType::Int32, false);
        let optional = |name: &str, of: DataType| Field::new(name, of, true);
        let list = DataType::List(Arc::new(experts()));
        Arc::new(Schema::new(vec![
            Field::new("at", time(), false),
            text("check"),
            text("severity"),
            text("run"),
            text("request_id"),
            number("choice"),
            optional("position", DataType::Int32),
            number("positions"),
            optional("layer", DataType::Int32),
            optional("role_a", DataType::Utf8),
            optional("role_b", DataType::Utf8),
            optional("instance_a", DataType::Utf8),
            optional("instance_b", DataType::Utf8),
            optional("experts_a", list.clone()),
            optional("experts_b", list),
            text("detail"),
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
            times(rows.iter().map(|row| Some(row.at)).collect()),
            text(|row| Some(row.finding.check.code())),
            text(|row| Some(row.finding.severity.name())),
            text(|row| Some(&row.key.run)),
            text(|row| Some(&row.key.request_id)),
            number(|row| Some(row.key.choice)),
            number(|row| row.finding.position),
            number(|row| Some(row.finding.positions)),
            number(|row| row.finding.layer.map(u32::from)),
            text(|row| row.finding.a.as_ref().map(|side| side.role.name())),
            text(|row| row.finding.b.as_ref().map(|side| side.role.name())),
            text(|row| row.finding.a.as_ref().map(|side| &*side.instance)),
            text(|row| row.finding.b.as_ref().map(|side| &*side.instance)),
            id_lists(rows.iter().map(|row| row.finding.a.as_ref())),
            id_lists(rows.iter().map(|row| row.finding.b.as_ref())),
            text(|row| Some(&row.finding.detail)),
        ]
    }
}

/// The ids of a side; null where the finding is not about ids.
fn id_lists<'a>(sides: impl Iterator<Item = Option<&'a Side>>) -> ArrayRef {
    let mut lists = ListBuilder::new(PrimitiveBuilder::<Int32Type>::new()).with_field(experts());
    for side in sides {
        let ids = side.map(|side| &side.experts).filter(|ids| !ids.is_empty());
        ids.into_iter().flatten().for_each(|&id| lists.values().append_value(id.into()));
        lists.append(ids.is_some());
    }
    Arc::new(lists.finish())
}
