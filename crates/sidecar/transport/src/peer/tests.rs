use std::sync::Mutex;

use async_trait::async_trait;

use super::*;
use crate::body::Failure;

/// A resolver that knows every app except `nobody…`, until they are `gone`.
#[derive(Default)]
struct Names {
    watched: Mutex<Vec<watch::Sender<Addresses>>>,
    gone: Mutex<Vec<String>>,
}

impl Names {
    fn found(&self, app_id: &str) -> Addresses {
        let gone = self.gone.lock().unwrap();
        match app_id.starts_with("nobody") || gone.iter().any(|gone| gone == app_id) {
            true => Addresses::from([]),
            false => Addresses::from([Address::new("127.0.0.1", 1)]),
        }
    }

    /// Number of apps being watched.
    fn followed(&self) -> usize {
        let watched = self.watched.lock().unwrap();
        watched
            .iter()
            .filter(|sender| sender.receiver_count() > 0)
            .count()
    }
}

#[async_trait]
impl Resolver for Names {
    fn name(&self) -> &'static str {
        "names"
    }

    async fn resolve(&self, app_id: &str, _namespace: &str) -> Result<Addresses, ResolveError> {
        let found = self.found(app_id);
        match found.is_empty() {
            true => Err(ResolveError::NoHost),
            false => Ok(found),
        }
    }

    fn watch(&self, app_id: &str, _namespace: &str) -> watch::Receiver<Addresses> {
        let (sender, receiver) = watch::channel(self.found(app_id));
        self.watched.lock().unwrap().push(sender);
        receiver
    }

    fn evict(&self, _app_id: &str, _namespace: &str, _address: &Address) {}

    async fn close(&self) {}
}

fn peers() -> (Arc<Names>, Peers) {
    let (names, peers) = (Arc::new(Names::default()), Peers::new(None));
    peers.set_resolver(Arc::clone(&names) as Arc<dyn Resolver>);
    (names, peers)
}

#[tokio::test]
async fn does_not_cache_unknown_apps() {
    let (names, peers) = peers();
    let first = peers.pick("orders", "default").await.unwrap();
    for number in 0..2 * MAX_APPS {
        let failed = peers.pick(&format!("nobody{number}"), "default").await;
        assert!(matches!(failed, Err(PeerError::Resolve(_))));
    }
    assert_eq!((peers.peers.load().len(), names.followed()), (1, 1));
    let again = peers.pick("orders", "default").await.unwrap();
    assert!(
        Arc::ptr_eq(&first.instance, &again.instance),
        "keeps its connections"
    );
}

#[tokio::test]
async fn forgets_removed_app() {
    let (names, peers) = peers();
    peers.pick("orders", "default").await.unwrap();
    names.gone.lock().unwrap().push("orders".to_owned());
    names.watched.lock().unwrap()[0].send_replace(Addresses::from([]));
    assert!(peers.pick("orders", "default").await.is_err());
    assert_eq!((peers.peers.load().len(), names.followed()), (0, 0));
}

#[tokio::test]
async fn evicts_least_recently_called_app() {
    let (names, peers) = peers();
    for number in 0..MAX_APPS {
        peers.pick(&format!("app{number}"), "default").await.unwrap();
    }
    peers.pick("app0", "default").await.unwrap();
    peers.pick("one-more", "default").await.unwrap();
    let table = peers.peers.load();
    assert!(table.contains_key("app0.default") && table.contains_key("one-more.default"));
    assert!(!table.contains_key("app1.default"));
    assert_eq!((table.len(), names.followed()), (MAX_APPS, MAX_APPS));
}

/// Resolves after a delay, as the network does.
struct Slow(Names);

#[async_trait]
impl Resolver for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    async fn resolve(&self, app_id: &str, namespace: &str) -> Result<Addresses, ResolveError> {
        tokio::time::sleep(Duration::from_millis(100)).await;
        self.0.resolve(app_id, namespace).await
    }

    fn watch(&self, app_id: &str, namespace: &str) -> watch::Receiver<Addresses> {
        self.0.watch(app_id, namespace)
    }

    fn evict(&self, _app_id: &str, _namespace: &str, _address: &Address) {}

    async fn close(&self) {}
}

#[tokio::test(start_paused = true)]
async fn concurrent_first_calls_share_connections() {
    let peers = Peers::new(None);
    peers.set_resolver(Arc::new(Slow(Names::default())) as Arc<dyn Resolver>);
    let picks = (0..50).map(|_| peers.pick("orders", "default"));
    let picked = futures::future::join_all(picks).await;
    let instances = picked.into_iter().map(|picked| picked.unwrap().instance);
    let instances: Vec<_> = instances.collect();
    assert!(
        instances
            .iter()
            .all(|instance| Arc::ptr_eq(instance, &instances[0])),
        "each call would open a separate connection"
    );
}

#[tokio::test]
async fn retries_unseen_request_on_one_other_instance() {
    let (_names, peers) = peers();
    let target = ("orders", "default");
    for bodies in 0..4 {
        let mut taken = 0;
        let requests = || {
            taken += 1;
            (taken <= bodies).then(|| Request::post("/call").body(Body::Empty).unwrap())
        };
        // Nothing listens at this address.
        let error = peers.send(target, requests, &Failure::default()).await;
        match (bodies, error.err().unwrap()) {
            (0, PeerError::Spent) => assert_eq!(taken, 1),
            (_, PeerError::Send(error)) => assert!(error.is_repeatable() && taken == 2, "{taken}"),
            (_, error) => panic!("{error}"),
        }
    }
    let failed = Failed {
        error: (),
        connection: true,
    };
    let mut calls = 0;
    let called = peers.call(
        target,
        |_| panic!("the app is known"),
        |_instance| {
            calls += 1;
            std::future::ready(Err::<(), _>(failed))
        },
    );
    assert!(called.await.unwrap_err().connection);
    assert_eq!(calls, 1);
}
