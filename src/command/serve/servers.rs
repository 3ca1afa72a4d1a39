//! The ports of `serve`.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use arrow_flight::flight_service_server::FlightServiceServer;
use axum::Router;
use gatescope_collector::{
    ingest::{self, Ingest},
    live::Collector,
};
use gatescope_query::{
    Catalogs, Gate,
    flight::{FlightSql, OtherPuts},
    postgres,
};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tonic::transport::{Server, server::TcpIncoming};
use tower_http::{catch_panic::CatchPanicLayer, trace::TraceLayer};

use super::{configuration::Configuration, http, live::Collected, page};
use crate::telemetry::Telemetry;

/// Largest gRPC message: twice that of the wire.
const MESSAGE_BYTES: usize = 4 << 20;
/// Streams of one connection.
const STREAMS: u32 = 256;
/// How long connections may take to end.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Listening, not serving yet: a port that is taken is known before the log is read.
pub(super) struct Listeners {
    http: TcpListener,
    flight: TcpListener,
    postgres: Option<(TcpListener, postgres::Server)>,
}

impl Listeners {
    pub(super) async fn bind(configuration: &Configuration) -> anyhow::Result<Self> {
        let bind = async |what: &str, address| {
            TcpListener::bind(address).await.with_context(|| format!("{what}: cannot listen on {address}"))
        };
        let http = bind("HTTP", configuration.http).await?;
        let flight = bind("Flight", configuration.flight).await?;
        let postgres = match configuration.postgres() {
            Some(address) => {
                let server = postgres::Server::new(configuration.postgres_options()?).context("Postgres")?;
                Some((bind("Postgres", address).await?, server))
            }
            None => None,
        };
        Ok(Self { http, flight, postgres })
    }
}

/// All servers.
pub(super) struct Servers {
    stopping: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Servers {
    pub(super) fn start(
        listeners: Listeners,
        collector: &Collector,
        telemetry: &Telemetry,
        configuration: &Configuration,
    ) -> anyhow::Result<Self> {
        let (stopping, stop) = watch::channel(false);
        let intake = collector.intake();
        let Listeners { http, flight, postgres } = listeners;
        let (http_at, flight_at) = (http.local_addr()?, flight.local_addr()?);
        let postgres_at = postgres.as_ref().map(|(listener, _)| listener.local_addr()).transpose()?;
        let postgres_at = postgres_at.map_or_else(|| "off".to_owned(), |address| address.to_string());
        tracing::info!(http = %http_at, flight = %flight_at, postgres = %postgres_at, "listening");

        let live = Arc::new(Collected(collector.viewer()));
        let catalogs = Catalogs::new(&configuration.data, configuration.query_options(), live);
        let gate = Arc::new(Gate::new(catalogs, configuration.query_limits()));
        let router = Router::new()
            .merge(page::router())
            .merge(http::router(intake.clone(), telemetry.registry()))
            .merge(ingest::router(intake.clone()))
            .merge(gatescope_query::http::router(Arc::clone(&gate)))
            .layer(CatchPanicLayer::new())
            .layer(TraceLayer::new_for_http());
        let serving = axum::serve(http, router).with_graceful_shutdown(told(stop.clone()));
        let http = tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "HTTP has ended");
            }
        });

        let ingest = Ingest::new(intake.clone());
        // Agents' streams and statements share the port.
        let others: OtherPuts = Arc::new(move |stream| {
            let ingest = ingest.clone();
            Box::pin(async move { ingest.take(stream).await })
        });
        let sql = FlightSql::new(Arc::clone(&gate), others);
        let service = FlightServiceServer::new(sql).max_decoding_message_size(MESSAGE_BYTES);
        let incoming = TcpIncoming::from(flight).with_nodelay(Some(true));
        let serving = Server::builder()
            .max_concurrent_streams(STREAMS)
            .http2_keepalive_interval(Some(Duration::from_secs(20)))
            // Twice a message, so that one in flight does not wait for the window.
            .initial_stream_window_size(MESSAGE_BYTES as u32)
            .initial_connection_window_size(4 * MESSAGE_BYTES as u32)
            .add_service(service)
            .serve_with_incoming_shutdown(incoming, told(stop.clone()));
        let flight = tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "Flight has ended");
            }
        });
        let mut tasks = vec![http, flight];
        if let Some((listener, server)) = postgres {
            tasks.push(tokio::spawn(server.serve(gate, listener, told(stop))));
        }
        Ok(Self { stopping, tasks })
    }

    /// Takes no new connections.
    pub(super) fn refuse(&self) {
        self.stopping.send_replace(true);
    }

    /// Waits for connections to end, not for long.
    pub(super) async fn stop(self) {
        let deadline = tokio::time::Instant::now() + END_WITHIN;
        for mut task in self.tasks {
            if tokio::time::timeout_at(deadline, &mut task).await.is_err() {
                task.abort();
            }
        }
    }
}

async fn told(mut stop: watch::Receiver<bool>) {
    // Where nobody can tell any more, everything ends.
    let _ = stop.wait_for(|stop| *stop).await;
}
