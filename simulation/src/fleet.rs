//! Many requests at once, in simulated time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    sync::Arc,
};

use gatescope_routing::{Anchor, rows::RowsError};
use gatescope_wire::{Event, ModelSeen, Request, Told};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::{
    Answered, Fault, Injection, Options, OptionsError,
    popularity::Popularity,
    request::{Plan, Requests},
    serving::{Cache, Desk, Serving, Step},
    text::BLOCK,
};

/// What a fleet does next.
#[derive(Debug)]
pub enum Output {
    /// An agent tells something.
    Event {
        /// Which instance's agent.
        instance: usize,
        /// What; its time is 0.
        event: Event,
        /// Positions that the instance computed or had in its cache.
        positions: u32,
        /// The shared prefix that the request begins with.
        prefix: Option<usize>,
    },
    /// A request is answered.
    Finished(Box<Answered>),
    /// A fault was put into what was told just now.
    Injected(Injection),
}

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Deployment {
    pub(crate) options: Options,
    pub(crate) popularity: Popularity,
    /// Names of the instances: prefill, decode, colocated.
    pub(crate) instances: Vec<Arc<str>>,
}

/// A simulated fleet: what its agents tell, in the order in which it happens. It never looks at a clock.
#[derive(Debug)]
pub struct Fleet {
    deployment: Arc<Deployment>,
    requests: Requests,
    random: Pcg64,
    /// Steps by simulated time, then in the order in which they were planned.
    agenda: BinaryHeap<Reverse<(u64, u64, usize, Step)>>,
    planned: u64,
    serving: Vec<Option<Serving>>,
    cache: Cache,
    out: VecDeque<Output>,
    admitted: u64,
    /// Requests that have begun.
    begun: u64,
    /// Weight updates so far.
    generation: u32,
    admits: bool,
    /// How often each kind of fault was put in.
    faults: BTreeMap<Fault, u64>,
}

impl Fleet {
    /// A fleet before its first request. This draws the model's gates, which takes a moment.
    ///
    /// # Errors
    /// Where the options make no fleet.
    pub fn new(options: Options) -> Result<Self, OptionsError> {
        options.check()?;
        let mut random = Pcg64::seed_from_u64(options.seed);
        let popularity = Popularity::new(&options.shape, &mut random);
        let requests = Requests::new(&mut random);
        let named = |letter: &'static str, count| (0..count).map(move |i| Arc::from(format!("{letter}{i}")));
        let instances: Vec<Arc<str>> = named("p", options.prefill)
            .chain(named("d", options.decode))
            .chain(named("c", options.colocated))
            .collect();
        let models = instances.iter().enumerate().map(|(instance, name)| {
            let seen = ModelSeen {
                run: options.run.clone(),
                instance: name.clone(),
                at: 0,
                model: options.model.clone(),
                shape: options.shape.clone(),
            };
            Output::Event { instance, event: Event::Model(seen), positions: 0, prefix: None }
        });
        let out = models.collect();
        let faults = options.faults.iter().map(|&fault| (fault, 0)).collect();
        let concurrency = options.concurrency as usize;
        let mut fleet = Self {
            deployment: Arc::new(Deployment { options, popularity, instances }),
            requests,
            random,
            agenda: BinaryHeap::new(),
            planned: 0,
            serving: Vec::new(),
            cache: Cache::new(),
            out,
            admitted: 0,
            begun: 0,
            generation: 0,
            admits: true,
            faults,
        };
        for slot in 0..concurrency {
            fleet.serving.push(None);
            // Not all at once: a fleet that has been running for a while is what is simulated.
            let wait = fleet.random.random_range(0..1_000_000);
            fleet.admit(slot, wait);
        }
        Ok(fleet)
    }

    /// Names of the instances.
    pub fn instances(&self) -> &[Arc<str>] {
        &self.deployment.instances
    }

    /// What is simulated.
    pub fn options(&self) -> &Options {
        &self.deployment.options
    }

    /// Takes no more requests: those that are served are answered, then it ends.
    pub fn stop(&mut self) {
        self.admits = false;
    }

    /// An agent had to drop an event of this instance: blocks in it cannot be told by their hashes.
    pub fn dropped(&mut self, instance: usize, event: &Event, prefix: Option<usize>) {
        let Event::Request(Request { told: Told::Span(span), .. }) = event else { return };
        let (Some(prefix), Some(_), Anchor::Start(start)) = (prefix, &span.block, span.anchor) else { return };
        if let Some(known) = self.cache.get_mut(&(instance, prefix, span.generation)) {
            *known = (*known).min(start / BLOCK);
        }
    }

    fn admit(&mut self, slot: usize, at: u64) {
        let most = self.deployment.options.requests.unwrap_or(u64::MAX);
        if self.admits && self.admitted < most {
            self.admitted += 1;
            self.plan(at, slot, Step::Begin);
        }
    }

    fn plan(&mut self, at: u64, slot: usize, step: Step) {
        self.planned += 1;
        self.agenda.push(Reverse((at, self.planned, slot, step)));
    }

    /// The next request, with a fault where chance and the request have it so: the kind that came least often.
    fn next_request(&mut self, number: u64) -> Plan {
        let deployment = &self.deployment;
        let mut plan = self.requests.plan(number, &deployment.options, &deployment.popularity);
        let rate = deployment.options.fault_rate;
        let options = &deployment.options;
        let concerned = options.faulty_decode.is_none_or(|decode| plan.site.is_decoded_by(options.prefill + decode));
        if concerned && !self.faults.is_empty() && plan.random.random::<f64>() < rate {
            let fitting = self.faults.iter_mut().filter(|(fault, _)| plan.fits(**fault));
            if let Some((fault, count)) = fitting.min_by_key(|(_, count)| **count) {
                *count += 1;
                plan.fault = Some(*fault);
            }
        }
        plan
    }

    fn step(&mut self, at: u64, slot: usize, step: Step) -> Result<(), RowsError> {
        let mut serving = match self.serving[slot].take() {
            Some(serving) => serving,
            None => {
                let number = self.begun;
                self.begun += 1;
                let plan = self.next_request(number);
                if plan.generation > self.generation {
                    self.generation = plan.generation;
                    self.cache.retain(|(_, _, generation), _| *generation >= plan.generation);
                }
                Serving::new(plan, &self.deployment)
            }
        };
        let mut desk = Desk { deployment: &self.deployment, cache: &mut self.cache, out: &mut self.out };
        for (wait, step) in serving.step(step, &mut desk)? {
            self.plan(at + wait, slot, step);
        }
        if serving.is_finished() {
            let answered = Answered::new(serving.into_plan(), self.deployment.clone());
            self.out.push_back(Output::Finished(Box::new(answered)));
            let wait = self.random.random_range(0..20_000);
            self.admit(slot, at + wait);
        } else {
            self.serving[slot] = Some(serving);
        }
        Ok(())
    }
}

impl Iterator for Fleet {
    type Item = Result<Output, RowsError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(output) = self.out.pop_front() {
                return Some(Ok(output));
            }
            let Reverse((at, _, slot, step)) = self.agenda.pop()?;
            if step == Step::Begin && !self.admits {
                continue;
            }
            if let Err(error) = self.step(at, slot, step) {
                return Some(Err(error));
            }
        }
    }
}
