//! Authenticates pods by the token of their service account, which the cluster reviews.
//!
//! Pods and Configurations are read on demand. Certificates are requested only twice per lifetime, so no
//! watch is needed: a deleted pod is refused at once, and a new pod is found.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use outrigger_identity::{DEFAULT_TRUST_DOMAIN, SpiffeId, TrustDomain};
use outrigger_kube::annotations::{APP_ID, CONFIG, CONTROL_PLANE};
use outrigger_kube::{ApiError, Client, Kind};
use outrigger_wire::sentry::v1::SignCertificateRequest;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

use super::check_common;

const LOG: &str = "dapr.sentry.validator.kubernetes";
/// Accepted audience of tokens, in addition to sentry's SPIFFE id.
const AUDIENCE: &str = "dapr.io/sentry";
/// Services of the control plane.
const PARTS: [&str; 5] = ["operator", "placement", "injector", "sentry", "scheduler"];
/// Maximum length of a token in bytes.
const MAX_TOKEN: usize = 64 << 10;
/// Maximum number of concurrent requests to the API, and how long others wait for a slot.
const MAX_CONCURRENT: usize = 64;
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// Validates tokens.
#[derive(Debug, Clone)]
pub(crate) struct KubernetesValidator {
    client: Client,
    sentry: SpiffeId,
    turns: Arc<Semaphore>,
}

#[derive(Deserialize)]
struct Review {
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    authenticated: bool,
    #[serde(default)]
    error: String,
    #[serde(default)]
    user: User,
}

#[derive(Default, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Deserialize)]
struct Pod {
    #[serde(default)]
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
}

#[derive(Default, Deserialize)]
struct Meta {
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    service_account_name: Option<String>,
}

impl KubernetesValidator {
    pub(crate) fn new(client: Client, sentry: SpiffeId) -> Self {
        Self {
            client,
            sentry,
            turns: Arc::new(Semaphore::new(MAX_CONCURRENT)),
        }
    }

    /// The identity of the pod that owns the token, if that is the requested one.
    ///
    /// # Errors
    /// The reason for the refusal, as reported to the sidecar.
    pub(crate) async fn validate(&self, request: &SignCertificateRequest) -> Result<SpiffeId, String> {
        // Checks without the API come first.
        check_common(request)?;
        let pod_name = pod_of(&request.token)?;
        let turn = tokio::time::timeout(QUEUE_TIMEOUT, self.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            return Err("too many concurrent certificate requests: retry later".to_owned());
        };
        let (namespace, account) = self.review(&request.token).await?;
        let pod: Pod = self
            .client
            .find(Kind::PODS, &namespace, &pod_name)
            .await
            .map_err(|error| failed("failed to get pod of identity", &error))?;
        if namespace != request.namespace {
            return Err(format!(
                "namespace mismatch; received namespace: {}",
                request.namespace
            ));
        }
        if pod.spec.service_account_name.as_deref().unwrap_or_default() != account {
            return Err("pod service account mismatch".to_owned());
        }
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let part = annotations.get(CONTROL_PLANE);
        let expected = match part {
            Some(part) => self.control_plane(part, &namespace, &annotations)?,
            None => annotations.get(APP_ID).cloned().unwrap_or(pod_name),
        };
        if expected != request.id {
            return Err(format!(
                "app-id mismatch. expected: {expected}, received: {}",
                request.id
            ));
        }
        let trust_domain = match part {
            Some(_) => self.sentry.trust_domain().to_owned(),
            None => self.trust_domain(&namespace, annotations.get(CONFIG)).await?,
        };
        let trust_domain: TrustDomain = trust_domain.parse().map_err(|error| format!("{error}"))?;
        SpiffeId::new(&trust_domain, &namespace, &expected)
            .map_err(|error| format!("failed to construct SPIFFE ID for requestor: {error}"))
    }

    /// Namespace and name of the service account of a token.
    async fn review(&self, token: &str) -> Result<(String, String), String> {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE, self.sentry.as_str()]},
        });
        let answer: Result<Review, ApiError> = self.client.create(Kind::TOKEN_REVIEWS, None, &review).await;
        let Status {
            authenticated,
            error,
            user,
        } = answer
            .map_err(|error| failed("token review failed", &error))?
            .status;
        if !error.is_empty() {
            return Err(format!("invalid token: {error}"));
        }
        if !authenticated {
            return Err("authentication failed".to_owned());
        }
        match user.username.split(':').collect::<Vec<_>>()[..] {
            ["system", _, namespace, account] => Ok((namespace.to_owned(), account.to_owned())),
            _ => Err("provided token is not a properly structured service account token".to_owned()),
        }
    }

    /// The app id of a control plane service.
    fn control_plane(
        &self,
        part: &str,
        namespace: &str,
        annotations: &BTreeMap<String, String>,
    ) -> Result<String, String> {
        if namespace != self.sentry.namespace() {
            return Err(format!(
                "the annotation {CONTROL_PLANE} is allowed only for pods of the namespace {}",
                self.sentry.namespace()
            ));
        }
        if !PARTS.contains(&part) {
            return Err(format!(
                "unknown value {part:?} of the annotation {CONTROL_PLANE}"
            ));
        }
        if annotations.contains_key(APP_ID) {
            return Err(format!("a pod has either {CONTROL_PLANE} or {APP_ID}, not both"));
        }
        Ok(format!("dapr-{part}"))
    }

    /// The trust domain of an app, from its Configuration.
    async fn trust_domain(&self, namespace: &str, config: Option<&String>) -> Result<String, String> {
        let Some(name) = config else {
            return Ok(DEFAULT_TRUST_DOMAIN.to_owned());
        };
        let found: Value = self
            .client
            .find(Kind::CONFIGURATIONS, namespace, name)
            .await
            .map_err(|error| failed("failed to get configuration", &error))?;
        let given = found["spec"]["accessControl"]["trustDomain"].as_str();
        Ok(given
            .filter(|given| !given.is_empty())
            .unwrap_or(DEFAULT_TRUST_DOMAIN)
            .to_owned())
    }
}

/// The error for the caller names the failed step only; the cause goes to the log.
fn failed(what: &str, error: &ApiError) -> String {
    tracing::error!(target: LOG, "{what}: {error}");
    what.to_owned()
}

/// The pod named in a token; only the review proves it.
fn pod_of(token: &str) -> Result<String, String> {
    if token.is_empty() {
        return Err("invalid request: token is required".to_owned());
    }
    if token.len() > MAX_TOKEN {
        return Err(format!(
            "invalid request: the token is longer than {MAX_TOKEN} bytes"
        ));
    }
    let claims = claims(token).ok_or_else(|| "failed to parse Kubernetes token".to_owned())?;
    let name = claims["kubernetes.io"]["pod"]["name"]
        .as_str()
        .filter(|name| !name.is_empty());
    name.map(str::to_owned)
        .ok_or_else(|| "kubernetes.io/pod/name claim is missing from Kubernetes token".to_owned())
}

/// The claims of a JWT, or of its claims part alone.
fn claims(token: &str) -> Option<Value> {
    if token.starts_with('{') {
        return serde_json::from_str(token).ok();
    }
    let mut parts = token.split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

#[cfg(test)]
mod tests;
