//! GS026: every token of a prompt chose the same experts, as behind a broken or never loaded gate.

use crate::{
    finding::{Check, Finding, Side},
    join::Segment,
};

/// Shorter prompts can repeat a row by chance in a small model.
const SHORTEST: usize = 8;

/// Looks at the rows of the prompt. `uniform_prompt`: all its tokens are one and the same, so equal rows are no fault.
pub(crate) fn collapse(segments: &[Segment], prompt_tokens: u32, uniform_prompt: Option<bool>) -> Option<Finding> {
    let first = segments.first()?;
    let shape = first.rows.shape();
    if uniform_prompt == Some(true) || shape.top_k() == 1 || first.rows.is_empty() {
        return None;
    }
    let pattern = first.rows.row(0);
    let mut rows = 0;
    for segment in segments.iter().take_while(|segment| segment.start < prompt_tokens) {
        for row in 0..segment.rows.len().min((prompt_tokens - segment.start) as usize) {
            if segment.rows.row(row) != pattern {
                return None;
            }
            rows += 1;
        }
    }
    // All zero has a check of its own, and a row that names every expert there is cannot differ from another.
    let lists = (0..shape.layers()).map(|layer| first.rows.experts(0, layer));
    let (mut zero, mut everyone) = (true, true);
    for list in lists {
        zero &= list.iter().all(|&id| id == 0);
        everyone &= list.iter().all(|&id| usize::from(id) < shape.top_k());
    }
    if rows < SHORTEST || zero || everyone {
        return None;
    }
    let layer = (0..shape.layers()).find(|&layer| first.rows.experts(0, layer).iter().any(|&id| id > 0))?;
    let finding = Finding::new(Check::Collapse, format!("all {rows} rows of the prompt are one and the same row"))
        .at(first.start, rows as u32)
        .in_layer(layer)
        .by(Side::with_experts(&first.source, first.rows.experts(0, layer)));
    Some(finding)
}
