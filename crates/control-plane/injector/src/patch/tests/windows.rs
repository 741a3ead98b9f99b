//! Windows pods.

use super::*;

fn pod_for(system: &str, annotations: &Value) -> Value {
    let mut made = pod(annotations);
    made["spec"]["os"] = json!({"name": system});
    made
}

#[test]
fn omits_fields_invalid_on_windows() {
    let mut settings = settings();
    settings.run_as_user = Some(1000);
    settings.run_as_group = Some(2000);
    settings.drop_capabilities = true;
    let of = |system: &str, annotations: &Value| {
        let patched = patched_in(pod_for(system, annotations), &settings, &context());
        container(&patched, "daprd").clone()
    };
    let annotations = json!({"sidecar-image": "daprd:win", "sidecar-seccomp-profile-type": "RuntimeDefault"});
    let sidecar = of("windows", &annotations);
    assert_eq!(sidecar["image"], "daprd:win");
    assert_eq!(sidecar["securityContext"], json!({"runAsNonRoot": true}));
    let certificates = json!({"sidecar-image": "daprd:win", "env": "SSL_CERT_DIR=/certs"});
    assert_eq!(
        of("windows", &certificates)["securityContext"],
        json!({"runAsNonRoot": false, "windowsOptions": {"runAsUserName": "ContainerAdministrator"}})
    );
    assert_eq!(
        of("linux", &annotations)["securityContext"],
        json!({"allowPrivilegeEscalation": false, "runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 2000,
        "readOnlyRootFilesystem": true, "seccompProfile": {"type": "RuntimeDefault"},
        "capabilities": {"drop": ["ALL"]}})
    );
}

#[test]
fn windows_pod_requires_image() {
    for annotations in [json!({}), json!({"sidecar-image": ""})] {
        let pod: Pod = serde_json::from_value(pod_for("windows", &annotations)).unwrap();
        let error = operations(&pod, &settings(), &context()).unwrap_err();
        assert_eq!(
            error,
            "no sidecar image exists for Windows: name one in the annotation dapr.io/sidecar-image"
        );
    }
}
