//! Calls of `AppCallback` on an app that speaks gRPC.

use std::time::Instant;

use http::HeaderMap;
use outrigger_telemetry::trace::Parent;
use outrigger_transport::grpc;
use outrigger_transport::headers::{internal_to_grpc, names};
use prost::Message;
use tonic::{Code, Status};

use super::{AppChannel, Transport, Turn};

impl AppChannel {
    /// Calls `path`, `/package.Service/Method`, as a child of `trace`.
    ///
    /// # Errors
    /// The app's status, or why there is none.
    pub async fn callback<R: Message + Default>(
        &self,
        path: &'static str,
        message: &impl Message,
        trace: &Parent,
    ) -> Result<R, Status> {
        self.callback_with(path, message, HeaderMap::new(), trace).await
    }

    /// The same with metadata, of which those that describe the message are left out.
    ///
    /// # Errors
    /// As [`AppChannel::callback`].
    pub async fn callback_with<R: Message + Default>(
        &self,
        path: &'static str,
        message: &impl Message,
        metadata: HeaderMap,
        trace: &Parent,
    ) -> Result<R, Status> {
        let turn = match &self.transport {
            Transport::Grpc(_) => self.turn().await.map_err(|error| error.status())?,
            _ => return Err(no_grpc()),
        };
        self.callback_in(&turn, path, message, metadata, trace).await
    }

    /// The same, in a turn that was waited for.
    ///
    /// # Errors
    /// As [`AppChannel::callback`].
    pub async fn callback_in<R: Message + Default>(
        &self,
        _turn: &Turn,
        path: &'static str,
        message: &impl Message,
        metadata: HeaderMap,
        trace: &Parent,
    ) -> Result<R, Status> {
        let Transport::Grpc(pool) = &self.transport else {
            return Err(no_grpc());
        };
        let frame = grpc::frame(message);
        let sent = (frame.len() - grpc::PREFIX) as u64;
        let mut request = grpc::request(path, frame.into());
        let mut metadata = internal_to_grpc(metadata, false);
        trace.inject_grpc(&mut metadata);
        if let Some(token) = self.token() {
            metadata.insert(names::API_TOKEN, token.clone());
        }
        request.headers_mut().extend(metadata);
        let started = Instant::now();
        let result = grpc::unary(pool, request, self.max_body).await;
        let code = result.as_ref().map_or_else(|e| e.status.code(), |_| Code::Ok);
        let received = result.as_ref().map_or(0, |a| a.message.len() as u64);
        self.metrics
            .grpc_client(path, code, started.elapsed(), sent, received);
        let answer = result.map_err(|failed| failed.status)?;
        R::decode(answer.message)
            .map_err(|error| Status::internal(format!("the app's answer to {path} cannot be read: {error}")))
    }
}

fn no_grpc() -> Status {
    Status::unavailable("the app does not speak gRPC (see --app-protocol)")
}
