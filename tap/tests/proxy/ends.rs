//! Engines and clients that go away.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use gatescope_tap::Role;
use http_body_util::BodyExt;
use hyper::StatusCode;
use tokio::sync::mpsc;

use super::parties::{Running, collector, event_stream, post, serve, text, until};

async fn engine() -> (SocketAddr, mpsc::Sender<Result<Bytes, std::io::Error>>) {
    let (send, pieces) = mpsc::channel(1);
    let pieces = Mutex::new(Some(pieces));
    (serve(move |_| event_stream(pieces.lock().unwrap().take().unwrap())).await, send)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_dies_breaks_the_answer_off_at_the_same_byte() {
    let (engine, send) = engine().await;
    let (collector, told) = collector(|_| 200).await;
    let tap = Running::start(Role::Decode, engine, collector, |_| {}).await;
    let mut answer = post(tap.address, "/v1/completions", &[], "{}").await;
    let event = "data: {\"choices\": [{\"routed_experts\": \"A\"}]}\n\n";
    send.send(Ok(Bytes::from(event))).await.unwrap();
    assert_eq!(answer.body_mut().frame().await.unwrap().unwrap().into_data().unwrap(), event.as_bytes());
    send.send(Err(std::io::Error::other("killed"))).await.unwrap();
    assert!(answer.body_mut().frame().await.unwrap().is_err(), "the client must not take it for whole");
    until("counted", || tap.metrics.broken.get() == 1).await;
    assert!(tap.stop().await);
    assert!(told.lock().unwrap().is_empty(), "half an answer is not told");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_ends_the_engines_answer() {
    let (engine, send) = engine().await;
    let (collector, _) = collector(|_| 200).await;
    let tap = Running::start(Role::Decode, engine, collector, |_| {}).await;
    let mut answer = post(tap.address, "/v1/completions", &[], "{}").await;
    send.send(Ok(Bytes::from("data: 1\n\n"))).await.unwrap();
    answer.body_mut().frame().await.unwrap().unwrap();
    drop(answer);
    tokio::time::timeout(Duration::from_secs(5), send.closed()).await.expect("the engine goes on for nobody");
    until("counted", || tap.metrics.broken.get() == 1).await;
}

#[tokio::test]
async fn an_engine_that_is_not_there_is_a_bad_gateway() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (collector, _) = collector(|_| 200).await;
    let tap = Running::start(Role::Prefill, nobody, collector, |_| {}).await;
    let answer = post(tap.address, "/v1/completions", &[], "{}").await;
    assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
    assert!(text(answer).await.contains("Bad Gateway"));
    assert_eq!(tap.metrics.unreachable.get(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_under_way_ends_before_the_tap_does() {
    let (engine, send) = engine().await;
    let (collector, told) = collector(|_| 200).await;
    let tap = Running::start(Role::Decode, engine, collector, |_| {}).await;
    let address = tap.address;
    let answer = post(address, "/v1/completions", &[], "{}").await;
    let stopping = tokio::spawn(tap.stop());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!stopping.is_finished());
    send.send(Ok(Bytes::from("data: {\"choices\": [{\"routed_experts\": \"A\"}]}\n\n"))).await.unwrap();
    drop(send);
    assert!(text(answer).await.starts_with("data:"));
    assert!(stopping.await.unwrap());
    assert_eq!(told.lock().unwrap().len(), 1);
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn addresses_that_are_none_are_refused() {
    let options = |upstream: &str| {
        gatescope_tap::Options::new(Role::Decode, upstream.parse().unwrap(), "http://127.0.0.1:1".parse().unwrap())
    };
    for upstream in ["https://a:1", "/path", "http://a:1/below"] {
        let error = gatescope_tap::Tap::start(options(upstream)).await.err().unwrap();
        assert!(error.to_string().contains("expected http://HOST:PORT"), "{error}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = options("http://a:1");
    options.listen = taken.local_addr().unwrap();
    let error = gatescope_tap::Tap::start(options).await.err().unwrap();
    assert!(error.to_string().starts_with("cannot listen on"), "{error}");
}
