//! Which positions should have a row, and what is said of those that have none.

use std::ops::Range;

use super::{
    RequestJoin, Segment, accept::Placed, lengths::Lengths, place::place, positions::Positions, request::Held,
};
use crate::{
    finding::{Check, Finding, Side, counted},
    span::{Anchor, Role, Source},
};

/// Ranges spelled out in a message.
const SPELLED: usize = 6;

pub(super) struct Extent<'a> {
    pub(super) join: &'a RequestJoin,
    pub(super) lengths: &'a Lengths,
    pub(super) placed: &'a [Placed<'a>],
    pub(super) unplaced: &'a [&'a Held],
    /// Spans of another shape, whose rows cannot be accepted.
    pub(super) odd: &'a [&'a Held],
    pub(super) segments: &'a [Segment],
    pub(super) prefix_omitted: u32,
}

/// Reports rows too many, missing, lost and unknown; returns the gaps.
pub(super) fn report_extent(extent: &Extent<'_>, findings: &mut Vec<Finding>) -> Vec<Range<u32>> {
    report_extra(extent, findings);
    let Some(expected) = extent.lengths.expected() else {
        report_unknown_length(extent, findings);
        return Vec::new();
    };
    let mut accepted = Positions::default();
    extent.segments.iter().for_each(|segment| accepted.insert(segment.start..segment.end()));
    let gaps = accepted.missing(extent.prefix_omitted.min(expected)..expected);
    let mut explained = Positions::default();
    report_unknown(extent, &mut explained, findings);
    report_lost(extent, &mut explained, findings);
    for held in extent.odd {
        if let Some(place) = place(&held.span, extent.lengths) {
            explained.insert(place.start..place.start + place.rows as u32);
        }
    }
    if extent.segments.is_empty() && extent.placed.is_empty() && extent.odd.is_empty() && !gaps.is_empty() {
        let who = silent_sources(extent);
        let finding =
            Finding::new(Check::NoRouting, format!("no routing at all for {}{who}", counted(expected, "position")));
        findings.push(finding.at(0, expected));
        return gaps;
    }
    let mut missing = Positions::default();
    gaps.iter().flat_map(|gap| explained.missing(gap.clone())).for_each(|gap| missing.insert(gap));
    report_missing(extent, expected, &missing, findings);
    gaps
}

/// GS003, without another side to compare with: rows of which a source states that all of them lie where it can have fed
/// nothing. Its start is wrong or it answered another request; rows too many come behind others that are in place.
fn report_past_the_end<'a>(extent: &'a Extent<'_>, findings: &mut Vec<Finding>) -> Vec<&'a Source> {
    let mut misplaced: Vec<&Source> = Vec::new();
    let is_past = |span: &Placed<'_>| {
        matches!(span.held.span.anchor, Anchor::Start(_)) && span.place.rows == 0 && span.place.extra > 0
    };
    for span in extent.placed.iter().filter(|span| is_past(span)) {
        let source = span.source();
        let mut all = extent.placed.iter().filter(|span| span.source() == source);
        let Some(limit) = extent.lengths.limit(source) else { continue };
        if misplaced.contains(&source) || !all.all(is_past) {
            continue;
        }
        misplaced.push(source);
        let rows: usize =
            extent.placed.iter().filter(|span| span.source() == source).map(|span| span.place.extra).sum();
        let start = span.place.start;
        let detail = format!(
            "{source} states position {start} for the first of {}, past position {}, the last it fed",
            counted(rows as u64, "row"),
            i64::from(limit) - 1,
        );
        findings.push(Finding::new(Check::MisplacedRows, detail).at(start, rows as u32).by(Side::of(source)));
    }
    misplaced
}

/// GS002. Rows that a shift has explained are reported by the comparison already.
fn report_extra(extent: &Extent<'_>, findings: &mut Vec<Finding>) {
    let misplaced = report_past_the_end(extent, findings);
    let in_place = |span: &&Placed<'_>| !misplaced.contains(&span.source());
    for span in extent.placed.iter().filter(|span| span.place.extra > 0).filter(in_place) {
        let end = span.place.start + span.place.rows as u32;
        let told = findings.iter().any(|finding| {
            matches!(finding.check, Check::ExtraRows | Check::MisplacedRows)
                && finding
                    .b
                    .as_ref()
                    .is_some_and(|side| side.role == span.source().role && side.instance == span.source().instance)
        });
        if told {
            continue;
        }
        let extra = span.place.extra;
        let detail = format!(
            "{} sent {} past position {}, the last it fed",
            span.source(),
            counted(extra as u64, "row"),
            i64::from(end) - 1
        );
        findings.push(Finding::new(Check::ExtraRows, detail).at(end, extra as u32).by(Side::of(span.source())));
    }
}

fn report_unknown_length(extent: &Extent<'_>, findings: &mut Vec<Finding>) {
    let what = match (extent.lengths.prompt, extent.lengths.completion) {
        (None, _) => "prompt_tokens",
        (_, _) => "completion_tokens",
    };
    let rows: usize = extent.unplaced.iter().map(|held| held.span.rows.len()).sum();
    let detail = if rows > 0 {
        format!("{} cannot be placed: no answer says {what}", counted(rows as u64, "row"))
    } else {
        format!("the number of rows to expect is not known: no answer says {what}")
    };
    let finding = Finding::new(Check::MissingRows, detail);
    findings.push(match extent.unplaced.first() {
        Some(held) => finding.by(Side::of(&held.span.source)),
        None => finding,
    });
}

/// GS008: one finding a span.
fn report_unknown(extent: &Extent<'_>, explained: &mut Positions, findings: &mut Vec<Finding>) {
    for span in extent.placed.iter().filter(|span| !span.held.span.unknown.is_empty()) {
        let mut unknown = Positions::default();
        span.place.unknown(&span.held.span).for_each(|range| unknown.insert(range));
        unknown.iter().for_each(|range| explained.insert(range));
        let (Some(first), Some(mark)) = (unknown.first(), span.held.span.unknown.first()) else { continue };
        let rows = counted(unknown.len(), "row");
        let detail = format!("{} marked {rows} as unknown (-1): {}", span.source(), spell(&unknown));
        let finding = Finding::new(Check::UnknownMarks, detail).at(first, unknown.len());
        findings.push(finding.in_layer(usize::from(mark.layer)).by(Side::of(span.source())));
    }
}

/// GS028: one finding a gap record.
fn report_lost(extent: &Extent<'_>, explained: &mut Positions, findings: &mut Vec<Finding>) {
    for lost in &extent.join.lost {
        explained.insert(lost.start..lost.start.saturating_add(lost.positions));
        let detail = format!("{} had to drop {}", lost.source, counted(lost.positions, "row"));
        findings
            .push(Finding::new(Check::CaptureLost, detail).at(lost.start, lost.positions).by(Side::of(&lost.source)));
    }
}

/// GS001 and GS018.
fn report_missing(extent: &Extent<'_>, expected: u32, missing: &Positions, findings: &mut Vec<Finding>) {
    let Some(first) = missing.first() else {
        report_short_decode(extent, findings);
        return;
    };
    let who = silent_sources(extent);
    let awaited = match extent.join.awaited.iter().count() {
        0 => String::new(),
        1 => "; a block was named by hash and never sent".to_owned(),
        blocks => format!("; {blocks} blocks were named by hash and never sent"),
    };
    let detail = format!("{} of {} missing: {}{who}{awaited}", missing.len(), counted(expected, "row"), spell(missing));
    findings.push(Finding::new(Check::MissingRows, detail).at(first, missing.len()));

    let sources = extent.join.sources();
    let role = |role: Role| sources.iter().find(|source| source.role == role);
    let (prefill, decode, colocated) = (role(Role::Prefill), role(Role::Decode), role(Role::Colocated));
    let lone = match (prefill, decode, colocated) {
        (None, Some(decode), None) if first == 0 => {
            Some((decode, format!("{decode} came without its prefill: no rows of the prompt")))
        }
        (Some(prefill), None, None) if extent.lengths.prompt.is_some_and(|prompt| first >= prompt) => {
            Some((prefill, format!("{prefill} came without its decode: no rows of the completion")))
        }
        _ => None,
    };
    if let Some((source, detail)) = lone {
        findings.push(Finding::new(Check::OneRoleOnly, detail).at(first, missing.len()).by(Side::of(source)));
    }
}

/// A decode computes the last token of the prompt itself (vLLM 0.31), so an answer that is placed from its end and begins
/// behind it has lost a row somewhere, and no other source can show where.
fn report_short_decode(extent: &Extent<'_>, findings: &mut Vec<Finding>) {
    let Some(prompt) = extent.lengths.prompt.filter(|prompt| *prompt > 0) else { return };
    for span in extent.placed {
        let Anchor::End { completion_tokens } = span.held.span.anchor else { continue };
        let rows = span.held.span.rows.len();
        if span.source().role == Role::Decode && span.place.start >= prompt && rows > 0 {
            let detail = format!(
                "{} sent {} for {}: a decode computes position {} itself, so a row is \
                 missing and those after it belong elsewhere",
                span.source(),
                counted(rows as u64, "row"),
                counted(completion_tokens, "sampled token"),
                prompt - 1,
            );
            findings.push(Finding::new(Check::MissingRows, detail).at(prompt - 1, 1).by(Side::of(span.source())));
        }
    }
}

/// Sources that finished and sent no row.
fn silent_sources(extent: &Extent<'_>) -> String {
    let silent = extent
        .join
        .told
        .iter()
        .filter(|told| told.finished && !extent.join.spans.iter().any(|held| held.span.source == told.source));
    let names: Vec<String> = silent.map(|told| told.source.to_string()).collect();
    if names.is_empty() { String::new() } else { format!("; no rows from {}", names.join(" and ")) }
}

/// `0..3, 7, 9..12 and 4 more ranges`
fn spell(positions: &Positions) -> String {
    let count = positions.iter().count();
    let mut words: Vec<String> = positions
        .iter()
        .take(SPELLED)
        .map(|range| match range.end - range.start {
            1 => format!("position {}", range.start),
            _ => format!("positions {} to {}", range.start, range.end - 1),
        })
        .collect();
    if count > SPELLED {
        words.push(counted((count - SPELLED) as u64, "more range"));
    }
    words.join(", ")
}
