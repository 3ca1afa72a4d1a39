//! What the agent has to say goes to stderr, where engines log as well.

use std::{fmt::Write as _, fs::File, io::Write as _, os::fd::AsFd, sync::Once};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// Warnings of this project's own, a line each.
struct Lines {
    /// Not `std::io::stderr`: a fork while another thread has that locked would leave it locked in the child.
    stderr: File,
}

/// Begins to log, the first time.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Ok(stderr) = std::io::stderr().as_fd().try_clone_to_owned() else { return };
        // Where something else listens already, it hears of everything.
        let _ = tracing::subscriber::set_global_default(Lines { stderr: stderr.into() });
    });
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("gatescope")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("gatescope {}:", event.metadata().level()));
        event.record(&mut line);
        line.0.push('\n');
        // Where stderr is gone there is nobody to tell.
        let _ = (&self.stderr).write_all(line.0.as_bytes());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing into a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
