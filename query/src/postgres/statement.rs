//! Statements: read, planned, run.

use std::{sync::Arc, time::Duration};

use arrow::datatypes::DataType;
use datafusion::{
    common::{ParamValues, ScalarValue},
    logical_expr::LogicalPlan,
    sql::{
        parser::{DFParserBuilder, Statement},
        sqlparser::{
            ast,
            dialect::{GenericDialect, PostgreSqlDialect},
        },
    },
};
use datafusion_postgres::datafusion_pg_catalog::sql::PostgresCompatibilityParser;

use super::compatible::{self, PostgresCatalog};
use crate::{
    answer::Answer,
    catalog::{Catalog, plan, run, shown_as},
    error::QueryError,
    gate::{Gate, Turn},
    metrics::Protocol,
    parameters::Text,
};

/// Statements of one message.
const STATEMENTS: usize = 32;

/// A statement as it was read.
#[derive(Debug, Clone)]
pub(super) enum Command {
    /// One that is answered without the tables: settings and transactions.
    Session(Box<ast::Statement>),
    /// One that the tables answer.
    Query(Box<Text>),
}

/// Reads statements and runs them.
pub(super) struct Statements {
    gate: Arc<Gate>,
    /// Rewrites what tools ask of Postgres's own catalog.
    tools: PostgresCompatibilityParser,
    catalog: PostgresCatalog,
}

impl Statements {
    pub(super) fn new(gate: Arc<Gate>, catalog: PostgresCatalog) -> Self {
        Self { gate, tools: PostgresCompatibilityParser::new(), catalog }
    }

    /// The statements of a text.
    pub(super) fn read(&self, sql: &str) -> Result<Vec<Command>, QueryError> {
        self.gate.check_length(sql)?;
        let statements = self.parsed(sql)?;
        if statements.len() > STATEMENTS {
            let count = statements.len();
            return Err(QueryError::Query(format!("{count} statements: expected {STATEMENTS} at most")));
        }
        statements.into_iter().map(command).collect()
    }

    /// One dialect for all servers; what only Postgres has, and questions about its catalog, as Postgres has them.
    fn parsed(&self, sql: &str) -> Result<Vec<Statement>, QueryError> {
        if !compatible::asks_catalog(sql) {
            let generic = DFParserBuilder::new(sql).with_dialect(&GenericDialect {}).build();
            if let Ok(statements) = generic.and_then(|mut parser| parser.parse_statements()) {
                return Ok(statements.into());
            }
        }
        let statements = self.tools.parse(&compatible::with_search_path(sql)).map_err(|error| {
            // The sentence of the dialect that everybody else gets.
            let generic = DFParserBuilder::new(sql).with_dialect(&PostgreSqlDialect {}).build();
            let generic = generic.and_then(|mut parser| parser.parse_statements()).err();
            generic.map_or_else(|| QueryError::Query(format!("SQL: {error}")), QueryError::from)
        })?;
        Ok(statements.into_iter().map(|statement| Statement::Statement(Box::new(statement))).collect())
    }

    /// A turn for statements of one message.
    pub(super) async fn turn(&self, at_most: Option<Duration>) -> Result<Arc<Turn>, QueryError> {
        self.gate.turn(Protocol::Postgres, at_most).await
    }

    /// The plan of a statement as of now.
    async fn plan(&self, statement: Statement) -> Result<(Catalog, LogicalPlan), QueryError> {
        let catalog = self.gate.catalog().await?;
        self.catalog.install(catalog.context()).await?;
        let plan = plan(catalog.context(), statement).await?;
        Ok((catalog, shown_as(plan, plain_bytes)?))
    }

    /// The plan alone, for its types.
    pub(super) async fn planned(&self, statement: &Text) -> Result<LogicalPlan, QueryError> {
        let limit = self.gate.limits().time;
        let planned = tokio::time::timeout(limit, self.plan(statement.for_types())).await;
        Ok(planned.map_err(|_| QueryError::TooSlow(limit))??.1)
    }

    /// Starts a statement on what there is now.
    pub(super) async fn run(&self, statement: &Text, parameters: &[ScalarValue]) -> Result<Answer, QueryError> {
        let (catalog, mut plan) = self.plan(statement.filled(parameters)?).await?;
        if !parameters.is_empty() {
            plan = plan.with_param_values(ParamValues::from(parameters.to_vec()))?;
        }
        run(catalog.context(), plan).await
    }
}

/// Bytes of any length, the only ones that Postgres has.
fn plain_bytes(data_type: &DataType) -> Option<DataType> {
    matches!(data_type, DataType::FixedSizeBinary(_)).then_some(DataType::Binary)
}

fn command(statement: Statement) -> Result<Command, QueryError> {
    use ast::Statement as S;
    let Statement::Statement(inner) = statement else {
        return Ok(Command::Query(Box::new(Text::new(statement)?)));
    };
    Ok(match inner.as_ref() {
        S::Set(_)
        | S::ShowVariable { .. }
        | S::StartTransaction { .. }
        | S::Commit { .. }
        | S::Rollback { .. }
        | S::Savepoint { .. }
        | S::ReleaseSavepoint { .. }
        | S::Discard { .. }
        | S::Reset(_)
        | S::Deallocate { .. } => Command::Session(inner),
        _ => Command::Query(Box::new(Text::new(Statement::Statement(inner))?)),
    })
}
