//! Requests to the Kubernetes API.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::{ApiError, ConnectError};
use crate::kind::{Kind, is_object_name};

/// Connect timeout.
const CONNECT: Duration = Duration::from_secs(5);
/// Timeout of a request, except a watch.
const REQUEST: Duration = Duration::from_secs(30);
/// Maximum size of a response in bytes: a page of a list, or a whole list.
pub(crate) const MAX_ANSWER: usize = 256 << 20;
/// Maximum size of an error response in bytes.
const MAX_REFUSAL: usize = 64 << 10;

/// A partial change to an object.
#[derive(Debug, Clone)]
pub enum Patch {
    /// JSON Patch operations (RFC 6902).
    Json(Value),
    /// A JSON merge patch (RFC 7396).
    Merge(Value),
}

/// A client of the API. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: kube::Client,
    server: Arc<str>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Client").field(&self.server).finish()
    }
}

impl Client {
    /// Uses the API of `kubeconfig`; without one, that of the pod; outside of a pod, that of the user's
    /// kubeconfig. `agent` is the user agent. Does not connect yet.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn new(kubeconfig: Option<&Path>, agent: &str) -> Result<Self, ConnectError> {
        let mut config = config(kubeconfig).await?;
        config.connect_timeout = Some(CONNECT);
        // Callers retry with backoff.
        config.default_retry = false;
        if let Ok(agent) = HeaderValue::from_str(agent) {
            config
                .headers
                .push((HeaderName::from_static("user-agent"), agent));
        }
        let server = config.cluster_url.to_string().into();
        let inner = kube::Client::try_from(config).map_err(|error| ConnectError::Setup(chain(&error)))?;
        Ok(Self { inner, server })
    }

    /// The API at an address without TLS and credentials.
    ///
    /// # Errors
    /// [`ConnectError::Setup`].
    #[cfg(any(test, feature = "testing"))]
    pub fn plain(address: std::net::SocketAddr) -> Result<Self, ConnectError> {
        let setup = |cause: String| ConnectError::Setup(cause);
        let url: http::Uri = format!("http://{address}")
            .parse()
            .map_err(|error| setup(format!("{error}")))?;
        let mut config = kube::Config::new(url);
        config.default_retry = false;
        let inner = kube::Client::try_from(config).map_err(|error| setup(chain(&error)))?;
        let server = address.to_string().into();
        Ok(Self { inner, server })
    }

    /// Gets an object by name.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn get<T: DeserializeOwned>(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<T, ApiError> {
        if !is_object_name(name) || !namespace.is_none_or(is_object_name) {
            return Err(absent(format!("{}/{name}", kind.plural)));
        }
        self.call(Method::GET, &kind.path(namespace, Some(name)), None)
            .await
    }

    /// Gets an object by name, falling back to its collection: some test servers serve only that. A
    /// response that names the absent object is final, because a caller that may get objects need not be
    /// allowed to list them.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn find<T: DeserializeOwned>(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Result<T, ApiError> {
        match self.get(kind, Some(namespace), name).await {
            Err(ApiError::NotFound { named: false, .. })
                if is_object_name(name) && is_object_name(namespace) => {}
            other => return other,
        }
        let absent = || absent(format!("{}/{namespace}/{name}", kind.plural));
        let selector = format!("fieldSelector=metadata.name%3D{name}%2Cmetadata.namespace%3D{namespace}");
        let listed = match self.all(kind, None, &selector).await {
            Ok(listed) => listed,
            // A caller that may not list has the answer of the first request.
            Err(error) if error.is_forbidden() || error.is_not_found() => return Err(absent()),
            Err(error) => return Err(error),
        };
        let wanted =
            |item: &Value| item["metadata"]["name"] == name && item["metadata"]["namespace"] == namespace;
        let found = listed.into_iter().find(wanted).ok_or_else(absent)?;
        serde_json::from_value(found)
            .map_err(|error| unusable(&kind.path(Some(namespace), Some(name)), error))
    }

    /// Creates an object.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn create<T: DeserializeOwned>(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        object: &Value,
    ) -> Result<T, ApiError> {
        let body = ("application/json", object.to_string().into());
        self.call(Method::POST, &kind.path(namespace, None), Some(body))
            .await
    }

    /// Replaces an object; one with a version only if that is still current.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn replace<T: DeserializeOwned>(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        name: &str,
        object: &Value,
    ) -> Result<T, ApiError> {
        let body = ("application/json", object.to_string().into());
        self.call(Method::PUT, &kind.path(namespace, Some(name)), Some(body))
            .await
    }

    /// Patches an object.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn patch(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        name: &str,
        patch: &Patch,
    ) -> Result<(), ApiError> {
        let (content, value) = match patch {
            Patch::Json(operations) => ("application/json-patch+json", operations),
            Patch::Merge(part) => ("application/merge-patch+json", part),
        };
        let body = (content, value.to_string().into());
        let address = kind.path(namespace, Some(name));
        self.request(Method::PATCH, &address, Some(body), MAX_ANSWER)
            .await
            .map(drop)
    }

    /// Deletes the object with this `uid`, but not a later one of the same name.
    ///
    /// # Errors
    /// [`ApiError`]; [`ApiError::Conflict`] if the name belongs to another object.
    pub async fn delete(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        name: &str,
        uid: &str,
    ) -> Result<(), ApiError> {
        let options =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}).to_string();
        let body = ("application/json", options.into());
        let address = kind.path(namespace, Some(name));
        self.request(Method::DELETE, &address, Some(body), MAX_ANSWER)
            .await
            .map(drop)
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        address: &str,
        body: Option<(&'static str, Bytes)>,
    ) -> Result<T, ApiError> {
        let bytes = self.request(method, address, body, MAX_ANSWER).await?;
        serde_json::from_slice(&bytes).map_err(|error| unusable(address, error))
    }

    /// Sends a request; returns a successful response of at most `most` bytes.
    pub(crate) async fn request(
        &self,
        method: Method,
        address: &str,
        body: Option<(&'static str, Bytes)>,
        most: usize,
    ) -> Result<Bytes, ApiError> {
        let what = format!("{method} {}", path_of(address));
        let answered = async {
            let response = self.open(method, address, body).await?;
            let collected = Limited::new(response.into_body(), most).collect().await;
            let collected = collected.map_err(|error| {
                let what = what.clone();
                match error.is::<LengthLimitError>() {
                    true => ApiError::TooLarge { what, most },
                    false => ApiError::Unreachable {
                        what,
                        cause: error.to_string(),
                    },
                }
            })?;
            Ok(collected.to_bytes())
        };
        tokio::time::timeout(REQUEST, answered).await.unwrap_or_else(|_| {
            let cause = format!("no answer within {} s", REQUEST.as_secs());
            Err(ApiError::Unreachable {
                what: what.clone(),
                cause,
            })
        })
    }

    /// Sends a request; returns a successful response.
    pub(crate) async fn open(
        &self,
        method: Method,
        address: &str,
        body: Option<(&'static str, Bytes)>,
    ) -> Result<Response<Body>, ApiError> {
        let what = format!("{method} {}", path_of(address));
        let unreachable = |cause: String| ApiError::Unreachable {
            what: what.clone(),
            cause,
        };
        let mut request = Request::builder().method(method).uri(address);
        request = request.header(header::ACCEPT, "application/json");
        let body = match body {
            None => Body::empty(),
            Some((content, bytes)) => {
                request = request.header(header::CONTENT_TYPE, content);
                Body::from(bytes.to_vec())
            }
        };
        let request = request
            .body(body)
            .map_err(|error| unreachable(error.to_string()))?;
        let response = self
            .inner
            .send(request)
            .await
            .map_err(|error| unreachable(chain(&error)))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = Limited::new(response.into_body(), MAX_REFUSAL).collect().await;
        let text = text.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        Err(refusal(what, status, &text))
    }
}

#[derive(Default, serde::Deserialize)]
struct Status {
    #[serde(default)]
    message: String,
    #[serde(default)]
    details: Option<Details>,
}

#[derive(serde::Deserialize)]
struct Details {
    #[serde(default)]
    name: String,
}

fn absent(what: String) -> ApiError {
    ApiError::NotFound { what, named: true }
}

pub(crate) fn refusal(what: String, status: StatusCode, body: &[u8]) -> ApiError {
    let Status { message, details } = serde_json::from_slice(body).unwrap_or_default();
    match status {
        StatusCode::NOT_FOUND => ApiError::NotFound {
            what,
            named: details.is_some_and(|details| !details.name.is_empty()),
        },
        StatusCode::CONFLICT => ApiError::Conflict(what),
        StatusCode::GONE => ApiError::Expired(what),
        _ => ApiError::Refused {
            what,
            status,
            message,
        },
    }
}

pub(crate) fn unusable(address: &str, error: serde_json::Error) -> ApiError {
    ApiError::Unreachable {
        what: path_of(address).to_owned(),
        cause: format!("the answer cannot be used: {error}"),
    }
}

fn path_of(address: &str) -> &str {
    address.split('?').next().unwrap_or_default()
}

async fn config(kubeconfig: Option<&Path>) -> Result<kube::Config, ConnectError> {
    if let Some(path) = kubeconfig {
        let fail = |error: kube::config::KubeconfigError| ConnectError::Kubeconfig {
            path: path.display().to_string(),
            cause: chain(&error),
        };
        let file = Kubeconfig::read_from(path).map_err(fail)?;
        let options = KubeConfigOptions::default();
        return kube::Config::from_custom_kubeconfig(file, &options)
            .await
            .map_err(fail);
    }
    let in_pod = match kube::Config::incluster() {
        Ok(config) => return Ok(config),
        Err(error) => chain(&error),
    };
    let options = KubeConfigOptions::default();
    kube::Config::from_kubeconfig(&options).await.map_err(|error| {
        ConnectError::NotFound(format!(
            "in a pod: {in_pod}; with a kubeconfig: {}",
            chain(&error)
        ))
    })
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_errors() {
        let body = br#"{"kind":"Status","message":"pods is forbidden"}"#;
        let of = |status: u16| refusal("GET /x".to_owned(), StatusCode::from_u16(status).unwrap(), body);
        assert!(of(404).is_not_found() && of(403).is_forbidden());
        assert!(of(400).is_invalid() && of(422).is_invalid() && !of(429).is_invalid());
        assert!(matches!(of(409), ApiError::Conflict(_)) && matches!(of(410), ApiError::Expired(_)));
        assert_eq!(
            of(500).to_string(),
            "the Kubernetes API refused GET /x: 500 Internal Server Error pods is forbidden"
        );
    }
}
