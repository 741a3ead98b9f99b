//! Renewal of the identity at half of its lifetime, or when no trusted root vouches for it any longer.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::anchors_file::AnchorsFile;
use crate::ca::{FetchError, SvidSource};
use crate::directory::IdentityDirectory;
use crate::identity::Identity;
use crate::svid::Svid;
use crate::verify;

/// Maximum interval between checks of the clock, which may jump or stop while the machine sleeps.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Pause after a failed renewal.
const RETRY: Duration = Duration::from_secs(10);
/// Maximum wait before renewing a certificate that was old on arrival, and minimum wait between renewals.
/// The CA's configured lifetime may be wrong and about to be corrected.
const EARLY_RENEWAL_PAUSE: (SignedDuration, SignedDuration) =
    (SignedDuration::from_millis(500), SignedDuration::from_secs(10));

/// Identity events. The text is the `reason` label of the metrics (`sentry_conn`, `sentry_token`, `sign`,
/// `invalid_ts`, `jwt_parse`, `jwt_aud`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentityEvent {
    /// The first identity is in use.
    InitOk,
    /// The first identity could not be obtained.
    InitFailed(&'static str),
    /// A renewed identity is in use.
    Rotated,
    /// Renewal failed and will be retried.
    RotateFailed(&'static str),
}

/// Receives [`IdentityEvent`]s for the metrics.
pub type EventSink = Arc<dyn Fn(IdentityEvent) + Send + Sync>;

/// The current time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// When to renew a document received at `now`: at half of the certificate's validity, or half-way to the
/// expiry of the JWT if that is earlier.
///
/// A certificate past its half-life on arrival (a validity shorter than the tolerated clock skew) is
/// renewed after 10 s, or half of its remaining time.
pub fn renew_at(
    now: Timestamp,
    not_before: Timestamp,
    not_after: Timestamp,
    jwt: Option<Timestamp>,
) -> Timestamp {
    let half = |from: Timestamp, until: Timestamp| from + from.duration_until(until) / 2;
    let certificate = half(not_before, not_after);
    let due = jwt.map_or(certificate, |expires| certificate.min(half(now, expires)));
    let until_expiry = now.duration_until(jwt.map_or(not_after, |expires| not_after.min(expires)));
    let pause = (until_expiry / 2).clamp(EARLY_RENEWAL_PAUSE.0, EARLY_RENEWAL_PAUSE.1);
    due.max(now + pause)
}

/// Renews an [`Identity`] while [`Renewal::run`] runs.
pub struct Renewal {
    source: Box<dyn SvidSource>,
    identity: Identity,
    directory: Option<IdentityDirectory>,
    anchors_file: Option<AnchorsFile>,
    events: EventSink,
    clock: Clock,
}

impl Renewal {
    /// Renews `identity` from `source`.
    pub fn new(source: Box<dyn SvidSource>, identity: Identity, events: EventSink) -> Self {
        Self {
            source,
            identity,
            directory: None,
            anchors_file: None,
            events,
            clock: Arc::new(Timestamp::now),
        }
    }

    /// Also writes every document, and every change of the trust anchors, to `directory`.
    #[must_use]
    pub fn with_directory(self, directory: Option<IdentityDirectory>) -> Self {
        Self { directory, ..self }
    }

    /// Also watches the file of the trust anchors.
    #[must_use]
    pub fn with_anchors_file(self, anchors_file: Option<AnchorsFile>) -> Self {
        Self { anchors_file, ..self }
    }

    /// Uses `clock` instead of the system clock.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Runs until `cancel`.
    pub async fn run(mut self, cancel: CancellationToken) {
        let anchors_file = self.anchors_file.take();
        let follow = async {
            if let Some(file) = anchors_file {
                file.run(cancel.clone()).await;
            }
        };
        let renew = cancel.run_until_cancelled(async { tokio::join!(self.renew(), self.export()) });
        tokio::join!(follow, renew);
    }

    async fn renew(&self) {
        let mut due = self.schedule(&self.identity.svid());
        let mut anchors = self.identity.anchors().subscribe();
        loop {
            let now = (self.clock)();
            if now < due {
                let left = now.duration_until(due).unsigned_abs();
                tokio::select! {
                    () = tokio::time::sleep(left.min(POLL_INTERVAL)) => {}
                    // The CA was replaced: peers that trust only the new one reject this process.
                    Ok(()) = anchors.changed() => {
                        if !verify::is_vouched(self.identity.anchors(), self.identity.svid().chain()) {
                            tracing::info!("the workload certificate is not signed by a trusted root any longer: renewing it");
                            due = now;
                        }
                    }
                }
                continue;
            }
            match fetch_and_store(&*self.source, &self.identity, self.directory.as_ref()).await {
                Ok(svid) => {
                    due = self.schedule(&svid);
                    tracing::info!(id = %svid.id(), expires = %svid.not_after(), renewal = %due, "renewed the workload identity");
                    self.identity.replace(svid);
                    (self.events)(IdentityEvent::Rotated);
                }
                Err(error) => {
                    let expires = self.identity.svid().not_after();
                    tracing::error!(
                        "error renewing identity, trying again in 10 seconds (it expires at {expires}): {error}"
                    );
                    (self.events)(IdentityEvent::RotateFailed(error.reason()));
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Keeps the trust anchors in the directory current between renewals.
    async fn export(&self) {
        let Some(directory) = &self.directory else { return };
        let mut anchors = self.identity.anchors().subscribe();
        while anchors.changed().await.is_ok() {
            let bundle = anchors.borrow_and_update().clone();
            if let Err(error) = directory.write(&self.identity.svid(), bundle.pem()) {
                tracing::error!(
                    "cannot write the trust anchors to {}: {error}",
                    directory.path().display()
                );
            }
        }
    }

    fn schedule(&self, svid: &Svid) -> Timestamp {
        let jwt = svid.jwt().map(crate::jwt::JwtSvid::expires);
        renew_at((self.clock)(), svid.not_before(), svid.not_after(), jwt)
    }
}

/// Fetches a document and stores it in the directory, if any.
async fn fetch_and_store(
    source: &dyn SvidSource,
    identity: &Identity,
    directory: Option<&IdentityDirectory>,
) -> Result<Svid, FetchError> {
    let svid = source.fetch().await?;
    if let Some(directory) = directory {
        store(directory, &svid, identity.anchors().current().pem())?;
    }
    Ok(svid)
}

/// Stores a document in the directory.
pub(crate) fn store(
    directory: &IdentityDirectory,
    svid: &Svid,
    trust_anchors: &str,
) -> Result<(), FetchError> {
    directory.write(svid, trust_anchors).map_err(|error| {
        FetchError::Local(format!(
            "cannot write the identity to {}: {error}",
            directory.path().display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: i64 = 1_750_000_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(START + seconds).unwrap()
    }

    #[test]
    fn renews_at_half_validity() {
        // One day, with 15 minutes of tolerated skew before.
        assert_eq!(
            renew_at(at(0), at(-900), at(86_400), None),
            at((86_400 - 900) / 2)
        );
    }

    #[test]
    fn earlier_jwt_expiry_decides() {
        assert_eq!(renew_at(at(0), at(-900), at(86_400), Some(at(3600))), at(1800));
        assert_eq!(
            renew_at(at(0), at(-900), at(86_400), Some(at(864_000))),
            at((86_400 - 900) / 2)
        );
    }

    #[test]
    fn short_lifetimes_do_not_loop() {
        // Half of -900..10 is long past.
        assert_eq!(renew_at(at(0), at(-900), at(10), None), at(5));
        assert_eq!(renew_at(at(0), at(-900), at(600), None), at(10));
        assert_eq!(
            renew_at(at(0), at(-900), at(-1), None),
            at(0) + EARLY_RENEWAL_PAUSE.0,
            "expired on arrival"
        );
    }

    proptest! {
        #[test]
        fn renews_later_but_before_expiry(skew in 0i64..4000, life in 4i64..1_000_000, jwt in proptest::option::of(4i64..1_000_000)) {
            let due = renew_at(at(0), at(-skew), at(life), jwt.map(at));
            prop_assert!(due >= at(0) + EARLY_RENEWAL_PAUSE.0);
            prop_assert!(due < at(life));
            prop_assert!(jwt.is_none_or(|jwt| due < at(jwt)));
        }
    }
}
