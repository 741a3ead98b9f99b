//! An in-memory API under simulated time, and replicas that elect a leader with it.

use std::sync::{Arc, Mutex, MutexGuard};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;

use super::super::super::store::{LeaseStore, LeaseWatch};
use super::*;

/// State of the API.
#[derive(Default)]
pub(super) struct Stored {
    lease: Option<Value>,
    version: u64,
    /// The namespace does not exist.
    lacks_namespace: bool,
    asked: usize,
}

/// The API.
#[derive(Default)]
pub(super) struct Api {
    kept: Mutex<Stored>,
    changed: watch::Sender<u64>,
}

impl Api {
    fn kept(&self) -> MutexGuard<'_, Stored> {
        self.kept.lock().unwrap()
    }

    fn put(&self, mut lease: Value) -> Value {
        let mut kept = self.kept();
        kept.version += 1;
        lease["metadata"]["resourceVersion"] = kept.version.to_string().into();
        kept.lease = Some(lease.clone());
        self.changed.send_replace(kept.version);
        lease
    }

    pub(super) fn remove_namespace(&self) {
        self.kept().lacks_namespace = true;
    }

    /// Number of requests received.
    pub(super) fn asked(&self) -> usize {
        self.kept().asked
    }

    pub(super) fn holder(&self) -> String {
        let holder = |lease: &Value| lease["spec"]["holderIdentity"].as_str().map(str::to_owned);
        self.kept().lease.as_ref().and_then(holder).unwrap_or_default()
    }

    pub(super) fn delete(&self) {
        let mut kept = self.kept();
        kept.version += 1;
        kept.lease = None;
        self.changed.send_replace(kept.version);
    }
}

/// A replica's network link to the API.
#[derive(Default)]
pub(super) struct Network {
    /// Drops everything.
    pub(super) is_cut: bool,
    /// Delays some messages by seconds.
    pub(super) is_slow: bool,
    /// Number of next requests to lose.
    pub(super) lost: usize,
    /// Number of next watches to refuse.
    pub(super) refused: usize,
    /// Delay of responses to writes.
    pub(super) late: Duration,
}

/// A replica's end of the network.
pub(super) struct Link {
    api: Arc<Api>,
    network: Arc<watch::Sender<Network>>,
    random: Mutex<StdRng>,
}

impl Link {
    fn below(&self, most: u64) -> u64 {
        self.random.lock().unwrap().random_range(0..most)
    }

    /// Delivers a message.
    async fn hop(&self) -> Result<(), ApiError> {
        let is_slow = self.network.borrow().is_slow && self.below(12) == 0;
        let millis = if is_slow {
            1 + self.below(8_000)
        } else {
            1 + self.below(40)
        };
        tokio::time::sleep(Duration::from_millis(millis)).await;
        if !self.network.borrow().is_cut {
            return Ok(());
        }
        // The connection is refused, or the response is lost.
        match self.below(2) {
            0 => Err(unreachable()),
            _ => std::future::pending().await,
        }
    }

    async fn call(
        &self,
        what: impl FnOnce(&Api) -> Result<Value, ApiError> + Send,
    ) -> Result<Value, ApiError> {
        let is_lost = |network: &mut Network| {
            let left = network.lost.checked_sub(1);
            network.lost = left.unwrap_or_default();
            left.is_some()
        };
        if self.network.send_if_modified(is_lost) {
            return std::future::pending().await;
        }
        self.hop().await?;
        self.api.kept().asked += 1;
        let answer = what(&self.api);
        self.hop().await?;
        answer
    }

    async fn change(
        &self,
        what: impl FnOnce(&Api) -> Result<Value, ApiError> + Send,
    ) -> Result<Value, ApiError> {
        let answer = self.call(what).await;
        let late = self.network.borrow().late;
        tokio::time::sleep(late).await;
        answer
    }
}

fn unreachable() -> ApiError {
    ApiError::Unreachable {
        what: "the lease".to_owned(),
        cause: "cut off".to_owned(),
    }
}

fn absent() -> ApiError {
    ApiError::NotFound {
        what: "the lease".to_owned(),
        named: true,
    }
}

impl LeaseStore for Link {
    type LeaseWatch = Following;

    async fn get(&self) -> Result<Value, ApiError> {
        self.call(|api| api.kept().lease.clone().ok_or_else(absent)).await
    }

    async fn create(&self, lease: &Value) -> Result<Value, ApiError> {
        self.change(|api| {
            let (exists, lacks_namespace) = {
                let kept = api.kept();
                (kept.lease.is_some(), kept.lacks_namespace)
            };
            match exists {
                _ if lacks_namespace => Err(absent()),
                true => Err(ApiError::Conflict("it exists".to_owned())),
                false => Ok(api.put(lease.clone())),
            }
        })
        .await
    }

    async fn replace(&self, lease: &Value) -> Result<Value, ApiError> {
        self.change(|api| {
            let version = match &api.kept().lease {
                None => return Err(absent()),
                Some(known) => known["metadata"]["resourceVersion"].clone(),
            };
            match version == lease["metadata"]["resourceVersion"] {
                true => Ok(api.put(lease.clone())),
                false => Err(ApiError::Conflict("another version".to_owned())),
            }
        })
        .await
    }

    async fn watch(&self) -> Result<Following, ApiError> {
        self.hop().await?;
        let is_refused = |network: &mut Network| {
            let left = network.refused.checked_sub(1);
            network.refused = left.unwrap_or_default();
            left.is_some()
        };
        if self.network.send_if_modified(is_refused) {
            return Err(unreachable());
        }
        let mut changed = self.api.changed.subscribe();
        changed.mark_changed();
        self.hop().await?;
        Ok(Following {
            api: Arc::clone(&self.api),
            changed,
            network: self.network.subscribe(),
        })
    }
}

/// A watch of the lease.
pub(super) struct Following {
    api: Arc<Api>,
    changed: watch::Receiver<u64>,
    network: watch::Receiver<Network>,
}

impl LeaseWatch for Following {
    async fn next(&mut self) -> Result<Option<Event>, ApiError> {
        self.changed.changed().await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        // A partitioned replica receives nothing until its connection fails.
        if self.network.borrow().is_cut {
            self.network.wait_for(|network| !network.is_cut).await.unwrap();
            return Err(unreachable());
        }
        let lease = self.api.kept().lease.clone();
        Ok(Some(lease.map_or(Event::Removed(Value::Null), Event::Applied)))
    }
}

/// A running replica.
pub(super) struct Replica {
    pub(super) name: String,
    pub(super) leads: Leadership,
    pub(super) network: Arc<watch::Sender<Network>>,
    pub(super) stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Replica {
    pub(super) fn start(api: &Arc<Api>, name: &str, pace: Pace, seed: u64) -> Self {
        let network = Arc::new(watch::Sender::new(Network::default()));
        let link = Link {
            api: Arc::clone(api),
            network: Arc::clone(&network),
            random: Mutex::new(StdRng::seed_from_u64(seed)),
        };
        let candidate = Candidate::new(link, "ns", "l", name.to_owned(), pace);
        let (leads, stop) = (candidate.leadership(), CancellationToken::new());
        let task = tokio::spawn(candidate.run(stop.clone()));
        Self {
            name: name.to_owned(),
            leads,
            network,
            stop,
            task,
        }
    }

    pub(super) fn leads(&self) -> Leads {
        *self.leads.borrow()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Crashes it.
    pub(super) async fn kill(mut self) {
        self.task.abort();
        assert!((&mut self.task).await.unwrap_err().is_cancelled());
    }

    /// Waits until it leads, or no longer does.
    pub(super) async fn until(&mut self, leading: bool) -> Leads {
        *self
            .leads
            .wait_for(|leads| leads.is_leading() == leading)
            .await
            .unwrap()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.task.abort();
    }
}
