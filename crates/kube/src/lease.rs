//! Which replica leads: whoever holds a Lease (`coordination.k8s.io/v1`), by the rules that Kubernetes' own programs
//! follow, so that replicas of either make can share one.
//!
//! A holder writes less than twice a minute, and the others watch: nobody asks for what has not changed. The price is that a
//! holder that dies without a word is followed after a minute; one that is told to stop gives the lease back, and is
//! followed at once.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::error::ApiError;
use crate::kind::Kind;
use crate::watch::{Event, Watch};

const LOG: &str = "dapr.kubernetes";

/// How fast an election goes.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// How long a lease lasts that nobody renews. It stands in the lease, and replicas of other makes go by it.
    lasts: Duration,
    /// Between two renewals.
    renew: Duration,
    /// From an attempt that fails to the next.
    retry: Duration,
    /// How long an attempt may take; so a hung one is followed by another before giving up.
    attempt: Duration,
    /// Without a renewal for this long a holder gives up: before others may take over.
    give_up: Duration,
}

const PACE: Pace = Pace {
    lasts: Duration::from_secs(60),
    renew: Duration::from_secs(36),
    retry: Duration::from_secs(5),
    attempt: Duration::from_secs(4),
    give_up: Duration::from_secs(50),
};
/// Whoever waits for the same moment waits up to this part of a pause longer, so that not all come at once.
const SPREAD: f64 = 0.1;

/// Takes part in an election.
#[derive(Debug)]
pub struct Election {
    client: Client,
    namespace: String,
    name: String,
    identity: String,
    pace: Pace,
    leads: watch::Sender<bool>,
    /// The lease as it was last seen.
    lease: Value,
    /// Since when its record is the same.
    since: Instant,
}

/// Whether this process leads.
pub type Leadership = watch::Receiver<bool>;

impl Election {
    /// An election for the lease `name`; `identity` is this replica's alone.
    pub fn new(client: Client, namespace: &str, name: &str, identity: String) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity,
            pace: PACE,
            leads: watch::Sender::default(),
            lease: Value::Null,
            since: Instant::now(),
        }
    }

    /// Whether this process leads.
    pub fn leadership(&self) -> Leadership {
        self.leads.subscribe()
    }

    /// Takes part until told to stop, then gives the lease back.
    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.take_part()).await;
        if *self.leads.borrow() {
            self.set(false);
            if let Err(error) = self.release().await {
                tracing::debug!(target: LOG, "cannot give the lease {} back: {error}", self.name);
            }
        }
    }

    async fn take_part(&mut self) {
        loop {
            let begun = Instant::now();
            let outcome = match self.look().await {
                Ok(true) => {
                    self.set(true);
                    let (pace, name) = (self.pace, self.name.clone());
                    hold(pace, &name, begun, self).await;
                    self.set(false);
                    Ok(())
                }
                Ok(false) => self.follow().await,
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                tracing::warn!(target: LOG, "cannot follow the lease {}: {error}", self.name);
                tokio::time::sleep(spread(self.pace.renew)).await;
            }
        }
    }

    fn set(&self, leads: bool) {
        let changed = self
            .leads
            .send_if_modified(|now| std::mem::replace(now, leads) != leads);
        if changed {
            let what = if leads { "leads" } else { "no longer leads" };
            tracing::info!(target: LOG, "{} {what} ({})", self.identity, self.name);
        }
    }

    /// Reads the lease, and takes it if that may be. Whether this process holds it then.
    async fn look(&mut self) -> Result<bool, ApiError> {
        let namespace = Some(self.namespace.as_str());
        let found = self.client.get(Kind::LEASES, namespace, &self.name).await;
        match found {
            Ok(lease) => self.saw(lease),
            Err(ApiError::NotFound { .. }) => {
                let lease = json!({
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self.name, "namespace": self.namespace},
                    "spec": self.record(None),
                });
                let created = self.client.create(Kind::LEASES, namespace, &lease).await;
                return self.taken(created);
            }
            Err(error) => return Err(error),
        }
        if self.is_free() {
            self.write().await
        } else {
            Ok(false)
        }
    }

    /// Watches until the lease may be free.
    async fn follow(&mut self) -> Result<(), ApiError> {
        let query = format!("fieldSelector=metadata.name%3D{}", self.name);
        let namespace = Some(self.namespace.as_str());
        // From now on, and first as it is now: a server that was started since may not know of the version that was read.
        let mut watch = Watch::open(&self.client, Kind::LEASES, namespace, &query, "").await?;
        while !self.is_free() {
            let over = self.since + self.lasts();
            // By then it is over, for everybody who watches.
            let wait = spread(over.saturating_duration_since(Instant::now()) + self.pace.retry / 10);
            match tokio::time::timeout(wait, watch.next()).await {
                Ok(Ok(Some(Event::Applied(lease)))) if lease["metadata"]["name"] == *self.name => {
                    self.saw(lease);
                }
                Ok(Ok(Some(Event::Removed(lease)))) if lease["metadata"]["name"] == *self.name => break,
                Ok(Ok(Some(_))) | Err(_) => {}
                Ok(Ok(None)) => {
                    // It ended in order; soon enough there is another.
                    tokio::time::sleep(spread(self.pace.retry)).await;
                    break;
                }
                Ok(Err(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes in the lease. Clocks of machines differ: what counts is how long its record stayed the same here.
    fn saw(&mut self, lease: Value) {
        if self.lease["spec"] != lease["spec"] {
            self.since = Instant::now();
        }
        self.lease = lease;
    }

    fn lasts(&self) -> Duration {
        self.lease["spec"]["leaseDurationSeconds"]
            .as_u64()
            .map_or(self.pace.lasts, Duration::from_secs)
    }

    /// Whether this process may write it.
    fn is_free(&self) -> bool {
        let holder = self.lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        holder.is_empty() || holder == self.identity || self.since.elapsed() > self.lasts()
    }

    /// Makes this process the holder; not if somebody else has written meanwhile.
    async fn write(&mut self) -> Result<bool, ApiError> {
        let mut next = self.lease.clone();
        next["spec"] = self.record(Some(&self.lease["spec"]));
        let namespace = Some(self.namespace.as_str());
        let written = self.client.replace(Kind::LEASES, namespace, &self.name, &next);
        let written = written.await;
        self.taken(written)
    }

    /// Whoever was faster has it.
    fn taken(&mut self, written: Result<Value, ApiError>) -> Result<bool, ApiError> {
        match written {
            Ok(lease) => {
                self.saw(lease);
                Ok(true)
            }
            Err(ApiError::Conflict(_) | ApiError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The record of this holder, after `previous`.
    fn record(&self, previous: Option<&Value>) -> Value {
        let now = micro_time(Timestamp::now());
        let transitions = previous
            .and_then(|spec| spec["leaseTransitions"].as_i64())
            .unwrap_or(0);
        let mine = previous.is_some_and(|spec| spec["holderIdentity"] == *self.identity);
        let acquired = previous.map(|spec| spec["acquireTime"].clone()).filter(|_| mine);
        json!({
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.pace.lasts.as_secs(),
            "acquireTime": acquired.unwrap_or_else(|| now.clone().into()),
            "renewTime": now,
            "leaseTransitions": if mine || previous.is_none() { transitions } else { transitions + 1 },
        })
    }

    async fn release(&self) -> Result<(), ApiError> {
        let namespace = Some(self.namespace.as_str());
        let mut lease: Value = self.client.get(Kind::LEASES, namespace, &self.name).await?;
        if lease["spec"]["holderIdentity"] != *self.identity {
            return Ok(());
        }
        lease["spec"]["holderIdentity"] = "".into();
        lease["spec"]["leaseDurationSeconds"] = 1.into();
        lease["spec"]["renewTime"] = micro_time(Timestamp::now()).into();
        self.client
            .replace::<Value>(Kind::LEASES, namespace, &self.name, &lease)
            .await
            .map(drop)
    }
}

/// What is renewed.
trait Renew {
    /// Renews it. Whether this process holds it then.
    fn renew(&mut self) -> impl Future<Output = Result<bool, ApiError>> + Send;
}

impl Renew for Election {
    async fn renew(&mut self) -> Result<bool, ApiError> {
        // Another may have written it, or this process, without hearing of it.
        Ok(self.write().await? || self.look().await?)
    }
}

/// Renews a lease, which was taken after this moment, for as long as this process holds it.
async fn hold(pace: Pace, name: &str, mut renewed: Instant, lease: &mut impl Renew) {
    let mut next = renewed + spread(pace.renew);
    loop {
        let until = renewed + pace.give_up;
        tokio::time::sleep_until(until.min(next)).await;
        let begun = Instant::now();
        let problem = match tokio::time::timeout_at(until.min(begun + pace.attempt), lease.renew()).await {
            Ok(Ok(true)) => {
                renewed = begun;
                next = begun + spread(pace.renew);
                continue;
            }
            Ok(Ok(false)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", pace.attempt.as_secs()),
        };
        tracing::warn!(target: LOG, "cannot renew the lease {name}: {problem}");
        if Instant::now() >= until {
            return;
        }
        next = begun + spread(pace.retry);
    }
}

fn spread(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(1.0..=1.0 + SPREAD))
}

/// As Kubernetes writes times to the microsecond.
fn micro_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Server;

    #[test]
    fn times_have_six_digits() {
        let at: Timestamp = "2026-01-02T03:04:05.5Z".parse().unwrap();
        assert_eq!(micro_time(at), "2026-01-02T03:04:05.500000Z");
    }

    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l";

    fn election(server: &Server, name: &str) -> Election {
        let mut election = Election::new(server.client(), "ns", "l", name.to_owned());
        election.pace = Pace {
            renew: Duration::from_millis(20),
            retry: Duration::from_millis(10),
            ..PACE
        };
        election
    }

    fn holder(server: &Server) -> Value {
        server.object(LEASE).unwrap()["spec"]["holderIdentity"].clone()
    }

    #[tokio::test]
    async fn one_of_two_leads_and_the_other_follows() {
        let server = Server::start().await;
        let (mut one, mut two) = (election(&server, "one"), election(&server, "two"));
        assert!(one.look().await.unwrap());
        assert!(!two.look().await.unwrap());
        assert!(one.renew().await.unwrap(), "a holder renews");
        one.release().await.unwrap();
        assert!(two.look().await.unwrap());
        let lease = server.object(LEASE).unwrap();
        assert_eq!(lease["spec"]["holderIdentity"], "two");
        assert_eq!(lease["spec"]["leaseTransitions"], 1);
        assert!(!one.renew().await.unwrap());
    }

    #[tokio::test]
    async fn a_lease_that_nobody_renews_is_taken() {
        let server = Server::start().await;
        let lease = json!({
            "metadata": {"name": "l", "namespace": "ns"},
            "spec": {"holderIdentity": "gone", "leaseDurationSeconds": 1, "renewTime": "2001-01-01T00:00:00.000000Z"},
        });
        server.put(LEASE, lease);
        let mut election = election(&server, "new");
        assert!(!election.look().await.unwrap(), "its holder may be alive");
        election.follow().await.unwrap();
        assert!(election.look().await.unwrap());
    }

    #[tokio::test]
    async fn a_lease_that_is_older_than_what_the_server_remembers_is_followed() {
        let server = Server::start().await;
        let held = |by: &str| {
            json!({"metadata": {"name": "l", "namespace": "ns"},
                "spec": {"holderIdentity": by, "leaseDurationSeconds": 60}})
        };
        server.put(LEASE, held("other"));
        server.put("/api/v1/namespaces/ns/configmaps/c", json!({}));
        server.forget();
        let mut election = election(&server, "new");
        assert!(!election.look().await.unwrap());
        let following = tokio::spawn(async move { election.follow().await });
        server.asked("WATCH", "/leases", 1).await;
        server.put(LEASE, held(""));
        following.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn who_stops_is_followed_at_once() {
        let server = Server::start().await;
        let (one, two) = (election(&server, "one"), election(&server, "two"));
        let (mut first, mut second) = (one.leadership(), two.leadership());
        let (stop, end) = (CancellationToken::new(), CancellationToken::new());
        let running = tokio::spawn(one.run(stop.clone()));
        first.wait_for(|leads| *leads).await.unwrap();
        let other = tokio::spawn(two.run(end.clone()));
        server.asked("WATCH", "/leases", 1).await;
        stop.cancel();
        running.await.unwrap();
        second.wait_for(|leads| *leads).await.unwrap();
        assert_eq!(holder(&server), "two");
        end.cancel();
        other.await.unwrap();
        assert_eq!(holder(&server), "");
    }

    #[tokio::test]
    async fn at_rest_nobody_reads_and_the_holder_writes_less_than_twice_a_minute() {
        // With the watches of an operator, of which each is opened again after half an hour at the earliest.
        let watches = 8.0 / 30.0;
        assert!(Duration::from_secs(60).div_duration_f64(PACE.renew) + watches <= 2.0);
        assert!(PACE.give_up < PACE.lasts);
        let server = Server::start().await;
        let (one, two) = (election(&server, "one"), election(&server, "two"));
        let (mut first, second) = (one.leadership(), two.leadership());
        let stop = CancellationToken::new();
        let leading = tokio::spawn(one.run(stop.clone()));
        first.wait_for(|leads| *leads).await.unwrap();
        let following = tokio::spawn(two.run(stop.clone()));
        server.asked("WATCH", "/leases", 1).await;
        let begun = server.requests("PUT", LEASE).len();
        server.asked("PUT", LEASE, begun + 5).await;
        assert_eq!(server.requests("GET", LEASE).len(), 2, "each looked once");
        assert_eq!(server.requests("WATCH", "/leases").len(), 1);
        assert!(*first.borrow() && !*second.borrow());
        stop.cancel();
        leading.await.unwrap();
        following.await.unwrap();
    }

    /// A lease whose renewals end so, or never; and when they began.
    struct Renewals<F> {
        outcome: F,
        begun: Vec<Instant>,
    }

    impl<F: FnMut(usize) -> Option<bool> + Send> Renew for Renewals<F> {
        async fn renew(&mut self) -> Result<bool, ApiError> {
            self.begun.push(Instant::now());
            match (self.outcome)(self.begun.len()) {
                Some(holds) => Ok(holds),
                None => std::future::pending().await,
            }
        }
    }

    /// How long a holder of the usual pace holds, and when it tried to renew, in seconds.
    async fn held(outcome: impl FnMut(usize) -> Option<bool> + Send) -> (f64, Vec<f64>) {
        let start = Instant::now();
        let mut renewals = Renewals {
            outcome,
            begun: Vec::new(),
        };
        hold(PACE, "l", start, &mut renewals).await;
        let since = |at: &Instant| at.duration_since(start).as_secs_f64();
        (since(&Instant::now()), renewals.begun.iter().map(since).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_hangs_is_followed_by_another_before_the_holder_gives_up() {
        let (_, attempts) = held(|attempt| match attempt {
            1 => None,
            2 => Some(true),
            _ => Some(false),
        })
        .await;
        let [first, second, third] = attempts[..] else {
            panic!("{attempts:?}");
        };
        let retry = PACE.retry.as_secs_f64();
        assert!(second - first < retry * (1.0 + SPREAD) + 0.1, "{attempts:?}");
        assert!(
            third - second >= PACE.renew.as_secs_f64(),
            "the second renews: {attempts:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_all_of_whose_requests_hang_gives_up_in_time() {
        let (over, attempts) = held(|_| None).await;
        assert!(attempts.len() >= 2, "{attempts:?}");
        assert!((over - PACE.give_up.as_secs_f64()).abs() < 0.1, "{over}");
        // However the pauses are drawn, two whole attempts fit.
        let pauses = (PACE.renew + PACE.retry).mul_f64(1.0 + SPREAD);
        assert!(pauses + PACE.attempt < PACE.give_up && PACE.attempt < PACE.retry);
    }

    #[tokio::test]
    async fn a_holder_that_cannot_renew_gives_up_before_others_may_take_over() {
        let server = Server::start().await;
        let mut one = election(&server, "one");
        one.pace.give_up = Duration::from_millis(200);
        let (mut leads, stop) = (one.leadership(), CancellationToken::new());
        let running = tokio::spawn(one.run(stop.clone()));
        leads.wait_for(|leads| *leads).await.unwrap();
        server.down(true);
        leads.wait_for(|leads| !leads).await.unwrap();
        server.down(false);
        leads.wait_for(|leads| *leads).await.unwrap();
        stop.cancel();
        running.await.unwrap();
    }
}
