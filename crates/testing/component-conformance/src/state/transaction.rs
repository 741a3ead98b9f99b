use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use outrigger_component::state::{Concurrency, Operation, Set, Transaction};

use super::{Feature, Get, Kind, Outcome, Step, Subject, ensure, refused, ttl::expiring};
use crate::soon;

fn of(operations: Vec<Operation>) -> Transaction {
    Transaction {
        operations,
        ..Transaction::default()
    }
}

pub(super) async fn applies_all_operations(subject: &Subject<'_>) -> Outcome {
    subject.put("old", "1").await?;
    subject.put("kept", "1").await?;
    let mut kept = subject.write("kept", "2");
    if subject.has(Feature::Etag) {
        kept.etag = Some(subject.etag("kept").await?);
    }
    let transaction = of(vec![
        Operation::Set(subject.write("new", "2")),
        Operation::Delete(subject.removal("old", None)),
        Operation::Set(kept),
        Operation::Delete(subject.removal("absent", None)),
    ]);
    subject.store.transact(&transaction).await.step("transact")?;
    subject.holds("new", Some("2")).await?;
    subject.holds("old", None).await?;
    subject.holds("kept", Some("2")).await
}

pub(super) async fn one_failure_aborts_all(subject: &Subject<'_>) -> Outcome {
    if !subject.has(Feature::Etag) {
        return Ok(());
    }
    subject.put("guarded", "1").await?;
    let stale = subject.etag("guarded").await?;
    subject.put("guarded", "2").await?;
    subject.put("old", "1").await?;
    let mut stale_set = subject.write("guarded", "3");
    stale_set.etag = Some(stale.clone());
    for failing in [
        Operation::Set(stale_set),
        Operation::Delete(subject.removal("guarded", Some(&stale))),
    ] {
        for position in 0..3 {
            let mut operations = vec![
                Operation::Set(subject.write("new", "1")),
                Operation::Delete(subject.removal("old", None)),
            ];
            operations.insert(position, failing.clone());
            let result = subject.store.transact(&of(operations)).await;
            refused("a stale etag", result, Kind::EtagMismatch)?;
            subject.holds("new", None).await?;
            subject.holds("old", Some("1")).await?;
            subject.holds("guarded", Some("2")).await?;
        }
    }
    Ok(())
}

pub(super) async fn only_new_writes_once(subject: &Subject<'_>) -> Outcome {
    if !subject.has(Feature::Etag) {
        return Ok(());
    }
    let new = |value: &str| {
        of(vec![
            Operation::Set(subject.write("beside", value)),
            Operation::Set(Set {
                concurrency: Concurrency::FirstWrite,
                only_new: true,
                ..subject.write("new", value)
            }),
        ])
    };
    subject.store.transact(&new("1")).await.step("transact")?;
    let result = subject.store.transact(&new("2")).await;
    if !subject.rules.rejects_existing_key {
        result.step("over a key that is there")?;
        return subject.holds("new", Some("2")).await;
    }
    refused("a key that is there", result, Kind::EtagMismatch)?;
    subject.holds("new", Some("1")).await?;
    subject.holds("beside", Some("1")).await?;
    // Afterwards it is an ordinary key.
    let over = of(vec![Operation::Set(subject.write("new", "3"))]);
    subject.store.transact(&over).await.step("a plain write")?;
    subject.holds("new", Some("3")).await?;
    let removal = of(vec![Operation::Delete(subject.removal("new", None))]);
    subject.store.transact(&removal).await.step("its removal")?;
    subject.store.transact(&new("4")).await.step("once more")?;
    subject.holds("new", Some("4")).await
}

pub(super) async fn operations_keep_their_order(subject: &Subject<'_>) -> Outcome {
    let transaction = of(vec![
        Operation::Set(subject.write("a", "1")),
        Operation::Set(subject.write("a", "2")),
        Operation::Set(subject.write("b", "1")),
        Operation::Delete(subject.removal("b", None)),
        Operation::Delete(subject.removal("c", None)),
        Operation::Set(subject.write("c", "1")),
    ]);
    subject.store.transact(&transaction).await.step("transact")?;
    subject.holds("a", Some("2")).await?;
    subject.holds("b", None).await?;
    subject.holds("c", Some("1")).await
}

pub(super) async fn returns_new_etag(subject: &Subject<'_>) -> Outcome {
    if !subject.has(Feature::Etag) {
        return Ok(());
    }
    subject.put("old", "1").await?;
    let key = subject.key("counted");
    let mut etag = None;
    // First over absent keys, then over existing ones; alone, among others, and twice.
    for (round, more) in [
        vec![],
        vec![],
        vec![
            Operation::Set(subject.write("other", "2")),
            Operation::Delete(subject.removal("old", None)),
        ],
        vec![Operation::Set(subject.write("other", "3"))],
        vec![Operation::Delete(subject.removal("other", None))],
        vec![
            Operation::Set(subject.write("twice", "1")),
            Operation::Set(subject.write("twice", "2")),
        ],
        vec![Operation::Set(subject.write("counted", "0"))],
    ]
    .into_iter()
    .enumerate()
    {
        let mut counted = subject.write("counted", &round.to_string());
        counted.etag.clone_from(&etag);
        let mut operations = more;
        let first = usize::from(!operations.is_empty() && round % 2 == 0);
        // The ETag is on the first operation if the key occurs twice, otherwise on one in the middle.
        let at = if round == 6 { 0 } else { first };
        operations.insert(at, Operation::Set(counted));
        let returned = subject
            .store
            .transact_etag(&of(operations), &key)
            .await
            .step("transact")?;
        let now = subject.etag("counted").await?;
        ensure!(
            returned.as_ref().is_none_or(|returned| *returned == now),
            "round {round}: the transaction returned {returned:?}, a read {now:?}"
        );
        etag = Some(now);
    }
    let mut stale = subject.write("counted", "x");
    stale.etag = etag;
    subject.put("counted", "9").await?;
    let operations = of(vec![
        Operation::Set(subject.write("new", "1")),
        Operation::Set(stale),
    ]);
    let result = subject.store.transact_etag(&operations, &key).await;
    refused("a stale etag", result, Kind::EtagMismatch)?;
    subject.holds("new", None).await?;
    subject.holds("counted", Some("9")).await
}

pub(super) async fn empty_transaction_succeeds(subject: &Subject<'_>) -> Outcome {
    subject.store.transact(&of(vec![])).await.step("no operations")?;
    let one = of(vec![Operation::Set(subject.write("one", "1"))]);
    subject.store.transact(&one).await.step("one operation")?;
    subject.holds("one", Some("1")).await
}

pub(super) async fn values_expire(subject: &Subject<'_>) -> Outcome {
    if !subject.has(Feature::Ttl) {
        return Ok(());
    }
    let had_ttl = expiring(subject, "kept", "1");
    subject.store.set(&had_ttl).await.step("set")?;
    let transaction = of(vec![
        Operation::Set(expiring(subject, "short", "2")),
        Operation::Set(subject.write("long", "1")),
        Operation::Set(subject.write("kept", "2")),
    ]);
    subject.store.transact(&transaction).await.step("transact")?;
    subject.holds("short", Some("value")).await?;
    soon("it expires", || async move {
        Ok(subject.item("short").await?.is_none())
    })
    .await?;
    subject.holds("long", Some("1")).await?;
    subject.holds("kept", Some("2")).await
}

pub(super) async fn readers_see_all_or_nothing(subject: &Subject<'_>) -> Outcome {
    let pair = |value: &str| {
        of(vec![
            Operation::Set(subject.write("left", value)),
            Operation::Set(subject.write("right", value)),
        ])
    };
    subject.store.transact(&pair("0")).await.step("transact")?;
    let writing = Arc::new(AtomicBool::new(true));
    let reader = {
        let (store, writing) = (subject.store.clone(), writing.clone());
        let gets = ["right", "left"].map(|name| Get::key(subject.key(name)));
        tokio::spawn(async move {
            let mut earlier = (0, 0);
            while writing.load(Ordering::Relaxed) {
                // `right` is read first, so `left` may be newer but never older.
                let mut numbers = [0u32; 2];
                for (get, number) in gets.iter().zip(&mut numbers) {
                    let item = store.get(get).await.step("get")?.ok_or("a value vanished")?;
                    *number = String::from_utf8_lossy(&item.data).parse().step("parse")?;
                }
                ensure!(
                    numbers[1] >= numbers[0],
                    "left {} right {}",
                    numbers[1],
                    numbers[0]
                );
                ensure!((numbers[0], numbers[1]) >= earlier, "time ran backwards");
                earlier = (numbers[0], numbers[1]);
            }
            Ok(())
        })
    };
    for number in 1..=20 {
        let result = subject.store.transact(&pair(&number.to_string())).await;
        if result.is_err() {
            writing.store(false, Ordering::Relaxed);
        }
        result.step("transact")?;
    }
    writing.store(false, Ordering::Relaxed);
    reader.await.step("reader")?
}

pub(super) async fn unsupported_is_reported(subject: &Subject<'_>) -> Outcome {
    refused(
        "transact",
        subject.store.transact(&of(vec![])).await,
        Kind::Unsupported,
    )
}
