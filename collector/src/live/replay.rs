//! After a start: what the log has and the tables have not is joined again.

use futures::executor::block_on;

use super::{error::LiveError, intake::Intake, joiner::Received, record::Header, state::AgentSeen};
use crate::log::{Lost, Replay};

/// A replay under way.
pub(super) struct Replaying {
    pub(super) replay: Replay,
    /// The last record of the log.
    pub(super) last: u64,
    pub(super) intake: Intake,
}

impl Replaying {
    /// Hands every record to the joiner, then lets the intake take what comes.
    pub(super) fn run(mut self) -> Result<(), LiveError> {
        if let Some(cut) = self.replay.cut() {
            tracing::info!(
                ?cut,
                "a crash left half-written bytes at the end of the log: cut off, nobody was told of them"
            );
        }
        let mut records = 0u64;
        let mut told_lost = 0;
        while let Some(record) = self.replay.next() {
            let record = record?;
            told_lost = tell_lost(self.replay.lost(), told_lost);
            records += 1;
            let room = block_on(self.intake.room(record.bytes.len())).ok();
            let mut received = Received {
                position: record.position,
                at: 0,
                told: Vec::new(),
                replayed: true,
                agent: None,
                _room: room,
            };
            let read = Header::read(record.bytes).and_then(|(header, body)| {
                received.at = header.at;
                received.agent = header.message.clone().map(|message| AgentSeen {
                    agent: message.agent,
                    boot: message.boot,
                    seq: message.seq,
                });
                header.told_safely(body, self.intake.record_options())
            });
            match read {
                Ok(told) => received.told = told,
                Err(error) => tracing::error!(position = record.position, %error, "a record of the log is passed over"),
            }
            if let Some(seen) = &received.agent {
                self.intake.saw(seen, record.position);
            }
            self.intake.hand_over(received);
        }
        tell_lost(self.replay.lost(), told_lost);
        if self.last > 0 {
            // Where the last records were lost, the joiner goes on behind them.
            let end =
                Received { position: self.last, at: 0, told: Vec::new(), replayed: true, agent: None, _room: None };
            self.intake.hand_over(end);
        }
        if records > 0 {
            tracing::info!(records, "replayed the log");
        }
        self.intake.open();
        Ok(())
    }
}

fn tell_lost(lost: &[Lost], told: usize) -> usize {
    for lost in lost.iter().skip(told) {
        tracing::error!(%lost, "records of the log are lost");
    }
    lost.len()
}
