//! The OIDC server: the key set, and the discovery document that refers to it.

mod respond;
mod tls;

use std::{future::ready, sync::Arc};

use arc_swap::ArcSwap;
use http::{Request, header};
use hyper::body::Incoming;
use outrigger_accept::{Accepted, Admission, ENDPOINT_LIMITS, Server, http1, keep_alive};
use outrigger_controlplane::health::Part;
use tokio_util::sync::CancellationToken;

use crate::{authority::Authority, config::OidcConfig};
use respond::{Endpoints, RequestParts};

pub(crate) use tls::OidcTls;

const LOG: &str = "dapr.sentry.oidc";

/// The OIDC server with its port bound.
#[derive(Debug)]
pub(crate) struct Oidc {
    pub server: Server,
    pub authority: Arc<ArcSwap<Authority>>,
    pub endpoints: Arc<Endpoints>,
    /// `None` for plain HTTP.
    pub tls: Option<Arc<OidcTls>>,
    pub ready: Part,
}

impl Oidc {
    pub(crate) fn new(
        server: Server,
        config: &OidcConfig,
        issuer: Option<String>,
        authority: Arc<ArcSwap<Authority>>,
        ready: Part,
    ) -> Self {
        Self {
            server,
            authority,
            endpoints: Arc::new(Endpoints::new(config, issuer)),
            tls: config.tls.clone().map(|files| Arc::new(OidcTls::new(files))),
            ready,
        }
    }

    /// Serves until stopped. With TLS, waits for the certificate files first.
    pub(crate) async fn serve(self, drain: CancellationToken) -> Result<(), String> {
        let tls = match &self.tls {
            None => None,
            Some(tls) => {
                tokio::select! {
                    () = drain.cancelled() => return Ok(()),
                    loaded = tls.wait() => loaded?,
                }
                Some(tls.server_config()?)
            }
        };
        let scheme = if tls.is_some() { "https" } else { "http" };
        tracing::info!(target: LOG, "Starting OIDC HTTP server on {scheme}://{}", self.server.address());
        self.ready.set(true);
        let handle = |accepted: Accepted| {
            let (tls, authority, endpoints) = (tls.clone(), self.authority.clone(), self.endpoints.clone());
            let respond = move |request: Request<Incoming>| {
                ready(endpoints.respond(&RequestParts::new(&request), authority.load().jwt.as_ref()))
            };
            async move {
                let Accepted {
                    stream,
                    permit,
                    drain,
                    ..
                } = accepted;
                match tls {
                    None => http1(stream, respond, permit, drain).await,
                    Some(tls) => {
                        if let Some(stream) = outrigger_accept::handshake(stream, tls, &drain).await {
                            http1(stream, respond, permit, drain).await;
                        }
                    }
                }
            }
        };
        keep_alive(&self.server.listener);
        outrigger_accept::serve(
            self.server.listener,
            Admission::of_endpoint(ENDPOINT_LIMITS),
            drain,
            handle,
        )
        .await;
        self.ready.set(false);
        Ok(())
    }
}

impl<'a> RequestParts<'a> {
    fn new<B>(request: &'a Request<B>) -> Self {
        let text = |name| {
            request
                .headers()
                .get(name)
                .and_then(|value: &http::HeaderValue| value.to_str().ok())
        };
        Self {
            method: request.method(),
            path: request.uri().path(),
            host: request
                .uri()
                .authority()
                .map(http::uri::Authority::as_str)
                .or_else(|| text(header::HOST))
                .unwrap_or_default(),
            forwarded_host: text(header::HeaderName::from_static("x-forwarded-host"))
                .filter(|host| !host.is_empty()),
        }
    }
}
