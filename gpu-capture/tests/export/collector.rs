//! A collector that remembers what it took, and can be told to misbehave.

use std::{
    collections::HashMap,
    net::{SocketAddr, TcpListener},
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, SchemaResult, Ticket,
    flight_service_server::{FlightService, FlightServiceServer},
};
use futures::Stream;
use gatescope_wire::{Ack, Event, MessageId, Nack, Request, Told, decode, flight};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request as Call, Response, Status, Streaming};

/// What the collector does with a message that it can read.
#[derive(Debug, Clone, Default)]
pub(crate) enum Manner {
    /// Takes it and says so.
    #[default]
    Acknowledge,
    /// Takes it and says so of every eighth.
    Seldom,
    /// Takes it, says so, and forgets it.
    #[allow(dead_code, reason = "the benchmark's")]
    Forget,
    /// Reads it and does nothing.
    Silent,
    /// Does nothing with it but answer these bytes.
    Say(Vec<u8>),
    /// Waits before it takes the next.
    Slow(Duration),
    /// Ends the stream with an error.
    Fail,
}

/// What outlives the process of the collector.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    pub(crate) manner: Manner,
    /// Refuses messages of these numbers, as often as it says.
    pub(crate) refuse: HashMap<u64, (Nack, usize)>,
    /// The events taken, each once, in their order, as text.
    pub(crate) taken: Vec<Event>,
    pub(crate) durable: u64,
    /// Numbers in the order in which they came, on every stream.
    pub(crate) streams: Vec<Vec<u64>>,
    pub(crate) authorization: Option<String>,
    pub(crate) largest: usize,
}

/// `(request, position)`, ascending.
pub(crate) type Positions = Vec<(String, u32)>;
pub(crate) type Shared = Arc<Mutex<Disk>>;

/// A running collector; dropping it kills it.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    pub(crate) disk: Shared,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        Self::start_on("127.0.0.1:0".parse().unwrap(), Shared::default())
    }

    pub(crate) fn behaving(manner: Manner) -> Self {
        let collector = Self::start();
        collector.disk.lock().unwrap().manner = manner;
        collector
    }

    /// Comes back where one was, with what it remembers.
    pub(crate) fn start_on(address: SocketAddr, disk: Shared) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = listen(address);
        let address = listener.local_addr().unwrap();
        let service = FlightServiceServer::new(Service { disk: disk.clone() });
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let incoming = TcpListenerStream::new(listener);
            tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await
        });
        Self { address, disk, runtime: Some(runtime) }
    }

    pub(crate) fn url(&self) -> String {
        format!("grpc://{}", self.address)
    }

    pub(crate) fn set(&self, manner: Manner) {
        self.disk.lock().unwrap().manner = manner;
    }

    /// Ends at once, connections and all; what it took stays.
    pub(crate) fn kill(mut self) -> (SocketAddr, Shared) {
        self.runtime.take().unwrap().shutdown_timeout(Duration::from_secs(5));
        (self.address, self.disk.clone())
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

fn listen(address: SocketAddr) -> TcpListener {
    for _ in 0..500 {
        // The port of one that was just killed may be in use a moment longer.
        if let Ok(listener) = TcpListener::bind(address) {
            listener.set_nonblocking(true).unwrap();
            return listener;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no port {address}");
}

struct Service {
    disk: Shared,
}

/// What to answer to a message, and whether the stream goes on.
enum Answer {
    Nothing,
    Bytes(Vec<u8>),
    /// Nothing more on this stream is taken: the order would break.
    Last(Vec<u8>),
    End,
}

impl Disk {
    fn receive(&mut self, stream: usize, id: &MessageId, events: Vec<Event>) -> Answer {
        if !matches!(self.manner, Manner::Forget) {
            self.streams[stream].push(id.seq);
        }
        match self.manner.clone() {
            Manner::Silent => return Answer::Nothing,
            Manner::Say(bytes) => return Answer::Bytes(bytes),
            Manner::Fail => return Answer::End,
            Manner::Acknowledge | Manner::Seldom | Manner::Forget | Manner::Slow(_) => {}
        }
        let mut ack = Ack { agent: id.agent.clone(), boot: id.boot, durable: self.durable, nacks: Vec::new() };
        let mut skip = None;
        if let Some((nack, times)) = self.refuse.get_mut(&id.seq)
            && *times > 0
        {
            *times -= 1;
            ack.nacks.push(nack.clone());
            match nack.row {
                None if nack.retryable => return Answer::Last(ack.metadata()[0].to_vec()),
                None => {
                    self.durable = self.durable.max(id.seq);
                    ack.durable = self.durable;
                    return Answer::Bytes(ack.metadata()[0].to_vec());
                }
                Some(row) => skip = Some(row as usize),
            }
        }
        if id.seq > self.durable {
            self.durable = id.seq;
            let events = if matches!(self.manner, Manner::Forget) { Vec::new() } else { events };
            self.taken.extend(events.into_iter().enumerate().filter(|(i, _)| Some(*i) != skip).map(|(_, event)| event));
        }
        ack.durable = self.durable;
        let seldom = matches!(self.manner, Manner::Seldom) && !id.seq.is_multiple_of(8);
        if seldom { Answer::Nothing } else { Answer::Bytes(ack.metadata()[0].to_vec()) }
    }

    /// Positions taken and positions lost.
    pub(crate) fn positions(&self) -> (Positions, Positions) {
        let (mut rows, mut lost) = (Vec::new(), Vec::new());
        for event in &self.taken {
            let Event::Request(Request { key, told, .. }) = event else { continue };
            let (list, start, count) = match told {
                Told::Span(span) => {
                    let gatescope_routing::Anchor::Start(start) = span.anchor else { continue };
                    (&mut rows, start, span.rows.len() as u32)
                }
                Told::Lost(gap) => (&mut lost, gap.start, gap.positions),
                _ => continue,
            };
            list.extend((start..start + count).map(|position| (key.request_id.to_string(), position)));
        }
        rows.sort();
        lost.sort();
        (rows, lost)
    }
}

impl Disk {
    /// First positions of the spans taken, in their order.
    pub(crate) fn starts(&self) -> Vec<u32> {
        let of = |event: &Event| match event {
            Event::Request(Request { told: Told::Span(span), .. }) => match span.anchor {
                gatescope_routing::Anchor::Start(start) => Some(start),
                gatescope_routing::Anchor::End { .. } => None,
            },
            _ => None,
        };
        self.taken.iter().filter_map(of).collect()
    }
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
        let disk = self.disk.clone();
        let stream = {
            let mut disk = disk.lock().unwrap();
            disk.authorization = call.metadata().get("authorization").map(|value| value.to_str().unwrap().to_owned());
            disk.streams.push(Vec::new());
            disk.streams.len() - 1
        };
        let mut messages = call.into_inner();
        tokio::spawn(async move {
            let mut reader = flight::Stream::new();
            while let Ok(Some(data)) = messages.message().await {
                let Some(received) = reader.read(&data).unwrap() else { continue };
                let decoded = decode(&received.batch.unwrap()).unwrap();
                assert!(decoded.refused.is_empty() && decoded.skipped.is_empty());
                let (answer, wait) = {
                    let mut disk = disk.lock().unwrap();
                    disk.largest = disk.largest.max(data.data_body.len());
                    let wait = if let Manner::Slow(wait) = disk.manner { Some(wait) } else { None };
                    (disk.receive(stream, &received.id, decoded.events), wait)
                };
                if let Some(wait) = wait {
                    tokio::time::sleep(wait).await;
                }
                match answer {
                    Answer::Nothing => {}
                    Answer::Bytes(bytes) => {
                        if answers.send(Ok(PutResult { app_metadata: bytes.into() })).await.is_err() {
                            return;
                        }
                    }
                    Answer::Last(bytes) => {
                        let _ = answers.send(Ok(PutResult { app_metadata: bytes.into() })).await;
                        while let Ok(Some(_)) = messages.message().await {}
                        return;
                    }
                    Answer::End => {
                        let _ = answers.send(Err(Status::internal("told to fail"))).await;
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
