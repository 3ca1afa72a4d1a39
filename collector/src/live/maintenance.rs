//! Care of the tables between commits: small files are merged, old requests expire, unneeded files go.

use std::{
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, TryRecvError};

use crate::{
    metrics::Metrics,
    tables::{Compacted, CompactionOptions, KEPT_AFTER_REMOVAL, Tables, TablesError},
};

/// How often old requests and unneeded files are looked for.
const EVERY: Duration = Duration::from_secs(3600);
/// How long to wait after a merge that failed: it may have written much.
const PAUSE: Duration = Duration::from_secs(300);

/// What is done for the tables.
#[derive(Debug, Clone)]
pub struct Maintenance {
    /// Whether small files are merged.
    pub compact: bool,
    /// Requests that were closed so long ago are taken out, by whole days; never unless told.
    pub retention: Option<Duration>,
    /// How long files are kept after they were replaced, a week at most: a reader may have them open.
    pub kept: Duration,
}

impl Default for Maintenance {
    fn default() -> Self {
        Self { compact: true, retention: None, kept: KEPT_AFTER_REMOVAL }
    }
}

/// The care under way.
#[derive(Debug)]
pub(super) struct Caretaker {
    options: Maintenance,
    merging: Option<Receiver<Result<Compacted, TablesError>>>,
    looked_at: Instant,
    /// When a merge failed last: the next waits.
    failed_at: Option<Instant>,
}

impl Caretaker {
    pub(super) fn new(options: Maintenance) -> Self {
        Self { options, merging: None, looked_at: Instant::now(), failed_at: None }
    }

    /// Does what is due and short, and begins what is long on a thread of its own. What fails is tried again later: the
    /// tables are as they were.
    pub(super) fn care(&mut self, tables: &mut Tables, metrics: &Metrics) {
        if let Err(error) = self.merge(tables, metrics) {
            self.failed_at = Some(Instant::now());
            metrics.maintenance_failed();
            tracing::warn!(%error, "small files stay");
        }
        if self.looked_at.elapsed() < EVERY {
            return;
        }
        self.looked_at = Instant::now();
        if let Err(error) = self.clear(tables) {
            metrics.maintenance_failed();
            tracing::warn!(%error, "old files stay");
        }
    }

    fn merge(&mut self, tables: &mut Tables, metrics: &Metrics) -> Result<(), TablesError> {
        if let Some(merging) = &self.merging {
            let merged = match merging.try_recv() {
                Ok(merged) => merged,
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => {
                    self.merging = None;
                    return Ok(());
                }
            };
            self.merging = None;
            let merged = tables.commit_compacted(merged?)?;
            metrics.merged(merged.files as u64);
            tracing::debug!(files = merged.files, into = merged.into, "merged small files");
        }
        if !self.options.compact || self.failed_at.is_some_and(|at| at.elapsed() < PAUSE) {
            return Ok(());
        }
        let Some(compaction) = tables.plan_compaction(&CompactionOptions::default()) else { return Ok(()) };
        let (done, merging) = crossbeam_channel::bounded(1);
        let thread = thread::Builder::new().name("gatescope-merge".into());
        let run = move || {
            // Where the committer has ended, what was written is swept away at the next start.
            let _ = done.send(compaction.run());
        };
        match thread.spawn(run) {
            Ok(_) => self.merging = Some(merging),
            Err(error) => tracing::warn!(%error, "no thread to merge small files"),
        }
        Ok(())
    }

    fn clear(&self, tables: &mut Tables) -> Result<(), TablesError> {
        if let Some(retention) = self.options.retention {
            let retention = i64::try_from(retention.as_micros()).unwrap_or(i64::MAX);
            let before = chrono::Utc::now().timestamp_micros().saturating_sub(retention);
            if let Some(expired) = tables.expire(before)? {
                tracing::info!(requests = expired.requests, files = expired.files, "old requests have expired");
            }
        }
        let removed = tables.vacuum(self.options.kept)?;
        if removed.files > 0 {
            tracing::info!(files = removed.files, bytes = removed.bytes, "removed files that are no longer needed");
        }
        Ok(())
    }
}
