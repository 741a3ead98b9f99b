//! TLS to the app: encrypted but not verified, as the contract defines `https` and `grpcs` for apps.

use std::net::IpAddr;
use std::sync::Arc;

use outrigger_tls::{AnyCertificate, Verifier};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;

/// A configuration that accepts any certificate.
pub fn unverified_config(alpn: &[&[u8]]) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = Arc::new(Verifier::new(AnyCertificate, &provider));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider supports TLS 1.2 and 1.3")
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
    Arc::new(config)
}

/// The server name (SNI) for `host`.
pub(super) fn server_name(host: &str) -> ServerName<'static> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(ip) => ServerName::IpAddress(ip.into()),
        Err(_) => ServerName::try_from(bare.to_owned())
            .unwrap_or_else(|_| ServerName::IpAddress(IpAddr::from([127, 0, 0, 1]).into())),
    }
}
