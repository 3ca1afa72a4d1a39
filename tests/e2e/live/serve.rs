//! `gatescope serve` as a process.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// How long anything may take on a slow machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// How to start it.
#[derive(Debug, Clone)]
pub(super) struct Serve {
    pub(super) data: PathBuf,
    pub(super) http: SocketAddr,
    pub(super) flight: SocketAddr,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

/// One that runs. Dropped, it is killed.
pub(super) struct Running {
    child: Child,
    http: SocketAddr,
    log: Arc<Mutex<String>>,
}

impl Serve {
    pub(super) fn on(data: &Path) -> Self {
        Self {
            data: data.to_owned(),
            http: free_port(),
            flight: free_port(),
            arguments: vec!["--commit-interval".into(), "300ms".into()],
            environment: Vec::new(),
        }
    }

    /// Commits so often: small files pile up sooner.
    #[cfg(feature = "fail-points")]
    pub(super) fn committing_every(mut self, interval: &str) -> Self {
        if let Some(given) = self.arguments.get_mut(1) {
            interval.clone_into(given);
        }
        self
    }

    pub(super) fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.into());
        self
    }

    #[cfg(feature = "fail-points")]
    pub(super) fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Starts it and waits until it is ready.
    pub(super) fn start(&self) -> Running {
        let running = self.spawn();
        let begun = Instant::now();
        while running.get("/readyz").0 != 200 {
            assert!(begun.elapsed() < PATIENCE, "not ready: {}", running.log());
            thread::sleep(Duration::from_millis(20));
        }
        running
    }

    /// Starts it.
    pub(super) fn spawn(&self) -> Running {
        let mut child = Command::new(env!("CARGO_BIN_EXE_gatescope"))
            .arg("serve")
            .arg("--data")
            .arg(&self.data)
            .args(["--http", &self.http.to_string(), "--flight", &self.flight.to_string()])
            .args(["--postgres", "127.0.0.1:0"])
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let lines = Arc::clone(&log);
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut log = lines.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Running { child, http: self.http, log }
    }

    /// Where agents send to.
    pub(super) fn collector(&self) -> String {
        format!("grpc://{}", self.flight)
    }
}

impl Running {
    /// What it has said so far.
    pub(super) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Kills it without a warning.
    pub(super) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, and waits.
    pub(super) fn stop(mut self) -> ExitStatus {
        let killed = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        self.ended()
    }

    /// Waits until it ends by itself.
    pub(super) fn ended(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end: {}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether it still runs.
    #[cfg(feature = "fail-points")]
    pub(super) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Status and body of an answer; 0 where nobody answers.
    pub(super) fn get(&self, path: &str) -> (u16, String) {
        self.request("GET", path, "", &[])
    }

    /// As [`Self::get`], of a body that is posted.
    pub(super) fn post(&self, path: &str, kind: &str, body: &[u8]) -> (u16, String) {
        self.request("POST", path, kind, body)
    }

    fn request(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> (u16, String) {
        let Ok(mut stream) = TcpStream::connect(self.http) else { return (0, String::new()) };
        let head = format!(
            "{method} {path} HTTP/1.0\r\nhost: test\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // A server that refuses early closes before it has read all.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
        (status, body)
    }

    /// A number of `/metrics`: the sum over all labels.
    pub(super) fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        let lines = text
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ') || rest.starts_with('{')));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
