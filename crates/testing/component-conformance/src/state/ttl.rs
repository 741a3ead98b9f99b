use outrigger_component::state::{Concurrency, TTL, TTL_EXPIRES};

use super::{super::soon, Kind, Outcome, Set, Step, Subject, ensure, refused};

pub(super) fn expiring(subject: &Subject<'_>, name: &str, seconds: &str) -> Set {
    let mut set = subject.write(name, "value");
    set.metadata.insert(TTL.to_owned(), seconds.to_owned());
    set
}

async fn gone(subject: &Subject<'_>, name: &str) -> Outcome {
    soon(
        "it expires",
        || async move { Ok(subject.item(name).await?.is_none()) },
    )
    .await
}

pub(super) async fn values_expire(subject: &Subject<'_>) -> Outcome {
    subject
        .store
        .set(&expiring(subject, "key", "2"))
        .await
        .step("set")?;
    let item = subject.item("key").await?.ok_or("it is gone at once")?;
    let reported = item.metadata.get(TTL_EXPIRES);
    ensure!(
        reported.is_some() == subject.rules.reports_expiry,
        "{TTL_EXPIRES} is {reported:?}"
    );
    if let Some(time) = reported {
        ensure!(
            time.len() == 20 && time.ends_with('Z'),
            "{time} is not RFC 3339 in UTC"
        );
    }
    gone(subject, "key").await?;
    let items = subject
        .store
        .bulk_get(
            &[outrigger_component::state::Get::key(subject.key("key"))],
            outrigger_component::state::Bounds::default(),
        )
        .await
        .step("bulk get")?;
    ensure!(matches!(items[0].item, Ok(None)), "bulk get still finds it");
    subject.put("key", "again").await?;
    subject.holds("key", Some("again")).await
}

pub(super) async fn a_write_without_ttl_stays(subject: &Subject<'_>) -> Outcome {
    for (name, ttl) in [("never", Some("-1")), ("zero", Some("0")), ("plain", None)] {
        subject
            .store
            .set(&expiring(subject, name, "1"))
            .await
            .step("set")?;
        let again = match ttl {
            Some(ttl) => expiring(subject, name, ttl),
            None => subject.write(name, "value"),
        };
        subject.store.set(&again).await.step("set again")?;
    }
    // A key expiring in the same second shows that the second has passed.
    subject
        .store
        .set(&expiring(subject, "clock", "2"))
        .await
        .step("set")?;
    gone(subject, "clock").await?;
    subject.holds("never", Some("value")).await?;
    subject.holds("zero", Some("value")).await?;
    subject.holds("plain", Some("value")).await
}

pub(super) async fn an_expired_value_is_gone_for_etags(subject: &Subject<'_>) -> Outcome {
    subject
        .store
        .set(&expiring(subject, "key", "2"))
        .await
        .step("set")?;
    let mut set = subject.write("key", "new");
    set.etag = subject.item("key").await?.ok_or("it is gone at once")?.etag;
    gone(subject, "key").await?;
    refused(
        "the etag of an expired value",
        subject.store.set(&set).await,
        Kind::EtagMismatch,
    )?;
    set.etag = None;
    set.concurrency = Concurrency::FirstWrite;
    subject
        .store
        .set(&set)
        .await
        .step("first write over an expired value")?;
    subject.holds("key", Some("new")).await
}

pub(super) async fn a_wrong_ttl_is_refused(subject: &Subject<'_>) -> Outcome {
    for wrong in ["soon", "1.5", "99999999999999999999"] {
        let result = subject.store.set(&expiring(subject, "key", wrong)).await;
        refused(wrong, result, Kind::InvalidRequest)?;
    }
    subject.holds("key", None).await
}
