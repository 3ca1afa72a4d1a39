//! Requests: who asks for what, how long it gets, and what happens to it on the way.

use std::{f64::consts::TAU, ops::Range, sync::Arc};

use gatescope_routing::{RequestKey, Rows, rows::RowsError};
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use rand_pcg::Pcg64;

use crate::{
    fault::Fault,
    options::Options,
    popularity::{Popularity, TOPICS},
    text::{BLOCK, Text, Words, mix},
};

/// Prompts that many requests begin with.
const PREFIXES: usize = 8;
/// Most tokens of such a prompt.
const LONGEST_PREFIX: u32 = 1024;
/// No prompt or completion is so many times longer than a typical one.
const TIMES_LONGER: u32 = 16;
/// The topic that everybody asks for in a surge, and how much more than for others.
const SURGING: usize = 5;
const SURGE: f64 = 60.0;
/// Requests after which topics are asked for as they were.
const DRIFT: f64 = 20_000.0;

/// Shares of requests.
const WITH_PREFIX: f64 = 0.6;
const WITH_CHOICES: f64 = 0.05;
const WITH_TWO_IDS: f64 = 0.3;
const WITH_ONE_TOKEN: f64 = 0.02;
const WITH_FAILED_LOAD: f64 = 0.03;
const PREEMPTED: f64 = 0.05;
const ABORTED: f64 = 0.01;

/// Who serves a request: indices of instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    Pair { prefill: usize, decode: usize },
    Colocated(usize),
}

impl Site {
    /// Whether this instance decodes.
    pub(crate) fn is_decoded_by(self, instance: u32) -> bool {
        matches!(self, Self::Pair { decode, .. } if decode == instance as usize)
    }
}

/// Why a completion ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Stop,
    Length,
    Abort,
}

impl Ending {
    /// As vLLM says it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
        }
    }
}

/// One sampled sequence.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    /// The completion.
    pub(crate) text: Text,
    pub(crate) ending: Ending,
    /// The instance takes the KV cache away once it got here.
    pub(crate) preempted_at: Option<u32>,
}

/// A request with everything that will happen to it.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The outer id, where tokens are sampled.
    pub(crate) id: Arc<str>,
    /// The outer id at the prefill.
    pub(crate) prefill_id: Arc<str>,
    /// What the prefill calls it inside.
    pub(crate) inner_id: Arc<str>,
    pub(crate) generation: u32,
    pub(crate) site: Site,
    pub(crate) prompt: Text,
    /// The shared prefix and how many blocks of it are full.
    pub(crate) prefix: Option<(usize, u32)>,
    /// First position that a decode computes itself.
    pub(crate) first_forward: u32,
    pub(crate) choices: Vec<Choice>,
    pub(crate) fault: Option<Fault>,
    /// What chance has for the fault and for times.
    pub(crate) random: Pcg64,
}

impl Plan {
    pub(crate) fn prompt_tokens(&self) -> u32 {
        self.prompt.len()
    }

    /// The position behind the last one that is fed for a choice.
    pub(crate) fn end(&self, choice: usize) -> u32 {
        self.prompt.len() + self.choices[choice].text.len() - 1
    }

    /// The key of a choice, at a prefill or elsewhere.
    pub(crate) fn key(&self, run: &Arc<str>, choice: usize, at_prefill: bool) -> RequestKey {
        let id = if at_prefill { &self.prefill_id } else { &self.id };
        RequestKey { run: run.clone(), request_id: id.clone(), choice: choice as u32 }
    }

    /// The true rows of a choice. The last sampled token has one too, which no engine computes.
    pub(crate) fn rows(&self, popularity: &Popularity, choice: usize, range: Range<u32>) -> Result<Rows, RowsError> {
        let (prompt, completion) = (&self.prompt.codes, &self.choices[choice].text.codes);
        let (start, end) = (range.start as usize, range.end as usize);
        let of_prompt = prompt.iter().take(end).skip(start);
        let of_completion =
            completion.iter().take(end.saturating_sub(prompt.len())).skip(start.saturating_sub(prompt.len()));
        popularity.rows(of_prompt.chain(of_completion).copied(), end - start)
    }

    /// Whether the fault can be in this request and be told from everything else.
    pub(crate) fn fits(&self, fault: Fault) -> bool {
        let (Site::Pair { .. }, [choice]) = (self.site, &*self.choices) else { return false };
        let prompt = self.prompt.len();
        let usual = self.first_forward + 1 == prompt;
        if choice.text.len() < 4 || prompt < 4 {
            return false;
        }
        match fault {
            Fault::Recompute => choice.preempted_at.is_some(),
            _ if choice.preempted_at.is_some() => false,
            // A decode that computed everything itself needs no prefill.
            Fault::NoPrefill => self.first_forward > 0,
            Fault::Generation => self.prefix.is_some_and(|(_, blocks)| blocks > 0),
            Fault::Collapse => self.prefix.is_none() && usual && prompt >= 8,
            Fault::Shifted => {
                let codes = &self.prompt.codes;
                usual && codes[prompt as usize - 1] != codes[prompt as usize - 2]
            }
            _ => true,
        }
    }
}

/// Draws requests, each from its number alone.
#[derive(Debug)]
pub(crate) struct Requests {
    seed: u64,
    prefixes: Vec<Vec<u32>>,
    words: Words,
    /// When each topic is asked for most.
    phases: [f64; TOPICS],
}

impl Requests {
    pub(crate) fn new(random: &mut Pcg64) -> Self {
        let words = Words::new();
        let prefixes = (0..PREFIXES)
            .map(|_| {
                let tokens = random.random_range(2 * BLOCK..=LONGEST_PREFIX);
                (0..tokens).map(|_| words.draw(0, random)).collect()
            })
            .collect();
        let phases = std::array::from_fn(|_| random.random());
        Self { seed: random.random(), prefixes, words, phases }
    }

    /// The request of this number, counted from 0; without its fault.
    pub(crate) fn plan(&self, number: u64, options: &Options, popularity: &Popularity) -> Plan {
        let mut random = Pcg64::seed_from_u64(mix(self.seed ^ mix(number)));
        let chance = |random: &mut Pcg64, share: f64| random.random::<f64>() < share;
        let generation = match options.update_every {
            0 => 0,
            every => u32::try_from(number / every).unwrap_or(u32::MAX),
        };
        let site = site(options, &mut random);
        let topic = self.topic(number, options.surge, &mut random);

        let mut prompt = Text::new(generation);
        let short = chance(&mut random, WITH_ONE_TOKEN);
        let shared = (!short && chance(&mut random, WITH_PREFIX)).then(|| self.prefix(&mut random));
        for &token in shared.map_or(&[][..], |prefix| &self.prefixes[prefix]) {
            prompt.push(token, popularity);
        }
        let own = if short { 1 } else { length(options.prompt_tokens, 1.0, &mut random) };
        for _ in 0..own {
            prompt.push(self.words.draw(topic, &mut random), popularity);
        }
        let prefix = shared.map(|prefix| (prefix, self.prefixes[prefix].len() as u32 / BLOCK));

        let count = if chance(&mut random, WITH_CHOICES) { random.random_range(2..=4) } else { 1 };
        let choices = (0..count).map(|_| self.choice(options, topic, &prompt, popularity, &mut random)).collect();

        let id = uuid(&mut random);
        let two_ids = matches!(site, Site::Pair { .. }) && chance(&mut random, WITH_TWO_IDS);
        let prefill_id = if two_ids { uuid(&mut random) } else { id.clone() };
        let inner_id = format!("cmpl-{prefill_id}-0-{:08x}", random.random::<u32>());
        let last = prompt.len() - 1;
        let first_forward =
            if chance(&mut random, WITH_FAILED_LOAD) { random.random_range(0..=last) / BLOCK * BLOCK } else { last };
        Plan {
            id,
            prefill_id,
            inner_id: inner_id.into(),
            generation,
            site,
            prompt,
            prefix,
            first_forward,
            choices,
            fault: None,
            random,
        }
    }

    fn choice(
        &self,
        options: &Options,
        topic: usize,
        prompt: &Text,
        popularity: &Popularity,
        random: &mut Pcg64,
    ) -> Choice {
        let longest = options.completion_tokens.saturating_mul(TIMES_LONGER);
        let planned = match random.random::<f64>() < WITH_ONE_TOKEN {
            true => 1,
            false => length(options.completion_tokens, 0.9, random),
        };
        let (tokens, ending) = match random.random::<f64>() < ABORTED {
            true => (random.random_range(1..=planned), Ending::Abort),
            false if planned == longest => (planned, Ending::Length),
            false => (planned, Ending::Stop),
        };
        let mut text = prompt.followed();
        for _ in 0..tokens {
            text.push(self.words.draw(topic, random), popularity);
        }
        let preempted = random.random::<f64>() < PREEMPTED && tokens > 3 * BLOCK;
        let preempted_at = preempted.then(|| prompt.len() + random.random_range(BLOCK..tokens - BLOCK));
        Choice { text, ending, preempted_at }
    }

    /// Which shared prefix: the first ones are asked for most.
    fn prefix(&self, random: &mut Pcg64) -> usize {
        (random.random::<f64>().powi(2) * self.prefixes.len() as f64) as usize
    }

    /// What a request is about: some topics are asked for more than others, and which these are changes slowly.
    fn topic(&self, number: u64, surge: Option<u64>, random: &mut Pcg64) -> usize {
        let surged = surge.map_or(0.0, |whole| SURGE * (number as f64 / whole.max(1) as f64).min(1.0));
        let weight = |topic: usize| {
            let turn = number as f64 / (DRIFT * (1.0 + topic as f64 / 4.0)) + self.phases[topic];
            let asked = (1.0 + 0.9 * (turn * TAU).sin()) / (1.0 + topic as f64 / 2.0);
            if topic == SURGING { asked + surged } else { asked }
        };
        let weights: [f64; TOPICS] = std::array::from_fn(weight);
        let mut left = random.random::<f64>() * weights.iter().sum::<f64>();
        let found = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        found.unwrap_or(0)
    }
}

/// A length around the typical one, as lengths of real traffic are: most are short, some are very long.
fn length(typical: u32, spread: f64, random: &mut Pcg64) -> u32 {
    let normal: f64 = StandardNormal.sample(random);
    let length = f64::from(typical) * (spread * normal).exp();
    (length.round() as u32).clamp(1, typical.saturating_mul(TIMES_LONGER))
}

fn site(options: &Options, random: &mut Pcg64) -> Site {
    let (prefill, decode, colocated) = (options.prefill, options.decode, options.colocated);
    let chosen = random.random_range(0..decode + colocated);
    if chosen < decode {
        Site::Pair { prefill: random.random_range(0..prefill) as usize, decode: (prefill + chosen) as usize }
    } else {
        Site::Colocated((prefill + chosen) as usize)
    }
}

fn uuid(random: &mut Pcg64) -> Arc<str> {
    let bits: u128 = random.random();
    let hex = format!("{bits:032x}");
    format!("{}-{}-4{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..]).into()
}
