use super::*;
use crate::Component;

const STORE: &str = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata: {name: NAME}\nspec: {type: state.redis, version: v1}\n";

fn store(name: &str) -> String {
    STORE.replace("NAME", name)
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn with(files: &[(&str, &str)]) -> Folder {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        Folder(dir)
    }

    fn load(&self) -> Loaded {
        self.load_for("app", None).unwrap()
    }

    fn load_for(&self, app_id: &str, namespace: Option<&str>) -> Result<Loaded, Vec<Problem>> {
        let paths = [self.0.path().to_owned()];
        folders(&Request {
            paths: &paths,
            kinds: Kind::ALL,
            namespace,
            app_id,
        })
    }
}

fn names(components: &[Component]) -> Vec<&str> {
    components.iter().map(|c| c.name.as_str()).collect()
}

#[test]
fn yaml_files_load_in_order_and_others_warn() {
    let folder = Folder::with(&[
        ("b.YML", &store("third")),
        ("a.yaml", &format!("{}---\n{}", store("first"), store("second"))),
        ("notes.txt", "hello"),
    ]);
    fs::create_dir(folder.0.path().join("deeper.yaml")).unwrap();
    let loaded = folder.load();
    assert_eq!(names(&loaded.components), ["first", "second", "third"]);
    assert_eq!(loaded.components[1].source.line, 6);
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
    assert!(
        loaded.warnings[0]
            .to_string()
            .contains("notes.txt: a non-YAML file"),
        "{}",
        loaded.warnings[0]
    );
}

#[test]
fn a_component_has_all_its_fields() {
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
fn an_unusable_timeout_is_the_default() {
    let text = store("s").replace("version: v1", "version: v1, initTimeout: soon");
    assert_eq!(
        Folder::with(&[("a.yaml", &text)]).load().components[0].init_timeout,
        crate::component::DEFAULT_INIT_TIMEOUT
    );
}

#[test]
fn other_kinds_and_versions_are_ignored() {
    let other = store("x").replace("kind: Component", "kind: Deployment");
    let newer = store("y").replace("v1alpha1", "v9");
    let loaded = Folder::with(&[("a.yaml", &other), ("b.yaml", &newer), ("c.yaml", "")]).load();
    assert_eq!(loaded, Loaded::default());
}

#[test]
fn a_broken_document_warns_and_the_others_load() {
    let text = format!("{}---\na: [\n---\n{}", store("one"), store("two"));
    let loaded = Folder::with(&[("a.yaml", &text)]).load();
    assert_eq!(names(&loaded.components), ["one", "two"]);
    assert!(loaded.broken[0].ends_with("a.yaml"), "{:?}", loaded.broken);
    let warning = &loaded.warnings[0];
    assert!(
        warning.what.starts_with("not YAML") && warning.line >= 6,
        "{warning}"
    );

    let wrong = store("s").replace("type: state.redis", "type: [state.redis]");
    let loaded = Folder::with(&[("a.yaml", &wrong)]).load();
    assert!(loaded.components.is_empty());
    assert_eq!(loaded.broken.len(), 1);
    assert_eq!(
        loaded.warnings[0].what,
        "spec.type: expected a text, found a list"
    );
    assert_eq!(loaded.warnings[0].line, 4);
}

#[test]
fn unknown_keys_warn_with_their_line() {
    let text = store("s") + "scope: [app]\n";
    let loaded = Folder::with(&[("a.yaml", &text)]).load();
    assert_eq!(loaded.components.len(), 1);
    assert!(loaded.broken.is_empty(), "an odd key is no reason");
    assert_eq!(
        (loaded.warnings[0].line, loaded.warnings[0].what.as_str()),
        (5, "unknown key \"scope\", did you mean \"scopes\"?")
    );
}

#[test]
fn names_must_fit_into_paths() {
    for bad in [".", "..", "a/b", "'a%b'"] {
        let loaded = Folder::with(&[("a.yaml", &store(bad))]).load();
        assert!(loaded.components.is_empty(), "{bad}");
        assert!(
            loaded.warnings[0].what.starts_with("invalid name"),
            "{}",
            loaded.warnings[0]
        );
    }
}

#[test]
fn a_missing_folder_ends_the_start_unless_only_resiliency_is_wanted() {
    let paths = [PathBuf::from("/no/such/folder")];
    let load = |kinds: &[Kind]| {
        folders(&Request {
            paths: &paths,
            kinds,
            namespace: None,
            app_id: "app",
        })
    };
    let problems = load(Kind::ALL).unwrap_err();
    assert!(
        problems[0].to_string().contains("--resources-path"),
        "{}",
        problems[0]
    );
    assert!(load(&[Kind::Resiliency]).is_ok());
}

#[test]
fn a_folder_that_is_not_there_is_named_with_the_one_meant() {
    let parent = tempfile::tempdir().unwrap();
    std::fs::create_dir(parent.path().join("resources")).unwrap();
    let wrong = parent.path().join("resuorces");
    let request = Request {
        paths: std::slice::from_ref(&wrong),
        kinds: Kind::ALL,
        namespace: None,
        app_id: "app",
    };
    let problems = folders(&request).unwrap_err();
    let summary = crate::problem::summary(&problems);
    assert!(
        summary.contains(&format!("cannot read resources folder {}", wrong.display())),
        "{summary}"
    );
    let right = format!("did you mean {}?", parent.path().join("resources").display());
    assert!(problems[0].to_string().contains(&right), "{}", problems[0]);
}

#[test]
fn a_component_without_a_name_is_loaded_and_told() {
    let text =
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  {}\nspec:\n  type: state.in-memory\n";
    let loaded = super::text(text, "app").unwrap();
    assert_eq!(loaded.components.len(), 1);
    let said: Vec<_> = loaded
        .warnings
        .iter()
        .map(|p| (p.line, p.what.as_str()))
        .collect();
    assert_eq!(
        said,
        [(4, "metadata.name is missing: no call can name this Component")]
    );
}

#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_is_said_to_be_one() {
    let parent = tempfile::tempdir().unwrap();
    let (dangling, looping) = (parent.path().join("resources"), parent.path().join("loop"));
    std::os::unix::fs::symlink(parent.path().join("gone"), &dangling).unwrap();
    std::os::unix::fs::symlink(&looping, &looping).unwrap();
    for path in [dangling, looping] {
        let request = Request {
            paths: std::slice::from_ref(&path),
            kinds: Kind::ALL,
            namespace: None,
            app_id: "app",
        };
        let folder = folders(&request).unwrap_err().remove(0).remedy;
        let file = read(&path).unwrap_err().remedy;
        for remedy in [folder, file] {
            let said = format!(
                "it is a link to {}, which leads",
                path.read_link().unwrap().display()
            );
            assert!(remedy.starts_with(&said), "{remedy}");
        }
    }
}

#[test]
fn a_kind_that_is_nearly_one_is_a_mistake() {
    let text = "apiVersion: dapr.io/v1alpha1\nkind: Componet\nmetadata:\n  name: s\n";
    let loaded = super::text(text, "app").unwrap();
    let said: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 1);
    assert!(
        said[0].contains("\"Componet\"") && said[0].contains("did you mean Component?"),
        "{said:?}"
    );
    for other in [
        "apiVersion: v1\nkind: Componet\n",
        "apiVersion: dapr.io/v1alpha1\nkind: Configuration\n",
        "apiVersion: dapr.io/v1alpha1\nkind: Workflow\n",
    ] {
        assert!(super::text(other, "app").unwrap().warnings.is_empty(), "{other}");
    }
}

#[test]
fn values_know_their_lines() {
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
fn duplicates_end_the_start() {
    let folder = Folder::with(&[("a.yaml", &store("s")), ("b.yaml", &store("s"))]);
    let problems = folder.load_for("app", None).unwrap_err();
    assert_eq!(problems.len(), 1);
    let what = "duplicate definition of Component name s (state.redis/v1) with existing s (state.redis/v1)";
    assert_eq!(crate::problem::summary(&problems), what);
    assert!(
        problems[0].file.ends_with("b.yaml") && problems[0].remedy.contains("a.yaml:1"),
        "{}",
        problems[0]
    );
}

#[test]
fn namespaces_filter_only_when_both_are_set() {
    let there = store("s").replace("name: s", "name: s, namespace: there");
    let here = store("s").replace("name: s", "name: s, namespace: here");
    let folder = Folder::with(&[("a.yaml", &there), ("b.yaml", &here), ("c.yaml", &store("any"))]);
    let loaded = folder.load_for("app", Some("here")).unwrap();
    assert_eq!(names(&loaded.components), ["s", "any"]);
    assert_eq!(loaded.components[0].namespace, "here");
    assert!(
        folder.load_for("app", None).is_err(),
        "without namespace both of the name load"
    );
}

#[test]
fn scopes_choose_apps() {
    let folder = Folder::with(&[
        ("a.yaml", &(store("a") + "scopes: [other]\n")),
        ("b.yaml", &(store("b") + "scopes: []\n")),
    ]);
    assert_eq!(names(&folder.load().components), ["b"]);
    assert_eq!(
        names(&folder.load_for("other", None).unwrap().components),
        ["a", "b"]
    );
}

#[test]
fn subscriptions_know_where_their_rules_stand_and_what_they_lack() {
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
fn both_versions_of_subscriptions_load_and_the_last_of_a_name_wins() {
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
fn endpoints_have_headers_and_tls() {
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
fn resiliency_takes_the_first_document_of_any_version() {
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
fn only_wanted_kinds_load() {
    let folder = Folder::with(&[("a.yaml", &store("s"))]);
    let paths = [folder.0.path().to_owned()];
    let kinds = &[Kind::HttpEndpoint, Kind::Subscription, Kind::Resiliency];
    let loaded = folders(&Request {
        paths: &paths,
        kinds,
        namespace: None,
        app_id: "app",
    })
    .unwrap();
    assert_eq!(loaded, Loaded::default());
}

#[test]
fn limits_hold() {
    let huge = "#".repeat(MAX_FILE_SIZE + 1);
    let many = "a: b\n---\n".repeat(split::MAX_DOCUMENTS + 1);
    let loaded = Folder::with(&[("a.yaml", &huge), ("b.yaml", &many)]).load();
    let texts: Vec<_> = loaded.warnings.iter().map(|w| w.what.as_str()).collect();
    assert_eq!(
        texts,
        [
            "file is larger than 4 MiB",
            "more than 1000 documents, the rest is not loaded"
        ]
    );
}

#[test]
fn reload_compares_what_a_component_says_not_where() {
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
fn operators_send_json() {
    let json = br#"{"apiVersion":"dapr.io/v1alpha1","kind":"Component","metadata":{"name":"s","creationTimestamp":null},
        "spec":{"type":"state.redis","version":"v1","metadata":[{"name":"a","value":"b","secretKeyRef":{"name":"","key":""}}]}}"#;
    let c = Component::from_json(json).unwrap();
    assert_eq!(
        (c.name.as_str(), c.property("a"), &c.metadata[0].secret),
        ("s", Some("b"), &None)
    );
}

#[test]
fn a_text_loads_like_a_file() {
    let loaded = text(&format!("{}---\n{}", store("a"), store("b")), "app").unwrap();
    assert_eq!(names(&loaded.components), ["a", "b"]);
    assert!(text(&format!("{}---\n{}", store("a"), store("a")), "app").is_err());
}
