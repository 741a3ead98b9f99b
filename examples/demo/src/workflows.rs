//! A workflow that survives the kill of its sidecar: parallel activities, a timer, an event, and its history.

use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::Request;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::task_hub_sidecar_service_client::TaskHubSidecarServiceClient;
use outrigger_wire::durabletask::{GetInstanceHistoryRequest, HistoryEvent};
use serde_json::Value;
use tonic::transport::Endpoint;

use crate::Failure;
use crate::calls::{get, send};
use crate::fleet::Fleet;
use crate::worker::{CARGO, EVENT, STOWING, TIMER};

const WORKFLOW: &str = "voyage";
const ID: &str = "kon-tiki";
/// Limit of any wait. After the kill, placement first has to move the instance.
const LIMIT: Duration = Duration::from_secs(60);
/// Polling interval.
const PAUSE: Duration = Duration::from_millis(20);

/// Runs a workflow of the gRPC app, kills its sidecar, and reads its history. Prints a line for each.
pub(crate) async fn all(fleet: &mut Fleet) -> Result<(), Failure> {
    let workflows = format!("http://127.0.0.1:{}/v1.0/workflows/dapr", fleet.rust.http);
    let instance = format!("{workflows}/{ID}");
    let began = Instant::now();
    accepted(&format!("{workflows}/{WORKFLOW}/start?instanceID={ID}"), "").await?;
    until("every activity has its result in the history", async || {
        Ok(count(&history(fleet).await?, is_result) == CARGO.len())
    })
    .await?;
    let (number, each, all) = (CARGO.len(), STOWING.as_millis(), began.elapsed().as_millis());
    println!(
        "{:24} {number} of {each} ms each, run by the gRPC app at once: done in {all} ms",
        "workflow, activities"
    );

    let killed = Instant::now();
    fleet.kill_rust_sidecar().await?;
    // Fails until the app has reconnected to its sidecar.
    until("the event is taken", async || {
        let raised = accepted(&format!("{instance}/raiseEvent/{EVENT}"), "\"fair\"").await;
        Ok(raised.is_ok())
    })
    .await?;
    println!(
        "{:24} of its sidecar, while a timer ran: the event that it waited for was taken {} ms later",
        "workflow, kill -9",
        killed.elapsed().as_millis()
    );
    until("the workflow is over", async || {
        let (_, answer) = get(&instance).await?;
        let answer: Value = serde_json::from_slice(&answer)?;
        Ok(answer["runtimeStatus"] == "COMPLETED")
    })
    .await?;
    let took = began.elapsed().as_secs_f64();
    println!(
        "{:24} it was to fire {TIMER} s after the start: the workflow was over after {took:.1} s",
        "workflow, timer"
    );
    told(&history(fleet).await?)
}

/// Checks that the history contains each event once.
fn told(history: &[HistoryEvent]) -> Result<(), Failure> {
    let numbers = [
        count(history, |event| matches!(event, EventType::TaskScheduled(_))),
        count(history, is_result),
        count(history, |event| matches!(event, EventType::TimerFired(_))),
        count(history, |event| matches!(event, EventType::EventRaised(_))),
    ];
    let end = history.iter().find_map(|event| match &event.event_type {
        Some(EventType::ExecutionCompleted(end)) => end.result.clone(),
        _ => None,
    });
    let end = end.unwrap_or_default();
    let mut stowed: Vec<&str> = end
        .split([' ', ','])
        .filter(|word| word.parse::<u32>().is_ok())
        .collect();
    stowed.sort_unstable();
    if numbers != [CARGO.len(), CARGO.len(), 1, 1] || stowed != ["1", "2", "3"] {
        return Err(format!(
            "the history has [begun, done, fired, raised] {numbers:?} and ends with {end:?}"
        )
        .into());
    }
    println!(
        "{:24} {} events: {} activities begun and done, none twice; a timer fired; an event came; result: {end}",
        "workflow, history",
        history.len(),
        CARGO.len()
    );
    Ok(())
}

fn is_result(event: &EventType) -> bool {
    matches!(event, EventType::TaskCompleted(_))
}

fn count(history: &[HistoryEvent], wanted: impl Fn(&EventType) -> bool) -> usize {
    let events = history.iter().filter_map(|event| event.event_type.as_ref());
    events.filter(|event| wanted(event)).count()
}

async fn history(fleet: &Fleet) -> Result<Vec<HistoryEvent>, Failure> {
    let grpc = Endpoint::from_shared(format!("http://127.0.0.1:{}", fleet.rust.grpc))?.connect_lazy();
    let request = GetInstanceHistoryRequest {
        instance_id: ID.to_owned(),
    };
    let answer = TaskHubSidecarServiceClient::new(grpc)
        .get_instance_history(request)
        .await?;
    Ok(answer.into_inner().events)
}

async fn accepted(url: &str, body: &'static str) -> Result<(), Failure> {
    let (status, answer) = send(Request::post(url).body(Full::from(body))?).await?;
    if status != 202 {
        return Err(format!("{url}: status {status}: {}", String::from_utf8_lossy(&answer)).into());
    }
    Ok(())
}

async fn until(what: &str, is_so: impl AsyncFn() -> Result<bool, Failure>) -> Result<(), Failure> {
    let deadline = Instant::now() + LIMIT;
    while !is_so().await? {
        if Instant::now() > deadline {
            return Err(format!("workflow {ID}: not within {} s: {what}", LIMIT.as_secs()).into());
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}
