use outrigger_component::state::KeysLike;

use super::{Delete, Feature, Get, Kind, Outcome, Set, Step, Subject, ensure, refused};

pub(super) async fn unusual_keys(subject: &Subject<'_>) -> Outcome {
    let long = "k".repeat(2000);
    let names = [
        "with space",
        "quote ' and \" and `",
        "percent % and _",
        "back\\slash",
        "new\nline",
        "ünïcödé ✓ 鍵",
        "$1 ?1 :x {a}",
        &long,
    ];
    for name in names {
        subject.put(name, name).await?;
    }
    for name in names {
        subject.holds(name, Some(name)).await?;
        subject
            .store
            .delete(&subject.removal(name, None))
            .await
            .step("delete")?;
        subject.holds(name, None).await?;
    }
    Ok(())
}

pub(super) async fn keys_are_exact(subject: &Subject<'_>) -> Outcome {
    for name in ["a", "ab", "A", "a ", "%", "_"] {
        subject.put(name, name).await?;
    }
    subject
        .store
        .delete(&subject.removal("_", None))
        .await
        .step("delete")?;
    subject
        .store
        .delete(&subject.removal("a", None))
        .await
        .step("delete")?;
    for name in ["ab", "A", "a ", "%"] {
        subject.holds(name, Some(name)).await?;
    }
    subject.holds("a", None).await
}

pub(super) async fn an_empty_key_is_refused(subject: &Subject<'_>) -> Outcome {
    let store = subject.store;
    refused("set", store.set(&Set::default()).await, Kind::InvalidRequest)?;
    refused("get", store.get(&Get::default()).await, Kind::InvalidRequest)?;
    refused(
        "delete",
        store.delete(&Delete::default()).await,
        Kind::InvalidRequest,
    )
}

async fn page(
    subject: &Subject<'_>,
    pattern: &str,
    page_size: Option<u32>,
    token: Option<String>,
) -> Result<(Vec<String>, Option<String>), String> {
    let request = KeysLike {
        pattern: pattern.to_owned(),
        page_size,
        token,
    };
    let page = subject.store.keys_like(&request).await.step(pattern)?;
    let strip = |key: String| key.replace(&subject.key(""), "");
    Ok((page.keys.into_iter().map(strip).collect(), page.token))
}

pub(super) async fn patterns_find_keys(subject: &Subject<'_>) -> Outcome {
    if !subject.has(Feature::KeysLike) {
        let result = subject.store.keys_like(&KeysLike::default()).await;
        return refused("keys like", result, Kind::Unsupported);
    }
    for name in ["apple", "apricot", "b%d", "bad", "b*d", "b[a]d"] {
        subject.put(name, name).await?;
    }
    // The prefix contains underscores, which also match themselves.
    for (pattern, expected) in [
        ("ap%", &["apple", "apricot"][..]),
        ("b_d", &["b%d", "b*d", "bad"]),
        ("b\\%d", &["b%d"]),
        ("b*d", &["b*d"]),
        ("b[a]d", &["b[a]d"]),
        ("apple", &["apple"]),
        ("x%", &[]),
    ] {
        let (mut keys, _) = page(subject, &subject.key(pattern), None, None).await?;
        keys.sort_unstable();
        ensure!(keys == expected, "{pattern} found {keys:?}");
    }
    let empty = subject.store.keys_like(&KeysLike::default()).await;
    refused("an empty pattern", empty, Kind::InvalidRequest)
}

pub(super) async fn patterns_page(subject: &Subject<'_>) -> Outcome {
    if !subject.has(Feature::KeysLike) {
        return Ok(());
    }
    for number in 0..7 {
        subject.put(&format!("key{number}"), "value").await?;
    }
    let pattern = subject.key("key%");
    let (mut found, mut token) = (Vec::new(), None);
    for _ in 0..8 {
        let (keys, next) = page(subject, &pattern, Some(3), token).await?;
        ensure!(keys.len() <= 3, "a page of 3 has {keys:?}");
        found.extend(keys);
        token = next;
        if token.is_none() {
            break;
        }
    }
    found.sort_unstable();
    let expected: Vec<_> = (0..7).map(|number| format!("key{number}")).collect();
    ensure!(found == expected, "the pages have {found:?}");
    Ok(())
}

pub(super) async fn a_prefix_deletes(subject: &Subject<'_>) -> Outcome {
    if !subject.has(Feature::DeleteWithPrefix) {
        let result = subject.store.delete_with_prefix("prefix").await;
        return refused("delete with prefix", result, Kind::Unsupported);
    }
    for name in ["a", "b", "deeper||c"] {
        subject.put(name, name).await?;
    }
    let count = subject
        .store
        .delete_with_prefix(&subject.corner)
        .await
        .step("delete")?;
    ensure!(count == 2, "{count} keys were deleted");
    subject.holds("a", None).await?;
    subject.holds("deeper||c", Some("deeper||c")).await?;
    let empty = subject.store.delete_with_prefix("").await;
    refused("an empty prefix", empty, Kind::InvalidRequest)
}
