//! State and secrets: written through one sidecar, read through the other, and denied by scopes.

use std::path::Path;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use outrigger_wire::runtime::v1::dapr_client::DaprClient;
use outrigger_wire::runtime::v1::{GetSecretRequest, GetStateRequest};
use serde_json::Value;
use tonic::transport::Endpoint;

use crate::Failure;
use crate::calls::{REPEATS, get, millis, send, timed};
use crate::fleet::{Fleet, Sidecar};

/// State store in one file for both sidecars, without a key prefix: each reads the other's values.
const STATE: &str = "harbour";
const SECRETS: &str = "vault";
/// The secret that the configuration denies.
pub(crate) const HIDDEN: &str = "hidden";

/// Writes the components of both sidecars.
pub(crate) fn write_resources(dir: &Path, resources: &Path) -> Result<(), Failure> {
    let secrets = dir.join("secrets.json");
    std::fs::write(&secrets, r#"{"pilot":"comes aboard","hidden":"reef"}"#)?;
    let component = |name: &str, kind: &str, properties: &[(&str, &str)]| {
        let properties: String = properties
            .iter()
            .map(|(name, value)| format!("    - name: {name}\n      value: '{value}'\n"))
            .collect();
        format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  type: {kind}\n  \
             version: v1\n  metadata:\n{properties}"
        )
    };
    let file = dir.join("state.db");
    let file = file.to_string_lossy();
    let properties = [
        ("connectionString", &*file),
        ("keyPrefix", "none"),
        ("actorStateStore", "true"),
    ];
    std::fs::write(
        resources.join("state.yaml"),
        component(STATE, "state.sqlite", &properties),
    )?;
    let properties = [("secretsFile", &*secrets.to_string_lossy())];
    let secrets = component(SECRETS, "secretstores.local.file", &properties);
    std::fs::write(resources.join("secrets.yaml"), secrets)?;
    Ok(())
}

/// Saves a value, reads it, reads a secret. Prints a line for each.
pub(crate) async fn all(fleet: &Fleet) -> Result<(), Failure> {
    let (python, rust) = (&fleet.python, &fleet.rust);
    save(python, r#"{"metres":12}"#).await?;
    let grpc = Endpoint::from_shared(format!("http://127.0.0.1:{}", rust.grpc))?.connect_lazy();
    let grpc = DaprClient::new(grpc);
    let line = |name: &str, what: &str, first, median| {
        println!(
            "{name:24} {what:83} {:>6.2} ms {:>6.2} ms",
            millis(first),
            millis(median)
        );
    };
    let (first, median) = timed(REPEATS, async || {
        let request = GetStateRequest {
            store_name: STATE.into(),
            key: "depth".into(),
            ..GetStateRequest::default()
        };
        let found = grpc.clone().get_state(request).await?.into_inner();
        same(&serde_json::from_slice(&found.data)?, 12)
    })
    .await?;
    line(
        "state, SQLite",
        "written over HTTP through one sidecar, read over gRPC through the other",
        first,
        median,
    );

    let (first, median) = timed(REPEATS, async || {
        let request = GetSecretRequest {
            store_name: SECRETS.into(),
            key: "pilot".into(),
            ..GetSecretRequest::default()
        };
        let found = grpc.clone().get_secret(request).await?.into_inner();
        match found.data.get("pilot").map(String::as_str) {
            Some("comes aboard") => Ok(()),
            other => Err(format!("the secret is {other:?}").into()),
        }
    })
    .await?;
    line("secret, local file", "read over gRPC", first, median);
    let (status, _) = get(&format!("{}/v1.0/secrets/{SECRETS}/{HIDDEN}", base(python))).await?;
    if status != 403 {
        return Err(format!("the hidden secret must be refused, got status {status}").into());
    }
    println!("{:24} refused by the Configuration", "secret, hidden");
    Ok(())
}

async fn save(sidecar: &Sidecar, value: &str) -> Result<(), Failure> {
    let items = format!(r#"[{{"key":"depth","value":{value}}}]"#);
    let request = Request::post(format!("{}/v1.0/state/{STATE}", base(sidecar)))
        .header("content-type", "application/json")
        .body(Full::from(Bytes::from(items)))?;
    let (status, body) = send(request).await?;
    if status != 204 {
        return Err(format!("saving: status {status}: {}", String::from_utf8_lossy(&body)).into());
    }
    Ok(())
}

fn same(found: &Value, metres: u64) -> Result<(), Failure> {
    if found["metres"] == metres {
        return Ok(());
    }
    Err(format!("the state is {found}, expected {metres} metres").into())
}

fn base(sidecar: &Sidecar) -> String {
    format!("http://127.0.0.1:{}", sidecar.http)
}
