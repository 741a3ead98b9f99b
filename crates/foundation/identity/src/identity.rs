//! The handle to the current identity, and the TLS configurations that follow it.

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

/// Every connection between workloads speaks HTTP/2.
const ALPN: &[u8] = b"h2";

/// The identity of this process. Cheap to clone; all clones follow the renewal of the certificate and the rotation of
/// the trust anchors, and so does every configuration obtained from them: it need not be obtained again.
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
    /// An identity that starts as `svid` and trusts `anchors`.
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

    /// The document in use.
    pub fn svid(&self) -> Arc<Svid> {
        Arc::clone(&self.shared.current.borrow())
    }

    /// The SPIFFE ID of this process.
    pub fn id(&self) -> SpiffeId {
        self.shared.current.borrow().id().clone()
    }

    /// The trust anchors in use.
    pub fn anchors(&self) -> &TrustAnchors {
        &self.shared.anchors
    }

    /// Uses another document in every handshake from now on.
    pub fn replace(&self, svid: Svid) {
        self.shared.current.send_replace(Arc::new(svid));
    }

    /// Follows renewals. A pool of connections uses it to replace, without hurry, those made with the old document.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Svid>> {
        self.shared.current.subscribe()
    }

    /// For servers: requires a client certificate of any workload the trust anchors vouch for.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.shared.mutual)
    }

    /// For servers: as [`Identity::server_config`], for `expect` alone.
    pub fn server_config_for(&self, expect: Expect) -> Arc<ServerConfig> {
        server_config(
            Some(verify::verifier(self.shared.anchors.clone(), expect)),
            self.subscribe(),
        )
    }

    /// For servers whose clients have no certificate yet, or never: does not ask for one.
    pub fn server_config_no_client_auth(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.shared.open)
    }

    /// For clients: presents this identity and accepts no server but `expect`.
    ///
    /// Obtain it once per target, not per connection.
    pub fn client_config(&self, expect: Expect) -> Arc<ClientConfig> {
        let builder = verifying_client(self.shared.anchors.clone(), expect);
        finish_client(builder.with_client_cert_resolver(Arc::new(Current(self.subscribe()))))
    }
}

/// For clients without an identity: presents no certificate and accepts no server but `expect`.
pub fn anonymous_client_config(anchors: TrustAnchors, expect: Expect) -> Arc<ClientConfig> {
    finish_client(verifying_client(anchors, expect).with_no_client_auth())
}

/// The name to announce when connecting to `host` (a DNS name or an IP address, brackets allowed). It decides nothing
/// about trust: a host that is neither gets an address, for which nothing is announced.
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
    // A resumed session would skip verification of an identity that is meant to be short-lived.
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

/// Presents the document in use at the time of the handshake.
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
