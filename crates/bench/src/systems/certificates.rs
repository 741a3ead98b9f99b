//! Certificates for the chain of nginx processes: an authority, a server, a client.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};

use crate::Failure;

/// The name the callee's certificate carries.
pub(super) const CALLEE: &str = "callee.bench";
const CALLER: &str = "caller.bench";

/// Files in PEM.
pub(super) struct Certificates {
    dir: PathBuf,
}

impl Certificates {
    /// Issues them into a folder. Keys are P-256, as those of sidecars.
    pub(super) fn issue(dir: &Path) -> Result<Self, Failure> {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority
            .distinguished_name
            .push(DnType::CommonName, "outrigger-bench");
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let certificates = Self { dir: dir.to_owned() };
        std::fs::write(certificates.authority(), authority.pem())?;
        for (name, usage) in [
            (CALLEE, ExtendedKeyUsagePurpose::ServerAuth),
            (CALLER, ExtendedKeyUsagePurpose::ClientAuth),
        ] {
            let mut params = CertificateParams::new(vec![name.to_owned()])?;
            params.distinguished_name.push(DnType::CommonName, name);
            params.extended_key_usages.push(usage);
            let key = KeyPair::generate()?;
            let certificate = params.signed_by(&key, &authority)?;
            std::fs::write(dir.join(format!("{name}.crt")), certificate.pem())?;
            std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem())?;
        }
        Ok(certificates)
    }

    pub(super) fn authority(&self) -> PathBuf {
        self.dir.join("authority.crt")
    }

    pub(super) fn callee(&self) -> (PathBuf, PathBuf) {
        self.pair(CALLEE)
    }

    pub(super) fn caller(&self) -> (PathBuf, PathBuf) {
        self.pair(CALLER)
    }

    fn pair(&self, name: &str) -> (PathBuf, PathBuf) {
        (
            self.dir.join(format!("{name}.crt")),
            self.dir.join(format!("{name}.key")),
        )
    }
}
