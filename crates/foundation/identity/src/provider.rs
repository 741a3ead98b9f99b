//! The crypto provider of every TLS configuration; the process-wide default is not used.

use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider, kx_group};

/// aws-lc-rs with AES-128-GCM preferred: it matches the strength of Ed25519 and P-256 certificates at the
/// lowest cost.
pub(crate) fn crypto() -> &'static Arc<CryptoProvider> {
    // Constant data: every caller would build the same value.
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| {
        Arc::new(CryptoProvider {
            cipher_suites: vec![
                cipher_suite::TLS13_AES_128_GCM_SHA256,
                cipher_suite::TLS13_AES_256_GCM_SHA384,
                cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
                cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
                cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
                cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
                cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
                cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
                cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
            ],
            // Explicit, because the default order depends on features that other crates may enable.
            kx_groups: vec![
                kx_group::X25519,
                kx_group::SECP256R1,
                kx_group::SECP384R1,
                kx_group::X25519MLKEM768,
            ],
            ..default_provider()
        })
    })
}
