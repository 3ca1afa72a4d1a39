//! What passes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri, client, server};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::answer::Seen;
use crate::budget::{Budget, Copied};
use crate::deliver::Delivery;
use crate::metrics::Metrics;
use crate::options::{Options, OptionsError, address};
use crate::tee::{End, Tee};

/// Most bytes of a request that are copied: what is looked for in it lies beside its prompt.
const REQUEST_BYTES: usize = 8 << 20;
/// Headers that are about one connection alone; HTTP/1 has no others in use.
const OF_A_CONNECTION: [HeaderName; 4] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TRANSFER_ENCODING,
];

type Passing = Either<Tee, Full<Bytes>>;

/// Why a tap did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address in the options is none.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// A port that cannot be had.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    /// No thread for delivery.
    #[error("starting a thread: {0}")]
    Thread(std::io::Error),
}

/// A tap that listens.
pub struct Tap {
    listener: TcpListener,
    metrics_listener: Option<TcpListener>,
    delivery: Delivery,
    shared: Arc<Shared>,
    options: Options,
}

struct Shared {
    upstream: String,
    answer_bytes: usize,
    budget: Arc<Budget>,
    queue: mpsc::Sender<Seen>,
    metrics: Arc<Metrics>,
}

impl Tap {
    /// Binds its ports and starts the thread that delivers.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        options.check()?;
        let bind = async |at| TcpListener::bind(at).await.map_err(|error| StartError::Listen(at, error));
        let listener = bind(options.listen).await?;
        let metrics_listener = match options.metrics {
            Some(at) => Some(bind(at).await?),
            None => None,
        };
        let metrics = Arc::new(Metrics::default());
        let (queue, seen) = mpsc::channel(options.queue.max(1));
        let delivery = Delivery::start(&options, seen, Arc::clone(&metrics)).map_err(StartError::Thread)?;
        let shared = Shared {
            upstream: address(&options.upstream),
            answer_bytes: options.answer_bytes,
            budget: Budget::new(options.copies_bytes),
            queue,
            metrics,
        };
        Ok(Self { listener, metrics_listener, delivery, shared: Arc::new(shared), options })
    }

    /// Where it listens for clients.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Where `/metrics` is.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_listener.as_ref()?.local_addr().ok()
    }

    /// What it counts.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.shared.metrics)
    }

    /// Proxies until `stop` says so. Then no new connection is taken, answers under way go on to their end and the queue is
    /// delivered, both within [`Options::stop_within`]. Says whether all of it was.
    pub async fn serve(self, mut stop: watch::Receiver<bool>) -> bool {
        let metrics_task = self.metrics_listener.map(|listener| {
            let metrics = Arc::clone(&self.shared.metrics);
            tokio::spawn(async move { serve_metrics(listener, metrics).await })
        });
        let room = Arc::new(Semaphore::new(self.options.connections.max(1)));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = told(&mut stop) => break,
                // Connections that have ended are let go of.
                Some(_) = connections.join_next() => continue,
                accepted = accept(&self.listener, &room) => accepted,
            };
            let (connection, permit) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, mostly: what is open goes on, and closes some.
                    tracing::warn!(%error, "cannot accept");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    continue;
                }
            };
            let (shared, stop) = (Arc::clone(&self.shared), stop.clone());
            connections.spawn(async move {
                serve_connection(connection, shared, stop).await;
                drop(permit);
            });
        }
        drop(self.listener);
        let deadline = Instant::now() + self.options.stop_within;
        let ended =
            tokio::time::timeout_at(deadline, async { while connections.join_next().await.is_some() {} }).await.is_ok();
        connections.shutdown().await;
        drop(self.shared);
        let delivered = self.delivery.ended(deadline).await;
        if let Some(task) = metrics_task {
            task.abort();
        }
        ended && delivered
    }
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, Option<tokio::sync::OwnedSemaphorePermit>)> {
    let permit = Arc::clone(room).acquire_owned().await.ok();
    let (connection, _) = listener.accept().await?;
    connection.set_nodelay(true)?;
    Ok((connection, permit))
}

async fn serve_connection(connection: TcpStream, shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(pass(request, &shared).await) }
    });
    let connection = server::conn::http1::Builder::new()
        .preserve_header_case(true)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(connection), service)
        .with_upgrades();
    tokio::pin!(connection);
    // An error is the client's or the engine's: either has seen it, too.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = told(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// Waits until it is said to stop, or nobody can say so any more.
async fn told(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// One request and its answer.
async fn pass(mut request: Request<Incoming>, shared: &Arc<Shared>) -> Response<Passing> {
    shared.metrics.requests.add(1);
    let client = request.headers().contains_key(header::UPGRADE).then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let request_id = parts.headers.get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);

    let asked = (parts.method == Method::POST).then(|| Arc::new(OnceLock::new()));
    let body = match &asked {
        Some(asked) => {
            let asked = Arc::clone(asked);
            let end: End = Box::new(move |copy, _| {
                let _ = asked.set(copy);
            });
            Tee::copied(body, Copied::new(&shared.budget, REQUEST_BYTES), end, None)
        }
        None => Tee::plain(body, None),
    };
    let mut outgoing = Request::new(body);
    *outgoing.method_mut() = parts.method;
    *outgoing.uri_mut() = origin_form(parts.uri);
    *outgoing.headers_mut() = parts.headers;
    // How names of headers are written is kept beside them.
    *outgoing.extensions_mut() = parts.extensions;
    if client.is_none() {
        of_other_connections(outgoing.headers_mut());
    }

    let (mut answer, connection) = match reach(outgoing, &shared.upstream).await {
        Ok(reached) => reached,
        Err(why) => {
            shared.metrics.unreachable.add(1);
            tracing::warn!(upstream = shared.upstream, %why, "the engine did not answer");
            return unreachable(&format!("{}: {why}", shared.upstream));
        }
    };
    if let (StatusCode::SWITCHING_PROTOCOLS, Some(client)) = (answer.status(), client) {
        let engine = hyper::upgrade::on(&mut answer);
        tokio::spawn(async move {
            let _connection = connection;
            if let (Ok(client), Ok(engine)) = (client.await, engine.await) {
                let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(engine)).await;
            }
        });
        return answer.map(|body| Either::Left(Tee::plain(body, None)));
    }
    of_other_connections(answer.headers_mut());
    let events = match kind(&answer) {
        Some(events) if asked.is_some() => events,
        _ => return answer.map(|body| Either::Left(Tee::plain(body, Some(Box::new(connection))))),
    };
    if answer.headers().contains_key(header::CONTENT_ENCODING) {
        shared.metrics.encoded.add(1);
        return answer.map(|body| Either::Left(Tee::plain(body, Some(Box::new(connection)))));
    }
    let copy = Copied::new(&shared.budget, shared.answer_bytes);
    let (metrics, queue) = (Arc::clone(&shared.metrics), shared.queue.clone());
    let end: End = Box::new(move |answer, ended| {
        if !ended {
            metrics.broken.add(1);
        } else if answer.whole().is_none() {
            metrics.too_large.add(1);
        } else if queue.try_send(Seen { asked, answer, events, request_id }).is_err() {
            metrics.queue_full.add(1);
        }
    });
    answer.map(|body| Either::Left(Tee::copied(body, copy, end, Some(Box::new(connection)))))
}

/// Asks the engine, over a connection of its own: one that was kept open may be closing under the request.
async fn reach(request: Request<Tee>, upstream: &str) -> Result<(Response<Incoming>, Connection), String> {
    let stream = TcpStream::connect(upstream).await.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let (mut sender, connection) = client::conn::http1::Builder::new()
        .preserve_header_case(true)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let connection = Connection(tokio::spawn(async move {
        let _ = connection.with_upgrades().await;
    }));
    let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
    Ok((answer, connection))
}

/// The engine's connection, closed when its answer is no longer wanted: an engine stops working for a client that has gone.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Whether the answer may have routing, and comes as events.
fn kind(answer: &Response<Incoming>) -> Option<bool> {
    if answer.status() != StatusCode::OK {
        return None;
    }
    let kind = answer.headers().get(header::CONTENT_TYPE)?.to_str().ok()?;
    match kind.split(';').next()?.trim() {
        "application/json" => Some(false),
        "text/event-stream" => Some(true),
        _ => None,
    }
}

/// What one connection says to its other end is not for the next.
fn of_other_connections(headers: &mut HeaderMap) {
    for name in OF_A_CONNECTION {
        headers.remove(name);
    }
}

/// Engines are asked for a path; a client that takes the tap for a proxy names the host as well.
fn origin_form(uri: Uri) -> Uri {
    match uri.path_and_query() {
        Some(path) if uri.authority().is_some() => Uri::from(path.clone()),
        _ => uri,
    }
}

fn unreachable(why: &str) -> Response<Passing> {
    let problem = serde_json::json!({"title": "Bad Gateway", "status": 502, "detail": why});
    let mut answer = Response::new(Either::Right(Full::new(Bytes::from(problem.to_string()))));
    *answer.status_mut() = StatusCode::BAD_GATEWAY;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    answer
}

async fn serve_metrics(listener: TcpListener, metrics: Arc<Metrics>) {
    // Whoever scrapes comes one at a time.
    while let Ok((connection, _)) = listener.accept().await {
        let metrics = Arc::clone(&metrics);
        let service = service_fn(move |request: Request<Incoming>| {
            let found = request.uri().path() == "/metrics";
            let text = if found { metrics.text() } else { String::new() };
            async move {
                let mut answer = Response::new(Full::new(Bytes::from(text)));
                if !found {
                    *answer.status_mut() = StatusCode::NOT_FOUND;
                }
                let kind = HeaderValue::from_static("text/plain; version=0.0.4");
                answer.headers_mut().insert(header::CONTENT_TYPE, kind);
                Ok::<_, Infallible>(answer)
            }
        });
        let serving =
            server::conn::http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(connection), service);
        let _ = tokio::time::timeout(std::time::Duration::from_secs(5), serving).await;
    }
}
