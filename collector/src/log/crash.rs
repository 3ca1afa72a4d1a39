//! What crash tests of the whole program switch on in the environment; there only with the feature `fail-points`.

use std::{env, sync::Arc};

use super::{
    held::HeldDisk,
    options::Options,
    storage::{Disk, Storage},
};

/// The disk; with `GATESCOPE_LOG_HOLD_UNSYNCED=1` one that loses to a kill what a power cut would lose.
pub(super) fn storage() -> Arc<dyn Storage> {
    if is_set("GATESCOPE_LOG_HOLD_UNSYNCED") { Arc::new(HeldDisk) } else { Arc::new(Disk) }
}

/// `options`; with `GATESCOPE_LOG_ACKNOWLEDGE_BEFORE_SYNC=1` with the fault that a crash test must find.
pub(super) fn mutated(options: Options) -> Options {
    let acknowledge_before_sync = options.acknowledge_before_sync || is_set("GATESCOPE_LOG_ACKNOWLEDGE_BEFORE_SYNC");
    Options { acknowledge_before_sync, ..options }
}

fn is_set(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| value == "1")
}
