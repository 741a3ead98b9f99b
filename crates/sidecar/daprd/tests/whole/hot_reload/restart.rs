//! Restarts of the sidecar in its process.

use super::*;
use crate::common::Process;

const CONFIGURATION: &str =
    "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  name: test\nspec:\n  ";

fn configure(process: &Process, spec: &str) {
    let file = process.resources().with_file_name("config.yaml");
    let new = file.with_extension("new");
    std::fs::write(&new, format!("{CONFIGURATION}{spec}\n")).unwrap();
    std::fs::rename(new, file).unwrap();
}

/// The names of the running components; empty while the sidecar restarts.
async fn components(process: &Process) -> Vec<String> {
    let Some(answer) = process.try_ask(get("/v1.0/metadata")).await else {
        return Vec::new();
    };
    let metadata = answer.json();
    let all = metadata["components"].as_array().into_iter().flatten();
    all.map(|component| component["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn hangup_restarts_sidecar() {
    let net = Net::plain();
    let mut process = plan(&net).spec(DISABLED).spawn().await;
    for round in 0..3 {
        let name = format!("round{round}");
        std::fs::write(process.resources().join("a.yaml"), memory(&name)).unwrap();
        process.signal("HUP");
        eventually(async || components(&process).await == [name.as_str()]).await;
    }
    assert_eq!(process.log().matches("Received signal 'hangup'").count(), 3);

    // A sidecar that could not start again keeps running.
    std::fs::write(process.resources().join("a.yaml"), "kind: [").unwrap();
    configure(&process, "tracing: [");
    process.signal("HUP");
    let refused = "the sidecar does not restart, because it could not start again";
    eventually(async || process.log().contains(refused)).await;
    assert_eq!(components(&process).await, ["round2"]);

    process.signal("TERM");
    assert_eq!(process.exit_code().await, Some(0));
}

#[tokio::test]
async fn changed_configuration_restarts_sidecar() {
    let net = Net::plain();
    let process = plan(&net).resource(&memory("mem")).spawn().await;
    configure(&process, "components: {deny: [state.in-memory]}");
    eventually(async || {
        process
            .log()
            .contains("the Configuration changed: nameResolution, components; restarting")
    })
    .await;
    let none = async || {
        let answer = process.try_ask(get("/v1.0/metadata")).await;
        answer.is_some_and(|answer| answer.json()["components"].is_null())
    };
    eventually(none).await;
}
