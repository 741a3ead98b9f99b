//! Restriction of the sidecar's API: `spec.api.allowed` and `spec.api.denied`.

use std::collections::HashSet;

use outrigger_resources::configuration::ApiRule;

/// The compiled lists of one protocol. Empty lists allow everything.
#[derive(Debug, Clone, Default)]
pub struct ApiList {
    allowed: HashSet<String>,
    denied: HashSet<String>,
}

/// Prefix of Dapr's own methods; all others are proxied.
const RUNTIME_PREFIX: &str = "/dapr.proto.runtime.";
/// The service of all listed methods.
const DAPR_SERVICE: &str = "/dapr.proto.runtime.v1.Dapr/";

impl ApiList {
    /// Compiles the rules for HTTP; ignores others.
    pub fn http(allowed: &[ApiRule], denied: &[ApiRule]) -> Self {
        let compile = |rules: &[ApiRule]| {
            let rules = of_protocol(rules, "http");
            rules
                .map(|rule| format!("{}/{}", rule.version, rule.name))
                .collect()
        };
        Self {
            allowed: compile(allowed),
            denied: compile(denied),
        }
    }

    /// Compiles the rules for gRPC; ignores others. `methods` returns the methods of a group of Dapr's
    /// service by its name and version; none if it is unknown.
    pub fn grpc(
        allowed: &[ApiRule],
        denied: &[ApiRule],
        methods: impl Fn(&str, &str) -> &'static [&'static str],
    ) -> Self {
        let compile = |rules: &[ApiRule]| {
            let rules = of_protocol(rules, "grpc");
            let named = rules.flat_map(|rule| methods(&rule.name, &rule.version));
            named.map(|method| format!("{DAPR_SERVICE}{method}")).collect()
        };
        Self {
            allowed: compile(allowed),
            denied: compile(denied),
        }
    }

    /// Whether an HTTP route is allowed. `group` and `group_version` are the route's group (`state`, `v1`);
    /// `route_version` and `route` are its path without the leading slash (`v1.0-alpha1`,
    /// `state/{storeName}`). Health routes are always allowed and need no call.
    pub fn http_allows(&self, group_version: &str, group: &str, route_version: &str, route: &str) -> bool {
        let named = format!("{group_version}/{group}");
        let path = format!("{route_version}/{route}");
        let matches = |rules: &HashSet<String>| {
            rules.contains(&named) || rules.iter().any(|rule| path.starts_with(rule.as_str()))
        };
        !matches(&self.denied) && (self.allowed.is_empty() || matches(&self.allowed))
    }

    /// Whether a gRPC method, `/package.Service/Method`, is allowed. Restricts only Dapr's own runtime
    /// services; everything else is proxied traffic.
    pub fn grpc_allows(&self, full_method: &str) -> bool {
        !full_method.starts_with(RUNTIME_PREFIX)
            || !self.denied.contains(full_method)
                && (self.allowed.is_empty() || self.allowed.contains(full_method))
    }

    /// Whether nothing is restricted, so that calls need no check.
    pub fn is_open(&self) -> bool {
        self.allowed.is_empty() && self.denied.is_empty()
    }
}

fn of_protocol<'r>(rules: &'r [ApiRule], protocol: &'static str) -> impl Iterator<Item = &'r ApiRule> {
    rules
        .iter()
        .filter(move |rule| rule.protocol.eq_ignore_ascii_case(protocol))
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
        ApiList::http(allowed, denied)
    }

    fn grpc(allowed: &[ApiRule], denied: &[ApiRule]) -> ApiList {
        ApiList::grpc(allowed, denied, |group, version| match (group, version) {
            ("state", "v1") => &["GetState", "SaveState"],
            ("state", "v1alpha1") => &["QueryStateAlpha1"],
            ("shutdown", "v1") => &["Shutdown"],
            _ => &[],
        })
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
    fn denied_has_precedence() {
        let list = http(&[rule("state", "v1", "http")], &[rule("state", "v1", "http")]);
        assert!(!list.http_allows("v1", "state", "v1.0", "state/{storeName}"));
    }

    #[test]
    fn grpc_methods_by_group() {
        let list = grpc(&[rule("state", "v1", "grpc")], &[]);
        assert!(list.grpc_allows("/dapr.proto.runtime.v1.Dapr/GetState"));
        assert!(!list.grpc_allows("/dapr.proto.runtime.v1.Dapr/QueryStateAlpha1"));
        assert!(!list.grpc_allows("/dapr.proto.runtime.v1.Dapr/InvokeService"));
        assert!(list.grpc_allows("/my.app.Greeter/Hello"));
        let list = grpc(&[], &[rule("shutdown", "v1", "gRPC")]);
        assert!(!list.grpc_allows("/dapr.proto.runtime.v1.Dapr/Shutdown"));
        assert!(list.grpc_allows("/dapr.proto.runtime.v1.Dapr/GetState"));
    }

    #[test]
    fn ignores_unknown_groups_and_protocols() {
        let list = grpc(
            &[rule("nonsense", "v1", "grpc"), rule("state", "v1", "http")],
            &[],
        );
        assert!(list.is_open());
        assert!(list.grpc_allows("/dapr.proto.runtime.v1.Dapr/GetState"));
    }
}
