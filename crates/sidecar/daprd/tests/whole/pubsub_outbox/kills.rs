//! Sidecars killed between an event and its transaction.

use super::*;

/// Invariant: nothing is published that was not stored. The sidecar is killed when the event is in the
/// internal topic and the transaction is not committed.
#[tokio::test]
async fn kill_before_commit_publishes_nothing() {
    let (files, net) = (Files::of_killed(), Net::plain());
    let (app, got) = keeping().await;
    let discards = property("outboxDiscardWhenMissingState", "true");
    let first = plan(&net, &app, &files, &discards).spawn().await;
    let lock = files.lock("store");
    let pending = first.try_ask(post(TRANSACTION, body(&[upsert("lost", &json!("lost"))])));
    let published = eventually(async || files.unsettled("broker") == 1);
    tokio::select! {
        answer = pending => panic!("{answer:?}"),
        () = published => {}
    }
    drop(first);
    drop(lock);
    let second = plan(&net, &app, &files, &discards).start().await;
    assert_eq!(
        transact(&second, &[upsert("kept", &json!("kept"))]).await.status,
        204
    );
    eventually(async || payloads(&got) == [json!("kept")]).await;
    // Its marker will never be stored.
    eventually(async || files.unsettled("broker") == 0).await;
    assert_eq!(payloads(&got), [json!("kept")]);
    assert_eq!(files.keys("me||"), ["me||kept"]);
}

/// Invariant: stored values are published. The sidecar is killed when the transaction is committed and its
/// event was not forwarded.
#[tokio::test]
async fn kill_after_commit_loses_nothing() {
    let (files, net) = (Files::of_killed(), Net::plain());
    let (app, got) = keeping().await;
    let plan = || {
        net.sidecar("me")
            .app(app.port)
            .resource(&files.broker("broker"))
            .resource(&files.broker("internal"))
            .resource(&files.store(&property("outboxPubsub", "internal")))
            .resource(&subscription("broker", "orders"))
    };
    let first = plan().spawn().await;
    let lock = files.lock("broker");
    let answer = first
        .try_ask(post(TRANSACTION, body(&[upsert("k", &json!("kept"))])))
        .await;
    assert_eq!(answer.unwrap().status, 204);
    assert_eq!((files.markers().len(), files.unsettled("internal")), (1, 1));
    drop(first);
    drop(lock);
    assert!(got.lock().unwrap().is_empty());
    let _second = plan().start().await;
    eventually(async || payloads(&got) == [json!("kept")]).await;
    eventually(async || files.markers().is_empty() && files.unsettled("internal") == 0).await;
}

/// Sends transactions one by one until the sidecar on a port is gone; returns the values of confirmed ones.
async fn load(port: u16, name: String) -> Vec<String> {
    let mut confirmed = Vec::new();
    for number in 0.. {
        let value = format!("{name}-{number}");
        let transaction = post(TRANSACTION, body(&[upsert(&value, &json!(value))]));
        let answer = match try_send(port, transaction).await {
            Some(answer) => Answer::try_read(answer).await,
            None => None,
        };
        match answer {
            Some(answer) if answer.status == 204 => confirmed.push(value),
            Some(answer) => panic!("{}", answer.text()),
            None => break,
        }
    }
    confirmed
}

/// Invariants for kills at any time under load: each confirmed transaction is stored and its event reaches
/// the app; no event arrives whose value was not stored; no event remains, and no marker except those of
/// forwarded events.
#[tokio::test]
async fn kills_under_load_keep_outbox_consistent() {
    const KILLS: u64 = 8;
    let (files, net) = (Files::of_killed(), Net::plain());
    let (app, got) = keeping().await;
    let discards = property("outboxDiscardWhenMissingState", "true");
    let mut confirmed = Vec::new();
    for round in 0..KILLS {
        let process = plan(&net, &app, &files, &discards).spawn().await;
        let port = process.ports.http;
        let workers: Vec<_> = (0..3)
            .map(|worker| tokio::spawn(load(port, format!("{round}-{worker}"))))
            .collect();
        let before = got.lock().unwrap().len();
        eventually(async || got.lock().unwrap().len() > before + 5).await;
        // A different time in each round.
        tokio::time::sleep(Duration::from_millis(37 * (round + 1) % 100)).await;
        drop(process);
        for worker in workers {
            confirmed.extend(worker.await.unwrap());
        }
    }
    let last = plan(&net, &app, &files, &discards).start().await;
    eventually(async || {
        let got = payloads(&got);
        confirmed.iter().all(|value| got.contains(&json!(value)))
    })
    .await;
    eventually(async || files.unsettled("broker") == 0).await;
    last.stop().await.unwrap();
    let stored = files.keys("me||");
    for value in payloads(&got) {
        let key = format!("me||{}", value.as_str().unwrap());
        assert!(stored.contains(&key), "{key} was published and not stored");
    }
    for value in &confirmed {
        assert!(stored.contains(&format!("me||{value}")), "{value} was confirmed");
    }
    let sent: Vec<_> = got
        .lock()
        .unwrap()
        .iter()
        .map(|event| event["id"].as_str().unwrap().to_owned())
        .collect();
    for marker in files.markers() {
        assert!(sent.contains(&marker), "{marker} is orphaned");
    }
    println!(
        "{} transactions confirmed over {KILLS} kills, {} events of {} values, {} markers left",
        confirmed.len(),
        sent.len(),
        stored.len(),
        files.markers().len()
    );
}
