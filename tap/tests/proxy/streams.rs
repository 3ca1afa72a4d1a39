//! Streams of events.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use gatescope_tap::Role;
use http_body_util::BodyExt;
use serde_json::json;
use tokio::sync::mpsc;

use super::parties::{Running, collector, event_stream, post, serve, until};

/// An engine with one answer that a test sends piece by piece.
async fn engine() -> (std::net::SocketAddr, mpsc::Sender<Result<Bytes, std::io::Error>>) {
    let (send, pieces) = mpsc::channel(1);
    let pieces = Mutex::new(Some(pieces));
    (serve(move |_| event_stream(pieces.lock().unwrap().take().unwrap())).await, send)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_event_passes_before_the_next_is_there_and_the_whole_is_told() {
    let (engine, send) = engine().await;
    let (collector, told) = collector(|_| 200).await;
    let tap = Running::start(Role::Colocated, engine, collector, |options| options.run = Some("r1".into())).await;
    let mut answer = post(tap.address, "/inference/v1/generate", &[("X-Request-Id", "q")], "{\"stream\": true}").await;
    let events = [
        "data: {\"request_id\": \"q\", \"prompt_token_ids\": [4], \"choices\": [{\"index\": 0, \"token_ids\": [1]}]}\n\n".to_owned(),
        "data: {\"request_id\": \"q\", \"choices\": [{\"index\": 0, \"token_ids\": [2], \"finish_reason\": \"length\", \"routed_experts\": \"AAAA\"}]}\n\n".to_owned(),
        "data: [DONE]\n\n".to_owned(),
    ];
    for event in &events {
        send.send(Ok(Bytes::from(event.clone()))).await.unwrap();
        let frame = tokio::time::timeout(Duration::from_secs(5), answer.body_mut().frame()).await.unwrap();
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), event.as_bytes());
    }
    drop(send);
    assert!(answer.body_mut().frame().await.is_none());
    assert!(tap.stop().await);
    let told = told.lock().unwrap();
    assert_eq!(
        *told,
        [json!({"role": "colocated", "run": "r1", "request_id": "q", "response": {
            "request_id": "q", "prompt_token_ids": [4],
            "choices": [{"index": 0, "token_ids": [1, 2], "finish_reason": "length", "routed_experts": "AAAA"}],
        }})]
    );
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_stream_takes_no_more_memory_than_a_short_one() {
    const PIECES: usize = 3_000;
    let piece = Bytes::from(format!("data: {}\n\n", "x".repeat(64 << 10)));
    let (engine, send) = engine().await;
    let (collector, told) = collector(|_| 200).await;
    let tap = Running::start(Role::Decode, engine, collector, |options| options.answer_bytes = 4 << 20).await;
    let mut answer = post(tap.address, "/v1/completions", &[], "{}").await;
    let sent = piece.clone();
    tokio::spawn(async move {
        for _ in 0..PIECES {
            send.send(Ok(sent.clone())).await.unwrap();
        }
    });
    let (mut bytes, mut least, mut most, mut looks) = (0, usize::MAX, 0, 0);
    while let Some(frame) = answer.body_mut().frame().await {
        bytes += frame.unwrap().into_data().unwrap().len();
        if bytes > (8 + looks) << 20 {
            let now = resident();
            looks += 1;
            (least, most) = (least.min(now), most.max(now));
        }
    }
    assert_eq!(bytes, PIECES * piece.len());
    assert!(looks > 100);
    assert!(most - least < 32 << 20, "{} MiB more in the middle of 187 MiB", (most - least) >> 20);
    until("counted", || tap.metrics.too_large.get() == 1).await;
    assert!(tap.stop().await);
    assert!(told.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_holds_the_engine_back() {
    let (engine, send) = engine().await;
    let (collector, _) = collector(|_| 200).await;
    let tap = Running::start(Role::Decode, engine, collector, |_| {}).await;
    let mut answer = post(tap.address, "/v1/completions", &[], "{}").await;
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    let piece = Bytes::from(vec![b'y'; 64 << 10]);
    tokio::spawn(async move {
        for _ in 0..1_000 {
            send.send(Ok(piece.clone())).await.unwrap();
            count.fetch_add(piece.len(), Ordering::Relaxed);
        }
    });
    // What fits into the buffers of sockets is taken, and then no more.
    let mut before = usize::MAX;
    while before != taken.load(Ordering::Relaxed) {
        before = taken.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(before < 40 << 20, "{} MiB were taken from the engine for a client that reads nothing", before >> 20);
    let mut bytes = 0;
    while let Some(frame) = answer.body_mut().frame().await {
        bytes += frame.unwrap().into_data().unwrap().len();
    }
    assert_eq!(bytes, 1_000 * (64 << 10));
}
