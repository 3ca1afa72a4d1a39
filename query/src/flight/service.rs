//! The calls of Flight SQL.

use arrow::{
    array::RecordBatch,
    datatypes::{Schema, SchemaRef},
    ipc::writer::IpcWriteOptions,
};
use arrow_flight::{
    Action, FlightDescriptor, FlightEndpoint, FlightInfo, IpcMessage, SchemaAsIpc, Ticket,
    decode::FlightRecordBatchStream,
    encode::FlightDataEncoderBuilder,
    error::FlightError,
    flight_service_server::FlightService,
    sql::{
        ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult,
        Any, CommandGetCatalogs, CommandGetDbSchemas, CommandGetSqlInfo, CommandGetTableTypes, CommandGetTables,
        CommandPreparedStatementQuery, CommandStatementQuery, DoPutPreparedStatementResult, ProstMessageExt, SqlInfo,
        TicketStatementQuery,
        server::{FlightSqlService, PeekableFlightDataStream},
    },
};
use datafusion::logical_expr::TableType;
use futures::{StreamExt, TryStreamExt};
use prost::Message;
use tonic::{Request, Response, Status};

use super::{DataStream, FlightSql, handle::Handle, metadata, status};
use crate::{
    error::QueryError,
    session::{CATALOG, PUBLIC},
};

/// Most bytes of parameters.
const PARAMETERS: usize = 1 << 20;

type Data = Result<Response<DataStream>, Status>;
type Info = Result<Response<FlightInfo>, Status>;

/// Where an answer is to be had: here, for `ticket`.
fn info(schema: &Schema, ticket: &impl ProstMessageExt, request: Request<FlightDescriptor>) -> Info {
    let ticket = Ticket::new(ticket.as_any().encode_to_vec());
    let info = FlightInfo::new()
        .try_with_schema(schema)
        .map_err(|error| Status::internal(error.to_string()))?
        .with_endpoint(FlightEndpoint::new().with_ticket(ticket))
        .with_descriptor(request.into_inner());
    Ok(Response::new(info))
}

/// One batch as a stream.
fn data(batch: Result<RecordBatch, FlightError>, schema: SchemaRef) -> Data {
    let encoded = FlightDataEncoderBuilder::new().with_schema(schema).build(futures::stream::iter([batch]));
    Ok(Response::new(encoded.map(|data| data.map_err(Status::from)).boxed()))
}

fn ipc(schema: &Schema) -> Result<bytes::Bytes, Status> {
    let IpcMessage(bytes) = SchemaAsIpc::new(schema, &IpcWriteOptions::default())
        .try_into()
        .map_err(|error: arrow::error::ArrowError| Status::internal(error.to_string()))?;
    Ok(bytes)
}

#[tonic::async_trait]
impl FlightSqlService for FlightSql {
    type FlightService = Self;

    async fn get_flight_info_statement(
        &self,
        query: CommandStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Info {
        let (schema, _) = self.described(&query.query).await.map_err(status)?;
        let ticket = TicketStatementQuery { statement_handle: Handle::new(query.query).encode()? };
        info(&schema, &ticket, request)
    }

    async fn do_get_statement(&self, ticket: TicketStatementQuery, _: Request<Ticket>) -> Data {
        Ok(Response::new(self.run(&Handle::decode(&ticket.statement_handle)?).await?))
    }

    async fn do_action_create_prepared_statement(
        &self,
        query: ActionCreatePreparedStatementRequest,
        _: Request<Action>,
    ) -> Result<ActionCreatePreparedStatementResult, Status> {
        let sql = self.gate.with_numbers(&query.query).map_err(status)?;
        let (answer, parameters) = self.described(&sql).await.map_err(status)?;
        Ok(ActionCreatePreparedStatementResult {
            prepared_statement_handle: Handle::new(sql).encode()?,
            dataset_schema: ipc(&answer)?,
            parameter_schema: ipc(&parameters)?,
        })
    }

    async fn do_put_prepared_statement_query(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<DoPutPreparedStatementResult, Status> {
        let handle = Handle::decode(&query.prepared_statement_handle)?;
        let mut bytes = 0;
        let messages = request.into_inner().map_err(FlightError::from).and_then(move |message| {
            bytes += message.data_header.len() + message.data_body.len();
            let small = bytes <= PARAMETERS;
            let too_large = || Status::invalid_argument(format!("parameters: expected {PARAMETERS} bytes at most"));
            std::future::ready(if small { Ok(message) } else { Err(FlightError::from(too_large())) })
        });
        let mut batches = FlightRecordBatchStream::new_from_flight_data(messages);
        let mut parameters = None;
        while let Some(batch) = batches.try_next().await.map_err(Status::from)? {
            if batch.num_rows() == 0 {
                continue;
            }
            if batch.num_rows() > 1 || parameters.replace(batch).is_some() {
                return Err(Status::invalid_argument("one row of parameters is expected, and several were given"));
            }
        }
        let handle = match parameters {
            Some(parameters) => handle.with(parameters),
            None => handle,
        };
        Ok(DoPutPreparedStatementResult { prepared_statement_handle: Some(handle.encode()?) })
    }

    async fn get_flight_info_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Info {
        let handle = Handle::decode(&query.prepared_statement_handle)?;
        let (schema, _) = self.described(&handle.sql).await.map_err(status)?;
        info(&schema, &query, request)
    }

    async fn do_get_prepared_statement(&self, query: CommandPreparedStatementQuery, _: Request<Ticket>) -> Data {
        Ok(Response::new(self.run(&Handle::decode(&query.prepared_statement_handle)?).await?))
    }

    async fn do_action_close_prepared_statement(
        &self,
        _: ActionClosePreparedStatementRequest,
        _: Request<Action>,
    ) -> Result<(), Status> {
        Ok(())
    }

    async fn get_flight_info_catalogs(&self, query: CommandGetCatalogs, request: Request<FlightDescriptor>) -> Info {
        info(&query.into_builder().schema(), &query, request)
    }

    async fn do_get_catalogs(&self, query: CommandGetCatalogs, _: Request<Ticket>) -> Data {
        let mut builder = query.into_builder();
        let schema = builder.schema();
        builder.append(CATALOG);
        data(builder.build(), schema)
    }

    async fn get_flight_info_schemas(&self, query: CommandGetDbSchemas, request: Request<FlightDescriptor>) -> Info {
        info(&query.clone().into_builder().schema(), &query, request)
    }

    async fn do_get_schemas(&self, query: CommandGetDbSchemas, _: Request<Ticket>) -> Data {
        let mut builder = query.into_builder();
        let schema = builder.schema();
        builder.append(CATALOG, PUBLIC);
        data(builder.build(), schema)
    }

    async fn get_flight_info_tables(&self, query: CommandGetTables, request: Request<FlightDescriptor>) -> Info {
        info(&query.clone().into_builder().schema(), &query, request)
    }

    async fn do_get_tables(&self, query: CommandGetTables, _: Request<Ticket>) -> Data {
        let mut builder = query.into_builder();
        let schema = builder.schema();
        let catalog = self.gate.catalog().await.map_err(status)?;
        let public = catalog.context().catalog(CATALOG).and_then(|catalog| catalog.schema(PUBLIC));
        if let Some(public) = public {
            for name in public.table_names() {
                let table = public.table(&name).await.map_err(|error| status(QueryError::from(error)))?;
                let Some(table) = table else { continue };
                let kind = if table.table_type() == TableType::View { "VIEW" } else { "TABLE" };
                builder.append(CATALOG, PUBLIC, name, kind, &table.schema())?;
            }
        }
        data(builder.build(), schema)
    }

    async fn get_flight_info_table_types(
        &self,
        query: CommandGetTableTypes,
        request: Request<FlightDescriptor>,
    ) -> Info {
        info(&query.into_builder().schema(), &query, request)
    }

    async fn do_get_table_types(&self, query: CommandGetTableTypes, _: Request<Ticket>) -> Data {
        let mut builder = query.into_builder();
        let schema = builder.schema();
        ["TABLE", "VIEW"].iter().for_each(|kind| builder.append(kind));
        data(builder.build(), schema)
    }

    async fn get_flight_info_sql_info(&self, query: CommandGetSqlInfo, request: Request<FlightDescriptor>) -> Info {
        let about = metadata::ABOUT.as_ref().ok_or_else(|| Status::internal("nothing is known of this server"))?;
        info(&query.clone().into_builder(about).schema(), &query, request)
    }

    async fn do_get_sql_info(&self, query: CommandGetSqlInfo, _: Request<Ticket>) -> Data {
        let about = metadata::ABOUT.as_ref().ok_or_else(|| Status::internal("nothing is known of this server"))?;
        let builder = query.into_builder(about);
        let schema = builder.schema();
        data(builder.build(), schema)
    }

    async fn do_put_fallback(
        &self,
        request: Request<PeekableFlightDataStream>,
        _: Any,
    ) -> Result<Response<<Self as FlightService>::DoPutStream>, Status> {
        (self.others)(request.into_inner()).await
    }

    async fn register_sql_info(&self, _: i32, _: &SqlInfo) {}
}
