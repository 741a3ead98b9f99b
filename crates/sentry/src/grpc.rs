//! The gRPC server of the CA, over TLS with sentry's own certificate.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::{body::Incoming, service::service_fn};
use outrigger_wire::sentry::v1::ca_server::CaServer;
use rustls::ServerConfig;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body};
use tower::ServiceExt;

use crate::{
    own_certificate::CurrentCertificate,
    server::{Server, connection},
    service::CaService,
};

/// Largest request, in bytes: a CSR and a token are a few KiB.
const MAX_MESSAGE: usize = 256 << 10;
/// Time limit of a call, from its header to its answer.
const CALL: Duration = Duration::from_secs(30);

/// Serves the CA until told to stop.
pub(crate) async fn serve(
    server: Server,
    certificate: Arc<CurrentCertificate>,
    service: CaService,
    drain: CancellationToken,
) -> Result<(), rustls::Error> {
    let tls = tls_config(certificate)?;
    let service = CaServer::new(service).max_decoding_message_size(MAX_MESSAGE);
    let handle = |stream, drain: CancellationToken| {
        let (tls, service) = (tls.clone(), service.clone());
        async move {
            let Some(stream) = connection::handshake(stream, tls, &drain).await else {
                return;
            };
            let seen = Arc::new(Notify::new());
            let first = seen.clone();
            let calls = service_fn(move |request| {
                seen.notify_one();
                call(service.clone(), request)
            });
            connection::http2(stream, calls, async move { first.notified().await }, drain).await;
        }
    };
    server.serve(drain, handle).await;
    Ok(())
}

async fn call(
    service: CaServer<CaService>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    match tokio::time::timeout(CALL, service.oneshot(request)).await {
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
