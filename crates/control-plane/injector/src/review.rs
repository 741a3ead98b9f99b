//! Admission reviews of pods.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use outrigger_controlplane::webhook::{check_values, offload, shown, text};
use outrigger_identity::TrustAnchors;
use outrigger_kube::annotations::{ENABLED, enables_sidecar};
use outrigger_kube::{Client, Kind, is_object_name};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::callers::{Callers, User};
use crate::config::Settings;
use crate::metrics::{Metrics, Reason};
use crate::mtls::Mtls;
use crate::patch::{self, PatchContext, Pod};

const LOG: &str = "dapr.injector";
/// Path of the webhook.
const PATH: &str = "/mutate";
const JSON: &str = "application/json";

/// API version of reviews.
const VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// Timeout of the list of components. The API server waits 10 s for a review. Reading the Configuration takes
/// a part of that, and the error must still reach the pod's creator.
const COMPONENTS_TIMEOUT: Duration = Duration::from_secs(6);
/// Maximum number of concurrent reviews that list components or hold such a list, because reviews may come
/// from other clients than the API server.
const MAX_LISTS: usize = 16;

/// Reviews pods.
#[derive(Debug)]
pub(crate) struct Reviewer {
    pub(crate) settings: Arc<Settings>,
    pub(crate) callers: Callers,
    pub(crate) anchors: TrustAnchors,
    /// Whether sidecars authenticate with a separate token.
    pub(crate) token: bool,
    pub(crate) client: Client,
    pub(crate) mtls: Mtls,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) lists: Lists,
}

/// Permits to list components.
#[derive(Debug, Clone)]
pub(crate) struct Lists(Arc<Semaphore>);

impl Default for Lists {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_LISTS)))
    }
}

/// The components of a namespace, with the permit to hold them.
type Listed = (Vec<Value>, Option<OwnedSemaphorePermit>);
/// The inputs of a patch, with the same permit.
type Known = (PatchContext, Option<OwnedSemaphorePermit>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Review {
    api_version: String,
    kind: String,
    pub(crate) request: AdmissionRequest,
}

impl Review {
    /// The problem of a body that is no review, or one of another version.
    fn foreign(&self) -> Option<String> {
        let Self {
            api_version, kind, ..
        } = self;
        (api_version != VERSION || kind != KIND).then(|| {
            let (kind, version) = (shown(kind), shown(api_version));
            format!("cannot review a {kind} of {version}: send an {KIND} of {VERSION}")
        })
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

/// The response for the API server.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) refused: Option<String>,
    pub(crate) operations: Vec<Value>,
    pub(crate) warnings: Vec<String>,
}

/// The next step of a review.
enum Step {
    /// Send this response.
    Answered(Response<Bytes>),
    /// The pod gets a sidecar; more inputs are required.
    Patch {
        namespace: String,
        wants_components: bool,
    },
}

impl Reviewer {
    /// Answers a request. While it waits for the cluster's API, only the body is kept, because the decoded
    /// pod may be much larger.
    pub(crate) async fn respond(self: &Arc<Self>, request: Request<Bytes>) -> Response<Bytes> {
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
        let body = request.into_body();
        let (reviewer, read) = (Arc::clone(self), body.clone());
        let step = offload(body.len(), move || reviewer.begin(&read)).await;
        let (namespace, wants_components) = match step {
            Step::Answered(response) => return response,
            Step::Patch {
                namespace,
                wants_components,
            } => (namespace, wants_components),
        };
        let context = self.patch_context(namespace, wants_components).await;
        let reviewer = Arc::clone(self);
        offload(body.len(), move || reviewer.end(&body, context)).await
    }

    /// The part of a review that needs no calls.
    fn begin(&self, body: &[u8]) -> Step {
        if let Err(problem) = check_values(body) {
            tracing::error!(target: LOG, "cannot read a review: it has {problem}");
            let problem = format!("cannot read the AdmissionReview: it has {problem}");
            return Step::Answered(text(StatusCode::PAYLOAD_TOO_LARGE, &problem));
        }
        let review = match serde_json::from_slice::<Review>(body) {
            Ok(review) => review,
            Err(error) => return Step::Answered(unreadable(&error)),
        };
        if let Some(problem) = review.foreign() {
            tracing::error!(target: LOG, "{problem}");
            let verdict = Verdict {
                refused: Some(problem),
                ..Verdict::default()
            };
            return Step::Answered(respond(&answer(&review, verdict)));
        }
        match self.pod(&review.request) {
            Ok(pod) => Step::Patch {
                wants_components: pod.wants_components(),
                namespace: review.request.namespace,
            },
            Err(verdict) => Step::Answered(respond(&answer(&review, verdict))),
        }
    }

    /// The response to a review whose pod gets a sidecar.
    fn end(&self, body: &[u8], context: Result<Known, String>) -> Response<Bytes> {
        let review = match serde_json::from_slice::<Review>(body) {
            Ok(review) => review,
            Err(error) => return unreadable(&error),
        };
        let verdict = match Pod::deserialize(&review.request.object) {
            Ok(pod) => match &context {
                Ok((context, _turn)) => self.patched(&review.request, &pod, context),
                Err(error) => self.refuse(pod.app_id(), error.clone()),
            },
            Err(error) => self.refuse("", format!("cannot read the pod: {error}")),
        };
        respond(&answer(&review, verdict))
    }

    /// The pod, if it may get a sidecar; otherwise the verdict.
    fn pod(&self, asked: &AdmissionRequest) -> Result<Pod, Verdict> {
        if asked.kind.kind != "Pod" {
            let kind = shown(&asked.kind.kind);
            tracing::error!(target: LOG, "asked to review {kind:?}: only pods get a sidecar");
            self.metrics.failed("", Reason::PodPatch);
            return Err(Verdict::default());
        }
        if !is_wanted(&asked.object) {
            return Err(Verdict::default());
        }
        let pod = match Pod::deserialize(&asked.object) {
            Ok(pod) => pod,
            Err(error) => return Err(self.refuse("", format!("cannot read the pod: {error}"))),
        };
        let app_id = pod.app_id();
        if !self.callers.may(&asked.user_info) {
            let (shown_id, namespace) = (shown(app_id), shown(&asked.namespace));
            let username = shown(&asked.user_info.username);
            tracing::error!(
                target: LOG,
                "the pod of app {shown_id:?} in {namespace} gets no sidecar: {username:?} may not create such pods; add its \
                 service account to dapr_sidecar_injector.allowedServiceAccounts"
            );
            self.metrics.failed(app_id, Reason::PodPatch);
            return Err(Verdict::default());
        }
        if let Err(error) = pod.check_amounts() {
            return Err(self.refuse(app_id, error));
        }
        Ok(pod)
    }

    fn patched(&self, asked: &AdmissionRequest, pod: &Pod, context: &PatchContext) -> Verdict {
        let app_id = pod.app_id();
        let operations = match patch::operations(pod, &self.settings, context) {
            Ok(operations) => operations,
            Err(error) => return self.refuse(app_id, error),
        };
        if operations.is_empty() {
            return Verdict::default();
        }
        let warnings = patch::warnings(pod, &self.settings);
        let (shown_id, namespace) = (shown(app_id), shown(&asked.namespace));
        for warning in &warnings {
            tracing::warn!(target: LOG, "pod of app {shown_id:?} in {namespace}: {warning}");
        }
        // A dry run changes nothing, so it is not counted.
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
        let (shown_id, why) = (shown(app_id), shown(&reason));
        tracing::error!(target: LOG, "the pod of app {shown_id:?} gets no sidecar: {why}");
        self.metrics.failed(app_id, Reason::Patch);
        Verdict {
            refused: Some(reason),
            ..Verdict::default()
        }
    }

    /// The inputs of the patch; the permit is held as long as the components.
    async fn patch_context(&self, namespace: String, wants_components: bool) -> Result<Known, String> {
        let (components, turn) = match wants_components {
            false => (Vec::new(), None),
            true if !is_object_name(&namespace) => {
                let namespace = shown(&namespace);
                return Err(format!("{namespace:?} is not a valid name of a namespace"));
            }
            true => self.components(&namespace).await?,
        };
        let context = PatchContext {
            namespace,
            trust_anchors: self.anchors.current().pem().to_owned(),
            mtls: self.mtls.is_on().await,
            token: self.token,
            components,
        };
        Ok((context, turn))
    }

    async fn components(&self, namespace: &str) -> Result<Listed, String> {
        let deadline = Instant::now() + COMPONENTS_TIMEOUT;
        let late = |what: &str| {
            let limit = COMPONENTS_TIMEOUT.as_secs();
            format!("error when fetching components: {what} within {limit} s")
        };
        let turn = timeout_at(deadline, Arc::clone(&self.lists.0).acquire_owned()).await;
        // The semaphore is never closed.
        let Ok(Ok(turn)) = turn else {
            return Err(late(
                "too many concurrent reviews list components, no slot was free",
            ));
        };
        let listed = self.client.all(Kind::COMPONENTS, Some(namespace), "");
        match timeout_at(deadline, listed).await {
            Ok(Ok(components)) => Ok((components, Some(turn))),
            Ok(Err(error)) => Err(format!("error when fetching components: {error}")),
            Err(_) => Err(late("the Kubernetes API did not respond")),
        }
    }
}

fn respond(body: &Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body.to_string()));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

/// The response to a body that is no review.
fn unreadable(error: &serde_json::Error) -> Response<Bytes> {
    let error = error.to_string();
    let error = shown(&error);
    tracing::error!(target: LOG, "cannot read a review: {error}");
    let status = json!({"message": format!("cannot read the AdmissionReview: {error}")});
    respond(&json!({"apiVersion": VERSION, "kind": KIND,
        "response": {"uid": "", "allowed": false, "status": status}}))
}

/// Whether a pod requests a sidecar with the exact value. A body without pod counts too, and is examined later.
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
