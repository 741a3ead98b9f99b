use outrigger_component::state::{Bounds, BulkError};

use super::{Feature, Get, Kind, Outcome, Step, Subject, ensure};

pub(super) async fn bulk_get_answers_in_order(subject: &Subject<'_>) -> Outcome {
    subject.put("a", "1").await?;
    subject.put("b", "2").await?;
    let names = ["b", "absent", "a", "b"];
    let gets: Vec<_> = names.iter().map(|name| Get::key(subject.key(name))).collect();
    for parallelism in [0, 1, 2] {
        let items = subject
            .store
            .bulk_get(
                &gets,
                Bounds {
                    parallelism,
                    ..Bounds::default()
                },
            )
            .await
            .step("bulk get")?;
        ensure!(items.len() == 4, "{} answers to 4 keys", items.len());
        for ((item, name), expected) in items
            .iter()
            .zip(names)
            .zip([Some("2"), None, Some("1"), Some("2")])
        {
            ensure!(
                item.key == subject.key(name),
                "{} stands where {name} should",
                item.key
            );
            let item = item.item.as_ref().map_err(|error| format!("{name}: {error}"))?;
            let data = item.as_ref().map(|item| &item.data[..]);
            ensure!(data == expected.map(str::as_bytes), "{name} is {data:?}");
            ensure!(
                !subject.has(Feature::Etag) || item.as_ref().is_none_or(|item| item.etag.is_some()),
                "{name} has no etag"
            );
        }
    }
    let nothing = subject.store.bulk_get(&[], Bounds::default()).await;
    let none = nothing.step("bulk get of nothing")?;
    ensure!(none.is_empty(), "nothing was asked, {} answers", none.len());
    Ok(())
}

pub(super) async fn bulk_get_stops_at_bound(subject: &Subject<'_>) -> Outcome {
    subject.put("a", "1").await?;
    subject.put("b", "2").await?;
    let gets = ["b", "absent", "a", "b"].map(|name| Get::key(subject.key(name)));
    let within = |bytes| {
        let bounds = Bounds {
            bytes,
            ..Bounds::default()
        };
        subject.store.bulk_get(&gets, bounds)
    };
    let items = within(3).await.step("bulk get of as much as it may be")?;
    ensure!(items.len() == 4, "{} answers to 4 keys", items.len());
    for bytes in [0, 1, 2] {
        match within(bytes).await {
            Ok(_) => return Err(format!("3 bytes are answered where {bytes} may be")),
            Err(error) => ensure!(error.kind() == Kind::TooLarge, "{bytes} bytes: {error:?}"),
        }
    }
    let items = within(usize::MAX).await.step("bulk get after those")?;
    ensure!(items.len() == 4, "{} answers to 4 keys", items.len());
    Ok(())
}

/// Checks that exactly the operations at `expected` failed with an ETag error.
fn failed(
    subject: &Subject<'_>,
    what: &str,
    result: Result<(), BulkError>,
    mut expected: &[usize],
) -> Outcome {
    if subject.rules.bulk_fails_whole && !expected.is_empty() {
        expected = &[0, 1, 2];
    }
    let failures = result.err().map(|error| error.failures).unwrap_or_default();
    let indexes: Vec<_> = failures.iter().map(|(index, _)| *index).collect();
    ensure!(
        indexes == expected,
        "{what}: {indexes:?} failed, expected {expected:?}"
    );
    for (_, error) in failures {
        ensure!(error.kind() == Kind::EtagMismatch, "{what}: {error:?}");
    }
    Ok(())
}

pub(super) async fn bulk_set_reports_failures(subject: &Subject<'_>) -> Outcome {
    let names = ["a", "b", "c"];
    let mut sets = names.map(|name| subject.write(name, "first"));
    failed(subject, "all new", subject.store.bulk_set(&sets, 0).await, &[])?;
    failed(subject, "nothing", subject.store.bulk_set(&[], 0).await, &[])?;
    if !subject.has(Feature::Etag) {
        return Ok(());
    }
    let stale = subject.etag("b").await?;
    subject.put("b", "other").await?;
    for set in &mut sets {
        *set = subject.write(set.key.rsplit('|').next().unwrap_or_default(), "second");
    }
    sets[1].etag = Some(stale);
    for parallelism in [0, 1] {
        failed(
            subject,
            "a stale etag",
            subject.store.bulk_set(&sets, parallelism).await,
            &[1],
        )?;
    }
    subject.holds("a", Some("second")).await?;
    subject.holds("b", Some("other")).await?;
    subject.holds("c", Some("second")).await
}

pub(super) async fn bulk_delete_reports_failures(subject: &Subject<'_>) -> Outcome {
    for name in ["a", "b", "c"] {
        subject.put(name, "value").await?;
    }
    let mut removals = ["a", "b", "absent"].map(|name| subject.removal(name, None));
    let mut expected = vec![];
    if subject.has(Feature::Etag) {
        removals[1].etag = Some(subject.etag("b").await?);
        subject.put("b", "other").await?;
        expected.push(1);
    }
    failed(
        subject,
        "a stale etag",
        subject.store.bulk_delete(&removals, 0).await,
        &expected,
    )?;
    subject.holds("a", None).await?;
    subject
        .holds("b", (!expected.is_empty()).then_some("other"))
        .await?;
    subject.holds("c", Some("value")).await
}
