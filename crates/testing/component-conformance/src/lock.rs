use std::{sync::Arc, time::Duration};

use outrigger_component::{LockStore, lock::Unlocked};

use super::{Findings, Outcome, Step, ensure, soon, unique};

const LONG: Duration = Duration::from_secs(60);

/// Runs all rules for lock stores. The store may hold other locks.
///
/// # Panics
/// If a rule is broken.
pub async fn lock(store: &Arc<dyn LockStore>) {
    let mut findings = Findings::new("lock store");
    let run = unique();
    let key = |rule: &str| format!("lock||{run}||{rule}");
    findings.note("one owner at a time", one_owner(store, &key("owner")).await);
    findings.note("only the owner unlocks", unlocking(store, &key("unlock")).await);
    findings.note("locks expire", expiry(store, &key("expiry")).await);
    findings.note("one of many wins", one_winner(store, &key("many")).await);
    findings.note("the store answers", store.ping().await.step("ping"));
    findings.finish();
}

async fn one_owner(store: &Arc<dyn LockStore>, key: &str) -> Outcome {
    ensure!(
        store.try_lock(key, "a", LONG).await.step("lock")?,
        "a free lock was refused"
    );
    for owner in ["b", "a"] {
        let taken = store.try_lock(key, owner, LONG).await.step("lock")?;
        ensure!(!taken, "{owner} took the lock that a holds");
    }
    let other = format!("{key}-other");
    ensure!(
        store.try_lock(&other, "b", LONG).await.step("lock")?,
        "locks are not apart"
    );
    Ok(())
}

async fn unlocking(store: &Arc<dyn LockStore>, key: &str) -> Outcome {
    let unlock = async |owner: &str, expected: Unlocked| {
        let status = store.unlock(key, owner).await.step("unlock")?;
        ensure!(
            status == expected,
            "unlocking by {owner}: {status:?}, expected {expected:?}"
        );
        Ok(())
    };
    unlock("a", Unlocked::NoSuchLock).await?;
    store.try_lock(key, "a", LONG).await.step("lock")?;
    unlock("b", Unlocked::OthersLock).await?;
    ensure!(
        !store.try_lock(key, "b", LONG).await.step("lock")?,
        "the lock was lost"
    );
    unlock("a", Unlocked::Success).await?;
    unlock("a", Unlocked::NoSuchLock).await?;
    ensure!(
        store.try_lock(key, "b", LONG).await.step("lock")?,
        "the lock is not free"
    );
    Ok(())
}

async fn expiry(store: &Arc<dyn LockStore>, key: &str) -> Outcome {
    store
        .try_lock(key, "a", Duration::from_secs(1))
        .await
        .step("lock")?;
    soon("the lock expires", || async move {
        store.try_lock(key, "b", LONG).await.step("lock")
    })
    .await?;
    let status = store.unlock(key, "a").await.step("unlock")?;
    ensure!(
        status == Unlocked::OthersLock,
        "the former owner unlocked: {status:?}"
    );
    Ok(())
}

async fn one_winner(store: &Arc<dyn LockStore>, key: &str) -> Outcome {
    let tasks: Vec<_> = (0..16)
        .map(|number| {
            let (store, key) = (store.clone(), key.to_owned());
            tokio::spawn(async move { store.try_lock(&key, &number.to_string(), LONG).await })
        })
        .collect();
    let mut winners = 0;
    for task in tasks {
        winners += usize::from(task.await.step("task")?.step("lock")?);
    }
    ensure!(winners == 1, "{winners} of 16 took the lock");
    Ok(())
}
