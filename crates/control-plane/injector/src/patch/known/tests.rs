use super::*;

fn of(name: &str, value: &str) -> Vec<String> {
    warnings(&BTreeMap::from([(name.to_owned(), value.to_owned())]))
}

#[test]
fn names_wrong_annotations() {
    for (name, value, text) in [
        ("dapr.io/app-port", "http", "\"http\" is not a whole number"),
        ("dapr.io/enable-metrics", "perhaps", "is not true or false"),
        ("dapr.io/sidecar-cpu-limit", "fast", "is not a quantity"),
        ("dapr.io/volume-mounts", "a:/x,b", "name:path"),
        ("dapr.io/env", "A", "NAME=value"),
        (
            "dapr.io/app-protocol",
            "soap",
            "is not http, https, h2c, grpc or grpcs: it is ignored",
        ),
        (
            "dapr.io/log-level",
            "loud",
            "is not debug, info, warn, error or fatal: it is ignored",
        ),
        ("dapr.io/block-shutdown-duration", "5", "a duration such as 5s"),
        ("dapr.io/config", "My Config", "the sidecar does not start"),
        ("dapr.io/app-port", "9090", "use separate ports"),
        (
            "dapr.io/grpc-port",
            "3500",
            "dapr.io/grpc-port is 3500, the same as the sidecar's HTTP API",
        ),
        (
            "dapr.io/app-health-probe-timeout",
            "6000",
            "longer than dapr.io/app-health-probe-interval",
        ),
        ("dapr.io/app-prot", "1", "did you mean dapr.io/app-protocol?"),
        ("dapr.io/zzzzzz", "1", "dapr.io/zzzzzz is unknown"),
    ] {
        let found = of(name, value);
        assert!(found.len() == 1 && found[0].contains(text), "{name}: {found:?}");
    }
}

#[test]
fn accepts_valid_and_foreign_annotations() {
    for (name, value) in [
        ("dapr.io/app-port", "80"),
        ("dapr.io/app-port", "0"),
        ("dapr.io/enable-metrics", "false"),
        ("dapr.io/app-protocol", "gRPC"),
        ("dapr.io/scheduler-host-address", ""),
        ("dapr.io/enabled", "Yes"),
        ("dapr.io/sidecar-memory-limit", "64Mi"),
        ("dapr.io/volume-mounts", "a:/x,b:/y"),
        ("example.com/app-port", "x"),
    ] {
        assert_eq!(of(name, value), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn refuses_annotations_invalid_for_api_server() {
    for (name, value, text) in [
        ("metrics-port", "99999", "\"99999\" is not a port (1 to 65535)"),
        ("grpc-port", "0", "dapr.io/grpc-port: \"0\""),
        (
            "sidecar-liveness-probe-period-seconds",
            "-1",
            "is not a whole number from 0",
        ),
        (
            "sidecar-seccomp-profile-type",
            "Localhost",
            "is not RuntimeDefault or Unconfined",
        ),
        ("sidecar-memory-limit", "-1Gi", "is not a quantity"),
    ] {
        let one = BTreeMap::from([(format!("dapr.io/{name}"), value.to_owned())]);
        let refused = counting(&one).unwrap_err();
        assert!(refused.contains(text), "{name}: {refused}");
        assert!(warnings(&one).is_empty(), "{name} is refused, no warning besides");
    }
}

fn given<const N: usize>(all: [(&str, &str); N]) -> BTreeMap<String, String> {
    all.map(|(name, value)| (format!("dapr.io/{name}"), value.to_owned()))
        .into()
}

#[test]
fn refuses_request_above_limit() {
    let cpu = |request, limit| given([("sidecar-cpu-request", request), ("sidecar-cpu-limit", limit)]);
    for (request, limit) in [
        ("700m", "0.7"),
        ("1100m", "1.1"),
        ("0.29", "290m"),
        ("", "1"),
        ("1", ""),
    ] {
        assert_eq!(counting(&cpu(request, limit)).err(), None, "{request} {limit}");
    }
    for (request, limit) in [("2", "500m"), ("701m", "0.7"), ("0.700000001", "700m")] {
        let refused = counting(&cpu(request, limit)).unwrap_err();
        assert!(
            refused.contains("use at most the limit"),
            "{request} {limit}: {refused}"
        );
    }
}

#[test]
fn ignores_unused_amounts() {
    let mut all = given([
        ("sidecar-cpu-request", "2"),
        ("sidecar-cpu-limit", "1"),
        ("sidecar-memory-limit", "-1Gi"),
    ]);
    assert!(counting(&all).is_err());
    all.extend(given([("sidecar-memory-request", "lots")]));
    assert_eq!(counting(&all).err(), None);
    let warned = warnings(&all);
    assert!(warned.len() == 1 && warned[0].contains("\"lots\""), "{warned:?}");
}

#[test]
fn checks_debugger_port_if_enabled() {
    for port in ["-1", "0", "99999", "port"] {
        let off = given([("debug-port", port), ("enable-debug", "false")]);
        for all in [&given([("debug-port", port)]), &off] {
            assert_eq!(counting(all).err(), None, "{port}");
            assert!(warnings(all).is_empty(), "{port}");
        }
    }
    let image = ("sidecar-image", "with-debugger");
    let on = |port| given([("debug-port", port), ("enable-debug", "true"), image]);
    let refused = counting(&on("-1")).unwrap_err();
    assert!(refused.contains("dapr.io/debug-port"), "{refused}");
    assert!(warnings(&on("port"))[0].contains("dapr.io/debug-port"));
}

#[test]
fn custom_image_may_have_debugger() {
    let debug = ("enable-debug", "true");
    let warned = warnings(&given([debug]));
    assert!(
        warned.len() == 1 && warned[0].contains("has no /dlv"),
        "{warned:?}"
    );
    assert!(warned[0].chars().count() < MAX_LENGTH, "{warned:?}");
    assert!(warnings(&given([debug, ("sidecar-image", "mine")])).is_empty());
    assert!(warnings(&given([("enable-debug", "false")])).is_empty());
}

#[test]
fn keeps_only_protective_invalid_annotations() {
    let all = [
        ("app-protocol", "soap", false),
        ("log-level", "loud", false),
        ("app-port", "70000", false),
        ("max-body-size", "lots", false),
        ("sidecar-listen-addresses", "every where", false),
        ("app-health-probe-timeout", "6000", false),
        ("config", "My Config", true),
        ("api-token-secret", "My Secret", true),
        ("enable-metrics", "perhaps", true),
        ("sidecar-cpu-limit", "fast", true),
        ("unheard-of", "x", true),
    ];
    let given = all.map(|(name, value, _)| (format!("dapr.io/{name}"), value.to_owned()));
    let counting = counting(&given.into()).unwrap();
    for (name, _, counts) in all {
        assert_eq!(
            counting.contains_key(&format!("dapr.io/{name}")),
            counts,
            "{name}"
        );
    }
}

#[test]
fn limits_warnings() {
    let many = (0..100)
        .map(|number| (format!("dapr.io/x{number}"), "1".to_owned()))
        .collect();
    assert_eq!(warnings(&many).len(), MAX_WARNINGS);
    let long = of("dapr.io/app-port", &"ü".repeat(1000));
    assert!(long[0].chars().count() <= MAX_LENGTH);
}
