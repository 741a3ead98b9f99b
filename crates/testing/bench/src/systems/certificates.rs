//! Certificates for chains of proxies: an authority, a server, a client.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType,
};

use crate::Failure;

/// Names in certificates, as DNS names and in their [`uri`].
pub(super) const CALLEE: &str = "callee.bench";
pub(super) const CALLER: &str = "caller.bench";

/// The SPIFFE ID for a name, in the form of sidecars', for access rules.
pub(super) fn uri(name: &str) -> String {
    format!("spiffe://bench/ns/default/{name}")
}

/// PEM files, and the authority that issues them.
pub(super) struct Certificates {
    dir: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    /// Issues the certificates of the two hops to a directory. Keys are P-256, like those of sidecars.
    pub(super) fn issue(dir: &Path) -> Result<Self, Failure> {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority
            .distinguished_name
            .push(DnType::CommonName, "outrigger-bench");
        let certificates = Self {
            dir: dir.to_owned(),
            authority: CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?,
        };
        std::fs::write(certificates.authority(), certificates.authority.pem())?;
        certificates.add(CALLEE, ExtendedKeyUsagePurpose::ServerAuth)?;
        certificates.add(CALLER, ExtendedKeyUsagePurpose::ClientAuth)?;
        Ok(certificates)
    }

    /// Issues one more.
    pub(super) fn add(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> Result<(), Failure> {
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names.push(SanType::URI(uri(name).try_into()?));
        params.extended_key_usages.push(usage);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.authority)?;
        std::fs::write(self.certificate(name), certificate.pem())?;
        std::fs::write(self.key(name), key.serialize_pem())?;
        Ok(())
    }

    pub(super) fn authority(&self) -> PathBuf {
        self.dir.join("authority.crt")
    }

    pub(super) fn certificate(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.crt"))
    }

    pub(super) fn key(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.key"))
    }
}
