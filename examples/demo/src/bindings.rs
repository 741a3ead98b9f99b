//! Bindings: cron triggers an app, and one app writes a file that the other reads.

use std::path::Path;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::Request;
use outrigger_wire::runtime::v1::InvokeBindingRequest;
use outrigger_wire::runtime::v1::dapr_client::DaprClient;
use serde_json::{Value, json};
use tonic::transport::{Channel, Endpoint};

use crate::Failure;
use crate::calls::{LIMIT, REPEATS, get, millis, send, timed};
use crate::fleet::Fleet;

const CLOCK: &str = "tide";
const FILES: &str = "logbook";
/// The folder of the files, and one of them.
const FOLDER: &str = "logbook";
const FILE: &str = "today.txt";
const TEXT: &str = "anchored in twelve metres";
/// Expected number of cron events.
const EVENTS: u64 = 3;

/// Writes the components: local storage for both apps, cron for one.
pub(crate) fn write_resources(dir: &Path, resources: &Path, woken: &str) -> Result<(), Failure> {
    let folder = dir.join(FOLDER);
    let component = |name: &str, kind: &str, property: &str, value: &str| {
        format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  type: {kind}\n  \
             version: v1\n  metadata:\n    - name: {property}\n      value: '{value}'\n"
        )
    };
    let clock =
        component(CLOCK, "bindings.cron", "schedule", "@every 100ms") + "scopes:\n  - " + woken + "\n";
    let files = component(
        FILES,
        "bindings.localstorage",
        "rootPath",
        &folder.to_string_lossy(),
    );
    std::fs::write(resources.join("bindings.yaml"), format!("{clock}---\n{files}"))?;
    Ok(())
}

/// Waits for cron events at the app, writes a file and reads it. Prints a line for each.
pub(crate) async fn all(fleet: &Fleet) -> Result<(), Failure> {
    let seen = until_posted(fleet, CLOCK, EVENTS).await?;
    let woken = format!("the clock woke the HTTP app: POST /{CLOCK}, {seen} times so far");
    println!("{:24} {woken}", "input binding, cron");

    let (first, median) = timed(REPEATS, async || write(fleet).await).await?;
    let path = fleet.dir().join(FOLDER).join(FILE);
    let kept = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    same(&path.display().to_string(), kept.as_bytes())?;
    let line = |name: &str, what: String, first, median| {
        println!(
            "{name:24} {what:83} {:>6.2} ms {:>6.2} ms",
            millis(first),
            millis(median)
        );
    };
    let what = format!("over HTTP through one sidecar; {FOLDER}/{FILE} contains '{kept}'");
    line("output binding, create", what, first, median);

    let grpc = Endpoint::from_shared(format!("http://127.0.0.1:{}", fleet.rust.grpc))?.connect_lazy();
    let grpc = DaprClient::new(grpc);
    let (first, median) = timed(REPEATS, async || read(grpc.clone()).await).await?;
    let what = "over gRPC through the other sidecar: the same text".to_owned();
    line("output binding, get", what, first, median);
    Ok(())
}

/// Number of POST requests to a path that the HTTP app on `port` has counted.
pub(crate) async fn posted(port: u16, path: &str) -> Result<u64, Failure> {
    let url = format!("http://127.0.0.1:{port}/times/{path}");
    let (_, body) = get(&url).await?;
    let answer: Value = serde_json::from_slice(&body)?;
    answer["times"]
        .as_u64()
        .ok_or_else(|| format!("{url}: not a count: {answer}").into())
}

/// Waits until the HTTP app has counted enough POST requests to a path.
pub(crate) async fn until_posted(fleet: &Fleet, path: &str, enough: u64) -> Result<u64, Failure> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let seen = posted(fleet.python.app, path).await?;
        if seen >= enough {
            return Ok(seen);
        }
        if Instant::now() > deadline {
            return Err(format!("the app saw {seen} times POST /{path}, expected {enough}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn write(fleet: &Fleet) -> Result<(), Failure> {
    let body = json!({"operation": "create", "data": TEXT, "metadata": {"fileName": FILE}});
    let url = format!("http://127.0.0.1:{}/v1.0/bindings/{FILES}", fleet.python.http);
    let request = Request::post(url).header("content-type", "application/json");
    let (status, answer) = send(request.body(Full::from(body.to_string()))?).await?;
    if status != 200 {
        return Err(format!("{FILES}: status {status}: {}", String::from_utf8_lossy(&answer)).into());
    }
    Ok(())
}

async fn read(mut sidecar: DaprClient<Channel>) -> Result<(), Failure> {
    let request = InvokeBindingRequest {
        name: FILES.into(),
        operation: "get".into(),
        metadata: [("fileName".to_owned(), FILE.to_owned())].into(),
        ..InvokeBindingRequest::default()
    };
    let answer = sidecar.invoke_binding(request).await?.into_inner();
    same(FILES, &answer.data)
}

fn same(place: &str, text: &[u8]) -> Result<(), Failure> {
    if text == TEXT.as_bytes() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(text);
    Err(format!("{place} says '{text}', expected '{TEXT}'").into())
}
