//! W3C trace context, sampling and spans.
//!
//! The sampling decision comes first. An unsampled request costs one random span ID and a `Copy` context. A
//! sampled one costs a boxed recording that [`Span::end`] passes to the exporters' queues
//! ([`crate::export`]).

mod baggage;
mod context;
mod names;
mod queue;
mod sampler;
mod span;
mod state;
mod tracer;

pub use baggage::{BAGGAGE, Baggage, BaggageError};
pub use context::{GRPC_TRACE_BIN, TRACEPARENT, TRACESTATE, TraceContext, TraceParent};
pub(crate) use queue::BATCH;
pub use queue::SpanQueue;
pub use sampler::Sampler;
pub use span::{Span, SpanData, SpanEvent, SpanKind, Status};
pub use state::{MAX_TRACESTATE, TraceState};
pub use tracer::{Parent, Tracer};
