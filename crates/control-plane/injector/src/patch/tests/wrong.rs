//! Annotations with invalid values.

use super::*;

#[test]
fn omits_invalid_values_from_arguments() {
    let plain = args(&sidecar(&json!({}))).join(" ");
    let wrong = json!({"app-protocol": "soap", "log-level": "loud", "app-port": "70000", "max-body-size": "lots",
        "block-shutdown-duration": "long", "disable-init-endpoints": "all"});
    assert_eq!(args(&sidecar(&wrong)).join(" "), plain);
    let read: Pod = serde_json::from_value(pod(&json!({"metrics-port": "99999"}))).unwrap();
    let refused = operations(&read, &settings(), &context()).unwrap_err();
    assert!(
        refused.contains("dapr.io/metrics-port") && refused.contains("1 to 65535"),
        "{refused}"
    );
}

#[test]
fn refuses_invalid_volumes_variables_and_images() {
    let token = "/var/run/secrets/dapr.io/sentrytoken";
    for (annotations, told) in [
        (
            json!({"volume-mounts": "data:"}),
            "annotation dapr.io/volume-mounts: the volume \"data\" has no path",
        ),
        (
            json!({"volume-mounts": "data:/x", "volume-mounts-rw": "more:/x"}),
            "dapr.io/volume-mounts and annotation dapr.io/volume-mounts-rw: both are mounted at \"/x\"",
        ),
        (
            json!({"volume-mounts": format!("data:{token}")}),
            "dapr.io/volume-mounts and the sidecar's token: both are mounted at",
        ),
        (
            json!({"volume-mounts": "data:/var/run/dapr-sockets", "unix-domain-socket-path": "/s"}),
            "dapr.io/volume-mounts and the sockets of the sidecar's API",
        ),
        (
            json!({"sidecar-image": "daprd:1 "}),
            "dapr.io/sidecar-image: \"daprd:1 \" is not an image without white space around it",
        ),
        (
            json!({"env-from-secret": "A=s:a/b"}),
            "dapr.io/env-from-secret: \"A=s:a/b\" is not NAME=secret,NAME=secret:key",
        ),
        (json!({"env-from-secret": "A=s:"}), "key: letters, digits"),
        (
            json!({"env": "N\u{c4}ME=x"}),
            "is not NAME=value,NAME=value (NAME: printable ASCII)",
        ),
    ] {
        let mut with = pod(&annotations);
        with["spec"]["volumes"] = json!([{"name": "data"}, {"name": "more"}]);
        let read: Pod = serde_json::from_value(with).unwrap();
        let refused = operations(&read, &settings(), &context()).unwrap_err();
        assert!(
            refused.contains(told) && refused.contains("the API server rejects such a container"),
            "{annotations}: {refused}"
        );
        assert_eq!(
            warnings(&read, &settings()),
            Vec::<String>::new(),
            "no warning besides"
        );
    }
    // Volumes that the pod lacks are not mounted.
    let read: Pod = serde_json::from_value(pod(&json!({"volume-mounts": "data:,more:/x,less:/x"}))).unwrap();
    assert!(operations(&read, &settings(), &context()).is_ok());
}
