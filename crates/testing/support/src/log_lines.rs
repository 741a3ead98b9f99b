//! Captures log lines on a test's thread. A thread-local subscriber would miss lines, because `tracing`
//! caches the interest in a call site for the whole process, and another test's thread may disable it
//! first.

use std::cell::RefCell;
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

/// A log line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Severity.
    pub level: Level,
    /// The `tracing` target.
    pub target: &'static str,
    /// The message, without fields.
    pub message: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.level, self.message)
    }
}

thread_local! {
    static KEPT: RefCell<Vec<Weak<RefCell<Vec<Line>>>>> = const { RefCell::new(Vec::new()) };
}

/// Captures this thread's log lines while it exists.
#[derive(Debug)]
pub struct Lines(Rc<RefCell<Vec<Line>>>);

impl Lines {
    /// Starts capturing this thread's log lines.
    ///
    /// # Panics
    /// If another subscriber is installed.
    #[expect(clippy::new_without_default, reason = "it installs a subscriber")]
    pub fn new() -> Self {
        static FIRST: Once = Once::new();
        FIRST.call_once(|| {
            tracing::subscriber::set_global_default(Threads).expect("another log subscriber is installed");
            // Rebuilds interest that was cached during the installation.
            tracing::callsite::rebuild_interest_cache();
        });
        let lines = Rc::new(RefCell::new(Vec::new()));
        KEPT.with_borrow_mut(|kept| {
            kept.retain(|lines| lines.strong_count() > 0);
            kept.push(Rc::downgrade(&lines));
        });
        Self(lines)
    }

    /// Takes the captured lines of this target with at least this severity.
    pub fn take(&self, target: &str, level: Level) -> Vec<Line> {
        let mut lines = self.0.take();
        lines.retain(|line| line.target == target && line.level <= level);
        lines
    }
}

/// Dispatches each line to its thread.
struct Threads;

impl Subscriber for Threads {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && KEPT.with_borrow(|kept| kept.iter().any(|lines| lines.strong_count() > 0))
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message::default();
        event.record(&mut message);
        let line = Line {
            level: *event.metadata().level(),
            target: event.metadata().target(),
            message: message.0,
        };
        KEPT.with_borrow(|kept| {
            for lines in kept.iter().filter_map(Weak::upgrade) {
                lines.borrow_mut().push(line.clone());
            }
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_lines_of_own_thread() {
        tracing::warn!(target: "t", "before");
        let lines = Lines::new();
        std::thread::spawn(|| tracing::warn!(target: "t", "of another thread"))
            .join()
            .unwrap();
        for (target, number) in [("t", 1), ("other", 2)] {
            if target == "t" {
                tracing::warn!(target: "t", more = 1, "number {number}");
                tracing::info!(target: "t", "number {number}");
            } else {
                tracing::warn!(target: "other", "number {number}");
            }
        }
        let taken: Vec<String> = lines.take("t", Level::WARN).iter().map(Line::to_string).collect();
        assert_eq!(taken, ["WARN number 1"]);
        assert_eq!(lines.take("t", Level::TRACE), []);
    }
}
