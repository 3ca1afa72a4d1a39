//! Arrow Flight: `DoPut` streams of events.

use std::pin::Pin;

use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, SchemaResult, Ticket, flight_service_server::FlightService,
};
use futures::{Stream, StreamExt};
use gatescope_wire::flight as wire;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{acknowledge::Acknowledger, stream::Reader};
use crate::live::Intake;

/// Answers that wait for an agent to read them.
const ANSWERS: usize = 16;
/// Messages of one stream that are taken and not durable; above it the agent waits.
const IN_FLIGHT: usize = 1024;

/// Answers to a stream.
pub type Answers = Pin<Box<dyn Stream<Item = Result<PutResult, Status>> + Send>>;

/// Takes agents' streams.
#[derive(Debug, Clone)]
pub struct Ingest {
    intake: Intake,
}

impl Ingest {
    /// A service that hands what comes to this intake.
    pub fn new(intake: Intake) -> Self {
        Self { intake }
    }

    /// Takes a `DoPut` stream: one whose first message [`wire::begins_stream`].
    ///
    /// # Errors
    /// Where it is another, or the collector takes nothing now.
    pub async fn take(
        &self,
        mut messages: impl Stream<Item = Result<FlightData, Status>> + Send + Unpin + 'static,
    ) -> Result<Response<Answers>, Status> {
        let first = messages.next().await.transpose()?;
        let first = first.filter(wire::begins_stream).ok_or_else(|| {
            let expected = wire::DESCRIPTOR;
            Status::invalid_argument(format!("first message: expected a descriptor with the path [\"{expected}\"]"))
        })?;
        self.put(first, messages)
    }

    /// Takes a `DoPut` stream whose first message has been read: one that [`wire::begins_stream`].
    ///
    /// # Errors
    /// Where the collector takes nothing now.
    fn put(
        &self,
        first: FlightData,
        messages: impl Stream<Item = Result<FlightData, Status>> + Send + Unpin + 'static,
    ) -> Result<Response<Answers>, Status> {
        self.intake.check_ready().map_err(|error| Status::unavailable(error.to_string()))?;
        let (answers, outgoing) = mpsc::channel(ANSWERS);
        let (settled, to_acknowledge) = mpsc::channel(IN_FLIGHT);
        let acknowledger = Acknowledger::new(self.intake.clone(), to_acknowledge, answers);
        let reader = Reader::new(self.intake.clone(), settled);
        tokio::spawn(acknowledger.run());
        tokio::spawn(reader.run(first, messages));
        Ok(Response::new(Box::pin(ReceiverStream::new(outgoing))))
    }
}

/// What a stream that never ends its answers says.
fn unsupported<T>(what: &str) -> Result<T, Status> {
    Err(Status::unimplemented(format!("{what}: this port takes DoPut streams of events")))
}

#[tonic::async_trait]
impl FlightService for Ingest {
    type HandshakeStream = Pin<Box<dyn Stream<Item = Result<HandshakeResponse, Status>> + Send>>;
    type ListFlightsStream = Pin<Box<dyn Stream<Item = Result<FlightInfo, Status>> + Send>>;
    type DoGetStream = Pin<Box<dyn Stream<Item = Result<FlightData, Status>> + Send>>;
    type DoPutStream = Answers;
    type DoExchangeStream = Pin<Box<dyn Stream<Item = Result<FlightData, Status>> + Send>>;
    type DoActionStream = Pin<Box<dyn Stream<Item = Result<arrow_flight::Result, Status>> + Send>>;
    type ListActionsStream = Pin<Box<dyn Stream<Item = Result<ActionType, Status>> + Send>>;

    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        self.take(request.into_inner()).await
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        unsupported("Handshake")
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        unsupported("ListFlights")
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        unsupported("GetFlightInfo")
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        unsupported("PollFlightInfo")
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        unsupported("GetSchema")
    }

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        unsupported("DoGet")
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoExchangeStream>, Status> {
        unsupported("DoExchange")
    }

    async fn do_action(&self, _: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        unsupported("DoAction")
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        unsupported("ListActions")
    }
}
