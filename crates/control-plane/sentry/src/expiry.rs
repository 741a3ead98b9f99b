//! Warns before the issuer certificate expires. Without rotation an operator has to renew it.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use crate::authority::Authority;

const LOG: &str = "dapr.sentry.ca";
/// Interval of checks; a warning is repeated at each.
const POLL_INTERVAL: Duration = Duration::from_secs(12 * 60 * 60);
/// How long before the expiry the warnings begin.
const NOTICE: time::Duration = time::Duration::days(30);

/// Checks the issuer certificate in use until stopped.
pub(crate) async fn watch(authority: Arc<ArcSwap<Authority>>, drain: CancellationToken) {
    loop {
        let end = authority.load().x509.not_after();
        match notice(OffsetDateTime::now_utc(), end) {
            Some(Notice::Expired) => tracing::error!(
                target: LOG,
                "the issuer certificate expired at {end}: peers reject all certificates that it signs. Replace it now"
            ),
            Some(Notice::Near) => tracing::warn!(
                target: LOG,
                "the issuer certificate expires at {end}: replace it before, because peers will reject all \
                 certificates afterwards"
            ),
            None => {}
        }
        if drain
            .run_until_cancelled(tokio::time::sleep(POLL_INTERVAL))
            .await
            .is_none()
        {
            return;
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Notice {
    Near,
    Expired,
}

fn notice(now: OffsetDateTime, end: OffsetDateTime) -> Option<Notice> {
    if now >= end {
        Some(Notice::Expired)
    } else if now + NOTICE >= end {
        Some(Notice::Near)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warns_a_month_before_expiry() {
        let now = OffsetDateTime::now_utc();
        let day = time::Duration::DAY;
        assert_eq!(notice(now, now + 31 * day), None);
        assert_eq!(notice(now, now + 30 * day), Some(Notice::Near));
        assert_eq!(notice(now, now + time::Duration::SECOND), Some(Notice::Near));
        assert_eq!(notice(now, now), Some(Notice::Expired));
    }
}
