//! How long to wait before the next connection.

use std::time::Duration;

/// Waits that double, each cut by up to a half at random so that agents do not come back all at once.
#[derive(Debug)]
pub(super) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    pub(super) fn new(first: Duration, most: Duration) -> Self {
        let first = first.max(Duration::from_millis(1));
        Self { first, most: most.max(first), next: first }
    }

    /// The next wait.
    pub(super) fn wait(&mut self) -> Duration {
        let wait = self.next.mul_f64(rand::random_range(0.5..=1.0));
        self.next = (self.next * 2).min(self.most);
        wait
    }

    /// Something went well.
    pub(super) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_begin_anew_after_success() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(500));
        for expected in [100u64, 200, 400, 500, 500] {
            let wait = backoff.wait();
            assert!((expected / 2..=expected).contains(&(wait.as_millis() as u64)), "{wait:?}, not about {expected}");
        }
        backoff.reset();
        assert!(backoff.wait() <= Duration::from_millis(100));
    }
}
