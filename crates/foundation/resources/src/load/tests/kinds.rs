//! Fields of each kind.

use super::*;

#[test]
fn parses_component_fields() {
    let text = r#"
apiVersion: dapr.io/v1alpha1
kind: Component
metadata:
  name: s
  namespace: ns
  labels: {a: b}
spec:
  type: state.redis
  version: v1
  ignoreErrors: yes
  initTimeout: 1m
  metadata:
  - name: host
    value: "localhost:6379"
  - name: db
    value: 0644
  - name: password
    secretKeyRef: {name: redis, key: pw}
  - name: user
    secretKeyRef: {name: redis}
    envRef: USER_NAME
  - name: routes
    value: {"/b": 1, "/a": yes}
  - name: none
    value: null
auth:
  secretStore: vault
scopes: [app, other]
"#;
    let loaded = Folder::with(&[("a.yaml", text)]).load();
    assert_eq!(loaded.warnings, []);
    let c = &loaded.components[0];
    assert_eq!(
        (c.log_name().as_str(), c.ignore_errors, c.init_timeout.as_secs()),
        ("s (state.redis/v1)", true, 60)
    );
    assert_eq!(
        (c.property("HOST"), c.property("db")),
        (Some("localhost:6379"), Some("420"))
    );
    assert_eq!(c.property("routes"), Some(r#"{"/a":true,"/b":1}"#));
    assert_eq!((c.property("none"), c.property("password")), (None, None));
    assert_eq!(c.metadata[2].secret.as_ref().map(|s| s.field()), Some("pw"));
    assert_eq!(c.metadata[3].secret.as_ref().map(|s| s.field()), Some("redis"));
    assert_eq!(c.metadata[3].env.as_deref(), Some("USER_NAME"));
    assert_eq!(
        (c.secret_store.as_str(), c.scopes.len(), c.source.line),
        ("vault", 2, 2)
    );
}

#[test]
fn invalid_timeout_means_default() {
    let text = store("s").replace("version: v1", "version: v1, initTimeout: soon");
    let loaded = Folder::with(&[("a.yaml", &text)]).load();
    assert_eq!(
        loaded.components[0].init_timeout,
        crate::component::DEFAULT_INIT_TIMEOUT
    );
    let warning = &loaded.warnings[0];
    assert!(
        warning.what.contains("spec.initTimeout")
            && warning.what.contains("soon")
            && warning.what.contains("5s"),
        "{warning}"
    );
}

#[test]
fn values_have_lines() {
    let text = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: s\nspec:\n  type: state.redis\n  \
                version: v1\n  metadata:\n  - name: redisHost\n    value: a\n  - value: b\n    name: redisDB\n";
    let folder = Folder::with(&[("a.yaml", &format!("# a comment\n{text}"))]);
    let source = &folder.load().components[0].source;
    for (value, line) in [
        ("spec.type", 7),
        ("spec.version", 8),
        ("redisHost", 10),
        ("REDISDB", 12),
        ("other", 2),
    ] {
        assert_eq!(source.of(value).line, line, "{value}");
    }
    assert!(source.of("redisHost").file.ends_with("a.yaml"));
}

#[test]
fn subscription_rules_have_lines() {
    let text = "ApiVersion: dapr.io/v2alpha1\nKind: Subscription\nmetadata: {name: s}\nspec:\n  topic: t\n  \
                routes:\n    rules:\n    - match: event.a\n      path: /a\n    - path: /b\n      match: event.b\n";
    let loaded = Folder::with(&[("a.yaml", text)]).load_for("app", None).unwrap();
    let line = |index: usize| {
        let value = format!("spec.routes.rules[{index}].match");
        loaded.subscriptions[0].source.of(&value).line
    };
    assert_eq!((line(0), line(1)), (8, 11));
    let warning = loaded.warnings[0].to_string();
    assert!(warning.contains("spec.pubsubname is missing"), "{warning}");
}

#[test]
fn loads_both_subscription_versions() {
    let text = r#"
apiVersion: dapr.io/v1alpha1
kind: Subscription
metadata: {name: one}
spec: {pubsubname: p, topic: t, route: /old, deadLetterTopic: dead}
---
apiVersion: dapr.io/v2alpha1
kind: Subscription
metadata: {name: two}
spec:
  pubsubname: p
  topic: t2
  routes:
    rules:
    - match: event.type == "x"
      path: /x
    default: /d
  bulkSubscribe: {enabled: true, maxMessagesCount: 10, maxAwaitDurationMs: 20}
  metadata: {rawPayload: true}
scopes: [app]
---
apiVersion: dapr.io/v2alpha1
kind: Subscription
metadata: {name: one, namespace: elsewhere}
spec: {pubsubname: p, topic: newer, routes: {default: /new}}
"#;
    let loaded = Folder::with(&[("a.yaml", text)])
        .load_for("app", Some("here"))
        .unwrap();
    assert_eq!(loaded.warnings, []);
    let [two, one] = loaded.subscriptions.as_slice() else {
        panic!("two subscriptions: {loaded:?}")
    };
    assert_eq!(
        (one.topic.as_str(), one.routes.default.as_str()),
        ("newer", "/new")
    );
    assert_eq!(
        (
            two.routes.rules[0].r#match.as_str(),
            two.routes.rules[0].path.as_str()
        ),
        (r#"event.type == "x""#, "/x")
    );
    assert_eq!(
        (
            two.bulk.enabled,
            two.bulk.max_messages_count,
            two.bulk.max_await_duration_ms
        ),
        (true, 10, 20)
    );
    assert_eq!(two.metadata["rawPayload"], "true");
}

#[test]
fn reports_unusable_endpoint_url() {
    let load = |url: &str| {
        let text = format!(
            "apiVersion: dapr.io/v1alpha1\nkind: HTTPEndpoint\nmetadata: {{name: e}}\nspec:\n  baseUrl: '{url}'\n"
        );
        Folder::with(&[("a.yaml", &text)]).load()
    };
    for (url, near) in [
        ("ftp://localhost/x", ""),
        ("htps://localhost", "did you mean https? "),
        ("localhost:8080", ""),
        ("http:/localhost", ""),
        ("http:///x", ""),
    ] {
        let loaded = load(url);
        assert_eq!(
            loaded.http_endpoints.len(),
            1,
            "{url}: others than calls may need it"
        );
        let [warning] = loaded.warnings.as_slice() else {
            panic!("{url}: {:?}", loaded.warnings)
        };
        assert_eq!(warning.line, 5, "{url}");
        assert!(warning.what.contains(url), "{warning}");
        assert!(
            warning.remedy.starts_with(&format!("{near}give http://HOST")),
            "{warning}"
        );
    }
    for url in ["http://localhost", "HTTPS://[::1]:8080/base"] {
        assert_eq!(load(url).warnings, [], "{url}");
    }
}

#[test]
fn parses_endpoint_headers_and_tls() {
    let text = r#"
apiVersion: dapr.io/v1alpha1
kind: HTTPEndpoint
metadata: {name: e}
spec:
  baseUrl: https://example.org
  headers:
  - {name: Authorization, secretKeyRef: {name: token}}
  clientTLS:
    rootCA: {secretKeyRef: {name: tls, key: ca}}
    certificate: {value: PEM}
    renegotiation: Never
auth: {secretStore: s}
"#;
    let loaded = Folder::with(&[("a.yaml", text)]).load();
    assert_eq!(loaded.warnings, []);
    let e = &loaded.http_endpoints[0];
    assert_eq!(e.log_name(), "e (https://example.org)");
    assert_eq!(e.headers[0].secret.as_ref().map(|s| s.field()), Some("token"));
    let tls = e.tls.as_ref().unwrap();
    let ca = tls.root_ca.as_ref().unwrap();
    assert!(ca.value.is_none() && ca.secret.as_ref().is_some_and(|secret| secret.key == "ca"));
    assert_eq!(tls.certificate.as_ref().map(|c| c.text()), Some("PEM"));
}

#[test]
fn resiliency_uses_first_document() {
    let text = r#"
apiVersion: example.org/v7
kind: Resiliency
metadata: {name: r}
spec:
  policies:
    timeouts: {fast: 500, slow: 5s}
    retries:
      again: {policy: exponential, maxInterval: 15s, maxRetries: -1, matching: {httpStatusCodes: "500-599", gRPCStatusCodes: 14}}
    circuitBreakers:
      cb: {maxRequests: 2, interval: 8s, timeout: 45s, trip: consecutiveFailures >= 5}
  targets:
    apps: {other: {timeout: fast, retry: again, circuitBreaker: cb, circuitBreakerCacheSize: 7}}
    actors: {T: {circuitBreaker: cb, circuitBreakerScope: both}}
    components: {store: {outbound: {retry: again}, inbound: {timeout: slow}}}
---
apiVersion: dapr.io/v1alpha1
kind: Resiliency
metadata: {name: second}
"#;
    let loaded = Folder::with(&[("a.yaml", text)]).load();
    assert_eq!(loaded.resiliency.len(), 1);
    assert!(
        loaded.warnings[0].what.contains("only the first document"),
        "{}",
        loaded.warnings[0]
    );
    let r = &loaded.resiliency[0];
    assert_eq!(r.policies.timeouts["fast"], "500");
    let again = &r.policies.retries["again"];
    let codes = again.matching.as_ref().map(|m| m.grpc_status_codes.as_str());
    assert_eq!((again.max_retries, codes), (Some(-1), Some("14")));
    assert_eq!(r.policies.circuit_breakers["cb"].trip, "consecutiveFailures >= 5");
    assert_eq!(r.targets.apps["other"].circuit_breaker_cache_size, 7);
    assert_eq!(r.targets.actors["T"].circuit_breaker_scope, "both");
    assert_eq!(r.targets.components["store"].outbound.retry, "again");
}

#[test]
fn reload_ignores_location() {
    let a = &Folder::with(&[("a.yaml", &store("s"))]).load().components[0];
    let b = &Folder::with(&[("b.yaml", &format!("\n{}", store("s")))])
        .load()
        .components[0];
    assert!(a != b && a.same_as(b));
    let changed = Component {
        version: "v2".into(),
        ..b.clone()
    };
    assert!(!a.same_as(&changed));
}

#[test]
fn parses_operator_json() {
    let json = br#"{"apiVersion":"dapr.io/v1alpha1","kind":"Component","metadata":{"name":"s","creationTimestamp":null},
        "spec":{"type":"state.redis","version":"v1","metadata":[{"name":"a","value":"b","secretKeyRef":{"name":"","key":""}}]}}"#;
    let c = Component::from_json(json).unwrap();
    assert_eq!(
        (c.name.as_str(), c.property("a"), &c.metadata[0].secret),
        ("s", Some("b"), &None)
    );
}

#[test]
fn operator_resiliency_applies_valid_values() {
    let resiliency = |metadata: &str| {
        format!(
            r#"{{"metadata":{metadata},"spec":{{"policies":{{"timeouts":{{"fast":"1s","odd":[1]}},
               "retries":{{"again":{{"maxRetries":"many"}}}}}}}}}}"#
        )
    };
    let load = |json: &str| objects([(Kind::Resiliency, json)], "app").unwrap();
    let loaded = load(&resiliency(r#"{"name":"r"}"#));
    assert!(
        loaded.broken.is_empty() && loaded.warnings.is_empty(),
        "{loaded:?}"
    );
    let [sent] = loaded.resiliency.as_slice() else {
        panic!("one resiliency: {loaded:?}")
    };
    assert_eq!(sent.policies.timeouts["fast"], "1s");
    assert!(sent.is_wrong("spec.policies.timeouts", "odd"));
    assert!(sent.is_wrong("spec.policies.retries", "again"));
    assert_eq!(sent.source.to_string(), OPERATOR);

    let unnamed = load(&resiliency(r#"{"name":["r"]}"#));
    assert!(
        unnamed.resiliency.is_empty() && unnamed.broken.len() == 1,
        "{unnamed:?}"
    );
}
