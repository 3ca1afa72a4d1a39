//! Engine, collector and client.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use gatescope_tap::{Metrics, Options, Role, Tap};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, client, server};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// Pieces of a body as a test sends them; an error breaks the connection off.
pub(crate) struct Pieces(pub(crate) mpsc::Receiver<Result<Bytes, std::io::Error>>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// Serves on a free port until the test ends.
pub(crate) async fn serve<B, F>(answer: F) -> SocketAddr
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    F: Fn(Request<Bytes>) -> Response<B> + Send + Sync + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = Arc::clone(&answer);
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                    Ok::<_, Infallible>(answer(Request::from_parts(parts, body)))
                }
            });
            tokio::spawn(async move {
                let builder = &mut server::conn::http1::Builder::new();
                let _ = builder.preserve_header_case(true).serve_connection(TokioIo::new(connection), service).await;
            });
        }
    });
    address
}

/// A collector that keeps what it is told. `says` answers each post.
pub(crate) async fn collector(
    says: impl Fn(usize) -> u16 + Send + Sync + 'static,
) -> (SocketAddr, Arc<Mutex<Vec<Value>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let (kept, posts) = (Arc::clone(&told), Mutex::new(0));
    let address = serve(move |request: Request<Bytes>| {
        assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/api/v1/responses"));
        let mut posts = posts.lock().unwrap();
        *posts += 1;
        let status = says(*posts);
        if status == 200 {
            let lines = request.body().split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            kept.lock().unwrap().extend(lines.map(|line| serde_json::from_slice::<Value>(line).unwrap()));
        }
        Response::builder().status(status).body(Full::new(Bytes::from("{\"refusals\": 0}"))).unwrap()
    })
    .await;
    (address, told)
}

/// A tap that runs.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) metrics: Arc<Metrics>,
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<bool>,
}

impl Running {
    pub(crate) async fn start(
        role: Role,
        engine: SocketAddr,
        collector: SocketAddr,
        change: impl FnOnce(&mut Options),
    ) -> Self {
        let at = |address: SocketAddr| format!("http://{address}").parse().unwrap();
        let mut options = Options::new(role, at(engine), at(collector));
        options.stop_within = Duration::from_secs(10);
        change(&mut options);
        let tap = Tap::start(options).await.unwrap();
        let (address, metrics) = (tap.address().unwrap(), tap.metrics());
        let (stop, stopped) = watch::channel(false);
        Self { address, metrics, stop, task: tokio::spawn(tap.serve(stopped)) }
    }

    /// Stops it; whether all was delivered.
    pub(crate) async fn stop(self) -> bool {
        self.stop.send_replace(true);
        self.task.await.unwrap()
    }
}

/// A post of a client on a connection of its own; dropping the answer's body closes it.
pub(crate) async fn post(at: SocketAddr, path: &str, headers: &[(&str, &str)], body: &str) -> Response<Incoming> {
    let stream = TcpStream::connect(at).await.unwrap();
    let mut builder = client::conn::http1::Builder::new();
    let (mut sender, connection) = builder.preserve_header_case(true).handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::post(path).header("host", "engine").header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    sender.send_request(request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()).await.unwrap()
}

pub(crate) async fn text(answer: Response<Incoming>) -> String {
    String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Waits for something that must come true.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = tokio::time::Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(tokio::time::Instant::now() < end, "in ten seconds not: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// An answer as a stream of events, fed by the test.
pub(crate) fn event_stream(pieces: mpsc::Receiver<Result<Bytes, std::io::Error>>) -> Response<Pieces> {
    Response::builder().header("content-type", "text/event-stream; charset=utf-8").body(Pieces(pieces)).unwrap()
}
