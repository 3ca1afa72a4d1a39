//! `/metrics` of the agent's own, in Prometheus' text format: one answer at a time, a short request, a short wait.

use std::{
    fmt::Write as _,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    AgentMetrics, AgentOptions, STEP_MICROS, Shared,
    figures::{Figure, figures},
};
use crate::{Exporter, Metrics};

/// Longest request that is read.
const MOST_REQUEST_BYTES: usize = 4096;
/// How long a client may take to ask, and to read.
const PATIENCE: Duration = Duration::from_secs(1);

/// A port that answers. Dropping it closes it.
#[derive(Debug)]
pub(super) struct MetricsPort {
    address: SocketAddr,
    ending: Arc<AtomicBool>,
}

impl MetricsPort {
    /// Listens at `HOST:PORT`.
    pub(super) fn open(
        address: &str,
        options: &AgentOptions,
        shared: Arc<Shared>,
        exporter: Arc<Exporter>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let info = format!(
            "gatescope_agent_info{{run={},instance={},role={}}} 1\n",
            quoted(&options.run),
            quoted(&options.instance),
            quoted(options.role.name())
        );
        let ending = Arc::new(AtomicBool::new(false));
        let ended = ending.clone();
        thread::Builder::new().name("gatescope-metrics".into()).spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Acquire) {
                    return;
                }
                match stream {
                    // A client that leaves or is too slow has its own log.
                    Ok(stream) => drop(answer(stream, || text(&info, &shared.metrics(), &exporter.metrics()))),
                    // Out of file handles, most likely: not to be asked about in a tight loop.
                    Err(_) => thread::sleep(Duration::from_millis(100)),
                }
            }
        })?;
        Ok(Self { address, ending })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsPort {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        // Wakes the thread; where that fails it ends with the next request.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(100));
    }
}

fn answer(mut stream: TcpStream, text: impl FnOnce() -> String) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (mut request, mut length) = ([0; MOST_REQUEST_BYTES], 0);
    while !request[..length].windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || length == request.len() {
            return stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut request[length..])? {
            0 => return Ok(()),
            read => length += read,
        }
    }
    if !request.starts_with(b"GET /metrics ") && !request.starts_with(b"GET /metrics?") {
        return stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    let body = text();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

fn text(info: &str, agent: &AgentMetrics, export: &Metrics) -> String {
    let mut out = format!("# HELP gatescope_agent_info Who this is.\n# TYPE gatescope_agent_info gauge\n{info}");
    for Figure { name, help, is_counter, value } in figures(agent, export) {
        let (suffix, kind) = if is_counter { ("_total", "counter") } else { ("", "gauge") };
        let name = format!("gatescope_agent_{name}{suffix}");
        // Writing into a string does not fail.
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    }
    let name = "gatescope_agent_step_seconds";
    let _ = write!(out, "# HELP {name} What capturing a step costs the engine.\n# TYPE {name} histogram\n");
    let mut below = 0;
    for (bound, count) in STEP_MICROS.iter().zip(agent.step_buckets) {
        below += count;
        let _ = writeln!(out, "{name}_bucket{{le=\"{}\"}} {below}", *bound as f64 / 1e6);
    }
    let all: u64 = agent.step_buckets.iter().sum();
    let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {all}");
    let _ = writeln!(out, "{name}_sum {}\n{name}_count {all}", agent.step_nanos as f64 / 1e9);
    out
}

fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
