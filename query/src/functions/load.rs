//! Table functions over `expert_load`: `balance` and `rank_load`.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::{
    catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider},
    common::{JoinType, Result, plan_err},
    datasource::ViewTable,
    functions::core::expr_fn::get_field,
    functions_aggregate::expr_fn::{max, sum},
    logical_expr::{AggregateUDF, Expr, LogicalPlan, LogicalPlanBuilder, cast, ident, lit},
    scalar::ScalarValue,
};

use super::balance::{ExpertBalance, names};

/// What balance may be told apart by.
const BY: [&str; 4] = ["minute", "role", "phase", "instance"];

/// `balance([by [, ranks [, experts]]])`: a row per run, model, what it is told apart by, and layer. `by` is one or more of `minute`,
/// `role`, `phase` and `instance`, separated by commas.
#[derive(Debug)]
pub(crate) struct BalanceTable {
    load: LogicalPlan,
}

impl BalanceTable {
    /// Over the view `expert_load`.
    pub(crate) fn new(load: LogicalPlan) -> Self {
        Self { load }
    }
}

impl TableFunctionImpl for BalanceTable {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let usage = |what: &str| plan_err!("balance([by [, ranks [, experts]]]): {what}");
        let (by, ranks, experts) = match args.exprs() {
            [] => (Vec::new(), None, None),
            [by, rest @ ..] if rest.len() <= 2 => {
                let Some(by) = columns(by) else { return usage("by is text: minute, role, phase or instance") };
                let (ranks, experts) = (rest.first().map(whole), rest.get(1).map(whole));
                match (ranks.unwrap_or(Ok(None)), experts.unwrap_or(Ok(None))) {
                    (Ok(ranks), Ok(experts)) => (by, ranks, experts),
                    _ => return usage("ranks and experts are whole numbers from 1 to 65536"),
                }
            }
            _ => return usage("it has three arguments at most"),
        };
        let keys = || ["run", "model"].into_iter().chain(by.iter().copied()).chain(["layer"]);
        let counted = summed(&self.load, keys().chain(["expert"]), experts)?;
        let balance = AggregateUDF::from(ExpertBalance::new());
        let arguments = vec![
            cast(ident("expert"), DataType::Int64),
            ident("tokens"),
            ident("experts"),
            lit(ScalarValue::Int64(Some(ranks.unwrap_or(0)))),
        ];
        let shown = keys().map(ident).chain(names().map(|name| get_field(ident("balance"), name).alias(name)));
        let plan = LogicalPlanBuilder::from(counted)
            .aggregate(keys().map(ident), [balance.call(arguments).alias("balance")])?
            .project(shown.collect::<Vec<_>>())?
            .build()?;
        Ok(Arc::new(ViewTable::new(plan, None)))
    }
}

/// `rank_load(ranks [, experts])`: tokens by minute, run, model, instance, role, phase, layer and expert-parallel rank.
#[derive(Debug)]
pub(crate) struct RankLoad {
    load: LogicalPlan,
}

impl RankLoad {
    /// Over the view `expert_load`.
    pub(crate) fn new(load: LogicalPlan) -> Self {
        Self { load }
    }
}

impl TableFunctionImpl for RankLoad {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let numbers: Vec<_> = args.exprs().iter().map(whole).collect();
        let (ranks, experts) = match numbers.as_slice() {
            [Ok(Some(ranks))] => (*ranks, None),
            [Ok(Some(ranks)), Ok(experts)] => (*ranks, *experts),
            _ => return plan_err!("rank_load(ranks [, experts]): both are whole numbers from 1 to 65536"),
        };
        let keys = ["minute", "run", "model", "instance", "role", "phase", "layer"];
        let counted = summed(&self.load, keys.into_iter().chain(["expert"]), experts)?;
        // As many experts on each rank, in order; where they do not divide, the last has fewer.
        let each = (ident("experts") + lit(ranks - 1)) / lit(ranks);
        let rank = (cast(ident("expert"), DataType::Int64) / each).alias("rank");
        let plan = LogicalPlanBuilder::from(counted)
            .project(keys.map(ident).into_iter().chain([rank, ident("tokens")]))?
            .aggregate(keys.into_iter().chain(["rank"]).map(ident), [sum(ident("tokens")).alias("tokens")])?
            .build()?;
        Ok(Arc::new(ViewTable::new(plan, None)))
    }
}

/// Tokens by these columns, and the number of experts: the highest id of the model and one, where it is not told.
fn summed<'a>(load: &LogicalPlan, keys: impl Iterator<Item = &'a str>, experts: Option<i64>) -> Result<LogicalPlan> {
    let keys: Vec<&str> = keys.collect();
    let by_key = LogicalPlanBuilder::from(load.clone())
        .aggregate(keys.iter().map(|key| ident(*key)), [sum(ident("tokens")).alias("tokens")])?
        .project(keys.iter().map(|key| ident(*key)).chain([ident("tokens")]))?;
    if let Some(experts) = experts {
        let shown = keys.iter().map(|key| ident(*key)).chain([ident("tokens"), lit(experts).alias("experts")]);
        return by_key.project(shown.collect::<Vec<_>>())?.build();
    }
    let models = LogicalPlanBuilder::from(load.clone())
        .aggregate([ident("model")], [max(ident("expert")).alias("highest")])?
        .project([
            ident("model").alias("of_model"),
            (cast(ident("highest"), DataType::Int64) + lit(1_i64)).alias("experts"),
        ])?
        .build()?;
    by_key
        .join(models, JoinType::Inner, (vec!["model"], vec!["of_model"]), None)?
        .project(keys.iter().map(|key| ident(*key)).chain([ident("tokens"), ident("experts")]))?
        .build()
}

fn columns(by: &Expr) -> Option<Vec<&'static str>> {
    let Expr::Literal(value, _) = by else { return None };
    if value.is_null() {
        return Some(Vec::new());
    }
    let text = value.try_as_str().flatten()?;
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let columns: Option<Vec<&str>> = words.map(|word| BY.into_iter().find(|known| *known == word)).collect();
    let mut columns = columns?;
    columns.dedup();
    Some(columns)
}

fn whole(expr: &Expr) -> Result<Option<i64>> {
    match expr {
        Expr::Literal(value, _) if value.is_null() => Ok(None),
        Expr::Literal(ScalarValue::Int64(Some(number)), _) if (1..=65_536).contains(number) => Ok(Some(*number)),
        _ => plan_err!("not a number"),
    }
}
