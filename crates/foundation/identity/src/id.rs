//! SPIFFE IDs and trust domains in Dapr's form: `spiffe://<trust domain>/ns/<namespace>/<app id>`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Scheme of every SPIFFE id.
const SCHEME: &str = "spiffe://";

/// Maximum length of a SPIFFE ID in bytes, by the SPIFFE standard.
const MAX_ID_BYTES: usize = 2048;

/// App id of the certificate authority.
pub const SENTRY_APP_ID: &str = "dapr-sentry";

/// App IDs reserved for the control plane.
pub const CONTROL_PLANE_APP_IDS: [&str; 5] = [
    "dapr-operator",
    "dapr-placement",
    "dapr-injector",
    SENTRY_APP_ID,
    "dapr-scheduler",
];

/// Default trust domain of applications.
pub const DEFAULT_TRUST_DOMAIN: &str = "public";

/// Why a SPIFFE ID or a trust domain was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The trust domain is empty.
    #[error("trust domain is missing")]
    TrustDomainMissing,
    /// The trust domain has a character outside the SPIFFE set.
    #[error(
        "trust domain {0:?} is not valid: only lowercase letters, digits, dots, dashes and underscores are allowed"
    )]
    TrustDomainCharacters(String),
    /// The text is not a SPIFFE ID.
    #[error("{0:?} is not a SPIFFE ID: {1}")]
    NotSpiffe(String, &'static str),
    /// A SPIFFE ID, but not of the form `/ns/<namespace>/<app id>`.
    #[error("malformed SPIFFE ID {0:?}: expected spiffe://<trust domain>/ns/<namespace>/<app id>")]
    Malformed(String),
}

/// A SPIFFE trust domain: lowercase letters, digits, `.`, `-` and `_`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrustDomain(Arc<str>);

impl TrustDomain {
    /// The name without scheme.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TrustDomain {
    type Err = IdError;

    /// Accepts a trust domain, or a SPIFFE ID, of which it takes the trust domain.
    fn from_str(text: &str) -> Result<Self, IdError> {
        let name = match text.strip_prefix(SCHEME) {
            Some(_) => split(text)?.0,
            None => text,
        };
        check_trust_domain(name)?;
        Ok(Self(name.into()))
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The identity of a workload. Cheap to clone.
///
/// An ID with more path segments than `/ns/<namespace>/<app id>` is rejected, because ignoring them could
/// confuse two workloads.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SpiffeId {
    uri: Arc<str>,
    /// Offset of the path's first `/`.
    path: usize,
    /// Offset of the end of the namespace.
    namespace_end: usize,
}

impl SpiffeId {
    /// The ID of `app_id` in `namespace` of `trust_domain`.
    ///
    /// # Errors
    /// [`IdError::Malformed`] if a part is empty, [`IdError::NotSpiffe`] if a part has a character that is
    /// invalid in a SPIFFE path segment (valid: letters, digits, `.`, `-`, `_`).
    pub fn new(trust_domain: &TrustDomain, namespace: &str, app_id: &str) -> Result<Self, IdError> {
        let uri = format!("{SCHEME}{trust_domain}/ns/{namespace}/{app_id}");
        if namespace.is_empty() || app_id.is_empty() {
            return Err(IdError::Malformed(uri));
        }
        if namespace.contains('/') || app_id.contains('/') {
            return Err(IdError::NotSpiffe(uri, "a part contains a slash"));
        }
        uri.parse()
    }

    /// The ID of a control plane's certificate authority.
    ///
    /// # Errors
    /// As [`SpiffeId::new`].
    pub fn sentry(trust_domain: &TrustDomain, namespace: &str) -> Result<Self, IdError> {
        Self::new(trust_domain, namespace, SENTRY_APP_ID)
    }

    /// The complete ID, `spiffe://…`.
    pub fn as_str(&self) -> &str {
        &self.uri
    }

    /// Name of the trust domain.
    pub fn trust_domain(&self) -> &str {
        &self.uri[SCHEME.len()..self.path]
    }

    /// The path with its leading slash, `/ns/<namespace>/<app id>`.
    pub fn path(&self) -> &str {
        &self.uri[self.path..]
    }

    /// The namespace in `/ns/<namespace>/<app id>`.
    pub fn namespace(&self) -> &str {
        &self.uri[self.path + "/ns/".len()..self.namespace_end]
    }

    /// The app ID in `/ns/<namespace>/<app id>`.
    pub fn app_id(&self) -> &str {
        &self.uri[self.namespace_end + 1..]
    }
}

impl FromStr for SpiffeId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let (_, path) = split(text)?;
        let mut segments = path.split('/').skip(1);
        let mut next = || segments.next();
        let (Some("ns"), Some(namespace), Some(_), None) = (next(), next(), next(), next()) else {
            return Err(IdError::Malformed(text.to_owned()));
        };
        let start = text.len() - path.len();
        Ok(Self {
            uri: text.into(),
            path: start,
            namespace_end: start + "/ns/".len() + namespace.len(),
        })
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.uri)
    }
}

impl fmt::Debug for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.uri, f)
    }
}

/// Whether an app ID belongs to the control plane.
pub fn is_control_plane(app_id: &str) -> bool {
    CONTROL_PLANE_APP_IDS.contains(&app_id)
}

/// Validates the SPIFFE syntax of `uri` and returns its trust domain and path (empty, or with its leading
/// slash).
pub(crate) fn split(uri: &str) -> Result<(&str, &str), IdError> {
    let refuse = |why| Err(IdError::NotSpiffe(uri.chars().take(MAX_ID_BYTES).collect(), why));
    if uri.len() > MAX_ID_BYTES {
        return refuse("it is longer than 2048 bytes");
    }
    let Some(rest) = uri.strip_prefix(SCHEME) else {
        return refuse("the scheme is not spiffe");
    };
    let (trust_domain, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    check_trust_domain(trust_domain)?;
    for segment in path.split('/').skip(1) {
        match segment {
            "" => return refuse("a path segment is empty, or the path ends in a slash"),
            "." | ".." => return refuse("a path segment is a dot"),
            _ if !segment.bytes().all(is_segment_byte) => {
                return refuse("path segments may only have letters, digits, dots, dashes and underscores");
            }
            _ => {}
        }
    }
    Ok((trust_domain, path))
}

fn is_segment_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')
}

fn check_trust_domain(name: &str) -> Result<(), IdError> {
    if name.is_empty() {
        return Err(IdError::TrustDomainMissing);
    }
    if !name
        .bytes()
        .all(|byte| is_segment_byte(byte) && !byte.is_ascii_uppercase())
    {
        return Err(IdError::TrustDomainCharacters(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn splits_id() {
        let id: SpiffeId = "spiffe://cluster.local/ns/shop/cart".parse().unwrap();
        assert_eq!(id.trust_domain(), "cluster.local");
        assert_eq!(id.namespace(), "shop");
        assert_eq!(id.app_id(), "cart");
        assert_eq!(id.path(), "/ns/shop/cart");
    }

    #[test]
    fn rejects_invalid_ids() {
        for text in [
            "",
            "https://public/ns/a/b",
            "spiffe://",
            "spiffe:///ns/a/b",
            "spiffe://Public/ns/a/b",
            "spiffe://public",
            "spiffe://public/ns/a",
            "spiffe://public/ns//b",
            "spiffe://public/ns/a/",
            "spiffe://public/ns/a/b/",
            "spiffe://public/ns/a/b/x",
            "spiffe://public/ns/a/b/ns/c/d",
            "spiffe://public/sa/a/b",
            "spiffe://public/ns/../b",
            "spiffe://public/ns/a/b?c",
            "spiffe://public:80/ns/a/b",
            "spiffe://user@public/ns/a/b",
        ] {
            assert!(text.parse::<SpiffeId>().is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn rejects_empty_parts() {
        let domain: TrustDomain = "public".parse().unwrap();
        for (namespace, app) in [("", "app"), ("ns", ""), ("a/b", "c"), ("a", "b/c"), ("a", "b c")] {
            assert!(
                SpiffeId::new(&domain, namespace, app).is_err(),
                "{namespace:?} {app:?}"
            );
        }
        assert_eq!(
            SpiffeId::sentry(&domain, "dapr-system").unwrap().as_str(),
            "spiffe://public/ns/dapr-system/dapr-sentry"
        );
    }

    #[test]
    fn validates_trust_domain() {
        for good in [
            "localhost",
            "a.b-c_d9",
            "spiffe://public",
            "spiffe://public/ns/a/b",
        ] {
            assert!(good.parse::<TrustDomain>().is_ok(), "{good}");
        }
        for bad in ["", "Upper", "a b", "a/b", "a:1", "spiffe://", "ü"] {
            assert!(bad.parse::<TrustDomain>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn ids_round_trip(td in "[a-z0-9._-]{1,20}", ns in "[a-zA-Z0-9_-]{1,20}", app in "[a-zA-Z0-9_-]{1,20}") {
            let domain: TrustDomain = td.parse().unwrap();
            let id = SpiffeId::new(&domain, &ns, &app).unwrap();
            let again: SpiffeId = id.as_str().parse().unwrap();
            prop_assert_eq!(again.trust_domain(), td);
            prop_assert_eq!(again.namespace(), ns);
            prop_assert_eq!(again.app_id(), app);
            prop_assert_eq!(again, id);
        }

        #[test]
        fn arbitrary_text_does_not_panic(text in ".{0,80}") {
            let _ = text.parse::<SpiffeId>();
            let _ = format!("spiffe://{text}").parse::<SpiffeId>().map(|id| (id.app_id().len(), id.namespace().len()));
        }
    }
}
