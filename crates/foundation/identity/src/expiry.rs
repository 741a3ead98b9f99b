//! Expiry of certificates, and connections that end with them.

mod stream;

use std::time::Duration;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;

pub use stream::UntilExpired;

use crate::leaf::{self, LeafError};
use crate::pem;

/// Maximum interval between checks of the clock, which may jump or stop while the machine sleeps.
const POLL_INTERVAL: Duration = Duration::from_secs(60);

/// The expiry of a chain: the earliest expiry of its certificates.
///
/// # Errors
/// If there is no certificate, or one cannot be decoded.
pub fn valid_until(chain: &[CertificateDer<'_>]) -> Result<Timestamp, LeafError> {
    let mut earliest = None;
    for certificate in chain {
        let parsed = pem::decode(certificate).map_err(LeafError::Encoding)?;
        let (_, end) = leaf::validity(&parsed)?;
        earliest = Some(earliest.map_or(end, |earliest: Timestamp| earliest.min(end)));
    }
    earliest.ok_or(LeafError::Missing)
}

/// Waits until the system clock reaches `end`.
pub async fn reached(end: Timestamp) {
    loop {
        let now = Timestamp::now();
        if now >= end {
            return;
        }
        let left = now.duration_until(end).unsigned_abs();
        tokio::time::sleep(left.min(POLL_INTERVAL)).await;
    }
}

/// The time at which three quarters of the time until `end` have passed: late enough to conclude that a
/// renewal has failed, early enough to act.
pub fn last_quarter(end: Timestamp) -> Timestamp {
    let now = Timestamp::now();
    now + now.duration_until(end) * 3 / 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Algorithm, Authority, Leaf};

    #[tokio::test]
    async fn chain_expires_with_first_certificate() {
        let authority = Authority::new("td", Algorithm::P256);
        let ending = |until| {
            let mut leaf = Leaf::workload("spiffe://td/ns/ns/app");
            leaf.until = until;
            authority.issue(leaf).chain
        };
        let end = |chain: &[_]| valid_until(chain).unwrap().as_second() - Timestamp::now().as_second();
        let day = end(&ending(time::Duration::days(1)));
        assert!((86_300..=86_400).contains(&day), "{day}");
        let year = end(&ending(time::Duration::days(1000)));
        assert!(
            (364 * 86_400..=365 * 86_400).contains(&year),
            "the issuer ends before: {year}"
        );
        assert_eq!(valid_until(&[]), Err(LeafError::Missing));
    }

    #[tokio::test]
    async fn waits_for_expiry() {
        let end = Timestamp::now() + Duration::from_millis(200);
        assert!(last_quarter(end) < end);
        reached(end).await;
        assert!(Timestamp::now() >= end);
        reached(end).await;
    }
}
