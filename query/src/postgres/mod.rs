//! The Postgres wire protocol: psql, drivers, and whatever else speaks to a Postgres server, Grafana's data source among them.
//!
//! Each statement sees everything that was acknowledged before it. Nothing can be written; `BEGIN` and `COMMIT` are answered
//! and mean nothing, and of settings only those that drivers send are known.

mod cancel;
mod compatible;
mod connection;
mod information;
mod refusal;
mod session;
mod settings;
mod startup;
mod statement;
mod tls;

use std::{sync::Arc, time::Duration};

use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet};

pub use self::tls::{TlsError, TlsFiles};
use self::{
    cancel::Running, compatible::PostgresCatalog, connection::Connection, startup::Login, statement::Statements,
};
use crate::{error::QueryError, gate::Gate};

/// How long an accept that failed is not tried again: what is short then, mostly file descriptors, does not come back at once.
const PAUSE: Duration = Duration::from_millis(100);

/// How the server listens.
#[derive(Debug, Clone)]
pub struct Options {
    /// Connections at once; one more is closed.
    pub connections: usize,
    /// How long a client may take to log in.
    pub startup: Duration,
    /// What every user has to say, where there is one (SCRAM-SHA-256).
    pub password: Option<String>,
    /// Certificate and key. With them, connections without TLS are refused.
    pub tls: Option<TlsFiles>,
}

impl Default for Options {
    fn default() -> Self {
        Self { connections: 100, startup: Duration::from_secs(10), password: None, tls: None }
    }
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The catalog that tools ask cannot be made.
    #[error("the catalog for tools: {0}")]
    Catalog(#[from] QueryError),
}

/// A Postgres server that is ready to serve.
pub struct Server {
    login: Login,
    tls: Option<tls::Acceptor>,
    places: Arc<Semaphore>,
    startup: Duration,
    catalog: PostgresCatalog,
}

impl Server {
    /// Prepares to serve.
    ///
    /// # Errors
    /// Where certificate or key cannot be used: there is no falling back to plain text.
    pub fn new(options: Options) -> Result<Self, StartError> {
        let tls = options.tls.as_ref().map(TlsFiles::acceptor).transpose()?;
        Ok(Self {
            login: Login { password: options.password.map(Into::into), encrypted: tls.is_some() },
            tls,
            places: Arc::new(Semaphore::new(options.connections)),
            startup: options.startup,
            catalog: PostgresCatalog::new()?,
        })
    }

    /// Serves what passes the gate until `stop` is done, then closes what is open.
    pub async fn serve(self, gate: Arc<Gate>, listener: TcpListener, stop: impl Future<Output = ()>) {
        let statements = Arc::new(Statements::new(Arc::clone(&gate), self.catalog));
        let running = Arc::new(Running::default());
        let mut connections = JoinSet::new();
        tokio::pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
            };
            let socket = match accepted {
                Ok((socket, _)) => socket,
                Err(error) => {
                    tracing::warn!(%error, "a connection to the Postgres port was not taken");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
                gate.metrics().connection_refused();
                continue;
            };
            let connection = Connection {
                statements: Arc::clone(&statements),
                running: Arc::clone(&running),
                login: self.login.clone(),
                tls: self.tls.clone(),
                startup: self.startup,
            };
            let metrics = Arc::clone(gate.metrics());
            connections.spawn(async move {
                metrics.connected(1);
                connection.serve(socket).await;
                metrics.connected(-1);
                drop(place);
            });
        }
        connections.shutdown().await;
    }
}
