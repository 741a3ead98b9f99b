use outrigger_controlplane::webhook::{MAX_SHOWN, MAX_VALUES};
use outrigger_identity::TrustBundle;
use outrigger_identity::testing::{Algorithm, Authority};
use outrigger_kube::testing::{Server, apply_patch};
use outrigger_testing::log_lines::Lines;
use tracing::Level;

use super::*;

/// A controller that creates pods.
const MAKER: &str = "system:serviceaccount:kube-system:job-controller";
const COMPONENT: &str = "/apis/dapr.io/v1alpha1/namespaces/shop/components/one";
const SYSTEM: &str = "/apis/dapr.io/v1alpha1/namespaces/dapr-system/configurations/daprsystem";

struct Webhook {
    server: Server,
    reviewer: Arc<Reviewer>,
    pem: String,
}

impl Webhook {
    async fn start() -> Self {
        let server = Server::start().await;
        let pem = Authority::new("cluster.local", Algorithm::P256).root_pem();
        let bundle = TrustBundle::from_pem(pem.as_bytes()).unwrap();
        let reviewer = Reviewer {
            settings: Arc::new(crate::config::Settings {
                namespace: "dapr-system".to_owned(),
                trust_domain: "cluster.local".to_owned(),
                sentry_id: "spiffe://cluster.local/ns/dapr-system/dapr-sentry".to_owned(),
                domain: "cluster.local".to_owned(),
                image: "daprd:1".to_owned(),
                pull_policy: "Always",
                tolerations: Vec::new(),
                actors: None,
                reminders: None,
                scheduler: false,
                run_as_non_root: true,
                run_as_user: None,
                run_as_group: None,
                read_only_root: true,
                drop_capabilities: false,
                downward: false,
                native: false,
                sockets_folder: "/s".to_owned(),
            }),
            callers: Callers::default(),
            anchors: TrustAnchors::new(bundle),
            token: false,
            client: server.client(),
            mtls: Mtls::new(server.client(), "dapr-system", "daprsystem"),
            metrics: Arc::default(),
            lists: Lists::default(),
        };
        Self {
            server,
            reviewer: Arc::new(reviewer),
            pem,
        }
    }

    async fn send(&self, content: &str, body: &str) -> (StatusCode, Value) {
        let request = Request::post(PATH)
            .header("content-type", content)
            .body(Bytes::from(body.to_owned()));
        let response = self.reviewer.respond(request.unwrap()).await;
        let status = response.status();
        (
            status,
            serde_json::from_slice(response.body()).unwrap_or_default(),
        )
    }

    /// The response to a review of a pod.
    async fn review(&self, username: &str, kind: &str, pod: &Value) -> Value {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "r1",
            "kind": {"group": "", "version": "v1", "kind": kind}, "namespace": "shop",
            "userInfo": {"username": username}, "object": pod}});
        let (status, answer) = self.send(JSON, &review.to_string()).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(
            (&answer["kind"], &answer["response"]["uid"]),
            (&json!("AdmissionReview"), &json!("r1"))
        );
        answer["response"].clone()
    }

    fn counted(&self, line: &str) -> bool {
        let text = self.reviewer.metrics.render();
        text.lines()
            .any(|found| found == format!("dapr_injector_sidecar_injection_{line}"))
    }
}

fn pod(annotations: Value) -> Value {
    json!({"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": [{"name": "app"}]}})
}

fn enabled() -> Value {
    pod(json!({"dapr.io/enabled": "True", "dapr.io/app-id": "cart"}))
}

fn patched(response: &Value, mut pod: Value) -> Value {
    assert_eq!(
        (&response["allowed"], &response["patchType"]),
        (&json!(true), &json!("JSONPatch"))
    );
    let patch = STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
    apply_patch(&mut pod, &serde_json::from_slice(&patch).unwrap());
    pod
}

#[tokio::test]
async fn injects_sidecar_with_current_anchors() {
    let webhook = Webhook::start().await;
    let response = webhook.review(MAKER, "Pod", &enabled()).await;
    let pod = patched(&response, enabled());
    let sidecar = &pod["spec"]["containers"][1];
    assert_eq!(sidecar["name"], "daprd");
    assert_eq!(sidecar["env"][1]["value"], webhook.pem);
    assert!(
        sidecar["args"]
            .as_array()
            .unwrap()
            .contains(&json!("--enable-mtls")),
        "on where nobody says otherwise"
    );
    assert!(webhook.counted("succeeded_total{app_id=\"cart\"} 1") && webhook.counted("requests_total 1"));
    let again = webhook.review(MAKER, "Pod", &pod).await;
    assert_eq!((&again["allowed"], &again["patch"]), (&json!(true), &Value::Null));

    let next = Authority::new("cluster.local", Algorithm::P256);
    webhook.reviewer.anchors.replace(next.bundle());
    webhook.server.put(
        SYSTEM,
        json!({"metadata": {"name": "daprsystem"}, "spec": {"mtls": {"enabled": false}}}),
    );
    let rotated = patched(&webhook.review(MAKER, "Pod", &enabled()).await, enabled());
    assert_eq!(
        rotated["spec"]["containers"][1]["env"][1]["value"],
        next.root_pem()
    );
    let without_mtls = async {
        loop {
            let pod = patched(&webhook.review(MAKER, "Pod", &enabled()).await, enabled());
            let args = pod["spec"]["containers"][1]["args"].as_array().unwrap().clone();
            if !args.contains(&json!("--enable-mtls")) {
                break;
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), without_mtls)
        .await
        .expect("the Configuration counts within a second");
}

#[tokio::test]
async fn leaves_other_pods_unchanged() {
    let webhook = Webhook::start().await;
    for (username, kind, pod) in [
        ("system:serviceaccount:shop:one", "Pod", enabled()),
        (MAKER, "Service", enabled()),
        (MAKER, "Pod", pod(json!({"dapr.io/enabled": "yes"}))),
        (MAKER, "Pod", pod(json!({}))),
        (MAKER, "Pod", json!({})),
    ] {
        let response = webhook.review(username, kind, &pod).await;
        assert_eq!(
            (&response["allowed"], &response["patch"]),
            (&json!(true), &Value::Null),
            "{username} {kind} {pod}"
        );
    }
    assert!(webhook.counted("failed_total{app_id=\"cart\",reason=\"pod_patch\"} 1"));
    assert!(webhook.counted("failed_total{app_id=\"\",reason=\"pod_patch\"} 1"));
}

#[tokio::test]
async fn refuses_pod_with_reason() {
    let webhook = Webhook::start().await;
    let wrong = pod(json!({"dapr.io/enabled": "true", "dapr.io/app-id": "Cart!"}));
    let response = webhook.review(MAKER, "Pod", &wrong).await;
    assert_eq!(response["allowed"], false);
    assert!(
        response["status"]["message"]
            .as_str()
            .unwrap()
            .contains("invalid app id"),
        "{response}"
    );
    assert!(webhook.counted("failed_total{app_id=\"Cart!\",reason=\"patch\"} 1"));

    let components = pod(json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart",
        "dapr.io/inject-pluggable-components": "true"}));
    webhook.server.down(true);
    let away = webhook.review(MAKER, "Pod", &components).await;
    assert!(
        away["status"]["message"]
            .as_str()
            .unwrap()
            .contains("error when fetching components"),
        "{away}"
    );
    webhook.server.down(false);
    let container = r#"{"image": "i:1"}"#;
    let annotations = json!({"dapr.io/component-container": container});
    webhook.server.put(
        COMPONENT,
        json!({"metadata": {"name": "one", "namespace": "shop", "annotations": annotations}}),
    );
    let patched = patched(&webhook.review(MAKER, "Pod", &components).await, components);
    assert_eq!(patched["spec"]["containers"][2]["name"], "one");
}

#[tokio::test]
async fn refuses_pod_on_component_list_timeout() {
    let webhook = Webhook::start().await;
    let components = pod(json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart",
        "dapr.io/inject-pluggable-components": "true"}));
    webhook.server.silent(true);
    let begun = tokio::time::Instant::now();
    // Time advances only while all tasks wait.
    let waits = async {
        webhook.server.asked("LIST", "components", 1).await;
        tokio::time::pause();
    };
    let (response, ()) = futures::future::join(webhook.review(MAKER, "Pod", &components), waits).await;
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(10), "{waited:?}");
    assert_eq!(response["allowed"], false);
    let message = response["status"]["message"].as_str().unwrap();
    assert_eq!(
        message,
        "error when fetching components: the Kubernetes API did not respond within 6 s"
    );
}

#[tokio::test]
async fn warns_of_wrong_annotations() {
    let webhook = Webhook::start().await;
    let wrong = pod(json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart", "dapr.io/app-port": "http"}));
    let response = webhook.review(MAKER, "Pod", &wrong).await;
    assert_eq!(response["allowed"], true);
    assert!(
        response["warnings"][0]
            .as_str()
            .unwrap()
            .contains("dapr.io/app-port"),
        "{response}"
    );
}

#[tokio::test]
async fn answers_invalid_reviews_like_dapr() {
    let webhook = Webhook::start().await;
    assert_eq!(webhook.send(JSON, "").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(
        webhook.send("application/json; charset=utf-8", "{}").await.0,
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    );
    let (status, answer) = webhook.send(JSON, "[1]").await;
    assert_eq!(
        (status, &answer["response"]["allowed"]),
        (StatusCode::OK, &json!(false))
    );
    assert!(answer["response"]["status"]["message"].is_string());
}

#[tokio::test]
async fn refuses_other_kinds_and_versions() {
    let webhook = Webhook::start().await;
    for (version, kind) in [
        ("admission.k8s.io/v1beta1", "AdmissionReview"),
        ("v1", "AdmissionReview"),
        ("admission.k8s.io/v1", "ConversionReview"),
    ] {
        let review = json!({"apiVersion": version, "kind": kind, "request": {"uid": "r1", "kind": {"kind": "Pod"},
            "namespace": "shop", "userInfo": {"username": MAKER}, "object": enabled()}});
        let (status, answer) = webhook.send(JSON, &review.to_string()).await;
        let message =
            format!("cannot review a {kind} of {version}: send an AdmissionReview of admission.k8s.io/v1");
        let refused = json!({"uid": "r1", "allowed": false, "status": {"message": message}});
        assert_eq!((status, &answer["response"]), (StatusCode::OK, &refused));
    }
}

#[tokio::test]
async fn limits_concurrent_component_lists() {
    let webhook = Webhook::start().await;
    let components = pod(json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart",
        "dapr.io/inject-pluggable-components": "true"}));
    webhook.server.silent(true);
    let reviews = futures::future::join_all((0..200).map(|_| webhook.review(MAKER, "Pod", &components)));
    let waits = async {
        webhook.server.asked("LIST", "components", MAX_LISTS).await;
        // More would have arrived by the time another request is answered.
        webhook.server.silent(false);
        webhook
            .server
            .client()
            .all(Kind::NAMESPACES, None, "")
            .await
            .unwrap();
        let lists = webhook.server.requests("LIST", "components").len();
        tokio::time::pause();
        lists
    };
    let (responses, lists) = futures::future::join(reviews, waits).await;
    assert_eq!(lists, MAX_LISTS);
    let messages: Vec<_> = responses
        .iter()
        .filter_map(|response| response["status"]["message"].as_str())
        .collect();
    assert!(
        messages.len() >= MAX_LISTS && messages.iter().all(|message| message.ends_with("within 6 s")),
        "{messages:?}"
    );
}

#[tokio::test]
async fn truncates_logged_review_texts() {
    let webhook = Webhook::start().await;
    let lines = Lines::new();
    let long = "x".repeat(50_000);
    let review = |kind: &str, version: &str, namespace: &str, user: &Value, object: &Value| {
        json!({"apiVersion": version, "kind": "AdmissionReview", "request": {"uid": "r", "kind": {"kind": kind},
            "namespace": namespace, "userInfo": user, "object": object}})
        .to_string()
    };
    let allowed = json!({"username": MAKER});
    let wrong = pod(json!({"dapr.io/enabled": "true", "dapr.io/app-id": long}));
    let mut odd = enabled();
    odd["spec"]["containers"] = long.clone().into();
    for body in [
        review(&long, VERSION, "shop", &allowed, &enabled()),
        review("Pod", &long, "shop", &allowed, &enabled()),
        review("Pod", VERSION, &long, &json!({"username": "y"}), &enabled()),
        review("Pod", VERSION, "shop", &json!({"username": long}), &enabled()),
        review("Pod", VERSION, "shop", &allowed, &wrong),
        review("Pod", VERSION, "shop", &allowed, &odd),
        json!({"apiVersion": VERSION, "kind": "AdmissionReview", "request": long}).to_string(),
    ] {
        webhook.send(JSON, &body).await;
        let logged = lines.take(LOG, Level::WARN);
        assert!(!logged.is_empty(), "{}", &body[..200]);
        for line in logged {
            assert!(line.message.len() < 3 * MAX_SHOWN, "{} bytes", line.message.len());
        }
    }
}

#[tokio::test]
async fn refuses_oversized_pods_early() {
    let webhook = Webhook::start().await;
    let mut huge = enabled();
    huge["spec"]["tolerations"] = vec![json!({"": 0}); MAX_VALUES / 3].into();
    let review =
        json!({"apiVersion": VERSION, "kind": "AdmissionReview", "request": {"uid": "r", "object": huge}});
    let (status, _) = webhook.send(JSON, &review.to_string()).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);

    let mut crowded = enabled();
    crowded["spec"]["containers"] = vec![json!({"name": "app"}); 1001].into();
    let annotated = pod(json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart",
        "dapr.io/env": "a=b,".repeat(64 << 10)}));
    for (pod, why) in [(crowded, "1001 containers"), (annotated, "its annotations have ")] {
        let response = webhook.review(MAKER, "Pod", &pod).await;
        let message = response["status"]["message"].as_str().unwrap();
        assert!(message.contains(why), "{message}");
    }
    let mut large = enabled();
    large["spec"]["containers"] = vec![json!({"name": "app"}); 1000].into();
    let patched = patched(&webhook.review(MAKER, "Pod", &large).await, large);
    assert_eq!(patched["spec"]["containers"][1000]["name"], "daprd");
}
