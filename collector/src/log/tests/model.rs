//! Any order of appends, deletions, failures, power cuts and restarts against a map.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::log::memory::{Faults, Loss, Random};

#[derive(Debug, Clone)]
enum Action {
    /// Appends records of these lengths, and waits for the last one or does not.
    Append { lengths: Vec<usize>, waits: bool },
    /// Commits this share of what is durable, in percent, and deletes below it.
    Delete(u64),
    /// The disk refuses.
    Fail(Fault),
    /// The disk is well; everything taken becomes durable.
    Repair,
    /// Closes and opens.
    Restart,
    /// Cuts the power in the middle of whatever happens.
    CutPower(Loss, u64),
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Full(usize),
    Syncs(u32),
    FolderSync,
    Truncate(usize),
}

fn action() -> impl Strategy<Value = Action> {
    let lengths = proptest::collection::vec(0..60_usize, 1..6);
    let fault = prop_oneof![
        (0..200_usize).prop_map(Fault::Full),
        (1..4_u32).prop_map(Fault::Syncs),
        Just(Fault::FolderSync),
        (0..200_usize).prop_map(Fault::Truncate),
    ];
    let loss = prop_oneof![Just(Loss::All), Just(Loss::Tail), Just(Loss::Blocks), Just(Loss::Nothing)];
    prop_oneof![
        6 => (lengths, any::<bool>()).prop_map(|(lengths, waits)| Action::Append { lengths, waits }),
        1 => (0..=100_u64).prop_map(Action::Delete),
        1 => fault.prop_map(Action::Fail),
        1 => Just(Action::Repair),
        1 => Just(Action::Restart),
        3 => (loss, any::<u64>()).prop_map(|(loss, seed)| Action::CutPower(loss, seed)),
    ]
}

/// A log and what it must hold.
struct Model {
    disk: MemoryDisk,
    log: Option<Log>,
    options: Options,
    /// What was appended and may be there.
    taken: BTreeMap<u64, Bytes>,
    /// The last position that somebody was told is durable.
    told: u64,
    committed: u64,
    random: Random,
}

impl Model {
    fn new(options: Options) -> Self {
        let disk = MemoryDisk::new();
        let log = open(&disk, 0, options.clone()).map(|(log, _)| log).ok();
        Self { disk, log, options, taken: BTreeMap::new(), told: 0, committed: 0, random: Random(1) }
    }

    /// Does it; an error says which promise is broken.
    fn act(&mut self, action: &Action) -> Result<(), String> {
        let log = self.log.take().ok_or("the log is not open")?;
        match action {
            Action::Append { lengths, waits } => {
                let mut last = None;
                for length in lengths {
                    let bytes: Bytes = (0..*length).map(|_| self.random.next() as u8).collect();
                    // A disk that refuses refuses: the model holds what was taken.
                    if let Ok(position) = log.append_blocking(bytes.clone()) {
                        self.taken.insert(position, bytes);
                        last = Some(position);
                    }
                }
                if let (Some(last), true) = (last, waits)
                    && let Ok(durable) = log.reached_blocking(last)
                {
                    self.told = self.told.max(durable.position());
                }
            }
            Action::Delete(percent) => {
                let durable = log.durable().position();
                self.told = self.told.max(durable);
                self.committed = self.committed.max(durable * percent / 100);
                // Deleting may fail with the disk; what it has deleted is committed in any case.
                let _refused = log.delete_below(self.committed);
            }
            Action::Fail(fault) => {
                let none = Faults::default();
                self.disk.set(match *fault {
                    Fault::Full(room) => Faults { room: Some(room), ..none },
                    Fault::Syncs(failing_syncs) => Faults { failing_syncs, ..none },
                    Fault::FolderSync => Faults { failing_folder_sync: true, ..none },
                    Fault::Truncate(room) => Faults { room: Some(room), failing_truncate: true, ..none },
                });
            }
            Action::Repair => {
                self.disk.set(Faults::default());
                let last = self.taken.last_key_value().map_or(0, |(last, _)| *last);
                let mut watermark = log.watermark();
                let mut now = watermark.now();
                while now.position() < last {
                    now = futures::executor::block_on(watermark.above(now)).map_err(|error| error.to_string())?;
                }
                self.told = last.max(self.told);
            }
            Action::Restart => {
                self.told = self.told.max(log.durable().position());
                drop(log);
                // A disk that refuses would refuse the start as well, which other tests are about.
                self.disk.set(Faults::default());
                return self.start();
            }
            Action::CutPower(loss, seed) => {
                self.told = self.told.max(log.durable().position());
                self.disk = self.disk.cut_power(*loss, *seed);
                drop(log);
                return self.start();
            }
        }
        self.log = Some(log);
        Ok(())
    }

    /// Opens the log again: it must hold exactly what was taken, up to some record that is not before `told`.
    fn start(&mut self) -> Result<(), String> {
        let opened = open(&self.disk, self.committed, self.options.clone());
        let (log, replay) = opened.map_err(|error| format!("does not open: {error}"))?;
        let mut last = self.committed;
        for record in replay {
            let record = record.map_err(|error| format!("does not replay: {error}"))?;
            last += 1;
            if record.position != last {
                return Err(format!("record {} after {}", record.position, last - 1));
            }
            if self.taken.get(&last) != Some(&record.bytes) {
                return Err(format!("record {last} is not what was appended"));
            }
        }
        if last < self.told {
            return Err(format!("records up to {} were acknowledged, and {last} is the last", self.told));
        }
        if log.durable().position() != last {
            return Err(format!("durable is {} and {last} is the last record", log.durable().position()));
        }
        self.taken.split_off(&(last + 1));
        self.told = last;
        self.log = Some(log);
        Ok(())
    }
}

fn tiny() -> Options {
    Options { roll_bytes: 200, retry_delay: Duration::from_micros(200), ..small() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_log_holds_what_it_acknowledged(actions in proptest::collection::vec(action(), 1..40)) {
        let mut model = Model::new(tiny());
        for action in &actions {
            let done = model.act(action);
            prop_assert!(done.is_ok(), "{action:?}: {}", done.unwrap_err());
        }
        let done = model.act(&Action::CutPower(Loss::All, 0));
        prop_assert!(done.is_ok(), "{}", done.unwrap_err());
    }

    #[test]
    fn any_damage_gives_true_records_only(
        count in 1..20_u64,
        edits in proptest::collection::vec((any::<usize>(), any::<usize>(), proptest::collection::vec(any::<u8>(), 0..50)), 1..4),
        salvage in any::<bool>(),
    ) {
        // Given: bytes anywhere overwritten, or the file cut there.
        let disk = disk_with(count, small());
        for (file, offset, bytes) in edits {
            let paths = disk.paths();
            let path = &paths[file % paths.len()];
            let mut contents = disk.read(path);
            let offset = offset % (contents.len() + 1);
            if bytes.is_empty() {
                contents.truncate(offset);
            }
            let end = (offset + bytes.len()).min(contents.len());
            if offset < end {
                contents[offset..end].copy_from_slice(&bytes[..end - offset]);
            }
            disk.write(path, contents);
        }

        // Then
        if let Ok((_log, replay)) = open(&disk, 0, Options { salvage, ..small() }) {
            let mut last = 0;
            for record in replay.map_while(Result::ok) {
                prop_assert!(record.position > last && record.position <= count);
                prop_assert_eq!(&record.bytes, &payload(record.position));
                prop_assert!(salvage || record.position == last + 1);
                last = record.position;
            }
        }
    }
}

/// One record that somebody is told is durable while the disk's syncs hang; then the power goes.
fn acknowledge_then_cut_power(options: Options) -> Result<(), String> {
    let mut model = Model::new(options);
    model.disk.set(Faults { stuck_syncs: true, ..Faults::default() });
    model.act(&Action::Append { lengths: vec![10], waits: false })?;
    std::thread::sleep(Duration::from_millis(50));
    model.act(&Action::CutPower(Loss::All, 0))
}

#[test]
fn acknowledging_before_the_sync_is_caught_by_a_power_cut() {
    assert_eq!(acknowledge_then_cut_power(tiny()), Ok(()));
    let mutated = Options { acknowledge_before_sync: true, ..tiny() };
    let caught = acknowledge_then_cut_power(mutated).unwrap_err();
    assert_eq!(caught, "records up to 1 were acknowledged, and 0 is the last");
}
