use super::*;

fn request() -> SignCertificateRequest {
    SignCertificateRequest {
        id: "myapp".to_owned(),
        namespace: "default".to_owned(),
        certificate_signing_request: vec![1].into(),
        ..SignCertificateRequest::default()
    }
}

fn refusal(change: impl FnOnce(&mut SignCertificateRequest)) -> String {
    let mut request = request();
    change(&mut request);
    Validators::new(None).validate(&request).unwrap_err().to_string()
}

#[test]
fn without_validators_every_caller_is_believed() {
    let validators = Validators::new(None);
    for asked in [TokenValidator::Unknown, TokenValidator::Insecure] {
        let mut request = request();
        request.token_validator = asked.into();
        request.token = "ignored".to_owned();
        assert_eq!(
            validators.validate(&request).unwrap().as_str(),
            "spiffe://public/ns/default/myapp"
        );
        request.trust_domain = "my.domain".to_owned();
        assert_eq!(
            validators.validate(&request).unwrap().as_str(),
            "spiffe://my.domain/ns/default/myapp"
        );
    }
}

#[test]
fn validators_that_are_not_enabled_are_refused() {
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
fn all_faults_of_a_request_are_reported() {
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
