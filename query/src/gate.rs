//! The gate that every server's queries pass: how many at once, for how long, and what is counted of them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use arrow::{array::RecordBatch, datatypes::SchemaRef};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
    time::Instant,
};

use crate::{
    answer::Answer,
    catalog::Catalog,
    catalogs::Catalogs,
    error::QueryError,
    metrics::{Outcome, Protocol, QueryMetrics},
    parameters::{Text, with_numbers},
    reading::check_size,
};

/// Batches of an answer that wait for the client.
const AHEAD: usize = 2;

/// Bounds of all servers' queries together.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Queries at once; one more waits for [`Self::patience`].
    pub queries: usize,
    /// How long a query waits for its turn.
    pub patience: Duration,
    /// How long a query may take, reading its answer included.
    pub time: Duration,
    /// Rows of a JSON answer: those are read into memory whole by most who ask for them.
    pub json_rows: u64,
    /// Bytes of a query's text and what is around it.
    pub body_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queries: 8,
            patience: Duration::from_secs(10),
            time: Duration::from_secs(60),
            json_rows: 1_000_000,
            body_bytes: 1 << 20,
        }
    }
}

/// What every server asks for a turn before it runs a query.
#[derive(Debug)]
pub struct Gate {
    catalogs: Catalogs,
    limits: Limits,
    turns: Arc<Semaphore>,
    metrics: Arc<QueryMetrics>,
}

impl Gate {
    /// A gate in front of these catalogs.
    pub fn new(catalogs: Catalogs, limits: Limits) -> Self {
        let turns = Arc::new(Semaphore::new(limits.queries));
        Self { catalogs, limits, turns, metrics: Arc::new(QueryMetrics::default()) }
    }

    /// The bounds.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn metrics(&self) -> &Arc<QueryMetrics> {
        &self.metrics
    }

    /// Waits for a turn: the query's time begins with it, and is `at_most` where that is less than the limit.
    ///
    /// # Errors
    /// Where none comes in time.
    pub(crate) async fn turn(&self, protocol: Protocol, at_most: Option<Duration>) -> Result<Arc<Turn>, QueryError> {
        let started = Instant::now();
        let permit = tokio::time::timeout(self.limits.patience, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            self.metrics.ended(protocol, Outcome::Refused, started.elapsed());
            return Err(QueryError::Busy { queries: self.limits.queries, patience: self.limits.patience });
        };
        let limit = at_most.map_or(self.limits.time, |time| time.min(self.limits.time));
        Ok(Arc::new(Turn {
            _permit: permit,
            protocol,
            started,
            limit,
            deadline: Instant::now() + limit,
            outcome: AtomicU8::new(Outcome::Cancelled as u8),
            metrics: Arc::clone(&self.metrics),
        }))
    }

    /// A statement, where it is not too long.
    ///
    /// # Errors
    /// Where it cannot be read, or is more than one.
    pub(crate) fn read(&self, sql: &str) -> Result<Text, QueryError> {
        self.check_bytes(sql)?;
        Text::read(sql)
    }

    /// A statement with numbered parameters.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub(crate) fn with_numbers(&self, sql: &str) -> Result<String, QueryError> {
        self.check_bytes(sql)?;
        with_numbers(sql)
    }

    /// Whether a statement may be as long, for who reads it otherwise than by [`Self::read`].
    ///
    /// # Errors
    /// Where not.
    pub(crate) fn check_length(&self, sql: &str) -> Result<(), QueryError> {
        self.check_bytes(sql)?;
        check_size(sql)
    }

    fn check_bytes(&self, sql: &str) -> Result<(), QueryError> {
        let (bytes, limit) = (sql.len(), self.limits.body_bytes);
        if bytes > limit {
            return Err(QueryError::Query(format!("the statement has {bytes} bytes: expected {limit} at most")));
        }
        Ok(())
    }

    /// The catalog as of now.
    ///
    /// # Errors
    /// As [`Catalogs::open`].
    pub(crate) async fn catalog(&self) -> Result<Catalog, QueryError> {
        self.catalogs.open().await
    }
}

/// A query's turn: given back, and counted, when the last who holds it lets go.
#[derive(Debug)]
pub(crate) struct Turn {
    _permit: OwnedSemaphorePermit,
    protocol: Protocol,
    started: Instant,
    limit: Duration,
    deadline: Instant,
    outcome: AtomicU8,
    metrics: Arc<QueryMetrics>,
}

impl Turn {
    /// When the query's time is up.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// What is said then.
    pub(crate) fn too_slow(&self) -> QueryError {
        QueryError::TooSlow(self.limit)
    }

    /// Notes how it ended; a turn of which nothing is noted was cancelled.
    pub(crate) fn note(&self, outcome: Outcome) {
        self.outcome.store(outcome as u8, Ordering::Relaxed);
    }

    /// Notes what became of it.
    pub(crate) fn noted<T>(&self, result: Result<T, QueryError>) -> Result<T, QueryError> {
        if let Err(error) = &result {
            self.note(Outcome::of(error));
        }
        result
    }

    /// A part of the query's work, broken off at the deadline.
    pub(crate) async fn within<T>(&self, work: impl Future<Output = Result<T, QueryError>>) -> Result<T, QueryError> {
        let result = tokio::time::timeout_at(self.deadline, work).await.unwrap_or_else(|_| Err(self.too_slow()));
        self.noted(result)
    }

    /// The rows of an answer, read ahead of the client by a bounded number. The query stops when nobody reads them any more, and
    /// at the deadline: also where the client stays and reads nothing.
    pub(crate) fn rows(self: &Arc<Self>, answer: Answer) -> Rows {
        let schema = answer.schema();
        let (batches, receiver) = mpsc::channel(AHEAD);
        let task = tokio::spawn(read(Arc::clone(self), answer, batches));
        Rows { schema, receiver, task: Some(task) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let outcome = Outcome::from(self.outcome.load(Ordering::Relaxed));
        self.metrics.ended(self.protocol, outcome, self.started.elapsed());
    }
}

async fn read(turn: Arc<Turn>, mut answer: Answer, batches: mpsc::Sender<RecordBatch>) -> Result<(), QueryError> {
    loop {
        // A query that always has rows ready is not interrupted by the timer below.
        if Instant::now() >= turn.deadline {
            return turn.noted(Err(turn.too_slow()));
        }
        let next = tokio::select! {
            () = batches.closed() => return Ok(()),
            next = tokio::time::timeout_at(turn.deadline, answer.next()) => next,
        };
        let next = match next {
            Ok(Some(next)) => turn.noted(next)?,
            Ok(None) => break,
            Err(_) => return turn.noted(Err(turn.too_slow())),
        };
        match tokio::time::timeout_at(turn.deadline, batches.send(next)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Ok(()),
            Err(_) => return turn.noted(Err(turn.too_slow())),
        }
    }
    turn.note(Outcome::Answered);
    Ok(())
}

/// The rows of an answer, as they come. Dropping them stops the query.
#[derive(Debug)]
pub(crate) struct Rows {
    schema: SchemaRef,
    receiver: mpsc::Receiver<RecordBatch>,
    task: Option<JoinHandle<Result<(), QueryError>>>,
}

impl Rows {
    /// The columns.
    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The next rows; `None` at the end, an error where there is none.
    pub(crate) async fn next(&mut self) -> Option<Result<RecordBatch, QueryError>> {
        if let Some(next) = self.receiver.recv().await {
            return Some(Ok(next));
        }
        // Only here is it known whether that was the end.
        match self.task.take()?.await {
            Ok(ended) => ended.err().map(Err),
            Err(_) => Some(Err(QueryError::Query("the query broke off: this is a fault of gatescope".to_owned()))),
        }
    }
}
