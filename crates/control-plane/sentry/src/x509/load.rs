//! Validates CA material before it signs anything.

use outrigger_identity::pem;
use rustls_pki_types::CertificateDer;
use time::OffsetDateTime;
use x509_parser::prelude::{ParsedExtension, X509Certificate};

use super::{IssuerName, Pem, Signer, X509Authority, parse};
use crate::material::{Fault, File};

/// Loads an authority from PEM. Fails if clients could not use its certificates.
pub(crate) fn load(pem: &Pem) -> Result<X509Authority, Fault> {
    load_at(pem, OffsetDateTime::now_utc())
}

/// Like [`load`], at a given time.
pub(crate) fn load_at(pem: &Pem, now: OffsetDateTime) -> Result<X509Authority, Fault> {
    let anchors = load_anchors(&pem.root)?;
    let chain = load_chain(&pem.issuer)?;
    verify_chain(&chain, &anchors, now)?;

    let key = pem::parse_private_key(&pem.key).map_err(|error| {
        File::IssuerKey.fault(
            error,
            "It must contain the PEM private key of the first issuer certificate",
        )
    })?;
    if !pem::key_matches(&key, &chain[0]).map_err(|error| File::IssuerKey.fault(error, ""))? {
        return Err(File::IssuerKey.fault(
            "the key is not the private half of the first issuer certificate",
            "Provide the private key of the issuer certificate",
        ));
    }
    let signer = Signer::new(key).map_err(|error| File::IssuerKey.fault(error, ""))?;
    let issuer = parse(&chain[0]).map_err(|error| File::Issuer.fault(error, ""))?;
    let name = IssuerName {
        subject: issuer.subject().as_raw().to_vec(),
        key_id: subject_key_id(&issuer),
    };
    let not_after = issuer.validity().not_after.to_datetime();
    Ok(X509Authority {
        trust_anchors: pem::encode_certificates(&anchors),
        chain,
        name,
        signer,
        not_after,
    })
}

fn load_anchors(root: &[u8]) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let anchors = pem::parse_certificates(root)
        .map_err(|error| File::Root.fault(error, "It must contain one or more PEM root certificates"))?;
    match anchors.iter().position(|anchor| !pem::is_self_signed(anchor)) {
        None => Ok(anchors),
        Some(index) => Err(File::Root.fault(
            format!("certificate {index} is not self-signed"),
            "Put only root certificates in this file, and intermediate ones in the issuer certificate file",
        )),
    }
}

fn load_chain(issuer: &[u8]) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let mut chain = pem::parse_chain(issuer).map_err(|error| {
        File::Issuer.fault(
            error,
            "It must contain the issuer certificate, then each certificate's signer in turn",
        )
    })?;
    if chain.len() > 1 && chain.last().is_some_and(pem::is_self_signed) {
        chain.pop();
    }
    let first = parse(&chain[0]).map_err(|error| File::Issuer.fault(error, ""))?;
    if !may_sign(&first) {
        return Err(File::Issuer.fault(
            "the first certificate may not sign others: it is not a CA and lacks the keyCertSign usage",
            "Issue it with basic constraints CA:TRUE and key usage keyCertSign",
        ));
    }
    Ok(chain)
}

/// Whether the issuer may sign. Like Dapr, accepts it if either its basic constraints or its key usage allow
/// it.
fn may_sign(issuer: &X509Certificate<'_>) -> bool {
    let has_constraints = matches!(issuer.basic_constraints(), Ok(Some(_)));
    let has_usage = matches!(issuer.key_usage(), Ok(Some(usage)) if usage.value.key_cert_sign());
    has_constraints || has_usage
}

/// Checks names, lifetimes and path lengths up to a trust anchor. Signatures within the chain were checked
/// when it was parsed.
fn verify_chain(
    chain: &[CertificateDer<'static>],
    anchors: &[CertificateDer<'static>],
    now: OffsetDateTime,
) -> Result<(), Fault> {
    let parsed = chain
        .iter()
        .map(parse)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| File::Issuer.fault(error, ""))?;
    for (index, certificate) in parsed.iter().enumerate() {
        check_lifetime(File::Issuer, index, certificate, now)?;
        if let Ok(Some(constraints)) = certificate.basic_constraints()
            && let Some(longest) = constraints.value.path_len_constraint
            && (longest as usize) < index
        {
            return Err(File::Issuer.fault(
                format!(
                    "certificate {index} allows {longest} CA certificates below it, but the chain has {index}"
                ),
                "Reissue it with a longer path length",
            ));
        }
    }
    for (index, pair) in parsed.windows(2).enumerate() {
        if pair[0].issuer().as_raw() != pair[1].subject().as_raw() {
            return Err(File::Issuer.fault(
                format!(
                    "certificate {index} names \"{}\" as its issuer, but the next one is \"{}\"",
                    pair[0].issuer(),
                    pair[1].subject()
                ),
                "Order the chain from the issuer certificate upwards",
            ));
        }
    }
    let (Some(top), Some(last)) = (chain.last(), parsed.last()) else {
        return Err(File::Issuer.fault("the chain is empty", ""));
    };
    let anchored = |(_, anchor): &(usize, &CertificateDer<'static>)| {
        *anchor == top
            || parse(anchor).is_ok_and(|parsed| parsed.subject().as_raw() == last.issuer().as_raw())
                && pem::is_signed_by(top, anchor)
    };
    match anchors.iter().enumerate().find(anchored) {
        Some((index, anchor)) => {
            let anchor = parse(anchor).map_err(|error| File::Root.fault(error, ""))?;
            check_lifetime(File::Root, index, &anchor, now)
        }
        None => Err(File::Issuer.fault(
            "the chain does not end at any certificate of the root bundle",
            "Add the root that signed it to the root certificate file",
        )),
    }
}

fn check_lifetime(
    file: File,
    index: usize,
    certificate: &X509Certificate<'_>,
    now: OffsetDateTime,
) -> Result<(), Fault> {
    let validity = certificate.validity();
    if now < validity.not_before.to_datetime() {
        return Err(file.fault(
            format!("certificate {index} is not valid before {}", validity.not_before),
            "Check the clock of this machine",
        ));
    }
    if now > validity.not_after.to_datetime() {
        return Err(file.fault(
            format!("certificate {index} expired at {}", validity.not_after),
            "Renew it",
        ));
    }
    Ok(())
}

fn subject_key_id(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    certificate
        .extensions()
        .iter()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        })
}
