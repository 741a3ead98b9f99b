//! Encodes workload certificates.
//!
//! The certificate library that creates the authority's own certificates is not used here. The issuer's name
//! must be repeated byte for byte, with any attributes and string types of an organisation's CA. The
//! workload's key may be of any type.

use rustls_pki_types::CertificateDer;
use time::OffsetDateTime;

use super::der::{
    BIT_STRING, BOOLEAN, OBJECT_ID, OCTET_STRING, SEQUENCE, bits, explicit, implicit, time, unsigned, value,
};
use super::signer::{Signer, SigningError};

const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 0x23];
const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];

/// digitalSignature: bit 0, seven unused.
const LEAF_KEY_USAGE: &[u8] = &[BIT_STRING, 2, 7, 0b1000_0000];

/// The contents of a workload certificate.
#[derive(Debug)]
pub(crate) struct Leaf<'a> {
    /// The workload's public key, a DER `SubjectPublicKeyInfo`.
    pub public_key: &'a [u8],
    /// The SPIFFE id.
    pub uri: &'a str,
    /// DNS names, for control plane services only.
    pub dns: &'a [String],
    /// Start of validity.
    pub not_before: OffsetDateTime,
    /// End of validity.
    pub not_after: OffsetDateTime,
}

/// The issuer's data in a certificate, other than the signature.
#[derive(Debug)]
pub(super) struct IssuerName {
    /// DER of the subject of the issuer's certificate.
    pub subject: Vec<u8>,
    /// The issuer's subject key identifier, if it has one.
    pub key_id: Option<Vec<u8>>,
}

/// Encodes and signs a certificate with a random serial number.
pub(super) fn issue(
    leaf: &Leaf<'_>,
    issuer: &IssuerName,
    signer: &Signer,
) -> Result<CertificateDer<'static>, SigningError> {
    let version = value(explicit(0), &[&unsigned(&[2])]);
    let serial = unsigned(&super::random_serial()?);
    let validity = value(SEQUENCE, &[&time(leaf.not_before), &time(leaf.not_after)]);
    let subject = value(SEQUENCE, &[]);
    let extensions = value(explicit(3), &[&value(SEQUENCE, &[&extensions(leaf, issuer)])]);
    let body = value(
        SEQUENCE,
        &[
            &version,
            &serial,
            signer.algorithm(),
            &issuer.subject,
            &validity,
            &subject,
            leaf.public_key,
            &extensions,
        ],
    );
    let signature = signer.sign(&body)?;
    Ok(value(SEQUENCE, &[&body, signer.algorithm(), &bits(&signature)]).into())
}

fn extensions(leaf: &Leaf<'_>, issuer: &IssuerName) -> Vec<u8> {
    let purposes = value(
        SEQUENCE,
        &[
            &value(OBJECT_ID, &[SERVER_AUTH]),
            &value(OBJECT_ID, &[CLIENT_AUTH]),
        ],
    );
    let mut out = extension(KEY_USAGE, true, LEAF_KEY_USAGE);
    out.extend(extension(EXTENDED_KEY_USAGE, false, &purposes));
    // An empty sequence says "not a CA".
    out.extend(extension(BASIC_CONSTRAINTS, true, &value(SEQUENCE, &[])));
    if let Some(key_id) = &issuer.key_id {
        let contents = value(SEQUENCE, &[&value(implicit(0), &[key_id])]);
        out.extend(extension(AUTHORITY_KEY_ID, false, &contents));
    }
    let mut names = value(implicit(6), &[leaf.uri.as_bytes()]);
    for dns in leaf.dns {
        names.extend(value(implicit(2), &[dns.as_bytes()]));
    }
    // Critical because the subject is empty (RFC 5280, 4.2.1.6).
    out.extend(extension(SUBJECT_ALT_NAME, true, &value(SEQUENCE, &[&names])));
    out
}

fn extension(id: &[u8], critical: bool, contents: &[u8]) -> Vec<u8> {
    let id = value(OBJECT_ID, &[id]);
    let contents = value(OCTET_STRING, &[contents]);
    if critical {
        value(SEQUENCE, &[&id, &value(BOOLEAN, &[&[0xff]]), &contents])
    } else {
        value(SEQUENCE, &[&id, &contents])
    }
}
