//! Actor names, and unregistered types whose actors are still ending.

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use outrigger_actors::ring::{Host, Tables};
use outrigger_actors::routes::Origin;
use outrigger_blocks::pubsub::PubSubs;
use outrigger_blocks::secrets::Secrets;
use outrigger_component::Catalog;
use outrigger_policy::resiliency::Resiliency;
use outrigger_resources::Configuration;
use outrigger_runtime::components::Context;
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::scheduler;
use outrigger_telemetry::metrics::Metrics;
use prost_types::Any;
use tokio::sync::{Notify, Semaphore};
use tonic::Status;

use super::call::Message;
use super::host::TurnRequest;
use super::serve::status;
use super::*;

pub(super) const KIND: &str = "dapr.internal.default.shop.workflow";
/// A type name open to apps.
pub(super) const OPEN_KIND: &str = "cart";
pub(super) const HERE: &str = "10.0.0.1:50002";
pub(super) const THERE: &str = "10.0.0.2:50002";

/// Actors that end when allowed.
pub(super) struct Lasting {
    ending: Notify,
    pub(super) may_end: Semaphore,
}

pub(super) fn lasting() -> Arc<Lasting> {
    Arc::new(Lasting {
        ending: Notify::new(),
        may_end: Semaphore::new(0),
    })
}

impl InternalActors for Lasting {
    fn invoke<'a>(&'a self, _: &'a ActorCall) -> BoxFuture<'a, Result<Bytes, Status>> {
        Box::pin(async move { Ok(Bytes::new()) })
    }

    fn remind<'a>(&'a self, _: &'a str, _: &'a str, _: Option<&'a Any>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move { Ok(()) })
    }

    fn halt<'a>(&'a self, _: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.ending.notify_one();
            let _may_end = self.may_end.acquire().await;
        })
    }

    fn is_kept(&self, _: &str) -> bool {
        true
    }
}

fn tables(address: &str) -> Tables {
    let host = Host {
        address: address.into(),
        app_id: "shop".into(),
    };
    let kinds = [KIND, OPEN_KIND].map(|kind| (kind.to_owned(), vec![host.clone()]));
    Tables::new(kinds, 10).unwrap()
}

/// Actors of a sidecar without an app.
pub(super) fn actors() -> Actors {
    let resilience = Arc::new(Resilience::new(
        Resiliency::build(&[], "shop").0,
        Arc::new(SidecarMetrics::new(Metrics::disabled())),
    ));
    let context = Context {
        catalog: Catalog::empty(),
        app_id: "shop".to_owned(),
        namespace: None,
        env_keys: String::new(),
        env: Arc::new(|_| None),
        configuration: Arc::new(Configuration::default()),
        metrics: Metrics::disabled(),
        max_answer: outrigger_component::answer::MAX_ANSWER,
        actors: true,
    };
    let secrets = Arc::new(Secrets::new(Vec::new(), Arc::clone(&resilience)));
    let pubsubs = Arc::new(PubSubs::new(
        "shop".into(),
        Arc::clone(&resilience),
        Tracer::off(),
    ));
    let actors = Actors::new(Dependencies {
        app_id: "shop".into(),
        namespace: "default".into(),
        address: HERE.to_owned(),
        placement: true,
        handover: true,
        disseminate_timeout: outrigger_actors::dissemination::TIMEOUT,
        namespace_missing: false,
        app: None,
        peers: Arc::new(Peers::new(None)),
        state: Arc::new(State::new(pubsubs, Arc::clone(&resilience))),
        components: Arc::new(Components::new(context, Vec::new(), secrets)),
        scheduler: Scheduler::new(scheduler::Settings {
            app_id: "shop".into(),
            namespace: "default".into(),
            addresses: Vec::new(),
            streams: 1,
            identity: None,
            max_message: 0,
            limits: Vec::new(),
        }),
        workflow_access: Arc::new(WorkflowAccess::new(
            "shop".into(),
            "default",
            &resilience.metrics.all().registry,
        )),
        tracer: Tracer::off(),
        resilience,
        state_ttl: false,
        max_message: 0,
    });
    actors.step(actors.routes.load().replaced(tables(HERE), false).settled());
    actors.admission.open();
    actors
}

pub(super) fn names(actors: &Actors) -> Vec<String> {
    let names = actors.types.borrow().clone();
    names.unwrap_or_default().to_vec()
}

/// A table that moves an internal type is not acknowledged until its actors have ended; callers wait for that
/// or are rejected.
#[tokio::test]
async fn keeps_internal_type_until_actors_end() {
    let actors = Arc::new(actors());
    let lasting = lasting();
    actors.host_internal([(KIND.to_owned(), lasting.clone() as Arc<dyn InternalActors>)]);
    assert_eq!(names(&actors), [KIND]);
    let call = ActorCall {
        kind: KIND.to_owned(),
        id: "a".to_owned(),
        ..ActorCall::default()
    };
    let message = Message::Call(&call);
    assert!(actors.received(&message, Origin::Own).await.is_ok());
    let unregistering = tokio::spawn({
        let actors = Arc::clone(&actors);
        async move { actors.unregister_internal(&[KIND.to_owned()]).await }
    });
    lasting.ending.notified().await;
    assert_eq!(
        names(&actors),
        [""; 0],
        "placement and the schedulers hear of it at once"
    );
    let refused = actors.received(&message, Origin::Own).await.map(|_| ());
    assert!(
        matches!(refused, Err(ActorError::NoAddress { .. })),
        "{refused:?}"
    );
    // For a sidecar with an older table the actor has moved, so it routes again.
    let told = ActorError::Peer(status(&refused.unwrap_err()));
    assert!(told.is_about_place(), "{told}");
    let other = ActorCall {
        id: "b".to_owned(),
        ..call.clone()
    };
    let refused = actors
        .received(&Message::Call(&other), Origin::Own)
        .await
        .map(|_| ());
    assert!(
        matches!(refused, Err(ActorError::NoAddress { .. })),
        "{refused:?}"
    );

    actors.step(actors.routes.load().replaced(tables(THERE), false).settled());
    let routes = actors.routes.load_full();
    let mut answering = Box::pin(actors.halt_here(|kind, id| !routes.owns(kind, id)));
    assert!(answering.as_mut().now_or_never().is_none());
    // The old host waits for the end too.
    let hosted = actors.hosted.load_full();
    let turn_request = TurnRequest::new(&|| false);
    let kind = hosted.with_actors(KIND).unwrap();
    let mut handed = Box::pin(
        kind.internal
            .as_ref()
            .unwrap()
            .send(kind, &message, &turn_request),
    );
    assert!(handed.as_mut().now_or_never().is_none());
    lasting.may_end.add_permits(1);
    answering.await;
    assert!(matches!(handed.await, Ok(None)));
    unregistering.await.unwrap();
    assert_eq!(actors.hosted.load().all().count(), 0);
}

/// Calls of a moving actor take no turn once cancelled; they continue on the new host.
#[tokio::test]
async fn waiting_call_of_moving_actor_takes_no_turn() {
    let actors = actors();
    actors.host_internal([(KIND.to_owned(), lasting() as Arc<dyn InternalActors>)]);
    let hosted = actors.hosted.load_full();
    let kind = hosted.with_actors(KIND).unwrap();
    let (guard, stays) = (kind.admission.admit(0).await, || true);
    let runs = kind.turn("a", None, &TurnRequest::new(&stays)).await;
    let runs = runs.unwrap().unwrap();
    let turn_request = TurnRequest::new(&stays).within(&guard);
    let mut waits = std::pin::pin!(kind.turn("a", None, &turn_request));
    assert!(waits.as_mut().now_or_never().is_none());
    let mut last = std::pin::pin!(kind.last("a"));
    assert!(last.as_mut().now_or_never().is_none());
    kind.evict("a");
    let _evicting = kind.admission.evict();
    drop(runs);
    assert!(waits.as_mut().now_or_never().is_none());
    assert!(!turn_request.begun.load(Ordering::SeqCst));
    let last = last.now_or_never().flatten();
    last.expect("its queue is empty").deactivated();
    assert!(matches!(waits.now_or_never(), Some(Ok(None))));
}

#[tokio::test]
async fn shutdown_rejects_waiting_calls() {
    let actors = actors();
    actors.admission.close();
    let mut call = std::pin::pin!(actors.admit_call(KIND, "a"));
    assert!(call.as_mut().now_or_never().is_none());
    actors.ended.cancel();
    assert!(matches!(call.now_or_never(), Some(Err(ActorError::Ended))));
}

#[test]
fn validates_actor_ids() {
    const EXECUTOR: &str = "dapr.internal.default.shop.executor";
    const WORKFLOW: &str = "dapr.internal.default.shop.workflow";
    assert!(check(WORKFLOW, "a").is_ok() && check(EXECUTOR, "a").is_ok());
    assert!(check(EXECUTOR, "a/3").is_ok());
    assert!(check("cart", &"a".repeat(MAX_NAME)).is_ok());
    for (kind, id) in [
        (WORKFLOW, "a/3"),
        ("cart", "a/3"),
        (EXECUTOR, "../3"),
        (EXECUTOR, "b/a/3"),
        (WORKFLOW, &"a".repeat(MAX_NAME + 1)),
        (EXECUTOR, &format!("{}/3", "a".repeat(MAX_NAME + 1))),
        (&"a".repeat(MAX_NAME + 1), "a"),
    ] {
        assert!(check(kind, id).is_err(), "{kind} {id}");
    }
}

#[tokio::test]
async fn reminder_needs_name_and_state_store() {
    let actors = Arc::new(actors());
    actors.register(&Settings::parse(br#"{"entities": ["cart"]}"#, Duration::from_secs(30)).unwrap());
    let reminder = |name: &str| ReminderRequest {
        kind: OPEN_KIND.to_owned(),
        id: "a".to_owned(),
        name: name.to_owned(),
        ..ReminderRequest::default()
    };
    let nameless = actors.register_reminder(reminder("")).await.unwrap_err();
    assert_eq!(
        nameless.to_string(),
        "invalid request: reminder name cannot be empty"
    );
    let refused = [
        actors.register_reminder(reminder("n")).await.unwrap_err(),
        actors.reminder(OPEN_KIND, "a", "n").await.unwrap_err(),
        actors.unregister_reminder(OPEN_KIND, "a", "n").await.unwrap_err(),
    ];
    for error in refused {
        assert!(
            matches!(error, ActorError::Reminder(ReminderError::NotHosted)),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn apps_cannot_use_internal_types() {
    let actors = Arc::new(actors());
    actors.host_internal([(KIND.to_owned(), lasting() as Arc<dyn InternalActors>)]);
    let call = ActorCall {
        kind: KIND.to_owned(),
        id: "a".to_owned(),
        ..ActorCall::default()
    };
    let timer = TimerRequest {
        kind: KIND.to_owned(),
        id: "a".to_owned(),
        name: "n".to_owned(),
        ..TimerRequest::default()
    };
    let reminder = ReminderRequest {
        kind: KIND.to_owned(),
        id: "a".to_owned(),
        name: "n".to_owned(),
        ..ReminderRequest::default()
    };
    let results = [
        actors.invoke(&call).await.map(drop),
        actors.change_state(KIND, "a", Vec::new()).await,
        actors.read_state(KIND, "a", "k").await.map(drop),
        actors.register_timer(timer).await,
        actors.unregister_timer(KIND, "a", "n").await,
        actors.register_reminder(reminder).await,
        actors.reminder(KIND, "a", "n").await.map(drop),
        actors.unregister_reminder(KIND, "a", "n").await,
        actors.reminders(KIND, None).await.map(drop),
        actors.unregister_reminders(KIND, None).await,
    ];
    for (index, result) in results.into_iter().enumerate() {
        let refused = matches!(&result, Err(ActorError::Reserved(kind)) if kind == KIND);
        assert!(refused, "{index}: {result:?}");
    }
    assert!(actors.invoke_plain(&call).await.is_ok());
}

/// Calls an actor without a host, and returns the result with its duration.
async fn call_while(
    actors: &Actors,
    tables_come: impl Future<Output = ()>,
) -> (Result<(), ActorError>, std::time::Duration) {
    let call = ActorCall {
        kind: KIND.to_owned(),
        id: "a".to_owned(),
        ..ActorCall::default()
    };
    let began = tokio::time::Instant::now();
    let called = async {
        let called = actors.invoke_plain(&call).await;
        (called.map(drop), began.elapsed())
    };
    let (called, ()) = futures::join!(called, tables_come);
    called
}

#[tokio::test(start_paused = true)]
async fn new_table_retries_misrouted_call() {
    let actors = actors();
    actors.host_internal([(KIND.to_owned(), lasting() as Arc<dyn InternalActors>)]);
    actors.step(actors.routes.load().replaced(Tables::default(), false).settled());
    let table = async {
        tokio::task::yield_now().await;
        actors.step(actors.routes.load().replaced(tables(HERE), false).settled());
    };
    let (called, took) = call_while(&actors, table).await;
    assert!(called.is_ok(), "{called:?}");
    assert_eq!(took, std::time::Duration::ZERO);
}

/// Independent of the number of new tables, as at the startup of a fleet.
#[tokio::test(start_paused = true)]
async fn call_without_host_fails_after_five_seconds() {
    let actors = actors();
    actors.step(actors.routes.load().replaced(Tables::default(), false).settled());
    let others = async {
        for _ in 0..20 {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            actors.step(actors.routes.load().replaced(Tables::default(), false).settled());
        }
    };
    let (called, took) = call_while(&actors, others).await;
    assert!(matches!(called, Err(ActorError::NoAddress { .. })), "{called:?}");
    assert_eq!(took, std::time::Duration::from_secs(5));
}
