//! One import: lines in, closed requests out.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use gatescope_routing::{
    join::{Context, Join, Part},
    record::RecordOptions,
    span::RequestKey,
};

use super::{
    answer::Answer,
    aside::{Aside, CurrentLine, LineAt},
    batch::OpenBatch,
    close::Closing,
    closed::Closed,
    components::{Component, Components, names},
    error::ImportError,
    input::Input,
    models::Models,
    observer::{Observer, Progress, Refusal},
    options::ImportOptions,
    pipeline::{Event, Outcome, Pipeline, Waiting, decode_bytes},
    stored::Unsure,
    summary::{Stop, Summary},
};
use crate::tables::Tables;

/// How long to wait for a line before looking whether the import was interrupted.
const PATIENCE: Duration = Duration::from_millis(100);

pub(super) struct Session<'a> {
    begun: Instant,
    pub(super) options: &'a ImportOptions,
    pub(super) record_options: RecordOptions,
    pub(super) inputs: Arc<[Input]>,
    pub(super) observer: &'a mut dyn Observer,
    pub(super) interrupted: &'a AtomicBool,
    pub(super) tables: Tables,
    pub(super) batch: Option<OpenBatch>,
    pub(super) unsure: Unsure,
    pub(super) join: Join,
    pub(super) components: Components,
    pub(super) aside: Aside,
    pub(super) closed: Closed,
    pub(super) models: Models,
    pub(super) input: usize,
    pub(super) rereadable: bool,
    pub(super) summary: Summary,
    pub(super) progress: Progress,
}

impl<'a> Session<'a> {
    pub(super) fn open(
        inputs: &[Input],
        data: &Path,
        options: &'a ImportOptions,
        observer: &'a mut dyn Observer,
        interrupted: &'a AtomicBool,
    ) -> Result<Self, ImportError> {
        let begun = Instant::now();
        let tables = Tables::open(data)?;
        let inputs: Arc<[Input]> = inputs.into();
        Ok(Self {
            begun,
            options,
            record_options: options.record_options(),
            aside: Aside::new(Arc::clone(&inputs), tables.root()),
            inputs,
            observer,
            interrupted,
            tables,
            batch: None,
            unsure: Unsure::default(),
            join: Join::new(options.rules()),
            components: Components::default(),
            closed: Closed::default(),
            models: Models::new(options.model.clone()),
            input: 0,
            rereadable: false,
            summary: Summary::default(),
            progress: Progress::default(),
        })
    }

    /// Reads all inputs, joins them and commits.
    pub(super) fn run(mut self) -> Result<Summary, ImportError> {
        self.read_all()?;
        if self.summary.stopped != Some(Stop::Interrupted) {
            self.close_all()?;
        }
        self.summary.elapsed = self.begun.elapsed();
        Ok(self.summary)
    }

    fn read_all(&mut self) -> Result<(), ImportError> {
        let (inputs, options) = (Arc::clone(&self.inputs), self.record_options.clone());
        let mut pipeline =
            Pipeline::start(inputs, options, self.options.max_line.get()).map_err(ImportError::Thread)?;
        while !self.stops() {
            match pipeline.next(PATIENCE) {
                Ok(Some(events)) => {
                    for event in events {
                        self.event(event)?;
                        if self.summary.stopped.is_some() {
                            break;
                        }
                    }
                }
                Ok(None) => break,
                Err(Waiting) => {}
            }
            self.progress.bytes = pipeline.bytes_read();
            self.observer.progressed(self.progress);
        }
        self.summary.bytes = pipeline.bytes_read();
        Ok(())
    }

    /// Whether to stop here.
    pub(super) fn stops(&mut self) -> bool {
        if self.interrupted.load(Ordering::Relaxed) {
            self.summary.stopped = Some(Stop::Interrupted);
        }
        self.summary.stopped.is_some()
    }

    fn event(&mut self, event: Event) -> Result<(), ImportError> {
        match event {
            Event::Opened { input, rereadable } => {
                self.summary.files += 1;
                (self.input, self.rereadable) = (input, rereadable);
            }
            Event::Failed { input, error, opened } => {
                self.summary.files -= u64::from(opened);
                self.refuse(input, None, error.to_string());
            }
            Event::Line { number, offset, outcome } => {
                self.summary.lines += 1;
                self.progress.lines += 1;
                match outcome {
                    Outcome::Refused(error) => self.refuse(self.input, Some(number), error.to_string()),
                    Outcome::Answer(bytes, answer) => {
                        let (input, rereadable) = (self.input, self.rereadable);
                        self.line(&CurrentLine { input, number, offset, rereadable, bytes }, *answer)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn refuse(&mut self, input: usize, line: Option<u64>, problem: String) {
        self.summary.refused += 1;
        if self.options.strict {
            self.summary.stopped = Some(Stop::Strict);
        }
        let input = self.inputs.get(input).map_or_else(|| "input".into(), Input::name);
        self.observer.refused(&Refusal { input, line, problem });
    }

    fn line(&mut self, line: &CurrentLine, mut answer: Answer) -> Result<(), ImportError> {
        if let Some(refusal) = answer.refusal.take() {
            self.refuse(line.input, Some(line.number), refusal.to_string());
        }
        for answered in &mut answer.choices {
            if let Some(problem) = answered.problem.take() {
                let choice = if answered.choice == 0 { String::new() } else { format!(" choice {}", answered.choice) };
                let problem = format!("request {}{choice}: {problem}", answer.request_id);
                self.refuse(line.input, Some(line.number), problem);
            }
        }
        let run = answer.run.clone().unwrap_or_else(|| Arc::clone(&self.options.run));
        for earlier in self.components.recall(&names(&run, &answer)) {
            self.retell(&earlier)?;
        }
        let age = self.tell(&run, answer, line.number);
        let ready = !self.join.take_ready().is_empty();
        if !ready || !self.is_whole(age) || self.close(age, Some(line), false)? == Closing::Waits {
            let place = self.aside.place(line)?;
            if let Some(component) = self.components.get_mut(age) {
                component.add_line(place);
                self.components.weigh(age);
            }
        }
        self.make_room();
        Ok(())
    }

    /// Tells the join of an answer. Says the age of its component.
    fn tell(&mut self, run: &Arc<str>, answer: Answer, line: u64) -> u64 {
        let age = self.components.unite(&names(run, &answer));
        let mut first = None;
        for answered in answer.choices {
            let key = RequestKey {
                run: Arc::clone(run),
                request_id: Arc::clone(&answer.request_id),
                choice: answered.choice,
            };
            for part in answered.parts {
                if let (Part::Inspected(span, inspection), Some(component)) = (&part, self.components.get_mut(age)) {
                    component.add_arrival(inspection.payload_hash, line);
                    component.wire_type.get_or_insert(span.wire_type);
                }
                self.join.apply(&key, part);
            }
            if let Some(component) = self.components.get_mut(age) {
                component.add_key(key.clone());
            }
            first.get_or_insert(key);
        }
        if let Some(key) = first {
            if let Some(identity) = answer.identity {
                self.join.identify(&key, identity);
            }
            if let Some(link) = answer.link {
                self.join.link(&key, link);
            }
        }
        if let Some(component) = self.components.get_mut(age) {
            component.began(answer.created_at);
            component.model = component.model.take().or(answer.model);
            self.components.weigh(age);
        }
        age
    }

    /// Tells the join of a line that was put aside. Says the age of its component.
    pub(super) fn retell(&mut self, line: &LineAt) -> Result<Option<u64>, ImportError> {
        let answer = match self.aside.read(line) {
            Ok(bytes) => decode_bytes(&bytes, &self.record_options).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match answer {
            Ok(answer) => {
                let run = answer.run.clone().unwrap_or_else(|| Arc::clone(&self.options.run));
                let age = self.tell(&run, answer, line.number);
                if let Some(component) = self.components.get_mut(age) {
                    component.add_line(*line);
                    self.components.weigh(age);
                }
                Ok(Some(age))
            }
            Err(error) => {
                let problem = format!("was read before and cannot be read again; did the file change? {error}");
                self.refuse(line.input(), Some(line.number), problem);
                Ok(None)
            }
        }
    }

    fn is_whole(&mut self, age: u64) -> bool {
        let Some(component) = self.components.get_mut(age).filter(|component| !component.waits) else { return false };
        let mut keys = component.keys.iter().map(|key| self.join.resolve(key));
        keys.all(|key| self.join.get(&key).is_some_and(|request| request.is_whole()))
    }

    /// Puts the oldest open requests aside while those in memory weigh too much.
    fn make_room(&mut self) {
        while self.join.weight() + self.components.weight() > self.options.held_bytes {
            let Some(age) = self.components.oldest() else { return };
            self.put_aside(age);
            self.components.tidy();
        }
    }

    pub(super) fn put_aside(&mut self, age: u64) {
        if let Some(component) = self.components.put_aside(age) {
            self.forget(&component);
        }
    }

    /// Takes a component's requests out of the join, with the links that lead to them: all will be told again.
    fn forget(&mut self, component: &Component) {
        for key in self.keys_of(component) {
            self.join.close(&key, &Context::default());
        }
    }

    /// The requests of a component, as the join calls them.
    pub(super) fn keys_of(&self, component: &Component) -> BTreeSet<RequestKey> {
        component.keys.iter().map(|key| self.join.resolve(key)).collect()
    }
}
