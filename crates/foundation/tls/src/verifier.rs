//! Certificate verification with rules that differ from those of rustls.

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

/// The certificates of a peer in a handshake.
#[derive(Debug)]
pub struct Presented<'a> {
    /// Its own certificate.
    pub leaf: &'a CertificateDer<'a>,
    /// The intermediate certificates sent by the peer.
    pub intermediates: &'a [CertificateDer<'a>],
    /// The dialed name of a server; `None` for a client.
    pub server_name: Option<&'a ServerName<'a>>,
    /// The time of the handshake.
    pub now: UnixTime,
}

/// Verifies the certificates of a peer.
pub trait Check: fmt::Debug + Send + Sync {
    /// Accepts the peer, or returns the error of the handshake.
    ///
    /// # Errors
    /// Why the peer is rejected.
    fn check(&self, presented: &Presented<'_>) -> Result<(), Error>;
}

/// A verifier for rustls: a [`Check`] verifies the certificates, and the peer must prove possession of the
/// key.
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

/// Methods shared by server and client verifiers.
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
        // Without hints a client always presents its one identity, also during a rotation of roots.
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

/// Accepts every certificate, if a user asks for it: protects against eavesdropping, not against impostors.
#[derive(Debug)]
pub struct AnyCertificate;

impl Check for AnyCertificate {
    fn check(&self, _: &Presented<'_>) -> Result<(), Error> {
        Ok(())
    }
}

/// The name that a certificate must match, instead of the dialed one.
#[derive(Debug)]
pub enum NameCheck {
    /// Any name.
    Skip,
    /// This name.
    Expect(ServerName<'static>),
}

/// rustls's verification with another rule for the server name.
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
            // rustls verifies the name last, so everything else is valid.
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
