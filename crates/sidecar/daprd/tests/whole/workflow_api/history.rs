//! Work items of a disconnected worker, and instances over HTTP.

use outrigger_wire::durabletask::WorkerCapability;

use super::*;

#[tokio::test]
async fn reassigns_work_of_lost_worker() {
    let world = World::new().await;
    let node = world.sidecar().await;
    let mut first = Worker::connect(&node).await;
    world.hosts(1).await;
    let started = node
        .ask(post("/v1.0/workflows/dapr/order/start?instanceID=a", ""))
        .await;
    assert_eq!(started.status, 202, "{}", started.text());
    let (_, old) = first.turn().await;
    let mut second = Worker::connect(&node).await;
    drop(first);
    let (turn, new) = second.turn().await;
    assert_eq!(turn.instance_id, "a");
    assert_ne!(old, new);
    // The first worker's result belongs to a superseded execution.
    second.complete("a", &old, "\"old\"").await;
    assert_eq!(status(&node, "a").await["runtimeStatus"], "PENDING");
    second.complete("a", &new, "\"new\"").await;
    eventually(async || status(&node, "a").await["runtimeStatus"] == "COMPLETED").await;
    let output = status(&node, "a").await["properties"]["dapr.workflow.output"].clone();
    assert_eq!(output, "\"new\"");
}

/// Invariant: a worker that keeps histories gets each event of the history once.
#[tokio::test]
async fn sends_rest_to_worker_with_history() {
    let world = World::new().await;
    let node = world.sidecar().await;
    let keeps = GetWorkItemsRequest {
        capabilities: vec![WorkerCapability::StatefulHistory.into()],
    };
    let mut worker = Worker::with(&node, keeps).await;
    world.hosts(1).await;
    let start = post("/v1.0/workflows/dapr/order/start?instanceID=a", "");
    assert_eq!(node.ask(start).await.status, 202);
    let mut kept = Vec::new();
    for turn in 0..4 {
        let (request, token) = worker.turn().await;
        let known = request.cached_history.map(|cached| cached.event_count);
        let expected = (turn > 1).then(|| i32::try_from(kept.len()).unwrap());
        assert_eq!(known, expected, "turn {turn}");
        kept.extend(request.past_events);
        worker.answer("a", &token, Vec::new()).await;
        let raise = post("/v1.0/workflows/dapr/a/raiseEvent/e", turn.to_string());
        eventually(async || status(&node, "a").await["runtimeStatus"] == "RUNNING").await;
        assert_eq!(node.ask(raise).await.status, 202);
    }
    let history = GetInstanceHistoryRequest {
        instance_id: "a".to_owned(),
    };
    let history = hub(node.ports.grpc, "GetInstanceHistory", &history).await;
    let history: GetInstanceHistoryResponse = history.message();
    assert!(kept.len() > 4 && history.events.starts_with(&kept), "{kept:?}");
}

/// HTTP clients with the API token can read instances and their histories.
#[tokio::test]
async fn serves_instances_and_histories() {
    let world = World::new().await;
    let node = world.plan().env("DAPR_API_TOKEN", "secret").start().await;
    let ask = async |target: &str| {
        node.ask(request("GET", target, &["dapr-api-token: secret"], ""))
            .await
    };
    let list = "/v1.0-alpha1/workflows/dapr";
    let history = "/v1.0-alpha1/workflows/dapr/a/history";
    for target in [list, history] {
        assert_eq!(node.ask(get(target)).await.status, 401, "{target}");
    }
    assert_eq!(ask(list).await.json(), json!({"instances": []}));
    ask(history).await.error(404, "ERR_INSTANCE_ID_NOT_FOUND");
    let headers = [("dapr-api-token", "secret")];
    let path = "/TaskHubSidecarService/GetWorkItems";
    let sent = grpc::framed(&GetWorkItemsRequest::default().encode_to_vec());
    let _work = grpc::start(node.ports.grpc, path, &headers, sent.into()).await;
    world.hosts(1).await;
    for id in ["a", "b", "c"] {
        let start = format!("{list}/order/start?instanceID={id}");
        let started = request("POST", &start, &["dapr-api-token: secret"], "7");
        assert_eq!(node.ask(started).await.status, 202);
    }
    let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = ask(&format!("{list}?pageSize=2&continuationToken={token}"))
            .await
            .json();
        pages += 1;
        let instances = page["instances"].as_array().unwrap();
        assert!(instances.len() <= 2, "{page}");
        for instance in instances {
            assert_eq!(instance["workflowName"], "order");
            assert_eq!(instance["runtimeStatus"], "PENDING");
            assert!(
                instance["createdAt"].as_str().unwrap().ends_with('Z'),
                "{instance}"
            );
            seen.push(instance["instanceID"].as_str().unwrap().to_owned());
        }
        let Some(next) = page["continuationToken"].as_str() else {
            break;
        };
        token = next.bytes().map(|byte| format!("%{byte:02X}")).collect();
    }
    seen.sort();
    assert_eq!((seen, pages), (["a", "b", "c"].map(str::to_owned).to_vec(), 2));
    let pending = ask(&format!("{list}?runtimeStatus=pending")).await.json();
    assert_eq!(pending["instances"].as_array().unwrap().len(), 3);
    let failed = ask(&format!("{list}?runtimeStatus=FAILED")).await.json();
    assert_eq!(failed, json!({"instances": []}));
    let now = jiff::Timestamp::now();
    for (query, ids) in [
        ("runtimeStatus=FAILED&runtimeStatus=PENDING".to_owned(), 3),
        ("workflowName=order".to_owned(), 3),
        ("workflowName=other".to_owned(), 0),
        ("instanceIDPrefix=b".to_owned(), 1),
        ("instanceIDPrefix=%25".to_owned(), 0),
        (format!("createdTimeTo={now}"), 3),
        (format!("createdTimeFrom={now}"), 0),
        (
            format!("instanceIDPrefix=c&workflowName=order&createdTimeTo={now}"),
            1,
        ),
    ] {
        let page = ask(&format!("{list}?{query}")).await.json();
        assert_eq!(
            page["instances"].as_array().unwrap().len(),
            ids,
            "{query}: {page}"
        );
    }
    let misspelt = "workflow=order";
    for wrong in [
        "pageSize=none",
        "runtimeStatus=fine",
        "createdTimeTo=today",
        misspelt,
    ] {
        let answer = ask(&format!("{list}?{wrong}")).await;
        answer.error(400, "ERR_MALFORMED_REQUEST");
    }
    let answer = ask(history).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json(), json!({}), "no turn was stored yet");
}
