//! Route tables. Each block has its own; this module finds the route of a request.

use futures::future::BoxFuture;
use http::{Method, Response, StatusCode};
use outrigger_policy::apilist::ApiList;
use outrigger_policy::escape::query_unescape;
use outrigger_transport::body::Body;

use super::{
    Context, HttpApi, actors, bindings, configuration, conversation, crypto, invoke, jobs, lock, meta,
    publish, secrets, state, subtle, workflow,
};
use crate::error::ApiError;

/// The routes of all blocks, in matching order.
static TABLES: &[&[Endpoint]] = &[
    state::ROUTES,
    actors::ROUTES,
    actors::REMINDERS,
    secrets::ROUTES,
    configuration::ROUTES,
    lock::ROUTES,
    bindings::ROUTES,
    crypto::ROUTES,
    subtle::ROUTES,
    conversation::ROUTES,
    publish::ROUTES,
    jobs::STABLE,
    jobs::ALPHA,
    workflow::STABLE,
    workflow::BETA,
    workflow::ALPHA,
    workflow::OWN,
    meta::ROUTES,
];
/// Versions: as allow lists name them and as paths do.
pub(super) const V1: (&str, &str) = ("v1", "v1.0");
pub(super) const BETA1: (&str, &str) = ("v1beta1", "v1.0-beta1");
pub(super) const ALPHA1: (&str, &str) = ("v1alpha1", "v1.0-alpha1");
/// Most parameters of a path.
const PARAMETERS: usize = 3;
/// A last pattern segment that matches the rest of a path, including slashes.
const TAIL: &str = "*";

/// The result of a handler.
pub(super) type HandlerResult = Result<Response<Body>, ApiError>;

/// The handler of a route. Boxed: the future of a call would otherwise reserve and copy the space of the
/// largest handler.
pub(super) type Handler = for<'a> fn(&'a HttpApi, Context<'a>) -> BoxFuture<'a, HandlerResult>;

/// A route of the API.
pub struct Endpoint {
    /// The method; `None` = any.
    pub method: Option<Method>,
    /// The group's version in allow and deny lists: `v1`, `v1alpha1`, …
    pub version: &'static str,
    /// The group in allow and deny lists.
    pub group: &'static str,
    /// The version in the path, `v1.0`.
    pub prefix: &'static str,
    /// The path after the version: literal segments, `{name}` for a parameter of one segment, and as the last
    /// segment `*` for a parameter with slashes. At most three parameters.
    pub path: &'static [&'static str],
    /// Name in logs.
    pub name: &'static str,
    /// Whether the read-only public port serves it.
    pub public: bool,
    pub(super) handler: Handler,
}

impl Endpoint {
    /// A route; `version` as allow lists name it and as paths do.
    pub(super) const fn new(
        method: Option<Method>,
        (version, prefix): (&'static str, &'static str),
        group: &'static str,
        path: &'static [&'static str],
        name: &'static str,
        handler: Handler,
    ) -> Self {
        Self {
            method,
            version,
            group,
            prefix,
            path,
            name,
            public: false,
            handler,
        }
    }

    /// A route of the stable API.
    pub(super) const fn v1(
        method: Method,
        group: &'static str,
        path: &'static [&'static str],
        name: &'static str,
        handler: Handler,
    ) -> Self {
        Self::new(Some(method), V1, group, path, name, handler)
    }

    /// A route of an alpha API.
    pub(super) const fn alpha1(
        method: Method,
        group: &'static str,
        path: &'static [&'static str],
        name: &'static str,
        handler: Handler,
    ) -> Self {
        Self::new(Some(method), ALPHA1, group, path, name, handler)
    }

    /// The same route, on the public port too.
    pub(super) const fn public(mut self) -> Self {
        self.public = true;
        self
    }

    /// Whether this is a health route, which needs no token and cannot be denied.
    pub fn is_health(&self) -> bool {
        self.group == meta::HEALTH
    }

    /// Whether this is service invocation.
    pub fn is_invocation(&self) -> bool {
        self.group == invoke::GROUP
    }

    /// Whether this is an actor call, whose method is a path.
    pub(super) fn is_actor_call(&self) -> bool {
        self.name == actors::CALL
    }

    /// The name of the parameter at `index`, for errors.
    fn parameter_name(&self, index: usize) -> &'static str {
        let mut names = self.path.iter().filter(|segment| is_parameter(segment));
        let name = names.nth(index).copied().unwrap_or_default();
        name.trim_matches(['{', '}'])
    }
}

fn is_parameter(segment: &str) -> bool {
    segment == TAIL || segment.starts_with('{')
}

/// The parameters of a path, still escaped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parameters<'p> {
    values: [&'p str; PARAMETERS],
    count: usize,
}

impl<'p> Parameters<'p> {
    /// Adds one; `None` if the limit is reached.
    fn push(&mut self, value: &'p str) -> Option<()> {
        *self.values.get_mut(self.count)? = value;
        self.count += 1;
        Some(())
    }

    /// All parameters, in path order.
    fn as_slice(&self) -> &[&'p str] {
        self.values.get(..self.count).unwrap_or_default()
    }
}

impl Context<'_> {
    /// The unescaped parameter at `index`.
    pub(super) fn parameter(&self, index: usize) -> Result<String, ApiError> {
        let escaped = self.parameters.as_slice().get(index).copied().unwrap_or_default();
        let plain = query_unescape(escaped).map_err(|error| {
            let name = self.endpoint.parameter_name(index);
            let text = format!("failed to unescape request parameter {name:?}. Error: {error}");
            ApiError::plain(StatusCode::BAD_REQUEST, text)
        })?;
        Ok(plain.into_owned())
    }
}

/// The routes that allow and deny lists permit.
pub struct Routes {
    endpoints: Vec<&'static Endpoint>,
    invoke: bool,
}

/// A route and its path parameters.
pub struct Match<'p> {
    /// The route.
    pub endpoint: &'static Endpoint,
    pub(super) parameters: Parameters<'p>,
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
        let all = TABLES.iter().copied().flatten();
        Self {
            endpoints: all.filter(|endpoint| allowed(endpoint)).collect(),
            invoke: allowed(&invoke::ROUTE),
        }
    }

    /// Whether service invocation is allowed, and with it the fallback.
    pub fn offers_invoke(&self) -> bool {
        self.invoke
    }

    /// The route of a cleaned, escaped path, except service invocation, which is the fallback.
    pub fn find<'p>(&self, method: &Method, path: &'p str) -> Option<Match<'p>> {
        let (version, rest) = path.strip_prefix('/')?.split_once('/')?;
        if version == invoke::ROUTE.prefix && rest.starts_with("invoke/") {
            return self.invoke.then(|| Match {
                endpoint: &invoke::ROUTE,
                parameters: Parameters::default(),
            });
        }
        self.endpoints.iter().find_map(|endpoint| {
            let fits = endpoint.prefix == version && endpoint.method.as_ref().is_none_or(|m| m == method);
            let parameters = if fits {
                parameters_of(endpoint.path, rest)?
            } else {
                return None;
            };
            Some(Match { endpoint, parameters })
        })
    }
}

/// Matches a path, with or without a trailing slash, against the segments of [`Endpoint::path`].
fn parameters_of<'p>(pattern: &[&str], path: &'p str) -> Option<Parameters<'p>> {
    let mut found = Parameters::default();
    let mut rest = Some(path);
    for expected in pattern {
        let here = rest?;
        if *expected == TAIL {
            let tail = (!here.is_empty()).then_some(here)?;
            found.push(tail)?;
            return Some(found);
        }
        let (segment, behind) = match here.split_once('/') {
            Some((segment, behind)) => (segment, Some(behind)),
            None => (here, None),
        };
        if is_parameter(expected) {
            if segment.is_empty() {
                return None;
            }
            found.push(segment)?;
        } else if *expected != segment {
            return None;
        }
        rest = behind;
    }
    rest.unwrap_or_default().is_empty().then_some(found)
}

/// The groups of all routes.
pub(crate) fn groups() -> impl Iterator<Item = &'static str> {
    let all = TABLES.iter().copied().flatten().chain([&invoke::ROUTE]);
    all.map(|endpoint| endpoint.group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes() -> Routes {
        Routes::build(&ApiList::default())
    }

    #[test]
    fn finds_routes_by_method_and_path() {
        let routes = routes();
        let find = |m: Method, p: &'static str| {
            routes
                .find(&m, p)
                .map(|m| (m.endpoint.name, m.parameters.as_slice().to_vec()))
        };
        assert_eq!(find(Method::GET, "/v1.0/healthz"), Some(("Healthz", vec![])));
        assert_eq!(find(Method::GET, "/v1.0/healthz/"), Some(("Healthz", vec![])));
        assert_eq!(
            find(Method::PUT, "/v1.0/metadata/a%20b"),
            Some(("PutMetadata", vec!["a%20b"]))
        );
        for (method, path, name) in [
            (Method::PUT, "/v1.0/state/s", "SaveState"),
            (Method::POST, "/v1.0/state/s/bulk", "GetBulkState"),
            (Method::POST, "/v1.0-alpha1/state/s/query", "QueryStateAlpha1"),
            (Method::GET, "/v1.0/secrets/s/bulk", "GetBulkSecret"),
            (Method::GET, "/v1.0/configuration/s", "GetConfiguration"),
            (
                Method::GET,
                "/v1.0-alpha1/configuration/s/subscribe",
                "SubscribeConfiguration",
            ),
            (Method::POST, "/v1.0-alpha1/lock/s", "TryLock"),
            (Method::POST, "/v1.0-alpha1/unlock/s", "Unlock"),
            (Method::PUT, "/v1.0/bindings/s", "InvokeBinding"),
            (Method::PUT, "/v1.0-alpha1/crypto/s/encrypt", "Encrypt"),
            (Method::POST, "/v1.0-alpha1/subtlecrypto/s/sign", "SubtleSign"),
            (Method::POST, "/v1.0-alpha2/conversation/s/converse", "Converse"),
        ] {
            assert_eq!(find(method, path), Some((name, vec!["s"])), "{path}");
        }
        for (path, name, second) in [
            ("/v1.0/state/s/k", "GetState", "k"),
            ("/v1.0/state/s/bulk", "GetState", "bulk"),
            ("/v1.0/secrets/s/k", "GetSecret", "k"),
            (
                "/v1.0/configuration/s/7/unsubscribe",
                "UnsubscribeConfiguration",
                "7",
            ),
        ] {
            assert_eq!(find(Method::GET, path), Some((name, vec!["s", second])), "{path}");
        }
        for (path, name) in [
            ("/v1.0/publish/s/a/b", "PublishEvent"),
            ("/v1.0/publish/bulk/s/a/b", "BulkPublishEvent"),
            ("/v1.0-alpha1/publish/bulk/s/a/b", "BulkPublishEvent"),
        ] {
            assert_eq!(find(Method::PUT, path), Some((name, vec!["s", "a/b"])), "{path}");
        }
        assert_eq!(find(Method::POST, "/v1.0-alpha1/publish/s/a"), None);
        assert_eq!(find(Method::POST, "/v1.0/state/s/query"), None);
        assert_eq!(find(Method::POST, "/v1.0/state/s/k"), None);
        assert_eq!(find(Method::POST, "/v1.0/healthz"), None);
        assert_eq!(find(Method::GET, "/v1.0/healthz/outbound/x"), None);
        assert_eq!(find(Method::GET, "/other"), None);
        assert_eq!(
            find(Method::PATCH, "/v1.0/invoke/a/method/b"),
            Some(("InvokeService", vec![]))
        );
    }

    #[test]
    fn docs_list_all_routes() {
        let mut rows =
            "| method | path | name | group and version | public port |\n| --- | --- | --- | --- | --- |\n"
                .to_owned();
        let invoke = (
            "any",
            format!("/{}/invoke/{{id}}/method/{{method}}", invoke::ROUTE.prefix),
            &invoke::ROUTE,
        );
        let others = TABLES.iter().copied().flatten().map(|endpoint| {
            let method = endpoint.method.as_ref().map_or("any", Method::as_str);
            (
                method,
                format!("/{}/{}", endpoint.prefix, endpoint.path.join("/")),
                endpoint,
            )
        });
        for (method, path, endpoint) in std::iter::once(invoke).chain(others) {
            let (group, version) = (endpoint.group, endpoint.version);
            let public = if endpoint.public { "yes" } else { "" };
            rows += &format!(
                "| {method} | `{path}` | {} | `{group}` `{version}` | {public} |\n",
                endpoint.name
            );
        }
        outrigger_testing::pages::Page::read("reference/routes.md").check("routes", &rows);
    }

    #[test]
    fn matches_segments_and_tail() {
        let of = |pattern: &[&str], path: &'static str| {
            parameters_of(pattern, path).map(|found| found.as_slice().to_vec())
        };
        let actor = &["actors", "{type}", "{id}", "method", "{method}"];
        assert_eq!(of(actor, "actors/a/b/method/c"), Some(vec!["a", "b", "c"]));
        assert_eq!(of(actor, "actors/a/b/method/c/"), Some(vec!["a", "b", "c"]));
        assert_eq!(of(actor, "actors/a/b/method/c//"), None);
        assert_eq!(of(actor, "actors/a/b/method/"), None);
        assert_eq!(of(actor, "actors/a//method/c"), None);
        let topic = &["publish", "{pubsub}", "*"];
        assert_eq!(of(topic, "publish/p/a/b/c"), Some(vec!["p", "a/b/c"]));
        assert_eq!(of(topic, "publish/p/a/"), Some(vec!["p", "a/"]));
        assert_eq!(of(topic, "publish/p/"), None);
        assert_eq!(of(topic, "publish/p"), None);
        assert_eq!(of(&["{a}", "{b}", "{c}", "{d}"], "a/b/c/d"), None, "too many");
    }

    /// A parameter missing from the pattern would be empty, and errors could not name it.
    #[test]
    fn patterns_are_valid() {
        for endpoint in TABLES.iter().copied().flatten() {
            let parameters = endpoint.path.iter().filter(|segment| is_parameter(segment));
            let names: Vec<_> = parameters.collect();
            assert!(names.len() <= PARAMETERS, "{}", endpoint.name);
            for (index, name) in names.iter().enumerate() {
                assert_eq!(endpoint.parameter_name(index), name.trim_matches(['{', '}']));
            }
            let tail = endpoint.path.iter().position(|segment| *segment == TAIL);
            assert!(
                tail.is_none_or(|at| at + 1 == endpoint.path.len()),
                "{}",
                endpoint.name
            );
        }
    }
}
