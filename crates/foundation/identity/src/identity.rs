//! The current identity and the TLS configurations derived from it.

use std::sync::Arc;

use rustls::client::{ResolvesClientCert, Resumption};
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ConfigBuilder, ServerConfig, SignatureScheme};
use tokio::sync::watch;

use crate::bundle::TrustAnchors;
use crate::id::SpiffeId;
use crate::provider;
use crate::svid::Svid;
use crate::verify::{self, Expect, PeerVerifier};

/// All connections between workloads use HTTP/2.
const ALPN: &[u8] = b"h2";

/// The identity of this process. Cheap to clone. All clones and derived TLS configurations follow
/// certificate renewals and anchor rotations, so they need not be obtained again.
#[derive(Debug, Clone)]
pub struct Identity {
    shared: Arc<IdentityInner>,
}

#[derive(Debug)]
struct IdentityInner {
    current: watch::Sender<Arc<Svid>>,
    anchors: TrustAnchors,
    mutual: Arc<ServerConfig>,
    open: Arc<ServerConfig>,
}

impl Identity {
    /// An identity with initial document `svid` and trust anchors `anchors`.
    pub fn new(svid: Svid, anchors: TrustAnchors) -> Self {
        let current = watch::Sender::new(Arc::new(svid));
        let mutual = server_config(
            Some(verify::verifier(anchors.clone(), Expect::Any)),
            current.subscribe(),
        );
        let open = server_config(None, current.subscribe());
        Self {
            shared: Arc::new(IdentityInner {
                current,
                anchors,
                mutual,
                open,
            }),
        }
    }

    /// The current document.
    pub fn svid(&self) -> Arc<Svid> {
        Arc::clone(&self.shared.current.borrow())
    }

    /// The SPIFFE ID of this process.
    pub fn id(&self) -> SpiffeId {
        self.shared.current.borrow().id().clone()
    }

    /// The current trust anchors.
    pub fn anchors(&self) -> &TrustAnchors {
        &self.shared.anchors
    }

    /// Replaces the document for all later handshakes.
    pub fn replace(&self, svid: Svid) {
        self.shared.current.send_replace(Arc::new(svid));
    }

    /// Watches renewals. Connection pools use it to replace connections of the old document gradually.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Svid>> {
        self.shared.current.subscribe()
    }

    /// For servers: requires a client certificate of any workload that the trust anchors vouch for.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.shared.mutual)
    }

    /// For servers: like [`Identity::server_config`], but accepts only `expect`.
    pub fn server_config_for(&self, expect: Expect) -> Arc<ServerConfig> {
        server_config(
            Some(verify::verifier(self.shared.anchors.clone(), expect)),
            self.subscribe(),
        )
    }

    /// For servers whose clients have no certificate: requests none.
    pub fn server_config_no_client_auth(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.shared.open)
    }

    /// For clients: presents this identity and accepts only `expect` as server.
    ///
    /// Obtain it once per target, not per connection.
    pub fn client_config(&self, expect: Expect) -> Arc<ClientConfig> {
        let builder = verifying_client(self.shared.anchors.clone(), expect);
        finish_client(builder.with_client_cert_resolver(Arc::new(Current(self.subscribe()))))
    }
}

/// For clients without an identity: presents no certificate and accepts only `expect` as server.
pub fn anonymous_client_config(anchors: TrustAnchors, expect: Expect) -> Arc<ClientConfig> {
    finish_client(verifying_client(anchors, expect).with_no_client_auth())
}

/// The SNI name for `host` (a DNS name or an IP address, brackets allowed). It does not affect trust: an
/// invalid host maps to an address, which sends no SNI.
pub fn server_name(host: &str) -> ServerName<'static> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned())
        .unwrap_or_else(|_| ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into()))
}

fn verifying_client(
    anchors: TrustAnchors,
    expect: Expect,
) -> ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
    ClientConfig::builder_with_provider(Arc::clone(provider::crypto()))
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for TLS 1.2 and TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(verify::verifier(anchors, expect))
}

fn finish_client(mut config: ClientConfig) -> Arc<ClientConfig> {
    config.alpn_protocols = vec![ALPN.to_vec()];
    // A resumed session would skip verification of a short-lived identity.
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

fn server_config(
    verifier: Option<Arc<PeerVerifier>>,
    current: watch::Receiver<Arc<Svid>>,
) -> Arc<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider::crypto()))
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for TLS 1.2 and TLS 1.3");
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(Current(current)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

/// Presents the document that is current at the time of the handshake.
#[derive(Debug)]
struct Current(watch::Receiver<Arc<Svid>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.borrow().certified())
    }
}

impl ResolvesClientCert for Current {
    fn resolve(&self, _root_hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.borrow().certified())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
