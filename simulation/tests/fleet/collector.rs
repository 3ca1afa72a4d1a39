//! A Flight server that takes what many agents send, and says so.

use std::{
    collections::HashMap,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
};

use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, SchemaResult, Ticket,
    flight_service_server::{FlightService, FlightServiceServer},
};
use futures::Stream;
use gatescope_wire::{Ack, Event, decode, flight};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request as Call, Response, Status, Streaming};

type Taken = Arc<Mutex<Vec<Event>>>;

/// A running collector.
pub(crate) struct Collector {
    address: SocketAddr,
    taken: Taken,
    _runtime: tokio::runtime::Runtime,
}

impl Collector {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let (address, taken) = (listener.local_addr().unwrap(), Taken::default());
        let service = FlightServiceServer::new(Service { taken: taken.clone() });
        let incoming = TcpListenerStream::new(listener);
        runtime.spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        Self { address, taken, _runtime: runtime }
    }

    pub(crate) fn url(&self) -> String {
        format!("grpc://{}", self.address)
    }

    /// The events taken, in the order in which they came.
    pub(crate) fn taken(&self) -> Vec<Event> {
        self.taken.lock().unwrap().clone()
    }
}

struct Service {
    taken: Taken,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl FlightService for Service {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = ReceiverStream<Result<PutResult, Status>>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;
    type DoExchangeStream = Answers<FlightData>;

    async fn do_put(&self, call: Call<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        let (answers, receiver) = mpsc::channel(64);
        let (taken, mut messages) = (self.taken.clone(), call.into_inner());
        tokio::spawn(async move {
            let (mut reader, mut durable) = (flight::Stream::new(), HashMap::new());
            while let Ok(Some(data)) = messages.message().await {
                let Some(received) = reader.read(&data).unwrap() else { continue };
                let decoded = decode(&received.batch.unwrap()).unwrap();
                assert!(decoded.refused.is_empty() && decoded.skipped.is_empty());
                let last: &mut u64 = durable.entry(received.id.agent.clone()).or_default();
                if received.id.seq > *last {
                    *last = received.id.seq;
                    taken.lock().unwrap().extend(decoded.events);
                }
                let ack = Ack { agent: received.id.agent, boot: received.id.boot, durable: *last, nacks: Vec::new() };
                for metadata in ack.metadata() {
                    if answers.send(Ok(PutResult { app_metadata: metadata })).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn handshake(&self, _: Call<Streaming<HandshakeRequest>>) -> Result<Response<Self::HandshakeStream>, Status> {
        Err(Status::unimplemented("handshake"))
    }

    async fn list_flights(&self, _: Call<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        Err(Status::unimplemented("list_flights"))
    }

    async fn get_flight_info(&self, _: Call<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        Err(Status::unimplemented("get_flight_info"))
    }

    async fn poll_flight_info(&self, _: Call<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        Err(Status::unimplemented("poll_flight_info"))
    }

    async fn get_schema(&self, _: Call<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        Err(Status::unimplemented("get_schema"))
    }

    async fn do_get(&self, _: Call<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        Err(Status::unimplemented("do_get"))
    }

    async fn do_exchange(&self, _: Call<Streaming<FlightData>>) -> Result<Response<Self::DoExchangeStream>, Status> {
        Err(Status::unimplemented("do_exchange"))
    }

    async fn do_action(&self, _: Call<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        Err(Status::unimplemented("do_action"))
    }

    async fn list_actions(&self, _: Call<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        Err(Status::unimplemented("list_actions"))
    }
}
