//! `/v1.0/publish/…`.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use outrigger_blocks::pubsub::{BulkPayload, Payload, Protocol, PublishError, RequestContext};
use outrigger_cloudevents::content_type::{is_cloud_event, is_json, is_octets, is_text};
use outrigger_component::Pairs;
use outrigger_go_json::{Strings, from_slice};
use outrigger_policy::path::clean_escaped_path;
use outrigger_transport::body::{Body, BoxError};
use outrigger_transport::response::empty_response;
use serde::de::{IgnoredAny, MapAccess};
use serde_json::json;
use serde_json::value::RawValue;

use super::json::{JsonObject, List, Object, parse, read, value};
use super::route::{Endpoint, Handler, HandlerResult};
use super::{Context, HttpApi, unread as unread_body};
use crate::error::{ApiError, json_response};

const GROUP: &str = "publish";
const ONE: &[&str] = &["publish", "{pubsubname}", "*"];
const BULK: &[&str] = &["publish", "bulk", "{pubsubname}", "*"];
const PUBLISH: Handler = |api, context| Box::pin(api.publish(context));
const PUBLISH_BULK: Handler = |api, context| Box::pin(api.publish_bulk(context));

/// Bulk publishing precedes a topic named `bulk/…`.
pub(super) static ROUTES: &[Endpoint] = &[
    Endpoint::v1(Method::POST, GROUP, BULK, "BulkPublishEvent", PUBLISH_BULK),
    Endpoint::v1(Method::PUT, GROUP, BULK, "BulkPublishEvent", PUBLISH_BULK),
    Endpoint::alpha1(Method::POST, GROUP, BULK, "BulkPublishEvent", PUBLISH_BULK),
    Endpoint::alpha1(Method::PUT, GROUP, BULK, "BulkPublishEvent", PUBLISH_BULK),
    Endpoint::v1(Method::POST, GROUP, ONE, "PublishEvent", PUBLISH),
    Endpoint::v1(Method::PUT, GROUP, ONE, "PublishEvent", PUBLISH),
];

/// An entry of a bulk.
#[derive(Default)]
struct Entry<'de> {
    id: String,
    event: Option<&'de RawValue>,
    content_type: String,
    metadata: Option<Pairs>,
}

impl<'de> Object<'de> for Entry<'de> {
    const NAME: &'static str = "an object with entryId, event, contentType and metadata";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        let is = |expected: &str| name.eq_ignore_ascii_case(expected);
        if is("entryId") {
            self.id = value(map)?;
        } else if is("event") {
            self.event = Some(map.next_value()?);
        } else if is("contentType") {
            self.content_type = value(map)?;
        } else if is("metadata") {
            let metadata: Option<Strings> = map.next_value()?;
            self.metadata = metadata.map(|Strings(metadata)| metadata);
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

impl Entry<'_> {
    /// The entry as it is published; JSON stays a slice of `body`.
    fn into_payload(self, body: &Bytes) -> Result<BulkPayload, String> {
        let data = self.data(body)?;
        Ok(BulkPayload {
            id: self.id,
            payload: Payload {
                data,
                content_type: self.content_type,
                metadata: self.metadata.unwrap_or_default(),
            },
        })
    }

    fn data(&self, body: &Bytes) -> Result<Bytes, String> {
        let kind = self.content_type.as_str();
        let json = self.event.map_or("null", RawValue::get);
        let text = || from_slice::<String>(json.as_bytes()).ok();
        let mismatch = || "error: mismatch between contentType and event".to_owned();
        if is_octets(kind) {
            let data = STANDARD.decode(text().ok_or_else(mismatch)?);
            return data.map(Bytes::from).map_err(|error| {
                format!("error: unable to decode base64 application/octet-stream data: {error}")
            });
        }
        if is_text(kind) {
            return text().map(Bytes::from).ok_or_else(mismatch);
        }
        if !is_json(kind) && !is_cloud_event(kind) {
            return Err(mismatch());
        }
        Ok(match self.event {
            Some(event) => body.slice_ref(event.get().as_bytes()),
            None => Bytes::from_static(b"null"),
        })
    }
}

/// Parses a bulk: its entries, or the error of the first invalid one.
fn entries(body: &Bytes) -> Result<Result<Vec<BulkPayload>, String>, serde_json::Error> {
    let List(entries) = parse::<Option<List<JsonObject<Entry<'_>>>>>(body)?.unwrap_or_default();
    let entries = entries.into_iter();
    Ok(entries
        .map(|JsonObject(entry)| entry.into_payload(body))
        .collect())
}

/// Parses `body` as a bulk.
///
/// # Panics
///
/// If a JSON payload is not a slice of the body.
#[cfg(feature = "fuzzing")]
pub fn fuzz_bulk(body: &Bytes) {
    match entries(body) {
        Err(error) => drop(unread(body, &error)),
        Ok(read) => {
            for BulkPayload { payload, .. } in read.unwrap_or_default() {
                let is_part = body.as_ptr_range().contains(&payload.data.as_ptr());
                assert!(!is_json(&payload.content_type) || payload.data == "null" || is_part);
            }
        }
    }
}

/// The error for a body that cannot be read.
fn unread_event(error: &BoxError, pubsub: &str, topic: &str) -> ApiError {
    unread_body::unread(error, |cause| ApiError::unread_event(pubsub, topic, cause))
}

/// The error text for a bulk that cannot be parsed. Tools match the text, so it is the contract's.
fn unread(body: &[u8], error: &serde_json::Error) -> String {
    match body.trim_ascii().first() {
        None => "EOF".to_owned(),
        // A value of the wrong type is detected before a missing end.
        _ if error.is_eof()
            || serde_json::from_slice::<IgnoredAny>(body).is_err_and(|error| error.is_eof()) =>
        {
            "unexpected EOF".to_owned()
        }
        Some(b'{') if error.is_data() => {
            "json: cannot unmarshal object into Go value of type []http.bulkPublishMessageEntry".to_owned()
        }
        _ => error.to_string(),
    }
}

impl HttpApi {
    async fn publish(&self, context: Context<'_>) -> HandlerResult {
        let (pubsub, topic) = (context.parameter(0)?, topic(&context)?);
        context.span.publish(&topic);
        let metadata = super::query_metadata(context.request.uri().query());
        let target = self.blocks.pubsub.target(&pubsub, &topic, &metadata)?;
        let caller = request_context(&context);
        let (head, body) = context.request.into_parts();
        let content_type = head.headers.get(CONTENT_TYPE);
        let content_type = content_type.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        // The API has already limited the body.
        let data = body.collect_up_to(usize::MAX).await;
        let data = data.map_err(|error| unread_event(&error, &pubsub, &topic))?;
        let payload = Payload {
            data,
            content_type: content_type.unwrap_or_default(),
            metadata,
        };
        target.publish(payload, caller).await?;
        Ok(empty_response(StatusCode::NO_CONTENT))
    }

    async fn publish_bulk(&self, context: Context<'_>) -> HandlerResult {
        let (pubsub, topic) = (context.parameter(0)?, topic(&context)?);
        context.span.publish(&topic);
        let metadata = super::query_metadata(context.request.uri().query());
        let target = self.blocks.pubsub.target(&pubsub, &topic, &metadata)?;
        let caller = request_context(&context);
        let path = clean_escaped_path(context.request.uri().path()).into_owned();
        let body = context.request.into_body().collect_up_to(usize::MAX).await;
        let body = body.map_err(|error| unread_event(&error, &pubsub, &topic))?;
        let entries = read(body.clone(), entries)
            .await
            .map_err(|error| ApiError::unread_bulk(&pubsub, &topic, &self.app_id, &unread(&body, &error)))?;
        let entries = entries.map_err(|cause| ApiError::bulk_event(&pubsub, &topic, &self.app_id, &cause))?;
        match target.publish_bulk(entries, &metadata, caller, &path).await {
            Ok(()) => Ok(empty_response(StatusCode::NO_CONTENT)),
            Err(error) => self.unpublished(error),
        }
    }

    /// Lists the entries that were not published.
    fn unpublished(&self, error: PublishError) -> HandlerResult {
        let failed = match &error {
            PublishError::Publish { failed, .. } if !failed.is_empty() => {
                let entries = failed
                    .iter()
                    .map(|(id, error)| json!({ "entryId": id, "error": error }));
                entries.collect::<Vec<_>>()
            }
            _ => return Err(error.into()),
        };
        let error = ApiError::from(error);
        let body = json!({ "failedEntries": failed, "errorCode": error.code });
        let mut response = json_response(error.http, &body);
        for (name, text) in [
            ("metadata.responsedata", body.to_string()),
            ("metadata.error", error.message.clone()),
        ] {
            add_header(&mut response, name, &text);
        }
        self.metrics.error_code(error.counted_as(), error.category);
        Ok(response)
    }
}

/// Adds a header unless its value is invalid.
fn add_header(response: &mut Response<Body>, name: &'static str, text: &str) {
    if let Ok(value) = HeaderValue::try_from(text) {
        response
            .headers_mut()
            .insert(HeaderName::from_static(name), value);
    }
}

/// The topic of a request: the rest of the path without a trailing slash.
fn topic(context: &Context<'_>) -> Result<String, ApiError> {
    let mut topic = context.parameter(1)?;
    if topic.ends_with('/') {
        topic.pop();
    }
    Ok(topic)
}

fn request_context(context: &Context<'_>) -> RequestContext {
    // Invalid baggage was refused earlier, or tracing is off.
    let baggage = super::baggage(context.request.headers()).ok().flatten();
    let baggage = baggage.as_ref().and_then(|value| value.to_str().ok());
    RequestContext {
        protocol: Protocol::Http,
        trace: context.span.as_parent(),
        baggage: baggage.map(Arc::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_one(entry: &str) -> Result<BulkPayload, String> {
        let body = Bytes::from(format!("[{entry}]"));
        entries(&body).unwrap().map(|mut entries| entries.remove(0))
    }

    #[test]
    fn null_metadata_is_empty_string() {
        let entry = r#"{"entryId":"1","event":"","contentType":"text/plain","metadata":{"a":null,"b":"x"}}"#;
        let entry = read_one(entry).unwrap();
        let expected = [("a", ""), ("b", "x")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(entry.payload.metadata, expected.into());
    }

    #[test]
    fn content_type_selects_event_form() {
        for (kind, event, data) in [
            ("text/plain", r#""a\n""#, "a\n"),
            ("text/plain", r#""a\ud800""#, "a\u{fffd}"),
            ("application/xml", r#""<a/>""#, "<a/>"),
            ("application/octet-stream", r#""eA==""#, "x"),
            (
                "application/json; charset=utf-8",
                r#"{"b": 1, "a":2}"#,
                r#"{"b": 1, "a":2}"#,
            ),
            ("application/cloudevents+json", r#"{"id":"1"}"#, r#"{"id":"1"}"#),
        ] {
            let entry = read_one(&format!(
                r#"{{"entryId":"1","event":{event},"contentType":"{kind}"}}"#
            ));
            let entry = entry.unwrap();
            assert_eq!(&*entry.payload.data, data.as_bytes(), "{kind}");
        }
        for (kind, event) in [
            ("text/plain", "{}"),
            ("application/octet-stream", r#""$""#),
            ("application/octet-stream", "1"),
            ("image/png", r#""eA==""#),
            ("", r#""a""#),
        ] {
            let entry = read_one(&format!(
                r#"{{"entryId":"1","event":{event},"contentType":"{kind}"}}"#
            ));
            assert!(entry.unwrap_err().starts_with("error: "), "{kind} {event}");
        }
    }

    #[test]
    fn names_ignore_case() {
        let entry =
            read_one(r#"{"EntryID":"7","metadata":{"a":"b"},"contenttype":"application/json"}"#).unwrap();
        assert_eq!((&*entry.id, &*entry.payload.data), ("7", &b"null"[..]));
        assert_eq!(entry.payload.metadata.len(), 1);
        let none = Bytes::from_static(b" null");
        assert!(entries(&none).unwrap().unwrap().is_empty());
    }

    #[test]
    fn unparsable_bulk_has_contract_text() {
        for (body, text) in [
            ("", "EOF"),
            (r#"{"entryID": "}"#, "unexpected EOF"),
            (
                r#"{"entryID": ""}"#,
                "json: cannot unmarshal object into Go value of type []http.bulkPublishMessageEntry",
            ),
        ] {
            let body = Bytes::from_static(body.as_bytes());
            let error = entries(&body).err().unwrap();
            assert_eq!(unread(&body, &error), text);
        }
    }
}
