//! One connection.

use std::{sync::Arc, time::Duration};

use datafusion_postgres::pgwire::{
    api::{PgWireServerHandlers, auth::StartupHandler, cancel::CancelHandler, query},
    tokio::process_socket,
};
use tokio::{io::Interest, net::TcpStream};

use super::{
    cancel::Running,
    session::Session,
    startup::{Login, Startup},
    statement::Statements,
    tls,
};

/// How often it is looked whether the client is still there: while a statement runs nobody reads from it.
const LOOK: Duration = Duration::from_millis(200);

/// What a connection needs.
pub(super) struct Connection {
    pub(super) statements: Arc<Statements>,
    pub(super) running: Arc<Running>,
    pub(super) login: Login,
    pub(super) tls: Option<tls::Acceptor>,
    pub(super) startup: Duration,
}

impl Connection {
    /// Serves it until either side ends it. A client that goes away takes its statement along.
    pub(super) async fn serve(self, socket: TcpStream) {
        let gone = match second_handle(&socket) {
            Ok(socket) => gone(socket),
            Err(error) => return tracing::warn!(%error, "a connection to the Postgres port was not taken"),
        };
        let logged_in = Arc::new(tokio::sync::Notify::new());
        let handlers = Handlers {
            startup: Arc::new(Startup::new(self.login, self.running.clone(), Arc::clone(&logged_in))),
            session: Arc::new(Session::new(self.statements)),
            running: self.running,
        };
        let late = async {
            if tokio::time::timeout(self.startup, logged_in.notified()).await.is_ok() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            ended = process_socket(socket, self.tls, handlers) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to the Postgres port broke off");
                }
            }
            () = gone => {}
            () = late => {}
        }
    }
}

fn second_handle(socket: &TcpStream) -> std::io::Result<TcpStream> {
    #[cfg(unix)]
    let socket = std::os::fd::AsFd::as_fd(socket).try_clone_to_owned()?;
    #[cfg(windows)]
    let socket = std::os::windows::io::AsSocket::as_socket(socket).try_clone_to_owned()?;
    TcpStream::from_std(socket.into())
}

/// Is done when the client has closed its side, whatever it has sent before and nobody has read yet.
async fn gone(socket: TcpStream) {
    loop {
        tokio::time::sleep(LOOK).await;
        match socket.ready(Interest::READABLE).await {
            Ok(ready) if !ready.is_read_closed() => {}
            _ => break,
        }
    }
    // A request to cancel is sent and left alone: it may not be read yet.
    tokio::time::sleep(LOOK).await;
}

/// What pgwire asks for.
struct Handlers {
    startup: Arc<Startup>,
    session: Arc<Session>,
    running: Arc<Running>,
}

impl PgWireServerHandlers for Handlers {
    fn simple_query_handler(&self) -> Arc<impl query::SimpleQueryHandler> {
        Arc::clone(&self.session)
    }

    fn extended_query_handler(&self) -> Arc<impl query::ExtendedQueryHandler> {
        Arc::clone(&self.session)
    }

    fn startup_handler(&self) -> Arc<impl StartupHandler> {
        Arc::clone(&self.startup)
    }

    fn cancel_handler(&self) -> Arc<impl CancelHandler> {
        Arc::clone(&self.running)
    }
}
