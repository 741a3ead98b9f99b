//! Reviews of pods: what the API server asks before it stores one.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use outrigger_controlplane::webhook::text;
use outrigger_identity::TrustAnchors;
use outrigger_kube::annotations::{ENABLED, enables_sidecar};
use outrigger_kube::{Client, Kind, is_object_name};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::callers::{Callers, User};
use crate::config::Settings;
use crate::metrics::{Metrics, Reason};
use crate::mtls::Mtls;
use crate::patch::{self, PatchContext, Pod};

const LOG: &str = "dapr.injector";
/// Where the API server asks.
const PATH: &str = "/mutate";
const JSON: &str = "application/json";

/// What it asks with.
const VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// For the list of components: the API server waits 10 s for a review, the Configuration takes some of that, and whoever creates
/// the pod is told why it is refused.
const COMPONENTS_TIMEOUT: Duration = Duration::from_secs(6);

/// Reviews pods.
#[derive(Debug)]
pub(crate) struct Reviewer {
    pub(crate) settings: Settings,
    pub(crate) callers: Callers,
    pub(crate) anchors: TrustAnchors,
    /// Whether sidecars prove who they are with a token of their own.
    pub(crate) token: bool,
    pub(crate) client: Client,
    pub(crate) mtls: Mtls,
    pub(crate) metrics: Arc<Metrics>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Review {
    api_version: String,
    kind: String,
    pub(crate) request: AdmissionRequest,
}

impl Review {
    /// What is wrong where it is no review, or one of another version.
    fn foreign(&self) -> Option<String> {
        let Self {
            api_version, kind, ..
        } = self;
        (api_version != VERSION || kind != KIND)
            .then(|| format!("cannot review a {kind} of {api_version}: send an {KIND} of {VERSION}"))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AdmissionRequest {
    uid: String,
    #[serde(default)]
    kind: GroupKind,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    user_info: User,
    #[serde(default)]
    pub(crate) object: Value,
    #[serde(default)]
    dry_run: Option<bool>,
}

#[derive(Default, Deserialize)]
struct GroupKind {
    #[serde(default)]
    kind: String,
}

/// What the API server is told.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) refused: Option<String>,
    pub(crate) operations: Vec<Value>,
    pub(crate) warnings: Vec<String>,
}

impl Reviewer {
    /// Answers a request.
    pub(crate) async fn respond(&self, request: Request<Bytes>) -> Response<Full<Bytes>> {
        if request.uri().path() != PATH {
            return text(StatusCode::NOT_FOUND, "pods are reviewed at /mutate");
        }
        self.metrics.requested();
        if request.body().is_empty() {
            return text(StatusCode::BAD_REQUEST, "empty body");
        }
        let content = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        if content != Some(JSON) {
            return text(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "invalid Content-Type, expect `application/json`",
            );
        }
        let body = match serde_json::from_slice::<Review>(request.body()) {
            Ok(review) => {
                let verdict = match review.foreign() {
                    Some(problem) => {
                        tracing::error!(target: LOG, "{problem}");
                        Verdict {
                            refused: Some(problem),
                            ..Verdict::default()
                        }
                    }
                    None => self.review(&review.request).await,
                };
                answer(&review, verdict)
            }
            Err(error) => {
                tracing::error!(target: LOG, "cannot read a review: {error}");
                let status = json!({"message": format!("cannot read the AdmissionReview: {error}")});
                json!({"apiVersion": VERSION, "kind": KIND,
                    "response": {"uid": "", "allowed": false, "status": status}})
            }
        };
        let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
        response
    }

    async fn review(&self, asked: &AdmissionRequest) -> Verdict {
        if asked.kind.kind != "Pod" {
            tracing::error!(target: LOG, "asked to review {:?}: only pods get a sidecar", asked.kind.kind);
            self.metrics.failed("", Reason::PodPatch);
            return Verdict::default();
        }
        if !is_wanted(&asked.object) {
            return Verdict::default();
        }
        let pod = match Pod::deserialize(&asked.object) {
            Ok(pod) => pod,
            Err(error) => return self.refuse("", format!("cannot read the pod: {error}")),
        };
        let app_id = pod.app_id();
        if !self.callers.may(&asked.user_info) {
            let User { username, .. } = &asked.user_info;
            tracing::error!(
                target: LOG,
                "the pod of app {app_id:?} in {} gets no sidecar: {username:?} may not create such pods; add its service \
                 account to dapr_sidecar_injector.allowedServiceAccounts", asked.namespace
            );
            self.metrics.failed(app_id, Reason::PodPatch);
            return Verdict::default();
        }
        let context = match self.patch_context(&asked.namespace, &pod).await {
            Ok(context) => context,
            Err(error) => return self.refuse(app_id, error),
        };
        let operations = match patch::operations(&pod, &self.settings, &context) {
            Ok(operations) => operations,
            Err(error) => return self.refuse(app_id, error),
        };
        if operations.is_empty() {
            return Verdict::default();
        }
        let warnings = patch::warnings(&pod, &self.settings);
        for warning in &warnings {
            tracing::warn!(target: LOG, "pod of app {app_id:?} in {}: {warning}", asked.namespace);
        }
        // A trial changes nothing, so nothing is counted.
        if asked.dry_run != Some(true) {
            self.metrics.succeeded(app_id);
        }
        Verdict {
            refused: None,
            operations,
            warnings,
        }
    }

    fn refuse(&self, app_id: &str, reason: String) -> Verdict {
        tracing::error!(target: LOG, "the pod of app {app_id:?} gets no sidecar: {reason}");
        self.metrics.failed(app_id, Reason::Patch);
        Verdict {
            refused: Some(reason),
            ..Verdict::default()
        }
    }

    async fn patch_context(&self, namespace: &str, pod: &Pod) -> Result<PatchContext, String> {
        let components = match pod.wants_components() {
            false => Vec::new(),
            true if !is_object_name(namespace) => {
                return Err(format!("{namespace:?} is not a valid name of a namespace"));
            }
            true => self.components(namespace).await?,
        };
        Ok(PatchContext {
            namespace: namespace.to_owned(),
            trust_anchors: self.anchors.current().pem().to_owned(),
            mtls: self.mtls.is_on().await,
            token: self.token,
            components,
        })
    }

    async fn components(&self, namespace: &str) -> Result<Vec<Value>, String> {
        let listed = self.client.all(Kind::COMPONENTS, Some(namespace), "");
        let cause = match tokio::time::timeout(COMPONENTS_TIMEOUT, listed).await {
            Ok(Ok(components)) => return Ok(components),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!(
                "the Kubernetes API did not list them within {} s",
                COMPONENTS_TIMEOUT.as_secs()
            ),
        };
        Err(format!("error when fetching components: {cause}"))
    }
}

/// Whether a pod says that it wants a sidecar: with the one word for it. What cannot be read is looked at more closely.
pub(crate) fn is_wanted(pod: &Value) -> bool {
    match pod.as_object() {
        Some(fields) if !fields.is_empty() => {
            let enabled = pod["metadata"]["annotations"][ENABLED].as_str();
            enabled.is_some_and(enables_sidecar)
        }
        _ => true,
    }
}

pub(crate) fn answer(review: &Review, verdict: Verdict) -> Value {
    let mut response = json!({"uid": review.request.uid, "allowed": verdict.refused.is_none()});
    if let Some(message) = verdict.refused {
        response["status"] = json!({"message": message});
    }
    if !verdict.operations.is_empty() {
        let patch = Value::from(verdict.operations).to_string();
        response["patchType"] = "JSONPatch".into();
        response["patch"] = STANDARD.encode(patch).into();
    }
    if !verdict.warnings.is_empty() {
        response["warnings"] = verdict.warnings.into();
    }
    json!({"apiVersion": review.api_version, "kind": review.kind, "response": response})
}

#[cfg(test)]
mod tests;
