//! One request on its way through its instances: who computes what, and what their agents tell of it.

use std::{collections::HashMap, collections::VecDeque, ops::Range, sync::Arc};

use gatescope_routing::{
    Anchor, Finish, IdWidth, KvLink, RequestKey, Role, Source, Span, Start, WireType, join::BlockReference,
    rows::RowsError, span::BlockHash,
};
use gatescope_wire::{Block, Event, Link, Request, Started, Told};
use rand::RngExt;

use crate::{
    fault::Fault,
    fleet::{Deployment, Output},
    inject::{Aim, Injection, Telling},
    request::{Plan, Site},
    text::BLOCK,
};

/// Most positions that an instance computes of one request at once.
const CHUNK: u32 = 2048;
/// Simulated microseconds: to compute a position of a chunk, a step of a decode, the way of a KV cache.
const PER_POSITION: u64 = 30;
const PER_STEP: u64 = 12_000;
const TRANSFER: u64 = 4_000;

/// What happens next to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// It comes to the instance that computes its prompt.
    Begin,
    /// The next chunk of positions `next..until` is computed.
    Compute { choice: usize, attempt: u32, next: u32, until: u32 },
    /// It comes to its decode instance.
    Transfer,
    /// Sampled tokens are fed, up to the end of the block.
    Generate { choice: usize, attempt: u32, next: u32 },
    /// It is computed again after a preemption, up to where it was.
    Resume { choice: usize, attempt: u32, until: u32 },
}

/// Blocks of shared prefixes that instances have told the rows of, from the first on: by instance, prefix, generation.
pub(crate) type Cache = HashMap<(usize, usize, u32), u32>;

/// A request that is served.
#[derive(Debug)]
pub(crate) struct Serving {
    plan: Plan,
    /// Choices that are not finished.
    open: usize,
    aim: Option<(Fault, Aim)>,
    injected: bool,
    /// Whether the prefill has told any rows.
    prefill_told: bool,
}

/// Where a step puts what comes of it.
pub(crate) struct Desk<'a> {
    pub(crate) deployment: &'a Arc<Deployment>,
    pub(crate) cache: &'a mut Cache,
    pub(crate) out: &'a mut VecDeque<Output>,
}

impl Serving {
    pub(crate) fn new(mut plan: Plan, deployment: &Deployment) -> Self {
        let number = plan.random.random();
        let aim = plan.fault.map(|fault| (fault, Aim::of(&plan, fault, &deployment.options.shape, number)));
        Self { open: plan.choices.len(), plan, aim, injected: false, prefill_told: false }
    }

    /// Whether everything has happened to the request.
    pub(crate) fn is_finished(&self) -> bool {
        self.open == 0
    }

    /// The request.
    pub(crate) fn into_plan(self) -> Plan {
        self.plan
    }

    /// Does a step; says what comes after it, and after how many microseconds.
    pub(crate) fn step(&mut self, step: Step, desk: &mut Desk<'_>) -> Result<Vec<(u64, Step)>, RowsError> {
        match step {
            Step::Begin => Ok(self.begin(desk)),
            Step::Compute { choice, attempt, next, until } => self.compute(choice, attempt, next, until, desk),
            Step::Transfer => Ok(self.transfer(desk)),
            Step::Generate { choice, attempt, next } => self.generate(choice, attempt, next, desk),
            Step::Resume { choice, attempt, until } => Ok(self.resume(choice, attempt, until, desk)),
        }
    }

    fn begin(&mut self, desk: &mut Desk<'_>) -> Vec<(u64, Step)> {
        match self.plan.site {
            Site::Pair { .. } => {
                let source = self.source(Role::Prefill, 0, desk);
                self.start(0, &source, None, desk);
                let next = self.refer(0, &source, desk);
                vec![self.later_compute(0, 0, next, self.plan.prompt_tokens())]
            }
            Site::Colocated(_) => {
                let choices = 0..self.plan.choices.len();
                let source = self.source(Role::Colocated, 0, desk);
                choices.clone().for_each(|choice| self.start(choice, &source, None, desk));
                choices
                    .map(|choice| {
                        let next = self.refer(choice, &source, desk);
                        self.later_compute(choice, 0, next, self.plan.prompt_tokens())
                    })
                    .collect()
            }
        }
    }

    fn compute(
        &mut self,
        choice: usize,
        attempt: u32,
        next: u32,
        until: u32,
        desk: &mut Desk<'_>,
    ) -> Result<Vec<(u64, Step)>, RowsError> {
        let role = match self.plan.site {
            Site::Colocated(_) => Role::Colocated,
            // A decode computes in chunks only what it had computed before.
            Site::Pair { .. } if attempt == 0 => Role::Prefill,
            Site::Pair { .. } => Role::Decode,
        };
        let source = self.source(role, attempt, desk);
        let end = until.min(next + CHUNK);
        let mut from = next;
        if role != Role::Decode {
            from = self.tell_blocks(choice, &source, next..end, desk)?;
        }
        self.tell(choice, &source, from..end, None, desk)?;
        if end < until {
            return Ok(vec![self.later_compute(choice, attempt, end, until)]);
        }
        if role == Role::Prefill {
            self.finish(0, &source, 1, desk);
            return Ok(vec![(TRANSFER + self.jitter(TRANSFER), Step::Transfer)]);
        }
        if end == self.plan.end(choice) {
            self.finish(choice, &source, self.plan.choices[choice].text.len(), desk);
            return Ok(Vec::new());
        }
        Ok(vec![self.later_generate(choice, attempt, end)])
    }

    fn transfer(&mut self, desk: &mut Desk<'_>) -> Vec<(u64, Step)> {
        let source = self.source(Role::Decode, 0, desk);
        let first = self.plan.first_forward;
        // All choices begin before any of them ends: whoever joins them knows how many there are.
        (0..self.plan.choices.len()).for_each(|choice| self.start(choice, &source, Some(first), desk));
        if let Site::Pair { prefill, .. } = self.plan.site {
            let prefill = KvLink {
                engine_id: desk.deployment.instances[prefill].clone(),
                request_id: self.plan.inner_id.clone(),
            };
            let link = Link { source: source.clone(), prefill };
            self.emit(0, &source, Told::Link(link), 0, desk);
        }
        if self.plan.fault == Some(Fault::NoDecode) {
            self.inject(Fault::NoDecode, &source, None, None, desk);
            self.open = 0;
            return Vec::new();
        }
        (0..self.plan.choices.len()).map(|choice| self.later_generate(choice, 0, first)).collect()
    }

    fn generate(
        &mut self,
        choice: usize,
        attempt: u32,
        next: u32,
        desk: &mut Desk<'_>,
    ) -> Result<Vec<(u64, Step)>, RowsError> {
        let end = self.plan.end(choice);
        let role = self.sampling_role();
        let source = self.source(role, attempt, desk);
        // What a decode has to compute of the prompt goes in one chunk with its last token.
        let to = ((next / BLOCK + 1) * BLOCK).max(self.plan.prompt_tokens().min(next + CHUNK)).min(end);
        self.tell(choice, &source, next..to, None, desk)?;
        if to == end {
            self.finish(choice, &source, self.plan.choices[choice].text.len(), desk);
            return Ok(Vec::new());
        }
        if attempt == 0 && self.plan.choices[choice].preempted_at.is_some_and(|at| to >= at) {
            self.emit(choice, &source, Told::Preempt(source.clone()), 0, desk);
            let wait = 10 * PER_STEP + self.jitter(20 * PER_STEP);
            return Ok(vec![(wait, Step::Resume { choice, attempt: attempt + 1, until: to })]);
        }
        Ok(vec![self.later_generate(choice, attempt, to)])
    }

    fn resume(&mut self, choice: usize, attempt: u32, until: u32, desk: &mut Desk<'_>) -> Vec<(u64, Step)> {
        let role = self.sampling_role();
        let source = self.source(role, attempt, desk);
        let first = (role == Role::Decode).then_some(self.plan.first_forward);
        self.start(choice, &source, first, desk);
        let next = match first {
            Some(first) => first,
            None => self.refer(choice, &source, desk),
        };
        vec![self.later_compute(choice, attempt, next, until)]
    }

    /// Tells the blocks of the shared prefix that the instance has in its cache by their hashes; says where it goes on.
    fn refer(&mut self, choice: usize, source: &Source, desk: &mut Desk<'_>) -> u32 {
        let Some((prefix, _)) = self.plan.prefix.filter(|_| self.plan.fault != Some(Fault::NoRouting)) else {
            return 0;
        };
        let generation = self.plan.generation;
        let cached = desk.cache.get(&(self.instance(source.role), prefix, generation)).copied().unwrap_or(0);
        for block in 0..cached {
            let reference = BlockReference {
                source: source.clone(),
                start: block * BLOCK,
                hash: BlockHash(self.plan.prompt.block_hash(block).as_slice().into()),
                generation,
            };
            self.emit(choice, source, Told::Block(Block { reference, rows: BLOCK }), BLOCK, desk);
            self.prefill_told |= source.role == Role::Prefill;
        }
        cached * BLOCK
    }

    /// Tells the full blocks of the shared prefix at the beginning of the range, each under its hash.
    fn tell_blocks(
        &mut self,
        choice: usize,
        source: &Source,
        range: Range<u32>,
        desk: &mut Desk<'_>,
    ) -> Result<u32, RowsError> {
        let mut next = range.start;
        let Some((prefix, full)) = self.plan.prefix else { return Ok(next) };
        let until = range.end.min(full * BLOCK);
        while next + BLOCK <= until {
            let block = next / BLOCK;
            let hash = BlockHash(self.plan.prompt.block_hash(block).as_slice().into());
            self.tell(choice, source, next..next + BLOCK, Some(hash), desk)?;
            // Nobody may be told of a block by its hash whose rows never came.
            if !matches!(self.plan.fault, Some(Fault::NoPrefill | Fault::NoRouting)) {
                let known = desk.cache.entry((self.instance(source.role), prefix, self.plan.generation)).or_default();
                if *known == block {
                    *known = block + 1;
                }
            }
            next += BLOCK;
        }
        Ok(next)
    }

    /// Tells rows, with the fault that belongs into them.
    fn tell(
        &mut self,
        choice: usize,
        source: &Source,
        range: Range<u32>,
        block: Option<BlockHash>,
        desk: &mut Desk<'_>,
    ) -> Result<(), RowsError> {
        if range.is_empty() {
            return Ok(());
        }
        let deployment = desk.deployment.clone();
        let span = Span {
            source: source.clone(),
            anchor: Anchor::Start(range.start),
            rows: self.plan.rows(&deployment.popularity, choice, range.clone())?,
            wire_type: WireType::of(IdWidth::for_experts(deployment.options.shape.num_experts())),
            unknown: Vec::new(),
            generation: self.plan.generation,
            block,
        };
        let positions = range.end - range.start;
        let told_before = self.prefill_told;
        self.prefill_told |= source.role == Role::Prefill;
        let concerned = self.aim.filter(|(fault, _)| fault.role() == source.role || *fault == Fault::NoRouting);
        if let Some((fault, aim)) = concerned {
            let telling = Telling {
                plan: &self.plan,
                model: &deployment.options.shape,
                popularity: &deployment.popularity,
                source,
                range,
                told_before,
                span,
            };
            match telling.wrong(fault, aim)? {
                Some(wrong) => {
                    // Positions count once, however many pieces tell of them.
                    let counts = std::iter::once(positions).chain(std::iter::repeat(0));
                    wrong.told.into_iter().zip(counts).for_each(|(told, n)| self.emit(choice, source, told, n, desk));
                    if let Some((position, layer)) = wrong.at {
                        self.inject(fault, source, position, layer, desk);
                    }
                }
                None => {
                    let span = telling.span;
                    self.emit(choice, source, Told::Span(span), positions, desk);
                }
            }
            return Ok(());
        }
        self.emit(choice, source, Told::Span(span), positions, desk);
        Ok(())
    }

    fn inject(
        &mut self,
        fault: Fault,
        source: &Source,
        position: Option<u32>,
        layer: Option<u16>,
        desk: &mut Desk<'_>,
    ) {
        if std::mem::replace(&mut self.injected, true) {
            return;
        }
        let (request_id, instance) = (self.plan.id.clone(), source.instance.clone());
        desk.out.push_back(Output::Injected(Injection { fault, request_id, instance, position, layer }));
    }

    fn start(&mut self, choice: usize, source: &Source, first_forward: Option<u32>, desk: &mut Desk<'_>) {
        let name = (source.role == Role::Prefill)
            .then(|| KvLink { engine_id: source.instance.clone(), request_id: self.plan.inner_id.clone() });
        let start = Start {
            source: source.clone(),
            prompt_tokens: Some(self.plan.prompt_tokens()),
            first_forward,
            prompt_start: None,
            parent: None,
        };
        let model = Some(desk.deployment.options.model.clone());
        self.emit(choice, source, Told::Start(Started { start, name, model }), 0, desk);
        if self.plan.fault == Some(Fault::NoPrefill) && source.role == Role::Prefill {
            self.inject(Fault::NoPrefill, source, Some(0), None, desk);
        }
    }

    fn finish(&mut self, choice: usize, source: &Source, tokens: u32, desk: &mut Desk<'_>) {
        let finish = Finish {
            source: source.clone(),
            prompt_tokens: Some(self.plan.prompt_tokens()),
            completion_tokens: Some(tokens),
            uniform_prompt: Some(self.plan.prompt.is_uniform()),
        };
        self.emit(choice, source, Told::Finish(finish), 0, desk);
        if source.role != Role::Prefill {
            self.open -= 1;
        }
    }

    fn emit(&self, choice: usize, source: &Source, told: Told, positions: u32, desk: &mut Desk<'_>) {
        let at_prefill = source.role == Role::Prefill;
        if at_prefill && self.plan.fault == Some(Fault::NoPrefill) {
            return;
        }
        let key: RequestKey = self.plan.key(&desk.deployment.options.run, choice, at_prefill);
        let prefix = self.plan.prefix.map(|(prefix, _)| prefix);
        desk.out.push_back(Output::Event {
            instance: self.instance(source.role),
            event: Event::Request(Request { key, at: 0, told }),
            positions,
            prefix,
        });
    }

    fn instance(&self, role: Role) -> usize {
        match (self.plan.site, role) {
            (Site::Colocated(instance), _) => instance,
            (Site::Pair { prefill, .. }, Role::Prefill) => prefill,
            (Site::Pair { decode, .. }, _) => decode,
        }
    }

    fn source(&self, role: Role, attempt: u32, desk: &Desk<'_>) -> Source {
        Source { role, instance: desk.deployment.instances[self.instance(role)].clone(), attempt }
    }

    fn sampling_role(&self) -> Role {
        match self.plan.site {
            Site::Colocated(_) => Role::Colocated,
            Site::Pair { .. } => Role::Decode,
        }
    }

    fn later_compute(&mut self, choice: usize, attempt: u32, next: u32, until: u32) -> (u64, Step) {
        let positions = u64::from(until.saturating_sub(next).min(CHUNK));
        let wait = PER_STEP / 2 + positions * PER_POSITION;
        (wait + self.jitter(wait), Step::Compute { choice, attempt, next, until })
    }

    fn later_generate(&mut self, choice: usize, attempt: u32, next: u32) -> (u64, Step) {
        // Of the tokens that a draft model proposes some are accepted: a step gives one to three.
        let steps = u64::from(BLOCK) / self.plan.random.random_range(1..=3);
        (steps * PER_STEP + self.jitter(PER_STEP), Step::Generate { choice, attempt, next })
    }

    fn jitter(&mut self, most: u64) -> u64 {
        self.plan.random.random_range(0..=most)
    }
}
