//! Spans of due timers and reminders.

use outrigger_runtime::call::Reply;
use outrigger_telemetry::trace::{Parent, Span, SpanKind, Status, Tracer};
use outrigger_wire::internals::v1::Reminder;

use super::ActorError;
use super::internal::is_reserved;

/// Starts a trace for a due timer or reminder. Internal actors have their own spans.
pub(super) fn due(tracer: &Tracer, reminder: &Reminder) -> Span {
    if is_reserved(&reminder.actor_type) {
        return Span::none();
    }
    named(
        tracer.start(SpanKind::Client, "", &Parent::default()),
        "actors",
        reminder,
    )
}

/// The span of one that another sidecar forwarded.
pub(super) fn passed_on(tracer: &Tracer, reminder: &Reminder, parent: &Parent) -> Span {
    if is_reserved(&reminder.actor_type) {
        return Span::none();
    }
    named(
        tracer.start(SpanKind::Server, "", parent),
        "CallActorReminder",
        reminder,
    )
}

fn named(mut span: Span, what: &str, reminder: &Reminder) -> Span {
    if span.is_recording() {
        let Reminder {
            actor_type,
            actor_id,
            name,
            is_timer,
            ..
        } = reminder;
        let place = if *is_timer { "timer" } else { "remind" };
        span.set_name(format!("{what}/{actor_type}/{place}/{name}"));
        span.set("rpc.service", "Dapr");
        span.set("dapr.actor", format!("{actor_type}.{actor_id}"));
        let path = format!("PUT /actors/{actor_type}/{actor_id}/method/{place}/{name}");
        span.set("dapr.api", path);
    }
    span
}

/// Records whether it reached its actor.
pub(super) fn note(span: &mut Span, sent: &Result<Reply, ActorError>) {
    if let Err(error) = sent {
        span.set_status(Status::Error(error.to_string()));
    }
}
