//! What a fleet tells, held against what the join makes of it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod collector;
mod delivery;
mod events;
mod faults;
mod joined;

use std::{collections::BTreeMap, sync::Arc};

use gatescope_routing::{Context, Join, Joined, LayerSet, ModelShape, RequestKey, RowShape, Rules, rows::Rows};
use gatescope_simulation::{Answered, Fleet, Injection, Options, Output};
use gatescope_wire::{Event, Told};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// A small model of which layer 0 is dense.
fn options() -> Options {
    let layers: LayerSet = (1..6).collect();
    let shape = ModelShape::new(RowShape::new(6, 3).unwrap(), 40, layers).unwrap();
    Options {
        seed: 11,
        requests: Some(300),
        prefill: 2,
        decode: 3,
        concurrency: 24,
        prompt_tokens: 60,
        completion_tokens: 40,
        ..Options::new(shape)
    }
}

/// All that a fleet does.
#[derive(Default)]
struct Run {
    /// By instance, in order.
    events: Vec<(usize, Event)>,
    truth: BTreeMap<(Arc<str>, u32), Rows>,
    injected: Vec<Injection>,
    answered: Vec<Answered>,
}

fn run(options: &Options) -> Run {
    let mut all = Run::default();
    for output in Fleet::new(options.clone()).unwrap() {
        match output.unwrap() {
            Output::Event { instance, event, .. } => all.events.push((instance, event)),
            Output::Injected(injection) => all.injected.push(injection),
            Output::Finished(answered) => {
                for choice in 0..answered.choices() {
                    let rows = answered.rows(choice).unwrap();
                    assert!(all.truth.insert((answered.request_id().clone(), choice as u32), rows).is_none());
                }
                all.answered.push(*answered);
            }
        }
    }
    all
}

impl Run {
    /// Truth and answers as recorded responses.
    fn lines(&self) -> (Vec<u8>, Vec<u8>) {
        let (mut truth, mut answers) = (Vec::new(), Vec::new());
        for answered in &self.answered {
            answered.write_truth(&mut truth).unwrap();
            answered.write_answers(&mut answers).unwrap();
        }
        (truth, answers)
    }
}

/// In which order the streams of instances come.
#[derive(Debug, Clone, Copy)]
enum Order {
    AsTold,
    /// One instance after the other, the last first: decodes before their prefills.
    Backwards,
    /// Whatever chance has; each stream by itself is in order.
    Mixed(u64),
}

fn ordered(events: &[(usize, Event)], order: Order) -> Vec<Event> {
    let mut streams: BTreeMap<usize, std::collections::VecDeque<Event>> = BTreeMap::new();
    for (instance, event) in events {
        streams.entry(*instance).or_default().push_back(event.clone());
    }
    match order {
        Order::AsTold => events.iter().map(|(_, event)| event.clone()).collect(),
        Order::Backwards => streams.into_values().rev().flatten().collect(),
        Order::Mixed(seed) => {
            let mut random = Pcg64::seed_from_u64(seed);
            let mut mixed = Vec::new();
            while !streams.is_empty() {
                let instance = *streams.keys().nth(random.random_range(0..streams.len())).unwrap();
                let stream = streams.get_mut(&instance).unwrap();
                let many = random.random_range(1..=40).min(stream.len());
                mixed.extend(stream.drain(..many));
                if stream.is_empty() {
                    streams.remove(&instance);
                }
            }
            mixed
        }
    }
}

/// Every request, joined and closed once all was told.
fn joined(events: &[Event], options: &Options) -> BTreeMap<(Arc<str>, u32), Joined> {
    let rules = Rules { model: Some(Arc::new(options.shape.clone())), ..Rules::default() };
    let mut join = Join::new(rules);
    for event in events {
        let Event::Request(request) = event else { continue };
        match &request.told {
            Told::Start(started) => {
                if let Some(name) = &started.name {
                    join.identify(&request.key, name.clone());
                }
            }
            Told::Link(link) => {
                join.link(&request.key, link.prefill.clone());
            }
            _ => {}
        }
        if let Some(part) = request.told.clone().into_part() {
            join.apply(&request.key, part);
        }
    }
    let keys: Vec<RequestKey> = join.keys().cloned().collect();
    keys.into_iter()
        .map(|key| {
            let joined = join.close(&key, &Context::default()).unwrap();
            ((key.request_id, key.choice), joined)
        })
        .collect()
}
