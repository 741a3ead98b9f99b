//! Checks of a peer's certificates that differ from those of rustls.

use std::{fmt, sync::Arc};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// What a peer presents in a handshake.
#[derive(Debug)]
pub struct Presented<'a> {
    /// Its own certificate.
    pub leaf: &'a CertificateDer<'a>,
    /// The certificates above it, as far as the peer sent them.
    pub intermediates: &'a [CertificateDer<'a>],
    /// The name by which a server was dialled; `None` for a client.
    pub server_name: Option<&'a ServerName<'a>>,
    /// The time of the handshake.
    pub now: UnixTime,
}

/// Decides whether to accept the certificates of a peer.
pub trait Check: fmt::Debug + Send + Sync {
    /// Accepts the peer, or returns the error of the handshake.
    ///
    /// # Errors
    /// Why the peer is refused.
    fn check(&self, presented: &Presented<'_>) -> Result<(), Error>;
}

/// A verifier for rustls: a [`Check`] accepts the certificates, and the peer must prove that it holds the key.
#[derive(Debug)]
pub struct Verifier<C> {
    check: C,
    algorithms: WebPkiSupportedAlgorithms,
}

impl<C: Check> Verifier<C> {
    /// Verifies signatures with the algorithms of `provider`.
    pub fn new(check: C, provider: &CryptoProvider) -> Self {
        let algorithms = provider.signature_verification_algorithms;
        Self { check, algorithms }
    }
}

/// The methods that the verifiers of servers and of clients share.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, certificate, signature, &self.algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, certificate, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

impl<C: Check> ServerCertVerifier for Verifier<C> {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check.check(&Presented {
            leaf,
            intermediates,
            server_name: Some(server_name),
            now,
        })?;
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}

impl<C: Check> ClientCertVerifier for Verifier<C> {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Without hints a client always presents its one identity, also while roots rotate.
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check.check(&Presented {
            leaf,
            intermediates,
            server_name: None,
            now,
        })?;
        Ok(ClientCertVerified::assertion())
    }

    signatures!();
}

/// Accepts every certificate: protects against listeners, not against impostors. For settings by which a user asks for it.
#[derive(Debug)]
pub struct AnyCertificate;

impl Check for AnyCertificate {
    fn check(&self, _: &Presented<'_>) -> Result<(), Error> {
        Ok(())
    }
}

/// The name that a certificate must be for, instead of the one that was dialled.
#[derive(Debug)]
pub enum NameCheck {
    /// Any.
    Skip,
    /// This one.
    Expect(ServerName<'static>),
}

/// The check of rustls, with another rule for the name of the server.
#[derive(Debug)]
pub struct WithName(pub Arc<WebPkiServerVerifier>, pub NameCheck);

impl Check for WithName {
    fn check(&self, presented: &Presented<'_>) -> Result<(), Error> {
        let Self(usual, check) = self;
        let name = match check {
            NameCheck::Expect(name) => Some(name),
            NameCheck::Skip => presented.server_name,
        };
        let name = name.ok_or(CertificateError::ApplicationVerificationFailure)?;
        let verified =
            usual.verify_server_cert(presented.leaf, presented.intermediates, name, &[], presented.now);
        match (verified, check) {
            // The verifier checks the name last: everything else was right.
            (
                Err(Error::InvalidCertificate(
                    CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
                )),
                NameCheck::Skip,
            ) => Ok(()),
            (verified, _) => verified.map(drop),
        }
    }
}
