//! Turns `tracing` events into lines.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use arc_swap::ArcSwap;
use tracing::field::{Field as TracingField, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

use super::format::{Field, Value};
use super::{API_TARGETS, Level, Sink};

/// The subscriber of the whole process. Spans are not recorded: request tracing is [`crate::trace`]'s task.
pub(super) struct LogSubscriber {
    sink: Arc<ArcSwap<Sink>>,
}

impl LogSubscriber {
    pub(super) fn new(sink: Arc<ArcSwap<Sink>>) -> Self {
        Self { sink }
    }

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        if !metadata.is_event() {
            return false;
        }
        if API_TARGETS.contains(&metadata.target()) {
            return true;
        }
        let configured = self.sink.load().level();
        // Libraries talk about themselves at debug and info level: only their warnings concern the operator.
        let ours = ["dapr", "outrigger"]
            .iter()
            .any(|prefix| metadata.target().starts_with(prefix));
        let lowest = if ours {
            configured
        } else {
            configured.max(Level::Warn)
        };
        level_of(metadata).is_some_and(|level| level >= lowest)
    }
}

/// `trace` has no counterpart in the log format and is not written.
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
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.wants(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.wants(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        // Never below info: API lines are written at every configured level.
        Some(match self.sink.load().level() {
            Level::Debug => LevelFilter::DEBUG,
            _ => LevelFilter::INFO,
        })
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let Some(level) = level_of(metadata) else { return };
        let mut visitor = Visitor::default();
        event.record(&mut visitor);
        let Visitor { msg, fields } = visitor;
        let sink = self.sink.load();
        if API_TARGETS.contains(&metadata.target()) {
            let line = sink.line(Level::Info, metadata.target(), &msg, fields);
            super::push_api_line(&sink, &line);
        } else {
            let line = sink.line(level, metadata.target(), &msg, fields);
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
    fn push(&mut self, field: &TracingField, value: Value<'static>) {
        self.fields.push(Field::new(field.name(), value));
    }
}

impl Visit for Visitor {
    fn record_debug(&mut self, field: &TracingField, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Writing to a String fails only if the value's own formatter does.
            let _ = write!(self.msg, "{value:?}");
        } else {
            self.push(field, Value::Text(format!("{value:?}").into()));
        }
    }

    fn record_str(&mut self, field: &TracingField, value: &str) {
        if field.name() == "message" {
            self.msg.push_str(value);
        } else {
            self.push(field, Value::Text(value.to_owned().into()));
        }
    }

    fn record_i64(&mut self, field: &TracingField, value: i64) {
        self.push(field, Value::Plain(value.to_string()));
    }

    fn record_u64(&mut self, field: &TracingField, value: u64) {
        self.push(field, Value::Plain(value.to_string()));
    }

    fn record_bool(&mut self, field: &TracingField, value: bool) {
        self.push(field, Value::Plain(value.to_string()));
    }

    fn record_f64(&mut self, field: &TracingField, value: f64) {
        let text = value.to_string();
        // JSON has no NaN or infinity.
        self.push(
            field,
            if value.is_finite() {
                Value::Plain(text)
            } else {
                Value::Text(text.into())
            },
        );
    }

    fn record_error(&mut self, field: &TracingField, value: &(dyn std::error::Error + 'static)) {
        self.push(field, Value::Text(value.to_string().into()));
    }
}
