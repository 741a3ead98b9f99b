//! Caching, sharing and watching, with an in-memory registry and simulated time.

use std::sync::atomic::AtomicUsize;

use super::*;

#[derive(Default)]
struct Fake {
    hosts: Mutex<Vec<&'static str>>,
    broken: AtomicBool,
    watches_all: AtomicBool,
    asked: AtomicUsize,
}

struct SharedFake(Arc<Fake>);

#[async_trait]
impl Registry for SharedFake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn watches_all(&self) -> bool {
        self.0.watches_all.load(Ordering::SeqCst)
    }

    fn fresh_for(&self) -> Duration {
        Duration::from_secs(10)
    }

    async fn look_up(&self, app_id: &str, _namespace: &str) -> Result<Vec<Address>, ResolveError> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        sleep(Duration::from_millis(100)).await;
        if self.0.broken.load(Ordering::SeqCst) {
            return Err(ResolveError::Registry {
                resolver: "fake",
                app_id: "orders".to_owned(),
                cause: "broken".to_owned(),
            });
        }
        let hosts = self.0.hosts.lock().unwrap();
        if hosts.is_empty() || app_id.starts_with("nobody") {
            return Err(ResolveError::NoHost);
        }
        Ok(hosts.iter().map(|host| Address::new(host, 1)).collect())
    }

    async fn close(&self) {}
}

fn start(hosts: &[&'static str]) -> (Arc<Fake>, Polled<SharedFake>) {
    let fake = Arc::new(Fake::default());
    *fake.hosts.lock().unwrap() = hosts.to_vec();
    (Arc::clone(&fake), Polled::new(SharedFake(fake)))
}

fn asked(fake: &Fake) -> usize {
    fake.asked.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn concurrent_lookups_share_cached_answer() {
    let (fake, resolver) = start(&["a", "b"]);
    let (one, two) = tokio::join!(resolver.resolve("orders", ""), resolver.resolve("orders", ""));
    assert_eq!(one.unwrap(), two.unwrap());
    sleep(Duration::from_secs(5)).await;
    assert_eq!(resolver.resolve("orders", "").await.unwrap().len(), 2);
    assert_eq!(asked(&fake), 1);
    sleep(Duration::from_secs(6)).await;
    resolver.resolve("orders", "").await.unwrap();
    assert_eq!(asked(&fake), 2);
}

#[tokio::test(start_paused = true)]
async fn failures_are_shared_not_cached() {
    let (fake, resolver) = start(&[]);
    let (one, two) = tokio::join!(resolver.resolve("orders", ""), resolver.resolve("orders", ""));
    assert_eq!(one.unwrap_err(), ResolveError::NoHost);
    assert_eq!(two.unwrap_err(), ResolveError::NoHost);
    assert_eq!(asked(&fake), 1);
    assert!(resolver.0.apps().is_empty());
    fake.hosts.lock().unwrap().push("a");
    assert_eq!(resolver.resolve("orders", "").await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn watch_survives_registry_failure() {
    let (fake, resolver) = start(&["a"]);
    let mut watcher = resolver.watch("orders", "");
    watcher.wait_for(|found| found.len() == 1).await.unwrap();
    fake.hosts.lock().unwrap().push("b");
    watcher.wait_for(|found| found.len() == 2).await.unwrap();
    fake.broken.store(true, Ordering::SeqCst);
    sleep(Duration::from_secs(100)).await;
    assert_eq!(watcher.borrow().len(), 2, "stale instances instead of none");
    fake.broken.store(false, Ordering::SeqCst);
    fake.hosts.lock().unwrap().clear();
    watcher.wait_for(|found| found.is_empty()).await.unwrap();
    drop(watcher);
    sleep(Duration::from_secs(200)).await;
    let before = asked(&fake);
    sleep(Duration::from_secs(200)).await;
    assert_eq!(asked(&fake), before, "the last watcher is gone");
    assert!(resolver.0.apps().is_empty());
}

#[tokio::test(start_paused = true)]
async fn eviction_triggers_lookup() {
    let (fake, resolver) = start(&["a", "b"]);
    resolver.resolve("orders", "").await.unwrap();
    *fake.hosts.lock().unwrap() = vec!["b", "c"];
    resolver.evict("orders", "", &Address::new("a", 1));
    let found = resolver.resolve("orders", "").await.unwrap();
    assert_eq!(found.iter().map(Address::host).collect::<Vec<_>>(), ["b", "c"]);

    let mut watcher = resolver.watch("orders", "");
    watcher.mark_unchanged();
    resolver.evict("orders", "", &Address::new("c", 1));
    assert_eq!(watcher.borrow_and_update().len(), 1);
    watcher.changed().await.unwrap();
    assert_eq!(watcher.borrow().len(), 2, "it is still registered");
}

#[tokio::test(start_paused = true)]
async fn separates_namespaces_and_closes() {
    let (fake, resolver) = start(&["a"]);
    resolver.resolve("orders", "one").await.unwrap();
    resolver.resolve("orders", "two").await.unwrap();
    assert_eq!(asked(&fake), 2);
    let _watcher = resolver.watch("orders", "one");
    resolver.close().await;
    assert_eq!(
        resolver.resolve("orders", "one").await.unwrap_err(),
        ResolveError::Closed
    );
}

#[tokio::test(start_paused = true)]
async fn does_not_cache_missing_apps() {
    let (fake, resolver) = start(&["a"]);
    fake.watches_all.store(true, Ordering::SeqCst);
    resolver.resolve("orders", "").await.unwrap();
    for number in 0..50 {
        let name = format!("nobody{number}");
        assert_eq!(
            resolver.resolve(&name, "").await.unwrap_err(),
            ResolveError::NoHost
        );
    }
    assert_eq!((resolver.0.apps().len(), resolver.0.tasks.len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn eviction_ends_watch() {
    let (fake, resolver) = start(&["a"]);
    fake.watches_all.store(true, Ordering::SeqCst);
    let followed = resolver.watch("followed", "");
    let all: Vec<_> = (1..MAX_APPS).map(|number| format!("app{number}")).collect();
    for name in &all {
        resolver.resolve(name, "").await.unwrap();
    }
    resolver.resolve("app1", "").await.unwrap();
    resolver.resolve("one-more", "").await.unwrap();
    let has = |name: &str| resolver.0.apps().contains_key(&Key::new(name, ""));
    assert!(has("followed") && has("app1") && has("one-more") && !has("app2"));
    assert_eq!(resolver.0.apps().len(), MAX_APPS);
    while resolver.0.tasks.len() > MAX_APPS {
        sleep(Duration::from_millis(1)).await;
    }
    drop(followed);
}
