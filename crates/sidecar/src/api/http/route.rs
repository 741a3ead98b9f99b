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
    /// `GET /state/{store}/{key}`.
    GetState,
    /// `POST /state/{store}`.
    SaveState,
    /// `DELETE /state/{store}/{key}`.
    DeleteState,
    /// `POST /state/{store}/bulk`.
    BulkGetState,
    /// `POST /state/{store}/transaction`.
    TransactState,
    /// `POST /state/{store}/query`.
    QueryState,
    /// `GET /secrets/{store}/{key}`.
    GetSecret,
    /// `GET /secrets/{store}/bulk`.
    GetBulkSecret,
    /// `GET /configuration/{store}`.
    GetConfiguration,
    /// `GET /configuration/{store}/subscribe`.
    SubscribeConfiguration,
    /// `GET /configuration/{store}/{id}/unsubscribe`.
    UnsubscribeConfiguration,
    /// `POST /lock/{store}`.
    TryLock,
    /// `POST /unlock/{store}`.
    Unlock,
    /// `POST /bindings/{name}`.
    InvokeBinding,
    /// `PUT /crypto/{name}/encrypt`.
    Encrypt,
    /// `PUT /crypto/{name}/decrypt`.
    Decrypt,
    /// `POST /subtlecrypto/{name}/…`.
    Subtle(Subtle),
    /// `POST /conversation/{name}/converse`, first version.
    ConverseAlpha1,
    /// `POST /conversation/{name}/converse`, second version.
    ConverseAlpha2,
}

/// A single operation with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subtle {
    /// `getkey`
    GetKey,
    /// `encrypt`
    Encrypt,
    /// `decrypt`
    Decrypt,
    /// `wrapkey`
    WrapKey,
    /// `unwrapkey`
    UnwrapKey,
    /// `sign`
    Sign,
    /// `verify`
    Verify,
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
    /// The path behind the version: literal segments, and `{}` for each parameter, at most two.
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

    /// On the public port, where anybody may ask and nobody may change anything.
    pub fn is_public(&self) -> bool {
        matches!(
            self.kind,
            Kind::GetMetadata | Kind::Healthz | Kind::OutboundHealthz
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

const fn state(method: Method, path: &'static [&'static str], name: &'static str, kind: Kind) -> Endpoint {
    v1(method, "state", path, name, kind)
}

const fn alpha1(
    method: Method,
    group: &'static str,
    path: &'static [&'static str],
    name: &'static str,
    kind: Kind,
) -> Endpoint {
    Endpoint {
        method: Some(method),
        version: "v1alpha1",
        group,
        prefix: "v1.0-alpha1",
        path,
        name,
        kind,
    }
}

const fn query(method: Method) -> Endpoint {
    let path = &["state", "{}", "query"];
    alpha1(method, "state", path, "QueryStateAlpha1", Kind::QueryState)
}

/// Reading, watching and no longer watching, in one of the two versions that mean the same.
const fn configuration(stable: bool, kind: Kind) -> Endpoint {
    let (path, name): (&[&str], _) = match kind {
        Kind::SubscribeConfiguration => (&["configuration", "{}", "subscribe"], "SubscribeConfiguration"),
        Kind::UnsubscribeConfiguration => (
            &["configuration", "{}", "{}", "unsubscribe"],
            "UnsubscribeConfiguration",
        ),
        _ => (&["configuration", "{}"], "GetConfiguration"),
    };
    if stable {
        v1(Method::GET, "configuration", path, name, kind)
    } else {
        alpha1(Method::GET, "configuration", path, name, kind)
    }
}

const fn binding(method: Method) -> Endpoint {
    v1(
        method,
        "bindings",
        &["bindings", "{}"],
        "InvokeBinding",
        Kind::InvokeBinding,
    )
}

const fn crypto(path: &'static [&'static str], name: &'static str, kind: Kind) -> Endpoint {
    alpha1(Method::PUT, "crypto", path, name, kind)
}

const fn subtle(path: &'static [&'static str], name: &'static str, operation: Subtle) -> Endpoint {
    alpha1(Method::POST, "subtlecrypto", path, name, Kind::Subtle(operation))
}

const fn converse(version: &'static str, prefix: &'static str, kind: Kind) -> Endpoint {
    Endpoint {
        method: Some(Method::POST),
        version,
        group: "conversation",
        prefix,
        path: &["conversation", "{}", "converse"],
        name: "Converse",
        kind,
    }
}

const ITEM: &[&str] = &["state", "{}", "{}"];
const STORE: &[&str] = &["state", "{}"];
const BULK: &[&str] = &["state", "{}", "bulk"];
const TRANSACTION: &[&str] = &["state", "{}", "transaction"];

static ENDPOINTS: &[Endpoint] = &[
    state(Method::GET, ITEM, "GetState", Kind::GetState),
    state(Method::POST, STORE, "SaveState", Kind::SaveState),
    state(Method::PUT, STORE, "SaveState", Kind::SaveState),
    state(Method::DELETE, ITEM, "DeleteState", Kind::DeleteState),
    state(Method::POST, BULK, "GetBulkState", Kind::BulkGetState),
    state(Method::PUT, BULK, "GetBulkState", Kind::BulkGetState),
    state(
        Method::POST,
        TRANSACTION,
        "ExecuteStateTransaction",
        Kind::TransactState,
    ),
    state(
        Method::PUT,
        TRANSACTION,
        "ExecuteStateTransaction",
        Kind::TransactState,
    ),
    query(Method::POST),
    query(Method::PUT),
    v1(
        Method::GET,
        "secrets",
        &["secrets", "{}", "bulk"],
        "GetBulkSecret",
        Kind::GetBulkSecret,
    ),
    v1(
        Method::GET,
        "secrets",
        &["secrets", "{}", "{}"],
        "GetSecret",
        Kind::GetSecret,
    ),
    configuration(true, Kind::GetConfiguration),
    configuration(false, Kind::GetConfiguration),
    configuration(true, Kind::SubscribeConfiguration),
    configuration(false, Kind::SubscribeConfiguration),
    configuration(true, Kind::UnsubscribeConfiguration),
    configuration(false, Kind::UnsubscribeConfiguration),
    alpha1(Method::POST, "lock", &["lock", "{}"], "TryLock", Kind::TryLock),
    alpha1(Method::POST, "unlock", &["unlock", "{}"], "Unlock", Kind::Unlock),
    binding(Method::POST),
    binding(Method::PUT),
    crypto(&["crypto", "{}", "encrypt"], "Encrypt", Kind::Encrypt),
    crypto(&["crypto", "{}", "decrypt"], "Decrypt", Kind::Decrypt),
    subtle(&["subtlecrypto", "{}", "getkey"], "SubtleGetKey", Subtle::GetKey),
    subtle(
        &["subtlecrypto", "{}", "encrypt"],
        "SubtleEncrypt",
        Subtle::Encrypt,
    ),
    subtle(
        &["subtlecrypto", "{}", "decrypt"],
        "SubtleDecrypt",
        Subtle::Decrypt,
    ),
    subtle(
        &["subtlecrypto", "{}", "wrapkey"],
        "SubtleWrapKey",
        Subtle::WrapKey,
    ),
    subtle(
        &["subtlecrypto", "{}", "unwrapkey"],
        "SubtleUnwrapKey",
        Subtle::UnwrapKey,
    ),
    subtle(&["subtlecrypto", "{}", "sign"], "SubtleSign", Subtle::Sign),
    subtle(&["subtlecrypto", "{}", "verify"], "SubtleVerify", Subtle::Verify),
    converse("v1alpha1", "v1.0-alpha1", Kind::ConverseAlpha1),
    converse("v1alpha2", "v1.0-alpha2", Kind::ConverseAlpha2),
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

/// Path parameters, still escaped; empty where the route has fewer.
pub(super) type Parameters = [String; 2];

/// A route and its path parameters.
pub struct Match {
    /// The route.
    pub endpoint: &'static Endpoint,
    /// What stands in the path for each `{}`.
    pub parameters: Parameters,
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
        let (version, rest) = path.strip_prefix('/')?.split_once('/')?;
        if version == INVOKE.prefix && rest.starts_with("invoke/") {
            return self.invoke.then(|| Match {
                endpoint: &INVOKE,
                parameters: Parameters::default(),
            });
        }
        let rest = rest.strip_suffix('/').unwrap_or(rest);
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

/// Matches a path against literal segments and `{}`.
fn parameters_of(pattern: &[&str], path: &str) -> Option<Parameters> {
    let mut segments = path.split('/');
    let mut found = [""; 2];
    let mut free = found.iter_mut();
    for expected in pattern {
        let segment = segments.next()?;
        if *expected == "{}" {
            if segment.is_empty() {
                return None;
            }
            *free.next()? = segment;
        } else if *expected != segment {
            return None;
        }
    }
    segments.next().is_none().then(|| found.map(str::to_owned))
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
        let find = |m: Method, p: &str| {
            routes().find(&m, p).map(|m| {
                let [parameter, _] = m.parameters;
                (m.endpoint.kind, parameter)
            })
        };
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
        for (method, path, kind) in [
            (Method::GET, "/v1.0/state/s/k", Kind::GetState),
            (Method::PUT, "/v1.0/state/s", Kind::SaveState),
            (Method::POST, "/v1.0/state/s/bulk", Kind::BulkGetState),
            (Method::GET, "/v1.0/state/s/bulk", Kind::GetState),
            (Method::POST, "/v1.0-alpha1/state/s/query", Kind::QueryState),
            (Method::GET, "/v1.0/secrets/s/bulk", Kind::GetBulkSecret),
            (Method::GET, "/v1.0/secrets/s/k", Kind::GetSecret),
            (Method::GET, "/v1.0/configuration/s", Kind::GetConfiguration),
            (
                Method::GET,
                "/v1.0-alpha1/configuration/s/subscribe",
                Kind::SubscribeConfiguration,
            ),
            (
                Method::GET,
                "/v1.0/configuration/s/7/unsubscribe",
                Kind::UnsubscribeConfiguration,
            ),
            (Method::POST, "/v1.0-alpha1/lock/s", Kind::TryLock),
            (Method::POST, "/v1.0-alpha1/unlock/s", Kind::Unlock),
            (Method::PUT, "/v1.0/bindings/s", Kind::InvokeBinding),
            (Method::PUT, "/v1.0-alpha1/crypto/s/encrypt", Kind::Encrypt),
            (
                Method::POST,
                "/v1.0-alpha1/subtlecrypto/s/sign",
                Kind::Subtle(Subtle::Sign),
            ),
            (
                Method::POST,
                "/v1.0-alpha2/conversation/s/converse",
                Kind::ConverseAlpha2,
            ),
        ] {
            assert_eq!(find(method, path), Some((kind, "s".into())), "{path}");
        }
        assert_eq!(find(Method::POST, "/v1.0/state/s/query"), None);
        assert_eq!(find(Method::POST, "/v1.0/state/s/k"), None);
        assert_eq!(find(Method::POST, "/v1.0/healthz"), None);
        assert_eq!(find(Method::GET, "/v1.0/healthz/outbound/x"), None);
        assert_eq!(find(Method::GET, "/other"), None);
        assert_eq!(
            find(Method::PATCH, "/v1.0/invoke/a/method/b"),
            Some((Kind::Invoke, String::new()))
        );
    }
}
