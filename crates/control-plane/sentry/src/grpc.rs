//! The gRPC server of the CA, over TLS with sentry's own certificate.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::{body::Incoming, service::service_fn};
use outrigger_accept::budget::TOO_MANY_CALLS;
use outrigger_accept::{Accepted, Admission, Limits, Server, descriptors, keep_alive};
use outrigger_wire::sentry::v1::ca_server::CaServer;
use rustls::ServerConfig;
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body};
use tower::ServiceExt;

use crate::{
    own_certificate::CurrentCertificate,
    server::{connection, lifetime::Lifetime},
    service::CaService,
};

/// Maximum size of a request in bytes. A CSR and a token have a few KiB.
const MAX_MESSAGE: usize = 256 << 10;
/// Timeout of a call, from its headers to its response.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Divisor of the process's file descriptors: connections may use one part of this many.
const DESCRIPTORS_PART: usize = 2;

/// Serves the CA until stopped.
pub(crate) async fn serve(
    server: Server,
    certificate: Arc<CurrentCertificate>,
    service: CaService,
    limits: Limits,
    drain: CancellationToken,
) -> Result<(), rustls::Error> {
    let tls = tls_config(certificate)?;
    let service = CaServer::new(service).max_decoding_message_size(MAX_MESSAGE);
    let handle = |accepted: Accepted| {
        let (tls, service) = (tls.clone(), service.clone());
        let local = accepted.stream.local_addr().ok();
        let lifetime = Arc::new(Lifetime::new(accepted.permit, accepted.peer, local));
        async move {
            let Some(stream) = outrigger_accept::handshake(accepted.stream, tls, &accepted.drain).await
            else {
                return;
            };
            let of_calls = Arc::clone(&lifetime);
            let calls = service_fn(move |request| call(service.clone(), request, Arc::clone(&of_calls)));
            connection::http2(stream, calls, lifetime, accepted.drain).await;
        }
    };
    keep_alive(&server.listener);
    outrigger_accept::serve(
        server.listener,
        Admission::new(limits.within(descriptors() / DESCRIPTORS_PART)),
        drain,
        handle,
    )
    .await;
    Ok(())
}

async fn call(
    service: CaServer<CaService>,
    mut request: Request<Incoming>,
    lifetime: Arc<Lifetime>,
) -> Result<Response<Body>, Infallible> {
    let Some(_in_flight) = lifetime.call() else {
        return Ok(Status::resource_exhausted(TOO_MANY_CALLS).into_http());
    };
    request.extensions_mut().insert(lifetime);
    match tokio::time::timeout(CALL_TIMEOUT, service.oneshot(request)).await {
        Ok(answered) => answered,
        Err(_) => Ok(Status::deadline_exceeded("the request did not arrive in time").into_http()),
    }
}

fn tls_config(certificate: Arc<CurrentCertificate>) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}
