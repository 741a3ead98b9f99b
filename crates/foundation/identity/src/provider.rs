//! The crypto provider of every TLS configuration; the process-wide default is not used.

use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider, kx_group};

/// Whether this build is for FIPS 140-3.
const FIPS: bool = cfg!(feature = "fips");

/// The FIPS module of aws-lc is not in FIPS mode.
#[derive(Debug, thiserror::Error)]
#[error("this build is for FIPS 140-3, but aws-lc's FIPS module is not in FIPS mode on this machine")]
pub struct NotFips(());

/// Whether this build is for FIPS 140-3, so that TLS uses only the FIPS module of aws-lc.
///
/// # Errors
/// It is, and the module is not in FIPS mode.
pub fn fips() -> Result<bool, NotFips> {
    if FIPS && !crypto().fips() {
        return Err(NotFips(()));
    }
    Ok(FIPS)
}

/// aws-lc-rs with AES-128-GCM preferred: it matches the strength of Ed25519 and P-256 certificates at the
/// lowest cost.
pub(crate) fn crypto() -> &'static Arc<CryptoProvider> {
    // Constant data: every caller would build the same value.
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| {
        let mut provider = CryptoProvider {
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
        };
        if FIPS {
            provider.cipher_suites.retain(|suite| suite.fips());
            provider.kx_groups.retain(|group| group.fips());
        }
        Arc::new(provider)
    })
}

#[cfg(all(test, feature = "fips"))]
mod tests {
    use super::{crypto, fips};

    #[test]
    fn only_the_fips_module_serves_tls() {
        assert!(fips().expect("FIPS mode"));
        let provider = crypto();
        assert!(!provider.cipher_suites.is_empty() && !provider.kx_groups.is_empty());
        assert!(rustls::crypto::aws_lc_rs::default_provider().fips());
    }
}
