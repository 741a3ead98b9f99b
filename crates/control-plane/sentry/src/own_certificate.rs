//! The certificate of sentry's gRPC server: self-issued, held in memory, renewed at half of its lifetime.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use outrigger_identity::SpiffeId;
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::PrivateKeyDer;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use crate::{
    authority::Authority,
    error::OwnCertificateError,
    metrics::Metrics,
    x509::{self, Issued},
};

/// Maximum interval of clock checks, because the clock may jump.
const CHECK: Duration = Duration::from_secs(60);
/// Pause before a failed renewal is retried.
const RETRY: Duration = Duration::from_secs(10);

/// Issues and holds the certificate.
#[derive(Debug)]
pub(crate) struct OwnCertificate {
    id: SpiffeId,
    authority: Arc<ArcSwap<Authority>>,
    ttl: time::Duration,
    skew: time::Duration,
    metrics: Arc<Metrics>,
    current: Arc<CurrentCertificate>,
    /// Renewal time, in seconds since 1970.
    renew_at: AtomicI64,
}

/// The certificate presented by a TLS server. Replacing it does not affect open connections.
#[derive(Debug, Default)]
pub(crate) struct CurrentCertificate(ArcSwapOption<CertifiedKey>);

impl CurrentCertificate {
    pub(crate) fn set(&self, key: CertifiedKey) {
        self.0.store(Some(Arc::new(key)));
    }
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}

impl OwnCertificate {
    /// Issues the first certificate.
    pub(crate) fn issue(
        id: SpiffeId,
        authority: Arc<ArcSwap<Authority>>,
        ttl: time::Duration,
        skew: time::Duration,
        metrics: Arc<Metrics>,
    ) -> Result<Self, OwnCertificateError> {
        let own = Self {
            id,
            authority,
            ttl,
            skew,
            metrics,
            current: Arc::default(),
            renew_at: AtomicI64::new(0),
        };
        own.renew()?;
        Ok(own)
    }

    /// The certificate to present.
    pub(crate) fn current(&self) -> Arc<CurrentCertificate> {
        self.current.clone()
    }

    /// Issues a certificate for a new key.
    pub(crate) fn renew(&self) -> Result<(), OwnCertificateError> {
        let (key, issued) = self
            .sign()
            .inspect_err(|_| self.metrics.own_certificate_failed())?;
        let (start, end) = (
            issued.not_before.unix_timestamp(),
            issued.not_after.unix_timestamp(),
        );
        self.renew_at.store(start + (end - start) / 2, Ordering::Relaxed);
        self.current.set(key);
        Ok(())
    }

    /// Renews the certificate in time, until stopped.
    pub(crate) async fn keep_fresh(&self, drain: CancellationToken) {
        let mut retry = None;
        loop {
            // At least a second: a lifetime shorter than the skew is past its half from the start.
            let wait = retry
                .take()
                .unwrap_or_else(|| self.time_left().clamp(Duration::from_secs(1), CHECK));
            tokio::select! {
                () = drain.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            if self.time_left() > Duration::ZERO {
                continue;
            }
            match self.renew() {
                Ok(()) => tracing::info!(target: "dapr.sentry", "renewed the certificate of the gRPC server"),
                Err(error) => {
                    tracing::error!(
                        target: "dapr.sentry",
                        "cannot renew the certificate of the gRPC server: {error}"
                    );
                    retry = Some(RETRY);
                }
            }
        }
    }

    /// Time until the renewal; zero if it is due.
    fn time_left(&self) -> Duration {
        let left = self.renew_at.load(Ordering::Relaxed) - OffsetDateTime::now_utc().unix_timestamp();
        u64::try_from(left).map_or(Duration::ZERO, Duration::from_secs)
    }

    fn sign(&self) -> Result<(CertifiedKey, Issued), OwnCertificateError> {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
        let public_key = rcgen::PublicKeyData::subject_public_key_info(&key);
        let authority = self.authority.load();
        let issued = authority
            .presented(OffsetDateTime::now_utc())
            .sign(&x509::Request {
                public_key: &public_key,
                id: &self.id,
                dns: &[],
                ttl: self.ttl,
                skew: self.skew,
            })?;
        let signer = rustls::crypto::aws_lc_rs::sign::any_supported_type(&PrivateKeyDer::Pkcs8(key.into()))?;
        Ok((CertifiedKey::new(issued.chain.clone(), signer), issued))
    }
}
