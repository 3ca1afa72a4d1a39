//! What passes is what was sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use gatescope_tap::Role;
use http_body_util::Full;
use hyper::{Request, Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::parties::{Running, collector, post, serve, text};

/// A line of the recordings.
#[derive(Deserialize)]
struct Recorded {
    role: String,
    request_id: String,
    response: Box<RawValue>,
}

fn recordings() -> Vec<Recorded> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/vllm-0.31/pair.pd.jsonl");
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_answers_of_an_engine_pass_byte_for_byte_and_are_told() {
    // given: an engine that answers what was recorded, by request id
    let decodes: Vec<Recorded> = recordings().into_iter().filter(|line| line.role == "decode").collect();
    let answers: HashMap<String, String> =
        decodes.iter().map(|line| (line.request_id.clone(), line.response.get().to_owned())).collect();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let engine = serve(move |request: Request<Bytes>| {
        let id = request.headers()["x-request-id"].to_str().unwrap().to_owned();
        let answer = answers[&id].clone();
        seen.lock().unwrap().push(request);
        let builder = Response::builder().header("content-type", "application/json").header("X-Odd", "a, b");
        builder.header("server", "uvicorn").header("date", "then").body(Full::new(Bytes::from(answer))).unwrap()
    })
    .await;
    let (collector, told) = collector(|_| 200).await;
    let tap = Running::start(Role::Decode, engine, collector, |options| options.instance = Some("d0".into())).await;

    // when: each is asked for directly and through the tap
    let request = r#"{"prompt": [1, 2], "kv_transfer_params": {"remote_engine_id": "e", "remote_request_id": "r"}}"#;
    for line in &decodes {
        let headers = [("x-request-id", line.request_id.as_str()), ("X-Custom", "Kept")];
        let direct = post(engine, "/v1/completions?a=b%20c", &headers, request).await;
        let through = post(tap.address, "/v1/completions?a=b%20c", &headers, request).await;

        // then: status, headers and body are the same
        assert_eq!((direct.status(), direct.headers()), (through.status(), through.headers()));
        let body = text(through).await;
        assert_eq!((body.as_str(), text(direct).await.as_str()), (line.response.get(), line.response.get()));
    }
    for pair in asked.lock().unwrap().chunks(2) {
        assert_eq!(pair[0].uri(), pair[1].uri());
        assert_eq!(pair[0].headers(), pair[1].headers());
        assert_eq!(pair[0].body(), pair[1].body());
    }
    let metrics = Arc::clone(&tap.metrics);
    assert!(tap.stop().await);

    // then: the collector has each of them, under its id
    assert_eq!(metrics.delivered.get(), decodes.len() as u64);
    let told = told.lock().unwrap();
    for (line, recorded) in told.iter().zip(&decodes) {
        assert_eq!((&line["role"], &line["instance"]), (&"decode".into(), &"d0".into()));
        assert_eq!(line["request_id"], recorded.request_id);
        assert_eq!(line["kv_transfer_params"]["remote_request_id"], "r");
        assert_eq!(line["response"], serde_json::from_str::<serde_json::Value>(recorded.response.get()).unwrap());
    }
    assert_eq!(told.len(), decodes.len());
}

/// Talks to an address in raw bytes.
async fn raw(at: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

/// An engine that reads a head and answers in raw bytes.
async fn raw_engine(answer: &'static str) -> (std::net::SocketAddr, Arc<Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let heard = Arc::new(Mutex::new(String::new()));
    let keep = Arc::clone(&heard);
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(connection.read_u8().await.unwrap());
            }
            *keep.lock().unwrap() = String::from_utf8(head).unwrap();
            connection.write_all(answer.as_bytes()).await.unwrap();
            // What comes after a switch of protocols goes back as it is.
            if answer.starts_with("HTTP/1.1 101") {
                let (mut from, mut to) = connection.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            }
        }
    });
    (address, heard)
}

#[tokio::test]
async fn names_of_headers_keep_how_they_are_written() {
    let (engine, heard) =
        raw_engine("HTTP/1.1 404 Not Found\r\nX-ODD-Name: Value\r\ncontent-Length: 3\r\nConnection: close\r\n\r\nno!")
            .await;
    let (collector, _) = collector(|_| 200).await;
    let tap = Running::start(Role::Prefill, engine, collector, |_| {}).await;
    let answer =
        raw(tap.address, "GET /v1/x HTTP/1.1\r\nHOST: there\r\nX-reQuest-ID: 7\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n") && answer.ends_with("\r\n\r\nno!"), "{answer}");
    assert!(answer.contains("X-ODD-Name: Value\r\n") && answer.contains("content-Length: 3\r\n"), "{answer}");
    assert!(!answer.to_ascii_lowercase().contains("date:"), "nothing is added: {answer}");
    assert_eq!(*heard.lock().unwrap(), "GET /v1/x HTTP/1.1\r\nHOST: there\r\nX-reQuest-ID: 7\r\n\r\n");
}

#[tokio::test]
async fn a_connection_that_changes_its_protocol_passes_both_ways() {
    let (engine, heard) =
        raw_engine("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n").await;
    let (collector, _) = collector(|_| 200).await;
    let tap = Running::start(Role::Colocated, engine, collector, |_| {}).await;
    let mut stream = TcpStream::connect(tap.address).await.unwrap();
    stream
        .write_all(b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .await
        .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    stream.write_all(b"\x81\x02hi").await.unwrap();
    let mut echo = [0; 4];
    stream.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"\x81\x02hi");
    assert!(heard.lock().unwrap().contains("Upgrade: websocket"));
}
