//! A call that may have to be made again.

use http::{HeaderMap, HeaderValue, Method};
use outrigger_runtime::call::Call;
use outrigger_telemetry::trace::Parent;
use outrigger_transport::body::{Body, Replay};

/// Hands out a [`Call`] per attempt. Only what may be repeated is copied.
pub(super) enum Repeatable {
    Once(Option<Call>),
    Many { head: Head, body: Source },
}

pub(super) struct Head {
    method: String,
    octets: Option<Box<[u8]>>,
    verb: Option<Method>,
    query: String,
    content_type: Option<HeaderValue>,
    type_url: String,
    metadata: HeaderMap,
    from_grpc: bool,
    trace: Parent,
}

pub(super) enum Source {
    Whole(bytes::Bytes),
    Stream(Replay),
}

impl Repeatable {
    pub(super) fn new(call: Call, repeat: bool) -> Self {
        if !repeat {
            return Self::Once(Some(call));
        }
        let body = match call.body {
            Body::Empty => Source::Whole(bytes::Bytes::new()),
            Body::Full(bytes) => Source::Whole(bytes),
            other => Source::Stream(Replay::new(other)),
        };
        let head = Head {
            method: call.method,
            octets: call.octets,
            verb: call.verb,
            query: call.query,
            content_type: call.content_type,
            type_url: call.type_url,
            metadata: call.metadata,
            from_grpc: call.from_grpc,
            trace: call.trace,
        };
        Self::Many { head, body }
    }

    pub(super) fn attempt(&mut self) -> Option<Call> {
        let (head, body) = match self {
            Self::Once(call) => return call.take(),
            Self::Many {
                head,
                body: Source::Whole(bytes),
            } => (head, bytes.clone().into()),
            Self::Many {
                head,
                body: Source::Stream(replay),
            } => (head, replay.attempt()?),
        };
        Some(Call {
            method: head.method.clone(),
            octets: head.octets.clone(),
            verb: head.verb.clone(),
            query: head.query.clone(),
            content_type: head.content_type.clone(),
            type_url: head.type_url.clone(),
            metadata: head.metadata.clone(),
            from_grpc: head.from_grpc,
            trace: head.trace.clone(),
            body,
        })
    }

    pub(super) fn can_repeat(&self) -> bool {
        match self {
            Self::Once(call) => call.is_some(),
            Self::Many {
                body: Source::Whole(_),
                ..
            } => true,
            Self::Many {
                body: Source::Stream(replay),
                ..
            } => replay.can_repeat(),
        }
    }
}
