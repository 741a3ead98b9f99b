//! Fleets of sidecars with actors, the observations of their apps, and calls to them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{Method, Request};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{Answer, App, Control, Net, Node, Plan, app, eventually, post, within};

/// Number of actors.
pub const ACTORS: usize = 40;
/// Flags of sidecars with handover.
pub const HANDOVER: &[&str] = &["--actors-handover"];
/// The same with app health checks.
pub const HANDOVER_WHILE_WELL: &[&str] = &[
    "--actors-handover",
    "--enable-app-health-check",
    "--app-health-probe-interval=1",
    "--app-health-threshold=1",
];

/// Duration of turns in slow apps.
const LITTLE: Duration = Duration::from_millis(20);

/// The observations of the apps of all hosts.
#[derive(Default)]
pub struct Seen {
    /// The host on which each actor is active.
    pub places: Mutex<HashMap<String, String>>,
    /// Number of executions of each call.
    pub ran: Mutex<HashMap<String, usize>>,
    /// Running turns: actor and host.
    turns: Mutex<Vec<(String, String)>>,
    /// Violations.
    wrong: Mutex<Vec<String>>,
    pub reminded: AtomicUsize,
    pub ended: AtomicUsize,
    /// Releases calls of the method `hang`.
    pub release: Notify,
    pub hanging: AtomicBool,
    /// Apps do not deactivate actors, and turns take some time.
    pub slow: AtomicBool,
    /// Actors may be active elsewhere before they are deactivated, like those of a host that was given up.
    pub given_up: AtomicBool,
    /// Hosts whose apps report to be unhealthy.
    pub unhealthy: Mutex<HashSet<String>>,
}

/// A turn; dropped when it ends or its sidecar aborts it.
struct Turn {
    seen: Arc<Seen>,
    own: (String, String),
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut turns = self.seen.turns.lock().unwrap();
        let own = turns.iter().position(|turn| *turn == self.own);
        turns.swap_remove(own.expect("it runs"));
    }
}

impl Seen {
    fn called(self: &Arc<Self>, host: &str, actor: &str, number: &str) -> Turn {
        let mut places = self.places.lock().unwrap();
        let place = places.entry(actor.to_owned()).or_insert_with(|| host.to_owned());
        if self.given_up.load(Ordering::SeqCst) {
            host.clone_into(place);
        } else if place != host {
            let text = format!("actor {actor} is called on {host} and active on {place}");
            self.wrong.lock().unwrap().push(text);
        }
        if !number.is_empty() {
            *self.ran.lock().unwrap().entry(number.to_owned()).or_default() += 1;
        }
        let mut turns = self.turns.lock().unwrap();
        if let Some((_, other)) = turns.iter().find(|(of, other)| of == actor && other != host) {
            let text = format!("actor {actor} has a turn on {host} and one on {other}");
            self.wrong.lock().unwrap().push(text);
        }
        let own = (actor.to_owned(), host.to_owned());
        turns.push(own.clone());
        Turn {
            seen: Arc::clone(self),
            own,
        }
    }

    /// The actors that are active on a host.
    pub fn on(&self, host: &str) -> Vec<String> {
        let places = self.places.lock().unwrap();
        let here = places.iter().filter(|(_, place)| *place == host);
        here.map(|(actor, _)| actor.clone()).collect()
    }

    fn ended(&self, host: &str, actor: &str) {
        self.ended.fetch_add(1, Ordering::SeqCst);
        let mut places = self.places.lock().unwrap();
        if places.get(actor).is_some_and(|place| place == host) {
            places.remove(actor);
        }
    }

    /// Forgets the actors of a host that was killed, or whose app is no longer called.
    pub fn gone(&self, host: &str) {
        self.places.lock().unwrap().retain(|_, place| place != host);
    }

    /// Checks that no actor was active in two places.
    pub fn check(&self) {
        assert_eq!(*self.wrong.lock().unwrap(), [""; 0]);
    }
}

async fn host(name: &str, seen: &Arc<Seen>) -> App {
    let (name, seen) = (name.to_owned(), Arc::clone(seen));
    App::start(move |request: Request<Incoming>| {
        let (name, seen) = (name.clone(), Arc::clone(&seen));
        async move {
            let path = request.uri().path().to_owned();
            if path == "/dapr/config" {
                return app::text(200, r#"{"entities":["T"],"drainOngoingCallTimeout":"4s"}"#);
            }
            if path == "/healthz" {
                let healthy = !seen.unhealthy.lock().unwrap().contains(&name);
                return app::text(if healthy { 200 } else { 500 }, "");
            }
            if request.method() == Method::GET {
                return app::text(404, "");
            }
            let parts: Vec<_> = path.split('/').collect();
            let actor = parts[3];
            if request.method() == Method::DELETE {
                while seen.slow.load(Ordering::SeqCst) {
                    tokio::time::sleep(LITTLE).await;
                }
                seen.ended(&name, actor);
                return app::text(200, "");
            }
            let method = parts[5..].join("/");
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let number = if method == "m" {
                String::from_utf8(body.to_vec()).unwrap()
            } else {
                String::new()
            };
            let _turn = seen.called(&name, actor, &number);
            match method.as_str() {
                "remind/wake" => drop(seen.reminded.fetch_add(1, Ordering::SeqCst)),
                "hang" => {
                    seen.hanging.store(true, Ordering::SeqCst);
                    seen.release.notified().await;
                }
                _ if seen.slow.load(Ordering::SeqCst) => tokio::time::sleep(LITTLE).await,
                _ => {}
            }
            app::text(200, &name)
        }
    })
    .await
}

fn store(folder: &std::path::Path) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: store\nspec:\n  type: state.sqlite\n  version: \
         v1\n  metadata:\n  - name: actorStateStore\n    value: 'true'\n  - name: connectionString\n    value: '{}'\n",
        folder.join("state.db").display()
    )
}

/// Hosts and their common control plane.
pub struct Fleet {
    pub net: Net,
    pub control: Control,
    pub seen: Arc<Seen>,
    folder: tempfile::TempDir,
    /// Flags of new sidecars.
    pub flags: &'static [&'static str],
}

impl Fleet {
    /// With placement, and sidecars with handover.
    pub async fn new() -> Self {
        Self::of(Control::with_handover().await, true)
    }

    /// With this control plane; `handover` tells whether sidecars hand over.
    pub fn of(control: Control, handover: bool) -> Self {
        Self {
            net: Net::plain(),
            control,
            seen: Arc::default(),
            folder: tempfile::tempdir().unwrap(),
            flags: if handover { HANDOVER } else { &[] },
        }
    }

    fn sidecar(&self, id: &str, placement: &str) -> Plan<'_> {
        let plan = self.net.sidecar(id).resource(&store(self.folder.path()));
        let plan = self.flags.iter().fold(plan, |plan, flag| plan.flag(flag));
        self.control.with_scheduler(plan).flag(placement)
    }

    /// Starts a host and its app.
    pub async fn host(&self, name: &str) -> (App, Node) {
        self.host_by(name, &self.control.placement_flag()).await
    }

    /// Like `host`, with this placement flag.
    pub async fn host_by(&self, name: &str, placement: &str) -> (App, Node) {
        let app = host(name, &self.seen).await;
        let node = self.sidecar("host", placement).app(app.port).start().await;
        (app, node)
    }

    /// A sidecar without actors.
    pub async fn caller(&self) -> Node {
        self.caller_by(&self.control.placement_flag()).await
    }

    /// Like `caller`, with this placement flag.
    pub async fn caller_by(&self, placement: &str) -> Node {
        self.sidecar("caller", placement).start().await
    }
}

/// Calls an actor; `number` identifies the call.
pub async fn call(node: &Node, actor: usize, number: &str) -> Answer {
    let path = format!("/v1.0/actors/T/{actor}/method/m");
    node.ask(post(&path, number.to_owned())).await
}

/// Sequential calls from each of a few tasks until stopped; counts failures and the longest duration.
pub struct Load {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
    tasks: JoinSet<(Vec<String>, Duration)>,
}

impl Load {
    /// Starts the calls.
    pub fn start(caller: &Arc<Node>) -> Self {
        let (stop, made, mut tasks) = (
            Arc::<AtomicBool>::default(),
            Arc::<AtomicUsize>::default(),
            JoinSet::new(),
        );
        for task in 0..4 {
            let (caller, stop, made) = (Arc::clone(caller), Arc::clone(&stop), Arc::clone(&made));
            tasks.spawn(async move {
                let (mut failed, mut longest, mut number) = (Vec::new(), Duration::ZERO, 0);
                while !stop.load(Ordering::SeqCst) {
                    number += 1;
                    let began = Instant::now();
                    let answer =
                        call(&caller, (task + number * 7) % ACTORS, &format!("{task}-{number}")).await;
                    longest = longest.max(began.elapsed());
                    made.fetch_add(1, Ordering::SeqCst);
                    if answer.status != 200 {
                        failed.push(format!("{}: {}", answer.status, answer.text()));
                    }
                }
                (failed, longest)
            });
        }
        Self { stop, made, tasks }
    }

    /// Waits for this many more calls.
    pub async fn goes_on(&self, more: usize) {
        let before = self.made.load(Ordering::SeqCst);
        eventually(async || self.made.load(Ordering::SeqCst) >= before + more).await;
    }

    /// Stops; returns the number of calls, the failures and the longest duration.
    pub async fn end(mut self) -> (usize, Vec<String>, Duration) {
        self.stop.store(true, Ordering::SeqCst);
        let (mut failed, mut longest) = (Vec::new(), Duration::ZERO);
        while let Some(ended) = within(self.tasks.join_next()).await {
            let (some, long) = ended.unwrap();
            failed.extend(some);
            longest = longest.max(long);
        }
        (self.made.load(Ordering::SeqCst), failed, longest)
    }
}
