//! What an engine is for, as it is said on the command line.

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum RoleName {
    Prefill,
    Decode,
    Colocated,
}

impl From<RoleName> for gatescope_preflight::Role {
    fn from(role: RoleName) -> Self {
        match role {
            RoleName::Prefill => Self::Prefill,
            RoleName::Decode => Self::Decode,
            RoleName::Colocated => Self::Colocated,
        }
    }
}

impl From<RoleName> for gatescope_tap::Role {
    fn from(role: RoleName) -> Self {
        match role {
            RoleName::Prefill => Self::Prefill,
            RoleName::Decode => Self::Decode,
            RoleName::Colocated => Self::Colocated,
        }
    }
}
