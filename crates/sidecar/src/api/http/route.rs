//! Which path is what: the table of the HTTP API.

use http::Method;
use outrigger_policy::apilist::ApiList;

/// What a route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Service invocation.
    Invoke,
    /// `GET /metadata`.
    GetMetadata,
    /// `PUT /metadata/{key}`.
    PutMetadata,
    /// `GET /healthz`.
    Healthz,
    /// `GET /healthz/outbound`.
    OutboundHealthz,
    /// `POST /shutdown`.
    Shutdown,
}

/// A route of the API.
#[derive(Debug)]
pub struct Endpoint {
    /// The method; `None` = any.
    pub method: Option<Method>,
    /// `v1`, `v1alpha1`, …: the group's version in allow and deny lists.
    pub version: &'static str,
    /// The group in allow and deny lists.
    pub group: &'static str,
    /// The version in the path, `v1.0`.
    pub prefix: &'static str,
    /// The path behind the version: literal segments and at most one `{}` at the end.
    pub path: &'static [&'static str],
    /// Name in logs.
    pub name: &'static str,
    /// What it does.
    pub kind: Kind,
}

impl Endpoint {
    /// Health routes need no token and cannot be denied.
    pub fn is_health(&self) -> bool {
        self.group == "healthz"
    }

    /// On the public port.
    pub fn is_public(&self) -> bool {
        matches!(
            self.kind,
            Kind::GetMetadata | Kind::PutMetadata | Kind::Healthz | Kind::OutboundHealthz
        )
    }
}

const fn v1(
    method: Method,
    group: &'static str,
    path: &'static [&'static str],
    name: &'static str,
    kind: Kind,
) -> Endpoint {
    Endpoint {
        method: Some(method),
        version: "v1",
        group,
        prefix: "v1.0",
        path,
        name,
        kind,
    }
}

static ENDPOINTS: &[Endpoint] = &[
    v1(Method::GET, "healthz", &["healthz"], "Healthz", Kind::Healthz),
    v1(
        Method::GET,
        "healthz",
        &["healthz", "outbound"],
        "HealthzOutbound",
        Kind::OutboundHealthz,
    ),
    v1(
        Method::GET,
        "metadata",
        &["metadata"],
        "GetMetadata",
        Kind::GetMetadata,
    ),
    v1(
        Method::PUT,
        "metadata",
        &["metadata", "{}"],
        "PutMetadata",
        Kind::PutMetadata,
    ),
    v1(
        Method::POST,
        "shutdown",
        &["shutdown"],
        "Shutdown",
        Kind::Shutdown,
    ),
];

static INVOKE: Endpoint = Endpoint {
    method: None,
    version: "v1",
    group: "invoke",
    prefix: "v1.0",
    path: &["invoke"],
    name: "InvokeService",
    kind: Kind::Invoke,
};

/// The routes that allow and deny lists leave.
pub struct Routes {
    endpoints: Vec<&'static Endpoint>,
    invoke: bool,
}

/// A route and its path parameter, still escaped.
pub struct Match {
    /// The route.
    pub endpoint: &'static Endpoint,
    /// The last path segment where the route has a parameter.
    pub parameter: String,
}

impl Routes {
    /// The routes allowed by `list`.
    pub fn build(list: &ApiList) -> Self {
        let allowed = |endpoint: &Endpoint| {
            endpoint.is_health()
                || list.http_allows(
                    endpoint.version,
                    endpoint.group,
                    endpoint.prefix,
                    &endpoint.path.join("/"),
                )
        };
        Self {
            endpoints: ENDPOINTS.iter().filter(|e| allowed(e)).collect(),
            invoke: allowed(&INVOKE),
        }
    }

    /// Whether service invocation, and with it the fallback, is allowed.
    pub fn offers_invoke(&self) -> bool {
        self.invoke
    }

    /// The route of a cleaned escaped path, apart from invocation, which is what is left.
    pub fn find(&self, method: &Method, path: &str) -> Option<Match> {
        let rest = path.strip_prefix("/v1.0")?;
        if rest.starts_with("/invoke/") {
            return self.invoke.then(|| Match {
                endpoint: &INVOKE,
                parameter: String::new(),
            });
        }
        self.endpoints.iter().find_map(|endpoint| {
            let fits = endpoint.method.as_ref().is_none_or(|m| m == method);
            let parameter = if fits {
                parameter_of(endpoint.path, rest)?
            } else {
                return None;
            };
            Some(Match { endpoint, parameter })
        })
    }
}

/// Matches a path against literal segments and `{}`; a trailing slash does not count.
fn parameter_of(pattern: &[&str], path: &str) -> Option<String> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let mut segments = path.strip_prefix('/')?.split('/');
    let mut parameter = String::new();
    for expected in pattern {
        let segment = segments.next()?;
        if *expected == "{}" {
            parameter = segment.to_owned();
        } else if *expected != segment {
            return None;
        }
    }
    segments.next().is_none().then_some(parameter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes() -> Routes {
        Routes {
            endpoints: ENDPOINTS.iter().collect(),
            invoke: true,
        }
    }

    #[test]
    fn finds_routes_by_method_and_path() {
        let find = |m: Method, p: &str| routes().find(&m, p).map(|m| (m.endpoint.kind, m.parameter));
        assert_eq!(
            find(Method::GET, "/v1.0/healthz"),
            Some((Kind::Healthz, String::new()))
        );
        assert_eq!(
            find(Method::GET, "/v1.0/healthz/"),
            Some((Kind::Healthz, String::new()))
        );
        assert_eq!(
            find(Method::PUT, "/v1.0/metadata/a%20b"),
            Some((Kind::PutMetadata, "a%20b".into()))
        );
        assert_eq!(find(Method::POST, "/v1.0/healthz"), None);
        assert_eq!(find(Method::GET, "/v1.0/healthz/outbound/x"), None);
        assert_eq!(find(Method::GET, "/other"), None);
        assert_eq!(
            find(Method::PATCH, "/v1.0/invoke/a/method/b"),
            Some((Kind::Invoke, String::new()))
        );
    }
}
