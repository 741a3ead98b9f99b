use std::{error::Error as StdError, fmt, sync::Arc};

use outrigger_redact::Secrets;

use crate::{MetadataError, Pairs};

/// Kinds of errors that API answers and retries distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The stored ETag differs (HTTP 409, gRPC `Aborted`).
    EtagMismatch,
    /// The ETag is not valid for this store (HTTP 400, gRPC `InvalidArgument`).
    InvalidEtag,
    /// The requested item does not exist.
    NotFound,
    /// The component does not support the operation.
    Unsupported,
    /// The request is malformed: an option, a TTL or a key.
    InvalidRequest,
    /// A property of the component is missing or wrong.
    Configuration,
    /// The outside system rejected the component's credentials or permissions.
    Denied,
    /// The outside system is unreachable or the connection broke; a retry may help.
    Unavailable,
    /// No answer before the deadline; a retry may help.
    Timeout,
    /// The answer exceeds its limit; a retry does not help.
    TooLarge,
    /// The component was closed.
    Closed,
    /// Anything else.
    Internal,
}

/// An error of a component.
///
/// The text leaves out the component's name where the API adds it; see [`Error::component`].
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    component: Option<Arc<str>>,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
    metadata: Pairs,
    api_status: Option<ApiStatus>,
    code: Option<i32>,
    property: Option<String>,
    /// Further errors of the same component.
    others: Vec<Error>,
}

/// An API status chosen by the component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiStatus {
    /// The gRPC code, 1 to 16.
    pub grpc: i32,
    /// The HTTP status, 400 to 599.
    pub http: u16,
    /// The status text.
    pub message: String,
    /// The error code in HTTP bodies; `reason` if empty.
    pub tag: String,
    /// The reason of its `google.rpc.ErrorInfo`.
    pub reason: String,
    /// The domain of its `google.rpc.ErrorInfo`.
    pub domain: String,
}

impl Error {
    /// An error of `kind`. `message` says what failed and, if possible, how to fix it.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            component: None,
            message: message.into(),
            source: None,
            metadata: Pairs::new(),
            api_status: None,
            code: None,
            property: None,
            others: Vec::new(),
        }))
    }

    /// The stored ETag differs.
    pub fn etag_mismatch() -> Self {
        Self::new(Kind::EtagMismatch, "")
    }

    /// `cause` says why the ETag is not valid for this store.
    pub fn invalid_etag(cause: impl Into<String>) -> Self {
        Self::new(Kind::InvalidEtag, cause)
    }

    /// The component does not support `what`.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::new(Kind::Unsupported, what)
    }

    /// The request is malformed.
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(Kind::InvalidRequest, message)
    }

    /// The component was closed.
    pub fn closed() -> Self {
        Self::new(Kind::Closed, "the component is closed")
    }

    /// Names the component.
    #[must_use]
    pub fn of(mut self, component: &Arc<str>) -> Self {
        self.0.component = Some(component.clone());
        self
    }

    /// Adds the cause. Its text follows the message.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(cause.into());
        self
    }

    /// Adds response metadata from the outside system; the caller of a binding receives it with the error.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Pairs) -> Self {
        self.0.metadata = metadata;
        self
    }

    /// Response metadata from the outside system.
    pub fn metadata(&self) -> &Pairs {
        &self.0.metadata
    }

    /// Sets the status returned to API callers.
    #[must_use]
    pub fn with_api_status(mut self, api_status: ApiStatus) -> Self {
        self.0.api_status = Some(api_status);
        self
    }

    /// Replaces each secret with `***`: outside systems may echo credentials.
    #[must_use]
    pub fn without(mut self, secrets: &Secrets) -> Self {
        let inner = &mut self.0;
        let clear = |text: &mut String| *text = secrets.redact(text);
        if let Some(source) = &inner.source {
            let source = source.to_string();
            let cleared = secrets.redact(&source);
            if cleared != source {
                inner.source = Some(cleared.into());
            }
        }
        clear(&mut inner.message);
        inner.metadata.values_mut().for_each(clear);
        if let Some(status) = &mut inner.api_status {
            clear(&mut status.message);
        }
        let others = std::mem::take(&mut inner.others);
        inner.others = others.into_iter().map(|other| other.without(secrets)).collect();
        self
    }

    /// The status returned to API callers, if the component set one.
    pub fn api_status(&self) -> Option<&ApiStatus> {
        self.0.api_status.as_ref()
    }

    /// Sets the gRPC code of the outside system's answer, 1 to 16, for retry policies. API callers do not see
    /// it; see [`Error::with_api_status`].
    #[must_use]
    pub fn with_code(mut self, code: i32) -> Self {
        self.0.code = Some(code);
        self
    }

    /// Names the invalid property. The sidecar shows its location with the error.
    #[must_use]
    pub fn about(mut self, property: &str) -> Self {
        self.0.property = Some(property.to_owned());
        self
    }

    /// Appends another error of the same component.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.others.extend(other.split());
        self
    }

    /// Splits into one error per problem.
    pub(crate) fn split(mut self) -> Vec<Self> {
        let others = std::mem::take(&mut self.0.others);
        let mut all = vec![self];
        all.extend(others.into_iter().flat_map(Self::split));
        all
    }

    /// Joins the errors of one component into one.
    pub(crate) fn all(errors: Vec<Self>) -> Self {
        let mut errors = errors.into_iter();
        let mut first = errors
            .next()
            .unwrap_or_else(|| Self::new(Kind::Internal, "the component was not built"));
        first.0.others.extend(errors);
        first
    }

    /// Text and property of each joined error.
    pub fn each(&self) -> impl Iterator<Item = (String, Option<&str>)> {
        let own = std::iter::once((self.own(), self.property()));
        own.chain(self.0.others.iter().map(|other| (other.own(), other.property())))
    }

    /// The gRPC code for retry policies, if any; that of the API status takes precedence.
    pub fn code(&self) -> Option<i32> {
        let api = self.0.api_status.as_ref().map(|status| status.grpc);
        api.or(self.0.code)
    }

    /// The invalid property, if the error is about one.
    pub fn property(&self) -> Option<&str> {
        self.0.property.as_deref()
    }

    /// The kind, for callers that branch on it.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The component's name, if known.
    pub fn component(&self) -> Option<&str> {
        self.0.component.as_deref()
    }

    /// Whether the same call may succeed later without intervention.
    pub fn retryable(&self) -> bool {
        matches!(self.0.kind, Kind::Unavailable | Kind::Timeout)
    }

    /// Whether it is an ETag conflict, for which a retry is useless.
    pub fn is_etag(&self) -> bool {
        matches!(self.0.kind, Kind::EtagMismatch | Kind::InvalidEtag)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.own())?;
        for other in &self.0.others {
            write!(f, "; {other}")?;
        }
        Ok(())
    }
}

impl Error {
    /// The text without the joined errors.
    fn own(&self) -> String {
        // The two ETag texts are part of Dapr's contract.
        let opening = match self.0.kind {
            Kind::EtagMismatch => "possible etag mismatch. error from state store",
            Kind::InvalidEtag => "invalid etag value",
            _ => "",
        };
        let parts = [opening, &self.0.message];
        let mut text = parts
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(": ");
        if let Some(source) = &self.0.source {
            text.push_str(&format!(": {source}"));
        }
        text
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("component", &self.0.component)
            .field("text", &self.to_string())
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // The text includes the cause's text, so the chain continues with the cause's own cause.
        self.0.source.as_ref().and_then(|cause| cause.source())
    }
}

impl From<MetadataError> for Error {
    fn from(error: MetadataError) -> Self {
        let mut converted = Self::new(Kind::Configuration, error.to_string());
        converted.0.property = Some(error.property().to_owned());
        converted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etag_errors_start_with_contract_text() {
        assert_eq!(
            Error::etag_mismatch().to_string(),
            "possible etag mismatch. error from state store"
        );
        assert_eq!(
            Error::invalid_etag("not a number").to_string(),
            "invalid etag value: not a number"
        );
    }

    #[test]
    fn redacts_secrets_everywhere() {
        let status = ApiStatus {
            grpc: 13,
            http: 500,
            message: "status a-token".to_owned(),
            tag: String::new(),
            reason: String::new(),
            domain: String::new(),
        };
        let error = Error::new(Kind::Denied, "message a-token")
            .because("cause a-token")
            .with_metadata(Pairs::from([("x".to_owned(), "value a-token".to_owned())]))
            .with_api_status(status)
            .and(Error::new(Kind::Internal, "other a-token"));
        let error = error.without(&Secrets::new(["a-token"]));
        assert_eq!(error.to_string(), "message ***: cause ***; other ***");
        assert_eq!(error.metadata()["x"], "value ***");
        assert_eq!(error.api_status().unwrap().message, "status ***");
        assert_eq!(error.kind(), Kind::Denied);
    }

    #[test]
    fn cause_follows_message() {
        let cause = std::io::Error::other("connection refused");
        let error = Error::new(Kind::Unavailable, "redis at localhost:6379").because(cause);
        assert_eq!(error.to_string(), "redis at localhost:6379: connection refused");
        assert!(error.retryable());
        assert!(!error.is_etag());
    }

    #[test]
    fn code_is_for_retries_only() {
        let error = Error::new(Kind::Unavailable, "away").with_code(14);
        assert_eq!((error.code(), error.api_status()), (Some(14), None));
        assert_eq!(error.to_string(), "away");
        let status = ApiStatus {
            grpc: 15,
            http: 506,
            message: String::new(),
            tag: String::new(),
            reason: String::new(),
            domain: String::new(),
        };
        assert_eq!(error.with_api_status(status).code(), Some(15));
        assert_eq!(Error::closed().code(), None);
    }

    #[test]
    fn component_name_is_not_in_text() {
        let error = Error::closed().of(&"orders".into());
        assert_eq!(error.component(), Some("orders"));
        assert!(!error.to_string().contains("orders"));
    }
}
