use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::*;

mod definition;
mod mistakes;

/// Validators with some APIs and resolvers; values that start with `x` are invalid.
fn known() -> ValueChecks {
    let check: Check = |value| value.starts_with('x').then(|| "it is an x".to_owned());
    ValueChecks {
        apis: vec!["secrets", "state", "unlock"],
        resolvers: vec!["mdns", "sqlite"],
        zipkin_url: check,
        otlp_endpoint: check,
        otlp_header: check,
        regex: check,
        path_pattern: check,
    }
}

struct Files {
    paths: Vec<PathBuf>,
    _dir: tempfile::TempDir,
}

impl Files {
    fn with(texts: &[&str]) -> Files {
        let dir = tempfile::tempdir().unwrap();
        let paths = texts.iter().enumerate().map(|(n, text)| {
            let path = dir.path().join(format!("{n}.yaml"));
            fs::write(&path, text).unwrap();
            path
        });
        let paths = paths.collect();
        Files { paths, _dir: dir }
    }

    fn load(&self) -> Result<LoadedConfiguration, Vec<Problem>> {
        load(&self.paths, &known(), |name| {
            (name == "RATE").then(|| "0.5".to_owned())
        })
    }
}

fn one(text: &str) -> Configuration {
    let loaded = Files::with(&[text]).load().unwrap();
    assert_eq!(loaded.warnings, []);
    loaded.configuration
}

fn spec(body: &str) -> String {
    format!("apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata: {{name: c}}\nspec:\n{body}")
}

#[test]
fn no_files_mean_defaults() {
    let c = load::<PathBuf>(&[], &ValueChecks::default(), |_| None)
        .unwrap()
        .configuration;
    assert_eq!(c, Configuration::default());
    assert_eq!(
        (
            c.access_control.default_action.as_str(),
            c.access_control.trust_domain.as_str()
        ),
        ("allow", "public")
    );
    assert!(c.metrics.enabled && c.tracing.otel.secure && c.metrics.http.legacy_paths());
    assert!(c.metrics.latency_buckets.is_empty(), "the default");
    assert_eq!(c.tracing.rate(), DEFAULT_SAMPLING);
    assert_eq!(Files::with(&["", "# nothing\n"]).load().unwrap().configuration, c);
}

#[test]
fn later_files_override() {
    let first = spec(
        "  tracing: {samplingRate: \"1\", otel: {endpointAddress: a:1, protocol: grpc}}\n  features: [{name: A, enabled: true}]\n  \
         nameResolution: {component: consul, configuration: {selfRegister: true}}\n",
    );
    let second = spec(
        "  tracing: {otel: {isSecure: false, headers: [x=y, bad]}}\n  features: [{name: B, enabled: true}]\n  \
         nameResolution: {component: sqlite, configuration: {connectionString: f}}\n  metric:\n",
    );
    let c = Files::with(&[&first, &second]).load().unwrap().configuration;
    assert_eq!(
        (
            c.tracing.rate(),
            c.tracing.otel.endpoint.as_str(),
            c.tracing.otel.secure
        ),
        (1.0, "a:1", false)
    );
    assert_eq!(c.tracing.otel.headers, [("x".to_owned(), "y".to_owned())]);
    let on = ["B", "HotReload", "WorkflowsRemoteActivityReminder"];
    assert_eq!(c.features.names().collect::<Vec<_>>(), on);
    assert_eq!(c.name_resolution.component, "sqlite");
    assert_eq!(
        c.name_resolution.configuration,
        serde_json::json!({"connectionString": "f"})
    );
    assert!(c.metrics.enabled);
}

#[test]
fn expands_environment_variables() {
    let c = one(&spec(
        "  tracing: {samplingRate: \"$RATE\", zipkin: {endpointAddress: \"http://${UNSET}z\"}}\n",
    ));
    assert_eq!(
        (c.tracing.rate(), c.tracing.zipkin_endpoint.as_str()),
        (0.5, "http://z")
    );
}

#[test]
fn reads_all_sections() {
    let c = one(&spec(
        r#"
  httpPipeline:
    handlers: [{name: u, type: middleware.http.uppercase, selector: {fields: [{field: a, value: b}]}}]
  appHttpPipeline: {handlers: [{name: r, type: middleware.http.routerchecker, version: v1}]}
  mtls:
    enabled: true
    workloadCertTTL: 24h
    allowedClockSkew: 15m
    tokenValidators: [{name: JWKS, options: {source: https://x, minRefreshInterval: 2m, caCertificate: 5}}]
  secrets:
    scopes:
    - {storeName: a, defaultAccess: Deny, allowedSecrets: [one]}
    - {storeName: b, deniedSecrets: [two]}
  accessControl:
    defaultAction: deny
    policies:
    - {appId: x, defaultAction: allow, trustDomain: public, namespace: default,
       operations: [{name: /op, httpVerb: [POST, "*"], action: allow}]}
  api: {allowed: [{name: state, version: v1.0, protocol: http}], denied: [{name: publish, version: v1, protocol: GRPC}]}
  components: {deny: [state.redis, bindings.http/v1]}
  logging: {apiLogging: {enabled: true, obfuscateURLs: true, omitHealthChecks: true}}
  wasm: {strictSandbox: true}
  workflow:
    maxConcurrentWorkflowInvocations: 10
    maxConcurrentActivityInvocations: -1
    stateRetentionPolicy: {anyTerminal: 72h, completed: 0s}
    globalMaxConcurrentWorkflowInvocations: 20
    globalMaxConcurrentActivityInvocations: 0
    workflowConcurrencyLimits: [{name: order, maxConcurrent: 0}, {maxConcurrent: 3}]
    activityConcurrencyLimits: [{name: charge, maxConcurrent: 2}]
"#,
    ));
    assert_eq!(
        (
            c.name.as_str(),
            c.http_pipeline[0].name.as_str(),
            c.app_http_pipeline[0].version.as_str()
        ),
        ("c", "u", "v1")
    );
    assert_eq!((c.mtls.enabled, c.mtls.workload_cert_ttl.as_str()), (true, "24h"));
    assert_eq!(c.mtls.token_validators[0].options["caCertificate"], "5");
    let stores = c.secrets.iter().map(|scope| scope.store_name.as_str());
    assert_eq!(stores.collect::<Vec<_>>(), ["a", "b"]);
    let right = |scope: &SecretScope| scope.allows("one") && !scope.allows("two");
    assert!(c.secrets.iter().all(right));
    assert_eq!(c.access_control.trust_domain, "public");
    assert_eq!(
        c.access_control.policies[0].operations[0].http_verb,
        ["POST", "*"]
    );
    assert_eq!(
        (
            c.api_allowed[0].version.as_str(),
            c.api_denied[0].protocol.as_str()
        ),
        ("v1.0", "GRPC")
    );
    assert!(c.api_logging.enabled && c.api_logging.obfuscate_urls && c.api_logging.omit_health_checks);
    assert!(c.wasm_strict_sandbox);
    assert_eq!(
        (c.workflow.max_workflows, c.workflow.max_activities),
        (Some(10), None)
    );
    let limits = c.workflow.limits.iter();
    assert_eq!(
        limits
            .map(|limit| (limit.of, limit.name.as_deref(), limit.most))
            .collect::<Vec<_>>(),
        [
            (Limited::Workflows, None, 20),
            (Limited::Activities, Some("charge"), 2)
        ]
    );
    let retention = c.workflow.retention.unwrap();
    assert_eq!(
        (retention.any, retention.completed, retention.failed),
        (Some(Duration::from_secs(259_200)), Some(Duration::ZERO), None)
    );
}

#[test]
fn metrics_override_metric_fields() {
    let c = one(&spec(
        r#"
  metric: {enabled: false, recordErrorCodes: true, latencyDistributionBuckets: [1, 2], http: {excludeVerbs: true}}
  metrics:
    enabled: true
    http: {increasedCardinality: false, pathMatching: [/a]}
    rules: [{name: m, labels: [{name: l, regex: {"x": "y.*"}}]}]
"#,
    ));
    assert!(c.metrics.enabled && c.metrics.record_error_codes && !c.metrics.http.legacy_paths());
    assert_eq!(
        (c.metrics.latency_buckets, c.metrics.http.exclude_verbs),
        (vec![1, 2], false)
    );
    assert_eq!(c.metrics.rules[0].labels[0].regex["x"], "y.*");
}

#[test]
fn keeps_empty_default_action() {
    assert_eq!(
        one(&spec("  accessControl: {defaultAction: \"\"}\n"))
            .access_control
            .default_action,
        ""
    );
}

#[test]
fn policies_require_caller_fields() {
    let c = one(&spec(
        "  accessControl:\n    policies: [{appId: a}, {appId: b, trustDomain: t}, {namespace: n, trustDomain: t}]\n",
    ));
    assert_eq!(
        c.access_control.check().unwrap_err(),
        "invalid access control spec. missing trustdomain for apps: [a], missing namespace for apps: [a b], \
         missing app name on at least one of the app policies: true"
    );
    assert_eq!(Configuration::default().access_control.check(), Ok(()));
}

#[test]
fn last_feature_entry_wins() {
    let c = one(&spec(
        "  features:\n  - {name: HotReload, enabled: yes}\n  - {name: SubtleCrypto, enabled: true}\n  \
         - {name: SubtleCrypto, enabled: false}\n",
    ));
    assert!(
        c.features.enabled(HOT_RELOAD)
            && !c.features.enabled(SUBTLE_CRYPTO)
            && !c.features.enabled("hotreload")
    );
}

#[test]
fn deny_list_matches_type_and_version() {
    let c = one(&spec("  components: {deny: [state.redis, bindings.http/v1]}\n"));
    let denied = |kind: &str, version: &str| {
        let json = format!(r#"{{"spec":{{"type":"{kind}","version":"{version}"}}}}"#);
        let component = <Component as crate::load::FromJson>::from_json(json.as_bytes()).unwrap();
        assert!(!Configuration::default().denies(&component));
        c.denies(&component)
    };
    assert!(denied("state.redis", "v1") && denied("state.redis", "v2") && denied("bindings.http", "v1"));
    assert!(!denied("bindings.http", "v2") && !denied("State.redis", "v1"));
    assert!(denied("", "v1") && denied("state.mysql", ""));
}

#[test]
fn reports_secret_scopes_with_lines() {
    let right = spec("  secrets: {scopes: [{storeName: a}]}\n");
    let wrong = spec(
        "  secrets:\n    scopes:\n    - storeName: a\n    - storeName: b\n      defaultAccess: Dney\n    \
         - defaultAccess: ALLOW\n      storeName: a\n  tracing: {samplingRate: x}\n  colour: red\n",
    );
    let files = Files::with(&[&wrong, &spec("  tracing: {stdout: true}\n")]);
    let problems = files.load().unwrap_err();
    let told: Vec<_> = problems.iter().map(|p| (p.line, p.what.as_str())).collect();
    assert_eq!(
        told[..2],
        [
            (9, "defaultAccess Dney can be either allow or deny"),
            (11, "a storeName is repeated in secrets configuration"),
        ]
    );
    assert!(problems.iter().all(|problem| problem.file == files.paths[0]));
    assert_eq!(problems[0].remedy, "did you mean deny? write allow or deny");
    // Other errors are reported together.
    assert_eq!(
        told[2..].iter().map(|(line, _)| *line).collect::<Vec<_>>(),
        [12, 13]
    );
    // A later list replaces an earlier one.
    let replaced = Files::with(&[&wrong, &right]).load().unwrap();
    assert_eq!(replaced.configuration.secrets.len(), 1);
    let json =
        br#"{"spec":{"secrets":{"scopes":[{"storeName":"a"},{"storeName":"a","defaultAccess":"no"}]}}}"#;
    assert_eq!(
        Configuration::from_json(json).unwrap_err(),
        "a storeName is repeated in secrets configuration; defaultAccess no can be either allow or deny"
    );
}

#[test]
fn reports_all_problems_with_place() {
    let files = Files::with(&[
        "a: [",
        &spec("  tracing:\n    stdout: maybe\n"),
        &spec("  mtls: [1]\n"),
    ]);
    let mut paths = files.paths;
    paths.push(PathBuf::from("/no/such/file.yaml"));
    let problems = load(&paths, &known(), |_| None).unwrap_err();
    assert_eq!(problems.len(), 4, "{problems:?}");
    assert_eq!(
        (problems[1].line, problems[1].what.as_str()),
        (
            6,
            "spec.tracing.stdout: expected true or false without quotes, found \"maybe\""
        )
    );
    assert!(problems[3].what.contains("cannot read file"));
}

#[test]
fn warns_of_unknown_keys() {
    let loaded = Files::with(&[&spec("  traicing: {}\n")]).load().unwrap();
    assert_eq!(
        (loaded.warnings[0].line, loaded.warnings[0].what.as_str()),
        (5, "spec: unknown key \"traicing\", did you mean \"tracing\"?")
    );
}

#[test]
fn reads_and_reports_other_kinds() {
    let right = spec("  tracing: {samplingRate: \"0.5\"}\n");
    for (kind, line, what) in [
        ("kind: Config", 2, "kind is \"Config\" and not Configuration"),
        (
            "kind: Component",
            2,
            "kind is \"Component\" and not Configuration",
        ),
        ("kind:", 1, "kind is missing"),
        ("# no kind", 1, "kind is missing"),
    ] {
        let text = right.replace("kind: Configuration", kind);
        let files = Files::with(&[&right, &text]);
        let loaded = files.load().unwrap();
        let told: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
        let remedy = "write kind: Configuration, or name another file";
        let file = files.paths[1].display();
        assert_eq!(
            told,
            [format!(
                "{file}:{line}: {what}: the file is still read as a Configuration ({remedy})"
            )]
        );
        assert_eq!(loaded.configuration.tracing.rate(), 0.5, "{kind}");
    }
}

#[test]
fn parses_operator_json_headers() {
    let json =
        br#"{"metadata":{"name":"k"},"spec":{"tracing":{"samplingRate":"1","otel":{"endpointAddress":"a:1",
        "isSecure":false,"protocol":"grpc","timeout":"5s","headers":[{"name":"x","value":"y"}]}}}}"#;
    let c = Configuration::from_json(json).unwrap();
    assert_eq!(c.tracing.otel.headers, [("x".to_owned(), "y".to_owned())]);
    assert_eq!(
        (c.tracing.otel.timeout, c.name.as_str()),
        (Some(Duration::from_secs(5)), "k")
    );
}

#[test]
fn handlers_have_source_files() {
    let pipeline = |name: &str| spec(&format!("  httpPipeline:\n    handlers:\n    - name: {name}\n"));
    let files = Files::with(&[&pipeline("a"), &pipeline("b"), &spec("  tracing: {}\n")]);
    let handlers = files.load().unwrap().configuration.http_pipeline;
    let places: Vec<_> = handlers.iter().map(|h| (h.name.as_str(), &h.source)).collect();
    assert_eq!(places, [("b", &Source::new(&files.paths[1], 7))]);
}
