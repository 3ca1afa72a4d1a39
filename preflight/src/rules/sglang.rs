//! SGLang. Read in the packages 0.5.6, 0.5.7, 0.5.8, 0.5.10 and 0.5.23; its releases count up the third number.

use super::{Cause, Facts, Known, Rule};
use crate::configuration::Configuration;
use crate::report::{Level, Role};
use crate::version::Version;

const FLAG: &str = "enable-return-routed-experts";
const ALL: ((u16, u16), (u16, u16)) = ((0, 5), (0, 5));
/// First release with the flag.
const FIRST: Version = Version::new(0, 5, 7);

/// The table.
pub(super) static RULES: &[Rule] = &[
    Rule {
        name: "sglang-too-old",
        since: ALL.0,
        until: ALL.1,
        level: Level::Cannot,
        says: "launch_server: error: unrecognized arguments: --enable-return-routed-experts",
        change: "take SGLang 0.5.7 or newer",
        source: "sglang/srt/server_args.py of 0.5.6 and 0.5.7",
        known: Known::Read,
        applies: |_, facts| (facts.version < FIRST).then(|| Cause::of(format!("SGLang {}", facts.version)))?,
    },
    Rule {
        name: "sglang-flag",
        since: ALL.0,
        until: ALL.1,
        level: Level::Change,
        says: "nothing: the server starts, and answers have no meta_info.routed_experts",
        change: "add --enable-return-routed-experts, and ask with \"return_routed_experts\": true in each request",
        source: "sglang/srt/server_args.py, sglang/srt/arg_groups/fields/exec_.py",
        known: Known::Read,
        applies: without_flag,
    },
    Rule {
        name: "sglang-disaggregated",
        since: ALL.0,
        until: ALL.1,
        level: Level::Change,
        says: "nothing: versions before the fixes below answered a disaggregated prefill with zeros (rows all 0: GS004)",
        change: "put `gatescope tap` before prefill and decode, and look at `gatescope check` for GS004 and GS031",
        source: "SGLang issues 22911, 23885 and 39146",
        known: Known::Unverified,
        applies: |_, facts| match facts.role {
            Role::Colocated => None,
            _ => Cause::of("disaggregated prefill and decode"),
        },
    },
];

fn without_flag(configuration: &Configuration, facts: &Facts) -> Option<Cause> {
    let known = configuration.complete && facts.version >= FIRST;
    (known && configuration.switch(FLAG) != Some(true))
        .then(|| Cause::of("--enable-return-routed-experts is not given"))?
}

pub(super) fn not_checked() -> Vec<String> {
    vec![
        "whether the model is a mixture of experts".to_owned(),
        "whether clients ask for it: \"return_routed_experts\": true in each request".to_owned(),
    ]
}
