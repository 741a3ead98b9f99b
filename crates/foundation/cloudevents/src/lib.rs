//! CloudEvents 1.0 in the JSON format, as Dapr's sidecars write and read them: bytes in, bytes out, without I/O.
//!
//! * [`Envelope`] wraps a payload; a JSON payload is checked and copied as it is, never taken apart.
//! * [`Event`] is an envelope in pieces: read members of it, set some, write it again. Members that nobody asks for
//!   stay the bytes that came.
//! * [`content_type`] says what a media type means for the form of the payload.

pub mod content_type;
mod event;
mod wrap;

pub use event::{Data, Event, Malformed};
pub use wrap::Envelope;

/// The version of the specification, in `specversion`.
pub const SPEC_VERSION: &str = "1.0";
/// The `type` of an event whose publisher names none.
pub const TYPE: &str = "com.dapr.event.sent";
/// The `type` of a batch of events.
pub const BULK_TYPE: &str = "com.dapr.event.sent.bulk";
/// The `source` of an event whose publisher names none.
pub const SOURCE: &str = "Dapr";

/// Names of members.
pub mod member {
    /// The payload.
    pub const DATA: &str = "data";
    /// The payload in base64.
    pub const DATA_BASE64: &str = "data_base64";
    /// The media type of the payload.
    pub const DATA_CONTENT_TYPE: &str = "datacontenttype";
    /// When the event is worth nothing any more, RFC 3339.
    pub const EXPIRATION: &str = "expiration";
    /// Id of the event, unique for its source.
    pub const ID: &str = "id";
    /// The component it was published to.
    pub const PUBSUB: &str = "pubsubname";
    /// App id of the publisher.
    pub const SOURCE: &str = "source";
    /// [`SPEC_VERSION`](crate::SPEC_VERSION).
    pub const SPEC_VERSION: &str = "specversion";
    /// Subject of the event.
    pub const SUBJECT: &str = "subject";
    /// When it was published, RFC 3339.
    pub const TIME: &str = "time";
    /// Topic that it was published to.
    pub const TOPIC: &str = "topic";
    /// The publisher's trace context, by its older name.
    pub const TRACE_ID: &str = "traceid";
    /// The publisher's trace context.
    pub const TRACE_PARENT: &str = "traceparent";
    /// The publisher's trace state.
    pub const TRACE_STATE: &str = "tracestate";
    /// The kind of event.
    pub const TYPE: &str = "type";
    /// The publisher's baggage.
    pub const BAGGAGE: &str = "baggage";
}
