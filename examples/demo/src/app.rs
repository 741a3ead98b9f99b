//! The demo's gRPC app: invocation callbacks, and a service that sidecars proxy.

use std::net::Ipv4Addr;

use outrigger_wire::common::v1::{InvokeRequest, InvokeResponse};
use outrigger_wire::runtime::v1::app_callback_server::{AppCallback, AppCallbackServer};
use tokio_stream::{Stream, StreamExt as _};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::Failure;
use crate::echo::Line;
use crate::echo::echo_server::{Echo, EchoServer};
use crate::worker;

/// The app's name in its responses.
pub(crate) const STACK: &str = "Rust tonic";

/// Serves the app on loopback and runs its workflow worker until SIGTERM or SIGINT. `sidecar`: the gRPC port of its sidecar.
pub(crate) async fn serve(port: u16, sidecar: u16) -> Result<(), Failure> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let served = tonic::transport::Server::builder()
        .add_service(AppCallbackServer::new(App))
        .add_service(EchoServer::new(App))
        .serve_with_shutdown((Ipv4Addr::LOCALHOST, port).into(), async move {
            terminate.recv().await;
        });
    tokio::select! {
        served = served => Ok(served?),
        ended = worker::work(sidecar) => ended,
    }
}

struct App;

#[tonic::async_trait]
impl AppCallback for App {
    async fn on_invoke(&self, request: Request<InvokeRequest>) -> Result<Response<InvokeResponse>, Status> {
        let caller = caller(request.metadata());
        let request = request.into_inner();
        let text = String::from_utf8_lossy(&request.data.unwrap_or_default().value).into_owned();
        let seen = serde_json::json!({
            "stack": STACK,
            "path": format!("/{}", request.method),
            "text": text,
            "caller": caller,
        });
        let data = prost_types::Any {
            type_url: String::new(),
            value: seen.to_string().into(),
        };
        Ok(Response::new(InvokeResponse {
            data: Some(data),
            content_type: "application/json".into(),
        }))
    }
}

type Lines = std::pin::Pin<Box<dyn Stream<Item = Result<Line, Status>> + Send>>;

#[tonic::async_trait]
impl Echo for App {
    async fn say(&self, request: Request<Line>) -> Result<Response<Line>, Status> {
        let caller = caller(request.metadata());
        Ok(Response::new(Line {
            text: request.into_inner().text,
            caller,
        }))
    }

    type ChatStream = Lines;

    async fn chat(&self, request: Request<Streaming<Line>>) -> Result<Response<Lines>, Status> {
        let caller = caller(request.metadata());
        let lines = request.into_inner();
        let answers = lines.map(move |line| {
            Ok(Line {
                text: line?.text,
                caller: caller.clone(),
            })
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

fn caller(metadata: &MetadataMap) -> String {
    let id = metadata
        .get("dapr-caller-app-id")
        .and_then(|value| value.to_str().ok());
    id.unwrap_or_default().to_owned()
}
