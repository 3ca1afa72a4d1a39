//! What interrupts a command.

use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::Context;

/// Watches for SIGINT and SIGTERM: the flag is set at the first of them, the second ends the process at once.
pub(crate) fn on_signal() -> anyhow::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().build().context("cannot watch for signals")?;
    let flag = Arc::clone(&interrupted);
    let (ready, installed) = std::sync::mpsc::channel();
    thread::Builder::new()
        .name("gatescope-signal".into())
        .spawn(move || {
            runtime.block_on(async move {
                let signals = Signals::install();
                let failed = signals.as_ref().err().map(std::io::Error::kind);
                let _ = ready.send(failed);
                let Ok(mut signals) = signals else { return };
                signals.next().await;
                flag.store(true, Ordering::Relaxed);
                signals.next().await;
                process::exit(1);
            });
        })
        .context("cannot watch for signals")?;
    match installed.recv() {
        Ok(None) => Ok(interrupted),
        Ok(Some(kind)) => Err(std::io::Error::from(kind)).context("cannot watch for signals"),
        Err(_) => anyhow::bail!("cannot watch for signals"),
    }
}

/// What asks the process to end: SIGINT and SIGTERM.
#[cfg(unix)]
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    pub(crate) fn install() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// What asks the process to end.
#[cfg(not(unix))]
pub(crate) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(crate) fn install() -> std::io::Result<Self> {
        Ok(Self)
    }

    /// Waits for the next.
    pub(crate) async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}
