//! One watch of a collection: a stream of event lines.

use std::time::Duration;

use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use http::Method;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::io::StreamReader;

use crate::client::{Client, refusal};
use crate::error::ApiError;
use crate::kind::Kind;

/// Timeout until a watch responds.
const ANSWER: Duration = Duration::from_secs(30);
/// Time without an event after which a watch is reopened. A server with bookmarks sends one per minute:
/// after two missing ones the connection is considered dead.
const SILENCE: Duration = Duration::from_secs(150);
/// Maximum size of an event in bytes.
const MAX_EVENT: usize = 16 << 20;
/// Requested duration of a watch in seconds, and its maximum random extension, so that watches do not end
/// in step.
const LENGTH: (u32, u32) = (1800, 900);

/// An open watch.
pub(crate) struct Watch {
    what: String,
    lines: BoxStream<'static, Result<String, LinesCodecError>>,
}

/// An event of a watch, with its object.
#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    /// Created or changed.
    Applied(Value),
    Removed(Value),
    /// The collection has a newer version.
    Bookmark(Value),
}

#[derive(Deserialize)]
struct Line {
    r#type: String,
    object: Value,
}

impl Watch {
    /// Watches from `version`; from the current state if that is empty.
    pub(crate) async fn open(
        client: &Client,
        kind: Kind,
        namespace: Option<&str>,
        query: &str,
        version: &str,
    ) -> Result<Self, ApiError> {
        let seconds = LENGTH.0 + rand::random_range(0..LENGTH.1);
        let path = kind.path(namespace, None);
        let mut address = format!("{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}");
        if !version.is_empty() {
            address.push_str("&resourceVersion=");
            address.push_str(version);
        }
        if !query.is_empty() {
            address.push('&');
            address.push_str(query);
        }
        let what = format!("watch of {path}");
        let opened = tokio::time::timeout(ANSWER, client.open(Method::GET, &address, None)).await;
        let response = opened.map_err(|_| ApiError::Unreachable {
            what: what.clone(),
            cause: format!("no answer within {} s", ANSWER.as_secs()),
        })??;
        let body = response.into_body().into_data_stream();
        let body = StreamReader::new(body.map_err(std::io::Error::other));
        let lines = FramedRead::new(body, LinesCodec::new_with_max_length(MAX_EVENT)).boxed();
        Ok(Self { what, lines })
    }

    /// The next event; `None` if the watch has ended normally.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, ApiError> {
        loop {
            let line = match tokio::time::timeout(SILENCE, self.lines.next()).await {
                Err(_) | Ok(None) => return Ok(None),
                Ok(Some(Ok(line))) => line,
                Ok(Some(Err(LinesCodecError::Io(error)))) => return Err(self.unusable(error.to_string())),
                Ok(Some(Err(LinesCodecError::MaxLineLengthExceeded))) => {
                    return Err(self.unusable(format!("an event is longer than {MAX_EVENT} bytes")));
                }
            };
            if !line.trim_ascii().is_empty() {
                return self.event(&line).map(Some);
            }
        }
    }

    fn event(&self, line: &str) -> Result<Event, ApiError> {
        let line = serde_json::from_str(line).map_err(|error| self.unusable(error.to_string()))?;
        let Line { r#type, object } = line;
        match r#type.as_str() {
            "ADDED" | "MODIFIED" => Ok(Event::Applied(object)),
            "DELETED" => Ok(Event::Removed(object)),
            "BOOKMARK" => Ok(Event::Bookmark(object)),
            "ERROR" => {
                let code = object["code"].as_u64().and_then(|code| u16::try_from(code).ok());
                let status = code.and_then(|code| http::StatusCode::from_u16(code).ok());
                let status = status.unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
                Err(refusal(self.what.clone(), status, object.to_string().as_bytes()))
            }
            other => Err(self.unusable(format!("an event of the unknown type {other:?}"))),
        }
    }

    fn unusable(&self, cause: String) -> ApiError {
        ApiError::Unreachable {
            what: self.what.clone(),
            cause,
        }
    }
}
