//! Certificates for a server on 127.0.0.1 and its clients.

use std::{fs, path::PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

/// A CA, a server's certificate and a client's.
pub struct Certificates {
    folder: TempDir,
    /// PEM, like all texts here.
    pub root: String,
    /// The client's certificate.
    pub client: String,
    /// Private key of the client certificate, PEM.
    pub client_key: String,
}

impl Certificates {
    /// New certificates for each test.
    #[expect(
        clippy::new_without_default,
        reason = "each call creates different certificates"
    )]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A leaf with the name of its issuer would count as self-signed.
        params
            .distinguished_name
            .push(DnType::CommonName, "authority of a test");
        let root = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let leaf = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &root).unwrap();
            (certificate.pem(), key.serialize_pem())
        };
        let (server, server_key) = leaf("127.0.0.1");
        let (client, client_key) = leaf("client.example");
        let this = Self {
            folder: tempfile::tempdir().unwrap(),
            root: root.pem(),
            client,
            client_key,
        };
        for (name, text) in [
            ("root.pem", &this.root),
            ("server.pem", &server),
            ("server.key", &server_key),
            ("client.pem", &this.client),
            ("client.key", &this.client_key),
        ] {
            fs::write(this.path(name), text).unwrap();
        }
        this
    }

    /// `root.pem`, `server.pem`, `server.key`, `client.pem` or `client.key`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The same file as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}
