//! Which replica leads: whoever holds a Lease (`coordination.k8s.io/v1`), by the rules that Kubernetes' own programs
//! follow, so that replicas of either make can share one.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::error::ApiError;
use crate::kind::Kind;

const LOG: &str = "dapr.kubernetes";
/// How long a lease lasts that nobody renews.
const LASTS: Duration = Duration::from_secs(15);
/// Between two looks, or renewals.
const LOOK: Duration = Duration::from_secs(5);
/// Without a renewal for this long a holder gives up: before others may take over.
const GIVE_UP: Duration = Duration::from_secs(12);

/// Takes part in an election.
#[derive(Debug)]
pub struct Election {
    client: Client,
    namespace: String,
    name: String,
    identity: String,
    leads: watch::Sender<bool>,
    /// The record that was last seen, and since when it is the same.
    seen: Option<(Value, Instant)>,
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
            leads: watch::Sender::default(),
            seen: None,
        }
    }

    /// Whether this process leads.
    pub fn leadership(&self) -> Leadership {
        self.leads.subscribe()
    }

    /// Takes part until told to stop, then gives the lease back.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut renewed = Instant::now();
        loop {
            match self.round().await {
                Ok(true) => {
                    renewed = Instant::now();
                    self.set(true);
                }
                Ok(false) => self.set(false),
                Err(error) => {
                    tracing::warn!(target: LOG, "cannot renew the lease {}: {error}", self.name);
                    if renewed.elapsed() >= GIVE_UP {
                        self.set(false);
                    }
                }
            }
            // Nobody looks at the same moment as another.
            let pause = LOOK.mul_f64(rand::random_range(0.8..=1.0));
            if stop
                .run_until_cancelled(tokio::time::sleep(pause))
                .await
                .is_none()
            {
                break;
            }
        }
        if *self.leads.borrow() {
            self.set(false);
            if let Err(error) = self.release().await {
                tracing::debug!(target: LOG, "cannot give the lease {} back: {error}", self.name);
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

    /// Whether this process holds the lease after this round.
    async fn round(&mut self) -> Result<bool, ApiError> {
        let namespace = Some(self.namespace.as_str());
        let found = self
            .client
            .get::<Value>(Kind::LEASES, namespace, &self.name)
            .await;
        let lease = match found {
            Ok(lease) => lease,
            Err(ApiError::NotFound(_)) => {
                let lease = json!({
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self.name, "namespace": self.namespace},
                    "spec": self.record(None),
                });
                return taken(self.client.create::<Value>(Kind::LEASES, namespace, &lease).await);
            }
            Err(error) => return Err(error),
        };
        let spec = &lease["spec"];
        let fresh = self.seen.as_ref().is_none_or(|(seen, _)| seen != spec);
        if fresh {
            self.seen = Some((spec.clone(), Instant::now()));
        }
        let holder = spec["holderIdentity"].as_str().unwrap_or_default();
        let lasts = spec["leaseDurationSeconds"]
            .as_u64()
            .map_or(LASTS, Duration::from_secs);
        // Clocks of machines differ: what counts is how long the record stayed the same here.
        let over = !fresh
            && self
                .seen
                .as_ref()
                .is_some_and(|(_, since)| since.elapsed() > lasts);
        if !holder.is_empty() && holder != self.identity && !over {
            return Ok(false);
        }
        let mut next = lease.clone();
        next["spec"] = self.record(Some(spec));
        taken(
            self.client
                .replace::<Value>(Kind::LEASES, namespace, &self.name, &next)
                .await,
        )
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
            "leaseDurationSeconds": LASTS.as_secs(),
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

/// Whoever was faster has it.
fn taken(written: Result<Value, ApiError>) -> Result<bool, ApiError> {
    match written {
        Ok(_) => Ok(true),
        Err(ApiError::Conflict(_)) => Ok(false),
        Err(error) => Err(error),
    }
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

    #[tokio::test]
    async fn one_of_two_leads_and_the_other_follows() {
        let server = Server::start().await;
        let election = |name: &str| Election::new(server.client(), "ns", "operator.dapr.io", name.to_owned());
        let (mut one, mut two) = (election("one"), election("two"));
        assert!(one.round().await.unwrap());
        assert!(!two.round().await.unwrap());
        assert!(one.round().await.unwrap(), "a holder renews");
        one.release().await.unwrap();
        assert!(two.round().await.unwrap());
        let lease = server
            .object("/apis/coordination.k8s.io/v1/namespaces/ns/leases/operator.dapr.io")
            .unwrap();
        assert_eq!(lease["spec"]["holderIdentity"], "two");
        assert_eq!(lease["spec"]["leaseTransitions"], 1);
        assert!(!one.round().await.unwrap());
    }

    #[tokio::test]
    async fn a_lease_that_nobody_renews_is_taken() {
        let server = Server::start().await;
        let lease = json!({
            "metadata": {"name": "l", "namespace": "ns"},
            "spec": {"holderIdentity": "gone", "leaseDurationSeconds": 0, "renewTime": "2001-01-01T00:00:00.000000Z"},
        });
        server.put("/apis/coordination.k8s.io/v1/namespaces/ns/leases/l", lease);
        let mut election = Election::new(server.client(), "ns", "l", "new".to_owned());
        assert!(!election.round().await.unwrap(), "its holder may be alive");
        assert!(election.round().await.unwrap());
    }

    #[tokio::test]
    async fn who_stops_gives_the_lease_back() {
        let server = Server::start().await;
        let election = Election::new(server.client(), "ns", "l", "one".to_owned());
        let (mut leads, stop) = (election.leadership(), CancellationToken::new());
        let running = tokio::spawn(election.run(stop.clone()));
        leads.wait_for(|leads| *leads).await.unwrap();
        stop.cancel();
        running.await.unwrap();
        let lease = server
            .object("/apis/coordination.k8s.io/v1/namespaces/ns/leases/l")
            .unwrap();
        assert_eq!(lease["spec"]["holderIdentity"], "");
    }
}
