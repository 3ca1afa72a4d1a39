//! Requests with a known routing, and the parts that a deployment would send of them.

use std::sync::Arc;

use bytes::Bytes;
use gatescope_routing::{
    finding::Check,
    join::{Context, Finish, Joined, Part, Policy, RequestJoin, Rules, Start},
    rows::Rows,
    shape::{IdWidth, RowShape},
    span::{Anchor, Role, Source, Span, WireType},
};
use proptest::{prelude::*, test_runner::TestCaseError};

/// Experts in layers other than 1.
const EXPERTS: u16 = 24;

/// A request that some deployment answered.
#[derive(Debug, Clone)]
pub(crate) struct Deployment {
    pub(crate) prompt: u32,
    pub(crate) completion: u32,
    pub(crate) layers: usize,
    pub(crate) top_k: usize,
    pub(crate) width: IdWidth,
    pub(crate) dense: Option<usize>,
    pub(crate) colocated: bool,
    pub(crate) first_forward: u32,
    /// `[positions, layers, top_k]`
    pub(crate) truth: Vec<u8>,
}

pub(crate) fn source(role: Role, instance: &str) -> Source {
    Source { role, instance: Arc::from(instance), attempt: 0 }
}

pub(crate) fn join(parts: impl IntoIterator<Item = Part>, policy: Policy) -> Joined {
    join_as(parts, Rules { policy, model: None })
}

pub(crate) fn join_as(parts: impl IntoIterator<Item = Part>, rules: Rules) -> Joined {
    let mut join = RequestJoin::default();
    for part in parts {
        join.apply(part);
    }
    join.close(&rules, &Context::default())
}

pub(crate) fn codes(joined: &Joined) -> Vec<Check> {
    joined.findings.iter().map(|finding| finding.check).collect()
}

impl Deployment {
    /// A P/D pair whose decode starts at the last token of the prompt.
    pub(crate) fn random(prompt: u32, completion: u32, layers: usize, top_k: usize, seed: u64) -> Self {
        let width = IdWidth::U8;
        let mut new = Self {
            prompt,
            completion,
            layers,
            top_k,
            width,
            dense: None,
            colocated: false,
            first_forward: prompt - 1,
            truth: Vec::new(),
        };
        new.fill(seed);
        new
    }

    /// Distinct ids in each list; row `p` differs from every other row in layer 1.
    fn fill(&mut self, seed: u64) {
        let mut state = seed | 1;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for position in 0..self.expected() {
            for layer in 0..self.layers {
                let mut list: Vec<u16> = Vec::new();
                if layer == 1 {
                    list.extend([position as u16 % EXPERTS, position as u16 / EXPERTS + EXPERTS]);
                }
                while list.len() < self.top_k {
                    let id = (random() % u64::from(EXPERTS)) as u16;
                    if !list.contains(&id) {
                        list.push(id);
                    }
                }
                if Some(layer) == self.dense {
                    list.fill(0);
                }
                list.iter().for_each(|id| self.truth.extend(&id.to_le_bytes()[..self.width.bytes()]));
            }
        }
    }

    pub(crate) fn expected(&self) -> u32 {
        self.prompt + self.completion - 1
    }

    pub(crate) fn shape(&self) -> RowShape {
        RowShape::new(self.layers as u64, self.top_k as u64).unwrap()
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.shape().row_bytes(self.width)
    }

    pub(crate) fn span(&self, source: &Source, from: u32, to: u32) -> Span {
        let size = self.row_bytes();
        let bytes = Bytes::copy_from_slice(&self.truth[from as usize * size..to as usize * size]);
        Span {
            source: source.clone(),
            anchor: Anchor::Start(from),
            rows: Rows::new(bytes, self.shape(), self.width).unwrap(),
            wire_type: WireType::of(self.width),
            unknown: Vec::new(),
            generation: 0,
            block: None,
        }
    }

    /// What each source computed: its rows, from and to, and the tokens that it sampled.
    pub(crate) fn sources(&self) -> Vec<(Source, u32, u32, u32)> {
        if self.colocated {
            return vec![(source(Role::Colocated, "c0"), 0, self.expected(), self.completion)];
        }
        vec![
            (source(Role::Prefill, "p0"), 0, self.prompt, 1),
            (source(Role::Decode, "d0"), self.first_forward, self.expected(), self.completion),
        ]
    }

    pub(crate) fn finish(&self, source: &Source, sampled: u32) -> Part {
        Part::Finish(Finish {
            source: source.clone(),
            prompt_tokens: Some(self.prompt),
            completion_tokens: Some(sampled),
            uniform_prompt: None,
        })
    }

    /// Each source as one answer that does not say its start, as vLLM 0.31 sends it: span, finish, span, finish.
    pub(crate) fn answers(&self) -> Vec<Part> {
        let answer = |(source, from, to, sampled): (Source, u32, u32, u32)| {
            let anchor = Anchor::End { completion_tokens: sampled };
            let finish = self.finish(&source, sampled);
            [Part::Span(Span { anchor, ..self.span(&source, from, to) }), finish]
        };
        self.sources().into_iter().flat_map(answer).collect()
    }

    /// The joined rows equal the routing, byte for byte.
    pub(crate) fn check_routing(&self, joined: &Joined) -> Result<(), TestCaseError> {
        let routing = joined.routing().map(|rows| rows.bytes().to_vec());
        prop_assert_eq!(routing.unwrap_or_default(), self.truth.clone());
        Ok(())
    }
}

prop_compose! {
    pub(crate) fn deployment()(
        prompt in 1u32..40, completion in 1u32..24, layers in 2usize..6, top_k in 2usize..7, wide in any::<bool>(),
        dense in prop::option::of(Just(0usize)), colocated in any::<bool>(), lower in 0u32..6, seed in any::<u64>(),
    ) -> Deployment {
        let width = if wide { IdWidth::U16 } else { IdWidth::U8 };
        let first_forward = (prompt - 1).saturating_sub(lower);
        let truth = Vec::new();
        let mut new = Deployment { prompt, completion, layers, top_k, width, dense, colocated, first_forward, truth };
        new.fill(seed);
        new
    }
}

/// Cuts of each source's rows, shuffled, some of them twice.
pub(crate) fn pieces(deployment: &Deployment, cuts: &[u32], order: &[u16], again: &[bool]) -> Vec<Part> {
    let mut parts = Vec::new();
    for (source, from, to, sampled) in deployment.sources() {
        let mut edges: Vec<u32> = cuts.iter().map(|cut| from + cut % (to - from + 1)).chain([from, to]).collect();
        edges.sort_unstable();
        edges.dedup();
        for edge in edges.windows(2) {
            parts.push(Part::Span(deployment.span(&source, edge[0], edge[1])));
        }
        let start = Start {
            source: source.clone(),
            prompt_tokens: Some(deployment.prompt),
            first_forward: Some(from),
            prompt_start: None,
            parent: None,
        };
        parts.push(Part::Start(start));
        parts.push(deployment.finish(&source, sampled));
    }
    let twice: Vec<Part> =
        parts.iter().zip(again.iter().cycle()).filter(|(_, again)| **again).map(|(part, _)| part.clone()).collect();
    parts.extend(twice);
    let mut keyed: Vec<(u16, Part)> = order.iter().copied().cycle().zip(parts).collect();
    keyed.sort_by_key(|(key, _)| *key);
    keyed.into_iter().map(|(_, part)| part).collect()
}

/// Changes one top-k list of a source's spans.
pub(crate) fn alter(parts: &mut [Part], role: Role, row: usize, layer: usize, change: impl Fn(&mut Vec<u16>)) {
    for part in parts {
        let Part::Span(span) = part else { continue };
        if span.source.role != role {
            continue;
        }
        let (shape, width) = (span.rows.shape(), span.rows.width());
        let mut list = span.rows.experts(row, layer);
        change(&mut list);
        let mut bytes = span.rows.bytes().to_vec();
        let size = shape.top_k() * width.bytes();
        let at = row * shape.row_bytes(width) + layer * size;
        let changed: Vec<u8> = list.iter().flat_map(|id| id.to_le_bytes()[..width.bytes()].to_vec()).collect();
        bytes[at..at + size].copy_from_slice(&changed);
        span.rows = Rows::new(bytes.into(), shape, width).unwrap();
    }
}
