//! Logging in.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use datafusion_postgres::pgwire::{
    api::{
        ClientInfo, PgWireConnectionState,
        auth::{
            AuthSource, DefaultServerParameterProvider, LoginInfo, Password, StartupHandler,
            noop::NoopStartupHandler,
            sasl::{
                SASLAuthStartupHandler,
                scram::{SCRAM_ITERATIONS, ScramAuth, gen_salted_password, random_nonce},
            },
        },
    },
    error::{PgWireError, PgWireResult},
    messages::{PgWireBackendMessage, PgWireFrontendMessage},
};
use futures::Sink;
use tokio::sync::Notify;

use super::{cancel::Running, refusal};

/// What a client has to have to log in.
#[derive(Debug, Clone)]
pub(super) struct Login {
    pub(super) password: Option<Secret>,
    /// Whether only connections with TLS may.
    pub(super) encrypted: bool,
}

/// A password that no log shows.
#[derive(Clone)]
pub(super) struct Secret(Arc<str>);

impl From<String> for Secret {
    fn from(password: String) -> Self {
        Self(password.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[async_trait]
impl AuthSource for Secret {
    async fn get_password(&self, _: &LoginInfo) -> PgWireResult<Password> {
        let salt = random_nonce().into_bytes();
        let salted = gen_salted_password(&self.0, &salt, SCRAM_ITERATIONS);
        Ok(Password::new(Some(salt), salted))
    }
}

/// The login of one connection.
pub(super) struct Startup {
    encrypted: bool,
    scram: Option<SASLAuthStartupHandler<DefaultServerParameterProvider>>,
    running: Arc<Running>,
    done: Arc<Notify>,
}

/// A login that asks for nothing.
struct Open;

impl NoopStartupHandler for Open {}

impl Startup {
    /// `done` is told when the client is in.
    pub(super) fn new(login: Login, running: Arc<Running>, done: Arc<Notify>) -> Self {
        let scram = login.password.map(|password| {
            SASLAuthStartupHandler::new(Arc::new(DefaultServerParameterProvider::default()))
                .with_scram(ScramAuth::new(Arc::new(password)))
        });
        Self { encrypted: login.encrypted, scram, running, done }
    }
}

#[async_trait]
impl StartupHandler for Startup {
    async fn on_startup<C>(&self, client: &mut C, message: PgWireFrontendMessage) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: fmt::Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        if self.encrypted && !client.is_secure() {
            return Err(refusal::fatal("28000", "this server takes connections with TLS only: sslmode=require"));
        }
        match &self.scram {
            Some(scram) => scram.on_startup(client, message).await?,
            None => Open.on_startup(client, message).await?,
        }
        if matches!(client.state(), PgWireConnectionState::ReadyForQuery) {
            self.running.enter(client);
            self.done.notify_one();
        }
        Ok(())
    }
}
