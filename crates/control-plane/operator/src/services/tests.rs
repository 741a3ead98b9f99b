use outrigger_kube::testing::Server;
use outrigger_testing::log_lines::Lines;
use serde_json::json;
use tracing::Level;

use super::desired::onto;
use super::*;

const SERVICE: &str = "/api/v1/namespaces/ns/services/cart-dapr";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/ns/deployments/cart";

fn deployment(annotations: &Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "cart", "namespace": "ns", "uid": "u1"},
        "spec": {"selector": {"matchLabels": {"app": "cart"}},
            "template": {"metadata": {"annotations": annotations}}}})
}

fn wanted(annotations: &Value) -> Option<Value> {
    let object = deployment(annotations);
    let meta = Meta::of(&object);
    let workload = Workload::<Deployment>::read(&meta, object).unwrap()?;
    Some(service(&meta, &workload))
}

#[test]
fn builds_service_from_annotations() {
    let service = wanted(
        &json!({"dapr.io/enabled": "yes", "dapr.io/app-id": "cart", "dapr.io/metrics-port": "9191",
        "dapr.io/internal-grpc-port": "6000", "dapr.io/sidecar-svc-annotations": "a=b,prometheus.io/port=1"}),
    );
    let expected = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "cart-dapr", "namespace": "ns", "labels": {"dapr.io/enabled": "true"},
            "annotations": {"dapr.io/app-id": "cart", "prometheus.io/probe": "true", "prometheus.io/scrape": "true",
                "prometheus.io/port": "9191", "prometheus.io/path": "/", "a": "b",
                "outrigger/service-annotations": "a"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "cart", "uid": "u1",
                "controller": true, "blockOwnerDeletion": true}]},
        "spec": {"selector": {"app": "cart"}, "clusterIP": "None", "ports": [
            {"name": "dapr-http", "protocol": "TCP", "port": 80, "targetPort": 3500},
            {"name": "dapr-grpc", "protocol": "TCP", "port": 50001, "targetPort": 50001},
            {"name": "dapr-internal", "protocol": "TCP", "port": 6000, "targetPort": 6000},
            {"name": "dapr-metrics", "protocol": "TCP", "port": 9191, "targetPort": 9191}]},
    });
    assert_eq!(service, Some(expected));
}

#[test]
fn omits_scrape_annotations_without_metrics() {
    let service =
        wanted(&json!({"dapr.io/enabled": "1", "dapr.io/app-id": "cart", "dapr.io/enable-metrics": "no"}));
    assert_eq!(
        service.unwrap()["metadata"]["annotations"],
        json!({"dapr.io/app-id": "cart"})
    );
}

#[test]
fn disabled_metrics_free_their_port() {
    let ports = |annotations: Value| {
        let mut all = json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart"});
        for (name, value) in annotations.as_object().unwrap() {
            all[format!("dapr.io/{name}")] = value.clone();
        }
        let ports = wanted(&all).unwrap()["spec"]["ports"].take();
        let name = |port: &Value| port["name"].as_str().unwrap().to_owned();
        ports.as_array().unwrap().iter().map(name).collect::<Vec<_>>()
    };
    let all = ["dapr-http", "dapr-grpc", "dapr-internal", "dapr-metrics"];
    assert_eq!(
        ports(json!({"enable-metrics": "false", "grpc-port": "9090"})),
        all[..3]
    );
    assert_eq!(
        ports(json!({"enable-metrics": "false", "metrics-port": "80"})),
        all[..3]
    );
    assert_eq!(ports(json!({"enable-metrics": "false"})), all);
    assert_eq!(ports(json!({"grpc-port": "9090"})), all, "one of them is wrong");
}

#[test]
fn creates_no_service_without_sidecar() {
    for annotations in [
        json!({}),
        json!({"dapr.io/enabled": "false", "dapr.io/app-id": "cart"}),
        json!({"dapr.io/enabled": "true"}),
        json!({"dapr.io/enabled": "true", "dapr.io/app-id": "Cart_1"}),
    ] {
        assert_eq!(wanted(&annotations), None, "{annotations}");
    }
    let mut going = deployment(&json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart"}));
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    assert!(
        Workload::<Deployment>::read(&Meta::of(&going), going)
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn creates_and_corrects_services() {
    let server = Server::start().await;
    let metrics = Arc::new(Metrics::default());
    let annotations = json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart"});
    server.put(DEPLOYMENT, deployment(&annotations));
    let services = Services {
        client: server.client(),
        metrics: Arc::clone(&metrics),
        namespace: None,
        rollouts: false,
    };
    let stop = CancellationToken::new();
    let running = tokio::spawn(services.run(stop.clone()));
    server.asked("POST", "/services", 1).await;

    let mut changed = annotations;
    changed["dapr.io/grpc-port"] = "7000".into();
    server.put(DEPLOYMENT, deployment(&changed));
    server.asked("PUT", SERVICE, 1).await;
    let service = server.object(SERVICE).unwrap();
    assert_eq!(service["spec"]["ports"][1]["port"], 7000);

    // A change that is irrelevant to the service.
    let mut same = deployment(&changed);
    same["metadata"]["labels"] = json!({"x": "y"});
    server.put(DEPLOYMENT, same);
    let mut other = deployment(&json!({"dapr.io/enabled": "true", "dapr.io/app-id": "other"}));
    other["metadata"]["name"] = "other".into();
    server.put("/apis/apps/v1/namespaces/ns/deployments/other", other);
    server.asked("POST", "/services", 2).await;
    assert_eq!(server.requests("PUT", SERVICE).len(), 1);
    stop.cancel();
    running.await.unwrap();
    assert!(
        metrics
            .render()
            .contains("dapr_operator_service_updated_total{app_id=\"cart\"} 1")
    );
}

#[test]
fn keeps_additions_by_others() {
    let wanted = wanted(&json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart"})).unwrap();
    let mut found = wanted.clone();
    found["metadata"]["annotations"]["mine"] = "x".into();
    found["metadata"]["resourceVersion"] = "7".into();
    found["spec"]["ipFamilies"] = json!(["IPv4"]);
    assert!(!differs(&found, &wanted));
    found["spec"]["selector"]["more"] = "x".into();
    assert!(differs(&found, &wanted));
    let next = onto(found, wanted.clone());
    assert!(!differs(&next, &wanted));
    assert_eq!(
        (
            &next["metadata"]["annotations"]["mine"],
            &next["metadata"]["resourceVersion"]
        ),
        (&json!("x"), &json!("7"))
    );
    assert_eq!(next["spec"]["ipFamilies"], json!(["IPv4"]));
}

#[test]
fn removes_dropped_annotations() {
    let annotations = |more: Value| {
        let mut all = json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart"});
        let (all_fields, more) = (all.as_object_mut().unwrap(), more.as_object().unwrap());
        all_fields.extend(more.clone());
        wanted(&all).unwrap()
    };
    let mut found = annotations(json!({"dapr.io/sidecar-svc-annotations": "a=1,b=2"}));
    found["metadata"]["annotations"]["mine"] = "x".into();

    let one = annotations(json!({"dapr.io/sidecar-svc-annotations": "b=2"}));
    assert!(differs(&found, &one));
    let found = onto(found, one.clone());
    assert_eq!(
        (found["metadata"]["annotations"].get("a"), differs(&found, &one)),
        (None, false)
    );

    // A metrics port requested by the workload is not the sidecar's.
    let none = annotations(
        json!({"dapr.io/enable-metrics": "false", "dapr.io/sidecar-svc-annotations": "prometheus.io/port=1"}),
    );
    assert!(differs(&found, &none));
    let found = onto(found, none.clone());
    assert!(!differs(&found, &none));
    assert_eq!(
        found["metadata"]["annotations"],
        json!({"dapr.io/app-id": "cart", "mine": "x", "prometheus.io/port": "1",
            "outrigger/service-annotations": "prometheus.io/port"})
    );

    let quiet = annotations(json!({"dapr.io/enable-metrics": "false"}));
    assert!(differs(&found, &quiet));
    let found = onto(found, quiet);
    assert_eq!(
        found["metadata"]["annotations"],
        json!({"dapr.io/app-id": "cart", "mine": "x"})
    );
}

#[tokio::test]
async fn retries_only_latest_workload() {
    let server = Server::start().await;
    let refused = json!({"kind": "Status", "message": "away"});
    server.fix(
        "/api/v1/namespaces/ns/services",
        http::StatusCode::INTERNAL_SERVER_ERROR,
        refused,
    );
    let before = json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart", "dapr.io/grpc-port": "6000"});
    server.put(DEPLOYMENT, deployment(&before));
    let services = Services {
        client: server.client(),
        metrics: Arc::default(),
        namespace: None,
        rollouts: false,
    };
    let stop = CancellationToken::new();
    let running = tokio::spawn(services.run(stop.clone()));
    server.asked("POST", "/services", 1).await;
    let mut after = before;
    after["dapr.io/grpc-port"] = "7000".into();
    server.put(DEPLOYMENT, deployment(&after));
    let tried = || -> Vec<_> {
        let requests = server.requests("POST", "/services");
        let port = |service: &Value| service["spec"]["ports"][1]["port"].as_i64();
        requests.iter().filter_map(port).collect()
    };
    // Both are refused; only the newer one is retried.
    while tried().iter().filter(|port| **port == 7000).count() < 3 {
        server.asked("POST", "/services", tried().len() + 1).await;
    }
    stop.cancel();
    running.await.unwrap();
    let first = tried().iter().position(|port| *port == 7000).unwrap();
    assert!(tried()[first..].iter().all(|port| *port == 7000), "{:?}", tried());
}

#[tokio::test(start_paused = true)]
async fn permanent_failure_waits_for_change() {
    let (server, lines) = (Server::start().await, Lines::new());
    let refused = json!({"kind": "Status", "message": "Duplicate value"});
    server.fix(
        "/api/v1/namespaces/ns/services",
        http::StatusCode::UNPROCESSABLE_ENTITY,
        refused,
    );
    let mut annotations = json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart"});
    let stop = CancellationToken::new();
    let running = tokio::spawn(with_rollouts(&server).run(stop.clone()));
    for (times, name, value, told) in [
        (
            1,
            "grpc-port",
            "80",
            "dapr.io/grpc-port is 80, the same as the HTTP API's",
        ),
        (
            2,
            "metrics-port",
            "70000",
            "dapr.io/metrics-port is 70000, not a port",
        ),
    ] {
        annotations[format!("dapr.io/{name}")] = value.into();
        server.put(DEPLOYMENT, deployment(&annotations));
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(server.requests("POST", "/services").len(), times);
        let lines = lines.take(LOG, Level::ERROR);
        assert!(
            lines.len() == 1
                && lines[0].message.contains(told)
                && lines[0].message.contains("Duplicate value"),
            "{lines:?}"
        );
    }
    stop.cancel();
    running.await.unwrap();
}

#[test]
fn retries_at_maximum_pause() {
    let pauses: Vec<_> = (1..=8).map(|failures| pause(failures).as_millis()).collect();
    assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
    assert_eq!(pause(u32::MAX), FULL_PAUSE);
}

#[test]
fn backs_off_on_competing_writer() {
    let (mut conflicts, mut now) = (Conflicts::default(), Instant::now());
    let meta = Meta {
        namespace: "ns".to_owned(),
        name: "cart".to_owned(),
    };
    let pauses: Vec<_> = (0..7)
        .map(|_| {
            now += Duration::from_secs(1);
            conflicts.pause(&meta, now).map(|pause| pause.as_millis())
        })
        .collect();
    assert_eq!(
        pauses,
        [None, None, None, None, Some(500), Some(1000), Some(2000)]
    );
    // Other services are not affected, and a minute later the limit is reset.
    let other = Meta {
        name: "other".to_owned(),
        ..meta.clone()
    };
    assert_eq!(conflicts.pause(&other, now), None);
    assert_eq!(conflicts.pause(&meta, now + 3 * FULL_PAUSE), None);
    assert_eq!(conflicts.0.len(), 1);
}

const ROLLOUTS: &str = "/apis/argoproj.io/v1alpha1/rollouts";

fn rollout(annotations: &Value) -> Value {
    let mut rollout = deployment(annotations);
    rollout["apiVersion"] = "argoproj.io/v1alpha1".into();
    rollout["kind"] = "Rollout".into();
    rollout
}

fn with_rollouts(server: &Server) -> Services {
    Services {
        client: server.client(),
        metrics: Arc::default(),
        namespace: None,
        rollouts: true,
    }
}

#[tokio::test]
async fn creates_services_for_rollouts_on_request() {
    let server = Server::start().await;
    let address = "/apis/argoproj.io/v1alpha1/namespaces/ns/rollouts/cart";
    let annotations = json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart"});
    server.put(address, rollout(&annotations));
    let stop = CancellationToken::new();
    let running = tokio::spawn(with_rollouts(&server).run(stop.clone()));
    server.asked("POST", "/services", 1).await;
    let owner = &server.object(SERVICE).unwrap()["metadata"]["ownerReferences"][0];
    assert_eq!(
        owner,
        &json!({"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "cart", "uid": "u1",
            "controller": true, "blockOwnerDeletion": true})
    );
    let mut changed = annotations;
    changed["dapr.io/metrics-port"] = "9191".into();
    server.put(address, rollout(&changed));
    server.asked("PUT", SERVICE, 1).await;
    assert_eq!(server.object(SERVICE).unwrap()["spec"]["ports"][3]["port"], 9191);
    stop.cancel();
    running.await.unwrap();
}

#[test]
fn skips_rollouts_of_deployments() {
    let mut rollout = rollout(&json!({}));
    rollout["spec"] = json!({"workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "cart"}});
    let read = Workload::<Rollout>::read(&Meta::of(&rollout), rollout);
    assert_eq!(read, Ok(None));
}

#[tokio::test]
async fn ignores_rollouts_by_default() {
    let server = Server::start().await;
    let annotations = json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart"});
    server.put(DEPLOYMENT, deployment(&annotations));
    let mut services = with_rollouts(&server);
    services.rollouts = false;
    let stop = CancellationToken::new();
    let running = tokio::spawn(services.run(stop.clone()));
    server.asked("POST", "/services", 1).await;
    assert!(server.requests("LIST", ROLLOUTS).is_empty());
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn tolerates_missing_rollout_definition() {
    let server = Server::start().await;
    let absent = json!({"kind": "Status", "reason": "NotFound"});
    server.fix(ROLLOUTS, http::StatusCode::NOT_FOUND, absent);
    let annotations = json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart"});
    server.put(DEPLOYMENT, deployment(&annotations));
    let stop = CancellationToken::new();
    let running = tokio::spawn(with_rollouts(&server).run(stop.clone()));
    server.asked("POST", "/services", 1).await;
    server.asked("LIST", ROLLOUTS, 2).await;
    let mut late = rollout(&json!({"dapr.io/enabled": "true", "dapr.io/app-id": "late"}));
    late["metadata"]["name"] = "late".into();
    let listed = json!({"metadata": {"resourceVersion": "1"}, "items": [late]});
    server.fix(ROLLOUTS, http::StatusCode::OK, listed);
    server.asked("POST", "/services", 2).await;
    let service = server.object("/api/v1/namespaces/ns/services/late-dapr").unwrap();
    assert_eq!(service["metadata"]["ownerReferences"][0]["kind"], "Rollout");
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn recreates_deleted_or_edited_services() {
    let server = Server::start().await;
    let annotations = json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart"});
    server.put(DEPLOYMENT, deployment(&annotations));
    let stop = CancellationToken::new();
    let services = with_rollouts(&server);
    let metrics = Arc::clone(&services.metrics);
    let running = tokio::spawn(services.run(stop.clone()));
    server.asked("POST", "/services", 1).await;
    let made = server.object(SERVICE).unwrap();
    server.asked("WATCH", "/api/v1/services", 1).await;

    server.delete(SERVICE);
    server.asked("POST", "/services", 2).await;

    let mut edited = made.clone();
    edited["spec"]["selector"] = json!({"app": "other"});
    server.put(SERVICE, edited);
    server.asked("PUT", SERVICE, 1).await;
    assert_eq!(
        server.object(SERVICE).unwrap()["spec"]["selector"],
        json!({"app": "cart"})
    );

    // It has no owner now.
    let mut left = made.clone();
    left["metadata"]["ownerReferences"] = json!([]);
    server.put(SERVICE, left);
    server.asked("PUT", SERVICE, 2).await;
    let owners = &server.object(SERVICE).unwrap()["metadata"]["ownerReferences"];
    assert_eq!(owners, &made["metadata"]["ownerReferences"]);

    // Additions by others need no call.
    let (reads, mut more) = (server.requests("GET", SERVICE).len(), made);
    more["metadata"]["annotations"]["mine"] = "x".into();
    server.put(SERVICE, more);
    server.delete(SERVICE);
    server.asked("POST", "/services", 3).await;
    assert_eq!(server.requests("GET", SERVICE).len(), reads + 1);
    assert_eq!(server.requests("PUT", SERVICE).len(), 2);
    let told = metrics.render();
    for line in [
        // It was deleted twice, and lost its owner once.
        "dapr_operator_service_deleted_total{app_id=\"cart\"} 3",
        "dapr_operator_watch_in_sync{resource=\"services\"} 1",
        "dapr_operator_watch_failures_total{resource=\"rollouts\"} 0",
    ] {
        assert!(told.lines().any(|found| found == line), "{line} in\n{told}");
    }
    stop.cancel();
    running.await.unwrap();
    assert!(
        !metrics.render().contains("resource=\"services\""),
        "nobody follows them"
    );
}

#[test]
fn only_owner_recreates_shared_service() {
    let annotations = json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart"});
    let mut second = deployment(&annotations);
    second["metadata"]["name"] = "second".into();
    second["metadata"]["uid"] = "u2".into();
    let service = {
        let meta = Meta::of(&second);
        let workload = Workload::<Deployment>::read(&meta, second).unwrap().unwrap();
        service(&meta, &workload)
    };
    let meta = Meta::of(&service);
    let made = ExistingService::read(&meta, service).unwrap().unwrap();
    assert_eq!(made.owner::<Deployment>("ns").unwrap().name, "second");
    assert_eq!(made.owner::<StatefulSet>("ns"), None);
}

/// Waits until there are this many requests, for ten minutes.
async fn asked(server: &Server, method: &str, address: &str, times: usize) {
    let asked = server.asked(method, address, times);
    tokio::time::timeout(Duration::from_secs(600), asked)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn shared_service_passes_to_next_workload() {
    let server = Server::start().await;
    let annotations = json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart"});
    let named = |name: &str, uid: &str| {
        let mut workload = deployment(&annotations);
        workload["metadata"]["name"] = name.into();
        workload["metadata"]["uid"] = uid.into();
        workload
    };
    let (second, third) = (
        "/apis/apps/v1/namespaces/ns/deployments/second",
        "/apis/apps/v1/namespaces/ns/statefulsets/third",
    );
    server.put(DEPLOYMENT, deployment(&annotations));
    server.put(second, named("second", "u2"));
    server.put(third, named("third", "u3"));
    let of_second = {
        let object = named("second", "u2");
        let meta = Meta::of(&object);
        let workload = Workload::<Deployment>::read(&meta, object).unwrap().unwrap();
        service(&meta, &workload)
    };
    server.put(SERVICE, of_second);
    let owner = || {
        let service = server.object(SERVICE).unwrap();
        let name = &service["metadata"]["ownerReferences"][0]["name"];
        name.as_str().unwrap().to_owned()
    };

    let stop = CancellationToken::new();
    let running = tokio::spawn(with_rollouts(&server).run(stop.clone()));
    asked(&server, "GET", SERVICE, 3).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(owner(), "second");
    assert_eq!(server.requests("PUT", SERVICE).len(), 0);

    server.delete(second);
    // The cluster collects its services, also one created before its deletion is known here.
    let mut made = 0;
    while owner() == "second" {
        server.delete(SERVICE);
        made += 1;
        asked(&server, "POST", "/services", made).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    assert!(["cart", "third"].contains(&owner().as_str()), "{}", owner());
    assert_eq!(server.requests("PUT", SERVICE).len(), 0);

    // The workload deployed later owns it.
    server.put(second, named("second", "u4"));
    asked(&server, "PUT", SERVICE, 1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(owner(), "second");
    assert_eq!(server.requests("PUT", SERVICE).len(), 1);
    stop.cancel();
    running.await.unwrap();
}
