//! Annotations with values that cannot be.

use super::*;

#[test]
fn values_that_no_sidecar_takes_are_left_out_of_its_arguments() {
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
