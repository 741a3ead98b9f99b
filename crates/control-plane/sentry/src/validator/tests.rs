use super::*;

fn request() -> SignCertificateRequest {
    SignCertificateRequest {
        id: "myapp".to_owned(),
        namespace: "default".to_owned(),
        certificate_signing_request: vec![1].into(),
        ..SignCertificateRequest::default()
    }
}

fn validators() -> Validators {
    Validators::new(None, "dapr-system", ControlPlane::SameUser)
}

fn refusal(change: impl FnOnce(&mut SignCertificateRequest)) -> String {
    let mut request = request();
    change(&mut request);
    validators().validate(&request, false).unwrap_err().to_string()
}

#[test]
fn accepts_all_callers_without_validators() {
    let validators = validators();
    for asked in [TokenValidator::Unknown, TokenValidator::Insecure] {
        let mut request = request();
        request.token_validator = asked.into();
        request.token = "ignored".to_owned();
        assert_eq!(
            validators.validate(&request, false).unwrap().as_str(),
            "spiffe://public/ns/default/myapp"
        );
        request.trust_domain = "my.domain".to_owned();
        assert_eq!(
            validators.validate(&request, false).unwrap().as_str(),
            "spiffe://my.domain/ns/default/myapp"
        );
    }
}

#[test]
fn refuses_disabled_validators() {
    for asked in [
        TokenValidator::Kubernetes as i32,
        TokenValidator::Jwks as i32,
        -1,
        99,
    ] {
        let reason = refusal(|request| request.token_validator = asked);
        assert_eq!(reason, "the requested validator is not enabled", "{asked}");
    }
}

#[test]
fn reports_all_request_errors() {
    let reason = refusal(|request| *request = SignCertificateRequest::default());
    assert_eq!(
        reason,
        "invalid request: parameter app-id cannot be empty\nCSR is required\nnamespace is required"
    );
    assert!(
        refusal(|request| request.id = "my.app".to_owned()).contains("parameter app-id cannot contain dots")
    );
    assert!(refusal(|request| request.id = "a".repeat(65)).contains("app ID must be 64 characters or less"));
    assert!(refusal(|request| request.trust_domain = "Not Legal".to_owned()).contains("Not Legal"));
    assert!(refusal(|request| request.namespace = "a/b".to_owned()).contains("SPIFFE"));
}

#[test]
fn restricts_control_plane_identities() {
    let validators = validators();
    let outcome = |id: &str, namespace: &str, trust_domain: &str, is_own_user: bool| {
        let request = SignCertificateRequest {
            id: id.to_owned(),
            namespace: namespace.to_owned(),
            trust_domain: trust_domain.to_owned(),
            ..request()
        };
        validators
            .validate(&request, is_own_user)
            .map_err(|refusal| refusal.to_string())
    };
    let closed = |id: &str, trust_domain: &str| {
        let request = SignCertificateRequest {
            id: id.to_owned(),
            namespace: "dapr-system".to_owned(),
            trust_domain: trust_domain.to_owned(),
            ..request()
        };
        let validators = Validators::new(None, "dapr-system", ControlPlane::Nobody);
        validators.validate(&request, true).unwrap_err().to_string()
    };
    for trust_domain in ["", "public", "cluster.local"] {
        for id in [
            "dapr-operator",
            "dapr-placement",
            "dapr-injector",
            "dapr-scheduler",
        ] {
            let refusal = outcome(id, "dapr-system", trust_domain, false).unwrap_err();
            assert!(
                refusal.contains(id) && refusal.contains("jwks validator"),
                "{refusal}"
            );
            assert!(outcome(id, "dapr-system", trust_domain, true).is_ok(), "{id}");
            let refusal = closed(id, trust_domain);
            assert!(refusal.contains("--insecure-control-plane=nobody"), "{refusal}");
            assert!(
                outcome(id, "default", trust_domain, false).is_ok(),
                "{id} of somebody else"
            );
        }
        for is_own_user in [true, false] {
            let refusal = outcome("dapr-sentry", "dapr-system", trust_domain, is_own_user).unwrap_err();
            assert!(refusal.contains("sentry's own identity"), "{refusal}");
        }
    }
}
