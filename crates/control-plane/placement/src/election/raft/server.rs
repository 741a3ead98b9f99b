//! Server for the other replicas.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use openraft::Raft;
use outrigger_controlplane::grpc::Caller;
use outrigger_identity::SpiffeId;
use tonic::Status;
use tonic::body::Body;
use tonic::server::UnaryService;
use tonic_prost::ProstCodec;

use super::Types;
use super::messages::{RaftRequest, RaftResponse, RequestKind};

/// The only method.
pub(super) const METHOD: &str = "/outrigger.placement.Raft/Ask";
/// Maximum request size, bytes.
const MAX_REQUEST: usize = 1 << 20;

type Answering<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[derive(Clone)]
pub(super) struct RaftService {
    raft: Raft<Types>,
    /// Only callers with this identity are served; without mTLS, all are.
    identity: Option<SpiffeId>,
}

impl RaftService {
    pub(super) fn new(raft: Raft<Types>, identity: Option<SpiffeId>) -> Self {
        Self { raft, identity }
    }

    async fn answer(self, request: RaftRequest) -> Result<RaftResponse, Status> {
        let kind = request
            .kind
            .ok_or_else(|| Status::invalid_argument("no request"))?;
        Ok(match kind {
            RequestKind::Append(append) => self
                .raft
                .append_entries(append.into())
                .await
                .map_err(unavailable)?
                .into(),
            RequestKind::Vote(candidate) => self
                .raft
                .vote(candidate.into())
                .await
                .map_err(unavailable)?
                .into(),
            RequestKind::Snapshot(snapshot) => self
                .raft
                .install_snapshot(snapshot.into())
                .await
                .map_err(unavailable)?
                .into(),
        })
    }
}

/// Why a request is rejected. With mTLS, `own` is this replica's identity and only callers with the same one
/// are served; without mTLS, all are.
fn refusal(own: Option<&SpiffeId>, request: &Request<Body>) -> Option<Status> {
    if request.uri().path() != METHOD {
        return Some(Status::unimplemented(
            "this port is for replicas of the placement service",
        ));
    }
    let allowed = match (own, request.extensions().get::<Caller>()) {
        (None, Some(Caller::Anyone)) => true,
        (Some(own), Some(Caller::Workload(caller))) => own.as_str() == caller.as_str(),
        _ => false,
    };
    (!allowed).then(|| Status::permission_denied("only replicas of the placement service may call this port"))
}

fn unavailable(error: impl std::fmt::Display) -> Status {
    Status::unavailable(error.to_string())
}

impl tower::Service<Request<Body>> for RaftService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answering<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if let Some(status) = refusal(service.identity.as_ref(), &request) {
                return Ok(status.into_http());
            }
            let codec = ProstCodec::<RaftResponse, RaftRequest>::default();
            let mut server =
                tonic::server::Grpc::new(codec).apply_max_message_size_config(Some(MAX_REQUEST), None);
            Ok(server.unary(service, request).await)
        })
    }
}

impl UnaryService<RaftRequest> for RaftService {
    type Response = RaftResponse;
    type Future = Answering<Result<tonic::Response<RaftResponse>, Status>>;

    fn call(&mut self, request: tonic::Request<RaftRequest>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            service
                .answer(request.into_inner())
                .await
                .map(tonic::Response::new)
        })
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    /// The code with which a replica of identity `own` rejects a caller.
    fn refused(own: Option<&str>, caller: Option<Caller>, path: &'static str) -> Option<Code> {
        let own: Option<SpiffeId> = own.map(|id| id.parse().unwrap());
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = http::Uri::from_static(path);
        if let Some(caller) = caller {
            request.extensions_mut().insert(caller);
        }
        refusal(own.as_ref(), &request).map(|status| status.code())
    }

    #[test]
    fn mtls_restricts_elections_to_replicas() {
        let own = "spiffe://cluster.local/ns/dapr-system/dapr-placement";
        let workload = |id: &str| Some(Caller::Workload(id.parse().unwrap()));
        assert_eq!(refused(Some(own), workload(own), METHOD), None);
        for other in [
            "spiffe://cluster.local/ns/dapr-system/dapr-scheduler",
            "spiffe://cluster.local/ns/other/dapr-placement",
            "spiffe://public/ns/dapr-system/dapr-placement",
            "spiffe://cluster.local/ns/ns/app",
        ] {
            let code = refused(Some(own), workload(other), METHOD);
            assert_eq!(code, Some(Code::PermissionDenied), "{other}");
        }
        for caller in [Some(Caller::Anyone), None] {
            assert_eq!(refused(Some(own), caller, METHOD), Some(Code::PermissionDenied));
        }
        assert_eq!(refused(None, Some(Caller::Anyone), METHOD), None);
        assert_eq!(refused(None, None, METHOD), Some(Code::PermissionDenied));
        let sidecars = "/v1.Placement/ReportDaprStatus";
        assert_eq!(
            refused(Some(own), workload(own), sidecars),
            Some(Code::Unimplemented)
        );
    }
}
