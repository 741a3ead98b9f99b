//! Which parts of the sidecar's API are served: `spec.api.allowed` and `spec.api.denied`.

mod methods;

use std::collections::HashSet;

use outrigger_resources::configuration::ApiRule;

/// The compiled lists of one protocol. Empty lists allow everything.
#[derive(Debug, Clone, Default)]
pub struct ApiList {
    allowed: HashSet<String>,
    denied: HashSet<String>,
}

/// The API a list is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiProtocol {
    /// Rules with protocol `http`.
    Http,
    /// Rules with protocol `grpc`.
    Grpc,
}

impl ApiList {
    /// Compiles the rules of one protocol; the others are ignored.
    pub fn build(allowed: &[ApiRule], denied: &[ApiRule], protocol: ApiProtocol) -> Self {
        Self {
            allowed: compile(allowed, protocol),
            denied: compile(denied, protocol),
        }
    }

    /// Whether an HTTP route is served. `group` and `group_version` are the route's group (`state`, `v1`);
    /// `route_version` and `route` are its path without the leading slash (`v1.0-alpha1`, `state/{storeName}`).
    /// Health routes are always served and are not asked about.
    pub fn http_allows(&self, group_version: &str, group: &str, route_version: &str, route: &str) -> bool {
        let named = format!("{group_version}/{group}");
        let path = format!("{route_version}/{route}");
        let matches = |rules: &HashSet<String>| {
            rules.contains(&named) || rules.iter().any(|rule| path.starts_with(rule.as_str()))
        };
        !matches(&self.denied) && (self.allowed.is_empty() || matches(&self.allowed))
    }

    /// Whether a gRPC method, `/package.Service/Method`, is served. Only methods of Dapr's own runtime services
    /// are restricted; everything else is proxied traffic.
    pub fn grpc_allows(&self, full_method: &str) -> bool {
        !full_method.starts_with(methods::RUNTIME_PREFIX)
            || !self.denied.contains(full_method)
                && (self.allowed.is_empty() || self.allowed.contains(full_method))
    }

    /// Whether nothing is restricted, so that callers need not ask.
    pub fn is_open(&self) -> bool {
        self.allowed.is_empty() && self.denied.is_empty()
    }
}

fn compile(rules: &[ApiRule], protocol: ApiProtocol) -> HashSet<String> {
    let wanted = match protocol {
        ApiProtocol::Http => "http",
        ApiProtocol::Grpc => "grpc",
    };
    let rules = rules
        .iter()
        .filter(|rule| rule.protocol.eq_ignore_ascii_case(wanted));
    match protocol {
        ApiProtocol::Http => rules
            .map(|rule| format!("{}/{}", rule.version, rule.name))
            .collect(),
        ApiProtocol::Grpc => rules
            .flat_map(|rule| methods::of(&rule.name, &rule.version))
            .map(|method| format!("{}{method}", methods::DAPR_SERVICE))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, version: &str, protocol: &str) -> ApiRule {
        ApiRule {
            name: name.into(),
            version: version.into(),
            protocol: protocol.into(),
        }
    }

    fn http(allowed: &[ApiRule], denied: &[ApiRule]) -> ApiList {
        ApiList::build(allowed, denied, ApiProtocol::Http)
    }

    #[test]
    fn http_routes_by_group() {
        let list = http(&[rule("state", "v1", "HTTP")], &[]);
        assert!(list.http_allows("v1", "state", "v1.0", "state/{storeName}"));
        assert!(!list.http_allows("v1alpha1", "state", "v1.0-alpha1", "state/{storeName}/query"));
        assert!(!list.http_allows("v1", "publish", "v1.0", "publish/{pubsubname}/*"));
    }

    #[test]
    fn http_routes_by_path_prefix() {
        let list = http(&[], &[rule("state", "v1.0", "http")]);
        assert!(!list.http_allows("v1", "state", "v1.0", "state/{storeName}"));
        assert!(list.http_allows("v1alpha1", "state", "v1.0-alpha1", "state/{storeName}/query"));
    }

    #[test]
    fn denied_comes_first() {
        let list = http(&[rule("state", "v1", "http")], &[rule("state", "v1", "http")]);
        assert!(!list.http_allows("v1", "state", "v1.0", "state/{storeName}"));
    }

    #[test]
    fn grpc_methods_by_group() {
        let list = ApiList::build(&[rule("state", "v1", "grpc")], &[], ApiProtocol::Grpc);
        assert!(list.grpc_allows("/dapr.proto.runtime.v1.Dapr/GetState"));
        assert!(!list.grpc_allows("/dapr.proto.runtime.v1.Dapr/QueryStateAlpha1"));
        assert!(!list.grpc_allows("/dapr.proto.runtime.v1.Dapr/InvokeService"));
        assert!(list.grpc_allows("/my.app.Greeter/Hello"));
        let list = ApiList::build(&[], &[rule("shutdown", "v1", "gRPC")], ApiProtocol::Grpc);
        assert!(!list.grpc_allows("/dapr.proto.runtime.v1.Dapr/Shutdown"));
        assert!(list.grpc_allows("/dapr.proto.runtime.v1.Dapr/GetState"));
    }

    #[test]
    fn unknown_groups_and_other_protocols_are_ignored() {
        let list = ApiList::build(
            &[rule("nonsense", "v1", "grpc"), rule("state", "v1", "http")],
            &[],
            ApiProtocol::Grpc,
        );
        assert!(list.is_open());
        assert!(list.grpc_allows("/dapr.proto.runtime.v1.Dapr/GetState"));
    }
}
