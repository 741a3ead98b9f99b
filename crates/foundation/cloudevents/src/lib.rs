//! CloudEvents 1.0 in the JSON format, as used by Dapr's sidecars: bytes in, bytes out, without I/O.
//!
//! * [`Envelope`] wraps a payload. A JSON payload is validated and copied verbatim.
//! * [`Event`] is a parsed envelope: read members, set some, serialize it. Other members stay unparsed.
//! * [`content_type`] maps a media type to the form of the payload.

pub mod content_type;
mod event;
mod wrap;

pub use event::{Data, Event, Malformed};
pub use wrap::Envelope;

/// The version of the specification, in `specversion`.
pub const SPEC_VERSION: &str = "1.0";
/// Default `type` of an event.
pub const TYPE: &str = "com.dapr.event.sent";
/// The `type` of a batch of events.
pub const BULK_TYPE: &str = "com.dapr.event.sent.bulk";
/// Default `source` of an event.
pub const SOURCE: &str = "Dapr";

/// Member names.
pub mod member {
    /// The payload.
    pub const DATA: &str = "data";
    /// The payload in base64.
    pub const DATA_BASE64: &str = "data_base64";
    /// The media type of the payload.
    pub const DATA_CONTENT_TYPE: &str = "datacontenttype";
    /// Expiration time, RFC 3339.
    pub const EXPIRATION: &str = "expiration";
    /// ID of the event, unique per source.
    pub const ID: &str = "id";
    /// The pub/sub component.
    pub const PUBSUB: &str = "pubsubname";
    /// App ID of the publisher.
    pub const SOURCE: &str = "source";
    /// [`SPEC_VERSION`](crate::SPEC_VERSION).
    pub const SPEC_VERSION: &str = "specversion";
    /// Subject of the event.
    pub const SUBJECT: &str = "subject";
    /// Publication time, RFC 3339.
    pub const TIME: &str = "time";
    /// The topic.
    pub const TOPIC: &str = "topic";
    /// The publisher's trace context, under its older name.
    pub const TRACE_ID: &str = "traceid";
    /// The publisher's trace context.
    pub const TRACE_PARENT: &str = "traceparent";
    /// The publisher's trace state.
    pub const TRACE_STATE: &str = "tracestate";
    /// The event type.
    pub const TYPE: &str = "type";
    /// The publisher's baggage.
    pub const BAGGAGE: &str = "baggage";
}
