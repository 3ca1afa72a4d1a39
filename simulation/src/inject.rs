//! Putting a fault into what an instance tells.

use std::ops::Range;

use gatescope_routing::join::Lost;
use gatescope_routing::{Anchor, ModelShape, RowShape, Rows, Source, Span, rows::RowsError, span::Unknown};
use gatescope_wire::Told;

use crate::{fault::Fault, popularity::Popularity, request::Plan};

/// A fault that was put into a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injection {
    /// Which kind.
    pub fault: Fault,
    /// The outer id of the request.
    pub request_id: std::sync::Arc<str>,
    /// Who told the wrong rows, or nothing.
    pub instance: std::sync::Arc<str>,
    /// The first position concerned, where the finding must name it.
    pub position: Option<u32>,
    /// The layer concerned, where the finding must name it.
    pub layer: Option<u16>,
}

/// Where the faults of a request belong.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Aim {
    pub(crate) position: u32,
    pub(crate) layer: usize,
    /// Any number.
    pub(crate) number: u64,
}

impl Aim {
    /// Chance decides; `number` is any.
    pub(crate) fn of(plan: &Plan, fault: Fault, model: &ModelShape, number: u64) -> Self {
        let prompt = plan.prompt_tokens();
        let layers = model.moe_layers();
        let layer = match fault {
            Fault::DenseLayer => (0..model.row().layers()).find(|layer| !layers.contains(*layer)),
            Fault::ZeroRow => layers.iter().next(),
            _ => layers.iter().nth(number as usize % layers.len().max(1)),
        };
        let position = match fault {
            Fault::Overlap | Fault::SlotOrder | Fault::Shifted => prompt - 1,
            Fault::Recompute => prompt,
            Fault::ExtraRow => plan.end(0),
            Fault::NoPrefill | Fault::NoDecode | Fault::NoRouting | Fault::Collapse | Fault::Generation => 0,
            // Behind the first row of the completion and before its last one.
            _ => prompt + (number >> 32) as u32 % (plan.end(0) - prompt),
        };
        Self { position, layer: layer.unwrap_or(0), number }
    }
}

/// Rows that an instance is about to tell.
pub(crate) struct Telling<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) model: &'a ModelShape,
    pub(crate) popularity: &'a Popularity,
    pub(crate) source: &'a Source,
    pub(crate) range: Range<u32>,
    /// Whether the same source told rows before.
    pub(crate) told_before: bool,
    pub(crate) span: Span,
}

/// What is told instead.
pub(crate) struct Wrong {
    pub(crate) told: Vec<Told>,
    /// Where, if this is the place that a finding must name.
    pub(crate) at: Option<(Option<u32>, Option<u16>)>,
}

impl Telling<'_> {
    /// What is told instead of these rows; `None` where the fault does not concern them.
    pub(crate) fn wrong(&self, fault: Fault, aim: Aim) -> Result<Option<Wrong>, RowsError> {
        let hit = self.range.contains(&aim.position);
        let at = (aim.position.saturating_sub(self.range.start)) as usize;
        let (layer, named) = (aim.layer, Some(aim.layer as u16));
        let row = |change: &dyn Fn(&mut [u8], usize)| self.changed(at, layer, change);
        let wrong = match fault {
            Fault::MissingRow if hit => self.without(at, Vec::new(), aim),
            Fault::LostRows if hit => {
                let lost = Lost { source: self.source.clone(), start: aim.position, positions: 1 };
                self.without(at, vec![Told::Lost(lost)], aim)
            }
            Fault::ExtraRow if self.range.end == aim.position => {
                let rows = self.plan.rows(self.popularity, 0, self.range.start..aim.position + 1)?;
                self.instead(rows, aim, None)
            }
            Fault::Shifted => {
                let rows = self.plan.rows(self.popularity, 0, self.range.start - 1..self.range.end - 1)?;
                let wrong = self.instead(rows, aim, None);
                Wrong { at: wrong.at.filter(|_| hit), ..wrong }
            }
            Fault::Collapse => {
                let last = self.plan.prompt_tokens() - 1;
                let one = self.plan.rows(self.popularity, 0, last..last + 1)?;
                let bytes = one.bytes().repeat(self.range.len());
                self.instead(Rows::new(bytes.into(), one.shape(), one.width())?, aim, None)
            }
            Fault::ZeroRow if hit => {
                let size = self.span.rows.row_bytes();
                let mut bytes = self.span.rows.bytes().to_vec();
                bytes[at * size..(at + 1) * size].fill(0);
                self.instead(self.like(bytes)?, aim, named)
            }
            Fault::DuplicateExpert if hit => self.instead(row(&duplicate)?, aim, named),
            Fault::SlotOrder if hit => self.instead(row(&swap)?, aim, named),
            Fault::DenseLayer if hit => self.instead(row(&|list, _| list[0] = 1)?, aim, named),
            Fault::OutOfRange if hit => {
                let outside = (self.model.num_experts() as u16).to_le_bytes();
                let rows = row(&|list, width| list[..width].copy_from_slice(&outside[..width]))?;
                self.instead(rows, aim, named)
            }
            Fault::Overlap if hit => self.instead(self.other_expert(at, aim)?, aim, named),
            Fault::Recompute if hit && self.source.attempt == 1 => {
                self.instead(self.other_expert(at, aim)?, aim, named)
            }
            Fault::TwoAnswers if hit => {
                let other = Span { rows: self.other_expert(at, aim)?, ..self.span.clone() };
                let told = vec![Told::Span(self.span.clone()), Told::Span(other)];
                Wrong { told, at: Some((Some(aim.position), named)) }
            }
            Fault::UnknownMark if hit => {
                let rows = row(&|list, _| list.fill(0))?;
                let mark = Unknown { rows: at as u32..at as u32 + 1, layer: layer as u16 };
                let span = Span { rows, unknown: vec![mark], ..self.span.clone() };
                Wrong { told: vec![Told::Span(span)], at: Some((Some(aim.position), named)) }
            }
            Fault::Generation if self.range.end == self.plan.prompt_tokens() && self.told_before => {
                let span = Span { generation: self.span.generation + 1, ..self.span.clone() };
                Wrong { told: vec![Told::Span(span)], at: Some((Some(self.range.start), None)) }
            }
            Fault::Shape if hit => {
                let Some(rows) = self.narrower() else { return Ok(None) };
                let span = Span { rows, ..self.span.clone() };
                Wrong { told: vec![Told::Span(span)], at: Some((Some(self.range.start), None)) }
            }
            Fault::NoRouting => Wrong { told: Vec::new(), at: Some((Some(0), None)) },
            _ => return Ok(None),
        };
        Ok(Some(wrong))
    }

    fn instead(&self, rows: Rows, aim: Aim, layer: Option<u16>) -> Wrong {
        let told = vec![Told::Span(Span { rows, ..self.span.clone() })];
        Wrong { told, at: Some((Some(aim.position), layer)) }
    }

    fn without(&self, at: usize, between: Vec<Told>, aim: Aim) -> Wrong {
        let rows = &self.span.rows;
        let piece = |part: Range<usize>| {
            let start = Anchor::Start(self.range.start + part.start as u32);
            (!part.is_empty()).then(|| Told::Span(Span { anchor: start, rows: rows.slice(part), ..self.span.clone() }))
        };
        let (before, behind) = (piece(0..at), piece(at + 1..rows.len()));
        let told = before.into_iter().chain(between).chain(behind).collect();
        Wrong { told, at: Some((Some(aim.position), None)) }
    }

    fn like(&self, bytes: Vec<u8>) -> Result<Rows, RowsError> {
        Rows::new(bytes.into(), self.span.rows.shape(), self.span.rows.width())
    }

    /// The rows with another list of experts in one place; the change is told the width of an id.
    fn changed(&self, row: usize, layer: usize, change: &dyn Fn(&mut [u8], usize)) -> Result<Rows, RowsError> {
        let (shape, width) = (self.span.rows.shape(), self.span.rows.width().bytes());
        let list = shape.top_k() * width;
        let at = (row * shape.layers() + layer) * list;
        let mut bytes = self.span.rows.bytes().to_vec();
        change(&mut bytes[at..at + list], width);
        self.like(bytes)
    }

    /// The rows with an expert in one place that the list does not have.
    fn other_expert(&self, row: usize, aim: Aim) -> Result<Rows, RowsError> {
        let list = self.span.rows.experts(row, aim.layer);
        let experts = self.model.num_experts();
        let first = (aim.number >> 8) as u32 % experts;
        let other = (0..experts).map(|i| ((first + i) % experts) as u16).find(|expert| !list.contains(expert));
        let other = other.unwrap_or(0).to_le_bytes();
        self.changed(row, aim.layer, &|list, width| list[..width].copy_from_slice(&other[..width]))
    }

    /// The rows without their last slot.
    fn narrower(&self) -> Option<Rows> {
        let (shape, width) = (self.span.rows.shape(), self.span.rows.width());
        let fewer = RowShape::new(shape.layers() as u64, shape.top_k() as u64 - 1).ok()?;
        let list = shape.top_k() * width.bytes();
        let bytes: Vec<u8> = self
            .span
            .rows
            .bytes()
            .chunks_exact(list)
            .flat_map(|slots| &slots[..list - width.bytes()])
            .copied()
            .collect();
        Rows::new(bytes.into(), fewer, width).ok()
    }
}

/// Names an expert other than 0 twice: a list of zeros would be another fault.
fn duplicate(list: &mut [u8], width: usize) {
    let is_zero = |slot: &[u8]| slot.iter().all(|&byte| byte == 0);
    let (first, second) = list.split_at_mut(width);
    let second = &mut second[..width];
    if is_zero(first) { first.copy_from_slice(second) } else { second.copy_from_slice(first) }
}

fn swap(list: &mut [u8], width: usize) {
    let (first, second) = list.split_at_mut(width);
    first.swap_with_slice(&mut second[..width]);
}
