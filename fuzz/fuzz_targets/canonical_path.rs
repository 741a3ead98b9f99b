//! The canonical path: it stays below the root, is idempotent, and a deny rule for it holds for all
//! spellings.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outrigger_policy::access::{AccessControl, AppProtocol, CallerId};
use outrigger_policy::escape::path_unescape;
use outrigger_policy::path::{canonical, clean, grpc_method};
use outrigger_policy::{readings, request_path};
use outrigger_resources::configuration as spec;

const CALLER: CallerId<'_> = CallerId {
    trust_domain: "td",
    namespace: "ns",
    app_id: "caller",
};

fn denies(rule: &str, operation: &str, protocol: AppProtocol) -> bool {
    let operations = vec![spec::AppOperation {
        name: rule.to_owned(),
        http_verb: vec!["*".to_owned()],
        action: "deny".to_owned(),
    }];
    let policy = spec::AppPolicy {
        app_id: CALLER.app_id.to_owned(),
        trust_domain: CALLER.trust_domain.to_owned(),
        namespace: CALLER.namespace.to_owned(),
        default_action: "allow".to_owned(),
        operations,
    };
    let spec = spec::AccessControl {
        policies: vec![policy],
        ..Default::default()
    };
    let control = AccessControl::build(&spec, protocol).unwrap().unwrap();
    !control.decide(Some(CALLER), operation, "GET").allowed
}

fuzz_target!(|raw: &str| {
    let Ok(decoded) = path_unescape(raw) else {
        return;
    };
    if let Ok(method) = grpc_method(raw) {
        assert_eq!(canonical(method).as_deref(), Ok(raw));
        assert_eq!(readings::others(method), Some(vec![]));
    }
    let spelled = request_path::of_invocation(raw, None, None);
    assert_eq!(request_path::of_invocation(&spelled, None, None), spelled);
    let cleaned = clean(&decoded);
    assert_eq!(clean(&cleaned), cleaned);
    let Ok(method) = canonical(&decoded) else {
        assert!(decoded.contains(['#', '?']) || decoded.bytes().any(|byte| byte.is_ascii_control()));
        return;
    };
    assert_eq!(canonical(&method).as_deref(), Ok(&*method));
    assert!(method.split('/').all(|segment| !matches!(segment, "." | "..")));
    assert!(!method.contains("//"));
    // The remaining segments are those of the input, in order.
    let mut rest = decoded.split('/');
    assert!(
        method
            .split('/')
            .filter(|kept| !kept.is_empty())
            .all(|kept| rest.any(|segment| segment == kept))
    );
    assert!(denies(&method, &method, AppProtocol::Grpc));
    assert!(denies(&method, &method.to_ascii_uppercase(), AppProtocol::Http));
});
