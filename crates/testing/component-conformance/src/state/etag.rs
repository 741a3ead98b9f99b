use std::sync::Arc;

use outrigger_component::state::Concurrency;

use super::{Get, Kind, Outcome, Set, StateStore, Step, Subject, Value, ensure, refused};

pub(super) async fn each_write_has_its_etag(subject: &Subject<'_>) -> Outcome {
    subject.put("key", "same").await?;
    let first = subject.etag("key").await?;
    ensure!(subject.etag("key").await? == first, "reading changed the etag");
    subject.put("key", "same").await?;
    ensure!(subject.etag("key").await? != first, "writing kept the etag");
    Ok(())
}

pub(super) async fn a_write_needs_the_current_etag(subject: &Subject<'_>) -> Outcome {
    subject.put("key", "1").await?;
    let stale = subject.etag("key").await?;
    subject.put("key", "2").await?;
    let mut set = subject.write("key", "3");
    set.etag = Some(stale.clone());
    refused("a stale etag", subject.store.set(&set).await, Kind::EtagMismatch)?;
    subject.holds("key", Some("2")).await?;
    set.etag = Some(subject.etag("key").await?);
    for concurrency in [Concurrency::Unspecified, Concurrency::FirstWrite] {
        set.concurrency = concurrency;
        set.etag = Some(subject.etag("key").await?);
        subject.store.set(&set).await.step("the current etag")?;
    }
    subject.holds("key", Some("3")).await?;
    subject.put("other", "1").await?;
    let mut empty = subject.write("other", "2");
    empty.etag = Some(String::new());
    subject.store.set(&empty).await.step("an empty etag")?;
    let mut absent = subject.write("absent", "1");
    for etag in [stale.as_str(), "0", "-1"] {
        absent.etag = Some(etag.to_owned());
        let result = subject.store.set(&absent).await;
        ensure!(
            result.as_ref().is_err_and(|error| error.is_etag()),
            "writing an absent key with the etag {etag:?} led to {result:?}"
        );
        subject.holds("absent", None).await?;
    }
    Ok(())
}

pub(super) async fn a_delete_needs_the_current_etag(subject: &Subject<'_>) -> Outcome {
    subject.put("key", "1").await?;
    let stale = subject.etag("key").await?;
    subject.put("key", "2").await?;
    let delete = |etag: &str| subject.removal("key", Some(etag));
    let result = subject.store.delete(&delete(&stale)).await;
    refused("a stale etag", result, Kind::EtagMismatch)?;
    subject.holds("key", Some("2")).await?;
    let current = subject.etag("key").await?;
    subject
        .store
        .delete(&delete(&current))
        .await
        .step("the current etag")?;
    subject.holds("key", None).await?;
    let result = subject.store.delete(&delete(&current)).await;
    refused("an etag of nothing", result, Kind::EtagMismatch)
}

pub(super) async fn an_alien_etag_is_refused(subject: &Subject<'_>) -> Outcome {
    subject.put("key", "1").await?;
    for alien in [
        "not-an-etag",
        "'; DROP TABLE state; --",
        "-1",
        "99999999999999999999",
    ] {
        let mut set = subject.write("key", "2");
        set.etag = Some(alien.to_owned());
        let result = subject.store.set(&set).await;
        let kind = result.as_ref().err().map(|error| error.kind());
        let number = alien.parse::<i64>().is_ok();
        ensure!(
            kind == Some(subject.rules.alien_etag) || (number && kind == Some(Kind::EtagMismatch)),
            "{alien:?} led to {result:?}"
        );
        let result = subject.store.delete(&subject.removal("key", Some(alien))).await;
        ensure!(
            result.as_ref().is_err_and(|error| error.is_etag()),
            "deleting with {alien:?} led to {result:?}"
        );
    }
    subject.holds("key", Some("1")).await
}

pub(super) async fn first_write_wins(subject: &Subject<'_>) -> Outcome {
    let first = |value| Set {
        concurrency: Concurrency::FirstWrite,
        ..subject.write("key", value)
    };
    subject.put("plain", "1").await?;
    let over = Set {
        key: subject.key("plain"),
        ..first("2")
    };
    refused(
        "a first write over a value",
        subject.store.set(&over).await,
        Kind::EtagMismatch,
    )?;
    subject.holds("plain", Some("1")).await?;
    subject.store.set(&first("1")).await.step("the first")?;
    let second = subject.store.set(&first("2")).await;
    ensure!(
        second.is_err_and(|error| !error.retryable()),
        "a second first write succeeded"
    );
    subject.holds("key", Some("1")).await?;
    let last = Set {
        concurrency: Concurrency::LastWrite,
        ..subject.write("other", "3")
    };
    for _ in 0..2 {
        subject.store.set(&last).await.step("a last write")?;
    }
    subject.holds("other", Some("3")).await
}

async fn increment(store: Arc<dyn StateStore>, key: String) -> Outcome {
    loop {
        let item = store
            .get(&Get::key(key.clone()))
            .await
            .step("get")?
            .ok_or("absent")?;
        let number: u64 = String::from_utf8_lossy(&item.data).parse().step("parse")?;
        let set = Set {
            key: key.clone(),
            value: Value::Bytes((number + 1).to_string().into()),
            etag: item.etag,
            ..Set::default()
        };
        match store.set(&set).await {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == Kind::EtagMismatch => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

pub(super) async fn concurrent_writers_lose_nothing(subject: &Subject<'_>) -> Outcome {
    subject.put("counter", "0").await?;
    let tasks: Vec<_> = (0..16)
        .map(|_| tokio::spawn(increment(subject.store.clone(), subject.key("counter"))))
        .collect();
    for task in tasks {
        task.await.step("task")??;
    }
    subject.holds("counter", Some("16")).await
}

pub(super) async fn one_of_many_first_writers_wins(subject: &Subject<'_>) -> Outcome {
    let tasks: Vec<_> = (0..16)
        .map(|number| {
            let set = Set {
                concurrency: Concurrency::FirstWrite,
                ..subject.write("key", &number.to_string())
            };
            let store = subject.store.clone();
            tokio::spawn(async move { store.set(&set).await.is_ok() })
        })
        .collect();
    let mut winners = Vec::new();
    for (number, task) in tasks.into_iter().enumerate() {
        if task.await.step("task")? {
            winners.push(number);
        }
    }
    ensure!(winners.len() == 1, "{winners:?} won");
    subject.holds("key", Some(&winners[0].to_string())).await
}
