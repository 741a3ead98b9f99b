use http::StatusCode;
use outrigger_kube::testing::Server;

use super::*;

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const TOKEN: &str = r#"{"kubernetes.io":{"pod":{"name":"p"}}}"#;

struct Cluster {
    server: Server,
    validator: KubernetesValidator,
}

impl Cluster {
    /// A cluster with a pod `ns/p` of the service account `sa`.
    async fn start(annotations: Value) -> Self {
        let server = Server::start().await;
        let sentry = "spiffe://cp.example/ns/dapr-system/dapr-sentry".parse().unwrap();
        let validator = KubernetesValidator::new(server.client(), sentry);
        let cluster = Self { server, validator };
        cluster.pod("ns", "sa", annotations);
        cluster.reviewed(json!({"authenticated": true, "user": {"username": "system:serviceaccount:ns:sa"}}));
        cluster
    }

    fn pod(&self, namespace: &str, account: &str, annotations: Value) {
        let pod = json!({"metadata": {"name": "p", "namespace": namespace, "annotations": annotations},
            "spec": {"serviceAccountName": account}});
        self.server
            .put(&format!("/api/v1/namespaces/{namespace}/pods/p"), pod);
    }

    fn reviewed(&self, status: Value) {
        self.server
            .fix(REVIEWS, StatusCode::CREATED, json!({"status": status}));
    }

    async fn ask(&self, namespace: &str, id: &str, token: &str) -> Result<String, String> {
        let request = SignCertificateRequest {
            id: id.to_owned(),
            namespace: namespace.to_owned(),
            token: token.to_owned(),
            certificate_signing_request: vec![1].into(),
            ..SignCertificateRequest::default()
        };
        let id = self.validator.validate(&request).await?;
        Ok(id.as_str().to_owned())
    }
}

#[tokio::test]
async fn issues_identity_of_pod_annotation() {
    let cluster = Cluster::start(json!({"dapr.io/app-id": "cart"})).await;
    assert_eq!(
        cluster.ask("ns", "cart", TOKEN).await.unwrap(),
        "spiffe://public/ns/ns/cart"
    );
    let payload = URL_SAFE_NO_PAD.encode(TOKEN);
    let jwt = format!("e30.{payload}.c2ln");
    assert_eq!(
        cluster.ask("ns", "cart", &jwt).await.unwrap(),
        "spiffe://public/ns/ns/cart"
    );
    let review = &cluster.server.requests("POST", REVIEWS)[1];
    assert_eq!(review["spec"]["token"], jwt);
    assert_eq!(
        review["spec"]["audiences"],
        json!(["dapr.io/sentry", "spiffe://cp.example/ns/dapr-system/dapr-sentry"])
    );
    cluster.pod("ns", "sa", json!({}));
    assert_eq!(
        cluster.ask("ns", "p", TOKEN).await.unwrap(),
        "spiffe://public/ns/ns/p",
        "by default the name"
    );
}

#[tokio::test]
async fn uses_trust_domain_of_configuration() {
    let cluster = Cluster::start(json!({"dapr.io/app-id": "cart", "dapr.io/config": "c"})).await;
    let error = cluster.ask("ns", "cart", TOKEN).await.unwrap_err();
    assert_eq!(error, "failed to get configuration");
    let address = "/apis/dapr.io/v1alpha1/namespaces/ns/configurations/c";
    cluster.server.put(
        address,
        json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {}}),
    );
    assert_eq!(
        cluster.ask("ns", "cart", TOKEN).await.unwrap(),
        "spiffe://public/ns/ns/cart"
    );
    let spec = json!({"accessControl": {"trustDomain": "mine.example"}});
    cluster.server.put(
        address,
        json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": spec}),
    );
    assert_eq!(
        cluster.ask("ns", "cart", TOKEN).await.unwrap(),
        "spiffe://mine.example/ns/ns/cart"
    );
}

#[tokio::test]
async fn refuses_identity_of_other_pods() {
    let cluster = Cluster::start(json!({"dapr.io/app-id": "cart"})).await;
    for (namespace, id, token, text) in [
        (
            "ns",
            "other",
            TOKEN,
            "app-id mismatch. expected: cart, received: other",
        ),
        (
            "other",
            "cart",
            TOKEN,
            "namespace mismatch; received namespace: other",
        ),
        ("ns", "ns:sa", TOKEN, "failed to construct SPIFFE ID"),
        (
            "ns",
            "cart",
            r#"{"kubernetes.io":{"pod":{"name":"q"}}}"#,
            "failed to get pod of identity",
        ),
        ("ns", "cart", "{}", "kubernetes.io/pod/name claim is missing"),
        ("ns", "cart", "", "token is required"),
        ("ns", "cart", "a.b", "failed to parse Kubernetes token"),
        (
            "ns",
            &"a".repeat(65),
            TOKEN,
            "app ID must be 64 characters or less",
        ),
    ] {
        let error = cluster.ask(namespace, id, token).await.unwrap_err();
        assert!(error.contains(text), "{namespace} {id} {token}: {error}");
    }
    cluster.pod("ns", "another", json!({"dapr.io/app-id": "cart"}));
    assert_eq!(
        cluster.ask("ns", "cart", TOKEN).await.unwrap_err(),
        "pod service account mismatch"
    );
}

#[tokio::test]
async fn refuses_unreviewed_tokens() {
    let cluster = Cluster::start(json!({"dapr.io/app-id": "cart"})).await;
    for (status, text) in [
        (
            json!({"authenticated": true, "error": "expired"}),
            "invalid token: expired",
        ),
        (json!({"authenticated": false}), "authentication failed"),
        (
            json!({"authenticated": true, "user": {"username": "admin"}}),
            "service account token",
        ),
        (
            json!({"authenticated": true, "user": {"username": "x:serviceaccount:ns:sa"}}),
            "service account token",
        ),
    ] {
        cluster.reviewed(status);
        let error = cluster.ask("ns", "cart", TOKEN).await.unwrap_err();
        assert!(error.contains(text), "{error}");
    }
    cluster.server.down(true);
    assert_eq!(
        cluster.ask("ns", "cart", TOKEN).await.unwrap_err(),
        "token review failed"
    );
}

#[tokio::test]
async fn recognizes_control_plane_pods() {
    let cluster = Cluster::start(json!({})).await;
    let system = || {
        cluster.reviewed(json!({"authenticated": true,
        "user": {"username": "system:serviceaccount:dapr-system:sa"}}))
    };
    system();
    cluster.pod("dapr-system", "sa", json!({"dapr.io/control-plane": "operator"}));
    assert_eq!(
        cluster.ask("dapr-system", "dapr-operator", TOKEN).await.unwrap(),
        "spiffe://cp.example/ns/dapr-system/dapr-operator"
    );
    for (annotations, text) in [
        (json!({"dapr.io/control-plane": "other"}), "unknown value"),
        (
            json!({"dapr.io/control-plane": "operator", "dapr.io/app-id": "x"}),
            "not both",
        ),
        (
            json!({"dapr.io/control-plane": "injector"}),
            "expected: dapr-injector",
        ),
    ] {
        cluster.pod("dapr-system", "sa", annotations);
        let error = cluster
            .ask("dapr-system", "dapr-operator", TOKEN)
            .await
            .unwrap_err();
        assert!(error.contains(text), "{error}");
    }
    cluster.reviewed(json!({"authenticated": true, "user": {"username": "system:serviceaccount:ns:sa"}}));
    cluster.pod("ns", "sa", json!({"dapr.io/control-plane": "operator"}));
    let error = cluster.ask("ns", "dapr-operator", TOKEN).await.unwrap_err();
    assert!(
        error.contains("only for pods of the namespace dapr-system"),
        "{error}"
    );
}
