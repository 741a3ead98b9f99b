//! Streams over which apps receive the calls of their actors.

use futures::{StreamExt, stream};
use outrigger_blocks_actors::actors::HostStream;
use outrigger_wire::runtime::v1::subscribe_actor_events_request_alpha1::RequestType;
use outrigger_wire::runtime::v1::subscribe_actor_events_response_alpha1::ResponseType;
use outrigger_wire::runtime::v1::{
    SubscribeActorEventsRequestAlpha1, SubscribeActorEventsResponseAlpha1,
    SubscribeActorEventsResponseInitialAlpha1,
};
use tokio::sync::mpsc;
use tonic::codegen::BoxStream;
use tonic::{Response, Status, Streaming};

use super::DaprService;
use super::subscriptions::in_time;

impl DaprService {
    /// Serves an actor stream: the first message of the app names its actor types; later ones answer requests by
    /// id.
    pub(super) async fn actor_events(
        &self,
        mut said: Streaming<SubscribeActorEventsRequestAlpha1>,
    ) -> Result<Response<BoxStream<SubscribeActorEventsResponseAlpha1>>, Status> {
        if !self.actors.has_streams() {
            return Err(Status::failed_precondition(
                "actor callback streaming requires a gRPC app channel",
            ));
        }
        let first = tokio::select! {
            first = in_time(said.message()) => first?,
            () = self.actors.until_ended() => return Err(Status::unavailable("the sidecar is shutting down")),
        };
        let Some(first) = first else {
            return Ok(Response::new(Box::pin(stream::empty())));
        };
        let Some(RequestType::InitialRequest(initial)) = first.request_type else {
            return Err(Status::invalid_argument(
                "first message must be SubscribeActorEventsRequestInitialAlpha1",
            ));
        };
        let (host, requests) = self
            .actors
            .open_app_stream(initial)
            .map_err(|error| Status::internal(format!("failed to register hosted actors: {error}")))?;
        let session = Session { said, requests, host };
        let began = SubscribeActorEventsResponseAlpha1 {
            response_type: Some(ResponseType::InitialResponse(
                SubscribeActorEventsResponseInitialAlpha1 {},
            )),
        };
        let requests = stream::unfold(session, Session::next);
        let all = stream::iter([Ok(began)]).chain(requests);
        Ok(Response::new(Box::pin(all)))
    }
}

/// A stream and its app.
struct Session {
    said: Streaming<SubscribeActorEventsRequestAlpha1>,
    requests: mpsc::Receiver<SubscribeActorEventsResponseAlpha1>,
    host: HostStream,
}

impl Session {
    /// The next request to the app; reads its answers while waiting.
    async fn next(mut self) -> Option<(Result<SubscribeActorEventsResponseAlpha1, Status>, Self)> {
        loop {
            tokio::select! {
                biased;
                said = self.said.message() => match said {
                    Ok(Some(answer)) => self.host.answered(answer),
                    Ok(None) | Err(_) => return None,
                },
                Some(request) = self.requests.recv() => return Some((Ok(request), self)),
                () = self.host.ended() => return None,
            }
        }
    }
}
