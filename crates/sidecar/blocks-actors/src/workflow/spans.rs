//! Spans of workflows. An execution has one span in all its steps and on all sidecars: its id is in the
//! history. The last step exports it.

use std::ops::{Deref, DerefMut};
use std::time::SystemTime;

use outrigger_telemetry::trace::{Parent, Span, SpanKind, Status, Tracer};
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    ActivityRequest, ActivityResponse, ExecutionStartedEvent, HistoryEvent, OrchestrationStatus,
    TraceContext, WorkflowResponse,
};
use outrigger_workflow::event::Awaited;
use outrigger_workflow::facts::Facts;
use outrigger_workflow::{Instance, Outcome, Step};
use prost_types::Timestamp;

pub(crate) const SCOPE: &str = "durabletask";

/// A span exported only by [`PendingSpan::end`]: interrupted work is repeated.
pub(crate) struct PendingSpan(Span);

impl PendingSpan {
    /// Exports the span.
    pub(crate) fn end(mut self) {
        std::mem::replace(&mut self.0, Span::none()).end();
    }
}

impl Deref for PendingSpan {
    type Target = Span;

    fn deref(&self) -> &Span {
        &self.0
    }
}

impl DerefMut for PendingSpan {
    fn deref_mut(&mut self) -> &mut Span {
        &mut self.0
    }
}

impl Drop for PendingSpan {
    fn drop(&mut self) {
        std::mem::replace(&mut self.0, Span::none()).discard();
    }
}

pub(crate) fn span_name(what: &str, name: &str, version: &str) -> String {
    match version {
        "" => format!("{what}||{name}"),
        version => format!("{what}||{name}||{version}"),
    }
}

/// A span's context as stored in histories.
pub(crate) fn trace_context(span: &Span) -> Option<TraceContext> {
    // Unsampled spans are not stored.
    let context = span.context().filter(|context| context.is_sampled())?;
    Some(TraceContext {
        trace_parent: context.traceparent().as_str().to_owned(),
        span_id: context.span_id_hex(),
        trace_state: span.state().map(|state| state.as_str().to_owned()),
    })
}

/// The root of a new trace, sampled.
pub(crate) fn new_trace() -> TraceContext {
    let (trace, span): (u128, u64) = rand::random();
    let span_id = format!("{:016x}", span.max(1));
    TraceContext {
        trace_parent: format!("00-{:032x}-{span_id}-01", trace.max(1)),
        span_id,
        trace_state: None,
    }
}

/// The parent named by a trace context.
pub fn parent_of(context: Option<&TraceContext>) -> Parent {
    context.map_or_else(Parent::default, |context| {
        let state = context.trace_state.as_deref().unwrap_or_default();
        let TraceContext {
            trace_parent,
            span_id,
            ..
        } = context;
        if trace_parent.split('-').count() == 4 {
            return Parent::from_text(trace_parent, state);
        }
        // The Go SDK sends the ids of sampled spans separately.
        Parent::from_text(&format!("00-{trace_parent}-{span_id}-01"), state)
    })
}

/// The span of a step's execution; none if unsampled.
pub(crate) fn step_span(tracer: &Tracer, id: &str, step: &mut Step) -> PendingSpan {
    let Some((start, at)) = started(step.facts()) else {
        return PendingSpan(Span::none());
    };
    let parent = parent_of(start.parent_trace_context.as_ref());
    if !parent.context.is_some_and(|context| context.is_sampled()) {
        return PendingSpan(Span::none());
    }
    let version = start.version.as_deref().unwrap_or_default();
    let name = span_name("orchestration", &start.name, version);
    let mut span = tracer.start_scoped(SCOPE, SpanKind::Server, &name, &parent);
    span.set("durabletask.type", "orchestration");
    span.set("durabletask.task.name", start.name.clone());
    span.set("durabletask.task.instance_id", id.to_owned());
    span.set("durabletask.task.version", version.to_owned());
    if let Some(at) = at.and_then(|at| SystemTime::try_from(at).ok()) {
        span.set_start(at);
    }
    let known = start.workflow_span_id.as_deref().and_then(span_id);
    if let Some(known) = known.filter(|_| !step.begins_execution()) {
        span.set_id(known);
    } else if let Some(context) = span.context() {
        step.set_span(&context.span_id_hex());
    }
    for event in step.events() {
        note(&mut span, event);
    }
    PendingSpan(span)
}

fn started(facts: &Facts) -> Option<(ExecutionStartedEvent, Option<Timestamp>)> {
    let started = facts.started.as_ref()?;
    Some((started.event.clone(), started.at))
}

fn span_id(hex: &str) -> Option<[u8; 8]> {
    let id = u64::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 16)?;
    Some(id.to_be_bytes())
}

/// Records an external event on the span.
fn note(span: &mut Span, event: &HistoryEvent) {
    if !span.is_recording() {
        return;
    }
    let reason = |input: &Option<String>| vec![("reason".into(), input.clone().unwrap_or_default().into())];
    match &event.event_type {
        Some(EventType::EventRaised(raised)) => {
            let size = raised.input.as_ref().map_or(0, String::len);
            let attributes = vec![
                ("name".into(), raised.name.clone().into()),
                ("size".into(), size.to_string().into()),
            ];
            span.event("Received external event", attributes);
        }
        Some(EventType::ExecutionSuspended(suspended)) => {
            span.event("Execution suspended", reason(&suspended.input));
        }
        Some(EventType::ExecutionResumed(resumed)) => {
            span.event("Execution resumed", reason(&resumed.input));
        }
        _ => {}
    }
}

/// Records the workflow's patches.
pub(crate) fn patches(span: &mut Span, response: &WorkflowResponse) {
    if let Some(version) = &response.version {
        span.set_list("applied_patches", &version.patches);
    }
}

/// Records the outcome of a step; returns whether the execution, and so its span, has ended.
pub(crate) fn record(span: &mut Span, outcome: &Outcome) -> bool {
    if let Some(stalled) = &outcome.stalled {
        let why = stalled.description.clone().unwrap_or_default();
        let attributes = vec![
            ("reason".into(), stalled.reason().as_str_name().into()),
            ("description".into(), why.into()),
        ];
        span.event("Execution stalled", attributes);
        return false;
    }
    let Some(completed) = &outcome.facts().completed else {
        return false;
    };
    span.set("durabletask.runtime_status", shown(completed.status()));
    if let Some(failure) = &completed.event.failure_details {
        span.set_status(Status::Error(failure.error_message.clone()));
    }
    true
}

/// Ends the span of an execution that continued as new.
pub(crate) fn end_continued(mut span: PendingSpan) {
    span.set(
        "durabletask.runtime_status",
        shown(OrchestrationStatus::ContinuedAsNew),
    );
    span.end();
}

fn shown(status: OrchestrationStatus) -> &'static str {
    status.as_str_name().trim_start_matches("ORCHESTRATION_STATUS_")
}

/// Spans of the timers that fired with a step: from their creation until now.
pub(crate) fn timers(tracer: &Tracer, execution: &Span, instance: &Instance, step: &Step) {
    if !execution.is_recording() {
        return;
    }
    for event in step.events() {
        let Some(EventType::TimerFired(fired)) = &event.event_type else {
            continue;
        };
        let mut span = tracer.start_scoped(SCOPE, SpanKind::Internal, "timer", &execution.as_parent());
        span.set("durabletask.type", "timer");
        span.set("durabletask.task.task_id", fired.timer_id.to_string());
        span.set("durabletask.task.instance_id", instance.id.clone());
        if let Some(at) = fired
            .fire_at
            .and_then(|at| jiff::Timestamp::new(at.seconds, at.nanos).ok())
        {
            span.set("durabletask.fire_at", at.to_string());
        }
        let created = instance.facts().opened(Awaited::Timer, fired.timer_id);
        let created = created.and_then(|created| created.since);
        if let Some(at) = created.and_then(|at| SystemTime::try_from(at).ok()) {
            span.set_start(at);
        }
    }
}

/// The span of an activity run, and the context for the worker's spans.
pub(crate) fn activity_span(
    tracer: &Tracer,
    request: &ActivityRequest,
    parent_context: Option<TraceContext>,
) -> (PendingSpan, Option<TraceContext>) {
    let parent = parent_of(parent_context.as_ref());
    if !parent.context.is_some_and(|context| context.is_sampled()) {
        return (PendingSpan(Span::none()), parent_context);
    }
    let version = request.version.clone().unwrap_or_default();
    let name = span_name("activity", &request.name, &version);
    let mut span = tracer.start_scoped(SCOPE, SpanKind::Server, &name, &parent);
    let instance = request.workflow_instance.as_ref();
    span.set("durabletask.type", "activity");
    span.set("durabletask.task.name", request.name.clone());
    span.set("durabletask.task.task_id", request.task_id.to_string());
    span.set(
        "durabletask.task.instance_id",
        instance.map_or_else(String::new, |instance| instance.instance_id.clone()),
    );
    span.set("durabletask.task.version", version);
    let context = trace_context(&span);
    (PendingSpan(span), context)
}

/// Ends the span of an answered activity.
pub(crate) fn end_activity(mut span: PendingSpan, response: &ActivityResponse) {
    if let Some(failure) = &response.failure_details {
        span.set_status(Status::Error(failure.error_message.clone()));
    }
    span.end();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_ids_have_sixteen_digits() {
        assert_eq!(
            span_id("00f067aa0ba902b7"),
            Some([0, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7])
        );
        assert_eq!(span_id("f067aa0ba902b7"), None);
        assert_eq!(span_id("00f067aa0ba902bx"), None);
    }

    #[test]
    fn parses_both_trace_context_forms() {
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let of = |trace_parent: String, span_id: &str| {
            let context = TraceContext {
                trace_parent,
                span_id: span_id.to_owned(),
                trace_state: None,
            };
            parent_of(Some(&context)).context
        };
        let whole = of(format!("00-{trace}-{span}-01"), "");
        assert!(whole.is_some_and(|context| context.is_sampled()));
        assert_eq!(of(trace.to_owned(), span), whole);
        assert_eq!(of(String::new(), ""), None);
        let new = parent_of(Some(&new_trace())).context;
        assert!(new.is_some_and(|context| context.is_sampled()));
    }
}
