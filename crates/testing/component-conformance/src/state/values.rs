use super::{Bytes, Outcome, Set, Step, Subject, Value, ensure};

pub(super) async fn absent_is_none(subject: &Subject<'_>) -> Outcome {
    let item = subject.item("absent").await?;
    ensure!(item.is_none(), "found {item:?}");
    Ok(())
}

pub(super) async fn bytes_come_back(subject: &Subject<'_>) -> Outcome {
    let all: Vec<u8> = (0..=255).cycle().take(1024).collect();
    for (name, bytes) in [
        ("all", &all[..]),
        ("empty", b""),
        ("json", b"{ \"not\": \"rewritten\" }"),
    ] {
        let set = Set {
            key: subject.key(name),
            value: Value::Bytes(Bytes::copy_from_slice(bytes)),
            ..Set::default()
        };
        subject.store.set(&set).await.step(name)?;
        let item = subject
            .item(name)
            .await?
            .ok_or_else(|| format!("{name} is absent"))?;
        ensure!(item.data == bytes, "{name} came back as {:?}", item.data);
    }
    Ok(())
}

pub(super) async fn json_comes_back(subject: &Subject<'_>) -> Outcome {
    let texts = [
        r#"{"b":1,"a":[true,null,"x<y"],"c":{"d":1.5}}"#,
        r#""text with \"quotes\" and \u00e9""#,
        "12345678901234",
        "0.1",
        "-1e-7",
        "null",
        "[]",
    ];
    for text in texts {
        let set = Set {
            key: subject.key("json"),
            value: Value::Json(Bytes::from_static(text.as_bytes())),
            ..Set::default()
        };
        if text == "null" && !subject.rules.takes_null {
            ensure!(subject.store.set(&set).await.is_err(), "null was accepted");
            continue;
        }
        subject.store.set(&set).await.step(text)?;
        let item = subject.item("json").await?.ok_or("it is absent")?;
        let read: serde_json::Value = serde_json::from_slice(&item.data).step(text)?;
        let given: serde_json::Value = serde_json::from_str(text).step(text)?;
        ensure!(read == given, "{text} came back as {read}");
    }
    let broken = Set {
        key: subject.key("broken"),
        value: Value::Json(Bytes::from_static(b"{\"a\":")),
        ..Set::default()
    };
    ensure!(
        subject.store.set(&broken).await.is_err(),
        "broken JSON was accepted"
    );
    subject.holds("broken", None).await
}

pub(super) async fn a_write_replaces(subject: &Subject<'_>) -> Outcome {
    subject.put("key", "a long first value").await?;
    subject.put("key", "short").await?;
    subject.holds("key", Some("short")).await
}

pub(super) async fn large_values(subject: &Subject<'_>) -> Outcome {
    let large = "0123456789abcdef".repeat(4 << 16);
    subject.put("large", &large).await?;
    let read = subject.text("large").await?.ok_or("it is absent")?;
    ensure!(read == large, "{} bytes came back of {}", read.len(), large.len());
    Ok(())
}

pub(super) async fn a_delete_removes(subject: &Subject<'_>) -> Outcome {
    subject.put("key", "value").await?;
    subject
        .store
        .delete(&subject.removal("key", None))
        .await
        .step("delete")?;
    subject.holds("key", None).await?;
    subject
        .store
        .delete(&subject.removal("key", None))
        .await
        .step("delete of what is absent")
}

pub(super) async fn store_responds(subject: &Subject<'_>) -> Outcome {
    subject.store.ping().await.step("ping")
}
