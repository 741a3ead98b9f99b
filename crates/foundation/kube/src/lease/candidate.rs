//! A candidate's state machine: it acquires the lease if free, renews it while it holds it, and otherwise
//! watches it.

use std::time::Duration;

use jiff::Timestamp;
use outrigger_backoff::Backoff;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pace::{Pace, spread};
use super::store::{LeaseStore, LeaseWatch};
use super::{Leadership, Leads};
use crate::error::ApiError;
use crate::watch::Event;

const LOG: &str = "dapr.kubernetes";

/// A participant in an election.
#[derive(Debug)]
pub(super) struct Candidate<P> {
    store: P,
    namespace: String,
    name: String,
    identity: String,
    pace: Pace,
    leads: watch::Sender<Leads>,
    /// The lease as last observed; null initially.
    lease: Value,
    /// Since when its record is unchanged, or the lease is gone.
    since: Instant,
    is_gone: bool,
    /// Whether this process may have become its holder.
    wrote: bool,
}

impl<P: LeaseStore> Candidate<P> {
    pub(super) fn new(store: P, namespace: &str, name: &str, identity: String, pace: Pace) -> Self {
        Self {
            store,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity,
            pace,
            leads: watch::Sender::default(),
            lease: Value::Null,
            since: Instant::now(),
            is_gone: false,
            wrote: false,
        }
    }

    pub(super) fn leadership(&self) -> Leadership {
        self.leads.subscribe()
    }

    /// Participates until cancelled, then releases the lease.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.take_part()).await;
        self.set(Leads::No);
        if !self.wrote {
            return;
        }
        match tokio::time::timeout(self.pace.attempt, self.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(target: LOG, "cannot release the lease {}: {error}", self.name);
            }
            Err(_) => tracing::debug!(target: LOG, "cannot release the lease {} in time", self.name),
        }
    }

    async fn take_part(&mut self) {
        let mut pauses = Backoff::new(self.pace.retry, self.pace.renew);
        loop {
            let begun = Instant::now();
            let outcome = match tokio::time::timeout(self.pace.take, self.look()).await {
                Ok(Ok(Leads::No)) => self.follow().await.map_err(|error| error.to_string()),
                Ok(Ok(leads)) => {
                    self.set(leads);
                    self.hold(begun).await;
                    self.set(Leads::No);
                    Ok(())
                }
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err(format!("no answer within {} s", self.pace.take.as_secs_f64())),
            };
            match outcome {
                Ok(()) => pauses.reset(),
                // Retries soon, but not at once: the failure may be brief.
                Err(error) => {
                    tracing::warn!(target: LOG, "cannot watch the lease {}: {error}", self.name);
                    tokio::time::sleep(spread(pauses.pause())).await;
                }
            }
        }
    }

    fn set(&self, leads: Leads) {
        let changed = self
            .leads
            .send_if_modified(|now| std::mem::replace(now, leads) != leads);
        if changed {
            let what = if leads.is_leading() {
                "leads"
            } else {
                "no longer leads"
            };
            tracing::info!(target: LOG, "{} {what} ({})", self.identity, self.name);
        }
    }

    /// Reads the lease; false if it does not exist.
    pub(super) async fn read(&mut self) -> Result<bool, ApiError> {
        match self.store.get().await {
            Ok(lease) => {
                self.observed(lease);
                Ok(true)
            }
            Err(ApiError::NotFound { .. }) => {
                self.lost();
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the lease and acquires it if free. Returns whether this process then holds it.
    async fn look(&mut self) -> Result<Leads, ApiError> {
        let exists = self.read().await?;
        // A deleted lease stays valid until it would have expired: its holder notices at the next renewal.
        match (self.is_free(), exists) {
            (false, _) => Ok(Leads::No),
            (true, true) => self.write().await,
            (true, false) => self.create().await,
        }
    }

    /// Watches until the lease may be free.
    async fn follow(&mut self) -> Result<(), ApiError> {
        let Ok(opened) = tokio::time::timeout(self.until_over(), self.store.watch()).await else {
            return Ok(());
        };
        let mut news = opened?;
        while !self.is_free() {
            match tokio::time::timeout(self.until_over(), news.next()).await {
                Ok(Ok(Some(Event::Applied(lease)))) => self.observed(lease),
                Ok(Ok(Some(Event::Removed(_)))) => self.lost(),
                Ok(Ok(Some(Event::Bookmark(_)))) | Err(_) => {}
                Ok(Ok(None)) => {
                    // The watch ended normally; it is reopened soon.
                    tokio::time::sleep(spread(self.pace.retry)).await;
                    break;
                }
                Ok(Err(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Time until the lease expires for all watchers.
    fn until_over(&self) -> Duration {
        let over = self.since + self.lasts();
        spread(over.saturating_duration_since(Instant::now()) + self.pace.retry / 10)
    }

    /// Records the lease. Clocks of machines differ, so expiry depends on how long its record was unchanged
    /// here.
    fn observed(&mut self, lease: Value) {
        if self.lease["spec"] != lease["spec"] {
            self.since = Instant::now();
        }
        self.lease = lease;
        self.is_gone = false;
    }

    /// The lease was deleted. Its holder may have renewed it just before, unobserved.
    fn lost(&mut self) {
        if !std::mem::replace(&mut self.is_gone, true) && !self.lease.is_null() {
            self.since = Instant::now();
        }
    }

    fn lasts(&self) -> Duration {
        self.lease["spec"]["leaseDurationSeconds"]
            .as_u64()
            .map_or(self.pace.lasts, Duration::from_secs)
    }

    /// Whether this process may acquire it.
    fn is_free(&self) -> bool {
        let holder = self.lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        holder.is_empty() || holder == self.identity || self.since.elapsed() > self.lasts()
    }

    /// Creates a lease held by this process, unless another candidate was faster.
    async fn create(&mut self) -> Result<Leads, ApiError> {
        let leads = match self.lease.is_null() {
            true => Leads::First,
            false => Leads::Next,
        };
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": self.record(None),
        });
        self.wrote = true;
        match self.store.create(&lease).await {
            // The namespace does not exist.
            Err(error @ ApiError::NotFound { .. }) => Err(error),
            created => self.on_written(created, leads),
        }
    }

    /// Makes this process the holder, unless the lease has changed.
    async fn write(&mut self) -> Result<Leads, ApiError> {
        let mut next = self.lease.clone();
        next["spec"] = self.record(Some(&self.lease["spec"]));
        self.wrote = true;
        let written = self.store.replace(&next).await;
        self.on_written(written, Leads::Next)
    }

    /// On a conflict, the other candidate holds it.
    fn on_written(&mut self, written: Result<Value, ApiError>, leads: Leads) -> Result<Leads, ApiError> {
        match written {
            Ok(lease) => {
                self.observed(lease);
                Ok(leads)
            }
            Err(ApiError::Conflict(_) | ApiError::NotFound { .. }) => Ok(Leads::No),
            Err(error) => Err(error),
        }
    }

    /// This holder's record, after `previous`.
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

    /// Renews the lease, acquired at or after `renewed`, as long as this process holds it.
    async fn hold(&mut self, mut renewed: Instant) {
        let mut next = renewed + spread(self.pace.renew);
        loop {
            let until = renewed + self.pace.give_up;
            tokio::time::sleep_until(until.min(next)).await;
            let begun = Instant::now();
            if begun >= until {
                return;
            }
            let attempt = tokio::time::timeout_at(until.min(begun + self.pace.attempt), self.renew());
            let problem = match attempt.await {
                Ok(Ok(true)) => {
                    renewed = begun;
                    next = begun + spread(self.pace.renew);
                    continue;
                }
                Ok(Ok(false)) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {} s", self.pace.attempt.as_secs_f64()),
            };
            tracing::warn!(target: LOG, "cannot renew the lease {}: {problem}", self.name);
            next = begun + spread(self.pace.retry);
        }
    }

    /// Renews the lease; false if it was lost.
    async fn renew(&mut self) -> Result<bool, ApiError> {
        // Another candidate may have written it, or this process without receiving the response.
        Ok(self.write().await?.is_leading() || self.look().await?.is_leading())
    }

    async fn release(&mut self) -> Result<(), ApiError> {
        loop {
            if !self.read().await? || self.lease["spec"]["holderIdentity"] != *self.identity {
                return Ok(());
            }
            let mut lease = self.lease.clone();
            lease["spec"]["holderIdentity"] = "".into();
            lease["spec"]["leaseDurationSeconds"] = 1.into();
            lease["spec"]["renewTime"] = micro_time(Timestamp::now()).into();
            match self.store.replace(&lease).await {
                // A renewal in flight came first.
                Err(ApiError::Conflict(_)) => {}
                other => return other.map(drop),
            }
        }
    }
}

/// Kubernetes' time format with microseconds.
fn micro_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

#[cfg(test)]
mod tests;
