//! Converts `tracing` events to lines.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use arc_swap::ArcSwap;
use tracing::field::{Field as TracingField, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::format::Field;
use super::{API_TARGETS, Level, Sink};

/// The process-wide subscriber. It records no spans: [`crate::trace`] traces requests.
pub(super) struct LogSubscriber {
    pub(super) sink: Arc<ArcSwap<Sink>>,
}

/// `trace` has no counterpart in the log format and is dropped.
fn level_of(metadata: &Metadata<'_>) -> Option<Level> {
    match *metadata.level() {
        tracing::Level::ERROR => Some(Level::Error),
        tracing::Level::WARN => Some(Level::Warn),
        tracing::Level::INFO => Some(Level::Info),
        tracing::Level::DEBUG => Some(Level::Debug),
        _ => None,
    }
}

impl Subscriber for LogSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        if API_TARGETS.contains(&target) {
            return metadata.is_event();
        }
        let configured = self.sink.load().level;
        // Debug and info lines of libraries are dropped: only their warnings concern the operator.
        let ours = target.starts_with("dapr") || target.starts_with("outrigger");
        let lowest = if ours {
            configured
        } else {
            configured.max(Level::Warn)
        };
        metadata.is_event() && level_of(metadata).is_some_and(|level| level >= lowest)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        // At least info: API lines are logged at every configured level.
        Some(match self.sink.load().level {
            Level::Debug => LevelFilter::DEBUG,
            _ => LevelFilter::INFO,
        })
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let Some(level) = level_of(metadata) else { return };
        let mut visitor = Visitor::default();
        event.record(&mut visitor);
        let sink = self.sink.load();
        let line = sink
            .format
            .line(level, metadata.target(), &visitor.msg, visitor.fields);
        if API_TARGETS.contains(&metadata.target()) {
            sink.push_api_line(&line);
        } else {
            sink.output.push(&line);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Visitor {
    msg: String,
    fields: Vec<Field<'static>>,
}

impl Visitor {
    fn text(&mut self, field: &TracingField, value: String) {
        self.fields.push(Field::text(key(field), value));
    }

    fn plain(&mut self, field: &TracingField, value: impl fmt::Display) {
        self.fields.push(Field::plain(key(field), value));
    }
}

/// logrus renames fields that collide with its three standard fields.
fn key(field: &TracingField) -> &'static str {
    match field.name() {
        "time" => "fields.time",
        "level" => "fields.level",
        "msg" => "fields.msg",
        name => name,
    }
}

impl Visit for Visitor {
    fn record_debug(&mut self, field: &TracingField, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Fails only if the value's own formatter fails.
            let _ = write!(self.msg, "{value:?}");
        } else {
            self.text(field, format!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &TracingField, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_i64(&mut self, field: &TracingField, value: i64) {
        self.plain(field, value);
    }

    fn record_u64(&mut self, field: &TracingField, value: u64) {
        self.plain(field, value);
    }

    fn record_bool(&mut self, field: &TracingField, value: bool) {
        self.plain(field, value);
    }

    fn record_f64(&mut self, field: &TracingField, value: f64) {
        // JSON has no NaN or infinity.
        if value.is_finite() {
            self.plain(field, value);
        } else {
            self.text(field, value.to_string());
        }
    }
}
