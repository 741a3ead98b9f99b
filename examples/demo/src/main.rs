//! Starts the CA, a scheduler, placement, two sidecars and two apps. Makes every kind of call between them, and uses state,
//! secrets, bindings, jobs and events. Kills the host of an actor and the sidecar of a workflow, and stops all processes.

mod actors;
mod app;
mod bindings;
mod calls;
mod events;
mod fleet;
mod jobs;
mod matrix;
mod process;
mod stores;
mod worker;
mod workflows;

use std::path::PathBuf;
use std::process::ExitCode;

use events::Broker;
use fleet::{Binaries, Fleet};

/// Any failure of the demo, shown as text.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The app's gRPC service, generated from `proto/echo.proto`.
mod echo {
    #![allow(missing_docs, unreachable_pub, clippy::all)]
    tonic::include_proto!("outrigger.demo.v1");
}

const USAGE: &str = "\
usage: outrigger-demo run [--bin-dir DIR]          the demo; DIR holds daprd, sentry, scheduler and placement (default: beside this binary)
       outrigger-demo matrix --ours DIR --peer DIR  sidecars and control planes of two folders in every mixture;
                                                    events between them need redis-server
       outrigger-demo app-grpc PORT SIDECAR         the gRPC app alone; SIDECAR is its sidecar's port for gRPC
       DEMO_PYTHON names the interpreter of the HTTP app (default: python3)";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let work = dispatch(&arguments);
    let result = tokio::select! {
        result = work => result,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("outrigger-demo: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn dispatch(arguments: &[String]) -> Result<(), Failure> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["run"] => {
            if cfg!(debug_assertions) {
                println!(
                    "(a quick build, little of it optimised: with the binaries of `make build` the times below are less than half)"
                );
            }
            demo(beside_this_binary()?).await
        }
        ["run", "--bin-dir", dir] => demo(PathBuf::from(dir)).await,
        ["matrix", "--ours", ours, "--peer", peer] => matrix::run(ours.as_ref(), peer.as_ref()).await,
        ["app-grpc", port, sidecar] => {
            let number = |port: &str| {
                port.parse::<u16>()
                    .map_err(|_| format!("'{port}' is not a port number"))
            };
            app::serve(number(port)?, number(sidecar)?).await
        }
        _ => Err(USAGE.into()),
    }
}

async fn demo(dir: PathBuf) -> Result<(), Failure> {
    let (sentry, daprd) = (dir.join("sentry"), dir.join("daprd"));
    let binaries = Binaries {
        sentry,
        scheduler: dir.join("scheduler"),
        placement: dir.join("placement"),
        http_sidecar: daprd.clone(),
        grpc_sidecar: daprd,
    };
    println!(
        "Starting the CA, a scheduler, placement, two sidecars with mTLS, an HTTP app in Python and a gRPC app in Rust ..."
    );
    let mut fleet = Fleet::start(&binaries, &Broker::Embedded).await?;
    let called = everything(&mut fleet).await;
    let ended = fleet.stop(called.is_ok()).await;
    called.and(ended)?;
    println!("Every call was answered by the right app, and everything ended cleanly.");
    Ok(())
}

/// The steps of the demo.
async fn everything(fleet: &mut Fleet) -> Result<(), Failure> {
    calls::all(fleet).await?;
    stores::all(fleet).await?;
    bindings::all(fleet).await?;
    jobs::all(fleet).await?;
    events::all(fleet).await?;
    actors::all(fleet).await?;
    workflows::all(fleet).await
}

fn beside_this_binary() -> Result<PathBuf, Failure> {
    let binary = std::env::current_exe()?;
    Ok(binary
        .parent()
        .ok_or("this binary is in no folder; name one with --bin-dir")?
        .to_owned())
}
