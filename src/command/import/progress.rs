//! What a person sees while an import runs, on stderr.

use std::{collections::HashMap, io::IsTerminal, sync::Arc};

use gatescope_collector::import::{Input, Observer, Progress, Refusal};
use indicatif::{ProgressBar, ProgressStyle};

/// Refusals printed in full for each input.
const PRINTED: u64 = 100;
const TEMPLATE: &str = "{bytes} of {total_bytes} {bar:30} {binary_bytes_per_sec}, {eta} left, {msg}";
const TEMPLATE_WITHOUT_END: &str = "{spinner} {bytes}, {binary_bytes_per_sec}, {msg}";

/// Prints refusals, and a progress bar where stderr is a terminal.
pub(super) struct Console {
    bar: Option<ProgressBar>,
    refused: HashMap<Arc<str>, u64>,
}

impl Console {
    pub(super) fn new(inputs: &[Input], quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| bar(inputs));
        Self { bar, refused: HashMap::new() }
    }

    /// Takes the bar away and says how many refusals were not printed.
    pub(super) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
        let mut more: Vec<(Arc<str>, u64)> = self
            .refused
            .into_iter()
            .filter(|(_, count)| *count > PRINTED)
            .map(|(name, count)| (name, count - PRINTED))
            .collect();
        more.sort();
        for (name, count) in more {
            eprintln!("{name}: {count} more could not be used");
        }
    }
}

fn bar(inputs: &[Input]) -> ProgressBar {
    let total: Option<u64> = inputs.iter().map(|input| input.size().or((*input != Input::Stdin).then_some(0))).sum();
    let (bar, template) = match total {
        Some(total) => (ProgressBar::new(total), TEMPLATE),
        None => (ProgressBar::new_spinner(), TEMPLATE_WITHOUT_END),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

impl Observer for Console {
    fn progressed(&mut self, progress: Progress) {
        if let Some(bar) = &self.bar {
            bar.set_position(progress.bytes);
            bar.set_message(super::report::count(progress.requests, "request"));
        }
    }

    fn refused(&mut self, refusal: &Refusal) {
        let count = self.refused.entry(Arc::clone(&refusal.input)).or_default();
        *count += 1;
        if *count > PRINTED {
            return;
        }
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{refusal}")),
            None => eprintln!("{refusal}"),
        }
    }
}
