//! Bulk delivery to HTTP apps.

use bytes::Bytes;
use outrigger_cloudevents::BULK_TYPE;
use outrigger_cloudevents::content_type::{CLOUD_EVENT, JSON, OCTET_STREAM};
use outrigger_component::Pairs;
use outrigger_delivery::Verdict;
use outrigger_go_json::first_from_slice;
use outrigger_offload::offload;
use outrigger_resources::json::{JsonObject, Object, value};
use outrigger_runtime::app::{AppChannel, Turn};
use outrigger_telemetry::trace::Parent;
use outrigger_transport::headers;
use serde::Serialize;
use serde::de::MapAccess;
use serde_json::value::RawValue;

use super::{BulkResponse, Entry, IdentifiedEvent, dropped, written};
use crate::subscriptions::LOG;
use crate::subscriptions::attempt::{self, NOT_FOUND, failed, success};
use crate::subscriptions::incoming::PUBSUB_NAME;
use crate::subscriptions::spec::AppSubscription;
use crate::subscriptions::target::Target;

/// The request body.
#[derive(Serialize)]
struct Request<'e> {
    entries: Vec<RequestEntry<'e>>,
    id: String,
    metadata: Pairs,
    pubsubname: &'e str,
    topic: &'e str,
    r#type: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestEntry<'e> {
    entry_id: &'e str,
    event: Body<'e>,
    /// As in Dapr, `null` if the broker provides none.
    metadata: Option<&'e Pairs>,
    content_type: &'e str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Body<'e> {
    Event(&'e RawValue),
    Raw(String),
}

#[derive(Default)]
struct Response {
    statuses: Vec<JsonObject<ResponseEntry>>,
}

impl<'de> Object<'de> for Response {
    const NAME: &'static str = "an object with statuses";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        let known = name.eq_ignore_ascii_case("statuses");
        if known {
            self.statuses = value(map)?;
        }
        Ok(known)
    }
}

#[derive(Default)]
struct ResponseEntry {
    entry_id: String,
    status: String,
}

impl<'de> Object<'de> for ResponseEntry {
    const NAME: &'static str = "an object with entryId and status";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        if name.eq_ignore_ascii_case("entryId") {
            self.entry_id = value(map)?;
        } else if name.eq_ignore_ascii_case("status") {
            self.status = value(map)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

pub(super) async fn call(
    target: &Target,
    app: &AppChannel,
    entries: &[Entry],
    trace: Parent,
    turn: Turn,
) -> BulkResponse {
    let Some(first) = entries.first().map(|entry| &entry.event) else {
        return BulkResponse::each(std::iter::empty());
    };
    let body = match written(&target.wanted, entries, request).await {
        Ok(body) => body,
        Err(error) => {
            return BulkResponse::all(failed(format!("the bulk cannot be written: {error}"), None));
        }
    };
    let metadata = Pairs::from([(PUBSUB_NAME.to_owned(), target.wanted.pubsub.clone())]);
    let call = attempt::call(first, headers::from_pairs(&metadata), body, JSON, trace);
    let (status, body) = match attempt::post_in(turn, app, call, target.dependencies().max_answer).await {
        Ok(answer) => answer,
        Err(error) => {
            return BulkResponse::unsent(&error);
        }
    };
    let count = entries.len();
    BulkResponse {
        http: Some(status),
        ..answered(count, status, body).await
    }
}

/// Like [`read`], off the serving thread if the body is large.
async fn answered(count: usize, status: u16, body: Bytes) -> BulkResponse {
    offload(body.len(), move || read(count, status, &body)).await
}

fn request(wanted: &AppSubscription, entries: &[IdentifiedEvent]) -> Result<Bytes, serde_json::Error> {
    let shown = entries.iter().map(|(id, event)| {
        let (body, default) = if wanted.raw {
            use base64::Engine as _;
            let text = base64::engine::general_purpose::STANDARD.encode(&event.payload);
            (Body::Raw(text), OCTET_STREAM)
        } else {
            (Body::Event(serde_json::from_slice(&event.data)?), CLOUD_EVENT)
        };
        Ok(RequestEntry {
            entry_id: id,
            event: body,
            metadata: Some(&event.metadata).filter(|metadata| !metadata.is_empty()),
            content_type: event.content_type.as_deref().unwrap_or(default),
        })
    });
    let body = Request {
        entries: shown.collect::<Result<_, serde_json::Error>>()?,
        id: uuid::Uuid::new_v4().to_string(),
        metadata: Pairs::from([(PUBSUB_NAME.to_owned(), wanted.pubsub.clone())]),
        pubsubname: &wanted.pubsub,
        topic: entries.first().map_or("", |(_, event)| &event.topic),
        r#type: BULK_TYPE,
    };
    serde_json::to_vec(&body).map(Bytes::from)
}

/// Parses the response to a bulk of `count` events.
fn read(count: usize, status: u16, body: &[u8]) -> BulkResponse {
    match status {
        200..300 => match first_from_slice::<JsonObject<Response>>(body) {
            Ok(JsonObject(response)) => {
                let said = response.statuses.into_iter().map(|JsonObject(entry)| {
                    let said = match entry.status.as_str() {
                        "SUCCESS" => success(Verdict::Acknowledge),
                        "DROP" => dropped(&entry.entry_id),
                        other => failed(
                            format!("status {other:?} returned from app for entry {}", entry.entry_id),
                            None,
                        ),
                    };
                    (entry.entry_id, said)
                });
                BulkResponse::each(said)
            }
            Err(error) => {
                let text = format!("failed to parse the app's response to a bulk of {count}: {error}");
                tracing::error!(target: LOG, "{text}");
                BulkResponse::all(failed(text, None))
            }
        },
        404 => {
            tracing::error!(
                target: LOG,
                "non-retriable error returned from app while processing bulk pub/sub event: {}. status code returned: \
                 404",
                String::from_utf8_lossy(body)
            );
            BulkResponse::all(success(NOT_FOUND))
        }
        other => {
            let text = format!(
                "retriable error returned from app while processing bulk pub/sub event: {}. status code returned: \
                 {other}",
                String::from_utf8_lossy(body)
            );
            tracing::warn!(target: LOG, "{text}");
            BulkResponse::all(failed(text, Some(other.into())))
        }
    }
}

#[cfg(test)]
mod tests {
    use outrigger_offload::{INLINE, done_at_once};

    use super::*;

    #[tokio::test]
    async fn parses_large_responses_off_thread() {
        for (length, at_once) in [(INLINE, true), (INLINE + 1, false)] {
            let body = vec![b' '; length].into();
            let (was_at_once, said) = done_at_once(answered(1, 404, body)).await;
            assert_eq!(was_at_once, at_once, "{length}");
            assert!(matches!(said.of("1").0, Verdict::Drop { .. }));
        }
    }

    #[test]
    fn reads_status_of_each_entry() {
        let body = br#"{"statuses":[{"entryId":"1","status":"SUCCESS"},{"entryId":"2","status":"DROP"},
            {"entryId":"3","status":""},{"entryId":"unknown","status":"SUCCESS"}]}"#;
        let said = read(3, 200, body);
        assert_eq!(said.of("1").0, Verdict::Acknowledge);
        assert!(matches!(said.of("2").0, Verdict::Drop { .. }));
        assert!(matches!(said.of("3").0, Verdict::Reject(_)));
        assert!(
            matches!(said.of("4").0, Verdict::Reject(_)),
            "nothing is said of it"
        );
        for (status, body) in [(200, "no json"), (200, ""), (200, "null"), (500, "")] {
            let said = read(3, status, body.as_bytes());
            assert!(matches!(said.of("1").0, Verdict::Reject(_)));
        }
        assert!(matches!(read(3, 404, b"").of("1").0, Verdict::Drop { .. }));
    }

    #[test]
    fn parses_responses_as_go_does() {
        let body = br#"{"Statuses":[{"EntryId":"1","Status":"SUCCESS"},{"entryId":"2","status":null},null,
            {"ENTRYID":"3","STATUS":"DROP","reason":{}}]} and more"#;
        let said = read(3, 200, body);
        assert_eq!(said.of("1").0, Verdict::Acknowledge);
        assert!(matches!(said.of("2").0, Verdict::Reject(_)));
        assert!(matches!(said.of("3").0, Verdict::Drop { .. }));
    }
}
