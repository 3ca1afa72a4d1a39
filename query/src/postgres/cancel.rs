//! Cancellation: a second connection names the first by number and secret.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use datafusion_postgres::pgwire::{
    api::{ClientInfo, cancel::CancelHandler},
    messages::{cancel::CancelRequest, startup::SecretKey},
};
use tokio::sync::watch;

/// Every connection that has logged in, by its number.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<HashMap<i32, (SecretKey, watch::Sender<()>)>>);

impl Running {
    fn connections(&self) -> MutexGuard<'_, HashMap<i32, (SecretKey, watch::Sender<()>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a connection until it ends.
    pub(super) fn enter(self: &Arc<Self>, client: &impl ClientInfo) {
        let (number, secret) = client.pid_and_secret_key();
        let sender = watch::Sender::new(());
        let entry = Entry { number, cancelled: sender.subscribe(), running: Arc::clone(self) };
        self.connections().insert(number, (secret, sender));
        client.session_extensions().insert(entry);
    }
}

#[async_trait]
impl CancelHandler for Running {
    async fn on_cancel_request(&self, request: CancelRequest) {
        if let Some((secret, sender)) = self.connections().get(&request.pid)
            // By value: the other connection may have read the same key as a number.
            && secret.eq_value(&request.secret_key)
        {
            sender.send_replace(());
        }
    }
}

/// A connection's entry; gone with it.
#[derive(Debug)]
struct Entry {
    number: i32,
    cancelled: watch::Receiver<()>,
    running: Arc<Running>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.running.connections().remove(&self.number);
    }
}

/// Is done when the client takes back what it asks now.
#[derive(Debug)]
pub(super) struct Cancelled(Option<watch::Receiver<()>>);

impl Cancelled {
    pub(super) fn of(client: &(impl ClientInfo + ?Sized)) -> Self {
        let entry = client.session_extensions().get::<Entry>();
        Self(entry.map(|entry| {
            let mut receiver = entry.cancelled.clone();
            receiver.mark_unchanged();
            receiver
        }))
    }

    pub(super) async fn wait(&mut self) {
        if let Some(receiver) = &mut self.0
            && receiver.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}
