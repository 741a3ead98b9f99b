//! Maps errors of building blocks to HTTP and gRPC errors; no other module does. Codes, statuses and texts:
//! error catalogue of Dapr 1.18.

mod actors;
mod bindings;
mod configuration;
mod conversation;
mod crypto;
mod jobs;
mod lock;
mod pubsub;
mod secrets;
mod state;
mod workflow;

use std::borrow::Cow;

use http::{HeaderValue, Response, StatusCode};
use outrigger_component::ApiStatus;
use outrigger_transport::body::{Body, TooMuchUnfinished};
use outrigger_transport::response::{bytes_response, text_response};
use serde::Serialize;
use serde_json::{Value, json};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::metadata::MetadataError;

pub use actors::actor_status;

/// Media type of almost every body.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Domain of every error detail.
const DOMAIN: &str = "dapr.io";

/// An error in the form that both APIs report.
#[derive(Debug, Clone)]
pub struct ApiError {
    /// The stable name, `ERR_…`, or a code set by a component.
    pub code: Cow<'static, str>,
    /// The category of `error_code_total`.
    pub category: &'static str,
    /// Status over HTTP.
    pub http: StatusCode,
    /// Code over gRPC.
    pub grpc: Code,
    /// The failure, its subject and the remedy.
    pub message: String,
    /// Machine-readable details; empty for the simple form.
    pub details: Vec<Detail>,
    /// Whether the simple form still names its code over gRPC, in an ErrorInfo.
    pub named_over_grpc: bool,
}

/// A detail message of an error.
#[derive(Debug, Clone)]
pub enum Detail {
    /// `google.rpc.ErrorInfo`.
    ErrorInfo {
        /// The reason code.
        reason: &'static str,
        /// Context, such as the app id. Over HTTP, `None` is `null` and an empty list is `{}`.
        metadata: Option<Vec<(String, String)>>,
    },
    /// `google.rpc.ErrorInfo` of a component.
    Foreign {
        /// The component's reason code.
        reason: String,
        /// The domain of its reason code.
        domain: String,
    },
    /// `google.rpc.ResourceInfo`.
    ResourceInfo {
        /// Kind of resource.
        kind: String,
        /// `resource_name`.
        name: String,
        /// The problem; may be empty.
        description: String,
    },
    /// Name of the invalid request field.
    BadRequest {
        /// Name of the member of the request that is wrong.
        field: String,
        /// The reason, for the message.
        description: String,
    },
    /// `google.rpc.Help` with one link.
    Help {
        /// Address of the page.
        url: &'static str,
        /// Description of the page.
        description: &'static str,
    },
}

/// The HTTP form of an error. Tools match the text, so the order of members matters.
#[derive(Serialize)]
struct ErrorBody<'a> {
    #[serde(rename = "errorCode")]
    code: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    details: Vec<Value>,
}

impl ApiError {
    fn new(
        code: &'static str,
        category: &'static str,
        http: StatusCode,
        grpc: Code,
        message: impl Into<String>,
    ) -> Self {
        Self {
            code: Cow::Borrowed(code),
            category,
            http,
            grpc,
            message: message.into(),
            details: Vec::new(),
            named_over_grpc: false,
        }
    }

    /// A refusal without a code: over HTTP its body is this text alone, and it is not counted.
    pub fn plain(http: StatusCode, message: impl Into<String>) -> Self {
        Self::new("", "", http, Code::InvalidArgument, message)
    }

    /// Whether this is one of [`ApiError::plain`].
    pub fn is_plain(&self) -> bool {
        self.code.is_empty()
    }

    /// The request names no target in path or headers.
    pub fn no_app_id() -> Self {
        Self::new(
            "ERR_DIRECT_INVOKE",
            "service-invocation",
            StatusCode::NOT_FOUND,
            Code::NotFound,
            "failed getting app id either from the URL path or the header dapr-app-id",
        )
    }

    /// An invocation that got no response from the app. Over gRPC it is always `Internal` with the cause in
    /// its text.
    pub fn invoke(target: &str, http: StatusCode, cause: &str) -> Self {
        Self::new(
            "ERR_DIRECT_INVOKE",
            "service-invocation",
            http,
            Code::Internal,
            format!("failed to invoke, id: {target}, err: {cause}"),
        )
    }

    /// A request with a non-standard HTTP method.
    pub fn method_not_implemented(method: &str) -> Self {
        Self::new(
            "ERR_API_UNIMPLEMENTED",
            "common",
            StatusCode::NOT_IMPLEMENTED,
            Code::Unimplemented,
            format!(
                "the method {method} is not implemented: use GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS or TRACE"
            ),
        )
    }

    /// A metadata attribute that was refused.
    pub fn metadata(error: &MetadataError) -> Self {
        Self::new(
            "ERR_BAD_REQUEST",
            "common",
            StatusCode::BAD_REQUEST,
            match error {
                MetadataError::TooMany => Code::ResourceExhausted,
                MetadataError::Key | MetadataError::Value => Code::InvalidArgument,
            },
            error.to_string(),
        )
    }

    /// A response that cannot be translated.
    pub fn malformed_response(cause: &str) -> Self {
        Self::new(
            "ERR_MALFORMED_RESPONSE",
            "common",
            StatusCode::INTERNAL_SERVER_ERROR,
            Code::Internal,
            cause,
        )
    }

    /// Health targets that are not ready yet.
    pub fn not_ready(targets: &[String]) -> Self {
        Self::new(
            "ERR_HEALTH_NOT_READY",
            "health",
            StatusCode::INTERNAL_SERVER_ERROR,
            Code::Internal,
            format!("dapr is not ready: [{}]", targets.join(" ")),
        )
    }

    /// `/healthz?appid=` with the id of another app.
    pub fn app_id_mismatch() -> Self {
        Self::new(
            "ERR_HEALTH_APPID_NOT_MATCH",
            "health",
            StatusCode::INTERNAL_SERVER_ERROR,
            Code::Internal,
            "dapr app-id does not match",
        )
    }

    /// Outbound calls are not possible yet, or for `reason`.
    pub fn outbound_not_ready(reason: Option<&str>) -> Self {
        let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
        Self::new(
            "ERR_OUTBOUND_HEALTH_NOT_READY",
            "health",
            StatusCode::INTERNAL_SERVER_ERROR,
            Code::Internal,
            format!("dapr outbound is not ready{reason}"),
        )
    }

    /// A request with an invalid name; `message` is the whole text.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(
            "ERR_BAD_REQUEST",
            "common",
            StatusCode::BAD_REQUEST,
            Code::InvalidArgument,
            message,
        )
    }

    /// A body that could not be read, for example because it exceeds the limit.
    pub fn body_read(cause: &str) -> Self {
        Self::new(
            "ERR_BODY_READ",
            "common",
            StatusCode::BAD_REQUEST,
            Code::InvalidArgument,
            format!("failed to read request body: {cause}"),
        )
    }

    /// A body refused before it was complete, because the sidecar buffers too many incomplete requests.
    pub fn too_much_unfinished(cause: TooMuchUnfinished) -> Self {
        Self {
            http: StatusCode::SERVICE_UNAVAILABLE,
            grpc: Code::ResourceExhausted,
            ..Self::body_read(&cause.to_string())
        }
    }

    /// Adds a detail, which makes the error a rich one.
    #[must_use]
    pub fn with_detail(mut self, detail: Detail) -> Self {
        self.details.push(detail);
        self
    }

    /// A body of the wrong form; `message` is the whole text.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(
            "ERR_MALFORMED_REQUEST",
            "common",
            StatusCode::BAD_REQUEST,
            Code::InvalidArgument,
            message,
        )
    }

    /// A message whose JSON does not match its type.
    pub fn malformed_message(cause: &str) -> Self {
        Self::malformed(format!("failed deserializing HTTP body: {cause}"))
    }

    /// An error that a component returned, passed on whole.
    pub fn from_component(status: &ApiStatus) -> Self {
        let is_error = |code: &StatusCode| code.is_client_error() || code.is_server_error();
        let http = StatusCode::from_u16(status.http).ok().filter(is_error);
        let code = if status.tag.is_empty() {
            &status.reason
        } else {
            &status.tag
        };
        Self {
            code: Cow::Owned(code.clone()),
            category: "pluggable-component",
            http: http.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            grpc: Code::from_i32(status.grpc),
            message: status.message.clone(),
            details: vec![Detail::Foreign {
                reason: status.reason.clone(),
                domain: status.domain.clone(),
            }],
            named_over_grpc: false,
        }
    }

    /// The name it is counted under. All codes of components share one series, because their number is
    /// unbounded.
    pub fn counted_as(&self) -> &str {
        match &self.code {
            Cow::Borrowed(code) => code,
            Cow::Owned(_) => "ERR_PLUGGABLE_COMPONENT",
        }
    }

    #[must_use]
    fn named_over_grpc(mut self) -> Self {
        self.named_over_grpc = true;
        self
    }

    /// As an HTTP response.
    pub fn into_response(self) -> Response<Body> {
        if self.is_plain() {
            return text_response(self.http, &self.message);
        }
        let body = ErrorBody {
            code: &self.code,
            message: &self.message,
            details: self.details.iter().map(Detail::json).collect(),
        };
        // Serialising texts and JSON cannot fail.
        let text = serde_json::to_vec(&body).unwrap_or_default();
        bytes_response(self.http, JSON, text.into())
    }

    /// As a gRPC status.
    pub fn status(&self) -> Status {
        let mut details = ErrorDetails::new();
        if self.named_over_grpc {
            details.set_error_info(self.code.as_ref(), DOMAIN, std::collections::HashMap::new());
        } else if self.details.is_empty() {
            return Status::new(self.grpc, self.message.clone());
        }
        for detail in &self.details {
            match detail {
                Detail::ErrorInfo { reason, metadata } => {
                    details.set_error_info(
                        *reason,
                        DOMAIN,
                        metadata
                            .iter()
                            .flatten()
                            .cloned()
                            .collect::<std::collections::HashMap<_, _>>(),
                    );
                }
                Detail::Foreign { reason, domain } => {
                    let none = std::collections::HashMap::new();
                    details.set_error_info(reason.as_str(), domain.as_str(), none);
                }
                Detail::ResourceInfo {
                    kind,
                    name,
                    description,
                } => {
                    details.set_resource_info(kind.as_str(), name.as_str(), "", description.as_str());
                }
                Detail::BadRequest { field, description } => {
                    details.add_bad_request_violation(field.as_str(), description.as_str());
                }
                Detail::Help { url, description } => {
                    details.add_help_link(*description, *url);
                }
            }
        }
        Status::with_error_details(self.grpc, self.message.clone(), details)
    }
}

impl Detail {
    fn json(&self) -> Value {
        match self {
            Self::ErrorInfo { reason, metadata } => json!({
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": reason,
                "domain": DOMAIN,
                "metadata": metadata.as_ref().map_or(Value::Null, |metadata| {
                    metadata.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect::<serde_json::Map<_, _>>().into()
                }),
            }),
            Self::Foreign { reason, domain } => json!({
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": reason,
                "domain": domain,
                "metadata": Value::Null,
            }),
            Self::ResourceInfo {
                kind,
                name,
                description,
            } => json!({
                "@type": "type.googleapis.com/google.rpc.ResourceInfo",
                "resource_type": kind,
                "resource_name": name,
                "owner": "",
                "description": description,
            }),
            Self::BadRequest { field, description } => json!({
                "@type": "type.googleapis.com/google.rpc.BadRequest",
                "field_violations": [{ "field": field, "description": description }],
            }),
            Self::Help { url, description } => json!({
                "@type": "type.googleapis.com/google.rpc.Help",
                "links": [{ "url": url, "description": description }],
            }),
        }
    }
}

/// A response with `body` and the content type `application/json`.
pub fn json_response(status: StatusCode, body: &Value) -> Response<Body> {
    bytes_response(status, JSON, body.to_string().into())
}

#[cfg(test)]
mod tests;
