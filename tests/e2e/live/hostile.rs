//! What the world does to a collector: it stays up, says why, and goes on when the cause is gone.

use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use arrow_flight::{FlightData, flight_service_client::FlightServiceClient};
use gatescope_wire::{MessageId, flight};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use uuid::Uuid;

use super::{
    assert_stored,
    fleet::{Fleet, Simple},
    serve::{PATIENCE, Running, Serve},
};

fn until(what: &str, running: &Running, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "{what} did not happen: {}", running.log());
        thread::sleep(Duration::from_millis(50));
    }
}

async fn connect(to: SocketAddr) -> FlightServiceClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{to}")).unwrap();
    FlightServiceClient::new(endpoint.connect().await.unwrap())
}

#[test]
fn garbage_on_any_port_harms_nobody_else() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::on(folder.path());
    let running = serve.start();
    let fleet = Fleet::to(&serve.collector());
    let requests = Simple::many(0..10);

    // when
    for (index, address) in [serve.http, serve.flight, serve.http, serve.flight].into_iter().enumerate() {
        let mut stream = TcpStream::connect(address).unwrap();
        let garbage: Vec<u8> = (0..50_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> (index + 3)) as u8).collect();
        // It may be cut off in the middle.
        let _ = stream.write_all(&garbage);
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let refused = runtime.block_on(async {
        let schema = flight::schema_message().unwrap();
        let mut client = connect(serve.flight).await;
        let garbage = FlightData { data_header: vec![7; 900].into(), ..FlightData::default() };
        let mut answers = client.do_put(tokio_stream::iter([schema, garbage])).await.unwrap().into_inner();
        answers.message().await
    });
    requests.iter().for_each(|request| fleet.serve(request));
    fleet.flush();

    // then
    let status = refused.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
    assert!(running.stop().success());
    assert_stored(folder.path(), &requests);
}

#[test]
fn an_agent_that_never_reads_its_acknowledgements_holds_nobody_up() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::on(folder.path());
    let running = serve.start();
    let deaf = Simple::many(100..110);
    let runtime = tokio::runtime::Runtime::new().unwrap();

    // when
    let (messages, stream) = tokio::sync::mpsc::channel(4);
    let put = runtime.spawn({
        let to = serve.flight;
        async move {
            let mut client = connect(to).await;
            let answers = client.do_put(ReceiverStream::new(stream)).await.unwrap();
            // Kept and never read.
            tokio::time::sleep(PATIENCE).await;
            drop(answers);
        }
    });
    runtime.block_on(async {
        messages.send(flight::schema_message().unwrap()).await.unwrap();
        let boot = Uuid::new_v4();
        for (index, request) in deaf.iter().enumerate() {
            let events: Vec<_> = request.prefill().into_iter().chain(request.decode()).collect();
            let id = MessageId { agent: "deaf".into(), boot, seq: index as u64 + 1 };
            messages.send(flight::message(&id, &events).unwrap()).await.unwrap();
        }
    });
    let fleet = Fleet::to(&serve.collector());
    let mut requests = Simple::many(0..20);
    requests.iter().for_each(|request| fleet.serve(request));
    fleet.flush();
    until("taking what the deaf agent says", &running, || running.metric("gatescope_requests_total") >= 30.0);
    put.abort();

    // then
    assert!(running.stop().success());
    requests.extend(deaf);
    assert_stored(folder.path(), &requests);
}

#[test]
fn ten_thousand_open_requests_fit_into_little_memory() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::on(folder.path()).argument("--open-memory").argument("4");
    let running = serve.start();
    let requests = Simple::many(0..10_000);
    let exporter = |agent: &str| {
        let options = gatescope_capture::Options::new(serve.collector(), agent);
        gatescope_capture::Exporter::start(options).unwrap()
    };
    let (prefill, decode) = (exporter("p0"), exporter("d0"));

    // when
    for event in requests.iter().flat_map(Simple::prefill) {
        assert_eq!(prefill.send(event), gatescope_capture::Sent::Queued);
    }
    prefill.flush(PATIENCE).unwrap();
    until("parking", &running, || running.metric("gatescope_open_requests") >= 9_999.0);
    assert!(running.metric("gatescope_parked_bytes_total") > 0.0);
    for event in requests.iter().flat_map(Simple::decode) {
        assert_eq!(decode.send(event), gatescope_capture::Sent::Queued);
    }
    decode.flush(PATIENCE).unwrap();

    // then
    assert!(running.stop().success());
    assert_stored(folder.path(), &requests);
}

/// A small file system of its own; `None` where this user may not make one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, megabytes: u32) -> Option<Self> {
        let size = format!("size={megabytes}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output().ok()?;
        mounted.status.success().then(|| Self(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_said_and_got_over() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(folder.path(), 16) else {
        eprintln!("NOT RUN: this user may not mount a file system");
        return;
    };
    let filler = folder.path().join("filler");
    let data = folder.path().join("data");
    let serve = Serve::on(&data);
    let running = serve.start();
    let fleet = Fleet::to(&serve.collector());
    let mut requests = Simple::many(0..40);
    requests.iter().for_each(|request| fleet.serve(request));
    fleet.flush();

    // when
    let mut file = std::fs::File::create(&filler).unwrap();
    while file.write_all(&[7; 4096]).is_ok() {}
    let more = Simple::many(40..400);
    more.iter().for_each(|request| fleet.serve(request));
    until("noticing", &running, || running.get("/readyz").0 == 503);
    let said = running.get("/readyz").1;
    drop(file);
    std::fs::remove_file(&filler).unwrap();

    fleet.flush();

    // then
    assert!(said.contains("No space left"), "{said}");
    requests.extend(more);
    assert!(running.stop().success());
    assert_stored(&data, &requests);
    drop(disk);
}
