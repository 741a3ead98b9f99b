//! The rules about a server that goes away and comes back.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::timeout;

use super::{Findings, Link, Outcome, SOON, Step, ensure, soon, unique};
use crate::{
    LockStore, Result, StateStore,
    lock::Unlocked,
    state::{Get, Set, Value},
};

const LONG: Duration = Duration::from_secs(120);

fn write(key: &str, value: &'static str) -> Set {
    Set {
        key: key.to_owned(),
        value: Value::Bytes(Bytes::from_static(value.as_bytes())),
        ..Set::default()
    }
}

/// A call without the server ends in time, with an error that says to try again.
async fn lost<T: std::fmt::Debug>(call: impl Future<Output = Result<T>>) -> Outcome {
    match timeout(SOON * 2, call).await.step("a call without the server")? {
        Err(error) if error.retryable() => Ok(()),
        other => Err(format!("a call without the server: {other:?}")),
    }
}

/// Runs the rules about a server that goes away and comes back. What was written must outlive it.
///
/// # Panics
/// When a rule is broken.
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
    findings.note("what was written is there", holds(store, &key, "before").await);
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

/// Runs the rules about a server that goes away and comes back. Locks must outlive it.
///
/// # Panics
/// When a rule is broken.
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
