//! Schemas from a registry with Confluent's protocol, used like Dapr's component does: the latest schema of a
//! topic's subject for publishing, and schemas by id for reading.
//!
//! A payload is a zero byte, the schema id as four big-endian bytes, and the value in Avro's binary encoding.

mod cache;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use outrigger_component::{Error, GoDuration, Kind, Metadata, MetadataError, Result, Unit};
use outrigger_offload::offload;
use outrigger_webclient::{causes, read_body, shown};
use reqwest::{Client, StatusCode};
use serde::Deserialize;
use tokio::{sync::Semaphore, time::Instant};
use url::Url;

use self::cache::{Cache, Key};
use super::avro::{Codec, Form};

/// Timeout of fetching a schema, including the wait for other requests.
const SCHEMA_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum response size in bytes.
const MAX_ANSWER: usize = 2 * 1024 * 1024;
/// Maximum concurrent requests to the registry.
const MAX_CONCURRENT_REQUESTS: usize = 8;
/// How long a failed request is cached.
const FAILURE_TTL: Duration = Duration::from_secs(1);
/// Default time to cache the latest schema of a subject.
const LATEST_TTL: Duration = Duration::from_secs(5 * 60);
/// Length of the payload header: a zero byte and the id.
const HEADER_LEN: usize = 5;
const ACCEPTED: &str = "application/vnd.schemaregistry.v1+json, application/json";

/// A schema and its id.
#[derive(Debug)]
pub(super) struct Schema {
    id: u32,
    codec: Codec,
}

/// Why there is no schema.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    kind: Kind,
    text: Arc<str>,
}

impl Failure {
    fn new(kind: Kind, text: String) -> Self {
        Self {
            kind,
            text: text.into(),
        }
    }

    /// Whether the failure is the registry's or the client's, so that the payload may be valid.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self.kind, Kind::Unavailable | Kind::Timeout | Kind::Denied)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::new(failure.kind, &*failure.text)
    }
}

/// The registry and its cache.
pub(super) struct Registry {
    client: Client,
    base: Url,
    account: Option<(String, String)>,
    /// How long to cache the latest schema of a subject; `None` disables caching.
    latest: Option<Duration>,
    form: Form,
    places: Semaphore,
    known: Mutex<Cache>,
}

#[derive(Deserialize)]
struct Answer {
    /// Only in responses for a subject.
    id: Option<u32>,
    schema: String,
    /// Absent for Avro.
    #[serde(rename = "schemaType")]
    kind: Option<String>,
    #[serde(default)]
    references: Vec<Reference>,
}

#[derive(Deserialize)]
struct Reference {
    name: String,
}

#[derive(Deserialize)]
struct Refusal {
    error_code: i64,
}

impl Registry {
    /// `None` if no registry is configured.
    pub(super) fn read(metadata: &Metadata) -> Result<Option<Self>, MetadataError> {
        let name = &["schemaRegistryURL"];
        let url = metadata.filled(name);
        let key = metadata.filled(&["schemaRegistryAPIKey"]);
        let secret = metadata.filled(&["schemaRegistryAPISecret"]);
        let caching = metadata.flag(&["schemaCachingEnabled"], true);
        let latest = metadata.duration(&["schemaLatestVersionCacheTTL"], Unit::Seconds)?;
        let tagged = metadata.flag(&["useAvroJSON"], false);
        let Some(url) = url else {
            return Ok(None);
        };
        let base = Url::parse(url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .ok_or_else(|| metadata.wrong(name, "an http:// or https:// URL is expected"))?;
        let client =
            outrigger_webclient::client(&base).map_err(|error| metadata.wrong(name, &error.to_string()))?;
        Ok(Some(Self {
            client,
            base,
            account: key.map(|key| (key.to_owned(), secret.unwrap_or_default().to_owned())),
            latest: caching.then(|| latest.and_then(GoDuration::positive).unwrap_or(LATEST_TTL)),
            form: if tagged { Form::Tagged } else { Form::Plain },
            places: Semaphore::new(MAX_CONCURRENT_REQUESTS),
            known: Mutex::default(),
        }))
    }

    /// Encodes JSON by the topic's latest schema, in at most `most` bytes.
    ///
    /// # Errors
    /// There is no schema, or the text does not fit it.
    pub(super) async fn encode(&self, topic: &str, json: Bytes, most: usize) -> Result<Bytes> {
        let subject = format!("{topic}-value");
        let schema = self.latest(&subject).await?;
        let form = self.form;
        let made = offload(json.len(), move || {
            let mut start = vec![0];
            start.extend(schema.id.to_be_bytes());
            let made = schema.codec.encode(&json, form, start, most);
            made.map_err(|error| format!("schema {} of the subject {subject:?}: {error}", schema.id))
        });
        made.await
            .map(Bytes::from)
            .map_err(|text| Error::invalid_request(format!("the message does not fit {text}")))
    }

    /// Decodes a payload to JSON.
    ///
    /// # Errors
    /// Why the payload is invalid.
    pub(super) fn decode(&self, schema: &Schema, payload: &[u8]) -> Result<Bytes, String> {
        let value = payload.get(HEADER_LEN..).unwrap_or_default();
        let decoded = schema.codec.decode(value, self.form);
        decoded.map_err(|error| format!("it does not match schema {}: {error}", schema.id))
    }

    /// The latest schema of a subject.
    async fn latest(&self, subject: &str) -> Result<Arc<Schema>, Failure> {
        let key = Key::Subject(subject.to_owned());
        let path = ["subjects", subject, "versions", "latest"];
        self.find(key, &path, self.latest).await
    }

    /// The schema with this id; ids are never reused.
    ///
    /// # Errors
    /// [`Failure`].
    pub(super) async fn by_id(&self, id: u32) -> Result<Arc<Schema>, Failure> {
        let path = ["schemas", "ids", &id.to_string()];
        self.find(Key::Id(id), &path, Some(Duration::MAX)).await
    }

    /// The cached schema or failure for an id; `None` if not cached.
    pub(super) fn known(&self, id: u32) -> Option<Result<Arc<Schema>, Failure>> {
        self.lock().get(&Key::Id(id), Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `keep`: how long to cache the schema; `None` to use it once.
    async fn find(&self, key: Key, path: &[&str], keep: Option<Duration>) -> Result<Arc<Schema>, Failure> {
        if let Some(known) = self.lock().get(&key, Instant::now()) {
            return known;
        }
        let asking = async {
            // The semaphore is never closed.
            let _place = self.places.acquire().await;
            // An earlier holder of the permit may have fetched the same schema.
            if let Some(known) = self.lock().get(&key, Instant::now()) {
                return known;
            }
            self.ask(&key, path).await
        };
        let found = match tokio::time::timeout(SCHEMA_TIMEOUT, asking).await {
            Ok(found) => found,
            Err(_) => Err(self.failed(
                path,
                Kind::Timeout,
                &format!("no answer within {SCHEMA_TIMEOUT:?}"),
            )),
        };
        let keep = if found.is_ok() { keep } else { Some(FAILURE_TTL) };
        if let Some(keep) = keep {
            self.lock().insert(key, found.clone(), keep, Instant::now());
        }
        found
    }

    fn url(&self, path: &[&str]) -> Url {
        let mut url = self.base.clone();
        // A URL with a host always has a path.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    fn failed(&self, path: &[&str], kind: Kind, why: &str) -> Failure {
        let url = shown(&self.url(path));
        Failure::new(kind, format!("the schema registry at {url}: {why}"))
    }

    async fn ask(&self, key: &Key, path: &[&str]) -> Result<Arc<Schema>, Failure> {
        let failed = |kind, why: &str| self.failed(path, kind, why);
        let mut request = self.client.get(self.url(path)).header("accept", ACCEPTED);
        if let Some((key, secret)) = &self.account {
            request = request.basic_auth(key, Some(secret));
        }
        let response = request.send().await;
        let response = response.map_err(|error| failed(Kind::Unavailable, &causes(&error)))?;
        let status = response.status();
        let body = read_body(response, MAX_ANSWER).await;
        let body = body.map_err(|error| failed(Kind::Unavailable, &error.to_string()))?;
        if !status.is_success() {
            let (kind, why) = refused(key, status, &body);
            return Err(failed(kind, &why));
        }
        // The body is not shown, because it is untrusted.
        let answer: Answer = serde_json::from_slice(&body)
            .map_err(|_| failed(Kind::Unavailable, "its answer does not describe a schema"))?;
        let unusable = |why: &str| failed(Kind::InvalidRequest, why);
        if let Some(kind) = answer.kind.filter(|kind| kind != "AVRO") {
            return Err(unusable(&format!(
                "the schema type is {kind:?}, but valueSchemaType is Avro"
            )));
        }
        if let Some(reference) = answer.references.first() {
            let text = format!(
                "the schema refers to {:?} in another subject, which is not supported: register it with all of its types",
                reference.name
            );
            return Err(unusable(&text));
        }
        let id = match (key, &answer.id) {
            (Key::Id(id), _) | (Key::Subject(_), Some(id)) => *id,
            (Key::Subject(_), None) => return Err(failed(Kind::Unavailable, "its answer has no id")),
        };
        let codec = parsed(answer.schema)
            .await
            .map_err(|why| unusable(&format!("schema {id} cannot be used: {why}")))?;
        Ok(Arc::new(Schema { id, codec }))
    }
}

/// Parses a schema, offloaded if large.
async fn parsed(schema: String) -> Result<Codec, String> {
    offload(schema.len(), move || Codec::parse(&schema)).await
}

/// Kind and text of an error response.
fn refused(key: &Key, status: StatusCode, body: &[u8]) -> (Kind, String) {
    let code = serde_json::from_slice::<Refusal>(body).ok();
    let code = code.map(|refusal| format!(" (error_code {})", refusal.error_code));
    let code = code.unwrap_or_default();
    match status {
        StatusCode::NOT_FOUND => {
            let what = match key {
                Key::Id(id) => format!("it has no schema {id}"),
                Key::Subject(subject) => format!("it has no subject {subject:?}: register a schema for it"),
            };
            (Kind::NotFound, format!("{what}{code}"))
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let text =
                format!("it answered {status}{code}: check schemaRegistryAPIKey and schemaRegistryAPISecret");
            (Kind::Denied, text)
        }
        status => (Kind::Unavailable, format!("it answered {status}{code}")),
    }
}

/// The schema id of a payload.
///
/// # Errors
/// The payload has no schema id.
pub(super) fn schema_id(payload: &[u8]) -> Result<u32, &'static str> {
    match payload {
        [0, a, b, c, d, ..] => Ok(u32::from_be_bytes([*a, *b, *c, *d])),
        _ => Err("it does not begin with a schema id: it was published without valueSchemaType Avro"),
    }
}

#[cfg(test)]
mod tests;
