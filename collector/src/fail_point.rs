//! Named moments at which a crash is interesting.
//!
//! [`reach`] marks one. It compiles to nothing unless the feature `fail-points` is on; then
//! `GATESCOPE_FAIL_POINT=name[:n]` in the environment aborts the process (`std::process::abort`, so neither destructors nor
//! buffers run) when that step is reached for the n-th time, the first where `n` is left out. A test that kills the
//! process at each of [`Step::ALL`] and compares what is there afterwards has tried every order that matters.

/// What crash tests set in the environment.
#[cfg(feature = "fail-points")]
pub const VARIABLES: [&str; 3] =
    ["GATESCOPE_FAIL_POINT", "GATESCOPE_LOG_HOLD_UNSYNCED", "GATESCOPE_LOG_ACKNOWLEDGE_BEFORE_SYNC"];

/// One line a step: the variant, its name in the environment, when it is reached.
macro_rules! steps {
    ($($variant:ident $name:literal $when:literal)+) => {
        /// A moment at which the process can be made to die.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Step {
            $(#[doc = $when] $variant,)+
        }

        impl Step {
            /// Every step, in the order in which a record or a compaction meets them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Its name in the environment.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

steps! {
    LogBeforeWrite "log-before-write" "A group of records is chosen, nothing of it is written."
    LogAfterWrite "log-after-write" "A group is written and not yet synced."
    LogAfterSync "log-after-sync" "A group is synced and nobody has been told."
    LogBeforeRoll "log-before-roll" "The log's file is full and its successor does not exist."
    LogAfterCreate "log-after-create" "The successor is created and synced, its name in the folder is not."
    LogBeforeDelete "log-before-delete" "A log file is no longer needed and still there."
    CommitBeforeWrite "commit-before-write" "Closed requests are with the writers, their files are not ended."
    CommitAfterWrite "commit-after-write" "The data files are durable, nobody knows them."
    CommitAfterState "commit-after-state" "It is written which requests are open, the commit has not happened."
    CommitAfterTables "commit-after-tables" "The commit has happened, the joiner has not been told."
    LogAfterDelete "log-after-delete" "A log file is gone, the folder is not synced."
    CompactionBeforeMark "compaction-before-mark" "Files to merge are chosen, nothing says so."
    CompactionBeforeFile "compaction-before-file" "A compaction has set its mark and written no file."
    CompactionAfterFile "compaction-after-file" "A merged file is written and no table has it."
    CompactionBeforeCommit "compaction-before-commit" "Merged files are durable, this table is about to take its own."
    CompactionAfterCommit "compaction-after-commit" "A table has taken its merged file."
    CompactionBeforeUnmark "compaction-before-unmark" "Every table has its merged file, the mark is still set."
}

/// Dies here if the environment says so.
#[cfg(not(feature = "fail-points"))]
#[inline(always)]
pub fn reach(_step: Step) {}

/// Dies here if the environment says so.
#[cfg(feature = "fail-points")]
pub fn reach(step: Step) {
    armed::reach(step);
}

#[cfg(any(feature = "fail-points", test))]
mod armed {
    #[cfg(feature = "fail-points")]
    use std::sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    };

    use super::Step;

    /// `name` or `name:n`.
    pub(super) fn parse(text: &str) -> Result<(Step, u64), String> {
        let (name, hit) = text.split_once(':').unwrap_or((text, "1"));
        let step = Step::ALL.iter().copied().find(|step| step.name() == name);
        match (step, hit.parse()) {
            (Some(step), Ok(hit)) if hit > 0 => Ok((step, hit)),
            (Some(_), _) => Err(format!("expected a count from 1 after `{name}:`, found `{hit}`")),
            (None, _) => {
                let names: Vec<_> = Step::ALL.iter().map(|step| step.name()).collect();
                Err(format!("no step is called `{name}`; there are {}", names.join(", ")))
            }
        }
    }

    #[cfg(feature = "fail-points")]
    pub(super) fn reach(step: Step) {
        static CHOSEN: OnceLock<Option<(Step, u64)>> = OnceLock::new();
        static HITS: AtomicU64 = AtomicU64::new(0);
        let chosen = CHOSEN.get_or_init(|| {
            let text = std::env::var("GATESCOPE_FAIL_POINT").ok()?;
            match parse(&text) {
                Ok(chosen) => Some(chosen),
                // A crash test that names no step would pass without a crash.
                Err(error) => {
                    tracing::error!("GATESCOPE_FAIL_POINT: {error}");
                    std::process::abort()
                }
            }
        });
        if let Some((at, hit)) = *chosen
            && at == step
            && HITS.fetch_add(1, Ordering::Relaxed) + 1 == hit
        {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Step, armed::parse};

    #[test]
    fn every_step_is_found_by_its_name() {
        for step in Step::ALL {
            assert_eq!(parse(step.name()), Ok((*step, 1)));
            assert_eq!(parse(&format!("{}:7", step.name())), Ok((*step, 7)));
        }
    }

    #[test]
    fn a_wrong_name_or_count_is_refused() {
        assert!(parse("log-before-lunch").unwrap_err().contains("log-after-sync"));
        assert!(parse("log-after-sync:0").unwrap_err().contains("count"));
        assert!(parse("log-after-sync:x").unwrap_err().contains("`x`"));
    }
}
