//! Every row that was not accepted is compared with the one that was: as sets, since slot order follows scores and may
//! flip between equal computations, and slot by slot.

use std::collections::HashMap;

use super::{
    accept::{Accepted, Overlap, Placed},
    layer_moves::LayerMoves,
    positions::Positions,
    shift::{Shift, find_shift},
};
use crate::{
    finding::{Check, Finding, Severity, Side},
    rows::Rows,
    span::{Role, Source, Span},
};

/// Findings with a position and layer of their own, per pair of sources; the rest is counted.
const DETAILED: usize = 32;

/// Layers of the compared rows in which a disagreement is no longer put down to numerics, as a share.
const WHOLLY: f64 = 0.5;

/// What the comparison gave.
#[derive(Debug, Default)]
pub(super) struct Compared {
    pub(super) overlap: Positions,
    pub(super) mismatched: Positions,
    pub(super) findings: Vec<Finding>,
}

/// Two sources that have rows for the same positions: the accepted one first.
struct Pair<'a> {
    accepted: &'a Source,
    other: &'a Source,
    common: Positions,
    differing: Positions,
    reordered: Positions,
    /// Layers of rows that differ as sets.
    cells: u64,
    details: Vec<(u32, usize, Vec<u16>, Vec<u16>)>,
    moves: LayerMoves,
    first_reordered: Option<(u32, usize, Vec<u16>, Vec<u16>)>,
}

/// Compares; `live_layers` of a row is what a full disagreement could touch at most.
pub(super) fn compare(
    placed: &[Placed<'_>],
    accepted: &Accepted,
    live_layers: usize,
    expected: Option<u32>,
) -> Compared {
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    let mut index: HashMap<(&Source, &Source), usize> = HashMap::new();
    let mut compared = Compared::default();
    for overlap in &accepted.overlaps {
        let (one, other) = (placed[overlap.accepted.span].source(), placed[overlap.other.span].source());
        let at = *index.entry((one, other)).or_insert_with(|| {
            pairs.push(Pair::new(one, other));
            pairs.len() - 1
        });
        pairs[at].take(overlap);
        if one != other {
            let end = overlap.start + overlap.accepted.rows.len() as u32;
            compared.overlap.insert(overlap.start..end);
        }
    }
    for pair in pairs {
        pair.differing.iter().for_each(|range| compared.mismatched.insert(range));
        let shift = match pair.differing.is_empty() {
            true => None,
            false => {
                let mut unequal = pair.differing.clone();
                pair.reordered.iter().for_each(|range| unequal.insert(range));
                find_shift(placed, accepted, pair.other, &unequal, pair.common.len(), expected)
            }
        };
        pair.findings(shift, live_layers, &mut compared.findings);
    }
    compared
}

impl<'a> Pair<'a> {
    fn new(accepted: &'a Source, other: &'a Source) -> Self {
        Self {
            accepted,
            other,
            common: Positions::default(),
            differing: Positions::default(),
            reordered: Positions::default(),
            cells: 0,
            details: Vec::new(),
            moves: LayerMoves::default(),
            first_reordered: None,
        }
    }

    fn take(&mut self, overlap: &Overlap) {
        let (a, b) = (&overlap.accepted.rows, &overlap.other.rows);
        self.common.insert(overlap.start..overlap.start + a.len() as u32);
        if a.width() == b.width() {
            if a.bytes() != b.bytes() {
                self.take_rows(overlap.start, a, b);
            }
        } else if let (Some(a), Some(b)) = (a.with_width(WIDEST), b.with_width(WIDEST)) {
            self.take_rows(overlap.start, &a, &b);
        }
    }

    fn take_rows(&mut self, start: u32, a: &Rows, b: &Rows) {
        for row in (0..a.len()).filter(|&row| a.row(row) != b.row(row)) {
            let position = start + row as u32;
            let mut differs = false;
            for layer in (0..a.shape().layers()).filter(|&layer| a.layer(row, layer) != b.layer(row, layer)) {
                let lists = (position, layer, a.experts(row, layer), b.experts(row, layer));
                if same_set(&lists.2, &lists.3) {
                    if self.first_reordered.as_ref().is_none_or(|first| (first.0, first.1) > (position, layer)) {
                        self.first_reordered = Some(lists);
                    }
                    continue;
                }
                differs = true;
                self.cells += 1;
                if self.details.len() < DETAILED {
                    self.details.push(lists);
                }
            }
            if differs {
                self.moves.see(a, b, row);
            }
            if differs { &mut self.differing } else { &mut self.reordered }.insert(position..position + 1);
        }
    }

    fn findings(mut self, shift: Option<Shift>, live_layers: usize, findings: &mut Vec<Finding>) {
        let (a, b) = (self.accepted, self.other);
        let first = self.common.first().unwrap_or(0);
        // The same role on two instances, or one instance that says two things at its first try.
        let same_try = a.role == b.role && a.attempt == b.attempt && b.role != Role::Trainer;
        if same_try && (a != b || !self.differing.is_empty()) {
            let detail = if a == b {
                let moved = shift.as_ref().map_or(String::new(), |shift| {
                    format!("; {} of {} agree after a shift by {:+}", shift.agreeing, shift.compared, shift.positions)
                });
                format!("{a} sent two different rows for {} positions{moved}", self.differing.len())
            } else {
                format!("{a} and {b} both answered {} positions", self.common.len())
            };
            let at = if a == b { self.differing.first().unwrap_or(first) } else { first };
            let (layer, sides) = match self.details.first() {
                Some((_, layer, left, right)) if a == b => (Some(*layer), (left.clone(), right.clone())),
                _ => (None, Default::default()),
            };
            let finding = Finding::new(Check::TwoAnswers, detail).at(at, self.common.len());
            let finding = finding.by(Side::with_experts(a, sides.0)).against(Side::with_experts(b, sides.1));
            findings.push(match layer {
                Some(layer) => finding.in_layer(layer),
                None => finding,
            });
            if a == b {
                return;
            }
        }
        if !self.differing.is_empty() {
            self.details.sort_by_key(|(position, layer, ..)| (*position, *layer));
            match shift {
                Some(shift) => {
                    // Rows that belong elsewhere may have the same experts in another order by chance.
                    findings.push(self.misplaced(&shift));
                    return;
                }
                None => match self.moves.found() {
                    Some(moves) => findings.push(self.layers_moved(&moves)),
                    None => self.disagreement(live_layers, findings),
                },
            }
        }
        if let Some((position, layer, left, right)) = self.first_reordered.take()
            && !self.reordered.is_empty()
        {
            let detail = format!("the same experts in another order in {} rows", self.reordered.len());
            let finding = Finding::new(Check::SlotOrder, detail).at(position, self.reordered.len()).in_layer(layer);
            findings.push(finding.by(Side::with_experts(a, left)).against(Side::with_experts(b, right)));
        }
    }

    fn misplaced(&self, shift: &Shift) -> Finding {
        let (check, what) = if shift.past_the_end > 0 {
            let rows = shift.past_the_end;
            (Check::ExtraRows, format!("{rows} rows too many at the end, which moves the others: "))
        } else if shift.inside_block() {
            let start = shift.placed_at;
            (Check::StartsInsideBlock, format!("placed at {start}, where a KV block begins: "))
        } else {
            (Check::MisplacedRows, String::new())
        };
        let detail = format!(
            "{what}{} of {} rows of {} differ where they were placed; {} of {} agree after a shift by {:+} positions",
            self.differing.len(),
            self.common.len(),
            self.other,
            shift.agreeing,
            shift.compared,
            shift.positions,
        );
        self.at_first(Finding::new(check, detail))
    }

    fn layers_moved(&self, moves: &[(usize, usize)]) -> Finding {
        let listed: Vec<String> =
            moves.iter().take(4).map(|(layer, of)| format!("layer {layer} has the rows of layer {of}")).collect();
        let more = if moves.len() > 4 { format!(", and {} more", moves.len() - 4) } else { String::new() };
        let detail = format!("{} against {}: {}{more}", self.other, self.accepted, listed.join(", "));
        self.at_first(Finding::new(Check::LayersMoved, detail))
    }

    /// The finding, at the first place that differs, with both sides' ids.
    fn at_first(&self, finding: Finding) -> Finding {
        let Some((position, layer, left, right)) = self.details.first() else { return finding };
        finding
            .at(*position, self.differing.len())
            .in_layer(*layer)
            .by(Side::with_experts(self.accepted, left.clone()))
            .against(Side::with_experts(self.other, right.clone()))
    }

    fn disagreement(&self, live_layers: usize, findings: &mut Vec<Finding>) {
        let check = if self.other.role == Role::Trainer || self.accepted.role == Role::Trainer {
            Check::TrainerDiffers
        } else if (self.accepted.role, &self.accepted.instance) == (self.other.role, &self.other.instance) {
            Check::RecomputeDiffers
        } else {
            Check::OverlapDisagrees
        };
        let possible = f64::from(self.common.len()) * live_layers.max(1) as f64;
        let severity = if check == Check::OverlapDisagrees && self.cells as f64 > WHOLLY * possible {
            Severity::Error
        } else {
            check.severity()
        };
        let of = format!("{} of {} compared rows differ", self.differing.len(), self.common.len());
        for (index, (position, layer, left, right)) in self.details.iter().enumerate() {
            let more = self.cells - self.details.len() as u64;
            let detail = if index + 1 == self.details.len() && more > 0 {
                format!("{of}; {more} more layers of rows not listed")
            } else {
                of.clone()
            };
            let finding = Finding { severity, ..Finding::new(check, detail) }.at(*position, 1).in_layer(*layer);
            let left = Side::with_experts(self.accepted, left.clone());
            findings.push(finding.by(left).against(Side::with_experts(self.other, right.clone())));
        }
    }
}

/// GS029: rows of a block that differ from those that the same instance sent under its hash before, by more than numerics explain.
pub(super) fn block_differs(span: &Span, known: &Rows) -> Option<Finding> {
    let (rows, start) = (&span.rows, span.anchor.start()?);
    if rows.shape() != known.shape() || rows.width() != known.width() || rows.len() != known.len() {
        let detail =
            format!("the block has {} rows of {}, had {} of {}", rows.len(), rows.shape(), known.len(), known.shape());
        return Some(Finding::new(Check::BlockDiffers, detail).at(start, rows.len() as u32).by(Side::of(&span.source)));
    }
    let (mut cells, mut differing, mut first) = (0, 0, None);
    for row in 0..rows.len() {
        for layer in 0..rows.shape().layers() {
            let (now, before) = (rows.layer(row, layer), known.layer(row, layer));
            // A dense layer is 0 on both sides and says nothing.
            cells += u64::from(now.iter().chain(before).any(|&byte| byte != 0));
            if now != before && !same_set(&rows.experts(row, layer), &known.experts(row, layer)) {
                differing += 1;
                first = first.or(Some((row, layer)));
            }
        }
    }
    let (row, layer) = first.filter(|_| f64::from(differing as u32) > WHOLLY * cells as f64)?;
    let detail =
        format!("{differing} of {cells} layers of rows differ from what was sent under this block's hash before");
    let finding = Finding::new(Check::BlockDiffers, detail).at(start + row as u32, rows.len() as u32).in_layer(layer);
    Some(
        finding
            .by(Side::with_experts(&span.source, known.experts(row, layer)))
            .against(Side::with_experts(&span.source, rows.experts(row, layer))),
    )
}

const WIDEST: crate::shape::IdWidth = crate::shape::IdWidth::U16;

fn same_set(a: &[u16], b: &[u16]) -> bool {
    let sorted = |list: &[u16]| {
        let mut list = list.to_vec();
        list.sort_unstable();
        list
    };
    sorted(a) == sorted(b)
}
