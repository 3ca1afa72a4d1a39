//! The end of the input: everything that is still open is closed.

use std::collections::BTreeSet;

use super::{close::Closing, error::ImportError, session::Session, summary::Stop};

impl Session<'_> {
    /// Closes what is still open, in the order in which it was first seen, until nothing waits for a commit.
    pub(super) fn close_all(&mut self) -> Result<(), ImportError> {
        let mut alone = false;
        loop {
            let (mut done, mut waiting) = (0, false);
            let mut close = |session: &mut Self, age: u64| -> Result<(), ImportError> {
                match session.close(age, None, alone)? {
                    Closing::Done => done += 1,
                    Closing::Waits => {
                        waiting = true;
                        session.put_aside(age);
                    }
                }
                Ok(())
            };
            let (mut next, end) = (0, self.components.aside());
            while let Some((lines, after)) = self.components.recall_next(next..end) {
                if self.is_interrupted() {
                    return Ok(());
                }
                next = after;
                let mut ages = BTreeSet::new();
                for line in &lines {
                    ages.extend(self.retell(line)?);
                }
                ages.into_iter().try_for_each(|age| close(self, age))?;
                self.observer.progressed(self.progress);
            }
            for age in self.components.ages() {
                if self.is_interrupted() {
                    return Ok(());
                }
                close(self, age)?;
            }
            self.commit()?;
            if !waiting {
                break;
            }
            // Requests that wait for each other are closed without.
            alone = done == 0;
        }
        self.judge_again()
    }

    /// Judges requests again whose all-zero layers have turned out to have a gate.
    fn judge_again(&mut self) -> Result<(), ImportError> {
        for doubt in self.models.take_misjudged() {
            if self.is_interrupted() {
                return Ok(());
            }
            let mut ages = BTreeSet::new();
            for line in &doubt.lines {
                ages.extend(self.retell(line)?);
            }
            for age in ages {
                if let Some(component) = self.components.get_mut(age) {
                    component.again = true;
                }
                self.close(age, None, true)?;
            }
        }
        self.commit()
    }

    fn is_interrupted(&mut self) -> bool {
        self.stops() && self.summary.stopped == Some(Stop::Interrupted)
    }
}
