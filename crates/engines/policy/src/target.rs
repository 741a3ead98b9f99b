//! The target and method of a service invocation.

use std::borrow::Cow;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

use crate::escape::{EscapeError, path_unescape_bytes, query_unescape};
use crate::path::{MethodError, canonical, clean};

/// The request header with the target app, and the user name of its basic authentication form.
pub const APP_ID_HEADER: &str = "dapr-app-id";

/// Why a request has no valid target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The request path has a malformed escape: HTTP 400.
    #[error(transparent)]
    Path(#[from] EscapeError),
    /// The request has no target: HTTP 404 `ERR_DIRECT_INVOKE`.
    #[error("failed getting app id either from the URL path or the header dapr-app-id")]
    Missing,
    /// Invalid method: gRPC `InvalidArgument`, HTTP 500 `ERR_DIRECT_INVOKE`.
    #[error("invalid method: {error}")]
    Method {
        /// The app ID of the call.
        id: String,
        /// Why the method is invalid.
        error: MethodError,
    },
    /// The target ID is empty.
    #[error("app id is empty")]
    EmptyAppId,
    /// The target ID has more than one dot: HTTP 500 `ERR_DIRECT_INVOKE`.
    #[error("invalid app id {0}")]
    AppId(String),
}

impl TargetError {
    /// The target of the request, if known despite the error.
    pub fn target(&self) -> Option<&str> {
        match self {
            Self::Method { id, .. } | Self::AppId(id) => Some(id),
            Self::Path(_) | Self::Missing | Self::EmptyAppId => None,
        }
    }
}

/// A parsed target ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// An app, or an HTTPEndpoint resource of that name, which the caller distinguishes.
    App {
        /// App ID without the namespace.
        id: &'a str,
        /// The namespace after the dot; `None` means the caller's.
        namespace: Option<&'a str>,
    },
    /// An absolute `http://` or `https://` URL.
    Url(&'a str),
}

impl<'a> Target<'a> {
    /// Parses a target ID: `app`, `app.namespace`, `http://...` or `https://...`.
    ///
    /// # Errors
    /// [`TargetError::EmptyAppId`], or [`TargetError::AppId`] if there is more than one dot.
    pub fn parse(id: &'a str) -> Result<Self, TargetError> {
        if id.starts_with("http://") || id.starts_with("https://") {
            return Ok(Self::Url(id));
        }
        match id.split_once('.') {
            None if id.is_empty() => Err(TargetError::EmptyAppId),
            None => Ok(Self::App { id, namespace: None }),
            Some((_, namespace)) if namespace.contains('.') => Err(TargetError::AppId(id.to_owned())),
            Some((id, namespace)) => Ok(Self::App {
                id,
                namespace: Some(namespace),
            }),
        }
    }
}

/// The part of a request that named the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The `dapr-app-id` header, which must not be forwarded.
    Header,
    /// The `Authorization` header, which is forwarded.
    BasicAuth,
    /// The request path.
    Path,
}

/// A service invocation, parsed from an HTTP request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation<'a> {
    /// The target ID as given, including the namespace: the key for resiliency targets.
    pub id: Cow<'a, str>,
    /// The canonical method path, without a leading slash unless the caller encoded one.
    pub method: Cow<'a, str>,
    /// The method as bytes if it is not UTF-8. A local app or an endpoint can receive it, but no peer;
    /// `method` then contains U+FFFD in place of invalid bytes.
    pub octets: Option<Vec<u8>>,
    /// Source of the app ID.
    pub source: Source,
}

impl<'a> Invocation<'a> {
    /// Parses the target and method of a request. The first of header, basic authentication and path that
    /// names a target wins. `path` is the request path as received, without the query; `app_id` and
    /// `authorization` are the values of those headers.
    ///
    /// # Errors
    /// [`TargetError`], except its two ID variants, which [`Target::parse`] returns.
    pub fn parse(
        path: &'a str,
        app_id: Option<&'a str>,
        authorization: Option<&str>,
    ) -> Result<Self, TargetError> {
        match path_unescape_bytes(path)? {
            Cow::Borrowed(_) => Self::of_text(Cow::Borrowed(path), app_id, authorization),
            Cow::Owned(bytes) => match String::from_utf8(bytes) {
                Ok(text) => Self::of_text(Cow::Owned(text), app_id, authorization),
                Err(other) => Self::of_octets(other.as_bytes(), app_id, authorization),
            },
        }
    }

    fn of_text(
        decoded: Cow<'a, str>,
        app_id: Option<&'a str>,
        authorization: Option<&str>,
    ) -> Result<Self, TargetError> {
        if let Some(id) = app_id.filter(|id| !id.is_empty()) {
            return Self::whole_path(Cow::Borrowed(id), decoded, Source::Header);
        }
        if let Some(id) = authorization.and_then(basic_app_id) {
            if id.is_empty() {
                return Err(TargetError::Missing);
            }
            return Self::whole_path(Cow::Owned(id), decoded, Source::BasicAuth);
        }
        Self::from_path(&decoded)
    }

    /// Parses a path that is not UTF-8 by mapping each byte to the character with the same number: all
    /// separators and dots are ASCII.
    fn of_octets(
        decoded: &[u8],
        app_id: Option<&'a str>,
        authorization: Option<&str>,
    ) -> Result<Self, TargetError> {
        let characters: String = decoded.iter().copied().map(char::from).collect();
        let found = Self::of_text(Cow::Owned(characters), app_id, authorization)?;
        let bytes = |text: &str| text.chars().map(u8::try_from).collect::<Result<Vec<u8>, _>>();
        let id = match found.source {
            Source::Path => bytes(&found.id)
                .ok()
                .and_then(|id| String::from_utf8(id).ok())
                .map(Cow::Owned)
                .ok_or(EscapeError::NotText)?,
            Source::Header | Source::BasicAuth => found.id,
        };
        let method = bytes(&found.method).map_err(|_| EscapeError::NotText)?;
        let (method, octets) = match String::from_utf8(method) {
            Ok(text) => (text, None),
            Err(other) => (
                String::from_utf8_lossy(other.as_bytes()).into_owned(),
                Some(other.into_bytes()),
            ),
        };
        Ok(Self {
            id,
            method: Cow::Owned(method),
            octets,
            source: found.source,
        })
    }

    fn whole_path(id: Cow<'a, str>, decoded: Cow<'a, str>, source: Source) -> Result<Self, TargetError> {
        let method = map(decoded, |path| match clean(path) {
            Cow::Borrowed(cleaned) => canonical(cleaned.strip_prefix('/').unwrap_or(cleaned)),
            Cow::Owned(cleaned) => {
                let method = canonical(cleaned.strip_prefix('/').unwrap_or(&cleaned))?;
                Ok(Cow::Owned(method.into_owned()))
            }
        });
        Self::named(id, method, source)
    }

    fn named(
        id: Cow<'a, str>,
        method: Result<Cow<'a, str>, MethodError>,
        source: Source,
    ) -> Result<Self, TargetError> {
        match method {
            Ok(method) => Ok(Self {
                id,
                method,
                octets: None,
                source,
            }),
            Err(error) => Err(TargetError::Method {
                id: id.into_owned(),
                error,
            }),
        }
    }

    fn from_path(decoded: &Cow<'a, str>) -> Result<Self, TargetError> {
        const SEPARATOR: &str = "/method/";
        let start = after_prefix(decoded, ["v1.0", "invoke"]).ok_or(TargetError::Missing)?;
        let length = decoded[start..]
            .find(SEPARATOR)
            .filter(|&length| length > 0)
            .ok_or(TargetError::Missing)?;
        let end = start + length;
        // Decoded twice on purpose: a URL may arrive as one segment that was escaped twice.
        let id = match part(decoded, start..end) {
            Cow::Borrowed(id) => twice_decoded(id),
            Cow::Owned(id) => Cow::Owned(twice_decoded(&id).into_owned()),
        };
        let method = map(
            part(decoded, end + SEPARATOR.len()..decoded.len()),
            |method| match clean(method) {
                Cow::Borrowed(cleaned) => canonical(cleaned),
                Cow::Owned(cleaned) => Ok(Cow::Owned(canonical(&cleaned)?.into_owned())),
            },
        );
        Self::named(id, method, Source::Path)
    }
}

/// Applies a borrowing transformation to a text that may be owned.
fn map<'a>(
    text: Cow<'a, str>,
    transform: impl for<'t> Fn(&'t str) -> Result<Cow<'t, str>, MethodError>,
) -> Result<Cow<'a, str>, MethodError> {
    match text {
        Cow::Borrowed(text) => transform(text),
        Cow::Owned(text) => Ok(Cow::Owned(transform(&text)?.into_owned())),
    }
}

fn twice_decoded(id: &str) -> Cow<'_, str> {
    match query_unescape(id) {
        Ok(unescaped) if !unescaped.is_empty() => unescaped,
        _ => Cow::Borrowed(id),
    }
}

fn part<'a>(text: &Cow<'a, str>, range: Range<usize>) -> Cow<'a, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[range]),
        Cow::Owned(text) => Cow::Owned(text[range].to_owned()),
    }
}

/// The offset after the given leading segments and their slashes, which may be repeated. `None` if the path
/// does not start with those segments or nothing follows.
fn after_prefix(path: &str, prefix: [&str; 2]) -> Option<usize> {
    let skip = |from: usize| from + path[from..].bytes().take_while(|byte| *byte == b'/').count();
    let mut position = skip(0);
    for segment in prefix {
        let end = position + segment.len();
        if !path[position..].starts_with(segment) || path.as_bytes().get(end) != Some(&b'/') {
            return None;
        }
        position = skip(end);
    }
    (position < path.len()).then_some(position)
}

/// The password of `Basic` credentials with the user name `dapr-app-id`.
fn basic_app_id(authorization: &str) -> Option<String> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
    );
    let decoded = LENIENT.decode(authorization.strip_prefix("Basic ")?).ok()?;
    let decoded = String::from_utf8(decoded).ok()?;
    let (user, id) = decoded.split_once(':')?;
    (user.eq_ignore_ascii_case(APP_ID_HEADER) && !id.contains(':')).then(|| id.to_owned())
}

#[cfg(test)]
mod tests;
