//! The threads in front of the join: one reads blocks and cuts lines, as many as there are cores read records out of
//! them, and the lines come out in the order of the files.

use std::{
    collections::BTreeMap,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use gatescope_routing::record::{RecordError, RecordOptions, read_record, refused_record};

use super::{
    answer::Answer,
    blocks::Blocks,
    input::Input,
    lines::{Content, Line, Lines},
};

/// Bytes of input between the reader and the join.
const BUDGET: usize = 64 << 20;
/// Bytes of lines that one worker takes at a time, a longer line alone.
const BATCH_BYTES: usize = 1 << 20;

/// What the pipeline tells the join, in the order of the input.
pub(super) enum Event {
    /// The input at this index begins.
    Opened { input: usize, rereadable: bool },
    /// The input at this index cannot be opened, or not read further.
    Failed { input: usize, opened: bool, error: io::Error },
    /// A line of the input that was opened last.
    Line { number: u64, offset: u64, outcome: Outcome },
}

/// What became of a line.
pub(super) enum Outcome {
    /// An answer, and the bytes that it was read from.
    Answer(Bytes, Box<Answer>),
    /// The line is not a recorded response.
    Refused(RecordError),
}

/// Reads recorded responses ahead of whoever iterates over it.
pub(super) struct Pipeline {
    blocks: Arc<Blocks>,
    decoded: Receiver<(u64, Vec<Event>)>,
    /// Batches that are ready before their turn.
    early: BTreeMap<u64, Vec<Event>>,
    turn: u64,
    read: Arc<AtomicU64>,
}

enum Work {
    Event(Event),
    Lines(Vec<Line>),
}

impl Pipeline {
    /// Starts reading. The threads end with the input, or soon after the pipeline is dropped.
    pub(super) fn start(inputs: Arc<[Input]>, options: RecordOptions, max_line: usize) -> io::Result<Self> {
        let blocks = Blocks::new(BUDGET);
        let read = Arc::new(AtomicU64::new(0));
        let workers = thread::available_parallelism().map_or(1, usize::from);
        // The blocks bound the bytes of lines in these channels. An answer of a few rows takes several times the bytes of its
        // line, so few batches of answers may wait.
        let (to_decode, work) = crossbeam_channel::bounded(4 * workers);
        let (to_join, decoded) = crossbeam_channel::bounded(workers);
        thread::Builder::new().name("gatescope-read".into()).spawn({
            let (blocks, read) = (Arc::clone(&blocks), Arc::clone(&read));
            move || read_all(&inputs, &blocks, max_line, &read, &to_decode)
        })?;
        for _ in 0..workers {
            let (work, to_join, options) = (work.clone(), to_join.clone(), options.clone());
            thread::Builder::new()
                .name("gatescope-decode".into())
                .spawn(move || decode_all(&work, &to_join, &options, max_line))?;
        }
        Ok(Self { blocks, decoded, early: BTreeMap::new(), turn: 0, read })
    }

    /// Bytes read of all inputs so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// The next events in order; `Ok(None)` at the end of the last input.
    ///
    /// # Errors
    /// Where nothing came within `patience`: the caller may want to look at the world and ask again.
    pub(super) fn next(&mut self, patience: Duration) -> Result<Option<Vec<Event>>, Waiting> {
        loop {
            if let Some(events) = self.early.remove(&self.turn) {
                self.turn += 1;
                return Ok(Some(events));
            }
            match self.decoded.recv_timeout(patience) {
                Ok((turn, events)) => {
                    self.early.insert(turn, events);
                }
                Err(RecvTimeoutError::Timeout) => return Err(Waiting),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }
}

/// The next line is not there yet.
pub(super) struct Waiting;

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.blocks.close();
    }
}

fn read_all(
    inputs: &[Input],
    blocks: &Arc<Blocks>,
    max_line: usize,
    read: &AtomicU64,
    to_decode: &Sender<(u64, Work)>,
) {
    let mut turn = 0;
    let mut send = |work| {
        turn += 1;
        to_decode.send((turn - 1, work)).is_ok()
    };
    let mut before = 0;
    for (index, input) in inputs.iter().enumerate() {
        let opened = match input.open() {
            Ok(opened) => opened,
            Err(error) => {
                if !send(Work::Event(Event::Failed { input: index, opened: false, error })) {
                    return;
                }
                continue;
            }
        };
        if !send(Work::Event(Event::Opened { input: index, rereadable: opened.rereadable })) {
            return;
        }
        let mut lines = Lines::new(opened.source, Arc::clone(blocks), max_line);
        loop {
            let block = lines.next_block();
            read.store(before + lines.position(), Ordering::Relaxed);
            let sent = match block {
                Ok(Some(block)) => batches(block).all(|batch| send(Work::Lines(batch))),
                Ok(None) => break,
                Err(error) => {
                    send(Work::Event(Event::Failed { input: index, opened: true, error }));
                    break;
                }
            };
            if !sent {
                return;
            }
        }
        before += lines.position();
    }
}

/// Splits a block's lines into pieces of work.
fn batches(lines: Vec<Line>) -> impl Iterator<Item = Vec<Line>> {
    let mut lines = lines.into_iter().peekable();
    std::iter::from_fn(move || {
        let mut batch = vec![lines.next()?];
        let mut bytes = batch[0].held();
        while let Some(line) = lines.next_if(|line| bytes + line.held() <= BATCH_BYTES) {
            bytes += line.held();
            batch.push(line);
        }
        Some(batch)
    })
}

impl Line {
    fn held(&self) -> usize {
        match &self.content {
            Content::Whole(bytes) => bytes.len(),
            Content::TooLong(_) => 0,
        }
    }
}

fn decode_all(
    work: &Receiver<(u64, Work)>,
    to_join: &Sender<(u64, Vec<Event>)>,
    options: &RecordOptions,
    max_line: usize,
) {
    for (turn, work) in work {
        let events = match work {
            Work::Event(event) => vec![event],
            Work::Lines(lines) => lines.into_iter().map(|line| decode(line, options, max_line)).collect(),
        };
        if to_join.send((turn, events)).is_err() {
            return;
        }
    }
}

fn decode(line: Line, options: &RecordOptions, max_line: usize) -> Event {
    let Line { number, offset, content } = line;
    let outcome = match content {
        Content::Whole(bytes) => match decode_bytes(&bytes, options) {
            Ok(answer) => Outcome::Answer(bytes, Box::new(answer)),
            Err(error) => Outcome::Refused(error),
        },
        Content::TooLong(length) => {
            Outcome::Refused(RecordError(format!("a line of {length} bytes: expected at most {max_line} (--max-line)")))
        }
    };
    Event::Line { number, offset, outcome }
}

/// Reads an answer. A panic in a decoder is that line's error, because the other lines deserve to be read.
pub(crate) fn decode_bytes(bytes: &[u8], options: &RecordOptions) -> Result<Answer, RecordError> {
    let read = || match read_record(bytes, options) {
        Ok(record) => Ok(Answer::of(record)),
        Err(error) => match refused_record(bytes) {
            Some(record) => Ok(Answer { refusal: Some(error), ..Answer::of(record) }),
            None => Err(error),
        },
    };
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(RecordError("reading this line failed inside gatescope; please report it".into())))
}
