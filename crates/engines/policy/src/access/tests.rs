use proptest::prelude::*;

use super::*;
use crate::path::canonical;
use crate::target::Invocation;

fn operation(name: &str, verbs: &[&str], action: &str) -> spec::AppOperation {
    let http_verb = verbs.iter().map(|&verb| verb.into()).collect();
    spec::AppOperation {
        name: name.into(),
        http_verb,
        action: action.into(),
    }
}

fn policy(
    app: &str,
    trust: &str,
    namespace: &str,
    default: &str,
    operations: Vec<spec::AppOperation>,
) -> spec::AppPolicy {
    spec::AppPolicy {
        app_id: app.into(),
        trust_domain: trust.into(),
        namespace: namespace.into(),
        default_action: default.into(),
        operations,
    }
}

fn spec(default: &str, policies: Vec<spec::AppPolicy>) -> spec::AccessControl {
    spec::AccessControl {
        default_action: default.into(),
        trust_domain: "public".into(),
        policies,
    }
}

fn compiled(protocol: AppProtocol) -> AccessControl {
    let post = |name| operation(name, &["POST"], "allow");
    let policies = vec![
        policy(
            "app1",
            "public",
            "ns1",
            "allow",
            vec![
                operation("/op1", &["POST", "GET"], "allow"),
                operation("/op2", &["*"], "deny"),
            ],
        ),
        policy(
            "app2",
            "td",
            "ns2",
            "deny",
            vec![operation("/op3/a/*", &["PUT", "GET"], "allow"), post("op4")],
        ),
        policy("app3", "td", "ns1", "", vec![post("/op5")]),
        policy("app4", "td", "ns2", "deny", vec![operation("/op6", &[], "ALLOW")]),
        policy(
            "app1",
            "public",
            "ns4",
            "allow",
            vec![operation("/op6", &["*"], "Allow")],
        ),
    ];
    AccessControl::build(&spec("deny", policies), protocol)
        .unwrap()
        .unwrap()
}

fn id(caller: &str) -> CallerId<'_> {
    let mut parts = caller.split('/');
    CallerId {
        trust_domain: parts.next().unwrap(),
        namespace: parts.next().unwrap(),
        app_id: parts.next().unwrap(),
    }
}

fn allowed(control: &AccessControl, caller: &str, operation: &str, verb: &str) -> bool {
    control.decide(Some(id(caller)), operation, verb).allowed
}

#[test]
fn http_decisions() {
    let control = compiled(AppProtocol::Http);
    for (caller, operation, verb, expected) in [
        ("public/ns1/appX", "op1", "POST", false),
        ("private/ns1/app1", "op1", "POST", false),
        ("public/abcd/app1", "op1", "POST", false),
        ("public/ns1/app1", "opX", "POST", true),
        ("public/ns1/app1", "op1", "POST", true),
        ("public/ns1/app1", "Op2", "POST", false),
        ("public/ns1/app1", "/op2", "PUT", false),
        ("public/ns1/app1", "op2/below", "PUT", false),
        ("public/ns1/app1", "op2", "NONE", true),
        ("public/ns4/app1", "op6", "PUT", true),
        ("td/ns2/app2", "op4", "PUT", false),
        ("td/ns2/app2", "op4", "POST", true),
        ("td/ns2/app2", "/op4", "POST", true),
        ("td/ns2/app2", "op4", "", false),
        ("td/ns2/app2", "op4", "BREW", false),
        ("td/ns2/app2", "op3/a", "PUT", true),
        ("td/ns2/app2", "op3/a/b", "PUT", true),
        ("td/ns2/app2", "op3/b/b", "PUT", false),
        ("td/ns1/app3", "op5", "POST", true),
        ("td/ns1/app3", "op5", "PUT", false),
        ("td/ns1/app3", "op5", "", false),
    ] {
        assert_eq!(
            allowed(&control, caller, operation, verb),
            expected,
            "{caller} {operation} {verb}"
        );
    }
}

#[test]
fn grpc_decisions_ignore_verbs_and_respect_case() {
    let control = compiled(AppProtocol::Grpc);
    assert!(allowed(&control, "td/ns2/app2", "op4", ""));
    assert!(!allowed(&control, "td/ns2/app2", "/OP4", ""));
    assert!(allowed(&control, "td/ns2/app4", "op6", ""));
    assert!(!allowed(&control, "public/ns1/app1", "/op2", ""));
}

#[test]
fn reports_deciding_policy() {
    let control = compiled(AppProtocol::Http);
    let by = |caller: Option<&str>| control.decide(caller.map(id), "x", "GET").by_app_policy;
    assert!(by(Some("public/ns1/app1")));
    assert!(
        !by(Some("td/ns1/app3")),
        "a policy without its own default counts as global"
    );
    assert!(!by(Some("public/ns1/nobody")));
    assert!(!by(None));
    assert!(!control.decide(None, "op1", "POST").allowed);
}

#[test]
fn defaults() {
    let build = |spec: &spec::AccessControl| AccessControl::build(spec, AppProtocol::Http).unwrap();
    let nothing = spec::AccessControl {
        trust_domain: String::new(),
        ..spec("", vec![])
    };
    assert!(build(&nothing).is_none());
    let anyone = |control: Option<AccessControl>| control.unwrap().decide(None, "x", "GET").allowed;
    assert!(anyone(build(&spec("Allow", vec![]))));
    assert!(!anyone(build(&spec("", vec![policy("a", "b", "c", "", vec![])]))));
    assert!(!anyone(build(&spec("nonsense", vec![]))));
}

#[test]
fn rejects_incomplete_policies() {
    let policies = vec![
        policy("a", "", "ns", "", vec![]),
        policy("b", "td", "", "", vec![]),
    ];
    let error = AccessControl::build(&spec("deny", policies), AppProtocol::Http).unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid access control spec. missing trustdomain for apps: [a], missing namespace for apps: [b], \
         missing app name on at least one of the app policies: false"
    );
}

fn denying(path: &str, protocol: AppProtocol) -> AccessControl {
    let rules = vec![operation(path, &["*"], "deny")];
    let spec = spec("deny", vec![policy("a", "td", "ns", "allow", rules)]);
    AccessControl::build(&spec, protocol).unwrap().unwrap()
}

#[test]
fn denies_ambiguous_operation() {
    for protocol in [AppProtocol::Http, AppProtocol::Grpc] {
        let control = denying("/admin", protocol);
        for spelling in [
            "admin;x",
            "admin;/users",
            "public/..;/admin",
            "public\\..\\admin",
            "%61dmin",
            "public/%2e%2e/admin",
        ] {
            let decision = control.decide(Some(id("td/ns/a")), spelling, "GET");
            assert!(!decision.allowed, "{spelling}");
            let ambiguity = decision.ambiguity.unwrap().to_string();
            assert!(ambiguity.contains("admin"), "{ambiguity}");
        }
        for other in ["public;x", "a\\b", "50%", "administration;x", "open/admin;x"] {
            assert!(allowed(&control, "td/ns/a", other, "GET"), "{other}");
        }
        let riddle = format!("%{}61dmin", "25".repeat(40));
        let decision = control.decide(Some(id("td/ns/a")), &riddle, "GET");
        assert_eq!(decision.ambiguity, Some(Ambiguity::TooManyReadings));
    }
}

#[test]
fn allow_rule_does_not_open_default_deny() {
    let rules = vec![operation("/public/**", &["*"], "allow")];
    let spec = spec("deny", vec![policy("a", "td", "ns", "deny", rules)]);
    let control = AccessControl::build(&spec, AppProtocol::Http).unwrap().unwrap();
    assert!(allowed(&control, "td/ns/a", "public/a;b", "GET"));
    assert!(!allowed(&control, "td/ns/a", "public/..;/admin", "GET"));
}

#[test]
fn denies_callbacks_as_methods() {
    let control = denying("/admin", AppProtocol::Grpc);
    for callback in [
        "/dapr.proto.runtime.v1.AppCallback/OnInvoke",
        "/dapr.proto.runtime.v1.AppCallback/OnTopicEvent",
        "/dapr.proto.runtime.v1.AppCallbackAlpha/OnJobEventAlpha1",
    ] {
        assert!(!allowed(&control, "td/ns/a", callback, "NONE"), "{callback}");
    }
    let open = AccessControl::build(&spec("allow", vec![]), AppProtocol::Grpc)
        .unwrap()
        .unwrap();
    let callback = "/dapr.proto.runtime.v1.AppCallback/OnInvoke";
    assert!(
        allowed(&open, "td/ns/a", callback, "NONE"),
        "there is no rule to get around"
    );
    assert!(!control.decide(None, callback, "NONE").allowed);
}

#[test]
fn denial_text_matches_dapr() {
    assert_eq!(
        denial("spiffe://public/ns/a/b", "op", "get", None),
        "access control policy has denied access to id: spiffe://public/ns/a/b operation: op verb: NONE"
    );
    let ambiguity = Ambiguity::ReadAs("op".to_owned());
    let text = denial("x", "op;y", "GET", Some(&ambiguity));
    assert!(text.ends_with("operation: op;y verb: GET (servers may interpret it as op, which is denied)"));
}

/// A spelling that an HTTP server would interpret as `plain`.
fn spelled(plain: &str, choices: &[u8]) -> String {
    let mut out = String::new();
    for (byte, choice) in plain.bytes().zip(choices.iter().cycle()) {
        match (byte, choice % 12) {
            (b'/', 1) => out.push_str("//"),
            (b'/', 2) => out.push_str("/./"),
            (b'/', 3) => out.push_str("/x/../"),
            (b'/', 4) => out.push_str("%2F"),
            (b'/', 5) => out.push_str("/x%2f%2e%2E/"),
            (b'/', 6) => out.push_str(";p=1/"),
            (b'/', 7) => out.push_str("/x/..;q/"),
            (b'/', 8) => out.push_str("%5C"),
            (b'/', 9) => out.push_str("%252f"),
            (byte, 1 | 2) => out.push(char::from(byte.to_ascii_uppercase())),
            (byte, 6) => out.push_str(&format!("%25{byte:02x}")),
            (byte, 3) => out.push_str(&format!("%{byte:02X}")),
            (byte, 4) => out.push_str(&format!("%{:02x}", byte.to_ascii_uppercase())),
            (byte, _) => out.push(char::from(byte)),
        }
    }
    out
}

proptest! {
    #[test]
    fn no_spelling_bypasses_deny_rule(
        path in "[a-c]{1,2}(/[a-c]{1,2}){0,3}",
        below in "(/[a-c]{1,2}){0,2}/?",
        choices in proptest::collection::vec(any::<u8>(), 1..24),
    ) {
        let rules = vec![operation(&path, &["*"], "deny")];
        let control = spec("allow", vec![policy("a", "td", "ns", "allow", rules)]);
        let control = AccessControl::build(&control, AppProtocol::Http).unwrap().unwrap();

        let request = format!("/v1.0/invoke/callee/method/{}", spelled(&format!("{path}{below}"), &choices));
        let invocation = Invocation::parse(&request, None, None).unwrap();
        prop_assert!(!allowed(&control, "td/ns/a", &invocation.method, "GET"), "{} as {}", request, invocation.method);
        // The callee canonicalizes the received path again, and must get the same result.
        prop_assert_eq!(&canonical(&invocation.method).unwrap(), &invocation.method);
    }

    #[test]
    fn decisions_do_not_panic(operation in ".{0,20}", verb in "[A-Z]{0,5}") {
        let control = compiled(AppProtocol::Http);
        let _ = control.decide(Some(id("public/ns1/app1")), &operation, &verb);
    }
}
