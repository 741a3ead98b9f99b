//! Starts spans and propagates contexts.

use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::{HeaderMap, HeaderValue};

use super::span::{Recording, cut};
use super::{
    GRPC_TRACE_BIN, Sampler, Span, SpanData, SpanKind, SpanQueue, Status, TRACEPARENT, TRACESTATE,
    TraceContext, TraceState,
};

/// Scope name of all spans but workflow ones.
const SCOPE: &str = "dapr-diagnostics";

/// The trace context of a request: its caller's, if valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parent {
    /// Context of the caller's span.
    pub context: Option<TraceContext>,
    /// Trace state of the caller; meaningful only with a context.
    pub state: Option<TraceState>,
    /// The context was generated here because no caller traces; it only correlates logs.
    pub made_up: bool,
}

impl Parent {
    /// Removes a generated context.
    #[must_use]
    pub fn without_made_up(self) -> Self {
        if self.made_up { Self::default() } else { self }
    }

    /// The context for an event delivered to an app: all zeros if generated, as in Dapr.
    #[must_use]
    pub fn of_event(self) -> Self {
        if self.made_up {
            Self::from(TraceContext::ZERO)
        } else {
            self
        }
    }

    /// Reads `traceparent` and `tracestate` of an HTTP request.
    pub fn from_http(headers: &HeaderMap) -> Self {
        let context = headers.get(TRACEPARENT).and_then(TraceContext::from_header);
        let state = context.and_then(|_| TraceState::from_headers(headers));
        Self {
            context,
            state,
            made_up: false,
        }
    }

    /// Reads gRPC metadata: `grpc-trace-bin`, otherwise `traceparent`, with `tracestate`.
    pub fn from_grpc(headers: &HeaderMap) -> Self {
        match headers.get(GRPC_TRACE_BIN).and_then(decode_bin) {
            Some(context) => Self {
                context: Some(context),
                state: TraceState::from_headers(headers),
                made_up: false,
            },
            None => Self::from_http(headers),
        }
    }

    /// Reads the text fields of a CloudEvent.
    pub fn from_text(traceparent: &str, tracestate: &str) -> Self {
        let context = TraceContext::parse_traceparent(traceparent);
        Self {
            context,
            state: context.and_then(|_| TraceState::parse(tracestate)),
            made_up: false,
        }
    }

    /// Sets `traceparent` and `tracestate` in HTTP headers.
    pub fn inject_http(&self, headers: &mut HeaderMap) {
        inject_http(self.context, self.state.as_ref(), headers);
    }

    /// Sets `traceparent`, `tracestate` and `grpc-trace-bin` in gRPC metadata.
    pub fn inject_grpc(&self, headers: &mut HeaderMap) {
        inject_grpc(self.context, self.state.as_ref(), headers);
    }
}

impl From<TraceContext> for Parent {
    fn from(context: TraceContext) -> Self {
        Self {
            context: Some(context),
            ..Self::default()
        }
    }
}

/// `-bin` metadata is base64, with or without padding.
fn decode_bin(value: &HeaderValue) -> Option<TraceContext> {
    let bytes = value.as_bytes();
    if bytes.len() > 64 {
        return None;
    }
    let text = bytes
        .strip_suffix(b"==")
        .or_else(|| bytes.strip_suffix(b"="))
        .unwrap_or(bytes);
    TraceContext::from_grpc_trace_bin(&STANDARD_NO_PAD.decode(text).ok()?)
}

pub(super) fn inject_http(
    context: Option<TraceContext>,
    state: Option<&TraceState>,
    headers: &mut HeaderMap,
) {
    let Some(context) = context else { return };
    headers.insert(TRACEPARENT, context.traceparent().to_header());
    if let Some(state) = state {
        headers.insert(TRACESTATE, state.to_header());
    }
}

pub(super) fn inject_grpc(
    context: Option<TraceContext>,
    state: Option<&TraceState>,
    headers: &mut HeaderMap,
) {
    inject_http(context, state, headers);
    inject_grpc_bin(context, headers);
}

pub(super) fn inject_grpc_bin(context: Option<TraceContext>, headers: &mut HeaderMap) {
    let Some(context) = context else { return };
    headers.insert(GRPC_TRACE_BIN, context.grpc_trace_bin_header());
}

/// Tracing mode.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    /// `samplingRate: 0`: no tracing.
    Off,
    /// No exporter and no rate: contexts pass through unchanged, or are generated unsampled.
    PassThrough,
    Sampling(Sampler),
}

/// Starts spans. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tracer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    mode: Mode,
    queues: Vec<Arc<SpanQueue>>,
}

impl Inner {
    pub(super) fn finish(&self, data: SpanData) {
        match self.queues.as_slice() {
            [] => {}
            [queue] => queue.push(Arc::new(data)),
            queues => {
                let data = Arc::new(data);
                queues.iter().for_each(|queue| queue.push(data.clone()));
            }
        }
    }
}

impl Tracer {
    /// Tracing switched off: no trace or baggage handling.
    pub fn off() -> Self {
        Self::with_mode(Mode::Off, Vec::new())
    }

    /// No spans; contexts of callers pass through unchanged, and calls without one get an unsampled
    /// context.
    pub fn pass_through() -> Self {
        Self::with_mode(Mode::PassThrough, Vec::new())
    }

    /// Records spans for sampled requests and passes them to every queue.
    pub fn sampling(sampler: Sampler, queues: Vec<Arc<SpanQueue>>) -> Self {
        if sampler.is_off() {
            Self::off()
        } else {
            Self::with_mode(Mode::Sampling(sampler), queues)
        }
    }

    fn with_mode(mode: Mode, queues: Vec<Arc<SpanQueue>>) -> Self {
        Self {
            inner: Arc::new(Inner { mode, queues }),
        }
    }

    /// Whether requests go through trace and baggage handling (false for `samplingRate: 0`).
    pub fn enabled(&self) -> bool {
        self.inner.mode != Mode::Off
    }

    /// Starts a span. The caller's decision applies if there is a parent, otherwise the sampler's.
    pub fn start(&self, kind: SpanKind, name: &str, parent: &Parent) -> Span {
        self.start_scoped(SCOPE, kind, name, parent)
    }

    /// Like [`Tracer::start`] with another instrumentation scope (workflow spans: `durabletask`).
    pub fn start_scoped(&self, scope: &'static str, kind: SpanKind, name: &str, parent: &Parent) -> Span {
        let sampler = match self.inner.mode {
            Mode::Sampling(sampler) => sampler,
            Mode::Off => return Span::of(parent.clone()),
            // Apps get a context on every call; an unrecorded one still correlates logs.
            Mode::PassThrough => {
                let context = parent.context.or_else(|| Some(TraceContext::random()));
                return Span {
                    context,
                    state: parent.state.clone(),
                    made_up: parent.made_up || parent.context.is_none(),
                    recording: None,
                };
            }
        };
        let context = match parent.context {
            Some(above) => above.child(above.is_sampled()),
            None => {
                let mut root = TraceContext::random();
                root.flags = u8::from(sampler.samples(&root.trace_id, None));
                root
            }
        };
        let recording = context.is_sampled().then(|| {
            let now = SystemTime::now();
            Box::new(Recording {
                data: SpanData {
                    name: cut(name.to_owned().into()),
                    scope,
                    kind,
                    context,
                    state: parent.state.clone(),
                    parent: parent.context.map(|p| p.span_id),
                    start: now,
                    end: now,
                    attributes: Vec::with_capacity(8),
                    lists: Vec::new(),
                    events: Vec::new(),
                    status: Status::Unset,
                },
                tracer: self.inner.clone(),
            })
        });
        Span {
            context: Some(context),
            state: parent.state.clone(),
            made_up: false,
            recording,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn tracer(rate: f64) -> (Tracer, Arc<SpanQueue>) {
        let queue = Arc::new(SpanQueue::default());
        (Tracer::sampling(Sampler::new(rate), vec![queue.clone()]), queue)
    }

    #[test]
    fn truncates_long_texts() {
        let (tracer, queue) = tracer(1.0);
        let long = "ü".repeat(10_000);
        let kept = "ü".repeat(2048);
        let mut span = tracer.start(SpanKind::Server, &long, &Parent::default());
        span.set("set", long.clone());
        span.set_default(long.clone(), "default");
        span.event(long.clone(), vec![("reason".into(), long.clone().into())]);
        span.set_status(Status::Error(long.clone()));
        span.end();
        let mut renamed = tracer.start(SpanKind::Server, "", &Parent::default());
        renamed.set_name(format!("a{long}"));
        renamed.end();
        let spans = queue.take();
        let data = &spans[0];
        assert_eq!(data.name, kept);
        assert_eq!(
            data.attributes,
            [
                ("set".into(), kept.clone().into()),
                (kept.clone().into(), "default".into())
            ]
        );
        assert_eq!(data.events[0].name, kept);
        assert_eq!(
            data.events[0].attributes,
            [("reason".into(), kept.clone().into())]
        );
        assert_eq!(data.status, Status::Error(kept));
        assert_eq!(spans[1].name.len(), 4095, "between two characters");
    }

    #[test]
    fn queues_sampled_spans_everywhere() {
        let queues = [Arc::new(SpanQueue::default()), Arc::new(SpanQueue::default())];
        let tracer = Tracer::sampling(Sampler::new(1.0), queues.to_vec());
        let mut span = tracer.start(SpanKind::Client, "a", &Parent::from_text(SAMPLED, "x=1"));
        span.set("k", "v");
        span.set("empty", "");
        span.set("k", "w");
        span.set_default("k", "z");
        span.set_status(Status::Error("bad".into()));
        let context = span.context().unwrap();
        span.end();
        for queue in queues {
            let spans = queue.take();
            assert_eq!(spans.len(), 1);
            let data = &spans[0];
            assert_eq!(
                (data.name.as_ref(), data.context, data.scope),
                ("a", context, "dapr-diagnostics")
            );
            assert_eq!(
                data.parent,
                Some([0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7])
            );
            assert_eq!(data.attributes, [("k".into(), "w".into())]);
            assert_eq!(data.state.as_ref().unwrap().as_str(), "x=1");
            assert!(data.end >= data.start);
        }
    }

    #[test]
    fn continues_span_with_id_and_start() {
        let (tracer, queue) = tracer(1.0);
        let parent = Parent::from_text(SAMPLED, "");
        let earlier = tracer.start_scoped("durabletask", SpanKind::Server, "a", &parent);
        let id = earlier.context().unwrap().span_id;
        earlier.discard();
        let mut later = tracer.start_scoped("durabletask", SpanKind::Server, "a", &parent);
        later.set_id(id);
        later.set_start(SystemTime::UNIX_EPOCH);
        later.event("seen", vec![("name".into(), "e".into())]);
        assert_eq!(later.context().unwrap().span_id, id);
        later.end();
        let spans = queue.take();
        assert_eq!(spans.len(), 1, "a discarded span was exported");
        assert_eq!(
            (spans[0].context.span_id, spans[0].start),
            (id, SystemTime::UNIX_EPOCH)
        );
        assert_eq!(spans[0].events[0].name, "seen");
    }

    #[test]
    fn unsampled_spans_carry_context_only() {
        let (tracer, queue) = tracer(1e-18);
        let root = tracer.start(SpanKind::Client, "a", &Parent::default());
        assert!(!root.is_recording() && !root.context().unwrap().is_sampled());
        let child = tracer.start(SpanKind::Server, "b", &root.as_parent());
        assert_eq!(
            child.context().unwrap().trace_id,
            root.context().unwrap().trace_id
        );
        drop((root, child));
        assert!(queue.take().is_empty());
    }

    #[test]
    fn modes_without_spans_pass_parent() {
        let parent = Parent::from_text(SAMPLED, "");
        for tracer in [
            Tracer::off(),
            Tracer::pass_through(),
            Tracer::sampling(Sampler::new(0.0), vec![]),
        ] {
            let span = tracer.start(SpanKind::Client, "a", &parent);
            assert_eq!(span.context(), parent.context);
            assert!(!span.is_recording());
            let root = tracer.start(SpanKind::Client, "a", &Parent::default()).context();
            match tracer.inner.mode {
                Mode::PassThrough => assert!(!root.unwrap().is_sampled()),
                _ => assert_eq!(root, None),
            }
        }
        assert!(!Tracer::sampling(Sampler::new(0.0), vec![]).enabled() && Tracer::pass_through().enabled());
    }

    #[test]
    fn generated_context_stays_marked() {
        let tracer = Tracer::pass_through();
        let root = tracer.start(SpanKind::Client, "a", &Parent::default());
        let child = tracer.start(SpanKind::Producer, "b", &root.as_parent());
        assert_eq!(child.as_parent().without_made_up(), Parent::default());
        let mut headers = HeaderMap::new();
        child.as_parent().of_event().inject_http(&mut headers);
        assert_eq!(
            headers[TRACEPARENT],
            "00-00000000000000000000000000000000-0000000000000000-00"
        );
        let caller = Parent::from_text(SAMPLED, "x=1");
        let passed = tracer.start(SpanKind::Client, "a", &caller).as_parent();
        assert_eq!(
            (passed.clone().without_made_up(), passed.of_event()),
            (caller.clone(), caller)
        );
    }

    #[test]
    fn headers_round_trip() {
        let (tracer, _queue) = tracer(1.0);
        let span = tracer.start(SpanKind::Client, "a", &Parent::from_text(SAMPLED, "x=1"));
        let mut http = HeaderMap::new();
        span.inject_http(&mut http);
        assert_eq!(Parent::from_http(&http), span.as_parent());
        let mut grpc = HeaderMap::new();
        span.inject_grpc(&mut grpc);
        assert_eq!(Parent::from_grpc(&grpc).context, span.context());
        grpc.remove(GRPC_TRACE_BIN);
        assert_eq!(Parent::from_grpc(&grpc).context, span.context());
        grpc.insert(GRPC_TRACE_BIN, HeaderValue::from_static("AAAA"));
        assert_eq!(Parent::from_grpc(&grpc).context, span.context());
    }

    #[test]
    fn full_queue_drops_and_counts() {
        let (tracer, queue) = tracer(1.0);
        for _ in 0..2050 {
            tracer.start(SpanKind::Client, "a", &Parent::default()).end();
        }
        assert_eq!((queue.take().len(), queue.dropped()), (2048, 2));
    }
}
