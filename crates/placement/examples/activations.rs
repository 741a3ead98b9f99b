//! What active actors cost a sidecar: starts a placement service and a sidecar, plays the app, calls many actors once, and
//! tells how long that took and what is kept of each.
//!
//! usage: activations BIN_DIR [ACTORS]

use std::convert::Infallible;
use std::error::Error;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Calls at once.
const CALLERS: usize = 16;
const STORE: &str = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: store\nspec:\n  \
                     type: state.in-memory\n  version: v1\n  metadata:\n  - name: actorStateStore\n    value: 'true'\n";

type Failure = Box<dyn Error + Send + Sync>;

/// A process that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _already_over = self.0.kill();
        let _status = self.0.wait();
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, more @ ..] = arguments.as_slice() else {
        return Err("usage: activations BIN_DIR [ACTORS]".into());
    };
    let actors: usize = more.first().map_or(Ok(100_000), |text| text.parse())?;
    let app = TcpListener::bind("127.0.0.1:0").await?;
    let app_port = app.local_addr()?.port();
    tokio::spawn(play(app));
    let [placement_port, raft, http, grpc, internal] = free_ports()?;
    let resources = tempfile::tempdir()?;
    std::fs::write(resources.path().join("store.yaml"), STORE)?;
    let _placement = start(
        &format!("{folder}/placement"),
        &[
            format!("--port={placement_port}"),
            "--healthz-port=0".to_owned(),
            "--enable-metrics=false".to_owned(),
            format!("--initial-cluster=dapr-placement-0=127.0.0.1:{raft}"),
        ],
    )?;
    let sidecar = start(
        &format!("{folder}/daprd"),
        &[
            "--app-id=idle".to_owned(),
            format!("--app-port={app_port}"),
            format!("--dapr-http-port={http}"),
            format!("--dapr-grpc-port={grpc}"),
            format!("--dapr-internal-grpc-port={internal}"),
            "--metrics-port=0".to_owned(),
            format!("--placement-host-address=127.0.0.1:{placement_port}"),
            format!("--resources-path={}", resources.path().display()),
        ],
    )?;
    until_called(http).await?;
    call_all(http, "warm", 1000).await?;
    let pid = sidecar.0.id();
    let before = resident(pid)?;
    let began = Instant::now();
    call_all(http, "actor", actors).await?;
    let took = began.elapsed().as_secs_f64();
    let after = resident(pid)?;
    println!(
        "{actors} actors in {took:.1} s, {:.0} a second; {before} KiB resident before, {after} after: {:.0} bytes each",
        actors as f64 / took,
        after.saturating_sub(before) as f64 * 1024.0 / actors as f64
    );
    Ok(())
}

fn start(program: &str, arguments: &[String]) -> Result<Running, Failure> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("DAPR_UNSAFE_SKIP_CONTAINER_UID_GID_CHECK", "true");
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Ok(Running(child.map_err(|error| format!("{program}: {error}"))?))
}

fn free_ports<const N: usize>() -> Result<[u16; N], Failure> {
    let held: Result<Vec<_>, _> = (0..N)
        .map(|_| std::net::TcpListener::bind("127.0.0.1:0"))
        .collect();
    let ports: Result<Vec<_>, _> = held?
        .iter()
        .map(|held| held.local_addr().map(|own| own.port()))
        .collect();
    ports?.try_into().map_err(|_| "no ports".into())
}

/// The app: hosts actors that are never idle, and answers at once.
async fn play(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let answer = service_fn(async |request: Request<Incoming>| {
            let text = match request.uri().path() {
                "/dapr/config" => r#"{"entities":["Idle"],"actorIdleTimeout":"24h"}"#,
                _ => "",
            };
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
        });
        tokio::spawn(server::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

async fn until_called(port: u16) -> Result<(), Failure> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while call_all(port, "first", 1).await.is_err() {
        if Instant::now() > deadline {
            return Err("the sidecar does not come up".into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Calls so many actors once, whose ids are as long as a UUID.
async fn call_all(port: u16, prefix: &'static str, count: usize) -> Result<(), Failure> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS.min(count) {
        let next = Arc::clone(&next);
        callers.spawn(async move {
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            let (mut sender, connection) = client::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok::<_, Failure>(());
                }
                let path = format!("/v1.0/actors/Idle/{prefix:0>8}-{number:0>27}/method/m");
                let request = Request::post(path)
                    .header("host", "localhost")
                    .body(Empty::<Bytes>::new())?;
                let response = sender.send_request(request).await?;
                let status = response.status();
                response.into_body().collect().await?;
                if status != 200 {
                    return Err(format!("status {status}").into());
                }
            }
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok(())
}

/// Memory of a process, in KiB.
fn resident(pid: u32) -> Result<u64, Failure> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    Ok(value
        .ok_or("no VmRSS in /proc")?
        .trim()
        .trim_end_matches(" kB")
        .parse()?)
}
