//! Rows unfolded: the view `experts` and what the table function `routing` shares with it.

mod unfold;

use std::sync::Arc;

use arrow::{
    array::{AsArray, Int32Array, RecordBatch},
    datatypes::{DataType, Field, Schema, SchemaRef},
};
use async_trait::async_trait;
use datafusion::{
    catalog::{Session, TableProvider},
    common::{DFSchema, Result},
    logical_expr::{Expr, TableProviderFilterPushDown, TableType, utils::conjunction},
    physical_plan::{ExecutionPlan, empty::EmptyExec, filter::FilterExec, union::UnionExec},
};

use self::unfold::UnfoldExec;
use crate::{
    functions::list_type,
    layer_column::LayerColumn,
    tables::{KEYS, key_fields},
};

/// A routing table and its layer columns.
#[derive(Debug)]
pub(crate) struct RoutingTable {
    pub(crate) name: String,
    files: Arc<dyn TableProvider>,
    /// Index of the column in the table, and what it holds; by layer.
    layers: Vec<(usize, LayerColumn)>,
}

impl RoutingTable {
    pub(crate) fn new(name: String, files: Arc<dyn TableProvider>) -> Self {
        let schema = files.schema();
        let columns = schema.fields().iter().enumerate();
        let mut layers: Vec<_> = columns.filter_map(|(i, field)| Some((i, LayerColumn::of(field)?))).collect();
        layers.sort_by_key(|(_, column)| column.layer);
        Self { name, files, layers }
    }

    pub(crate) fn layers(&self) -> impl Iterator<Item = (usize, LayerColumn)> + '_ {
        self.layers.iter().copied()
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        self.files.schema()
    }
}

/// What one output row of an unfolding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grain {
    /// A position, layer and slot.
    Slot,
    /// A position and layer.
    Layer,
}

/// A column of an unfolding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// A key column of the routing tables.
    Key(&'static str),
    Layer,
    Slot,
    Expert,
    /// The ids of a layer as a list.
    Experts,
}

impl Column {
    fn field(self) -> Field {
        match self {
            Self::Key(name) => {
                let field = key_fields().into_iter().find(|field| field.name() == name);
                field.unwrap_or_else(|| Field::new(name, DataType::Utf8View, false))
            }
            Self::Layer => Field::new("layer", DataType::Int32, false),
            Self::Slot => Field::new("slot", DataType::Int32, false),
            Self::Expert => Field::new("expert", DataType::Int32, false),
            Self::Experts => Field::new("experts", list_type(), false),
        }
    }
}

/// Fields of these columns.
pub(crate) fn unfolded_schema(columns: &[Column]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(|column| column.field()).collect::<Vec<_>>()))
}

/// A scan of all tables with these columns, cut down to what passes filters on keys and on the layer.
pub(crate) async fn unfold(
    state: &dyn Session,
    tables: &[RoutingTable],
    grain: Grain,
    columns: &[Column],
    filters: &[Expr],
    limit: Option<usize>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let (on_layer, on_keys): (Vec<Expr>, Vec<Expr>) = filters.iter().cloned().partition(is_on_layer);
    let mut plans = Vec::new();
    for table in tables {
        let layers = passing_layers(state, table, &on_layer)?;
        if !layers.is_empty() {
            plans.extend(unfold_table(state, table, grain, columns, &layers, &on_keys, limit).await?);
        }
    }
    if plans.is_empty() {
        return Ok(Arc::new(EmptyExec::new(unfolded_schema(columns))));
    }
    UnionExec::try_new(plans)
}

async fn unfold_table(
    state: &dyn Session,
    table: &RoutingTable,
    grain: Grain,
    columns: &[Column],
    layers: &[(usize, LayerColumn)],
    on_keys: &[Expr],
    limit: Option<usize>,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let schema = table.files.schema();
    let predicate = conjunction(on_keys.iter().cloned());
    let filtered = predicate.iter().flat_map(|filter| filter.column_refs()).map(|column| column.name.clone());
    let shown = columns.iter().filter_map(|column| match column {
        Column::Key(name) => Some((*name).to_owned()),
        _ => None,
    });
    let mut projection = shown.chain(filtered).map(|name| Ok(schema.index_of(&name)?)).collect::<Result<Vec<_>>>()?;
    // The ids themselves are only read where they are shown, or where a null would take an output row away.
    let ids = columns.iter().any(|column| matches!(column, Column::Expert | Column::Experts))
        || layers.iter().any(|(column, _)| schema.field(*column).is_nullable());
    if ids {
        projection.extend(layers.iter().map(|(column, _)| *column));
    }
    projection.sort_unstable();
    projection.dedup();

    let limit = limit.filter(|_| predicate.is_none() && !layers.iter().any(|(i, _)| schema.field(*i).is_nullable()));
    let mut plan = table.files.scan(state, Some(&projection), on_keys, limit).await?;
    if plan.is::<EmptyExec>() {
        return Ok(None);
    }
    if let Some(predicate) = predicate {
        let columns = DFSchema::try_from(plan.schema())?;
        plan = Arc::new(FilterExec::try_new(state.create_physical_expr(predicate, &columns)?, plan)?);
    }
    let layers = layers.iter().map(|(_, column)| *column).collect();
    Ok(Some(Arc::new(UnfoldExec::try_new(plan, grain, columns.to_vec(), layers, ids.then_some(&schema))?)))
}

fn passing_layers(state: &dyn Session, table: &RoutingTable, filters: &[Expr]) -> Result<Vec<(usize, LayerColumn)>> {
    let Some(predicate) = conjunction(filters.iter().cloned()) else { return Ok(table.layers.clone()) };
    let schema = unfolded_schema(&[Column::Layer]);
    let predicate = state.create_physical_expr(predicate, &DFSchema::try_from(schema.clone())?)?;
    let layers: Int32Array = table.layers.iter().map(|(_, column)| i32::from(column.layer)).collect();
    let passes = predicate.evaluate(&RecordBatch::try_new(schema, vec![Arc::new(layers)])?)?;
    let passes = passes.into_array(table.layers.len())?;
    let passes = passes.as_boolean().iter().map(|passes| passes == Some(true));
    Ok(table.layers.iter().zip(passes).filter_map(|(layer, passes)| passes.then_some(*layer)).collect())
}

fn is_on_layer(filter: &Expr) -> bool {
    let columns = filter.column_refs();
    !columns.is_empty() && columns.iter().all(|column| column.name == "layer")
}

fn is_on_keys(filter: &Expr) -> bool {
    let columns = filter.column_refs();
    !columns.is_empty() && columns.iter().all(|column| KEYS.contains(&column.name.as_str()))
}

fn can_be_moved(filter: &Expr) -> bool {
    use datafusion::common::tree_node::TreeNode;
    let subquery = filter.exists(|expr| {
        Ok(matches!(
            expr,
            Expr::ScalarSubquery(_)
                | Expr::InSubquery(_)
                | Expr::Exists(_)
                | Expr::SetComparison(_)
                | Expr::OuterReferenceColumn(..)
        ))
    });
    !filter.is_volatile() && !subquery.unwrap_or(true)
}

/// The view `experts`: a row per position, layer and slot of every routing table.
#[derive(Debug)]
pub(crate) struct ExpertsView {
    tables: Arc<[RoutingTable]>,
    schema: SchemaRef,
}

impl ExpertsView {
    const COLUMNS: [Column; 9] = [
        Column::Key("run"),
        Column::Key("request_id"),
        Column::Key("choice"),
        Column::Key("position"),
        Column::Key("phase"),
        Column::Key("role"),
        Column::Layer,
        Column::Slot,
        Column::Expert,
    ];

    pub(crate) fn new(tables: Arc<[RoutingTable]>) -> Self {
        Self { tables, schema: unfolded_schema(&Self::COLUMNS) }
    }
}

#[async_trait]
impl TableProvider for ExpertsView {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let exact = |filter: &&Expr| can_be_moved(filter) && (is_on_layer(filter) || is_on_keys(filter));
        Ok(filters
            .iter()
            .map(|filter| match exact(filter) {
                true => TableProviderFilterPushDown::Exact,
                false => TableProviderFilterPushDown::Unsupported,
            })
            .collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let columns: Vec<Column> = match projection {
            Some(projection) => projection.iter().map(|&column| Self::COLUMNS[column]).collect(),
            None => Self::COLUMNS.to_vec(),
        };
        unfold(state, &self.tables, Grain::Slot, &columns, filters, limit).await
    }
}
