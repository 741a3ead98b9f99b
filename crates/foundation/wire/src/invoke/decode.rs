//! Decoding of stream messages.

use std::str;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::fields::{Field, Fields};
use super::head::{Actor, Payload, RequestFrame, RequestHead, ResponseFrame, ResponseHead};
use super::{DecodeError, Verb};

/// Limits on the content of a message, in addition to its size.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Values in one metadata map. A header map holds at most 24576.
    pub metadata_values: usize,
    /// Details of a status.
    pub status_details: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            metadata_values: 1024,
            status_details: 64,
        }
    }
}

/// Decodes an `InternalInvokeRequestStream` without its frame prefix.
///
/// Fields may have any order, and unknown ones are ignored. Header values and the payload share the
/// message's memory. A body in `request.message.data` is ignored, as the protocol specifies.
pub fn decode_request(message: &Bytes, limits: &Limits) -> Result<RequestFrame, DecodeError> {
    let mut frame = RequestFrame::default();
    let mut has_message = false;
    let mut fields = Fields::of(message, "InternalInvokeRequestStream");
    while let Some(field) = fields.next()? {
        match field.number {
            1 => {
                let head = frame.head.get_or_insert_default();
                has_message |= request(field.message("request")?, head, limits)?;
            }
            2 => payload(field.message("payload")?, frame.payload.get_or_insert_default())?,
            _ => {}
        }
    }
    if frame.head.is_some() && !has_message {
        return Err(DecodeError::Missing {
            field: "request.message",
        });
    }
    Ok(frame)
}

/// Decodes an `InternalInvokeResponseStream` without its frame prefix, by the rules of [`decode_request`].
pub fn decode_response(message: &Bytes, limits: &Limits) -> Result<ResponseFrame, DecodeError> {
    let mut frame = ResponseFrame::default();
    let mut fields = Fields::of(message, "InternalInvokeResponseStream");
    while let Some(field) = fields.next()? {
        match field.number {
            1 => response(
                field.message("response")?,
                frame.head.get_or_insert_default(),
                limits,
            )?,
            2 => payload(field.message("payload")?, frame.payload.get_or_insert_default())?,
            _ => {}
        }
    }
    Ok(frame)
}

/// `StreamPayload`.
fn payload(mut fields: Fields<'_>, into: &mut Payload) -> Result<(), DecodeError> {
    while let Some(field) = fields.next()? {
        match field.number {
            1 => into.data = field.bytes("payload.data")?,
            2 => into.seq = field.number("payload.seq")?,
            _ => {}
        }
    }
    Ok(())
}

/// `InternalInvokeRequest`; returns whether it has a message.
fn request(mut fields: Fields<'_>, into: &mut RequestHead, limits: &Limits) -> Result<bool, DecodeError> {
    let mut has_message = false;
    while let Some(field) = fields.next()? {
        match field.number {
            2 => {
                let name = metadata(field.message("metadata")?, &mut into.metadata, limits)?;
                into.http_names |= name == HTTP_CONTENT_TYPE;
            }
            3 => {
                has_message = true;
                invoke_request(field.message("message")?, into)?;
            }
            4 => actor(field.message("actor")?, into.actor.get_or_insert_default())?,
            _ => {}
        }
    }
    Ok(has_message)
}

/// `InvokeRequest`.
fn invoke_request(mut fields: Fields<'_>, into: &mut RequestHead) -> Result<(), DecodeError> {
    while let Some(field) = fields.next()? {
        match field.number {
            1 => into.method = field.text("message.method")?.to_owned(),
            2 => any(field.message("message.data")?, &mut into.type_url)?,
            3 => into.content_type = content_type(field.bytes("message.content_type")?)?,
            4 => http_extension(field.message("message.http_extension")?, into)?,
            _ => {}
        }
    }
    Ok(())
}

/// `HTTPExtension`.
fn http_extension(mut fields: Fields<'_>, into: &mut RequestHead) -> Result<(), DecodeError> {
    while let Some(field) = fields.next()? {
        match field.number {
            1 => {
                // Enums have 32 bits; the upper half of a longer number is ignored.
                let verb = field.number("http_extension.verb")? as i32;
                into.verb = Verb::try_from(verb).unwrap_or_default();
            }
            2 => into.query = field.text("http_extension.querystring")?.to_owned(),
            _ => {}
        }
    }
    Ok(())
}

/// `Actor`.
fn actor(mut fields: Fields<'_>, into: &mut Actor) -> Result<(), DecodeError> {
    while let Some(field) = fields.next()? {
        match field.number {
            1 => into.kind = field.text("actor.actor_type")?.to_owned(),
            2 => into.id = field.text("actor.actor_id")?.to_owned(),
            _ => {}
        }
    }
    Ok(())
}

/// `InternalInvokeResponse`.
fn response(mut fields: Fields<'_>, into: &mut ResponseHead, limits: &Limits) -> Result<(), DecodeError> {
    while let Some(field) = fields.next()? {
        match field.number {
            1 => status(field.message("status")?, into, limits)?,
            2 => _ = metadata(field.message("headers")?, &mut into.headers, limits)?,
            3 => _ = metadata(field.message("trailers")?, &mut into.trailers, limits)?,
            4 => invoke_response(field.message("message")?, into)?,
            _ => {}
        }
    }
    Ok(())
}

/// `Status`.
fn status(mut fields: Fields<'_>, into: &mut ResponseHead, limits: &Limits) -> Result<(), DecodeError> {
    while let Some(field) = fields.next()? {
        match field.number {
            // int32: a negative number is encoded with 64 bits.
            1 => into.status_code = field.number("status.code")? as i32,
            2 => into.status_message = field.text("status.message")?.to_owned(),
            3 if into.status_details.len() == limits.status_details => {
                return Err(DecodeError::Malformed {
                    message: "status",
                    problem: "it has too many details",
                });
            }
            3 => into.status_details.push(field.bytes("status.details")?),
            _ => {}
        }
    }
    Ok(())
}

/// `InvokeResponse`.
fn invoke_response(mut fields: Fields<'_>, into: &mut ResponseHead) -> Result<(), DecodeError> {
    while let Some(field) = fields.next()? {
        match field.number {
            1 => any(field.message("message.data")?, &mut into.type_url)?,
            2 => into.content_type = content_type(field.bytes("message.content_type")?)?,
            _ => {}
        }
    }
    Ok(())
}

/// `google.protobuf.Any`, of which only the type is used.
fn any(mut fields: Fields<'_>, type_url: &mut String) -> Result<(), DecodeError> {
    while let Some(field) = fields.next()? {
        if field.number == 1 {
            field.text("message.data.type_url")?.clone_into(type_url);
        }
    }
    Ok(())
}

pub(super) fn content_type(value: Bytes) -> Result<Option<HeaderValue>, DecodeError> {
    if value.is_empty() {
        return Ok(None);
    }
    header_value("content_type", value).map(Some)
}

/// Header fields of a typical call; their space is reserved in advance.
const USUAL_FIELDS: usize = 24;

/// Spelling in headers of HTTP callers; metadata of gRPC callers is in lower case.
pub(super) const HTTP_CONTENT_TYPE: &str = "Content-Type";

/// Decodes one entry of a `map<string, ListStringValue>`: usually a name and its values, in this order.
/// Returns the name.
fn metadata<'a>(entry: Fields<'a>, into: &mut HeaderMap, limits: &Limits) -> Result<&'a str, DecodeError> {
    if into.capacity() == 0 {
        into.reserve(USUAL_FIELDS);
    }
    let mut halves = entry.clone();
    if let Some(name) = halves.next()?
        && name.number == 1
        && let Some(list) = halves.next()?
        && list.number == 2
        && halves.next()?.is_none()
    {
        let name = name.text("a metadata name")?;
        values(name, &header_name(name)?, &list, into, limits)?;
        return Ok(name);
    }
    unusual_metadata(entry, into, limits)
}

/// An entry whose parts are absent, repeated or reordered.
#[cold]
fn unusual_metadata<'a>(
    entry: Fields<'a>,
    into: &mut HeaderMap,
    limits: &Limits,
) -> Result<&'a str, DecodeError> {
    let mut name = "";
    let mut halves = entry.clone();
    while let Some(half) = halves.next()? {
        if half.number == 1 {
            name = half.text("a metadata name")?;
        }
    }
    let header = header_name(name)?;
    let mut halves = entry;
    while let Some(half) = halves.next()? {
        if half.number == 2 {
            values(name, &header, &half, into, limits)?;
        }
    }
    Ok(name)
}

/// The values of one name.
fn values(
    name: &str,
    header: &HeaderName,
    list: &Field<'_>,
    into: &mut HeaderMap,
    limits: &Limits,
) -> Result<(), DecodeError> {
    let mut list = list.message("a metadata value")?;
    while let Some(field) = list.next()? {
        if field.number == 1 {
            append(into, header, value_of(name, &field)?, limits)?;
        }
    }
    Ok(())
}

fn value_of(name: &str, field: &Field<'_>) -> Result<HeaderValue, DecodeError> {
    header_value(name, field.bytes("a metadata value")?)
}

/// A header value that shares the given memory.
pub(super) fn header_value(name: &str, value: Bytes) -> Result<HeaderValue, DecodeError> {
    let problem = |problem| DecodeError::Value {
        name: shortened(name),
        problem,
    };
    if !value.is_ascii() && str::from_utf8(&value).is_err() {
        return Err(problem("it is not valid UTF-8"));
    }
    HeaderValue::from_maybe_shared(value).map_err(|_| problem("it holds a control character"))
}

/// The name in lower case. Pseudo-headers, which must not reach an app, get the prefix of v1.17.13.
pub(super) fn header_name(name: &str) -> Result<HeaderName, DecodeError> {
    let parsed = match (usual_name(name), name.strip_prefix(':')) {
        (Some(usual), _) => return Ok(usual),
        (None, Some(pseudo)) => HeaderName::try_from(format!("dapr-{pseudo}")),
        (None, None) => HeaderName::try_from(name),
    };
    parsed.map_err(|_| DecodeError::Name {
        name: shortened(name),
    })
}

/// Names that sidecars add to every call; these take no allocation.
fn usual_name(name: &str) -> Option<HeaderName> {
    const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
    const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
    const GRPC_TRACE_BIN: HeaderName = HeaderName::from_static("grpc-trace-bin");
    const BAGGAGE: HeaderName = HeaderName::from_static("baggage");
    const DAPR_APP_ID: HeaderName = HeaderName::from_static("dapr-app-id");
    const DAPR_CALLER_APP_ID: HeaderName = HeaderName::from_static("dapr-caller-app-id");
    const DAPR_CALLER_NAMESPACE: HeaderName = HeaderName::from_static("dapr-caller-namespace");
    const DAPR_CALLEE_APP_ID: HeaderName = HeaderName::from_static("dapr-callee-app-id");
    const DESTINATION_APP_ID: HeaderName = HeaderName::from_static("destination-app-id");
    const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
    const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
    Some(match name {
        "traceparent" => TRACEPARENT,
        "tracestate" => TRACESTATE,
        "grpc-trace-bin" => GRPC_TRACE_BIN,
        "baggage" => BAGGAGE,
        "dapr-app-id" => DAPR_APP_ID,
        "dapr-caller-app-id" => DAPR_CALLER_APP_ID,
        "dapr-caller-namespace" => DAPR_CALLER_NAMESPACE,
        "dapr-callee-app-id" => DAPR_CALLEE_APP_ID,
        "destination-app-id" => DESTINATION_APP_ID,
        "x-forwarded-for" => X_FORWARDED_FOR,
        "x-forwarded-host" => X_FORWARDED_HOST,
        _ => return None,
    })
}

pub(super) fn append(
    into: &mut HeaderMap,
    name: &HeaderName,
    value: HeaderValue,
    limits: &Limits,
) -> Result<(), DecodeError> {
    let too_many = DecodeError::TooManyValues {
        limit: limits.metadata_values,
    };
    if into.len() >= limits.metadata_values {
        return Err(too_many);
    }
    into.try_append(name, value).map(drop).map_err(|_| too_many)
}

fn shortened(name: &str) -> String {
    name.chars().take(64).collect()
}
