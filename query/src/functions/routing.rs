//! `routing('request id' [, choice [, run]])`: the routing of a request, a row per position and layer, in order.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::{
    catalog::{Session, TableFunctionArgs, TableFunctionImpl, TableProvider},
    common::{Result, ScalarValue, plan_err},
    logical_expr::{Expr, TableType, col, lit},
    physical_expr::{LexOrdering, PhysicalSortExpr, expressions},
    physical_plan::{ExecutionPlan, projection::ProjectionExec, sorts::sort::SortExec},
};

use crate::experts::{Column, Grain, RoutingTable, unfold, unfolded_schema};

/// The table function.
#[derive(Debug)]
pub(crate) struct Routing {
    tables: Arc<[RoutingTable]>,
}

impl Routing {
    pub(crate) fn new(tables: Arc<[RoutingTable]>) -> Self {
        Self { tables }
    }
}

impl TableFunctionImpl for Routing {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let (request, rest) = match args.exprs() {
            [request, rest @ ..] if rest.len() <= 2 => (text(request), rest),
            _ => return usage("it has one to three arguments"),
        };
        let mut filters = match request {
            Some(request) => vec![col("request_id").eq(lit(ScalarValue::Utf8View(Some(request))))],
            // Nothing is called NULL.
            None if is_null(&args.exprs()[0]) => vec![lit(false)],
            None => return usage("the request id is text"),
        };
        if let Some(choice) = rest.first() {
            match choice {
                Expr::Literal(value, _) if value.is_null() => {}
                Expr::Literal(ScalarValue::Int64(Some(choice)), _) if i32::try_from(*choice).is_ok() => {
                    filters.push(col("choice").eq(lit(*choice as i32)));
                }
                _ => return usage("the choice is a number"),
            }
        }
        if let Some(run) = rest.get(1).filter(|run| !is_null(run)) {
            let Some(run) = text(run) else {
                return usage("the run is text");
            };
            filters.push(col("run").eq(lit(ScalarValue::Utf8View(Some(run)))));
        }
        Ok(Arc::new(RequestRouting {
            tables: self.tables.clone(),
            filters,
            schema: unfolded_schema(&RequestRouting::COLUMNS),
        }))
    }
}

fn is_null(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(value, _) if value.is_null())
}

fn text(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Literal(value, _) => value.try_as_str().flatten().map(str::to_owned),
        _ => None,
    }
}

fn usage<T>(what: &str) -> Result<T> {
    plan_err!("routing('request id' [, choice [, run]]): {what}")
}

/// What a call of the function stands for.
#[derive(Debug)]
struct RequestRouting {
    tables: Arc<[RoutingTable]>,
    filters: Vec<Expr>,
    schema: SchemaRef,
}

impl RequestRouting {
    const COLUMNS: [Column; 9] = [
        Column::Key("run"),
        Column::Key("request_id"),
        Column::Key("choice"),
        Column::Key("position"),
        Column::Key("phase"),
        Column::Key("role"),
        Column::Key("instance"),
        Column::Layer,
        Column::Experts,
    ];
    /// Without a choice or run there may be several.
    const ORDER: [Column; 4] = [Column::Key("run"), Column::Key("choice"), Column::Key("position"), Column::Layer];
}

#[async_trait]
impl TableProvider for RequestRouting {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let shown: Vec<Column> = match projection {
            Some(projection) => projection.iter().map(|&column| Self::COLUMNS[column]).collect(),
            None => Self::COLUMNS.to_vec(),
        };
        // What is sorted by has to be there, shown or not; it comes after what is shown.
        let hidden = Self::ORDER.into_iter().filter(|column| !shown.contains(column));
        let columns: Vec<Column> = shown.iter().copied().chain(hidden).collect();
        let plan = unfold(state, &self.tables, Grain::Layer, &columns, &self.filters, None).await?;

        let schema = plan.schema();
        let column = |index: usize| Arc::new(expressions::Column::new(schema.field(index).name(), index));
        let order = Self::ORDER.iter().filter_map(|key| columns.iter().position(|column| column == key));
        let Some(order) = LexOrdering::new(order.map(|index| PhysicalSortExpr::new_default(column(index)))) else {
            return Ok(plan);
        };
        let sorted = Arc::new(SortExec::new(order, plan).with_fetch(limit));
        if shown.len() == columns.len() {
            return Ok(sorted);
        }
        let shown = (0..shown.len()).map(|index| (column(index) as _, schema.field(index).name().clone()));
        Ok(Arc::new(ProjectionExec::try_new(shown.collect::<Vec<(_, String)>>(), sorted)?))
    }
}
