//! Renewal under simulated time.
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use outrigger_identity::testing::{Algorithm, Authority, Leaf};
use outrigger_identity::{
    Clock, FetchError, Identity, IdentityDirectory, IdentityEvent, Renewal, Svid, SvidSource, TrustAnchors,
    TrustBundle,
};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const HOUR: Duration = Duration::from_secs(3600);

/// Returns prepared identities, then waits forever.
struct Prepared(Mutex<VecDeque<Result<Svid, FetchError>>>);

impl SvidSource for Prepared {
    fn fetch(&self) -> Pin<Box<dyn Future<Output = Result<Svid, FetchError>> + Send + '_>> {
        let next = self.0.lock().unwrap().pop_front();
        Box::pin(async {
            match next {
                Some(next) => next,
                None => std::future::pending().await,
            }
        })
    }
}

/// A certificate that starts `from` hours from now and lasts `hours`.
fn svid(authority: &Authority, from: i64, hours: i64) -> Svid {
    let leaf = Leaf {
        from: time::Duration::hours(from),
        until: time::Duration::hours(from + hours),
        ..Leaf::workload("spiffe://public/ns/ns/app")
    };
    authority.issue(leaf).into_svid()
}

fn failure() -> FetchError {
    FetchError::ValidUntil("it is missing")
}

/// tokio's paused time as a wall clock that starts now.
fn clock() -> Clock {
    let (wall, begin) = (Timestamp::now(), Instant::now());
    Arc::new(move || wall + begin.elapsed())
}

struct Running {
    identity: Identity,
    events: mpsc::UnboundedReceiver<(IdentityEvent, Duration)>,
    cancel: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    fn start(
        authority: &Authority,
        prepared: Vec<Result<Svid, FetchError>>,
        directory: Option<IdentityDirectory>,
    ) -> Self {
        let identity = Identity::new(svid(authority, 0, 24), TrustAnchors::new(authority.bundle()));
        let (sender, events) = mpsc::unbounded_channel();
        let begin = Instant::now();
        let renewal = Renewal::new(
            Box::new(Prepared(Mutex::new(prepared.into()))),
            identity.clone(),
            Arc::new(move |event| sender.send((event, begin.elapsed())).unwrap()),
        );
        let cancel = CancellationToken::new();
        let task = tokio::spawn(
            renewal
                .with_clock(clock())
                .with_directory(directory)
                .run(cancel.clone()),
        );
        Self {
            identity,
            events,
            cancel,
            task,
        }
    }

    async fn next(&mut self) -> (IdentityEvent, Duration) {
        self.events.recv().await.unwrap()
    }
}

/// Certificates have a resolution of one second.
fn about(elapsed: Duration, expected: Duration) -> bool {
    elapsed.abs_diff(expected) <= Duration::from_secs(2)
}

#[tokio::test(start_paused = true)]
async fn renews_repeatedly_at_half_life() {
    let authority = Authority::new("public", Algorithm::P256);
    let prepared = vec![Ok(svid(&authority, 12, 24)), Ok(svid(&authority, 24, 24))];
    let chains: Vec<_> = prepared
        .iter()
        .map(|svid| svid.as_ref().unwrap().chain().to_vec())
        .collect();
    let mut running = Running::start(&authority, prepared, None);
    for (chain, hours) in chains.iter().zip([12, 24]) {
        let (event, elapsed) = running.next().await;
        assert_eq!(event, IdentityEvent::Rotated);
        assert!(about(elapsed, HOUR * hours), "{elapsed:?}");
        assert_eq!(running.identity.svid().chain(), chain);
    }
    // A request without a response does not delay the end.
    tokio::time::sleep(HOUR * 13).await;
    running.cancel.cancel();
    running.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn renews_when_anchors_drop_issuer() {
    let (old, new) = (
        Authority::new("public", Algorithm::P256),
        Authority::new("public", Algorithm::P256),
    );
    let renewed = svid(&new, 0, 24);
    let chain = renewed.chain().to_vec();
    let mut running = Running::start(&old, vec![Ok(renewed)], None);
    let both = format!("{}{}", old.root_pem(), new.root_pem());
    for (bundle, after) in [
        (TrustBundle::from_pem(both.as_bytes()).unwrap(), HOUR),
        (new.bundle(), HOUR * 2),
    ] {
        tokio::time::sleep(HOUR).await;
        assert!(running.events.is_empty(), "before {after:?}");
        running.identity.anchors().replace(bundle);
    }
    let (event, elapsed) = running.next().await;
    assert_eq!(event, IdentityEvent::Rotated);
    assert!(about(elapsed, HOUR * 2), "{elapsed:?}");
    assert_eq!(running.identity.svid().chain(), chain);
}

#[tokio::test(start_paused = true)]
async fn failed_renewal_keeps_old_identity() {
    let authority = Authority::new("public", Algorithm::P256);
    let prepared = vec![Err(failure()), Err(failure()), Ok(svid(&authority, 12, 24))];
    let mut running = Running::start(&authority, prepared, None);
    let first = running.identity.svid();
    for retry in 0..2 {
        let (event, elapsed) = running.next().await;
        assert_eq!(event, IdentityEvent::RotateFailed("invalid_ts"));
        assert!(
            about(elapsed, HOUR * 12 + Duration::from_secs(10) * retry),
            "{elapsed:?}"
        );
        assert!(Arc::ptr_eq(&running.identity.svid(), &first));
    }
    let (event, elapsed) = running.next().await;
    assert_eq!(event, IdentityEvent::Rotated);
    assert!(about(elapsed, HOUR * 12 + Duration::from_secs(20)), "{elapsed:?}");
    assert!(!Arc::ptr_eq(&running.identity.svid(), &first));
    running.cancel.cancel();
    running.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn directory_follows_renewals_and_anchors() {
    let base = tempfile::tempdir().unwrap();
    let directory = IdentityDirectory::new(base.path().join("identity"));
    let authority = Authority::new("public", Algorithm::P256);
    let prepared = vec![Ok(svid(&authority, 12, 24))];
    let mut running = Running::start(&authority, prepared, Some(directory.clone()));
    assert_eq!(running.next().await.0, IdentityEvent::Rotated);
    let read = |name| std::fs::read_to_string(directory.path().join(name)).unwrap();
    let chain = outrigger_identity::pem::encode_certificates(running.identity.svid().chain());
    assert_eq!(read("cert.pem"), chain);

    let next = Authority::new("public", Algorithm::P256);
    running.identity.anchors().replace(next.bundle());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(read("ca.pem"), next.root_pem());
    assert_eq!(read("cert.pem"), chain);
    running.cancel.cancel();
    running.task.await.unwrap();
}
