use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outrigger_kube::testing::Server;
use outrigger_wire::operator::v1 as wire;
use outrigger_wire::operator::v1::ResourceEventType::{Created, Deleted, Updated};
use serde_json::{Value, json};
use tonic::{Code, Streaming};

use crate::running::{TIMEOUT, http, start, start_on};

fn list() -> wire::ListComponentsRequest {
    wire::ListComponentsRequest {
        namespace: "shop".to_owned(),
    }
}

fn named(manifest: &[u8]) -> String {
    let manifest: Value = serde_json::from_slice(manifest).unwrap();
    manifest["metadata"]["name"].as_str().unwrap().to_owned()
}

async fn next(stream: &mut Streaming<wire::ComponentUpdateEvent>) -> (i32, String) {
    let event = tokio::time::timeout(TIMEOUT, stream.message()).await;
    let event = event.unwrap().unwrap().unwrap();
    (event.r#type, named(&event.component))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serves_resources_of_namespace_and_app() {
    let running = start(&["--disable-leader-election"]).await;
    let reference = json!([{"name": "password", "secretKeyRef": {"name": "s", "key": "k"}}]);
    running.api.put(
        "/api/v1/namespaces/shop/secrets/s",
        json!({"metadata": {"name": "s", "namespace": "shop"}, "data": {"k": STANDARD.encode("secret")}}),
    );
    let mut cart = running.sidecar("shop", "cart").await;
    let follow = wire::ComponentUpdateRequest {
        namespace: "shop".to_owned(),
    };
    let mut changes = cart.component_update(follow).await.unwrap().into_inner();
    running.component("all", &[], reference);
    running.component("mine", &["cart"], json!([]));
    running.component("others", &["other"], json!([]));
    let elsewhere = json!({"metadata": {"name": "elsewhere", "namespace": "bank"}, "spec": {}});
    running.api.put(
        "/apis/dapr.io/v1alpha1/namespaces/bank/components/elsewhere",
        elsewhere,
    );
    assert_eq!(next(&mut changes).await, (Created.into(), "all".to_owned()));
    assert_eq!(next(&mut changes).await, (Created.into(), "mine".to_owned()));

    let listed = cart
        .list_components(list())
        .await
        .unwrap()
        .into_inner()
        .components;
    let names: Vec<_> = listed.iter().map(|manifest| named(manifest)).collect();
    assert_eq!(names, ["all", "mine"]);
    let all: Value = serde_json::from_slice(&listed[0]).unwrap();
    assert_eq!(all["spec"]["metadata"][0]["value"], STANDARD.encode("secret"));

    // Scopes add and remove a component.
    running.component("others", &["other", "cart"], json!([]));
    assert_eq!(next(&mut changes).await, (Created.into(), "others".to_owned()));
    running.component("others", &["cart"], json!([{"name": "x", "value": "y"}]));
    assert_eq!(next(&mut changes).await, (Updated.into(), "others".to_owned()));
    running.component("others", &["other"], json!([]));
    assert_eq!(next(&mut changes).await, (Deleted.into(), "others".to_owned()));
    running
        .api
        .delete("/apis/dapr.io/v1alpha1/namespaces/shop/components/mine");
    assert_eq!(next(&mut changes).await, (Deleted.into(), "mine".to_owned()));

    let mut stranger = running.sidecar("bank", "cart").await;
    let denied = stranger.list_components(list()).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
    assert_eq!(
        denied.message(),
        "identity does not match requested namespace exp=shop got=bank"
    );
    let denied = stranger.list_subscriptions(()).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_secret_is_named() {
    let running = start(&["--disable-leader-election"]).await;
    let mut cart = running.sidecar("shop", "cart").await;
    let reference = json!([{"name": "password", "secretKeyRef": {"name": "gone", "key": "k"}}]);
    running.component("c", &[], reference);
    let refused = async {
        loop {
            match cart.list_components(list()).await {
                Err(error) => return error,
                // The change has not arrived yet.
                Ok(listed) => assert!(listed.into_inner().components.is_empty()),
            }
        }
    };
    let error = tokio::time::timeout(TIMEOUT, refused).await.unwrap();
    assert!(error.message().contains("shop/gone"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finds_configurations_by_name() {
    let running = start(&["--disable-leader-election"]).await;
    let manifest = |name: &str| json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {}});
    for (plural, name) in [("configurations", "c"), ("resiliencies", "r")] {
        let address = format!("/apis/dapr.io/v1alpha1/namespaces/shop/{plural}/{name}");
        running.api.put(&address, manifest(name));
    }
    let mut cart = running.sidecar("shop", "cart").await;
    let configuration = |name: &str| wire::GetConfigurationRequest {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    };
    let policy = || wire::GetResiliencyRequest {
        namespace: "shop".to_owned(),
        name: "r".to_owned(),
    };
    let found = async {
        while cart.get_resiliency(policy()).await.is_err() {}
        loop {
            let found = cart
                .get_configuration(configuration("c"))
                .await
                .unwrap()
                .into_inner()
                .configuration;
            if !found.is_empty() {
                return found;
            }
        }
    };
    assert_eq!(named(&tokio::time::timeout(TIMEOUT, found).await.unwrap()), "c");
    let none = cart
        .get_configuration(configuration("none"))
        .await
        .unwrap()
        .into_inner();
    assert!(none.configuration.is_empty(), "there is none");
}

/// The next event of a stream: its type and the name of its resource.
async fn event<T>(stream: &mut Streaming<T>, parts: fn(T) -> (i32, bytes::Bytes)) -> (i32, String) {
    let next = tokio::time::timeout(TIMEOUT, stream.message()).await;
    let (kind, manifest) = parts(next.unwrap().unwrap().unwrap());
    (kind, named(&manifest))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_configuration_of_app() {
    let running = start(&["--disable-leader-election"]).await;
    let pod = |name: &str, app_id: &str, configuration: &str| {
        let annotations = json!({"dapr.io/app-id": app_id, "dapr.io/config": configuration});
        running.api.put(
            &format!("/api/v1/namespaces/shop/pods/{name}"),
            json!({"metadata": {"name": name, "namespace": "shop", "annotations": annotations,
                "labels": {"dapr.io/sidecar-injected": "true"}}}),
        );
    };
    let configuration = |name: &str, rate: &str| {
        let manifest = json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {"tracing": {"samplingRate": rate}}});
        running.api.put(
            &format!("/apis/dapr.io/v1alpha1/namespaces/shop/configurations/{name}"),
            manifest,
        );
    };
    pod("cart-1", "cart", "mine");
    pod("other-1", "other", "others");
    running.api.asked("WATCH", "/pods", 1).await;
    let mut cart = running.sidecar("shop", "cart").await;
    let namespace = "shop".to_owned();
    let changes = cart.configuration_update(wire::ConfigurationUpdateRequest { namespace });
    let mut changes = changes.await.unwrap().into_inner();
    let parts = |event: wire::ConfigurationUpdateEvent| (event.r#type, event.configuration);
    // The operator may learn of the pods after their watch begins, and drops changes before that.
    let mut rate = 0;
    let first = loop {
        rate += 1;
        configuration("others", &rate.to_string());
        configuration("mine", &rate.to_string());
        if let Ok(next) = tokio::time::timeout(Duration::from_millis(200), changes.message()).await {
            break parts(next.unwrap().unwrap());
        }
    };
    assert_eq!(named(&first.1), "mine");
    configuration("others", "0");
    running
        .api
        .delete("/apis/dapr.io/v1alpha1/namespaces/shop/configurations/mine");
    loop {
        let (kind, name) = event(&mut changes, parts).await;
        assert_eq!(name, "mine");
        if kind == i32::from(Deleted) {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_policies_endpoints_and_servers() {
    let running = start(&["--disable-leader-election"]).await;
    let mut cart = running.sidecar("shop", "cart").await;
    let namespace = || "shop".to_owned();
    let policies = cart.resiliency_update(wire::ResiliencyUpdateRequest {
        namespace: namespace(),
    });
    let mut policies = policies.await.unwrap().into_inner();
    let endpoints = cart.http_endpoint_update(wire::HttpEndpointUpdateRequest {
        namespace: namespace(),
    });
    let mut endpoints = endpoints.await.unwrap().into_inner();
    let servers = cart.mcp_server_update(wire::McpServerUpdateRequest {
        namespace: namespace(),
    });
    let mut servers = servers.await.unwrap().into_inner();
    let put = |note: &str| {
        for plural in ["resiliencies", "httpendpoints", "mcpservers"] {
            let manifest = json!({"metadata": {"name": "r", "namespace": "shop"}, "spec": {"note": note}});
            let address = format!("/apis/dapr.io/v1alpha1/namespaces/shop/{plural}/r");
            running.api.put(&address, manifest);
        }
    };
    // Resources of other apps, whose secrets are not for this one.
    for plural in ["httpendpoints", "mcpservers"] {
        let metadata = json!({"name": "other", "namespace": "shop"});
        let address = format!("/apis/dapr.io/v1alpha1/namespaces/shop/{plural}/other");
        running.api.put(
            &address,
            json!({"metadata": metadata, "scopes": ["desk"], "spec": {}}),
        );
    }
    // An unchanged resource is no event.
    for (notes, expected) in [(["a", "a"], Created), (["b", "b"], Updated)] {
        notes.into_iter().for_each(put);
        let of_policy = event(&mut policies, |event| (event.r#type, event.resiliency)).await;
        let of_endpoint = event(&mut endpoints, |event| (event.r#type, event.http_endpoints)).await;
        let of_server = event(&mut servers, |event| (event.r#type, event.mcp_server)).await;
        let expected = (expected.into(), "r".to_owned());
        assert_eq!(
            [of_policy, of_endpoint, of_server],
            [(); 3].map(|()| expected.clone())
        );
    }
    let listed = cart.list_mcp_servers(wire::ListMcpServersRequest {
        namespace: namespace(),
    });
    assert_eq!(listed.await.unwrap().into_inner().mcp_servers.len(), 1);
    for plural in ["resiliencies", "httpendpoints", "mcpservers"] {
        running
            .api
            .delete(&format!("/apis/dapr.io/v1alpha1/namespaces/shop/{plural}/r"));
    }
    let of_policy = event(&mut policies, |event| (event.r#type, event.resiliency)).await;
    let of_endpoint = event(&mut endpoints, |event| (event.r#type, event.http_endpoints)).await;
    let of_server = event(&mut servers, |event| (event.r#type, event.mcp_server)).await;
    let deleted: i32 = Deleted.into();
    assert_eq!([of_policy.0, of_endpoint.0, of_server.0], [deleted; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serves_workflow_access_policies() {
    const PATH: &str = "/apis/dapr.io/v1alpha1/namespaces/shop/workflowaccesspolicies/p";
    let running = start(&["--disable-leader-election"]).await;
    let mut cart = running.sidecar("shop", "cart").await;
    let namespace = || "shop".to_owned();
    let changes = cart.workflow_access_policy_update(wire::WorkflowAccessPolicyUpdateRequest {
        namespace: namespace(),
    });
    let mut changes = changes.await.unwrap().into_inner();
    // A policy that leaves the scope of the app ends for it.
    for (scopes, expected) in [
        (json!([]), Created),
        (json!(["cart"]), Updated),
        (json!(["other"]), Deleted),
    ] {
        let metadata = json!({"name": "p", "namespace": "shop"});
        running
            .api
            .put(PATH, json!({"metadata": metadata, "scopes": scopes, "spec": {}}));
        let event = event(&mut changes, |event| (event.r#type, event.policy)).await;
        assert_eq!(event, (expected.into(), "p".to_owned()), "{scopes}");
    }
    let listed = cart.list_workflow_access_policy(wire::ListWorkflowAccessPolicyRequest {
        namespace: namespace(),
    });
    assert_eq!(listed.await.unwrap().into_inner().policies.len(), 1);
    let other = cart.list_workflow_access_policy(wire::ListWorkflowAccessPolicyRequest {
        namespace: "other".to_owned(),
    });
    assert_eq!(other.await.unwrap_err().code(), tonic::Code::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serves_cluster_without_kind() {
    let absent = json!({"kind": "Status", "reason": "NotFound", "message": "the server could not find it"});
    let (api, policies) = (Server::start().await, "/apis/dapr.io/v1alpha1/resiliencies");
    api.fix(policies, 404_u16.try_into().unwrap(), absent);
    let running = start_on(api, &["--disable-leader-election"]).await;
    let mut cart = running.sidecar("shop", "cart").await;
    let namespace = "shop".to_owned();
    let listed = cart
        .list_resiliency(wire::ListResiliencyRequest { namespace })
        .await;
    assert!(listed.unwrap().into_inner().resiliencies.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serves_sidecars_during_api_outage() {
    let running = start(&["--disable-leader-election"]).await;
    running.component("before", &[], json!([]));
    let mut cart = running.sidecar("shop", "cart").await;
    let follow = wire::ComponentUpdateRequest {
        namespace: "shop".to_owned(),
    };
    let listed = async {
        while cart
            .list_components(list())
            .await
            .unwrap()
            .into_inner()
            .components
            .is_empty()
        {}
    };
    tokio::time::timeout(TIMEOUT, listed).await.unwrap();
    let mut changes = cart.component_update(follow).await.unwrap().into_inner();
    let metrics = http(running.addresses.metrics.unwrap(), "/metrics").await;
    assert!(
        metrics.contains("dapr_operator_update_streams{resource=\"components\"} 1"),
        "{metrics}"
    );
    let watches = running.api.requests("WATCH", "/components").len();
    running.api.down(true);
    running.api.asked("WATCH", "/components", watches + 1).await;
    assert_eq!(
        cart.list_components(list())
            .await
            .unwrap()
            .into_inner()
            .components
            .len(),
        1
    );
    running.component("meanwhile", &[], json!([]));
    running.api.forget();
    running.api.down(false);
    assert_eq!(next(&mut changes).await, (Created.into(), "meanwhile".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_creates_services() {
    let running = start(&[]).await;
    let annotations = json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart"});
    running.api.put(
        "/apis/apps/v1/namespaces/shop/statefulsets/cart",
        json!({"metadata": {"name": "cart", "namespace": "shop", "uid": "u"},
            "spec": {"template": {"metadata": {"annotations": annotations}}}}),
    );
    let made = running.api.asked("POST", "/services", 1);
    tokio::time::timeout(TIMEOUT, made).await.unwrap();
    let service = running
        .api
        .object("/api/v1/namespaces/shop/services/cart-dapr")
        .unwrap();
    assert_eq!(service["metadata"]["ownerReferences"][0]["kind"], "StatefulSet");
    let lease = "/apis/coordination.k8s.io/v1/namespaces/dapr-system/leases/operator.dapr.io";
    assert!(running.api.object(lease).is_some());
    let counted = async {
        let metrics = running.addresses.metrics.unwrap();
        for line in [
            "dapr_operator_service_created_total{app_id=\"cart\"} 1",
            "dapr_operator_leading 1",
            "dapr_operator_watch_in_sync{resource=\"statefulsets\"} 1",
            "dapr_operator_watch_in_sync{resource=\"subscriptions\"} 1",
        ] {
            while !http(metrics, "/metrics").await.contains(line) {}
        }
    };
    tokio::time::timeout(TIMEOUT, counted).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn works_without_rollouts() {
    let absent = json!({"kind": "Status", "reason": "NotFound", "message": "the server could not find it"});
    let (api, rollouts) = (Server::start().await, "/apis/argoproj.io/v1alpha1/rollouts");
    api.fix(rollouts, 404_u16.try_into().unwrap(), absent);
    let running = start_on(api, &["--enable-argo-rollout-service-reconciler"]).await;
    let annotations = json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart"});
    running.api.put(
        "/apis/apps/v1/namespaces/shop/deployments/cart",
        json!({"metadata": {"name": "cart", "namespace": "shop", "uid": "u"},
            "spec": {"template": {"metadata": {"annotations": annotations}}}}),
    );
    let made = running.api.asked("POST", "/services", 1);
    tokio::time::timeout(TIMEOUT, made).await.unwrap();
    let asked = running.api.asked("LIST", rollouts, 2);
    tokio::time::timeout(TIMEOUT, asked).await.unwrap();
    let healthz = running.addresses.healthz;
    assert!(http(healthz, "/healthz").await.starts_with("HTTP/1.1 200"));
}
