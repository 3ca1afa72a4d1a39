//! What the checks say.

use std::{fmt, sync::Arc};

use crate::span::{Role, Source};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Doubtful or incomplete.
    Warning,
    /// Training or analysis on these rows is wrong.
    Error,
}

impl Severity {
    /// `warning` or `error`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One side of a disagreement, or the row that a value check objects to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side {
    /// Who computed it.
    pub role: Role,
    /// Where.
    pub instance: Arc<str>,
    /// The ids of the finding's layer, in slot order; empty where the finding is not about ids.
    pub experts: Vec<u16>,
}

impl Side {
    /// A source without ids.
    pub fn of(source: &Source) -> Self {
        Self { role: source.role, instance: source.instance.clone(), experts: Vec::new() }
    }

    /// A source with the ids of one layer.
    pub fn with_experts(source: &Source, experts: Vec<u16>) -> Self {
        Self { experts, ..Self::of(source) }
    }
}

/// Something wrong with a request's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which check.
    pub check: Check,
    /// How bad.
    pub severity: Severity,
    /// First position concerned.
    pub position: Option<u32>,
    /// Positions concerned, from `position` on (not always adjacent); 0 where the finding has no position.
    pub positions: u32,
    /// Layer concerned, or the first of them.
    pub layer: Option<u16>,
    /// The accepted or only side.
    pub a: Option<Side>,
    /// The side that differs from it.
    pub b: Option<Side>,
    /// One sentence for people.
    pub detail: String,
}

/// `1 row`, `2 rows`.
pub(crate) fn counted(count: impl Into<u64>, noun: &str) -> String {
    match count.into() {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

impl Finding {
    /// A finding about the whole request, at the check's own severity.
    pub fn new(check: Check, detail: impl Into<String>) -> Self {
        Self {
            check,
            severity: check.severity(),
            position: None,
            positions: 0,
            layer: None,
            a: None,
            b: None,
            detail: detail.into(),
        }
    }

    /// About `positions` positions from `first` on.
    #[must_use]
    pub fn at(mut self, first: u32, positions: u32) -> Self {
        self.position = Some(first);
        self.positions = positions;
        self
    }

    /// About this layer.
    #[must_use]
    pub fn in_layer(mut self, layer: usize) -> Self {
        self.layer = Some(layer as u16);
        self
    }

    /// The accepted or only side.
    #[must_use]
    pub fn by(mut self, side: Side) -> Self {
        self.a = Some(side);
        self
    }

    /// The side that differs.
    #[must_use]
    pub fn against(mut self, side: Side) -> Self {
        self.b = Some(side);
        self
    }
}

macro_rules! checks {
    ($($variant:ident $code:literal $name:literal $severity:ident $about:literal)*) => {
        /// The checks; each has a paragraph in `docs/checks.md`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Check {
            $(#[doc = $about] $variant,)*
        }

        impl Check {
            /// Every check, by code.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The stable code, `GS001` and so on.
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code),* }
            }

            /// The name for people.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The severity of its findings, unless a finding says otherwise.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity),* }
            }

            /// One sentence on what it finds.
            pub const fn about(self) -> &'static str {
                match self { $(Self::$variant => $about),* }
            }
        }
    };
}

checks! {
    MissingRows "GS001" "rows missing" Error "Positions that should have a row have none."
    ExtraRows "GS002" "rows too many" Error "Rows lie past the last position that was fed to the model."
    MisplacedRows "GS003" "rows misplaced" Error "Rows disagree where they were placed and agree after a shift."
    ZeroRows "GS004" "rows all zero" Error "Every id of a MoE layer is 0: the row was never written."
    RepeatedExpert "GS005" "same expert twice" Error "One top-k list names an expert twice."
    ExpertOutOfRange "GS006" "id out of range" Error "An id is not below the model's number of experts."
    UnknownMarks "GS008" "unknown marks" Warning "Rows carry the mark for \"unknown\" (-1) instead of ids."
    WrongWidth "GS009" "wrong width" Error "Ids stay below 256 though the model has more experts: they went through 8 bits."
    LayersMoved "GS010" "layers shifted or swapped" Error "A layer carries another layer's rows, or a dense layer carries ids."
    SlotOrder "GS011" "slot order differs" Warning "Two sources chose the same experts in another order."
    ShapeChange "GS012" "shape changes" Error "Spans of one request differ in layers, top_k or numeric type."
    OverlapDisagrees "GS013" "overlap disagrees" Warning "Two sources computed other experts for one position."
    WrongGeneration "GS015" "other weight version" Error "Rows of two generations of the prefix cache meet in one request."
    RecomputeDiffers "GS016" "recomputed rows differ" Warning "A later attempt computed other experts than the first."
    StartsInsideBlock "GS017" "starts inside a block" Error "Rows that begin inside a KV block were taken to begin with it."
    OneRoleOnly "GS018" "one role only" Warning "A decode came without its prefill, or a prefill without its decode."
    TwoAnswers "GS019" "two answers" Error "Two first attempts of one role answered the same positions."
    LateRows "GS020" "late rows" Warning "Rows came after their request was closed."
    PrefixUnresolved "GS022" "prefix not resolvable" Warning "A prefix that the caller left out is not known from the request it names."
    TrainerDiffers "GS023" "trainer differs" Error "A trainer recomputed other experts than the rollout used."
    Collapse "GS026" "one row for all" Warning "Every token of a prompt chose the same experts."
    CaptureLost "GS028" "capture lost rows" Warning "The agent dropped rows and said which."
    BlockDiffers "GS029" "same block, other rows" Error "Rows of one KV block, by its hash, differ."
    NoRouting "GS031" "no routing" Error "A finished request has no row at all."
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl std::str::FromStr for Check {
    type Err = UnknownCheck;

    fn from_str(code: &str) -> Result<Self, UnknownCheck> {
        Self::ALL.iter().copied().find(|check| check.code() == code).ok_or_else(|| UnknownCheck(code.to_owned()))
    }
}

/// Not the code of a check.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no check has the code {0:?}")]
pub struct UnknownCheck(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_has_a_paragraph_that_states_its_name_and_severity() {
        let page = include_str!("../../docs/checks.md");
        for check in Check::ALL {
            let (code, name, severity) = (check.code(), check.name(), check.severity().name());
            assert!(page.contains(&format!("**{code} {name}** ({severity}")), "{code} {name} ({severity})");
        }
    }

    #[test]
    fn codes_are_unique_and_read_back() {
        for check in Check::ALL {
            assert_eq!(check.code().parse(), Ok(*check));
        }
        assert_eq!("GS999".parse::<Check>(), Err(UnknownCheck("GS999".into())));
    }
}
