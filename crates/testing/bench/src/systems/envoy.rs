//! Two Envoy processes as in a service mesh: mTLS and HTTP/2 between them, and an RBAC rule at the callee
//! that admits only the caller's certificate. Default statistics; no access log, tracing or discovery.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::process::Command;

use super::certificates::{CALLEE, CALLER, uri};
use super::proxies::{Hop, Product, Side};
use super::{ECHO, UNARY};
use crate::load::ON_INVOKE;
use crate::plan::Protocol;

const FILE: &str = "envoy.json";

/// An Envoy binary.
pub(super) struct Envoy {
    pub(super) program: PathBuf,
    /// Worker threads of a hop, not counting its main thread.
    pub(super) workers: usize,
}

impl Product for Envoy {
    fn name(&self) -> &'static str {
        "envoy"
    }

    fn config(&self, hop: &Hop<'_>) -> (&'static str, String) {
        (FILE, bootstrap(hop).to_string())
    }

    fn command(&self, dir: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("-c")
            .arg(dir.join(FILE))
            .args(["--concurrency", &self.workers.to_string()])
            // Needed only for hot restarts; without it, several instances can run.
            .args(["--disable-hot-restart", "--log-level", "warning"]);
        command
    }
}

/// The bootstrap configuration of a hop, as JSON of API version 3.
fn bootstrap(hop: &Hop<'_>) -> Value {
    // The app's protocol on the outer connections; HTTP/2 between the hops.
    let outer = match hop.protocol {
        Protocol::Http => Codec::Http1,
        _ => Codec::Http2,
    };
    let (inbound, outbound) = match hop.side {
        Side::Caller => (outer, Codec::Http2),
        Side::Callee => (Codec::Http2, outer),
    };
    let (accepted, opened) = match hop.side {
        Side::Caller => (Value::Null, to_callee(hop)),
        Side::Callee => (from_caller(hop), Value::Null),
    };
    let mut filters = match hop.side {
        Side::Caller => Vec::new(),
        Side::Callee => vec![access(hop.protocol)],
    };
    filters.push(router());
    // The same timeout as in nginx.
    let forward = json!({"match": {"prefix": "/"}, "route": {"cluster": "next", "timeout": "60s"}});
    let health = json!({"match": {"prefix": "/"}, "direct_response": {"status": 204}});
    let calls = manager("calls", inbound, &filters, &forward);
    let health = manager("health", Codec::Http1, &[router()], &health);
    json!({
        "static_resources": {
            "listeners": [
                listener("calls", hop.port, accepted, &calls),
                listener("health", hop.health, Value::Null, &health),
            ],
            "clusters": [next(hop.next, outbound, opened)],
        }
    })
}

#[derive(Clone, Copy)]
enum Codec {
    Http1,
    Http2,
}

/// A listener; `tls` is null for plaintext.
fn listener(name: &str, port: u16, tls: Value, manager: &Value) -> Value {
    let mut chain = json!({"filters": [
        {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager},
    ]});
    if !tls.is_null() {
        chain["transport_socket"] = tls;
    }
    json!({"name": name, "address": address(port), "filter_chains": [chain]})
}

const MANAGER: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.\
                       HttpConnectionManager";

fn manager(name: &str, codec: Codec, filters: &[Value], route: &Value) -> Value {
    let codec = match codec {
        Codec::Http1 => "HTTP1",
        Codec::Http2 => "HTTP2",
    };
    json!({
        "@type": MANAGER,
        "stat_prefix": name,
        "codec_type": codec,
        "http_filters": filters,
        "route_config": {"virtual_hosts": [{"name": name, "domains": ["*"], "routes": [route]}]},
    })
}

fn router() -> Value {
    json!({
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
    })
}

/// The access rule: admits the caller's certificate, for the one path of the app.
fn access(protocol: Protocol) -> Value {
    let path = match protocol {
        Protocol::Http => ECHO,
        Protocol::Grpc => ON_INVOKE,
        _ => UNARY,
    };
    let permission = json!({"and_rules": {"rules": [
        {"header": {"name": ":method", "string_match": {"exact": "POST"}}},
        {"url_path": {"path": {"exact": path}}},
    ]}});
    let principal = json!({"authenticated": {"principal_name": {"exact": uri(CALLER)}}});
    json!({
        "name": "envoy.filters.http.rbac",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
            "rules": {
                "action": "ALLOW",
                "policies": {"caller": {"permissions": [permission], "principals": [principal]}},
            },
        },
    })
}

/// Pooled connections to the next hop, without Envoy's default limits, as in nginx.
fn next(port: u16, codec: Codec, tls: Value) -> Value {
    let codec = match codec {
        Codec::Http1 => "http_protocol_options",
        Codec::Http2 => "http2_protocol_options",
    };
    let endpoint = json!({"endpoint": {"address": address(port)}});
    let mut cluster = json!({
        "name": "next",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "next", "endpoints": [{"lb_endpoints": [endpoint]}]},
        "circuit_breakers": {"thresholds": [{
            "max_connections": UNLIMITED,
            "max_pending_requests": UNLIMITED,
            "max_requests": UNLIMITED,
        }]},
        "typed_extension_protocol_options": {PROTOCOL: {
            "@type": format!("type.googleapis.com/{PROTOCOL}"),
            "explicit_http_config": {codec: {}},
        }},
    });
    if !tls.is_null() {
        cluster["transport_socket"] = tls;
    }
    cluster
}

const PROTOCOL: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// More than the connections of any load.
const UNLIMITED: u32 = 1_000_000;

fn to_callee(hop: &Hop<'_>) -> Value {
    let callee = json!({"san_type": "URI", "matcher": {"exact": uri(CALLEE)}});
    tls(json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "sni": CALLEE,
        "common_tls_context": common(hop, &[callee]),
    }))
}

fn from_caller(hop: &Hop<'_>) -> Value {
    tls(json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "require_client_certificate": true,
        "common_tls_context": common(hop, &[]),
    }))
}

fn tls(context: Value) -> Value {
    json!({"name": "envoy.transport_sockets.tls", "typed_config": context})
}

fn common(hop: &Hop<'_>, names: &[Value]) -> Value {
    let certificates = hop.certificates;
    json!({
        "alpn_protocols": ["h2"],
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"},
        "tls_certificates": [{
            "certificate_chain": {"filename": certificates.certificate(hop.identity)},
            "private_key": {"filename": certificates.key(hop.identity)},
        }],
        "validation_context": {
            "trusted_ca": {"filename": certificates.authority()},
            "match_typed_subject_alt_names": names,
        },
    })
}

fn address(port: u16) -> Value {
    json!({"socket_address": {"address": "127.0.0.1", "port_value": port}})
}

/// The version of an Envoy binary; `None` if it is not one or does not run.
pub(crate) fn version(program: &Path) -> Option<String> {
    let output = std::process::Command::new(program)
        .arg("--version")
        .output()
        .ok()?;
    version_in(&String::from_utf8_lossy(&output.stdout))
}

/// Parses a build's version line: commit, version, state of the sources, kind, TLS.
fn version_in(line: &str) -> Option<String> {
    let (_, build) = line.split_once("version:")?;
    build.trim().split('/').nth(1).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::certificates::{CALLEE, CALLER, Certificates};
    use super::{Hop, PROTOCOL, Protocol, Side, bootstrap, version_in};

    fn config(side: Side, protocol: Protocol) -> Value {
        let folder = tempfile::tempdir().unwrap();
        let identity = match side {
            Side::Caller => CALLER,
            Side::Callee => CALLEE,
        };
        bootstrap(&Hop {
            side,
            protocol,
            identity,
            port: 1,
            health: 2,
            next: 3,
            certificates: &Certificates::issue(folder.path()).unwrap(),
        })
    }

    fn at<'a>(config: &'a Value, pointer: &str) -> &'a Value {
        config
            .pointer(&format!("/static_resources/{pointer}"))
            .unwrap_or(&Value::Null)
    }

    #[test]
    fn hops_use_http2_between_them() {
        let inbound = "listeners/0/filter_chains/0/filters/0/typed_config/codec_type";
        let outbound = format!("clusters/0/typed_extension_protocol_options/{PROTOCOL}/explicit_http_config");
        for (protocol, outer, app) in [
            (Protocol::Http, "HTTP1", "http_protocol_options"),
            (Protocol::Proxy, "HTTP2", "http2_protocol_options"),
        ] {
            let (caller, callee) = (config(Side::Caller, protocol), config(Side::Callee, protocol));
            assert_eq!(at(&caller, inbound), outer);
            assert_eq!(at(&caller, &outbound), &json!({"http2_protocol_options": {}}));
            assert_eq!(at(&callee, inbound), "HTTP2");
            assert_eq!(at(&callee, &outbound), &json!({app: {}}));
        }
    }

    #[test]
    fn callee_admits_caller_to_one_path() {
        let filters = "listeners/0/filter_chains/0/filters/0/typed_config/http_filters";
        for (protocol, path) in [
            (Protocol::Http, "/echo"),
            (Protocol::Grpc, "/dapr.proto.runtime.v1.AppCallback/OnInvoke"),
            (Protocol::Proxy, "/fgrpc.PingServer/Ping"),
        ] {
            let callee = config(Side::Callee, protocol);
            let rule = at(
                &callee,
                &format!("{filters}/0/typed_config/rules/policies/caller"),
            );
            assert_eq!(
                rule.pointer("/principals/0/authenticated/principal_name/exact"),
                Some(&json!("spiffe://bench/ns/default/caller.bench"))
            );
            assert_eq!(
                rule.pointer("/permissions/0/and_rules/rules/1/url_path/path/exact"),
                Some(&json!(path))
            );
            let caller = config(Side::Caller, protocol);
            assert_eq!(
                at(&caller, &format!("{filters}/0/name")),
                "envoy.filters.http.router"
            );
        }
    }

    #[test]
    fn parses_version_line() {
        let line = "\nenvoy  version: 0123abcd/1.40.0/Clean/RELEASE/BoringSSL\n\n";
        assert_eq!(version_in(line).as_deref(), Some("1.40.0"));
        assert_eq!(version_in("nginx version: nginx"), None);
        assert_eq!(version_in(""), None);
    }
}
