//! The thread that sends.

use std::{
    sync::{Arc, atomic::Ordering, mpsc::SyncSender},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use arrow_flight::{FlightData, PutResult};
use gatescope_wire::{Batcher, Event, MAX_MESSAGE_BYTES, MessageId, WireError, flight, ipc, wire_bytes};
use tokio::{
    sync::mpsc::{OwnedPermit, UnboundedReceiver},
    time::{Instant, sleep_until},
};
use tonic::{
    Status,
    metadata::{Ascii, MetadataValue},
    transport::Endpoint,
};
use uuid::Uuid;

use super::{
    Options, StartError,
    backoff::Backoff,
    link::Link,
    metrics::add,
    outbox::Outbox,
    queue::{Item, Shared},
    settle::{Settler, Verdict},
};

/// Items taken before answers are looked at again.
const ITEMS_AT_ONCE: usize = 256;
/// Gap records put into the batcher at once.
const GAPS_AT_ONCE: usize = 256;
/// Gaps are told so often at least, though the queue stays full.
const GAPS_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Worker {
    endpoint: Endpoint,
    authorization: Option<MetadataValue<Ascii>>,
    schema: FlightData,
    agent: Arc<str>,
    boot: Uuid,
    queue_bytes: usize,
    window: usize,
    linger: Duration,
    ack_timeout: Duration,

    items: UnboundedReceiver<Item>,
    shared: Arc<Shared>,
    batcher: Batcher,
    /// When the batcher's oldest event has waited long enough.
    due: Option<Instant>,
    /// Events that have left the batcher.
    made: u64,
    gaps_told: Instant,
    outbox: Outbox,
    settler: Settler,
    flushes: Vec<Flush>,
    connection: Connection,
    backoff: Backoff,
}

struct Flush {
    /// Events that must have left the batcher.
    events: u64,
    /// The last message that they are in, once they have.
    message: Option<u64>,
    done: SyncSender<()>,
}

enum Connection {
    Waiting {
        until: Instant,
    },
    Open {
        link: Link,
        /// When something was last settled, or the first message sent that nothing was settled of.
        quiet_since: Instant,
    },
}

/// What the thread was woken by.
enum Woken {
    Item(Option<Item>),
    Due,
    Room(OwnedPermit<FlightData>),
    Answer(Result<PutResult, Status>),
    Quiet,
    Connect,
    Called,
}

impl Worker {
    pub(super) fn new(
        options: &Options,
        items: UnboundedReceiver<Item>,
        shared: Arc<Shared>,
    ) -> Result<Self, StartError> {
        let schema = flight::schema_message()?;
        let reader = ipc::Reader::new(&schema.data_header)?;
        let boot = Uuid::new_v4();
        Ok(Self {
            endpoint: options.endpoint()?,
            authorization: options.authorization()?,
            schema,
            agent: options.agent.clone(),
            boot,
            queue_bytes: options.queue_bytes,
            window: options.window(),
            linger: options.linger,
            ack_timeout: options.ack_timeout,
            items,
            shared,
            batcher: Batcher::new(options.batch_bytes),
            due: None,
            made: 0,
            gaps_told: Instant::now(),
            outbox: Outbox::default(),
            settler: Settler::new(options.agent.clone(), boot, reader),
            flushes: Vec::new(),
            connection: Connection::Waiting { until: Instant::now() },
            backoff: Backoff::new(options.backoff, options.max_backoff),
        })
    }

    /// Runs until the exporter ends; gives back what was not acknowledged, in its order.
    pub(super) async fn run(mut self) -> Vec<Event> {
        while !self.shared.ending.load(Ordering::Acquire) {
            self.tell_gaps();
            self.make_messages();
            self.shared.counters.in_flight_bytes.store(self.outbox.bytes(), Ordering::Relaxed);
            self.answer_flushes();
            match self.woken().await {
                Woken::Item(Some(item)) => self.take(item),
                Woken::Item(None) => break,
                Woken::Room(permit) => self.send(permit),
                Woken::Answer(Ok(answer)) => self.answered(&answer.app_metadata),
                Woken::Answer(Err(status)) => self.disconnected(&format!("{}: {}", status.code(), status.message())),
                Woken::Quiet => self.disconnected("nothing was acknowledged for too long"),
                Woken::Connect => self.connect(),
                Woken::Due | Woken::Called => {}
            }
        }
        self.left()
    }

    fn left(mut self) -> Vec<Event> {
        let mut left: Vec<Event> =
            self.outbox.settle(u64::MAX).iter().flat_map(|message| self.settler.events(message)).collect();
        while let Some(events) = self.batcher.rest() {
            left.extend(events);
        }
        while let Ok(item) = self.items.try_recv() {
            if let Item::Event(event, _) = item {
                left.push(event);
            }
        }
        left.extend(self.shared.gaps().take(usize::MAX, now()));
        left
    }

    async fn woken(&mut self) -> Woken {
        let takes = self.has_room();
        let due = self.due.filter(|_| self.may_make());
        let unsent = !self.outbox.all_sent();
        let unsettled = self.outbox.any_sent();
        tokio::select! {
            // Answers before all that makes more to be answered.
            biased;
            () = self.shared.wake.notified() => Woken::Called,
            woken = next(&mut self.connection, unsent, unsettled, self.ack_timeout) => woken,
            item = self.items.recv(), if takes => Woken::Item(item),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => Woken::Due,
        }
    }

    /// Whether events may leave the queue.
    fn has_room(&self) -> bool {
        self.outbox.bytes() + self.batcher.bytes() + MAX_MESSAGE_BYTES <= self.window
    }

    /// Whether one more message stays inside the window.
    fn may_make(&self) -> bool {
        self.outbox.bytes() + MAX_MESSAGE_BYTES <= self.window
    }

    fn take(&mut self, item: Item) {
        self.take_one(item);
        for _ in 1..ITEMS_AT_ONCE {
            if !self.has_room() {
                break;
            }
            let Ok(item) = self.items.try_recv() else { break };
            self.take_one(item);
        }
    }

    fn take_one(&mut self, item: Item) {
        match item {
            Item::Event(event, bytes) => {
                self.shared.release(bytes);
                self.batch(event);
            }
            Item::Flush(done) => {
                let gaps = self.shared.gaps().take(usize::MAX, now());
                self.batch_gaps(gaps);
                self.flushes.push(Flush { events: self.made + self.batcher.len() as u64, message: None, done });
            }
        }
    }

    fn batch(&mut self, event: Event) {
        // Only what may not fit is kept: a batcher that refuses keeps nothing.
        let large = (wire_bytes(&event) > MAX_MESSAGE_BYTES / 2).then(|| event.clone());
        match (self.batcher.push(event), large) {
            (Ok(()), _) => {
                self.due.get_or_insert_with(|| Instant::now() + self.linger);
            }
            (Err(error), large) => self.unsendable(&error, large.as_slice()),
        }
    }

    fn unsendable(&self, error: &WireError, events: &[Event]) {
        tracing::warn!("what was captured cannot be sent: {error}");
        add(&self.shared.counters.refused_events, events.len() as u64);
        events.iter().for_each(|event| self.shared.lose(event));
    }

    /// Tells what was dropped, once the queue has room again.
    fn tell_gaps(&mut self) {
        let queued = self.shared.counters.queue_bytes.load(Ordering::Relaxed);
        let roomy = queued <= self.queue_bytes / 4 * 3 || self.gaps_told.elapsed() > GAPS_EVERY;
        if roomy && self.has_room() {
            let gaps = self.shared.gaps().take(GAPS_AT_ONCE, now());
            self.batch_gaps(gaps);
        }
    }

    fn batch_gaps(&mut self, gaps: Vec<Event>) {
        if gaps.is_empty() {
            return;
        }
        self.gaps_told = Instant::now();
        add(&self.shared.counters.gap_records, gaps.len() as u64);
        gaps.into_iter().for_each(|gap| self.batch(gap));
    }

    /// Makes messages of what waits: full ones, and the rest where it has waited long enough or someone waits for it.
    fn make_messages(&mut self) {
        let all = self.flushes.iter().any(|flush| flush.message.is_none());
        while self.may_make() {
            let due = all || self.due.is_some_and(|due| due <= Instant::now());
            let Some(events) = (if due { self.batcher.rest() } else { self.batcher.full() }) else { break };
            self.make_message(&events);
            self.due = None;
        }
        if !self.batcher.is_empty() {
            self.due.get_or_insert_with(|| Instant::now() + self.linger);
        }
    }

    fn make_message(&mut self, events: &[Event]) {
        let id = MessageId { agent: self.agent.clone(), boot: self.boot, seq: self.outbox.next_seq() };
        self.made += events.len() as u64;
        match flight::message(&id, events) {
            Ok(data) => self.outbox.push(data, events.len()),
            Err(error) => self.unsendable(&error, events),
        }
    }

    fn answer_flushes(&mut self) {
        let (made, last) = (self.made, self.outbox.next_seq() - 1);
        for flush in &mut self.flushes {
            if flush.message.is_none() && made >= flush.events {
                flush.message = Some(last);
            }
        }
        let unsettled = self.outbox.unsettled();
        for flush in self.flushes.extract_if(.., |flush| flush.message.is_some_and(|message| message < unsettled)) {
            // Whoever asked may have stopped waiting.
            let _ = flush.done.send(());
        }
    }

    fn connect(&mut self) {
        add(&self.shared.counters.connects, 1);
        let link = Link::open(self.endpoint.clone(), self.authorization.clone(), self.schema.clone());
        self.connection = Connection::Open { link, quiet_since: Instant::now() };
    }

    fn send(&mut self, permit: OwnedPermit<FlightData>) {
        let Connection::Open { quiet_since, .. } = &mut self.connection else { return };
        if !self.outbox.any_sent() {
            *quiet_since = Instant::now();
        }
        let Some(next) = self.outbox.send() else { return };
        permit.send(next.data);
        let counters = &self.shared.counters;
        if next.again {
            add(&counters.resent_messages, 1);
        } else {
            add(&counters.sent_messages, 1);
            add(&counters.sent_bytes, next.bytes as u64);
        }
    }

    fn answered(&mut self, metadata: &[u8]) {
        match self.settler.take(metadata, &mut self.outbox, &self.shared) {
            Verdict::Progress => {
                self.shared.counters.connected.store(true, Ordering::Relaxed);
                self.backoff.reset();
                if let Connection::Open { quiet_since, .. } = &mut self.connection {
                    *quiet_since = Instant::now();
                }
            }
            Verdict::Nothing => {}
            Verdict::Again => self.disconnected("the collector wants messages again, later"),
        }
    }

    /// Ends the stream; the next one carries everything that is not settled, from the oldest on.
    fn disconnected(&mut self, why: &str) {
        let wait = self.backoff.wait();
        if self.shared.counters.connected.swap(false, Ordering::Relaxed) {
            tracing::warn!("the stream to the collector ended, the next begins in {wait:?}: {why}");
        } else {
            tracing::debug!("no stream to the collector, the next begins in {wait:?}: {why}");
        }
        self.outbox.rewind();
        self.connection = Connection::Waiting { until: Instant::now() + wait };
    }
}

/// What the connection has to say next.
async fn next(connection: &mut Connection, unsent: bool, unsettled: bool, patience: Duration) -> Woken {
    match connection {
        Connection::Waiting { until } => {
            sleep_until(*until).await;
            Woken::Connect
        }
        Connection::Open { link, quiet_since } => {
            let messages = link.messages();
            tokio::select! {
                biased;
                answer = link.answer() => Woken::Answer(answer),
                permit = messages.reserve_owned(), if unsent => match permit {
                    Ok(permit) => Woken::Room(permit),
                    // The stream has ended; why is in the answer.
                    Err(_) => Woken::Answer(link.answer().await),
                },
                () = sleep_until(*quiet_since + patience), if unsettled => Woken::Quiet,
            }
        }
    }
}

/// Microseconds since 1970.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros() as i64)
}
