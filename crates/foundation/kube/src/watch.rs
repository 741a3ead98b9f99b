//! One watch of a collection: lines of events, as they come.

use std::time::Duration;

use bytes::BytesMut;
use http::Method;
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use serde_json::Value;

use crate::client::{Client, refusal};
use crate::error::ApiError;
use crate::kind::Kind;

/// Time until a watch answers.
const ANSWER: Duration = Duration::from_secs(30);
/// Silence after which a watch is given up. A server that knows bookmarks sends one each minute: two that fail to come tell
/// that it has vanished.
const SILENCE: Duration = Duration::from_secs(150);
/// Longest event, in bytes.
const MAX_EVENT: usize = 16 << 20;
/// How long a watch is asked for, in seconds, and how much longer it may be: not all end at once.
const LENGTH: (u32, u32) = (1800, 900);

/// An open watch.
pub(crate) struct Watch {
    what: String,
    body: Body,
    buffer: BytesMut,
}

/// What a watch says.
#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    /// Made or changed.
    Applied(Value),
    /// Gone.
    Removed(Value),
    /// Nothing but a newer version.
    Bookmark(Value),
}

#[derive(Deserialize)]
struct Line {
    r#type: String,
    object: Value,
}

impl Watch {
    /// Watches from `version` on; from now on, where that is empty.
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
        Ok(Self {
            what,
            body: response.into_body(),
            buffer: BytesMut::new(),
        })
    }

    /// The next event; nothing when the watch has ended in order.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, ApiError> {
        let mut searched = 0;
        loop {
            if let Some(found) = self.buffer[searched..].iter().position(|&byte| byte == b'\n') {
                let line = self.buffer.split_to(searched + found + 1);
                searched = 0;
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return self.event(&line);
            }
            searched = self.buffer.len();
            if searched > MAX_EVENT {
                return Err(self.unusable(format!("an event is longer than {MAX_EVENT} bytes")));
            }
            let frame = match tokio::time::timeout(SILENCE, self.body.frame()).await {
                Err(_) => return Ok(None),
                Ok(None) => break,
                Ok(Some(Err(error))) => return Err(self.unusable(error.to_string())),
                Ok(Some(Ok(frame))) => frame,
            };
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
        // The last line may have no end.
        let line = self.buffer.split();
        match line.iter().all(u8::is_ascii_whitespace) {
            true => Ok(None),
            false => self.event(&line),
        }
    }

    fn event(&self, line: &[u8]) -> Result<Option<Event>, ApiError> {
        let line: Line = serde_json::from_slice(line).map_err(|error| self.unusable(error.to_string()))?;
        match line.r#type.as_str() {
            "ADDED" | "MODIFIED" => Ok(Some(Event::Applied(line.object))),
            "DELETED" => Ok(Some(Event::Removed(line.object))),
            "BOOKMARK" => Ok(Some(Event::Bookmark(line.object))),
            "ERROR" => {
                let code = line.object["code"]
                    .as_u64()
                    .and_then(|code| u16::try_from(code).ok());
                let status = code.and_then(|code| http::StatusCode::from_u16(code).ok());
                let status = status.unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
                Err(refusal(
                    self.what.clone(),
                    status,
                    line.object.to_string().as_bytes(),
                ))
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
