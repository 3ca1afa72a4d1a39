//! A process that appends under load and is killed, again and again.

use std::{
    collections::HashMap,
    env,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;

use super::*;
use crate::log::{
    held::HeldDisk,
    memory::Random,
    storage::{Disk, Storage},
};

const FOLDER: &str = "GATESCOPE_LOG_CHILD_FOLDER";
const COMMITTED: &str = "GATESCOPE_LOG_CHILD_COMMITTED";
const DISK: &str = "GATESCOPE_LOG_CHILD_DISK";
const MUTATED: &str = "GATESCOPE_LOG_CHILD_MUTATED";

fn storage(name: &str) -> Arc<dyn Storage> {
    if name == "held" { Arc::new(HeldDisk) } else { Arc::new(Disk) }
}

fn options() -> Options {
    Options { roll_bytes: 200_000, sync_bytes: 30_000, sync_delay: Duration::from_millis(1), ..Options::default() }
}

/// Not a test of its own: what the others start, and kill.
#[test]
#[ignore = "run by the tests that kill it"]
fn child() {
    let Ok(folder) = env::var(FOLDER) else { return };
    let committed = env::var(COMMITTED).unwrap().parse().unwrap();
    let options = Options { acknowledge_before_sync: env::var(MUTATED).is_ok(), ..options() };
    let (log, _) = Log::open_on(storage(&env::var(DISK).unwrap()), Path::new(&folder), committed, options).unwrap();
    let deleted = AtomicU64::new(committed);
    thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (log, deleted) = (&log, &deleted);
            scope.spawn(move || {
                let mut random = Random(thread ^ u64::from(std::process::id()));
                loop {
                    let length = random.below(5000);
                    let record: Bytes = (0..length).map(|at| (at as u8) ^ (length as u8)).collect();
                    let crc = crc32c::crc32c(&record);
                    let position = log.append_blocking(record).unwrap();
                    let durable = log.reached_blocking(position).unwrap().position();
                    println!("acknowledged {position} {crc}");
                    let below = durable.saturating_sub(100);
                    if deleted.fetch_max(below, Ordering::Relaxed) / 200 < below / 200 {
                        println!("committed {below}");
                        log.delete_below(below).unwrap();
                    }
                }
            });
        }
    });
}

/// What the killed processes said so far.
#[derive(Default)]
struct Heard {
    acknowledged: HashMap<u64, u32>,
    committed: u64,
}

impl Heard {
    /// Starts a process, kills it after some acknowledgements, and listens to all that it said before.
    fn run_and_kill(&mut self, folder: &Path, disk: &str, kill_after: usize, environment: &[(&str, &str)]) {
        let module = module_path!().split_once("::").unwrap().1;
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", &format!("{module}::child"), "--ignored", "--nocapture", "--test-threads=1"])
            .env(FOLDER, folder)
            .env(COMMITTED, self.committed.to_string())
            .env(DISK, disk)
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut count = 0;
        for line in lines {
            let line = line.unwrap();
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                // Half a line of a killed process has fewer words.
                ["acknowledged", position, crc] if crc.parse::<u32>().is_ok() => {
                    self.acknowledged.insert(position.parse().unwrap(), crc.parse().unwrap());
                    count += 1;
                    if count == kill_after {
                        child.kill().unwrap();
                    }
                }
                ["committed", position] => self.committed = self.committed.max(position.parse().unwrap()),
                _ => {}
            }
        }
        child.wait().unwrap();
    }

    /// Opens what is there and compares; an error names an acknowledged record that is not.
    fn check(&mut self, folder: &Path) -> Result<(), String> {
        let opened = Log::open_on(Arc::new(Disk), folder, self.committed, options());
        let (_log, replay) = opened.map_err(|error| error.to_string())?;
        let found = replay.map(|record| record.map(|record| (record.position, crc32c::crc32c(&record.bytes))));
        let found: HashMap<_, _> = found.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        for (position, crc) in &self.acknowledged {
            if *position > self.committed && found.get(position) != Some(crc) {
                return Err(format!("record {position} was acknowledged; found {:?}", found.get(position)));
            }
        }
        Ok(())
    }
}

#[test]
fn fifty_kills_under_load_lose_nothing_that_was_acknowledged() {
    // Given: every second process runs on a disk that also loses what was not synced.
    let folder = tempfile::tempdir().unwrap();
    let mut heard = Heard::default();
    let mut random = Random(50);
    for round in 0..50 {
        // When
        let before = heard.acknowledged.len();
        let disk = if round % 2 == 0 { "plain" } else { "held" };
        heard.run_and_kill(folder.path(), disk, 1 + random.below(60), &[]);

        // Then
        assert!(heard.acknowledged.len() > before, "round {round}: the process said nothing");
        heard.check(folder.path()).unwrap();
    }
    assert!(heard.committed > 0, "files must have been deleted on the way");
}

#[test]
fn kills_catch_a_log_that_acknowledges_before_the_sync() {
    let folder = tempfile::tempdir().unwrap();
    let mut heard = Heard::default();
    let caught = (0..20).find_map(|round| {
        heard.run_and_kill(folder.path(), "held", 1 + round, &[(MUTATED, "1")]);
        heard.check(folder.path()).err()
    });
    assert!(caught.is_some_and(|error| error.contains("was acknowledged")));
}

#[cfg(feature = "fail-points")]
#[test]
fn a_process_that_dies_at_any_step_loses_nothing_that_was_acknowledged() {
    use crate::fail_point::Step;

    for step in Step::ALL.iter().filter(|step| step.name().starts_with("log-")) {
        for disk in ["plain", "held"] {
            for hit in 1..=3 {
                let folder = tempfile::tempdir().unwrap();
                let mut heard = Heard::default();
                let at = format!("{}:{hit}", step.name());
                heard.run_and_kill(folder.path(), disk, 5000, &[("GATESCOPE_FAIL_POINT", &at)]);
                assert!(heard.acknowledged.len() < 5000, "{at} was not reached");
                heard.check(folder.path()).unwrap();
                heard.run_and_kill(folder.path(), disk, 1, &[]);
                heard.check(folder.path()).unwrap();
            }
        }
    }
}
