//! When each agent was last heard.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Agents with a series of their own; later ones are `other`.
const MOST_AGENTS: usize = 1 << 10;
/// An agent that was silent for so long, in microseconds, has gone for good: a worker that was taken down is no alarm for ever.
const GONE_AFTER: i64 = 3_600_000_000;

/// When each agent was last heard, in UTC microseconds.
#[derive(Debug, Default)]
pub(super) struct LastSeen(Mutex<HashMap<Arc<str>, i64>>);

impl LastSeen {
    pub(super) fn saw(&self, agent: &Arc<str>, at: i64) {
        let mut agents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_one_more = agents.len() >= MOST_AGENTS && !agents.contains_key(agent);
        let agent = if is_one_more { super::names::OTHER.into() } else { Arc::clone(agent) };
        let last = agents.entry(agent).or_insert(at);
        *last = at.max(*last);
    }

    /// The agents that are not gone.
    pub(super) fn all(&self, now: i64) -> Vec<(Arc<str>, i64)> {
        let mut agents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        agents.retain(|_, at| now - *at < GONE_AFTER);
        agents.iter().map(|(agent, at)| (Arc::clone(agent), *at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_there_for_an_hour_after_it_was_last_heard() {
        let agents = LastSeen::default();
        agents.saw(&"p0".into(), 5);
        agents.saw(&"p0".into(), 3);

        assert_eq!(agents.all(GONE_AFTER), [("p0".into(), 5)]);
        assert_eq!(agents.all(GONE_AFTER + 5), []);
    }
}
