//! What a client says, by the simple and the extended protocol.

use std::{fmt::Debug, sync::Arc};

use arrow::datatypes::DataType;
use async_trait::async_trait;
use datafusion::{
    common::{ParamValues, ScalarValue, metadata::ScalarAndMetadata},
    logical_expr::LogicalPlan,
};
use datafusion_postgres::{
    arrow_pg::datatypes::{
        arrow_schema_to_pg_fields, df::deserialize_parameters_with_server_types, encode_recordbatch, into_pg_type,
    },
    pgwire::{
        api::{
            ClientInfo, ClientPortalStore, Type,
            portal::{Format, Portal},
            query::{ExtendedQueryHandler, SimpleQueryHandler},
            results::{FieldInfo, QueryResponse, Response},
            stmt::QueryParser,
            store::PortalStore,
        },
        error::{PgWireError, PgWireResult},
        messages::{PgWireBackendMessage, data::DataRow, response::TransactionStatus},
        types::format::FormatOptions,
    },
};
use futures::{Sink, Stream, StreamExt, stream};

use super::{
    cancel::Cancelled,
    refusal, settings,
    statement::{Command, Statements},
};
use crate::{
    error::QueryError,
    gate::{Rows, Turn},
};

/// One connection's statements.
pub(super) struct Session {
    statements: Arc<Statements>,
}

impl Session {
    pub(super) fn new(statements: Arc<Statements>) -> Self {
        Self { statements }
    }

    /// Runs one statement in a turn that may be shared with others of its message.
    async fn run<C>(
        &self,
        client: &mut C,
        command: &Command,
        parameters: &[ScalarValue],
        format: &Format,
        turn: &mut Option<Arc<Turn>>,
    ) -> PgWireResult<Response>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let statement = match command {
            Command::Session(statement) => return settings::answer(client, statement).await,
            Command::Query(_) if client.transaction_status() == TransactionStatus::Error => {
                let what = "current transaction is aborted, commands ignored until end of transaction block";
                return Err(refusal::error("25P02", what));
            }
            Command::Query(statement) => statement,
        };
        let mut cancelled = Cancelled::of(client);
        let options = Arc::new(FormatOptions::from_client_metadata(client.metadata()));
        let at_most = settings::statement_timeout(client);
        let begin = async {
            let turn = match turn {
                Some(turn) => Arc::clone(turn),
                None => Arc::clone(turn.insert(self.statements.turn(at_most).await?)),
            };
            let answer = turn.within(self.statements.run(statement, parameters)).await?;
            Ok::<_, QueryError>(turn.rows(answer))
        };
        let rows = tokio::select! {
            rows = begin => rows?,
            () = cancelled.wait() => return Err(PgWireError::QueryCanceled),
        };
        let fields = Arc::new(arrow_schema_to_pg_fields(&rows.schema(), format, Some(options))?);
        Ok(Response::Query(QueryResponse::new(Arc::clone(&fields), encoded(rows, fields, cancelled))))
    }
}

/// Rows as they are sent.
fn encoded(
    rows: Rows,
    fields: Arc<Vec<FieldInfo>>,
    cancelled: Cancelled,
) -> impl Stream<Item = PgWireResult<DataRow>> + Send + 'static {
    let batches = stream::unfold(Some((rows, cancelled)), async |state| {
        let (mut rows, mut cancelled) = state?;
        let next = tokio::select! {
            next = rows.next() => next?.map_err(PgWireError::from),
            () = cancelled.wait() => Err(PgWireError::QueryCanceled),
        };
        let rest = next.is_ok().then_some((rows, cancelled));
        Some((next, rest))
    });
    batches.flat_map(move |batch| match batch {
        Ok(batch) => stream::iter(encode_recordbatch(Arc::clone(&fields), batch)).left_stream(),
        Err(error) => stream::once(std::future::ready(Err(error))).right_stream(),
    })
}

#[async_trait]
impl SimpleQueryHandler for Session {
    async fn do_query<C>(&self, client: &mut C, query: &str) -> PgWireResult<Vec<Response>>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let commands = self.statements.read(query)?;
        if commands.is_empty() {
            return Ok(vec![Response::EmptyQuery]);
        }
        let mut turn = None;
        let mut responses = Vec::with_capacity(commands.len());
        for command in &commands {
            match self.run(client, command, &[], &Format::UnifiedText, &mut turn).await {
                Ok(response) => responses.push(response),
                // What came before it is answered first.
                Err(error) if responses.is_empty() => return Err(error),
                Err(error) => {
                    responses.push(Response::Error(Box::new(error.into())));
                    break;
                }
            }
        }
        Ok(responses)
    }
}

/// A statement that is kept for later.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    command: Arc<Command>,
    /// As it was planned when it came, for its types; it is planned again each time it runs.
    plan: Option<Arc<LogicalPlan>>,
    parameters: Vec<Option<DataType>>,
}

impl Prepared {
    /// What is said of a parameter that nothing tells the type of: text.
    fn wire_types(&self) -> PgWireResult<Vec<Type>> {
        self.parameters.iter().map(|known| known.as_ref().map_or(Ok(Type::TEXT), into_pg_type)).collect()
    }

    fn values(&self, portal: &Portal<Self>) -> PgWireResult<Vec<ScalarValue>> {
        let (given, expected) = (portal.parameter_len(), self.parameters.len());
        if given != expected {
            let what = format!("{expected} parameters are expected, and {given} were given");
            return Err(refusal::error("08P01", what));
        }
        if self.parameters.is_empty() {
            return Ok(Vec::new());
        }
        let wire = self.wire_types()?;
        let wire: Vec<Option<&Type>> = wire.iter().map(Some).collect();
        let known: Vec<Option<&DataType>> = self.parameters.iter().map(Option::as_ref).collect();
        let ParamValues::List(values) = deserialize_parameters_with_server_types(portal, &known, &wire)? else {
            return Err(refusal::error("08P01", "parameters are numbered"));
        };
        // Drivers send whole numbers as small as they are; LIMIT takes large ones alone.
        let wide = |(value, known): (ScalarAndMetadata, &Option<&DataType>)| match value.value {
            ScalarValue::Int16(number) if known.is_none() => ScalarValue::Int64(number.map(i64::from)),
            ScalarValue::Int32(number) if known.is_none() => ScalarValue::Int64(number.map(i64::from)),
            value => value,
        };
        Ok(values.into_iter().zip(&known).map(wide).collect())
    }
}

#[async_trait]
impl QueryParser for Statements {
    type Statement = Prepared;

    async fn parse_sql<C>(&self, _: &C, sql: &str, _: &[Option<Type>]) -> PgWireResult<Option<Prepared>>
    where
        C: ClientInfo + Unpin + Send + Sync,
    {
        let mut commands = self.read(sql)?;
        let Some(command) = commands.pop() else { return Ok(None) };
        if !commands.is_empty() {
            let count = commands.len() + 1;
            return Err(refusal::error("42601", format!("one statement is expected, and {count} were given")));
        }
        let mut prepared = Prepared { command: Arc::new(command), plan: None, parameters: Vec::new() };
        if let Command::Query(statement) = prepared.command.as_ref() {
            let plan = self.planned(statement).await?;
            prepared.parameters = statement.types(&plan)?;
            prepared.plan = Some(Arc::new(plan));
        }
        Ok(Some(prepared))
    }

    fn get_parameter_types(&self, prepared: &Prepared) -> PgWireResult<Vec<Type>> {
        prepared.wire_types()
    }

    fn get_result_schema(&self, prepared: &Prepared, format: Option<&Format>) -> PgWireResult<Vec<FieldInfo>> {
        match (&prepared.plan, prepared.command.as_ref()) {
            (Some(plan), _) => {
                arrow_schema_to_pg_fields(plan.schema().as_arrow(), format.unwrap_or(&Format::UnifiedText), None)
            }
            (None, Command::Session(statement)) => Ok(settings::columns(statement)),
            (None, Command::Query(_)) => Ok(Vec::new()),
        }
    }
}

#[async_trait]
impl ExtendedQueryHandler for Session {
    type Statement = Prepared;
    type QueryParser = Statements;

    fn query_parser(&self) -> Arc<Statements> {
        Arc::clone(&self.statements)
    }

    async fn do_query<C>(&self, client: &mut C, portal: &Portal<Prepared>, _: usize) -> PgWireResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let prepared = &portal.statement.statement;
        let values = prepared.values(portal)?;
        self.run(client, &prepared.command, &values, &portal.result_column_format, &mut None).await
    }
}
