//! Rules for a temporary outage of the server.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use outrigger_component::{
    ConfigurationStore, LockStore, Result, StateStore,
    configuration::{Request, Subscription},
    lock::Unlocked,
    state::{Get, Set, Value},
};
use tokio::time::timeout;

use super::{Findings, Link, Outcome, SOON, Step, Writer, ensure, soon, unique};

const LONG: Duration = Duration::from_secs(120);

fn write(key: &str, value: &'static str) -> Set {
    Set {
        key: key.to_owned(),
        value: Value::Bytes(Bytes::from_static(value.as_bytes())),
        ..Set::default()
    }
}

/// A call during an outage ends in time with a retryable error.
async fn lost<T: std::fmt::Debug>(call: impl Future<Output = Result<T>>) -> Outcome {
    match timeout(SOON * 2, call).await.step("a call without the server")? {
        Err(error) if error.retryable() => Ok(()),
        other => Err(format!("a call without the server: {other:?}")),
    }
}

/// Runs the rules for a temporary outage of the server. Stored values must survive it.
///
/// # Panics
/// If a rule is broken.
pub async fn state_outlives(store: &Arc<dyn StateStore>, link: &mut impl Link) {
    let mut findings = Findings::new("state store without its server");
    let key = format!("outlives-{}", unique());
    let before = write(&key, "before");
    findings.note("a write works", store.set(&before).await.step("set"));
    link.cut();
    let during = lost(store.set(&write(&key, "during"))).await;
    findings.note("a lost server is reported to writers", during);
    let during = lost(store.get(&Get::key(key.as_str()))).await;
    findings.note("a lost server is reported to readers", during);
    link.restore();
    let back = soon("reads work again", || async {
        Ok(store.get(&Get::key(key.as_str())).await.is_ok())
    });
    findings.note("reads work again", back.await);
    findings.note("written values are present", holds(store, &key, "before").await);
    let after = store.set(&write(&key, "after")).await.step("set");
    findings.note("writes work again", after);
    findings.note("writes are seen again", holds(store, &key, "after").await);
    findings.note("the store answers", store.ping().await.step("ping"));
    findings.finish();
}

async fn holds(store: &Arc<dyn StateStore>, key: &str, value: &str) -> Outcome {
    let item = store.get(&Get::key(key)).await.step("get")?;
    let found = item.map(|item| item.data);
    ensure!(
        found.as_deref() == Some(value.as_bytes()),
        "it holds {found:?}, expected {value}"
    );
    Ok(())
}

/// Runs the rules for a temporary outage of the server. Locks must survive it.
///
/// # Panics
/// If a rule is broken.
pub async fn lock_outlives(store: &Arc<dyn LockStore>, link: &mut impl Link) {
    let mut findings = Findings::new("lock store without its server");
    let key = format!("outlives||{}", unique());
    let taken = store.try_lock(&key, "a", LONG).await.step("lock");
    findings.note("a lock is taken", taken.map(drop));
    link.cut();
    let during = lost(store.try_lock(&key, "b", LONG)).await;
    findings.note("a lost server is reported to lockers", during);
    let during = lost(store.unlock(&key, "a")).await;
    findings.note("a lost server is reported to unlockers", during);
    link.restore();
    let back = soon("the store answers", || async { Ok(store.ping().await.is_ok()) });
    findings.note("the store answers", back.await);
    findings.note("the lock is held by its owner", held(store, &key).await);
    findings.finish();
}

async fn held(store: &Arc<dyn LockStore>, key: &str) -> Outcome {
    let taken = store.try_lock(key, "b", LONG).await.step("lock")?;
    ensure!(!taken, "the lock was lost");
    let status = store.unlock(key, "a").await.step("unlock")?;
    ensure!(status == Unlocked::Success, "its owner unlocking: {status:?}");
    let taken = store.try_lock(key, "b", LONG).await.step("lock")?;
    ensure!(taken, "the lock is not free");
    Ok(())
}

/// Runs the rules for a temporary outage of the server. Values of `writer` must survive it; `writer` is used
/// only while the server is up.
///
/// # Panics
/// If a rule is broken.
pub async fn configuration_outlives(
    store: &Arc<dyn ConfigurationStore>,
    writer: &dyn Writer,
    link: &mut impl Link,
) {
    let mut findings = Findings::new("configuration store without its server");
    let watched = match Watched::start(store, writer).await {
        Ok(mut watched) => {
            findings.note("a change is reported", watched.change("before").await);
            Some(watched)
        }
        Err(error) => {
            findings.note("a subscription starts", Err(error));
            None
        }
    };
    link.cut();
    if let Some(watched) = &watched {
        findings.note(
            "a lost server is reported to readers",
            lost(store.get(&watched.request)).await,
        );
        findings.note(
            "a lost server is reported to who subscribes",
            lost(store.subscribe(&watched.request)).await,
        );
    }
    link.restore();
    if let Some(mut watched) = watched {
        let back = soon("reads work again", || async {
            Ok(store.get(&watched.request).await.is_ok())
        });
        findings.note("reads work again", back.await);
        findings.note("written values are present", watched.holds("before").await);
        findings.note("changes are reported again", watched.change("after").await);
        findings.note("and keep being reported", watched.change("later").await);
        findings.note("the store answers", store.ping().await.step("ping"));
        findings.note("subscriptions can end and restart", watched.again().await);
    }
    findings.finish();
}

/// Two subscribed keys; the second is never changed.
struct Watched<'a> {
    store: &'a Arc<dyn ConfigurationStore>,
    writer: &'a dyn Writer,
    request: Request,
    subscription: Subscription,
}

impl<'a> Watched<'a> {
    async fn start(store: &'a Arc<dyn ConfigurationStore>, writer: &'a dyn Writer) -> Result<Self, String> {
        let run = unique();
        let keys = ["changing", "staying"].map(|name| format!("outlives_{run}_{name}"));
        for key in &keys {
            writer.put(key, "start", "1").await;
        }
        let request = Request {
            keys: keys.to_vec(),
            metadata: writer.metadata(),
        };
        let subscription = store.subscribe(&request).await.step("subscribe")?;
        Ok(Self {
            store,
            writer,
            request,
            subscription,
        })
    }

    /// Changes a value and waits for its update; the other key must not be reported.
    async fn change(&mut self, value: &str) -> Outcome {
        let [changing, staying] = &self.request.keys[..] else {
            return Err("there are two keys".to_owned());
        };
        self.writer.put(changing, value, "2").await;
        let updated = async {
            while let Some(items) = self.subscription.updates.recv().await {
                ensure!(
                    !items.contains_key(staying),
                    "{staying} was reported without a change"
                );
                if items.get(changing).is_some_and(|item| item.value == value) {
                    return Ok(());
                }
            }
            Err("the subscription ended".to_owned())
        };
        timeout(SOON, updated).await.step(value)?
    }

    async fn holds(&self, value: &str) -> Outcome {
        let items = self.store.get(&self.request).await.step("get")?;
        let found = items.get(&self.request.keys[0]);
        ensure!(
            found.is_some_and(|item| item.value == value),
            "it holds {items:?}, expected {value}"
        );
        Ok(())
    }

    async fn again(mut self) -> Outcome {
        let id = &self.subscription.id;
        self.store.unsubscribe(id).await.step("unsubscribe")?;
        let again = self.store.subscribe(&self.request).await.step("subscribe")?;
        self.subscription = again;
        self.change("again").await?;
        let id = &self.subscription.id;
        self.store.unsubscribe(id).await.step("unsubscribe")
    }
}
