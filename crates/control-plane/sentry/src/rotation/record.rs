//! The stored state of a rotation: a file, or a key of the Secret, in addition to Dapr's.

use outrigger_identity::pem;
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

use super::{Life, Phase, Rotation, RotationMode};
use crate::contents::Contents;
use crate::material::File;
use crate::x509::{self, GenerateError, Pem};

/// The next or the previous CA, which is not in the files.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Chain {
    root: String,
    issuer: String,
    key: String,
}

/// The record. The phase follows from which CAs it has.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// SHA-256 of the signing issuer's certificate, which this sentry generated.
    made: String,
    /// The announced CA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<Chain>,
    /// The previous CA, whose certificates are expiring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous: Option<Chain>,
    /// Start of the phase, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<i64>,
}

impl Chain {
    /// The validity period of the CA.
    pub(super) fn life(&self) -> Option<Life> {
        chain_life(self.root.as_bytes(), self.issuer.as_bytes())
    }
}

impl Record {
    /// The record of a newly generated CA; `issuer` is its certificate, PEM.
    pub(super) fn new(issuer: &[u8]) -> Self {
        Self {
            made: fingerprint(issuer).unwrap_or_default(),
            next: None,
            previous: None,
            since: None,
        }
    }

    /// The record of the CA in `contents`, if that is to be rotated.
    pub(super) fn of(contents: &Contents, rotation: &Rotation) -> Option<Self> {
        let issuer = fingerprint(contents.get(File::Issuer)?)?;
        let stored = contents
            .get(File::Rotation)
            .and_then(|record| serde_json::from_slice::<Self>(record).ok());
        let before = |record: &Self| {
            let previous = record.previous.as_ref()?;
            fingerprint(previous.issuer.as_bytes())
        };
        // A CA installed by an operator is not rotated.
        match stored {
            Some(record) if record.made == issuer || before(&record).as_ref() == Some(&issuer) => {
                Some(record)
            }
            _ if rotation.mode == RotationMode::Adopt && looks_generated(contents, rotation) => {
                Some(Self::new(contents.get(File::Issuer)?))
            }
            _ => None,
        }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        // Serializing strings and numbers cannot fail.
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        text
    }

    pub(super) fn phase(&self) -> Phase {
        let since = self
            .since
            .and_then(|since| OffsetDateTime::from_unix_timestamp(since).ok());
        match (&self.previous, &self.next) {
            (Some(_), _) => Phase::Switched { since },
            (None, Some(_)) => Phase::Announced { since },
            (None, None) => Phase::Normal,
        }
    }

    pub(super) fn previous(&self) -> Option<&Chain> {
        self.previous.as_ref()
    }

    /// Whether the phase is not yet confirmed.
    pub(super) fn is_unconfirmed(&self) -> bool {
        let phase = self.phase();
        phase == Phase::Announced { since: None } || phase == Phase::Switched { since: None }
    }

    /// Whether the previous issuer is back in place of the signing one.
    pub(super) fn has_previous_back(&self, contents: &Contents) -> bool {
        let issuer = contents.get(File::Issuer).and_then(fingerprint);
        let previous = self.previous.as_ref();
        issuer.is_some() && issuer == previous.and_then(|previous| fingerprint(previous.issuer.as_bytes()))
    }

    /// Restores the files that the phase requires, after a crash or if older files were restored.
    pub(super) fn repair(&mut self, contents: &mut Contents) -> Vec<File> {
        let mut changed = Vec::new();
        let wanted = [&self.previous, &self.next];
        let roots: Vec<_> = wanted
            .into_iter()
            .flatten()
            .map(|chain| chain.root.clone())
            .collect();
        if add_roots(contents, &roots) {
            changed.push(File::Root);
        }
        if let (true, Some(next)) = (self.has_previous_back(contents), &self.next) {
            contents.set(File::IssuerKey, next.key.clone().into_bytes());
            contents.set(File::Issuer, next.issuer.clone().into_bytes());
            changed.extend([File::IssuerKey, File::Issuer]);
        }
        if !changed.is_empty() && self.since.take().is_some() {
            changed.insert(0, self.store(contents));
        }
        changed
    }

    /// Generates the next CA.
    pub(super) fn announce(
        &mut self,
        contents: &mut Contents,
        rotation: &Rotation,
        now: OffsetDateTime,
    ) -> Result<Vec<File>, GenerateError> {
        let made = x509::generate(&rotation.sentry, rotation.skew, now)?;
        let text = |pem: Vec<u8>| String::from_utf8_lossy(&pem).into_owned();
        let next = Chain {
            root: text(made.root),
            issuer: text(made.issuer),
            key: text(made.key),
        };
        add_roots(contents, std::slice::from_ref(&next.root));
        self.next = Some(next);
        self.since = None;
        Ok(vec![self.store(contents), File::Root])
    }

    pub(super) fn confirm(&mut self, contents: &mut Contents, now: OffsetDateTime) -> Vec<File> {
        self.since = Some(now.unix_timestamp());
        vec![self.store(contents)]
    }

    pub(super) fn switch(&mut self, contents: &mut Contents) -> Vec<File> {
        let text = |file| String::from_utf8_lossy(contents.get(file).unwrap_or_default()).into_owned();
        let (issuer, key) = (text(File::Issuer), text(File::IssuerKey));
        let root = contents
            .get(File::Root)
            .and_then(|roots| anchor(roots, issuer.as_bytes()));
        let (Some(next), Some(root)) = (&self.next, root) else {
            return Vec::new();
        };
        let root = pem::encode_certificates([&root]);
        contents.set(File::IssuerKey, next.key.clone().into_bytes());
        contents.set(File::Issuer, next.issuer.clone().into_bytes());
        self.made = fingerprint(next.issuer.as_bytes()).unwrap_or_default();
        self.previous = Some(Chain { root, issuer, key });
        self.since = None;
        vec![self.store(contents), File::IssuerKey, File::Issuer]
    }

    pub(super) fn retire(&mut self, contents: &mut Contents) -> Vec<File> {
        let old = self
            .previous
            .take()
            .and_then(|previous| pem::parse_certificates(previous.root.as_bytes()).ok());
        let roots = contents
            .get(File::Root)
            .and_then(|roots| pem::parse_certificates(roots).ok());
        if let (Some(old), Some(mut roots)) = (old, roots) {
            roots.retain(|root| !old.contains(root));
            contents.set(File::Root, pem::encode_certificates(&roots).into_bytes());
        }
        self.next = None;
        self.since = None;
        // The record comes last: without it the old root could not be identified.
        vec![File::Root, self.store(contents)]
    }

    /// Replaces an expired CA by the announced one, if that is still valid, or by a new one. The expired CA
    /// is recorded as the previous one, so that its key is kept in case the clock was wrong.
    pub(super) fn renew(
        &mut self,
        contents: &mut Contents,
        rotation: &Rotation,
        now: OffsetDateTime,
    ) -> Result<Vec<File>, GenerateError> {
        let is_valid = |next: &Chain| next.life().is_some_and(|life| now <= life.until);
        if self.previous.is_some() || !self.next.as_ref().is_some_and(is_valid) {
            let abandoned = self.next.take().filter(|_| self.previous.is_none());
            self.previous = self.previous.take().or(abandoned);
            self.retire(contents);
            self.announce(contents, rotation, now)?;
        }
        let mut changed = self.switch(contents);
        if !changed.is_empty() {
            changed.insert(1, File::Root);
        }
        Ok(changed)
    }

    fn store(&self, contents: &mut Contents) -> File {
        contents.set(File::Rotation, self.write());
        File::Rotation
    }
}

/// The previous CA, while its root is trusted.
pub(crate) fn previous(contents: &Contents) -> Option<Pem> {
    let record: Record = serde_json::from_slice(contents.get(File::Rotation)?).ok()?;
    if Some(record.made) != contents.get(File::Issuer).and_then(fingerprint) {
        return None;
    }
    let chain = record.previous?;
    Some(Pem {
        root: chain.root.into_bytes(),
        issuer: chain.issuer.into_bytes(),
        key: chain.key.into_bytes(),
    })
}

/// Adds missing roots; returns whether any was missing.
fn add_roots(contents: &mut Contents, wanted: &[String]) -> bool {
    let Some(Ok(mut roots)) = contents.get(File::Root).map(pem::parse_certificates) else {
        return false;
    };
    let before = roots.len();
    for root in wanted {
        for root in pem::parse_certificates(root.as_bytes()).unwrap_or_default() {
            if !roots.contains(&root) {
                roots.push(root);
            }
        }
    }
    let added = roots.len() > before;
    if added {
        contents.set(File::Root, pem::encode_certificates(&roots).into_bytes());
    }
    added
}

/// The root among `roots` at which the chain of `issuer` ends; both PEM.
pub(super) fn anchor(roots: &[u8], issuer: &[u8]) -> Option<CertificateDer<'static>> {
    let chain = pem::parse_certificates(issuer).ok()?;
    let top = chain.last()?;
    let roots = pem::parse_certificates(roots).ok()?;
    roots
        .into_iter()
        .find(|root| root == top || pem::is_signed_by(top, root))
}

/// The validity period of an issuer: its start, and the end of its chain.
pub(super) fn chain_life(roots: &[u8], issuer: &[u8]) -> Option<Life> {
    let mut chain = pem::parse_certificates(issuer).ok()?;
    let root = anchor(roots, issuer)?;
    let from = validity(chain.first()?)?.from;
    chain.push(root);
    let ends = chain
        .iter()
        .map(|certificate| validity(certificate).map(|life| life.until));
    let until = ends.collect::<Option<Vec<_>>>()?.into_iter().min()?;
    Some(Life { from, until })
}

fn validity(certificate: &CertificateDer<'_>) -> Option<Life> {
    let (_, parsed) = X509Certificate::from_der(certificate.as_ref()).ok()?;
    Some(Life {
        from: parsed.validity().not_before.to_datetime(),
        until: parsed.validity().not_after.to_datetime(),
    })
}

/// SHA-256 of the first certificate in hexadecimal.
fn fingerprint(pem: &[u8]) -> Option<String> {
    let certificates = pem::parse_certificates(pem).ok()?;
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, certificates.first()?.as_ref());
    Some(digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether a sentry could have generated the CA: one issuer named after this sentry, signed directly by a
/// root named after the trust domain.
fn looks_generated(contents: &Contents, rotation: &Rotation) -> bool {
    let looks = || {
        let chain = pem::parse_certificates(contents.get(File::Issuer)?).ok()?;
        let root = anchor(contents.get(File::Root)?, contents.get(File::Issuer)?)?;
        let (_, issuer) = X509Certificate::from_der(chain.first()?.as_ref()).ok()?;
        let (_, root) = X509Certificate::from_der(root.as_ref()).ok()?;
        let (sentry, domain) = (rotation.sentry.as_str(), rotation.sentry.trust_domain());
        Some(
            chain.len() == 1
                && is_only_organization(issuer.subject(), sentry)
                && is_only_organization(issuer.issuer(), domain)
                && is_only_organization(root.subject(), domain),
        )
    };
    looks().unwrap_or(false)
}

fn is_only_organization(name: &X509Name<'_>, wanted: &str) -> bool {
    let is_wanted = name
        .iter_organization()
        .any(|organization| organization.as_str().is_ok_and(|text| text == wanted));
    name.iter_attributes().count() == 1 && is_wanted
}
