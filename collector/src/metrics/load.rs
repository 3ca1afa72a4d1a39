//! The load of experts per layer over the last minutes, from what commits have stored.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use gatescope_routing::{Role, balance::Balance};

use super::names::OTHER;
use crate::tables::SourceLoad;

/// Load older than this is forgotten.
pub(super) const WINDOW: Duration = Duration::from_secs(300);
/// Increments of this time are forgotten together.
const STEP: Duration = Duration::from_secs(30);
/// Sources (run, model, role, instance) with series of their own.
const MOST_SOURCES: usize = 64;
/// Instances whose number of experts is remembered.
const MOST_MODELS: usize = 1 << 12;

/// Who computed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Source {
    pub(super) run: Arc<str>,
    pub(super) model: Arc<str>,
    pub(super) instance: Arc<str>,
    pub(super) role: Role,
}

/// `[layers][experts]`
type Tokens = Vec<Vec<u64>>;

/// A layer of a source, and its load.
#[derive(Debug, Clone)]
pub(super) struct Figure {
    pub(super) source: Arc<Source>,
    pub(super) layer: usize,
    pub(super) load: Balance,
}

/// The load of the last [`WINDOW`]. It is summed up when a commit is done, not when somebody looks.
#[derive(Debug, Default)]
pub(super) struct LoadWindow(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    steps: VecDeque<(Instant, HashMap<Source, Tokens>)>,
    total: BTreeMap<Source, Tokens>,
    experts: HashMap<(Arc<str>, Arc<str>), usize>,
    figures: Vec<Figure>,
}

impl LoadWindow {
    /// An instance of a run said how many experts its model has.
    pub(super) fn experts(&self, run: &Arc<str>, instance: &Arc<str>, experts: u32) {
        let mut state = self.state();
        let key = (Arc::clone(run), Arc::clone(instance));
        if state.experts.len() < MOST_MODELS || state.experts.contains_key(&key) {
            state.experts.insert(key, experts as usize);
        }
    }

    /// A commit stored this.
    pub(super) fn add(&self, loads: Vec<SourceLoad>, now: Instant) {
        let mut state = self.state();
        if state.steps.back().is_none_or(|(begun, _)| now.duration_since(*begun) >= STEP) {
            state.steps.push_back((now, HashMap::new()));
        }
        for load in loads {
            let source = Source { run: load.run, model: load.model, instance: load.instance, role: load.role };
            let source = state.bounded(source);
            sum(state.total.entry(source.clone()).or_default(), &load.layers);
            if let Some((_, step)) = state.steps.back_mut() {
                sum(step.entry(source).or_default(), &load.layers);
            }
        }
        state.forget(now);
        state.look();
    }

    /// The load of every layer that had a token.
    pub(super) fn figures(&self, now: Instant) -> Vec<Figure> {
        let mut state = self.state();
        if state.forget(now) {
            state.look();
        }
        state.figures.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn bounded(&self, source: Source) -> Source {
        if self.total.contains_key(&source) || self.total.len() < MOST_SOURCES {
            return source;
        }
        Source { run: OTHER.into(), model: OTHER.into(), instance: OTHER.into(), role: source.role }
    }

    /// Says whether anything was forgotten.
    fn forget(&mut self, now: Instant) -> bool {
        let mut forgot = false;
        while self.steps.front().is_some_and(|(begun, _)| now.duration_since(*begun) > WINDOW) {
            let Some((_, step)) = self.steps.pop_front() else { break };
            forgot = true;
            for (source, tokens) in step {
                let Some(total) = self.total.get_mut(&source) else { continue };
                for (total, tokens) in total.iter_mut().zip(&tokens) {
                    total.iter_mut().zip(tokens).for_each(|(total, tokens)| *total -= tokens);
                }
            }
        }
        if forgot {
            self.total.retain(|_, tokens| tokens.iter().flatten().any(|&tokens| tokens > 0));
        }
        forgot
    }

    fn look(&mut self) {
        let mut figures = Vec::new();
        for (source, layers) in &self.total {
            let said = self.experts.get(&(Arc::clone(&source.run), Arc::clone(&source.instance))).copied();
            let highest =
                |tokens: &Vec<u64>| tokens.iter().rposition(|&tokens| tokens > 0).map_or(0, |expert| expert + 1);
            // Nobody said: the highest expert that any layer chose is the last.
            let seen = layers.iter().map(highest).max().unwrap_or(0);
            let experts = said.unwrap_or(0).max(seen);
            let source = Arc::new(source.clone());
            for (layer, tokens) in layers.iter().enumerate() {
                let mut tokens = tokens.clone();
                tokens.resize(experts, 0);
                if let Some(load) = Balance::of(&tokens) {
                    figures.push(Figure { source: Arc::clone(&source), layer, load });
                }
            }
        }
        self.figures = figures;
    }
}

fn sum(total: &mut Tokens, layers: &[Vec<i64>]) {
    if total.len() < layers.len() {
        total.resize_with(layers.len(), Vec::new);
    }
    for (total, tokens) in total.iter_mut().zip(layers) {
        if total.len() < tokens.len() {
            total.resize(tokens.len(), 0);
        }
        total.iter_mut().zip(tokens).for_each(|(total, &tokens)| *total += tokens.max(0) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(instance: &str, layers: Vec<Vec<i64>>) -> SourceLoad {
        SourceLoad { run: "r".into(), model: "m".into(), instance: instance.into(), role: Role::Decode, layers }
    }

    #[test]
    fn commits_add_up_and_are_forgotten_after_the_window() {
        // given
        let (window, begun) = (LoadWindow::default(), Instant::now());
        window.experts(&"r".into(), &"d0".into(), 4);
        window.add(vec![load("d0", vec![vec![], vec![8, 0]])], begun);

        // when
        window.add(vec![load("d0", vec![vec![], vec![0, 8]])], begun + Duration::from_secs(60));

        // then
        let both = window.figures(begun + Duration::from_secs(61));
        assert_eq!((both.len(), both[0].layer, both[0].load.dead, both[0].load.max_over_mean), (1, 1, 2, 2.0));
        let later = window.figures(begun + WINDOW + Duration::from_secs(1));
        assert_eq!((later[0].load.dead, later[0].load.max_over_mean), (3, 4.0));
        assert!(window.figures(begun + WINDOW * 2).is_empty());
    }

    #[test]
    fn where_nobody_said_how_many_experts_there_are_the_highest_seen_is_the_last() {
        let window = LoadWindow::default();

        window.add(vec![load("d0", vec![vec![1, 0, 0, 0], vec![0, 0, 1, 0]])], Instant::now());

        let dead: Vec<usize> = window.figures(Instant::now()).iter().map(|figure| figure.load.dead).collect();
        assert_eq!(dead, [2, 2]);
    }

    #[test]
    fn sources_above_the_bound_are_one() {
        let window = LoadWindow::default();
        let loads = (0..100).map(|at| load(&format!("d{at}"), vec![vec![1]])).collect();

        window.add(loads, Instant::now());

        let figures = window.figures(Instant::now());
        assert_eq!(figures.len(), MOST_SOURCES + 1);
        assert_eq!(figures.iter().filter(|figure| &*figure.source.instance == OTHER).count(), 1);
    }
}
