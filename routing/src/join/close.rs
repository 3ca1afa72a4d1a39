//! Closing a request: placing, accepting, comparing and judging all that came.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Capture, Context, Joined, Policy, RequestJoin, Rules, Segment, Status,
    accept::{Accepted, Placed, rank},
    compare::compare,
    extent::{Extent, report_extent},
    lengths::Lengths,
    place::place,
    request::Held,
};
use crate::{
    check::{ValueChecks, collapse},
    finding::{Check, Finding, Side},
    shape::{IdWidth, LayerSet, RowShape},
    span::{Role, Source},
};

impl RequestJoin {
    /// Joins what came. The request stays as it is, so that a look at an open one costs no more than its spans' places.
    pub fn close(&self, rules: &Rules, context: &Context<'_>) -> Joined {
        let lengths = Lengths::of(self);
        let expected = lengths.expected();
        let mut findings = self.noted.clone();
        let (placed, unplaced, odd) = self.place_all(&lengths, rules.policy, &mut findings);
        let accepted = Accepted::of(&placed);

        let mut live_layers = LayerSet::empty();
        for held in placed.iter().map(|span| span.held) {
            live_layers.union_with(&held.inspection.live_layers());
        }
        self.check_values(&placed, &live_layers, rules, context, &mut findings);
        let compared = compare(&placed, &accepted, live_layers.len(), expected);
        findings.extend(compared.findings);
        report_contradictions(&lengths, &placed, &mut findings);

        let mut segments: Vec<Segment> = accepted
            .pieces
            .into_iter()
            .map(|(start, piece)| Segment { start, rows: piece.rows, source: placed[piece.span].source().clone() })
            .collect();
        let prefix_omitted = self.take_prefix(&lengths, context, &mut segments, &mut findings);
        let extent = Extent {
            join: self,
            lengths: &lengths,
            placed: &placed,
            unplaced: &unplaced,
            odd: &odd,
            segments: &segments,
            prefix_omitted,
        };
        let gaps = report_extent(&extent, &mut findings);
        if let Some(prompt) = lengths.prompt {
            let uniform = self.told.iter().find_map(|told| told.uniform_prompt);
            findings.extend(collapse(&segments, prompt, uniform));
        }
        findings.sort_by_key(|finding| (finding.check, finding.position, finding.layer));

        let status = status(&findings, gaps.is_empty() && expected.is_some());
        let shape = shape_of(&segments);
        let captures = placed
            .iter()
            .map(|span| capture(span.held, Some(span.place.start)))
            .chain(unplaced.iter().chain(&odd).map(|held| capture(held, place(&held.span, &lengths).map(|p| p.start))))
            .collect();
        Joined {
            prompt_tokens: lengths.prompt,
            completion_tokens: lengths.completion,
            shape,
            gaps,
            prefix_omitted,
            status,
            policy: rules.policy,
            prefill_instance: self.instance(&segments, Role::Prefill),
            decode_instance: self.instance(&segments, Role::Decode),
            first_forward: self.first_forward(&placed),
            overlap_rows: compared.overlap.len(),
            mismatched_rows: compared.mismatched.len(),
            attempts: self.sources().iter().map(|source| source.attempt + 1).max().unwrap_or(0),
            generation: self.spans.iter().map(|held| held.span.generation).max().unwrap_or(0),
            live_layers,
            findings,
            captures,
            segments,
        }
    }

    /// Placed spans in the order in which they are asked for rows; spans without a place; spans of another shape.
    fn place_all<'a>(
        &'a self,
        lengths: &Lengths,
        policy: Policy,
        findings: &mut Vec<Finding>,
    ) -> (Vec<Placed<'a>>, Vec<&'a Held>, Vec<&'a Held>) {
        let mut held: Vec<&Held> = self.spans.iter().chain(self.adopted()).collect();
        // A stable sort: within one try of one source, the first emission stays.
        held.sort_by_key(|held| rank(policy, &held.span.source));
        let Some(model) = held.first().copied() else { return Default::default() };
        let (mut placed, mut unplaced, mut odd): (Vec<Placed<'_>>, Vec<&Held>, Vec<&Held>) = Default::default();
        for held in held {
            if held.span.rows.shape() != model.span.rows.shape() {
                report_shape(model, held, &odd, lengths, findings);
                odd.push(held);
                continue;
            }
            match place(&held.span, lengths) {
                Some(place) => placed.push(Placed { held, place }),
                None => unplaced.push(held),
            }
        }
        report_types(&placed, findings);
        report_generations(&placed, findings);
        (placed, unplaced, odd)
    }

    fn check_values(
        &self,
        placed: &[Placed<'_>],
        live_layers: &LayerSet,
        rules: &Rules,
        context: &Context<'_>,
        findings: &mut Vec<Finding>,
    ) {
        let Some(shape) = placed.first().map(|span| span.held.span.rows.shape()) else { return };
        let mut gated = live_layers.clone();
        context.live_layers.into_iter().for_each(|live| {
            gated.union_with(live);
        });
        let model = rules.model.as_deref().filter(|model| model.row() == shape);
        if let Some(model) = model {
            gated = model.moe_layers().clone();
        } else if gated.is_empty() {
            // A model without any gate does not send routing.
            gated = LayerSet::all(shape.layers());
        }
        let mut by_source: BTreeMap<&Source, ValueChecks<'_>> = BTreeMap::new();
        for span in placed {
            by_source.entry(span.source()).or_insert_with(|| ValueChecks::new(span.source(), model, &gated)).span(
                span.place.start,
                &span.held.span,
                &span.held.inspection,
            );
        }
        findings.extend(by_source.into_values().flat_map(ValueChecks::findings));
    }

    /// Fills the prefix that the caller left out from the request that has it. Says up to where it stays left out.
    fn take_prefix(
        &self,
        lengths: &Lengths,
        context: &Context<'_>,
        segments: &mut Vec<Segment>,
        findings: &mut Vec<Finding>,
    ) -> u32 {
        let first = segments.first().map_or(u32::MAX, |segment| segment.start);
        let omitted = lengths.prompt_start.min(first).min(lengths.expected().unwrap_or(u32::MAX));
        if omitted == 0 {
            return 0;
        }
        let Some(parent) = &self.parent else { return omitted };
        let shape = shape_of(segments);
        let mut next = 0;
        let mut prefix = Vec::new();
        for segment in context.parent.into_iter().flatten() {
            let fits = shape.is_none_or(|(shape, _)| shape == segment.rows.shape());
            if next >= omitted || segment.start != next || !fits {
                break;
            }
            let rows = segment.rows.slice(0..segment.rows.len().min((omitted - next) as usize));
            next += rows.len() as u32;
            prefix.push(Segment { start: segment.start, rows, source: segment.source.clone() });
        }
        if next < omitted {
            let detail = format!("rows 0 to {} were left out, and request {parent} does not have them", omitted - 1);
            findings.push(Finding::new(Check::PrefixUnresolved, detail).at(0, omitted));
            return omitted;
        }
        prefix.append(segments);
        *segments = prefix;
        0
    }

    fn instance(&self, segments: &[Segment], role: Role) -> Option<Arc<str>> {
        let of = |source: &Source| source.role == role || source.role == Role::Colocated;
        let accepted = segments.iter().map(|segment| &segment.source).find(|source| of(source));
        accepted.or_else(|| self.sources().into_iter().find(|source| of(source))).map(|source| source.instance.clone())
    }

    fn first_forward(&self, placed: &[Placed<'_>]) -> Option<u32> {
        let told = self.told.iter().filter(|told| told.source.role == Role::Decode);
        let placed = placed.iter().filter(|span| span.source().role == Role::Decode).map(|span| span.place.start);
        told.filter_map(|told| told.first_forward).min().or_else(|| placed.min())
    }
}

fn capture(held: &Held, start: Option<u32>) -> Capture {
    Capture {
        source: held.span.source.clone(),
        start,
        rows: held.span.rows.len() as u32,
        payload_hash: held.inspection.payload_hash,
        generation: held.span.generation,
        block: held.span.block.clone(),
    }
}

fn shape_of(segments: &[Segment]) -> Option<(RowShape, IdWidth)> {
    let shape = segments.first()?.rows.shape();
    segments.iter().map(|segment| segment.rows.width()).max().map(|width| (shape, width))
}

fn status(findings: &[Finding], complete: bool) -> Status {
    let contradicts = |finding: &Finding| match finding.check {
        Check::MisplacedRows
        | Check::StartsInsideBlock
        | Check::ShapeChange
        | Check::WrongGeneration
        | Check::WrongWidth
        | Check::TwoAnswers => true,
        // No gap, and yet a row is known to be missing: the others are not where they belong.
        Check::MissingRows => complete,
        // Only rows too many that move the others were compared with another side.
        Check::ExtraRows | Check::LayersMoved => finding.b.is_some(),
        _ => false,
    };
    match (findings.iter().any(contradicts), complete) {
        (true, _) => Status::Conflict,
        (false, false) => Status::Incomplete,
        (false, true) => Status::Whole,
    }
}

/// GS012, layers or top_k: one finding a source.
fn report_shape(model: &Held, held: &Held, before: &[&Held], lengths: &Lengths, findings: &mut Vec<Finding>) {
    let (one, other) = (&model.span, &held.span);
    if before.iter().any(|odd| odd.span.source == other.source) {
        return;
    }
    let detail =
        format!("{} sent rows of {}, {} of {}", one.source, one.rows.shape(), other.source, other.rows.shape());
    let finding = Finding::new(Check::ShapeChange, detail).by(Side::of(&one.source)).against(Side::of(&other.source));
    findings.push(match place(other, lengths) {
        Some(place) => finding.at(place.start, place.rows as u32),
        None => finding,
    });
}

/// GS012, numeric type: one finding a source. A trainer keeps ids as it likes.
fn report_types(placed: &[Placed<'_>], findings: &mut Vec<Finding>) {
    let Some(first) = placed.first() else { return };
    let (one, mut reported) = (&first.held.span, Vec::new());
    for span in placed.iter().filter(|span| span.source().role != Role::Trainer) {
        let other = &span.held.span;
        if other.wire_type == one.wire_type || reported.contains(&span.source()) {
            continue;
        }
        reported.push(span.source());
        let (from, to) = (one.wire_type.name(), other.wire_type.name());
        let detail = format!("{} sent {from} ids, {} {to} ids", one.source, other.source);
        let finding = Finding::new(Check::ShapeChange, detail).at(span.place.start, span.place.rows as u32);
        findings.push(finding.by(Side::of(&one.source)).against(Side::of(&other.source)));
    }
}

/// GS015: rows from before and after a reset of the prefix cache.
fn report_generations(placed: &[Placed<'_>], findings: &mut Vec<Finding>) {
    let mut reported: Vec<&Source> = Vec::new();
    for first in placed {
        if reported.contains(&first.source()) {
            continue;
        }
        reported.push(first.source());
        let other = placed
            .iter()
            .find(|span| span.source() == first.source() && span.held.span.generation != first.held.span.generation);
        let Some(other) = other else { continue };
        let (one, two) = (first.held.span.generation, other.held.span.generation);
        let detail = format!("rows of generation {one} and of generation {two} in one request of {}", first.source());
        let finding = Finding::new(Check::WrongGeneration, detail).at(other.place.start, other.place.rows as u32);
        findings.push(finding.by(Side::of(first.source())).against(Side::of(other.source())));
    }
}

/// GS019, request id used twice: two sources that cannot both speak of the same prompt.
fn report_contradictions(lengths: &Lengths, placed: &[Placed<'_>], findings: &mut Vec<Finding>) {
    let Some([(one, first), (two, second)]) = &lengths.contradiction else { return };
    let detail = format!("{one} says {first} prompt tokens, {two} says {second}: not the same request");
    let finding = Finding::new(Check::TwoAnswers, detail).by(Side::of(one)).against(Side::of(two));
    let start = placed.iter().find(|span| span.source() == two).map(|span| span.place.start);
    findings.push(match start {
        Some(start) => finding.at(start, 1),
        None => finding,
    });
}
