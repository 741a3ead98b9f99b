//! The gRPC service: issues a certificate, and optionally a token, for a signing request.

use std::sync::Arc;

use arc_swap::ArcSwap;
use outrigger_identity::{SpiffeId, pem};
use outrigger_wire::sentry::v1::{SignCertificateRequest, SignCertificateResponse, ca_server::Ca};
use time::OffsetDateTime;
use tonic::{Request, Response, Status};

use crate::{
    authority::Authority,
    csr,
    jwt::{JwtAuthority, JwtRequest, Tokens},
    metrics::Metrics,
    server::lifetime::Lifetime,
    validator::{Refusal, Validators},
    x509,
};

const LOG: &str = "dapr.sentry.server";

/// Number of scheduler replicas that get a DNS name.
const SCHEDULER_REPLICAS: usize = 3;

/// Maximum number of audiences of a request: each costs a signature.
const MAX_AUDIENCES: usize = 64;

/// Implements `dapr.proto.sentry.v1.CA`.
#[derive(Debug)]
pub(crate) struct CaService {
    pub authority: Arc<ArcSwap<Authority>>,
    pub validators: Arc<Validators>,
    pub metrics: Arc<Metrics>,
    /// Sentry's own identity.
    pub sentry: SpiffeId,
    /// DNS domain of the cluster; the trust domain if empty.
    pub domain: String,
    /// Lifetime of certificates.
    pub ttl: time::Duration,
    /// How far certificates are backdated.
    pub skew: time::Duration,
}

#[tonic::async_trait]
impl Ca for CaService {
    async fn sign_certificate(
        &self,
        request: Request<SignCertificateRequest>,
    ) -> Result<Response<SignCertificateResponse>, Status> {
        self.metrics.request_received();
        let lifetime = request.extensions().get::<Arc<Lifetime>>().cloned();
        let request = request.into_inner();
        let is_own_user = match &lifetime {
            Some(lifetime) if self.validators.asks_for_control_plane(&request) => {
                lifetime.is_own_user().await
            }
            _ => false,
        };
        let checked = self.validators.check(&request, is_own_user).await;
        let signed = checked.map_err(refused).and_then(|id| self.sign(&request, &id));
        match signed {
            Ok(response) => {
                self.metrics.request_succeeded();
                if let Some(lifetime) = lifetime {
                    lifetime.authenticated();
                }
                Ok(Response::new(response))
            }
            Err(status) => {
                self.metrics.request_failed();
                let (namespace, id) = (&request.namespace, &request.id);
                tracing::debug!(
                    target: LOG,
                    "refused to sign a certificate for {namespace}/{id}: {}", status.message()
                );
                Err(status)
            }
        }
    }
}

impl CaService {
    fn sign(
        &self,
        request: &SignCertificateRequest,
        id: &SpiffeId,
    ) -> Result<SignCertificateResponse, Status> {
        let public_key = csr::public_key(&request.certificate_signing_request)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;

        // A single snapshot for certificate and token, even if the authority is replaced.
        let authority = self.authority.load();
        let issued = authority
            .x509
            .sign(&x509::Request {
                public_key: &public_key,
                id,
                dns: &dns_names(&self.sentry, &self.domain, id),
                ttl: self.ttl,
                skew: self.skew,
            })
            .map_err(|error| {
                tracing::error!(target: LOG, "Error signing identity: {error}");
                Status::internal("failed to sign certificate")
            })?;
        let tokens = match &authority.jwt {
            None => None,
            Some(jwt) => Some(tokens(jwt, id, &request.jwt_audiences)?),
        };
        let (jwt, per_audience_jwts) = tokens.map(|tokens| (tokens.all, tokens.each)).unzip();
        tracing::debug!(target: LOG, "signed a certificate for {id}");
        Ok(SignCertificateResponse {
            workload_certificate: pem::encode_certificates(&issued.chain).into(),
            trust_chain_certificates: vec![authority.x509.trust_anchors().to_owned().into()],
            valid_until: Some(timestamp(issued.not_after)),
            jwt,
            per_audience_jwts: per_audience_jwts.unwrap_or_default(),
        })
    }
}

fn tokens(jwt: &JwtAuthority, id: &SpiffeId, audiences: &[String]) -> Result<Tokens, Status> {
    if audiences.len() > MAX_AUDIENCES {
        return Err(Status::invalid_argument(format!(
            "the request has {} JWT audiences; request at most {MAX_AUDIENCES}, see --sentry-request-jwt-audiences",
            audiences.len()
        )));
    }
    jwt.issue(&JwtRequest { id, audiences })
        .map_err(|error| Status::internal(format!("failed to generate JWT: {error}")))
}

fn refused(refusal: Refusal) -> Status {
    match refusal {
        Refusal::NoValidator | Refusal::NotEnabled => Status::invalid_argument(refusal.to_string()),
        Refusal::Denied(reason) => Status::permission_denied(reason),
    }
}

fn timestamp(at: OffsetDateTime) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: at.unix_timestamp(),
        nanos: 0,
    }
}

/// DNS names of control plane services, which are reached by name. `domain` is that of the cluster.
fn dns_names(sentry: &SpiffeId, domain: &str, id: &SpiffeId) -> Vec<String> {
    let namespace = id.namespace();
    if namespace != sentry.namespace() {
        return Vec::new();
    }
    match id.app_id() {
        "dapr-injector" => vec![format!("dapr-sidecar-injector.{namespace}.svc")],
        "dapr-operator" => vec![format!("dapr-webhook.{namespace}.svc")],
        // Dapr's schedulers refuse to start without the resolver's form of the names, with a trailing dot.
        "dapr-scheduler" => ["", "."]
            .iter()
            .flat_map(|end| {
                (0..SCHEDULER_REPLICAS).map(move |n| {
                    format!("dapr-scheduler-server-{n}.dapr-scheduler-server.{namespace}.svc.{domain}{end}")
                })
            })
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dns_names_are_for_control_plane() {
        let sentry: SpiffeId = "spiffe://td.example/ns/dapr/dapr-sentry".parse().unwrap();
        let names = |id: &str| dns_names(&sentry, "cluster.example", &id.parse().unwrap());
        assert_eq!(
            names("spiffe://public/ns/dapr/dapr-injector"),
            ["dapr-sidecar-injector.dapr.svc"]
        );
        assert_eq!(
            names("spiffe://public/ns/dapr/dapr-operator"),
            ["dapr-webhook.dapr.svc"]
        );
        let scheduler = names("spiffe://public/ns/dapr/dapr-scheduler");
        assert_eq!(scheduler.len(), 6);
        let name = "dapr-scheduler-server-2.dapr-scheduler-server.dapr.svc.cluster.example";
        assert_eq!(scheduler[2], name);
        assert_eq!(scheduler[5], format!("{name}."));
        assert!(names("spiffe://public/ns/dapr/myapp").is_empty());
        assert!(names("spiffe://public/ns/other/dapr-injector").is_empty());
    }
}
