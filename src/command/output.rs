//! Standard output that may be closed by whoever reads it (`| head`).

use std::{
    io::{self, ErrorKind, Write},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use gatescope_query::QueryError;

/// Standard output, and whether its reader is gone.
pub(crate) struct Output {
    closed: Arc<AtomicBool>,
}

impl Output {
    pub(crate) fn new() -> Self {
        Self { closed: Arc::default() }
    }

    pub(crate) fn writer(&self) -> impl Write + Send + use<> {
        Writer { output: io::stdout(), closed: self.closed.clone() }
    }

    /// The result, unless writing it ended because nobody reads any more: then all that was asked for was done. Not every
    /// writer hands on the kind of the error, so the output remembers it.
    pub(crate) fn unless_closed(&self, result: Result<ExitCode, QueryError>) -> anyhow::Result<ExitCode> {
        match result {
            Err(_) if self.closed.load(Ordering::Relaxed) => Ok(ExitCode::SUCCESS),
            result => Ok(result?),
        }
    }
}

struct Writer {
    output: io::Stdout,
    closed: Arc<AtomicBool>,
}

impl Writer {
    fn watch<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
            self.closed.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes);
        self.watch(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.output.flush();
        self.watch(flushed)
    }
}
