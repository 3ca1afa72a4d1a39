//! Faults that a stream of captured rows can have, and the checks that must find them.

use std::{fmt, str::FromStr};

use gatescope_routing::{Check, Role};

macro_rules! faults {
    ($($variant:ident $name:literal $check:ident [$($also:ident)*] $about:literal)*) => {
        /// A kind of fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Fault {
            $(#[doc = $about] $variant,)*
        }

        impl Fault {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name by which it is asked for.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The check that must find it.
            pub const fn check(self) -> Check {
                match self { $(Self::$variant => Check::$check),* }
            }

            /// What else it may make checks say.
            pub const fn also(self) -> &'static [Check] {
                match self { $(Self::$variant => &[$(Check::$also),*]),* }
            }

            /// One sentence on what is wrong.
            pub const fn about(self) -> &'static str {
                match self { $(Self::$variant => $about),* }
            }
        }
    };
}

faults! {
    MissingRow "missing-row" MissingRows [] "Decode leaves a row of the completion out."
    ExtraRow "extra-row" ExtraRows [] "Decode sends a row for the last sampled token, which is never fed."
    Shifted "shifted" MisplacedRows [] "Every row of decode is the one of the position before."
    ZeroRow "zero-row" ZeroRows [] "A row of decode is 0 in every layer."
    DuplicateExpert "duplicate-expert" RepeatedExpert [] "Decode names an expert twice in a layer of a row."
    OutOfRange "out-of-range" ExpertOutOfRange [] "Decode names an expert that the model does not have."
    UnknownMark "unknown-mark" UnknownMarks [] "Decode marks a row as unknown."
    DenseLayer "dense-layer" LayersMoved [] "A row of decode has experts in a dense layer."
    SlotOrder "slot-order" SlotOrder [] "Decode has the experts of the overlap in another order in a layer."
    Shape "shape" ShapeChange [] "Decode sends some rows with one slot less a layer."
    Overlap "overlap" OverlapDisagrees [] "Decode has another expert than prefill in a layer of the overlap."
    Generation "generation" WrongGeneration [] "The last rows of a prefill are of another prefix-cache generation."
    Recompute "recompute" RecomputeDiffers [] "Decode recomputes a row after a preemption, and has another expert."
    NoPrefill "no-prefill" OneRoleOnly [MissingRows] "The prefill never comes."
    NoDecode "no-decode" MissingRows [] "The decode begins and never ends."
    TwoAnswers "two-answers" TwoAnswers [] "Decode sends a block twice, with other rows."
    Collapse "collapse" Collapse [] "Prefill has one row for every token of the prompt."
    LostRows "lost-rows" CaptureLost [] "The agent tells that it dropped a row of decode."
    NoRouting "no-routing" NoRouting [] "Prefill and decode finish without a row."
}

impl Fault {
    /// Whose rows it concerns.
    pub(crate) const fn role(self) -> Role {
        match self {
            Self::Generation | Self::Collapse | Self::NoPrefill => Role::Prefill,
            _ => Role::Decode,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No kind of fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fault {0:?}: expected one of {list}", list = names())]
pub struct UnknownFault(pub String);

fn names() -> String {
    let names: Vec<&str> = Fault::ALL.iter().map(|fault| fault.name()).collect();
    names.join(", ")
}

impl FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(name: &str) -> Result<Self, UnknownFault> {
        Self::ALL.iter().copied().find(|fault| fault.name() == name).ok_or_else(|| UnknownFault(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_in_the_documentation_with_its_check() {
        let page = include_str!("../../docs/testing.md");
        for fault in Fault::ALL {
            let row = format!("| `{fault}` | {} | {} |", fault.check(), fault.about());
            assert!(page.contains(&row), "{row}");
        }
    }

    #[test]
    fn faults_are_asked_for_by_name() {
        for fault in Fault::ALL {
            assert_eq!(fault.name().parse(), Ok(*fault));
        }
        let unknown = "row-missing".parse::<Fault>().unwrap_err().to_string();
        assert!(unknown.starts_with("fault \"row-missing\": expected one of missing-row, extra-row, "), "{unknown}");
    }
}
