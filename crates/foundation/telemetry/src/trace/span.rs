//! A unit of work in a trace.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use http::HeaderMap;

use super::tracer::{Inner, inject_grpc, inject_grpc_bin, inject_http};
use super::{Parent, TraceContext, TraceState};

type Text = Cow<'static, str>;

/// The role of a span (values as in OTLP).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum SpanKind {
    /// Work inside the process.
    Internal = 1,
    /// Answering a call.
    Server = 2,
    /// Making a call.
    Client = 3,
    /// Sending a message.
    Producer = 4,
    /// Receiving a message.
    Consumer = 5,
}

/// How a span ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// No statement.
    #[default]
    Unset,
    /// Explicitly successful.
    Ok,
    /// Failed, with a description.
    Error(String),
}

/// A recorded span, as exporters see it.
#[derive(Clone, Debug)]
pub struct SpanData {
    /// Name of the span, as exported.
    pub name: Text,
    /// Instrumentation scope, `dapr-diagnostics` unless it is a workflow span.
    pub scope: &'static str,
    /// Role.
    pub kind: SpanKind,
    /// Own trace and span id.
    pub context: TraceContext,
    /// Trace state inherited from the caller.
    pub state: Option<TraceState>,
    /// Span id of the parent, when there is one.
    pub parent: Option<[u8; 8]>,
    /// Start time.
    pub start: SystemTime,
    /// End time.
    pub end: SystemTime,
    /// Attributes, each key once.
    pub attributes: Vec<(Text, Text)>,
    /// Attributes that are lists, each key once.
    pub lists: Vec<(Text, Vec<String>)>,
    /// What happened meanwhile, in order.
    pub events: Vec<SpanEvent>,
    /// Outcome.
    pub status: Status,
}

/// Something that happened during a span.
#[derive(Clone, Debug)]
pub struct SpanEvent {
    /// The name of the event.
    pub name: Text,
    /// When it happened, by the clock of this machine.
    pub time: SystemTime,
    /// Attributes, each key once.
    pub attributes: Vec<(Text, Text)>,
}

/// Events that a span keeps; more are dropped.
const MAX_EVENTS: usize = 128;
/// OpenTelemetry's attribute value length limit, here in bytes, and for names and descriptions too: methods, paths and
/// errors are as long as others make them, and finished spans wait for their exporter.
const MAX_TEXT: usize = 4 << 10;

/// A running span. Ends when dropped, or at [`Span::end`]. Only sampled spans record anything: every setter is a
/// no-op on the others.
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
    /// A span that records nothing and has no context.
    pub fn none() -> Self {
        Self {
            context: None,
            state: None,
            made_up: false,
            recording: None,
        }
    }

    /// A span that records nothing and passes the caller's context on.
    pub fn of(parent: Parent) -> Self {
        Self {
            context: parent.context,
            state: parent.state,
            made_up: parent.made_up,
            recording: None,
        }
    }

    /// The context to send to callees. `None` only when tracing makes no spans and the caller sent no context.
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

    /// Whether attributes are kept; skip computing them otherwise.
    pub fn is_recording(&self) -> bool {
        self.recording.is_some()
    }

    /// Replaces the name.
    pub fn set_name(&mut self, name: impl Into<Text>) {
        if let Some(data) = self.data_mut() {
            data.name = cut(name.into());
        }
    }

    /// Sets an attribute; an empty value is left out.
    pub fn set(&mut self, key: impl Into<Text>, value: impl Into<Text>) {
        self.put(key.into(), value.into(), true);
    }

    /// Sets an attribute unless the key is set already; an empty value is left out.
    pub fn set_default(&mut self, key: impl Into<Text>, value: impl Into<Text>) {
        self.put(key.into(), value.into(), false);
    }

    /// Sets an attribute that is a list, instead of what it was; an empty one is left out.
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

    /// Notes that something happened now.
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

    /// It began at another time than now.
    pub fn set_start(&mut self, start: SystemTime) {
        if let Some(data) = self.data_mut() {
            data.start = start;
        }
    }

    /// It goes on with a span that began in another process, or earlier in this one: the same id.
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

    /// Forgets what was recorded: the span goes on elsewhere.
    pub fn discard(mut self) {
        self.recording = None;
    }

    /// Puts `traceparent` and `tracestate` into HTTP headers, replacing what is there.
    pub fn inject_http(&self, headers: &mut HeaderMap) {
        inject_http(self.context, self.state.as_ref(), headers);
    }

    /// Puts `traceparent` and `grpc-trace-bin` into gRPC metadata, replacing what is there.
    pub fn inject_grpc(&self, headers: &mut HeaderMap) {
        inject_grpc(self.context, self.state.as_ref(), headers);
    }

    /// Puts `grpc-trace-bin` into gRPC metadata, replacing what is there: answers carry no more.
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

/// As much of a text as a span keeps.
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
