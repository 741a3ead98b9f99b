use std::time::Duration;

use outrigger_testing::log_lines::Lines;
use serde_json::json;
use tokio::sync::broadcast;
use tracing::Level;

use super::*;
use crate::kind::Kind;
use crate::store::tests::{Thing, thing, thing_size};
use crate::store::{Change, Changes};
use crate::testing::Server;

const PLURAL: &str = "/api/v1/configmaps";

fn at(name: &str) -> String {
    format!("/api/v1/namespaces/ns/configmaps/{name}")
}

struct Running {
    store: Arc<Store<Thing>>,
    changes: broadcast::Receiver<Changes<Thing>>,
    /// Received but not yet checked.
    left: Vec<(String, Option<i64>)>,
    progress: watch::Receiver<Progress>,
    state: Arc<WatchState>,
    stop: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Running {
    fn start(server: &Server) -> Self {
        Self::of(Reflector::new(server.client(), Scope::default()))
    }

    fn of(reflector: Reflector<Thing>) -> Self {
        let (store, progress) = (reflector.store(), reflector.progress());
        let (state, changes, stop) = (reflector.state(), store.follow(), CancellationToken::new());
        tokio::spawn(reflector.run(stop.clone()));
        Self {
            store,
            changes,
            left: Vec::new(),
            progress,
            state,
            stop,
        }
    }

    /// One that has listed `a` and is watching.
    async fn watching(server: &Server) -> Self {
        server.put(&at("a"), thing("a", 1));
        let mut running = Self::start(server);
        running.complete().await;
        running.change().await;
        server.asked("WATCH", PLURAL, 1).await;
        running
    }

    async fn complete(&mut self) {
        let complete = self.progress.wait_for(|progress| *progress == Progress::Complete);
        tokio::time::timeout(Duration::from_secs(20), complete)
            .await
            .unwrap()
            .unwrap();
    }

    /// Waits until it is in sync, or no longer is.
    async fn in_sync(&self, wanted: bool) {
        let changed = async {
            while self.state.in_sync() != wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), changed)
            .await
            .unwrap();
    }

    /// The next change: its name and the new value.
    async fn change(&mut self) -> (String, Option<i64>) {
        if self.left.is_empty() {
            let changes = tokio::time::timeout(Duration::from_secs(20), self.changes.recv()).await;
            let changes = changes.unwrap().unwrap();
            let seen =
                |change: &Change<Thing>| (change.meta.name.clone(), change.new.as_ref().map(|thing| thing.0));
            self.left.extend(changes.iter().map(seen));
        }
        self.left.remove(0)
    }
}

#[tokio::test]
async fn copy_follows_collection() {
    let server = Server::start().await;
    for number in 0..crate::list::PAGE + 3 {
        server.put(&at(&format!("n{number}")), thing(&format!("n{number}"), 1));
    }
    let mut running = Running::start(&server);
    running.complete().await;
    assert_eq!(running.store.all().len(), crate::list::PAGE + 3, "all pages");
    assert_eq!(server.requests("LIST", PLURAL).len(), 2);
    running.changes = running.store.follow();
    server.put(&at("n1"), thing("n1", 2));
    assert_eq!(running.change().await, ("n1".to_owned(), Some(2)));
    server.delete(&at("n1"));
    assert_eq!(running.change().await, ("n1".to_owned(), None));
}

#[tokio::test]
async fn ended_watch_resumes() {
    let server = Server::start().await;
    let mut running = Running::watching(&server).await;
    server.cut();
    server.put(&at("a"), thing("a", 2));
    assert_eq!(running.change().await, ("a".to_owned(), Some(2)));
    assert_eq!(
        server.requests("LIST", PLURAL).len(),
        1,
        "nothing was listed again"
    );
}

#[tokio::test]
async fn expired_watch_lists_again() {
    let server = Server::start().await;
    let mut running = Running::start(&server);
    running.complete().await;
    server.asked("WATCH", PLURAL, 1).await;
    server.down(true);
    server.put(&at("a"), thing("a", 1));
    server.forget();
    server.down(false);
    assert_eq!(running.change().await, ("a".to_owned(), Some(1)));
    assert!(server.requests("LIST", PLURAL).len() >= 2);
}

#[tokio::test]
async fn outage_keeps_last_state() {
    let server = Server::start().await;
    let mut running = Running::watching(&server).await;
    server.down(true);
    server.asked("WATCH", PLURAL, 3).await;
    assert_eq!(running.store.get("ns", "a").unwrap().0, 1);
    server.put(&at("b"), thing("b", 1));
    server.down(false);
    assert_eq!(running.change().await, ("b".to_owned(), Some(1)));
}

#[tokio::test]
async fn polls_server_without_versions() {
    let server = Server::start().await;
    server.versionless();
    let mut running = Running::start(&server);
    running.complete().await;
    server.put(&at("a"), thing("a", 1));
    assert_eq!(running.change().await, ("a".to_owned(), Some(1)));
    server.delete(&at("a"));
    assert_eq!(running.change().await, ("a".to_owned(), None));
}

#[tokio::test]
async fn logs_and_retries_refused_list() {
    let server = Server::start().await;
    server.fix(PLURAL, http::StatusCode::FORBIDDEN, json!({"message": "no"}));
    let mut running = Running::start(&server);
    let refused = running
        .progress
        .wait_for(|progress| *progress == Progress::Refused);
    tokio::time::timeout(Duration::from_secs(20), refused)
        .await
        .unwrap()
        .unwrap();
    server.fix(PLURAL, http::StatusCode::OK, json!({"items": null}));
    running.complete().await;
}

#[tokio::test]
async fn unknown_kind_has_no_objects() {
    let server = Server::start().await;
    let unknown = json!({"kind": "Status", "message": "the server could not find the requested resource"});
    server.fix(PLURAL, http::StatusCode::NOT_FOUND, unknown);
    let mut running = Running::start(&server);
    running.complete().await;
    assert!(running.store.all().is_empty() && !running.state.in_sync());
    server.fix(PLURAL, http::StatusCode::OK, json!({"items": [thing("a", 1)]}));
    assert_eq!(running.change().await, ("a".to_owned(), Some(1)));
}

#[tokio::test]
async fn lists_again_on_schedule() {
    let server = Server::start().await;
    let every = Some(Duration::from_millis(20));
    let _running = Running::of(Reflector::new(server.client(), Scope::default()).relisting(every));
    let listed = server.asked("LIST", PLURAL, 4);
    tokio::time::timeout(Duration::from_secs(20), listed)
        .await
        .unwrap();
}

#[tokio::test]
async fn finds_objects_through_collection() {
    let server = Server::start().await;
    let list = json!({"items": [thing("a", 1), thing("b", 2)]});
    server.fix(PLURAL, http::StatusCode::OK, list);
    let client = server.client();
    let found: Value = client.find(Kind::CONFIG_MAPS, "ns", "b").await.unwrap();
    assert_eq!(found["spec"], 2);
    let absent = client.find::<Value>(Kind::CONFIG_MAPS, "other", "b").await;
    assert!(absent.unwrap_err().is_not_found());
    let named = json!({"kind": "Status", "details": {"name": "b", "kind": "configmaps"}});
    server.fix(&at("b"), http::StatusCode::NOT_FOUND, named);
    let lists = server.requests("GET", PLURAL).len();
    let absent = client.find::<Value>(Kind::CONFIG_MAPS, "ns", "b").await;
    assert!(absent.unwrap_err().is_not_found());
    assert_eq!(
        server.requests("GET", PLURAL).len(),
        lists,
        "an object named by the API must not be listed"
    );
    let hostile = client
        .get::<Value>(Kind::CONFIG_MAPS, Some("ns"), "../../x")
        .await;
    assert!(hostile.unwrap_err().is_not_found());
}

#[tokio::test]
async fn oversized_collection_keeps_copy() {
    let server = Server::start().await;
    let mut running = Running::of(Reflector {
        store: Arc::new(Store::bounded(2 * thing_size())),
        ..Reflector::new(server.client(), Scope::default())
    });
    server.put(&at("a"), thing("a", 1));
    assert_eq!(running.change().await, ("a".to_owned(), Some(1)));
    server.put(&at("b"), thing("b", 1));
    assert_eq!(running.change().await, ("b".to_owned(), Some(1)));
    let lists = server.requests("LIST", PLURAL).len();
    server.put(&at("c"), thing("c", 1));
    server.asked("LIST", PLURAL, lists + 2).await;
    assert_eq!(
        running.store.all().len(),
        2,
        "neither the watch nor a list took it in"
    );
    server.delete(&at("a"));
    let mut changes = [running.change().await, running.change().await];
    changes.sort();
    assert_eq!(changes, [("a".to_owned(), None), ("c".to_owned(), Some(1))]);
}

#[tokio::test]
async fn reports_sync_when_watch_resumes() {
    let server = Server::start().await;
    server.fix(PLURAL, http::StatusCode::FORBIDDEN, json!({"message": "no"}));
    let refused = Running::start(&server);
    server.asked("LIST", PLURAL, 2).await;
    assert!(!refused.state.in_sync());
    drop(refused);

    let server = Server::start().await;
    let running = Running::watching(&server).await;
    running.in_sync(true).await;
    assert_eq!(
        (running.state.resource(), running.state.failures()),
        ("configmaps", 0)
    );
    // A watch that ends normally is reopened.
    server.cut();
    server.asked("WATCH", PLURAL, 2).await;
    assert_eq!((running.state.in_sync(), running.state.failures()), (true, 0));
    server.down(true);
    running.in_sync(false).await;
    server.down(false);
    running.in_sync(true).await;
    assert!(running.state.failures() >= 1);
}

#[tokio::test(start_paused = true)]
async fn refused_watches_back_off() {
    for (status, in_stream) in [
        (http::StatusCode::FORBIDDEN, false),
        (http::StatusCode::TOO_MANY_REQUESTS, false),
        (http::StatusCode::INTERNAL_SERVER_ERROR, false),
        (http::StatusCode::GATEWAY_TIMEOUT, true),
    ] {
        let (server, lines) = (Server::start().await, Lines::new());
        server.refuse_watches(status, in_stream);
        server.put(&at("a"), thing("a", 1));
        let mut running = Running::start(&server);
        running.complete().await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let (lists, watches) = (
            server.requests("LIST", PLURAL).len(),
            server.requests("WATCH", PLURAL).len(),
        );
        assert!((2..=4).contains(&lists), "{status}: {lists} lists");
        assert!((5..=10).contains(&watches), "{status}: {watches} watches");
        let told = lines.take(LOG, Level::INFO);
        assert_eq!(told.len(), 1, "{status}: {told:?}");
        assert_eq!(told[0].level, Level::WARN);
        assert!(!running.state.in_sync());
    }
}

#[tokio::test(start_paused = true)]
async fn expired_versions_back_off() {
    for in_stream in [false, true] {
        let (server, lines) = (Server::start().await, Lines::new());
        server.refuse_watches(http::StatusCode::GONE, in_stream);
        let mut running = Running::start(&server);
        running.complete().await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let lists = server.requests("LIST", PLURAL).len();
        assert!((5..=9).contains(&lists), "{lists} lists");
        assert_eq!(lines.take(LOG, Level::INFO).len(), 1, "logged once");
        assert!(!running.state.in_sync());
    }
}

#[tokio::test(start_paused = true)]
async fn lasting_watch_ends_outage() {
    let (server, lines) = (Server::start().await, Lines::new());
    server.down(true);
    let mut running = Running::start(&server);
    server.asked("LIST", PLURAL, 3).await;
    server.down(false);
    running.complete().await;
    tokio::time::sleep(STABLE_AFTER * 2).await;
    let told: Vec<_> = lines
        .take(LOG, Level::INFO)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[1], "INFO configmaps are watched again");
}

#[tokio::test(start_paused = true)]
async fn silent_watch_reopens() {
    let server = Server::start().await;
    let _running = Running::watching(&server).await;
    let begun = Instant::now();
    server.asked("WATCH", PLURAL, 2).await;
    let silence = begun.elapsed().as_secs();
    assert!((140..180).contains(&silence), "{silence} s");
    assert_eq!(server.requests("LIST", PLURAL).len(), 1);
}
