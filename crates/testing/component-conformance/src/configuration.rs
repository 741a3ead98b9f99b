use std::sync::Arc;

use async_trait::async_trait;
use outrigger_component::{
    ConfigurationStore, Kind, Pairs,
    configuration::{Item, Items, Request, Subscription},
};
use tokio::time::timeout;

use super::{Findings, Outcome, SOON, Step, ensure, unique};

/// Changes the data of the store under test, like an operator.
#[async_trait]
pub trait Writer: Send + Sync {
    /// Writes a value.
    async fn put(&self, key: &str, value: &str, version: &str);

    /// Removes a value.
    async fn remove(&self, key: &str);

    /// Metadata that each request needs.
    fn metadata(&self) -> Pairs {
        Pairs::new()
    }
}

struct Subject<'a> {
    store: &'a Arc<dyn ConfigurationStore>,
    writer: &'a dyn Writer,
    corner: String,
}

impl Subject<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}_{name}", self.corner)
    }

    fn request(&self, names: &[&str]) -> Request {
        Request {
            keys: names.iter().map(|name| self.key(name)).collect(),
            metadata: self.writer.metadata(),
        }
    }

    async fn put(&self, name: &str, value: &str, version: &str) {
        self.writer.put(&self.key(name), value, version).await;
    }

    async fn get(&self, names: &[&str]) -> Result<Items, String> {
        self.store.get(&self.request(names)).await.step("get")
    }

    async fn subscribe(&self, names: &[&str]) -> Result<Subscription, String> {
        self.store.subscribe(&self.request(names)).await.step("subscribe")
    }
}

fn has(items: &Items, key: &str, value: &str, version: &str) -> Outcome {
    let item = items.get(key);
    ensure!(
        item.is_some_and(|item| item.value == value && item.version == version),
        "{key} is {item:?}, expected {value} in version {version}"
    );
    Ok(())
}

/// The next state of `key` that differs from `known`.
async fn change(subscription: &mut Subscription, key: &str, known: Option<&Item>) -> Result<Item, String> {
    let next = async {
        while let Some(mut items) = subscription.updates.recv().await {
            if let Some(item) = items.remove(key).filter(|item| Some(item) != known) {
                return Ok(item);
            }
        }
        Err("the subscription ended".to_owned())
    };
    timeout(SOON, next).await.step(key)?
}

/// Runs all rules for configuration stores. The store may hold other values.
///
/// # Panics
/// If a rule is broken.
pub async fn configuration(store: &Arc<dyn ConfigurationStore>, writer: &dyn Writer) {
    let mut findings = Findings::new("configuration store");
    let run = unique();
    let subject = |rule: &str| Subject {
        store,
        writer,
        corner: format!("c{run}_{rule}"),
    };
    findings.note("values are found", found(&subject("get")).await);
    findings.note("changes are reported", updates(&subject("told")).await);
    findings.note("keys are kept apart", apart(&subject("apart")).await);
    findings.note("all keys can be watched", all(&subject("all")).await);
    findings.note("subscriptions end", ended(&subject("ended")).await);
    findings.note("the store answers", store.ping().await.step("ping"));
    findings.note("closing ends all", closed(&subject("closed")).await);
    findings.finish();
}

async fn found(subject: &Subject<'_>) -> Outcome {
    subject.put("a", "1", "7").await;
    subject.put("b", "2", "").await;
    let items = subject.get(&["a", "absent"]).await?;
    ensure!(items.len() == 1, "found {items:?}");
    has(&items, &subject.key("a"), "1", "7")?;
    let items = subject.get(&[]).await?;
    has(&items, &subject.key("a"), "1", "7")?;
    has(&items, &subject.key("b"), "2", "")
}

async fn updates(subject: &Subject<'_>) -> Outcome {
    let key = subject.key("a");
    subject.put("a", "1", "1").await;
    let mut subscription = subject.subscribe(&["a"]).await?;
    subject.put("a", "2", "2").await;
    let second = change(&mut subscription, &key, None).await?;
    ensure!(second.value == "2" && second.version == "2", "told {second:?}");
    subject.put("a", "3", "3").await;
    let third = change(&mut subscription, &key, Some(&second)).await?;
    ensure!(third.value == "3", "told {third:?}");
    subject.writer.remove(&key).await;
    let removed = change(&mut subscription, &key, Some(&third)).await?;
    ensure!(removed == Item::default(), "told {removed:?} of a removal");
    subject
        .store
        .unsubscribe(&subscription.id)
        .await
        .step("unsubscribe")
}

async fn apart(subject: &Subject<'_>) -> Outcome {
    let mut first = subject.subscribe(&["a"]).await?;
    let mut second = subject.subscribe(&["b"]).await?;
    ensure!(first.id != second.id, "two subscriptions are both {}", first.id);
    subject.put("b", "1", "1").await;
    subject.put("a", "1", "1").await;
    change(&mut second, &subject.key("b"), None).await?;
    let items = timeout(SOON, first.updates.recv())
        .await
        .step("the first subscription")?
        .ok_or("the first subscription ended")?;
    ensure!(
        !items.contains_key(&subject.key("b")),
        "told of another's key: {items:?}"
    );
    for subscription in [first, second] {
        subject
            .store
            .unsubscribe(&subscription.id)
            .await
            .step("unsubscribe")?;
    }
    Ok(())
}

async fn all(subject: &Subject<'_>) -> Outcome {
    let mut subscription = subject.subscribe(&[]).await?;
    for name in ["a", "b"] {
        subject.put(name, name, "1").await;
        let item = change(&mut subscription, &subject.key(name), None).await?;
        ensure!(item.value == name, "told {item:?} of {name}");
    }
    subject
        .store
        .unsubscribe(&subscription.id)
        .await
        .step("unsubscribe")
}

async fn ended(subject: &Subject<'_>) -> Outcome {
    let mut subscription = subject.subscribe(&["a"]).await?;
    subject
        .store
        .unsubscribe(&subscription.id)
        .await
        .step("unsubscribe")?;
    subject.put("a", "1", "1").await;
    let next = timeout(SOON, subscription.updates.recv()).await.step("the end")?;
    ensure!(next.is_none(), "told {next:?} after the end");
    for id in [subscription.id.as_str(), "nosuch"] {
        match subject.store.unsubscribe(id).await {
            Err(error) if error.kind() == Kind::NotFound => {}
            other => return Err(format!("unsubscribing {id}: {other:?}")),
        }
    }
    Ok(())
}

async fn closed(subject: &Subject<'_>) -> Outcome {
    let mut subscription = subject.subscribe(&["a"]).await?;
    subject.store.close().await;
    let next = timeout(SOON, subscription.updates.recv()).await.step("the end")?;
    ensure!(next.is_none(), "told {next:?} after closing");
    ensure!(
        subject.store.subscribe(&subject.request(&["a"])).await.is_err(),
        "a closed store takes subscriptions"
    );
    Ok(())
}
