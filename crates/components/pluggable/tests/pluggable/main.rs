//! Components in another process, behind a Unix socket.
#![allow(clippy::unwrap_used, reason = "tests")]

mod process;
mod pubsub;

use std::{
    future::Future,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use outrigger_component::{
    Catalog, Error, Kind, Metadata, Pairs, Result, Setup, StateStore,
    bindings::{Event, EventHandler, Invoke},
    state::{Bounds, Feature, Filter, Get, Operation, Query, Set, Transaction, Value},
};
use outrigger_component_conformance::{self as conformance, ExpectedSecrets, StateRules};
use outrigger_components_pluggable::{Options, discover};
use outrigger_wire::components::v1::ReadResponse;
use process::{Desk, Fault, Process};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Reached only on failure.
const TIMEOUT: Duration = Duration::from_secs(30);

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.expect("it hangs")
}

async fn eventually(mut holds: impl FnMut() -> bool) {
    within(async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

fn built_in() -> Catalog {
    let mut catalog = Catalog::empty();
    outrigger_components_local::add(&mut catalog);
    outrigger_components_sqlite::add(&mut catalog);
    catalog
}

async fn catalog(folder: &Path, wait: Duration) -> Catalog {
    discovered(Catalog::empty(), folder, wait).await
}

async fn discovered(mut catalog: Catalog, folder: &Path, wait: Duration) -> Catalog {
    let options = Options {
        folder: folder.to_owned(),
        in_pod: false,
        wait,
        max_value: 1 << 23,
    };
    within(discover(&mut catalog, &options)).await;
    catalog
}

fn setup(name: &str) -> Setup {
    Setup {
        metadata: Metadata::new(name, [("Colour".to_owned(), "red".to_owned())]).unwrap(),
        app_id: "app".to_owned(),
    }
}

struct Ship {
    folder: TempDir,
    desk: Arc<Desk>,
    process: Option<Process>,
    catalog: Catalog,
}

impl Ship {
    async fn new() -> Self {
        let (folder, desk) = (tempfile::tempdir().unwrap(), Desk::new());
        let process = Process::start(folder.path(), "ship", &desk);
        let catalog = catalog(folder.path(), TIMEOUT).await;
        Self {
            folder,
            desk,
            process: Some(process),
            catalog,
        }
    }

    fn kill(&mut self) {
        self.process = None;
    }

    fn start(&mut self) {
        self.process = Some(Process::start(self.folder.path(), "ship", &self.desk));
    }

    async fn state(&self, name: &str) -> Arc<dyn StateStore> {
        let entry = self.catalog.state.find("state.Ship", "v1").unwrap();
        within(entry.build(setup(name))).await.unwrap()
    }
}

fn set(key: &str, value: &'static str) -> Set {
    Set {
        key: key.to_owned(),
        value: Value::Bytes(Bytes::from_static(value.as_bytes())),
        ..Set::default()
    }
}

async fn text(store: &Arc<dyn StateStore>, key: &str) -> Option<String> {
    let item = within(store.get(&Get::key(key))).await.unwrap()?;
    Some(String::from_utf8(item.data.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_store_passes_conformance() {
    let ship = Ship::new().await;
    let store = ship.state("orders").await;
    assert_eq!(
        store.features(),
        [Feature::Etag, Feature::Transactional, Feature::Ttl]
    );
    assert_eq!(
        *ship.desk.inits.lock().unwrap(),
        [(
            "orders".to_owned(),
            Pairs::from([("Colour".to_owned(), "red".to_owned())])
        )]
    );
    let rules = StateRules {
        takes_null: false,
        bulk_fails_whole: true,
        rejects_existing_key: false,
        ..StateRules::default()
    };
    conformance::state(&store, rules).await;
    conformance::state_after_close(&store).await;
}

#[tokio::test]
async fn instances_on_one_socket_are_separate() {
    let ship = Ship::new().await;
    let (one, two) = (ship.state("one").await, ship.state("two").await);
    one.set(&set("k", "1")).await.unwrap();
    assert_eq!(text(&one, "k").await.as_deref(), Some("1"));
    assert_eq!(text(&two, "k").await, None);
    one.close().await;
    two.ping().await.unwrap();
}

#[tokio::test]
async fn initialises_restarted_process() {
    let mut ship = Ship::new().await;
    let store = ship.state("orders").await;
    store.set(&set("k", "1")).await.unwrap();
    ship.kill();
    let error = within(async {
        loop {
            if let Err(error) = store.get(&Get::key("k")).await {
                return error;
            }
        }
    })
    .await;
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.retryable());
    ship.start();
    // Its values are lost with the process; the test only needs an answer.
    let get = Get::key("k");
    let calls = (0..50).map(|_| store.get(&get));
    for answer in within(futures::future::join_all(calls)).await {
        assert!(answer.unwrap().is_none());
    }
    assert_eq!(ship.desk.inits(), 2, "once per process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_survives_restart_under_load() {
    let mut ship = Ship::new().await;
    let store = ship.state("orders").await;
    let stop = CancellationToken::new();
    let failed = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (store, stop, failed) = (Arc::clone(&store), stop.clone(), Arc::clone(&failed));
            tokio::spawn(async move {
                let (mut good, mut bad) = (0, Vec::new());
                while !stop.is_cancelled() {
                    match store.set(&set("k", "1")).await {
                        Ok(()) => good += 1,
                        Err(error) => {
                            bad.push(error);
                            failed.fetch_add(1, Ordering::SeqCst);
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                    }
                }
                (good, bad)
            })
        })
        .collect();
    for generation in 1..4 {
        eventually(|| ship.desk.inits() == generation).await;
        let before = failed.load(Ordering::SeqCst);
        ship.kill();
        eventually(|| failed.load(Ordering::SeqCst) > before).await;
        ship.start();
    }
    eventually(|| ship.desk.inits() == 4).await;
    store.set(&set("last", "1")).await.unwrap();
    stop.cancel();
    for caller in callers {
        let (good, bad) = within(caller).await.unwrap();
        assert!(good > 0);
        for error in bad {
            assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        }
    }
    assert_eq!(text(&store, "last").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn hanging_process_blocks_only_its_callers() {
    let ship = Ship::new().await;
    let store = ship.state("orders").await;
    store.set(&set("k", "1")).await.unwrap();
    ship.desk.faulty(Some(Fault::Hang));
    let get = Get::key("k");
    let waiting = tokio::time::timeout(Duration::from_millis(100), store.get(&get)).await;
    assert!(waiting.is_err(), "{waiting:?}");
    let entry = ship.catalog.state.find("state.ship", "").unwrap();
    let building = tokio::time::timeout(Duration::from_millis(100), entry.build(setup("second"))).await;
    assert!(building.is_err(), "Init hangs");
    ship.desk.faulty(None);
    assert_eq!(
        text(&store, "k").await.as_deref(),
        Some("1"),
        "on the same connection"
    );
    assert_eq!(ship.desk.inits(), 1);
}

#[tokio::test]
async fn reports_init_error_unchanged() {
    let ship = Ship::new().await;
    ship.desk
        .faulty(Some(Fault::Answer(Status::invalid_argument("no colour"))));
    let entry = ship.catalog.state.find("state.ship", "").unwrap();
    let error = within(entry.build(setup("orders"))).await.err().unwrap();
    assert_eq!(
        error.to_string(),
        "rpc error: code = InvalidArgument desc = no colour"
    );
}

#[tokio::test]
async fn rejects_oversized_message() {
    let ship = Ship::new().await;
    let store = ship.state("orders").await;
    ship.desk.faulty(Some(Fault::Huge(8 << 20)));
    let item = within(store.get(&Get::key("k"))).await.unwrap().unwrap();
    assert_eq!(item.data.len(), 8 << 20);
    ship.desk.faulty(Some(Fault::Huge(9 << 20)));
    let error = within(store.get(&Get::key("k"))).await.unwrap_err().to_string();
    assert!(error.contains("too large"), "{error}");
    ship.desk.faulty(None);
    store.ping().await.unwrap();
}

#[tokio::test]
async fn transaction_limit_comes_from_process() {
    let ship = Ship::new().await;
    *ship.desk.max_size.lock().unwrap() = Some(2);
    let store = ship.state("orders").await;
    assert_eq!(store.max_operations().await, Some(2));
    for unlimited in [Some(-1), Some(0), None] {
        *ship.desk.max_size.lock().unwrap() = unlimited;
        assert_eq!(store.max_operations().await, Some(2), "asked once");
        assert_eq!(ship.state("other").await.max_operations().await, None);
    }
    let null = Operation::Set(Set {
        value: Value::Json(Bytes::from_static(b"null")),
        ..set("k", "")
    });
    let transaction = Transaction {
        operations: vec![Operation::Set(set("a", "1")), null],
        ..Transaction::default()
    };
    assert!(store.transact(&transaction).await.is_err());
    assert_eq!(text(&store, "a").await, None);
}

#[tokio::test]
async fn queries_work_without_feature() {
    let ship = Ship::new().await;
    let store = ship.state("orders").await;
    assert!(store.can_query() && !store.features().contains(&Feature::Query));
    let query = Query {
        filter: Some(Filter::Eq("state".to_owned(), "CA".into())),
        token: "next".to_owned(),
        ..Query::default()
    };
    let page = within(store.query(&query, &Pairs::new(), Bounds::default()))
        .await
        .unwrap();
    assert_eq!(
        (page.items[0].key.as_str(), page.token.as_str()),
        ("me||found", "next")
    );
    assert_eq!(*ship.desk.queries.lock().unwrap(), [r#"EQ {"state":"CA"}"#]);
    let bounds = Bounds {
        bytes: 1,
        ..Bounds::default()
    };
    let error = within(store.query(&query, &Pairs::new(), bounds))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::TooLarge, "{error}");
}

#[tokio::test]
async fn secret_store_passes_conformance() {
    let ship = Ship::new().await;
    let entry = ship.catalog.secrets.find("secretstores.ship", "v1").unwrap();
    let store = within(entry.build(setup("vault"))).await.unwrap();
    assert_eq!(store.features().len(), 1);
    let anchor = [("chain", "iron"), ("rope", "hemp")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let expected = ExpectedSecrets {
        present: [("anchor".to_owned(), Pairs::from(anchor))].into(),
        hidden: vec!["sail".to_owned()],
    };
    conformance::secrets(&store, &expected).await;
    let error = store.get("sail", &Pairs::new()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert_eq!(
        error.to_string(),
        "rpc error: code = NotFound desc = no secret sail"
    );
}

#[tokio::test]
async fn invokes_output_binding() {
    let ship = Ship::new().await;
    let entry = ship.catalog.output_bindings.find("bindings.ship", "v1").unwrap();
    let binding = within(entry.build(setup("horn"))).await.unwrap();
    assert_eq!(binding.operations(), ["echo", "shout"]);
    let request = Invoke {
        operation: "shout".to_owned(),
        data: Bytes::from_static(b"ahoy"),
        metadata: Pairs::from([("loud".to_owned(), "very".to_owned())]),
    };
    let answer = within(binding.invoke(&request)).await.unwrap().unwrap();
    assert_eq!(
        (&answer.data[..], answer.content_type.as_deref()),
        (&b"ahoy"[..], Some("text/plain"))
    );
    assert_eq!(
        (
            answer.metadata["loud"].as_str(),
            answer.metadata["operation"].as_str()
        ),
        ("very", "shout")
    );
    binding.ping().await.unwrap();
    binding.close().await;
    assert_eq!(binding.invoke(&request).await.unwrap_err().kind(), Kind::Closed);
}

/// An app that accepts some events; `slow` ones wait for the test.
#[derive(Default)]
struct App {
    seen: Mutex<Vec<Event>>,
    leave: CancellationToken,
}

impl EventHandler for App {
    fn handle(&self, event: Event) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            let data = event.data.clone();
            self.seen.lock().unwrap().push(event);
            match &data[..] {
                b"bad" => Err(Error::new(Kind::Internal, "the app does not like it")),
                b"slow" => {
                    self.leave.cancelled().await;
                    Ok(Bytes::from_static(b"at last"))
                }
                _ => Ok(Bytes::from_static(b"thanks")),
            }
        })
    }
}

fn event(id: &str, data: &'static str) -> ReadResponse {
    ReadResponse {
        data: data.into(),
        message_id: id.to_owned(),
        metadata: Pairs::from([("n".to_owned(), id.to_owned())]),
        content_type: "text/plain".to_owned(),
    }
}

#[tokio::test]
async fn input_binding_acknowledges_and_reconnects() {
    let mut ship = Ship::new().await;
    *ship.desk.events.lock().unwrap() = vec![event("1", "slow"), event("2", "bad"), event("3", "good")];
    let entry = ship.catalog.input_bindings.find("bindings.ship", "v1").unwrap();
    let binding = within(entry.build(setup("bell"))).await.unwrap();
    let (app, drain) = (Arc::new(App::default()), CancellationToken::new());
    let reading = {
        let (app, drain) = (Arc::clone(&app), drain.clone());
        tokio::spawn(async move { binding.read(app, drain).await })
    };
    let acks = || ship.desk.acks.lock().unwrap().clone();
    // The slow one blocks no other event.
    eventually(|| acks().len() == 2).await;
    let (bad, good) = (acks()[0].clone(), acks()[1].clone());
    assert_eq!((bad.message_id.as_str(), &bad.response_data[..]), ("2", &b""[..]));
    assert_eq!(bad.response_error.unwrap().message, "the app does not like it");
    assert_eq!(
        (good.message_id.as_str(), &good.response_data[..]),
        ("3", &b"thanks"[..])
    );
    assert!(good.response_error.is_none());
    let first = app.seen.lock().unwrap()[0].clone();
    assert_eq!(first.content_type.as_deref(), Some("text/plain"));
    assert_eq!(first.metadata["n"], "1");

    // The process restarts: its events are read again.
    *ship.desk.events.lock().unwrap() = vec![event("4", "slow")];
    ship.kill();
    ship.start();
    let seen = || app.seen.lock().unwrap().len();
    eventually(|| seen() == 4).await;
    assert_eq!(ship.desk.inits(), 2);

    // Events already taken are acknowledged before the reading ends.
    drain.cancel();
    // Events that arrive now or shortly afterwards are refused.
    let say = |event| {
        let streams = ship.desk.streams.lock().unwrap();
        streams.last().unwrap().try_send(Ok(event)).unwrap();
    };
    say(event("5", "good"));
    let last = || ship.desk.acks.lock().unwrap().last().cloned().unwrap();
    eventually(|| last().message_id == "5").await;
    assert_eq!(last().response_error.unwrap().message, "input binding is closed");
    assert!(!reading.is_finished());
    app.leave.cancel();
    eventually(|| last().message_id == "4").await;
    assert_eq!(&last().response_data[..], b"at last");
    say(event("6", "good"));
    eventually(|| last().message_id == "6").await;
    assert_eq!(last().response_error.unwrap().message, "input binding is closed");
    within(reading).await.unwrap().unwrap();
    assert_eq!(seen(), 4);
}

#[tokio::test]
async fn does_not_replace_built_in_type() {
    let folder = tempfile::tempdir().unwrap();
    let desk = Desk::new();
    let _processes = ["sqlite", "Cron", "ship"].map(|name| Process::start(folder.path(), name, &desk));
    let wait = Duration::from_secs(2);
    let catalog = discovered(built_in(), folder.path(), wait).await;
    let builtin = built_in();
    let added = |now: Vec<String>, before: Vec<String>| -> Vec<String> {
        now.into_iter().filter(|kind| !before.contains(kind)).collect()
    };
    // SQLite is a state store but no secret store; cron is an input binding, so its output binding is
    // reserved too.
    assert_eq!(
        added(catalog.state.known(), builtin.state.known()),
        ["state.cron", "state.ship"]
    );
    let secrets = ["secretstores.cron", "secretstores.ship", "secretstores.sqlite"];
    assert_eq!(added(catalog.secrets.known(), builtin.secrets.known()), secrets);
    let bindings = ["bindings.ship", "bindings.sqlite"];
    assert_eq!(
        added(catalog.input_bindings.known(), builtin.input_bindings.known()),
        bindings
    );
    assert_eq!(
        added(catalog.output_bindings.known(), builtin.output_bindings.known()),
        bindings
    );
    // The name alone is no proof: a store of the process would receive its properties.
    let path = folder.path().join("real.db");
    let metadata = [("connectionString".to_owned(), path.display().to_string())];
    let setup = Setup {
        metadata: Metadata::new("real", metadata).unwrap(),
        app_id: "app".to_owned(),
    };
    let entry = catalog.state.find("state.sqlite", "v1").unwrap();
    within(entry.build(setup)).await.unwrap();
    assert!(desk.inits.lock().unwrap().is_empty() && path.exists());
}

#[tokio::test]
async fn rejects_world_writable_folder() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let desk = Desk::new();
    let _ship = Process::start(folder.path(), "ship", &desk);
    for (mode, expected) in [(0o777, &[][..]), (0o755, &["state.ship"])] {
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        let catalog = catalog(folder.path(), Duration::from_secs(2)).await;
        assert_eq!(catalog.state.known(), expected, "{mode:o}");
    }
}

#[tokio::test]
async fn skips_unreachable_sockets() {
    let folder = tempfile::tempdir().unwrap();
    // One has no listener, the other does not answer.
    drop(std::os::unix::net::UnixListener::bind(folder.path().join("dead.sock")).unwrap());
    let _mute = std::os::unix::net::UnixListener::bind(folder.path().join("mute.sock")).unwrap();
    let desk = Desk::new();
    let _ship = Process::start(folder.path(), "ship", &desk);
    let catalog = catalog(folder.path(), Duration::from_secs(2)).await;
    assert_eq!(catalog.state.known(), ["state.ship"]);
    assert_eq!(catalog.secrets.known(), ["secretstores.ship"]);
    assert_eq!(catalog.input_bindings.known(), ["bindings.ship"]);
    assert_eq!(catalog.output_bindings.known(), ["bindings.ship"]);
}
