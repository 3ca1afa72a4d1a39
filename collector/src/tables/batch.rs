//! Requests on their way to one commit.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use gatescope_routing::{join::Segment, rows::Rows, shape::RowShape, span::RequestKey};

use super::{
    arrow_file::ArrowFile,
    captures::{CaptureRow, Captures},
    closed::{Closed, both},
    columns::int,
    error::{Result, TablesError},
    expert_load::{ExpertLoad, Load, LoadKey, SourceLoad},
    mismatches::Mismatches,
    parquet_file::{DataFile, FileName},
    request::ClosedRequest,
    requests::{RequestRow, Requests},
    routing::{Phase, RoutingTable},
    routing_file::{RoutingFile, RunKey},
};

/// Most routing files that one writer has open; each holds a row group in memory.
const MOST_OPEN_FILES: usize = 4;

/// Requests on their way to one commit: files are written as requests come, and nobody sees them before the commit.
/// Dropped instead, it leaves nothing behind.
pub struct Batch {
    shared: Arc<Shared>,
}

struct Shared {
    root: Arc<Path>,
    position: u64,
    /// Writers that were handed out and have not come back.
    unfinished: AtomicUsize,
    contents: Mutex<Contents>,
}

/// What a batch holds besides the files that its writers have open.
pub(super) struct Contents {
    keys: HashSet<RequestKey>,
    pub(super) replaced: HashSet<RequestKey>,
    /// When its requests were closed.
    pub(super) closed: Option<Closed>,
    pub(super) requests: ArrowFile<Requests>,
    pub(super) mismatches: ArrowFile<Mismatches>,
    pub(super) captures: ArrowFile<Captures>,
    pub(super) expert_load: ArrowFile<ExpertLoad>,
    pub(super) load: Load,
    pub(super) routing: Vec<(RoutingTable, DataFile)>,
}

impl Batch {
    pub(super) fn new(root: Arc<Path>, position: u64) -> Self {
        let contents = Contents {
            keys: HashSet::new(),
            replaced: HashSet::new(),
            closed: None,
            requests: ArrowFile::new(root.clone(), FileName::new(position)),
            mismatches: ArrowFile::new(root.clone(), FileName::new(position)),
            captures: ArrowFile::new(root.clone(), FileName::new(position)),
            expert_load: ArrowFile::new(root.clone(), FileName::new(position)),
            load: Load::default(),
            routing: Vec::new(),
        };
        let shared = Shared { root, position, unfinished: AtomicUsize::new(0), contents: Mutex::new(contents) };
        Self { shared: Arc::new(shared) }
    }

    /// The position of its commit.
    pub fn position(&self) -> u64 {
        self.shared.position
    }

    /// A writer into this batch; one per thread. Each must be finished before the commit.
    pub fn writer(&self) -> BatchWriter {
        self.shared.unfinished.fetch_add(1, Ordering::AcqRel);
        BatchWriter { shared: self.shared.clone(), routing: HashMap::new(), load: Load::default(), broken: false }
    }

    /// What experts got by the requests of finished writers, as far as it is in memory.
    pub(crate) fn load(&self) -> Vec<SourceLoad> {
        self.shared.contents().load.by_source()
    }

    pub(super) fn under_way(&self) -> UnderWay {
        UnderWay { position: self.shared.position, shared: Arc::downgrade(&self.shared) }
    }

    pub(super) fn into_contents(self) -> Result<Contents> {
        let position = self.shared.position;
        let refused = TablesError::Batch { position, detail: "a writer of it was not finished, or failed" };
        if self.shared.unfinished.load(Ordering::Acquire) != 0 {
            return Err(refused);
        }
        let shared = Arc::try_unwrap(self.shared).map_err(|_| refused)?;
        Ok(shared.contents.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Knows whether a batch is still there.
pub(super) struct UnderWay {
    position: u64,
    shared: Weak<Shared>,
}

impl UnderWay {
    pub(super) fn is(&self) -> bool {
        self.shared.strong_count() > 0
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }
}

impl Shared {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        // A writer that panicked was not finished, which keeps the batch from being committed.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes requests into a batch. Holds a row group of each routing table that it has met lately.
pub struct BatchWriter {
    shared: Arc<Shared>,
    routing: HashMap<RoutingTable, RoutingFile>,
    load: Load,
    broken: bool,
}

impl BatchWriter {
    /// Adds a request.
    ///
    /// # Errors
    /// Where the request contradicts itself (shape, width, arrivals, a second time in the batch), nothing of it is
    /// written. Where a file cannot be written, the batch is lost: drop it.
    pub fn add(&mut self, request: &ClosedRequest) -> Result<()> {
        let joined = &request.joined;
        if request.arrivals.len() != joined.captures.len() {
            let (found, expected) = (request.arrivals.len(), joined.captures.len());
            return Err(TablesError::Arrivals { key: request.key.clone(), found, expected });
        }
        let segments = stored_segments(request)?;
        if !self.shared.contents().keys.insert(request.key.clone()) {
            return Err(TablesError::Twice(request.key.clone()));
        }
        self.broken = true;
        let table = match joined.shape {
            Some((shape, _)) if !segments.is_empty() => {
                let table = RoutingTable::new(shape, request.width, &request.layers);
                self.write_rows(request, &table, &segments)?;
                Some(table.name().into())
            }
            _ => None,
        };
        self.write_request(request, table)?;
        self.broken = false;
        Ok(())
    }

    fn write_rows(
        &mut self,
        request: &ClosedRequest,
        table: &RoutingTable,
        segments: &[(u32, Rows, &Segment)],
    ) -> Result<()> {
        if !self.routing.contains_key(table) {
            if self.routing.len() == MOST_OPEN_FILES {
                self.finish_files()?;
            }
            let file = RoutingFile::create(&self.shared.root, table, FileName::new(self.shared.position))?;
            self.routing.insert(table.clone(), file);
        }
        let Some(file) = self.routing.get_mut(table) else { return Ok(()) };
        for (start, rows, segment) in segments {
            for (phase, part) in phases(request, *start, rows) {
                let source = &segment.source;
                let key = RunKey {
                    run: request.key.run.clone(),
                    request_id: request.key.request_id.clone(),
                    choice: int(request.key.choice),
                    phase,
                    role: source.role,
                    instance: source.instance.clone(),
                };
                let counts = self.load.of(LoadKey::of(request, segment, phase));
                file.append(&key, start + part.start as u32, &rows.slice(part), counts)?;
            }
        }
        Ok(())
    }

    fn write_request(&mut self, request: &ClosedRequest, table: Option<Arc<str>>) -> Result<()> {
        let mut contents = self.shared.contents();
        let contents = &mut *contents;
        contents.closed = both(contents.closed, Some(Closed::at(request.closed_at)));
        contents.requests.add(|rows| rows.push(RequestRow::of(request, table)))?;
        for finding in &request.joined.findings {
            contents.mismatches.add(|rows| rows.push(request.closed_at, &request.key, finding))?;
        }
        for (capture, &arrival) in request.joined.captures.iter().zip(&request.arrivals) {
            contents.captures.add(|rows| rows.push(&request.key, CaptureRow::of(capture, arrival)))?;
        }
        if request.replaces {
            contents.replaced.insert(request.key.clone());
        }
        if self.load.is_large() {
            self.load.write_to(&mut contents.expert_load)?;
        }
        Ok(())
    }

    fn finish_files(&mut self) -> Result<()> {
        for (table, file) in self.routing.drain() {
            if let Some(file) = file.finish()? {
                self.shared.contents().routing.push((table, file));
            }
        }
        Ok(())
    }

    /// Ends the writer's files and makes them durable.
    ///
    /// # Errors
    /// Where a file cannot be written; the batch is lost.
    pub fn finish(mut self) -> Result<()> {
        if self.broken {
            let position = self.shared.position;
            return Err(TablesError::Batch { position, detail: "a request could not be written" });
        }
        self.finish_files()?;
        self.shared.contents().load.merge(std::mem::take(&mut self.load));
        self.shared.unfinished.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    }
}

/// Which of the rows from `start` on are the prompt's and which the completion's.
pub(super) fn phases(
    request: &ClosedRequest,
    start: u32,
    rows: &Rows,
) -> impl Iterator<Item = (Phase, Range<usize>)> + use<> {
    // The prompt's tokens are the first positions.
    let prompt = request.joined.prompt_tokens.unwrap_or(0).saturating_sub(start).min(rows.len() as u32) as usize;
    let phases = [(Phase::Prompt, 0..prompt), (Phase::Completion, prompt..rows.len())];
    phases.into_iter().filter(|(_, part)| !part.is_empty())
}

/// The request's rows with the first position of each, in the width that they are stored in.
pub(super) fn stored_segments(request: &ClosedRequest) -> Result<Vec<(u32, Rows, &Segment)>> {
    let shape = |segment: &Segment| -> Result<RowShape> {
        let found = segment.rows.shape();
        match request.joined.shape {
            Some((expected, _)) if expected != found => {
                Err(TablesError::Shape { key: request.key.clone(), position: segment.start, found, expected })
            }
            _ => Ok(found),
        }
    };
    let segments = request.joined.segments.iter().filter(|segment| !segment.rows.is_empty());
    segments
        .map(|segment| {
            shape(segment)?;
            let rows = segment.rows.with_width(request.width).ok_or_else(|| TablesError::IdTooWide {
                key: request.key.clone(),
                position: segment.start,
                width: request.width,
            })?;
            Ok((segment.start, rows, segment))
        })
        .collect()
}
