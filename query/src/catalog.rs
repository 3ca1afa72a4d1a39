//! A data folder, opened for queries.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::{
    catalog::TableProvider,
    execution::runtime_env::RuntimeEnv,
    logical_expr::{AggregateUDF, Expr, LogicalPlan, LogicalPlanBuilder, ScalarUDF, cast},
    prelude::SessionContext,
    sql::{
        parser::{DFParserBuilder, Statement},
        sqlparser::ast,
    },
};

use crate::{
    answer::Answer,
    error::QueryError,
    experts::{ExpertsView, RoutingTable},
    functions::{BalanceTable, ExpertBalance, ExpertCounts, Experts, RankLoad, Routing},
    live::{LiveTable, Look},
    parameters::Text,
    provider::DeltaFiles,
    reading::check_reads,
    session::{Options, runtime, session},
    snapshot::{TableSnapshot, read_tables},
    tables::{EXPERT_LOAD, FIXED, ROUTING_PREFIX, fixed_schema, sql_schema},
    views,
};

/// The increments of `expert_load` as the log has them; the view `expert_load` adds them up.
const INCREMENTS: &str = "expert_load_increments";
/// One batch of a sort takes this part of a query's memory, at most: two sorts of two partitions merge 16 runs each.
const SHARE_OF_MEMORY: usize = 1024;

/// The tables of a data folder at one position, with the views and functions on them. Opening takes no lock and writes
/// nothing; what is committed later is seen by opening again.
pub struct Catalog {
    folder: PathBuf,
    context: SessionContext,
    routing: Arc<[RoutingTable]>,
    memory_bytes: usize,
}

impl Catalog {
    /// Opens the folder that `import` wrote.
    ///
    /// # Errors
    /// If the folder is not there, holds no tables of gatescope, or a table's log cannot be read.
    pub async fn open(folder: &Path, options: &Options) -> Result<Self, QueryError> {
        let tables = read_tables(folder).await?;
        let runtime = runtime(folder, options)?;
        let plain = |_: &str, files: DeltaFiles| -> Arc<dyn TableProvider> { Arc::new(files) };
        Self::of(folder, runtime, options, &tables, &[], plain).await
    }

    /// The tables together with what a collector holds.
    pub(crate) async fn of_live(
        folder: &Path,
        runtime: Arc<RuntimeEnv>,
        options: &Options,
        tables: &BTreeMap<String, TableSnapshot>,
        look: &Arc<dyn Look>,
    ) -> Result<Self, QueryError> {
        let live = |name: &str, files: DeltaFiles| -> Arc<dyn TableProvider> {
            Arc::new(LiveTable::new(name.to_owned(), files, Arc::clone(look)))
        };
        Self::of(folder, runtime, options, tables, &look.routing_tables(), live).await
    }

    async fn of(
        folder: &Path,
        runtime: Arc<RuntimeEnv>,
        options: &Options,
        tables: &BTreeMap<String, TableSnapshot>,
        more_routing: &[(String, SchemaRef)],
        provider: impl Fn(&str, DeltaFiles) -> Arc<dyn TableProvider>,
    ) -> Result<Self, QueryError> {
        let (context, store) = session(runtime, options)?;
        for name in FIXED {
            let table = tables.get(name).cloned().unwrap_or_else(|| empty(name));
            let shown = if name == EXPERT_LOAD { INCREMENTS } else { name };
            context.register_table(shown, provider(name, DeltaFiles::new(table, store.clone())))?;
        }
        let mut routing_tables: BTreeMap<&str, TableSnapshot> = more_routing
            .iter()
            .map(|(name, schema)| (name.as_str(), TableSnapshot { schema: sql_schema(schema), files: Vec::new() }))
            .collect();
        let stored = tables.iter().filter(|(name, _)| name.starts_with(ROUTING_PREFIX));
        routing_tables.extend(stored.map(|(name, table)| (name.as_str(), table.clone())));
        let mut routing = Vec::new();
        for (name, table) in routing_tables {
            let files = provider(name, DeltaFiles::new(table, store.clone()));
            context.register_table(name, Arc::clone(&files))?;
            routing.push(RoutingTable::new(name.to_owned(), files));
        }
        let routing: Arc<[RoutingTable]> = routing.into();
        context.register_table("experts", Arc::new(ExpertsView::new(routing.clone())))?;
        context.register_udf(ScalarUDF::from(Experts::new()));
        context.register_udaf(AggregateUDF::from(ExpertCounts::new()));
        context.register_udtf("routing", Arc::new(Routing::new(routing.clone())));
        let summed = format!(
            "SELECT minute, run, model, instance, role, phase, layer, expert, sum(tokens) AS tokens \
             FROM {INCREMENTS} GROUP BY minute, run, model, instance, role, phase, layer, expert"
        );
        let summed = context.sql(&summed).await?;
        let load = summed.logical_plan().clone();
        context.register_udaf(AggregateUDF::from(ExpertBalance::new()));
        context.register_udtf("balance", Arc::new(BalanceTable::new(load.clone())));
        context.register_udtf("rank_load", Arc::new(RankLoad::new(load)));
        let summed = summed.into_view();
        context.register_table(EXPERT_LOAD, summed)?;
        // The view holds them; nobody needs to see them.
        context.deregister_table(INCREMENTS)?;
        views::register(&context).await?;
        Ok(Self { folder: folder.to_owned(), context, routing, memory_bytes: options.memory_bytes })
    }

    /// The folder that was opened.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts a query; its rows come as the answer is read.
    ///
    /// # Errors
    /// If the query does not parse or plan, or would do something else than read.
    pub async fn query(&self, sql: &str) -> Result<Answer, QueryError> {
        answer(&self.context, sql).await
    }

    /// A query that sorts rows of about this many bytes, more of them than fit in memory.
    ///
    /// A merge of sorted runs on disk holds two batches of each run, which for wide rows is more than a query may have.
    pub(crate) async fn query_sorted(&self, sql: &str, row_bytes: usize) -> Result<Answer, QueryError> {
        let rows = (self.memory_bytes / SHARE_OF_MEMORY / row_bytes.max(1)).clamp(64, 8192);
        let mut state = self.context.state();
        *state.config_mut() = self.context.copied_config().with_batch_size(rows);
        answer(&SessionContext::new_with_state(state), sql).await
    }

    pub(crate) fn context(&self) -> &SessionContext {
        &self.context
    }

    pub(crate) fn routing(&self) -> &[RoutingTable] {
        &self.routing
    }
}

async fn answer(context: &SessionContext, sql: &str) -> Result<Answer, QueryError> {
    run(context, plan(context, Text::read(sql)?.for_types()).await?).await
}

/// The plan of a statement that reads.
pub(crate) async fn plan(context: &SessionContext, statement: Statement) -> Result<LogicalPlan, QueryError> {
    check_reads(&statement)?;
    let plan = context.state().statement_to_plan(listing(statement)?).await?;
    refuse_writes(&plan)?;
    whole_numbers(plan)
}

/// Starts a plan.
pub(crate) async fn run(context: &SessionContext, plan: LogicalPlan) -> Result<Answer, QueryError> {
    let frame = context.execute_logical_plan(plan).await?;
    Ok(Answer::new(frame.execute_stream().await?))
}

/// `SHOW TABLES` lists ours, not those that describe them.
fn listing(statement: Statement) -> Result<Statement, QueryError> {
    let plain = match &statement {
        Statement::Statement(inner) => {
            matches!(inner.as_ref(), ast::Statement::ShowTables { show_options, .. } if show_options.show_in.is_none() && show_options.filter_position.is_none())
        }
        _ => false,
    };
    if !plain {
        return Ok(statement);
    }
    let sql = "SELECT table_schema, table_name, table_type FROM information_schema.tables \
               WHERE table_schema = 'public' ORDER BY table_name";
    let mut statements = DFParserBuilder::new(sql).build()?.parse_statements()?;
    Ok(statements.pop_front().unwrap_or(statement))
}

/// Counts of 64 bits without a sign as with one: most tools have no such type, and Postgres none at all. One that does not fit
/// is an error of its query.
fn whole_numbers(plan: LogicalPlan) -> Result<LogicalPlan, QueryError> {
    shown_as(plan, signed)
}

/// The plan with columns of other types where `other` gives one.
pub(crate) fn shown_as(
    plan: LogicalPlan,
    other: impl Fn(&DataType) -> Option<DataType>,
) -> Result<LogicalPlan, QueryError> {
    if !plan.schema().fields().iter().any(|field| other(field.data_type()).is_some()) {
        return Ok(plan);
    }
    let columns: Vec<Expr> = plan
        .schema()
        .iter()
        .map(|(table, field)| {
            let column = Expr::from((table, field));
            match other(field.data_type()) {
                Some(data_type) => cast(column, data_type).alias_qualified(table.cloned(), field.name()),
                None => column,
            }
        })
        .collect();
    Ok(LogicalPlanBuilder::from(plan).project(columns)?.build()?)
}

fn signed(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::UInt64 => Some(DataType::Int64),
        DataType::List(element) => signed(element.data_type())
            .map(|data_type| DataType::List(Arc::new(element.as_ref().clone().with_data_type(data_type)))),
        _ => None,
    }
}

fn empty(table: &str) -> TableSnapshot {
    TableSnapshot { schema: fixed_schema(table), files: Vec::new() }
}

fn refuse_writes(plan: &LogicalPlan) -> Result<(), QueryError> {
    use datafusion::common::tree_node::TreeNodeRecursion;
    let mut refused = None;
    plan.apply_with_subqueries(|node| {
        refused = match node {
            LogicalPlan::Ddl(ddl) => Some(ddl.name().to_owned()),
            LogicalPlan::Dml(dml) => Some(dml.op.to_string()),
            LogicalPlan::Copy(_) => Some("COPY".to_owned()),
            LogicalPlan::Statement(statement) => Some(statement.name().to_owned()),
            _ => return Ok(TreeNodeRecursion::Continue),
        };
        Ok(TreeNodeRecursion::Stop)
    })?;
    refused.map_or(Ok(()), |what| Err(QueryError::ReadOnly(spoken(&what))))
}

/// `DropTable` as `DROP TABLE`.
fn spoken(statement: &str) -> String {
    let mut words = String::new();
    for c in statement.chars() {
        if c.is_uppercase() && !words.is_empty() && !words.ends_with(' ') && statement.contains(char::is_lowercase) {
            words.push(' ');
        }
        words.extend(c.to_uppercase());
    }
    // What SQL calls CREATE TABLE is a table in memory here.
    words.replace(" MEMORY", "")
}
