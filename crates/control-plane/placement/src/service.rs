//! The gRPC service `dapr.proto.placement.v1.Placement`: one bidirectional stream per sidecar.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready as poll_ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body::Frame;
use outrigger_accept::Permit;
use outrigger_controlplane::grpc::Caller;
use outrigger_wire::placement::v1::Host;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming, body::Body};
use tonic_prost::ProstDecoder;

use crate::namespaces::{MAX_ORDERS, Membership, Order};
use crate::report;
use crate::term::{Term, Terms};

const METHOD: &str = "/dapr.proto.placement.v1.Placement/ReportDaprStatus";
/// Maximum report, bytes.
const MAX_REPORT: usize = 1 << 20;
/// Time limit for the first report of a stream.
const INITIAL: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(crate) struct Service {
    /// Id of this replica.
    pub(crate) id: Arc<str>,
    /// Set while this replica leads.
    pub(crate) terms: Terms,
    /// Cancelled when the process ends.
    pub(crate) drain: CancellationToken,
}

impl tower::Service<Request<Body>> for Service {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        ready(Ok(self.answer(request).unwrap_or_else(Status::into_http)))
    }
}

impl Service {
    fn answer(&self, request: Request<Body>) -> Result<Response<Body>, Status> {
        if request.uri().path() != METHOD {
            return Err(Status::unimplemented(format!(
                "the placement service has no method {}",
                request.uri().path()
            )));
        }
        if self.drain.is_cancelled() {
            return Err(shutting_down());
        }
        let (head, body) = request.into_parts();
        let (Some(caller), Some(permit)) = (
            head.extensions.get::<Caller>().cloned(),
            head.extensions.get::<Arc<Permit>>().cloned(),
        ) else {
            return Err(Status::unauthenticated(
                "no client identity: call with a certificate issued by sentry",
            ));
        };
        let Some(term) = self.terms.borrow().clone() else {
            return Err(self.not_leader());
        };
        let reports = Streaming::new_request(ProstDecoder::default(), body, None, Some(MAX_REPORT));
        let (orders, answers) = mpsc::channel(MAX_ORDERS);
        let tasks = term.namespaces.tasks.clone();
        tasks.spawn(self.clone().serve(term, caller, permit, reports, orders));
        let mut response = Response::new(Body::new(Orders {
            answers,
            ended: false,
        }));
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(header::CONTENT_TYPE, grpc);
        Ok(response)
    }

    /// The status that closes streams at the end of a term. A replica that stops also gives up leadership.
    fn term_ended(&self) -> Status {
        match self.drain.is_cancelled() {
            true => shutting_down(),
            false => self.not_leader(),
        }
    }

    fn not_leader(&self) -> Status {
        Status::failed_precondition(format!(
            "node id={} is not a leader. Only the leader can serve requests",
            self.id
        ))
    }

    /// Serves a stream until either side closes it or this replica stops leading.
    async fn serve(
        self,
        term: Arc<Term>,
        caller: Caller,
        permit: Arc<Permit>,
        mut reports: Streaming<Host>,
        orders: mpsc::Sender<Order>,
    ) {
        let first = async {
            let first = tokio::time::timeout(INITIAL, reports.message()).await;
            let first =
                first.map_err(|_| Status::deadline_exceeded("the first report did not arrive in time"))??;
            let host = first.ok_or_else(|| Status::ok(""))?;
            report::first(&caller, host)
        };
        let first = tokio::select! {
            first = first => first,
            () = self.drain.cancelled() => Err(shutting_down()),
            () = term.ended.cancelled() => Err(self.term_ended()),
            () = orders.closed() => return,
        };
        let joined = first.and_then(|host| term.namespaces.join(host, orders.clone()));
        let membership = match joined {
            Ok(membership) => membership,
            Err(status) => {
                // The channel is empty, so this cannot fail.
                let _ = orders.try_send(Err(status));
                return;
            }
        };
        let ended = tokio::select! {
            status = listen(&membership, &caller, &permit, &mut reports) => status,
            () = self.drain.cancelled() => shutting_down(),
            () = term.ended.cancelled() => self.term_ended(),
            () = membership.ended() => return,
            () = orders.closed() => return,
        };
        membership.close(ended);
    }
}

fn shutting_down() -> Status {
    Status::unavailable("placement server is shutting down")
}

/// Handles the messages of a stream; returns the status that closes it.
async fn listen(
    membership: &Membership,
    caller: &Caller,
    permit: &Permit,
    reports: &mut Streaming<Host>,
) -> Status {
    loop {
        let host = match reports.message().await {
            Ok(Some(host)) => host,
            Ok(None) => return Status::ok(""),
            Err(status) => return status,
        };
        // A reporting sidecar keeps its connection slot ahead of idle connections.
        permit.prove();
        let taken = report::message(caller, host).and_then(|message| membership.message(message));
        if let Err(status) = taken {
            return status;
        }
    }
}

/// A response body: shared encoded orders, then the status.
#[derive(Debug)]
struct Orders {
    answers: mpsc::Receiver<Order>,
    ended: bool,
}

impl http_body::Body for Orders {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let status = match poll_ready!(self.answers.poll_recv(context)) {
            Some(Ok(order)) => return Poll::Ready(Some(Ok(Frame::data(order)))),
            Some(Err(status)) => status,
            None => Status::unavailable("the stream was closed; its orders were not read in time"),
        };
        self.ended = true;
        let mut trailers = HeaderMap::new();
        // Invalid header text is omitted.
        if status.add_header(&mut trailers).is_err() {
            trailers.insert("grpc-status", HeaderValue::from(status.code() as i32));
        }
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}
