//! The stored rows of a signed instance: signatures, the certificates of its signers, and those of the
//! signers of its results.

use bytes::Bytes;
use outrigger_identity::{SignatureError, Svid};
use outrigger_wire::durabletask::ExternalSigningCertificate;
use outrigger_wire::durabletask::backend::v1::{HistorySignature, SigningCertificate};
use prost::Message as _;

use super::chain::sign;
use super::digest::sha256;
use crate::history::History;
use crate::names::{external_certificate_key, signature_key, signing_certificate_key};

/// Maximum rows of a table.
pub(crate) const MAX_ROWS: usize = 1_000_000;

/// The number of rows of each table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Signatures of the history.
    pub signatures: usize,
    /// Certificate chains of the history's signers.
    pub certificates: usize,
    /// Certificate chains of the signers of results.
    pub external: usize,
}

impl RowCounts {
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            signatures: self.signatures.max(other.signatures),
            certificates: self.certificates.max(other.certificates),
            external: self.external.max(other.external),
        }
    }

    /// The keys of rows from `after` on.
    pub(crate) fn keys_after(self, after: Self) -> impl Iterator<Item = String> + use<> {
        let signatures = (after.signatures..self.signatures).map(signature_key);
        let certificates = (after.certificates..self.certificates).map(signing_certificate_key);
        let external = (after.external..self.external).map(external_certificate_key);
        signatures.chain(certificates).chain(external)
    }

    /// Whether there is a row that signs the history.
    pub(crate) fn is_signed(self) -> bool {
        self.signatures > 0 || self.certificates > 0
    }
}

/// The rows of one table.
#[derive(Clone, Debug, Default)]
struct Rows {
    rows: Vec<Bytes>,
    /// Leading rows that the store has.
    stored: usize,
}

impl Rows {
    fn bytes(&self) -> usize {
        self.rows.iter().map(Bytes::len).sum()
    }

    /// The rows that the store lacks, which it has from now on.
    fn take_unstored(&mut self) -> impl Iterator<Item = (usize, Bytes)> {
        let first = std::mem::replace(&mut self.stored, self.rows.len());
        self.rows.iter().cloned().enumerate().skip(first)
    }
}

/// The rows of an instance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    signatures: Rows,
    certificates: Rows,
    external: Rows,
    /// Number of events that the signatures cover.
    covered: usize,
    /// Why the stored rows cannot be used.
    flaw: Option<String>,
}

impl Tables {
    /// Reads the rows. What is missing or unreadable shows when they are verified.
    pub(crate) fn read(counts: RowCounts, mut value: impl FnMut(&str) -> Option<Bytes>) -> Self {
        let mut flaw = None;
        let mut table = |count: usize, key: fn(usize) -> String, check: fn(&Bytes) -> bool| {
            let mut rows = Vec::new();
            for index in 0..count {
                let key = key(index);
                let row = value(&key);
                let what = match &row {
                    None => "is declared in the metadata but missing from the state store",
                    Some(row) if !check(row) => "cannot be read, or has another digest than its certificate",
                    Some(_) => "",
                };
                if !what.is_empty() && flaw.is_none() {
                    flaw = Some(format!("the row '{key}' {what} (possible tampering)"));
                }
                rows.push(row.unwrap_or_default());
            }
            Rows { stored: count, rows }
        };
        let mut read = Self {
            signatures: table(counts.signatures, signature_key, |row| {
                HistorySignature::decode(row.clone()).is_ok()
            }),
            certificates: table(counts.certificates, signing_certificate_key, |row| {
                SigningCertificate::decode(row.clone()).is_ok()
            }),
            external: table(counts.external, external_certificate_key, |row| {
                let read = ExternalSigningCertificate::decode(row.clone());
                read.is_ok_and(|row| sha256(&row.certificate) == *row.digest)
            }),
            ..Self::default()
        };
        let last = read.signatures.rows.last().cloned();
        let last = last.and_then(|row| HistorySignature::decode(row).ok());
        let covered = last.and_then(|last| last.start_event_index.checked_add(last.event_count));
        read.covered = covered
            .and_then(|covered| usize::try_from(covered).ok())
            .unwrap_or_default();
        read.flaw = flaw;
        read
    }

    pub(crate) fn flaw(&self) -> Option<&str> {
        self.flaw.as_deref()
    }

    pub(crate) fn counts(&self) -> RowCounts {
        RowCounts {
            signatures: self.signatures.rows.len(),
            certificates: self.certificates.rows.len(),
            external: self.external.rows.len(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.signatures.bytes() + self.certificates.bytes() + self.external.bytes()
    }

    pub(crate) fn signatures(&self) -> &[Bytes] {
        &self.signatures.rows
    }

    /// The certificate chains of the history's signers, DER.
    pub(crate) fn chains(&self) -> Vec<Bytes> {
        let chain = |row: &Bytes| {
            SigningCertificate::decode(row.clone())
                .unwrap_or_default()
                .certificate
        };
        self.certificates.rows.iter().map(chain).collect()
    }

    /// The certificate chain of the signer of a result.
    pub(crate) fn external(&self, digest: &[u8]) -> Option<Bytes> {
        let rows = self.external.rows.iter();
        let mut rows = rows.filter_map(|row| ExternalSigningCertificate::decode(row.clone()).ok());
        rows.find(|row| *row.digest == *digest).map(|row| row.certificate)
    }

    /// Adds the certificate chain of the signer of a result, unless it is known.
    pub(crate) fn add_external(&mut self, chain: Bytes) {
        let digest = sha256(&chain);
        if self.external(&digest).is_none() {
            let row = ExternalSigningCertificate {
                digest: Bytes::copy_from_slice(&digest),
                certificate: chain,
            };
            self.external.rows.push(row.encode_to_vec().into());
        }
    }

    /// Signs the events that no signature covers yet.
    pub(crate) fn sign(&mut self, history: &History, svid: &Svid) -> Result<(), SignatureError> {
        let (first, end) = (self.covered, history.len());
        if end <= first {
            return Ok(());
        }
        let chain = Bytes::from(svid.chain_der());
        let chains = self.chains();
        let known = chains.iter().position(|known| *known == chain);
        let events = (first..end).map(|index| history.get(index).unwrap_or_default());
        let previous = self.signatures.rows.last().map(Bytes::as_ref);
        let certificate = known.unwrap_or(chains.len());
        let signature = sign(svid, first, events, previous, certificate, None)?;
        if known.is_none() {
            let row = SigningCertificate { certificate: chain };
            self.certificates.rows.push(row.encode_to_vec().into());
        }
        self.signatures.rows.push(signature.encode_to_vec().into());
        self.covered = end;
        Ok(())
    }

    /// The rows that the store lacks, which it has from now on.
    pub(crate) fn take_unstored(&mut self) -> Vec<(String, Bytes)> {
        let certificates = self.certificates.take_unstored();
        let mut rows: Vec<_> = certificates
            .map(|(index, row)| (signing_certificate_key(index), row))
            .collect();
        let external = self.external.take_unstored();
        rows.extend(external.map(|(index, row)| (external_certificate_key(index), row)));
        let signatures = self.signatures.take_unstored();
        rows.extend(signatures.map(|(index, row)| (signature_key(index), row)));
        rows
    }
}
