//! Arrow Flight SQL: statements, prepared statements, and what there is, for ADBC, JDBC and ODBC drivers.
//!
//! Nothing is kept between two calls: a ticket is the statement, a prepared statement's handle the statement with its
//! parameters. Results are streamed as the client reads them, and stop when it goes.

mod handle;
mod metadata;
mod service;

use std::{fmt, pin::Pin, sync::Arc};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow_flight::{
    FlightData, PutResult, encode::FlightDataEncoderBuilder, error::FlightError, sql::server::PeekableFlightDataStream,
};
use datafusion::common::ParamValues;
use futures::{Stream, StreamExt, future::BoxFuture};
use tonic::{Response, Status};

use self::handle::Handle;
use crate::{
    catalog::{plan, run, shown_as},
    error::QueryError,
    gate::Gate,
    metrics::Protocol,
    parameters::Text,
};

/// Answers to a `DoPut` stream.
pub type PutResults = Pin<Box<dyn Stream<Item = Result<PutResult, Status>> + Send>>;
/// Takes a `DoPut` stream that is none of Flight SQL's.
pub type OtherPuts =
    Arc<dyn Fn(PeekableFlightDataStream) -> BoxFuture<'static, Result<Response<PutResults>, Status>> + Send + Sync>;

/// What a stream of data is.
type DataStream = Pin<Box<dyn Stream<Item = Result<FlightData, Status>> + Send>>;

/// Flight SQL in front of the gate.
#[derive(Clone)]
pub struct FlightSql {
    gate: Arc<Gate>,
    others: OtherPuts,
}

impl FlightSql {
    /// A service that hands `DoPut` streams which are not of Flight SQL to `others`: the port is shared.
    pub fn new(gate: Arc<Gate>, others: OtherPuts) -> Self {
        Self { gate, others }
    }

    /// The columns of a statement's answer, and of its parameters.
    async fn described(&self, sql: &str) -> Result<(SchemaRef, SchemaRef), QueryError> {
        let text = self.gate.read(sql)?;
        let limit = self.gate.limits().time;
        let work = async {
            let catalog = self.gate.catalog().await?;
            let context = catalog.context();
            let plan = shown_as(plan(context, text.for_types()).await?, without_views)?;
            let parameters = text.types(&plan)?;
            let parameters = parameters.into_iter().enumerate().map(|(index, data_type)| {
                Field::new(format!("${}", index + 1), data_type.unwrap_or(DataType::Utf8), true)
            });
            Ok((Arc::clone(plan.schema().inner()), Arc::new(Schema::new(parameters.collect::<Vec<_>>()))))
        };
        tokio::time::timeout(limit, work).await.unwrap_or(Err(QueryError::TooSlow(limit)))
    }

    /// Runs a statement.
    async fn run(&self, handle: &Handle) -> Result<DataStream, Status> {
        let text = self.gate.read(&handle.sql).map_err(status)?;
        let values = handle.values()?;
        text.check(values.len()).map_err(status)?;
        let turn = self.gate.turn(Protocol::Flight, None).await.map_err(status)?;
        let begin = async {
            let catalog = self.gate.catalog().await?;
            let context = catalog.context();
            let mut plan = plan(context, text.filled(&values)?).await?;
            if !values.is_empty() {
                plan = plan.with_param_values(ParamValues::from(values))?;
            }
            run(context, shown_as(plan, without_views)?).await
        };
        let rows = turn.rows(turn.within(begin).await.map_err(status)?);
        let schema = rows.schema();
        let batches = futures::stream::unfold(rows, async |mut rows| {
            let next = rows.next().await?;
            Some((next.map_err(|error| FlightError::from(status(error))), rows))
        });
        let encoded = FlightDataEncoderBuilder::new().with_schema(schema).build(batches);
        Ok(encoded.map(|data| data.map_err(Status::from)).boxed())
    }
}

impl Text {
    /// Whether as many parameters were given as it has.
    fn check(&self, given: usize) -> Result<(), QueryError> {
        match self.parameters() {
            expected if expected == given => Ok(()),
            expected => Err(QueryError::Query(format!("{expected} parameters are expected, and {given} were given"))),
        }
    }
}

impl fmt::Debug for FlightSql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlightSql").field("gate", &self.gate).finish_non_exhaustive()
    }
}

/// Text and bytes in the layout that every reader of Arrow knows.
fn without_views(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Utf8View => Some(DataType::Utf8),
        DataType::BinaryView => Some(DataType::Binary),
        DataType::List(element) => without_views(element.data_type())
            .map(|data_type| DataType::List(Arc::new(element.as_ref().clone().with_data_type(data_type)))),
        _ => None,
    }
}

fn status(error: QueryError) -> Status {
    let text = error.to_string();
    match error {
        QueryError::Query(_) | QueryError::ReadOnly(_) => Status::invalid_argument(text),
        QueryError::Busy { .. } | QueryError::Memory(_) => Status::resource_exhausted(text),
        QueryError::TooSlow(_) => Status::deadline_exceeded(text),
        QueryError::Live(_) => Status::unavailable(text),
        _ => Status::internal(text),
    }
}
