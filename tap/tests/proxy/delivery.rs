//! Collectors that are slow, away, or refuse.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use gatescope_tap::Role;
use http_body_util::Full;
use hyper::Response;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::parties::{Running, collector, post, serve, text, until};

const ANSWER: &str = r#"{"id": "cmpl-1", "choices": [{"index": 0, "routed_experts": "AAAA"}]}"#;

async fn engine() -> SocketAddr {
    serve(|_| {
        let builder = Response::builder().header("content-type", "application/json");
        builder.body(Full::new(Bytes::from(ANSWER))).unwrap()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_comes_back_is_told_once() {
    let (collector, told) = collector(|post| if post <= 2 { 503 } else { 200 }).await;
    let tap = Running::start(Role::Decode, engine().await, collector, |_| {}).await;
    assert_eq!(text(post(tap.address, "/v1/completions", &[("x-request-id", "a")], "{}").await).await, ANSWER);
    until("delivered", || tap.metrics.delivered.get() == 1).await;
    assert_eq!(tap.metrics.retries.get(), 2);
    assert_eq!(told.lock().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_stays_away_costs_what_was_for_it_and_nothing_else() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let tap = Running::start(Role::Decode, engine().await, nobody, |options| {
        options.deliver_within = Duration::from_millis(300);
    })
    .await;
    for _ in 0..3 {
        assert_eq!(text(post(tap.address, "/v1/completions", &[], "{}").await).await, ANSWER);
    }
    until("given up", || tap.metrics.undelivered.get() == 3).await;
    assert_eq!(tap.metrics.delivered.get(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_collector_refuses_is_not_sent_again() {
    let (collector, _) = collector(|_| 422).await;
    let tap = Running::start(Role::Decode, engine().await, collector, |_| {}).await;
    text(post(tap.address, "/v1/completions", &[], "{}").await).await;
    until("refused", || tap.metrics.refused.get() == 1).await;
    assert_eq!(tap.metrics.retries.get(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_drops_and_traffic_goes_on() {
    // given: a collector that takes connections and never answers
    let stuck = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = stuck.local_addr().unwrap();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((connection, _)) = stuck.accept().await {
            held.push(connection);
        }
    });
    let tap = Running::start(Role::Decode, engine().await, address, |options| {
        options.queue = 1;
        options.stop_within = Duration::from_millis(200);
    })
    .await;

    // when, then: the first is being delivered, another waits, and all are answered
    for _ in 0..6 {
        let answer = tokio::time::timeout(Duration::from_secs(2), post(tap.address, "/v1/completions", &[], "{}"));
        assert_eq!(text(answer.await.unwrap()).await, ANSWER);
    }
    until("dropped", || tap.metrics.queue_full.get() >= 3).await;
    assert!(!tap.stop().await, "what could not be delivered is said");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_routing_or_cannot_be_read_is_counted() {
    let engine = serve(|request| {
        let encoded = request.uri().path() == "/encoded";
        let builder = Response::builder().header("content-type", "application/json");
        let builder = if encoded { builder.header("content-encoding", "gzip") } else { builder };
        builder.body(Full::new(Bytes::from("{\"choices\": [{\"routed_experts\": null}]}"))).unwrap()
    })
    .await;
    let (collector, told) = collector(|_| 200).await;
    let tap = Running::start(Role::Decode, engine, collector, |options| {
        options.metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    })
    .await;
    text(post(tap.address, "/plain", &[], "{}").await).await;
    text(post(tap.address, "/encoded", &[], "{}").await).await;
    until("looked at", || tap.metrics.without_routing.get() == 1 && tap.metrics.encoded.get() == 1).await;
    assert!(told.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_are_served_as_prometheus_text() {
    let (collector, _) = collector(|_| 200).await;
    let at = |address: SocketAddr| format!("http://{address}").parse().unwrap();
    let mut options = gatescope_tap::Options::new(Role::Decode, at(engine().await), at(collector));
    options.metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let tap = gatescope_tap::Tap::start(options).await.unwrap();
    let (address, metrics_at, metrics) = (tap.address().unwrap(), tap.metrics_address().unwrap(), tap.metrics());
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    tokio::spawn(tap.serve(stopped));
    text(post(address, "/v1/completions", &[], "{}").await).await;
    until("delivered", || metrics.delivered.get() == 1).await;
    let mut stream = tokio::net::TcpStream::connect(metrics_at).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    assert!(page.contains("\n# TYPE gatescope_tap_requests_total counter\ngatescope_tap_requests_total 1\n"), "{page}");
    assert!(page.contains("gatescope_tap_delivered_responses_total 1\n"), "{page}");
}
