//! GS004, GS005, GS006, GS009 and the dense half of GS010: ids that no gate can have chosen.

use super::{Inspection, repeats};
use crate::{
    finding::{Check, Finding, Side, counted},
    join::Positions,
    rows::Rows,
    shape::{LayerSet, ModelShape},
    span::{Source, Span},
};

/// Collects over the spans of one source and says each kind of fault once, with its first place and its extent.
pub(crate) struct ValueChecks<'a> {
    source: &'a Source,
    model: Option<&'a ModelShape>,
    /// Layers that must hold ids.
    gated: &'a LayerSet,
    faults: Vec<Fault>,
    highest: u16,
    first: u32,
    rows: u32,
}

/// Ids at or above 256 that must have been expected before their absence is a fault.
const EXPECTED_ABOVE: u64 = 64;
/// Rows that must have been seen before.
const ROWS_SEEN: u32 = 16;

struct Fault {
    check: Check,
    position: u32,
    layer: usize,
    experts: Vec<u16>,
    positions: Positions,
    layers: LayerSet,
}

impl<'a> ValueChecks<'a> {
    pub(crate) fn new(source: &'a Source, model: Option<&'a ModelShape>, gated: &'a LayerSet) -> Self {
        Self { source, model, gated, faults: Vec::new(), highest: 0, first: u32::MAX, rows: 0 }
    }

    /// Takes one span; `start` is the position of its first row.
    pub(crate) fn span(&mut self, start: u32, span: &Span, inspection: &Inspection) {
        let rows = &span.rows;
        self.first = self.first.min(start);
        self.rows += rows.len() as u32;
        self.highest = inspection.layers.iter().map(|values| values.highest).fold(self.highest, u16::max);
        let unknown = |row: usize| span.unknown.iter().any(|unknown| unknown.rows.contains(&(row as u32)));
        for (layer, values) in inspection.layers.iter().enumerate() {
            let repeating = self.model.is_some_and(|model| model.repeating_layers().contains(layer));
            let gated = self.gated.contains(layer);
            if gated && !repeating && values.zero_rows > 0 {
                let zero = |row: &usize| rows.layer(*row, layer).iter().all(|&byte| byte == 0) && !unknown(*row);
                self.fault(Check::ZeroRows, layer, start, rows, zero);
            }
            if gated && !repeating && values.repeating_rows > 0 {
                let again = |row: &usize| {
                    let list = rows.layer(*row, layer);
                    list.iter().any(|&byte| byte != 0) && repeats(list, rows.width()) && !unknown(*row)
                };
                self.fault(Check::RepeatedExpert, layer, start, rows, again);
            }
            let Some(model) = self.model else { continue };
            if !gated && values.highest > 0 {
                let live = |row: &usize| rows.layer(*row, layer).iter().any(|&byte| byte != 0);
                self.fault(Check::LayersMoved, layer, start, rows, live);
            } else if u32::from(values.highest) >= model.num_experts() {
                let outside =
                    |row: &usize| rows.experts(*row, layer).iter().any(|&id| u32::from(id) >= model.num_experts());
                self.fault(Check::ExpertOutOfRange, layer, start, rows, outside);
            }
        }
    }

    fn fault(&mut self, check: Check, layer: usize, start: u32, rows: &Rows, is: impl Fn(&usize) -> bool) {
        let found: Vec<usize> = (0..rows.len()).filter(is).collect();
        let Some(&first) = found.first() else { return };
        let position = start + first as u32;
        let index = self.faults.iter().position(|fault| fault.check == check).unwrap_or_else(|| {
            let (positions, layers) = (Positions::default(), LayerSet::empty());
            self.faults.push(Fault { check, position: u32::MAX, layer, experts: Vec::new(), positions, layers });
            self.faults.len() - 1
        });
        let fault = &mut self.faults[index];
        if (position, layer) < (fault.position, fault.layer) {
            (fault.position, fault.layer) = (position, layer);
            fault.experts = rows.experts(first, layer);
        }
        for row in found {
            fault.positions.insert(start + row as u32..start + row as u32 + 1);
        }
        fault.layers.insert(layer);
    }

    /// The findings.
    pub(crate) fn findings(self) -> Vec<Finding> {
        let (model, source) = (self.model, self.source);
        let width = self.wrong_width();
        let finding = |fault: Fault| {
            let Fault { check, position, layer, experts, positions, layers } = fault;
            let rows = positions.len();
            let what = match (check, model) {
                (Check::ZeroRows, _) => "every id is 0 in a layer that has a gate".to_owned(),
                (Check::RepeatedExpert, _) => "one top-k list names an expert twice".to_owned(),
                (Check::LayersMoved, _) => "ids in a layer that is dense in this model".to_owned(),
                (_, Some(model)) => format!("id outside 0..{}", model.num_experts()),
                (_, None) => "id out of range".to_owned(),
            };
            let many = counted(rows, "row");
            Finding::new(check, format!("{what}: {many}, layers {layers}"))
                .at(position, rows)
                .in_layer(layer)
                .by(Side::with_experts(source, experts))
        };
        self.faults.into_iter().map(finding).chain(width).collect()
    }

    /// GS009: a model of more than 256 experts whose ids all fit 8 bits, over more rows than chance explains.
    fn wrong_width(&self) -> Option<Finding> {
        let model = self.model?;
        let above = model.num_experts().checked_sub(256).filter(|&above| above > 0)?;
        let ids = u64::from(self.rows) * (model.moe_layers().len() * model.row().top_k()) as u64;
        let expected = ids * u64::from(above) / u64::from(model.num_experts());
        if self.highest >= 256 || self.rows < ROWS_SEEN || expected < EXPECTED_ABOVE {
            return None;
        }
        let detail = format!(
            "no id above {} in {ids} ids of a model of {} experts; expected some {expected} above 255",
            self.highest,
            model.num_experts()
        );
        Some(Finding::new(Check::WrongWidth, detail).at(self.first, self.rows).by(Side::of(self.source)))
    }
}
