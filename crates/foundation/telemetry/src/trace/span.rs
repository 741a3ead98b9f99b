//! A unit of work in a trace.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use http::HeaderMap;

use super::tracer::{Inner, inject_grpc, inject_grpc_bin, inject_http};
use super::{Parent, TraceContext, TraceState};

type Text = Cow<'static, str>;

/// The role of a span (OTLP values).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum SpanKind {
    /// Work inside the process.
    Internal = 1,
    /// Handling a call.
    Server = 2,
    /// Making a call.
    Client = 3,
    /// Sending a message.
    Producer = 4,
    /// Receiving a message.
    Consumer = 5,
}

/// Outcome of a span.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// Not set.
    #[default]
    Unset,
    /// Explicitly successful.
    Ok,
    /// Failed, with a description.
    Error(String),
}

/// A finished span for exporters.
#[derive(Clone, Debug)]
pub struct SpanData {
    /// Name of the span, as exported.
    pub name: Text,
    /// Instrumentation scope, `dapr-diagnostics` unless it is a workflow span.
    pub scope: &'static str,
    /// Role.
    pub kind: SpanKind,
    /// The span's trace and span ID.
    pub context: TraceContext,
    /// Trace state inherited from the caller.
    pub state: Option<TraceState>,
    /// Span ID of the parent, if any.
    pub parent: Option<[u8; 8]>,
    /// Start time.
    pub start: SystemTime,
    /// End time.
    pub end: SystemTime,
    /// Attributes with unique keys.
    pub attributes: Vec<(Text, Text)>,
    /// List attributes with unique keys.
    pub lists: Vec<(Text, Vec<String>)>,
    /// Events during the span, in order.
    pub events: Vec<SpanEvent>,
    /// Outcome.
    pub status: Status,
}

/// An event during a span.
#[derive(Clone, Debug)]
pub struct SpanEvent {
    /// The name of the event.
    pub name: Text,
    /// Time of the event by the local clock.
    pub time: SystemTime,
    /// Attributes with unique keys.
    pub attributes: Vec<(Text, Text)>,
}

/// Maximum events of a span; more are dropped.
const MAX_EVENTS: usize = 128;
/// OpenTelemetry's attribute value length limit, in bytes. Applies to names and descriptions too, because
/// callers choose methods, paths and errors, and finished spans are queued.
const MAX_TEXT: usize = 4 << 10;

/// A running span. Ends when dropped, or at [`Span::end`]. Only sampled spans record: on others every
/// setter is a no-op.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct Span {
    pub(super) context: Option<TraceContext>,
    pub(super) state: Option<TraceState>,
    pub(super) made_up: bool,
    pub(super) recording: Option<Box<Recording>>,
}

#[derive(Debug)]
pub(super) struct Recording {
    pub(super) data: SpanData,
    pub(super) tracer: Arc<Inner>,
}

impl Span {
    /// A span without a context that records nothing.
    pub fn none() -> Self {
        Self {
            context: None,
            state: None,
            made_up: false,
            recording: None,
        }
    }

    /// A span that records nothing and passes on the caller's context.
    pub fn of(parent: Parent) -> Self {
        Self {
            context: parent.context,
            state: parent.state,
            made_up: parent.made_up,
            recording: None,
        }
    }

    /// The context to send to callees. `None` only if tracing is off and the caller sent none.
    pub fn context(&self) -> Option<TraceContext> {
        self.context
    }

    /// The trace state to send to callees.
    pub fn state(&self) -> Option<&TraceState> {
        self.state.as_ref()
    }

    /// This span as the parent of another.
    pub fn as_parent(&self) -> Parent {
        Parent {
            context: self.context,
            state: self.state.clone(),
            made_up: self.made_up,
        }
    }

    /// Whether attributes are recorded; otherwise skip computing them.
    pub fn is_recording(&self) -> bool {
        self.recording.is_some()
    }

    /// Replaces the name.
    pub fn set_name(&mut self, name: impl Into<Text>) {
        if let Some(data) = self.data_mut() {
            data.name = cut(name.into());
        }
    }

    /// Sets an attribute; an empty value is omitted.
    pub fn set(&mut self, key: impl Into<Text>, value: impl Into<Text>) {
        self.put(key.into(), value.into(), true);
    }

    /// Sets an attribute unless the key is already set; an empty value is omitted.
    pub fn set_default(&mut self, key: impl Into<Text>, value: impl Into<Text>) {
        self.put(key.into(), value.into(), false);
    }

    /// Sets or replaces a list attribute; an empty list is omitted.
    pub fn set_list(&mut self, key: impl Into<Text>, values: &[String]) {
        let Some(data) = self.data_mut() else { return };
        if values.is_empty() {
            return;
        }
        let key = key.into();
        data.lists.retain(|(known, _)| *known != key);
        data.lists.push((key, values.to_vec()));
    }

    /// Sets the outcome.
    pub fn set_status(&mut self, status: Status) {
        if let Some(data) = self.data_mut() {
            data.status = match status {
                Status::Error(text) => Status::Error(cut(text.into()).into_owned()),
                other => other,
            };
        }
    }

    /// Records an event at the current time.
    pub fn event(&mut self, name: impl Into<Text>, attributes: Vec<(Text, Text)>) {
        if let Some(data) = self.data_mut().filter(|data| data.events.len() < MAX_EVENTS) {
            let attributes = attributes.into_iter().map(|(key, value)| (cut(key), cut(value)));
            data.events.push(SpanEvent {
                name: cut(name.into()),
                time: SystemTime::now(),
                attributes: attributes.collect(),
            });
        }
    }

    /// Sets the start time.
    pub fn set_start(&mut self, start: SystemTime) {
        if let Some(data) = self.data_mut() {
            data.start = start;
        }
    }

    /// Sets the span ID, to continue a span that started earlier or in another process.
    pub fn set_id(&mut self, id: [u8; 8]) {
        if let Some(context) = &mut self.context {
            context.span_id = id;
        }
        if let Some(data) = self.data_mut() {
            data.context.span_id = id;
        }
    }

    /// Ends the span now.
    pub fn end(self) {}

    /// Discards the recording, because the span continues elsewhere.
    pub fn discard(mut self) {
        self.recording = None;
    }

    /// Sets `traceparent` and `tracestate` in HTTP headers.
    pub fn inject_http(&self, headers: &mut HeaderMap) {
        inject_http(self.context, self.state.as_ref(), headers);
    }

    /// Sets `traceparent` and `grpc-trace-bin` in gRPC metadata.
    pub fn inject_grpc(&self, headers: &mut HeaderMap) {
        inject_grpc(self.context, self.state.as_ref(), headers);
    }

    /// Sets only `grpc-trace-bin` in gRPC metadata, as responses do.
    pub fn inject_grpc_bin(&self, headers: &mut HeaderMap) {
        inject_grpc_bin(self.context, headers);
    }

    pub(super) fn data_mut(&mut self) -> Option<&mut SpanData> {
        self.recording.as_deref_mut().map(|recording| &mut recording.data)
    }

    fn put(&mut self, key: Text, value: Text, replace: bool) {
        let Some(data) = self.data_mut() else { return };
        if value.is_empty() {
            return;
        }
        let (key, value) = (cut(key), cut(value));
        match data.attributes.iter_mut().find(|(k, _)| *k == key) {
            Some(slot) if replace => slot.1 = value,
            Some(_) => {}
            None => data.attributes.push((key, value)),
        }
    }
}

/// Truncates a text to the span limit.
pub(super) fn cut(text: Text) -> Text {
    if text.len() <= MAX_TEXT {
        return text;
    }
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned().into()
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(recording) = self.recording.take() {
            let Recording { mut data, tracer } = *recording;
            data.end = SystemTime::now();
            tracer.finish(data);
        }
    }
}
