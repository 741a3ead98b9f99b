//! Targets between a scripted broker and a scripted client.

mod apps;
mod bulks;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use outrigger_cloudevents::Event;
use outrigger_component::pubsub::{
    Features, Message, OrderingKey, Publish, Settlement, Subscribe, Subscription,
};
use outrigger_component::{Error, Kind, PubSub, Result as ComponentResult};
use outrigger_policy::resiliency::Resiliency;
use outrigger_policy::routing::Routes;
use outrigger_redact::Secrets;
use outrigger_resources::load::text;
use outrigger_resources::subscription::{Routes as Rules, Rule};
use outrigger_runtime::delivery::Order;
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::registry::Registration;
use outrigger_runtime::resilience::Resilience;
use outrigger_telemetry::metrics::{Format, Metrics};
use outrigger_telemetry::trace::Tracer;
use outrigger_wire::runtime::v1::topic_event_response::TopicEventResponseStatus as Said;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{Barrier, oneshot};
use tokio_util::sync::CancellationToken;

use super::super::stream::Opened;
use super::*;
use crate::pubsub::{PubSubs, Topics};

/// Three attempts, an hour apart.
const PATIENT: &str = "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: r\nspec:\n  policies:\n    \
                       retries:\n      patient: {policy: constant, duration: 1h, maxRetries: 2}\n  targets:\n    \
                       components:\n      broker: {inbound: {retry: patient}}\n";
/// Longer than any test.
const LONG: Duration = Duration::from_secs(30);

/// The next action of the broker.
enum Step {
    Deliver(&'static str, Option<OrderingKey>),
    /// Revokes a partition; the sender is notified when the engine has processed it.
    Revoke(u32, oneshot::Sender<()>),
}

struct Fake {
    steps: Mutex<Option<UnboundedReceiver<Step>>>,
    settled: UnboundedSender<(String, Settlement)>,
    /// Topics and payloads.
    published: Mutex<Vec<(String, String)>>,
    refuses: AtomicBool,
    /// If set, publishing waits here twice: once to be observed, once to continue.
    pauses: Mutex<Option<Arc<Barrier>>>,
    needs_consumer: AtomicBool,
    concurrency: Option<NonZeroUsize>,
    /// Messages that the broker sends before one is settled, if it reports a window.
    window: Option<usize>,
}

#[async_trait]
impl PubSub for Fake {
    fn features(&self) -> Features {
        Features::default()
    }

    async fn publish(&self, message: &Publish) -> ComponentResult<()> {
        let pauses = self.pauses.lock().unwrap().clone();
        if let Some(pauses) = pauses {
            pauses.wait().await;
            pauses.wait().await;
        }
        if self.refuses.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Unavailable, "the broker is away"));
        }
        let data = String::from_utf8_lossy(&message.data).into_owned();
        self.published.lock().unwrap().push((message.topic.clone(), data));
        Ok(())
    }

    async fn subscribe(&self, request: Subscribe) -> ComponentResult<Subscription> {
        let mut steps = self.steps.lock().unwrap().take().unwrap();
        let (sender, window) = (self.settled.clone(), self.window);
        let run = move |mut feed: outrigger_component::pubsub::Feed<String>| async move {
            if let Some(window) = window {
                feed.set_window(window);
            }
            let drain = feed.drain_token();
            let mut delivered: HashMap<&str, u32> = HashMap::new();
            while !feed.draining() || !feed.is_settled() {
                tokio::select! {
                    () = drain.cancelled(), if !feed.draining() || feed.is_settled() => {}
                    Some(step) = steps.recv() => match step {
                        Step::Deliver(data, ordering_key) => {
                            let before = delivered.entry(data).or_default();
                            let message = Message { redelivered: Some(*before), ..message(data, ordering_key) };
                            *before += 1;
                            feed.offer(data.to_owned(), message);
                        }
                        Step::Revoke(partition, noted) => {
                            feed.revoked(vec![partition]).await;
                            noted.send(()).unwrap();
                        }
                    },
                    settled = feed.settled() => settled.into_iter().for_each(|one| {
                        // The test may have ended.
                        let _over = sender.send(one);
                    }),
                }
            }
            Ok(())
        };
        Ok(Subscription::start_in_order(&request, run)
            .with_concurrency(self.concurrency)
            .needing_consumer(self.needs_consumer.load(Ordering::Relaxed)))
    }

    async fn ping(&self) -> ComponentResult<()> {
        Ok(())
    }

    async fn close(&self) {}
}

fn message(data: &str, ordering_key: Option<OrderingKey>) -> Message {
    Message {
        topic: "orders".into(),
        data: data.to_owned().into(),
        content_type: None,
        metadata: Default::default(),
        ordering_key,
        redelivered: None,
    }
}

/// A target with a stream for its client.
struct Scene {
    fake: Arc<Fake>,
    steps: UnboundedSender<Step>,
    settled: UnboundedReceiver<(String, Settlement)>,
    opened: Opened,
    subscriptions: Arc<Subscriptions>,
    _registration: Registration,
}

impl Scene {
    /// `policy`: a Resiliency resource.
    async fn new(policy: &str, wanted: AppSubscription) -> Self {
        Self::of_broker(policy, wanted, None, None).await
    }

    /// `concurrency` and `window`: settings of the broker's component.
    async fn of_broker(
        policy: &str,
        wanted: AppSubscription,
        concurrency: Option<NonZeroUsize>,
        window: Option<usize>,
    ) -> Self {
        let resources = text(policy, "app").unwrap().resiliency;
        let metrics = Arc::new(SidecarMetrics::new(Metrics::new(&Default::default()).unwrap()));
        let resilience = Arc::new(Resilience::new(Resiliency::build(&resources, "app").0, metrics));
        let pubsubs = PubSubs::new("app".into(), Arc::clone(&resilience), Tracer::off());
        let (steps, to_do) = mpsc::unbounded_channel();
        let (tell, settled) = mpsc::unbounded_channel();
        let fake = Arc::new(Fake {
            steps: Mutex::new(Some(to_do)),
            settled: tell,
            published: Mutex::default(),
            refuses: AtomicBool::new(false),
            pauses: Mutex::default(),
            needs_consumer: AtomicBool::new(false),
            concurrency,
            window,
        });
        let component: Arc<dyn PubSub> = fake.clone();
        let registration = pubsubs.insert(
            "broker",
            component,
            Topics::default(),
            String::new(),
            Secrets::default(),
        );
        let subscriptions = Subscriptions::new(Dependencies {
            app_id: "app".into(),
            pubsubs: Arc::new(pubsubs),
            resilience,
            app: None,
            tracer: Tracer::off(),
            ask_app: false,
            max_answer: 1024,
        });
        let opened = subscriptions.open_stream(wanted).await.unwrap();
        Self {
            fake,
            steps,
            settled,
            opened,
            subscriptions,
            _registration: registration,
        }
    }

    /// A target for an app, and the steps of its broker.
    fn target(&self, wanted: AppSubscription, app: Arc<AppChannel>) -> (UnboundedSender<Step>, Target) {
        // The broker has steps for this subscription too.
        let subscriptions = Arc::clone(&self.subscriptions);
        let broker = subscriptions.dependencies.pubsubs.broker("broker").unwrap();
        let (steps, to_do) = mpsc::unbounded_channel();
        *self.fake.steps.lock().unwrap() = Some(to_do);
        let target = Target::new(subscriptions, Arc::new(wanted), broker, Sink::App(app));
        (steps, target)
    }

    fn deliver(&self, data: &'static str, partition: Option<u32>) {
        let ordering_key = partition.map(|partition| OrderingKey {
            partition: Some(partition),
            key: None,
        });
        assert!(self.steps.send(Step::Deliver(data, ordering_key)).is_ok());
    }

    async fn revoke(&self, partition: u32) {
        let (noted, heard) = oneshot::channel();
        assert!(self.steps.send(Step::Revoke(partition, noted)).is_ok());
        tokio::time::timeout(LONG, heard).await.unwrap().unwrap();
    }

    /// Waits until the client gets an event.
    async fn event(&mut self) -> String {
        let next = tokio::time::timeout(LONG, self.opened.events.recv());
        next.await.unwrap().unwrap().id
    }

    fn answer(&self, id: &str, status: Said) {
        self.opened.stream.answered(id, status.into());
    }

    /// Waits until a message is settled.
    async fn settlement(&mut self) -> Settlement {
        let next = tokio::time::timeout(LONG, self.settled.recv());
        next.await.unwrap().unwrap().1
    }

    fn dead_letters(&self) -> Vec<(String, String)> {
        self.fake.published.lock().unwrap().clone()
    }

    /// The value of a metric of `broker` and `orders`.
    fn metric(&self, name: &str) -> Option<f64> {
        let text = self.subscriptions.dependencies.resilience.metrics.all();
        let text = text.render(Format::negotiate(None));
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with(&format!("{name}{{")))?;
        for label in [
            "component=\"broker\"",
            "topic=\"orders\"",
            "namespace=",
            "app_id=",
        ] {
            assert!(line.contains(label), "{label}: {line}");
        }
        line.rsplit_once(' ').unwrap().1.parse().ok()
    }

    async fn end(self) {
        self.subscriptions.end_reading();
        self.subscriptions.close_stream(&self.opened.stream);
        tokio::time::timeout(LONG, self.subscriptions.drained())
            .await
            .unwrap();
    }
}

fn wanted() -> AppSubscription {
    AppSubscription {
        origin: SubscriptionType::Streaming,
        dead_letter: Some("dead".to_owned()),
        ..AppSubscription::to_path("broker", "orders", "/orders")
    }
}

/// The first dead letter of a message.
fn dead_letter(data: &str) -> (String, String) {
    let event = Event::parse(data.as_bytes()).ok();
    let event = event.filter(|event| event.get("specversion").is_some());
    let counted = event.map(|mut event| {
        event.set_json("deadletterhops", "1".into());
        String::from_utf8(event.to_bytes()).unwrap()
    });
    ("dead".to_owned(), counted.unwrap_or_else(|| data.to_owned()))
}

const EVENT: &str = r#"{"id":"1","type":"t","source":"s","specversion":"1.0","data":1}"#;
const EXPIRED: &str =
    r#"{"id":"1","type":"t","source":"s","specversion":"1.0","data":1,"expiration":"2001-01-01T00:00:00Z"}"#;

/// Invariant: a rebalance neither dead-letters a message with attempts left nor acknowledges an unfinished
/// one; the next owner gets it.
#[tokio::test]
async fn rebalance_between_attempts_settles_nothing() {
    let mut scene = Scene::new(PATIENT, wanted()).await;
    scene.deliver(EVENT, Some(0));
    let id = scene.event().await;
    scene.answer(&id, Said::Retry);
    scene.revoke(0).await;
    assert_eq!(scene.settlement().await, Settlement::Release);
    assert_eq!(scene.dead_letters(), []);
    scene.end().await;
}

#[tokio::test]
async fn rebalanced_attempt_counts_only_on_success() {
    for (said, settlement) in [
        (Said::Retry, Settlement::Release),
        (Said::Drop, Settlement::Release),
        (Said::Success, Settlement::Acknowledge),
    ] {
        // Without a policy there is one attempt, and this is the last.
        let mut scene = Scene::new("", wanted()).await;
        scene.deliver(EVENT, Some(0));
        let id = scene.event().await;
        scene.revoke(0).await;
        scene.answer(&id, said);
        assert_eq!(scene.settlement().await, settlement, "{said:?}");
        assert_eq!(scene.dead_letters(), [], "{said:?}");
        scene.end().await;
    }
}

#[tokio::test]
async fn rebalance_keeps_other_partitions() {
    let mut scene = Scene::new("", wanted()).await;
    scene.deliver(EVENT, Some(1));
    let id = scene.event().await;
    scene.revoke(0).await;
    scene.answer(&id, Said::Retry);
    assert_eq!(scene.settlement().await, Settlement::Acknowledge);
    assert_eq!(scene.dead_letters(), [dead_letter(EVENT)]);
    scene.end().await;
}

/// In bulks, messages of a partition are delivered together and do not wait for each other; a rebalance
/// revokes all of them.
#[tokio::test]
async fn rebalance_revokes_bulk_messages() {
    let ordering_key = |key: Option<&'static str>| OrderingKey {
        partition: Some(3),
        key: key.map(Into::into),
    };
    let scene = Scene::new("", wanted()).await;
    let broker = scene.subscriptions.dependencies.pubsubs.broker("broker").unwrap();
    let sink = Sink::Stream(Arc::clone(&scene.opened.stream));
    let subscriptions = Arc::clone(&scene.subscriptions);
    let mut target = Target::new(subscriptions, Arc::new(wanted()), broker, sink);
    let order = |target: &Target, key| target.order(&message(EVENT, Some(ordering_key(key))));
    assert_eq!(order(&target, None), Some(Order::after(ordering_key(None))));
    let bulk = super::super::spec::Bulk {
        count: 2,
        wait: Duration::from_secs(1),
    };
    target.collector = Some(Collector::new(bulk, false));
    assert_eq!(order(&target, None), Some(Order::alone(ordering_key(None), 0)));
    assert_eq!(order(&target, None), Some(Order::alone(ordering_key(None), 1)));
    assert_eq!(
        order(&target, Some("a")),
        Some(Order::after(ordering_key(Some("a"))))
    );
    assert_eq!(target.order(&message(EVENT, None)), None);
    drop(target);
    scene.end().await;
}

/// Invariant: an undeliverable message is acknowledged only after its dead letter is published.
#[tokio::test]
async fn acknowledges_undeliverable_after_dead_letter() {
    let rules = Rules {
        rules: vec![Rule {
            r#match: "event.type == 'other'".to_owned(),
            path: "/other".to_owned(),
        }],
        default: String::new(),
    };
    let unrouted = AppSubscription {
        routes: Routes::compile(&rules).unwrap(),
        ..wanted()
    };
    for (wanted, data) in [
        (wanted(), EXPIRED),
        (unrouted, EVENT),
        (wanted(), "no event"),
        (wanted(), "[]"),
    ] {
        let mut scene = Scene::new("", wanted).await;
        scene.fake.refuses.store(true, Ordering::Relaxed);
        scene.deliver(data, None);
        assert_eq!(
            scene.settlement().await,
            Settlement::Reject,
            "{data}: no dead letter"
        );
        scene.fake.refuses.store(false, Ordering::Relaxed);
        scene.deliver(data, None);
        assert_eq!(scene.settlement().await, Settlement::Acknowledge, "{data}");
        assert_eq!(scene.dead_letters(), [dead_letter(data)]);
        scene.end().await;
    }
}

/// Invariant: if the dead letter of a message cannot be published, later messages of its key do not overtake
/// it. They are returned with it; other keys continue.
#[tokio::test]
async fn failed_dead_letter_keeps_key_order() {
    const FIRST: &str = r#"{"id":"first","type":"t","source":"s","specversion":"1.0","data":1}"#;
    const SECOND: &str = r#"{"id":"second","type":"t","source":"s","specversion":"1.0","data":2}"#;
    const OTHER: &str = r#"{"id":"other","type":"t","source":"s","specversion":"1.0","data":3}"#;
    for said in [Said::Retry, Said::Drop] {
        let mut scene = Scene::new("", wanted()).await;
        scene.fake.refuses.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            scene.deliver(FIRST, Some(0));
            scene.deliver(SECOND, Some(0));
            scene.deliver(OTHER, Some(1));
            let mut ids = [scene.event().await, scene.event().await];
            for id in &ids {
                let status = if id == "other" { Said::Success } else { said };
                scene.answer(id, status);
            }
            ids.sort();
            assert_eq!(ids, ["first", "other"]);
            let mut settled = Vec::new();
            for _ in 0..3 {
                let next = tokio::time::timeout(LONG, scene.settled.recv());
                settled.push(next.await.unwrap().unwrap());
            }
            settled.retain(|(data, _)| data != OTHER);
            let expected = [(FIRST, Settlement::Reject), (SECOND, Settlement::Release)];
            assert_eq!(
                settled,
                expected.map(|(data, settled)| (data.to_owned(), settled))
            );
        }
        assert!(
            scene.opened.events.try_recv().is_err(),
            "the second one was attempted"
        );
        scene.fake.refuses.store(false, Ordering::Relaxed);
        scene.deliver(FIRST, Some(0));
        scene.deliver(SECOND, Some(0));
        for (id, status) in [("first", said), ("second", Said::Success)] {
            assert_eq!(scene.event().await, id);
            scene.answer(id, status);
            assert_eq!(scene.settlement().await, Settlement::Acknowledge);
        }
        assert_eq!(scene.dead_letters(), [dead_letter(FIRST)]);
        scene.end().await;
    }
}

/// Without a dead-letter topic, expired messages are acknowledged and invalid ones are returned.
#[tokio::test]
async fn returns_invalid_message_without_dead_letter_topic() {
    let wanted = AppSubscription {
        dead_letter: None,
        ..wanted()
    };
    let mut scene = Scene::new("", wanted).await;
    for (data, settlement) in [
        (EXPIRED, Settlement::Acknowledge),
        ("no event", Settlement::Reject),
    ] {
        scene.deliver(data, None);
        assert_eq!(scene.settlement().await, settlement, "{data}");
    }
    scene.end().await;
}

/// Response statuses outside the contract count as failures.
#[tokio::test]
async fn unknown_stream_status_is_failure() {
    let mut scene = Scene::new("", wanted()).await;
    for status in [3, -1, i32::MAX] {
        scene.deliver(EVENT, None);
        let id = scene.event().await;
        scene.opened.stream.answered(&id, status);
        assert_eq!(scene.settlement().await, Settlement::Acknowledge);
    }
    assert_eq!(scene.dead_letters().len(), 3, "each has a dead letter");
    scene.end().await;
}

#[tokio::test]
async fn counts_redelivered_messages() {
    let mut scene = Scene::new("", wanted()).await;
    for expected in [None, Some(1.0), Some(2.0)] {
        scene.deliver("no event", None);
        scene.settlement().await;
        let counted = scene.metric("dapr_component_pubsub_redelivered_count");
        assert_eq!(counted, expected);
    }
    scene.end().await;
}

#[tokio::test]
async fn lag_includes_pending_dead_letters() {
    const OLD: &str =
        r#"{"id":"1","type":"t","source":"s","specversion":"1.0","data":1,"time":"2001-01-01T00:00:00Z"}"#;
    for said in [Said::Retry, Said::Drop] {
        let mut scene = Scene::new("", wanted()).await;
        let pauses = Arc::new(Barrier::new(2));
        *scene.fake.pauses.lock().unwrap() = Some(Arc::clone(&pauses));
        let lag = |scene: &Scene| {
            scene.subscriptions.metrics.lag("broker", "orders").show();
            scene.metric("dapr_component_pubsub_ingress_lag")
        };
        scene.deliver(OLD, Some(0));
        let id = scene.event().await;
        scene.answer(&id, said);
        tokio::time::timeout(LONG, pauses.wait()).await.unwrap();
        assert!(lag(&scene) > Some(0.0), "{said:?}");
        tokio::time::timeout(LONG, pauses.wait()).await.unwrap();
        assert_eq!(scene.settlement().await, Settlement::Acknowledge);
        assert_eq!(lag(&scene), Some(0.0), "{said:?}");
        scene.end().await;
    }
}

#[tokio::test]
async fn logs_reason_of_dead_letter() {
    let lines = outrigger_testing::log_lines::Lines::new();
    let mut scene = Scene::new("", wanted()).await;
    scene.deliver(EVENT, None);
    let id = scene.event().await;
    scene.answer(&id, Said::Drop);
    scene.settlement().await;
    scene.deliver(EXPIRED, None);
    scene.settlement().await;
    scene.fake.refuses.store(true, Ordering::Relaxed);
    scene.deliver(EXPIRED, None);
    scene.settlement().await;
    scene.end().await;
    let lines = lines.take(LOG, tracing::Level::WARN);
    for wanted in [
        "WARN message of topic orders of broker moved to dead-letter topic dead: the app dropped it",
        "WARN message of topic orders of broker moved to dead-letter topic dead: it has expired",
        "ERROR error sending message to dead letter, origin topic: orders dead letter topic dead err: the broker is away; \
         reason of the dead letter: it has expired",
        "WARN message of topic orders of broker returned to the broker: it has expired",
    ] {
        assert!(
            lines.iter().any(|line| line.to_string() == wanted),
            "{wanted}: {lines:#?}"
        );
    }
}

/// Dead-letter topics that form a loop would otherwise pass a message around forever.
#[tokio::test]
async fn drops_message_in_dead_letter_loop() {
    const FULL: &str =
        r#"{"id":"1","type":"t","source":"s","specversion":"1.0","data":1,"deadletterhops":16}"#;
    const EXPIRED_TOO: &str =
        r#"{"id":"1","specversion":"1.0","deadletterhops":16,"expiration":"2001-01-01T00:00:00Z"}"#;
    let lines = outrigger_testing::log_lines::Lines::new();
    let mut scene = Scene::new("", wanted()).await;
    for said in [Said::Retry, Said::Drop] {
        scene.deliver(FULL, None);
        let id = scene.event().await;
        scene.answer(&id, said);
        assert_eq!(scene.settlement().await, Settlement::Acknowledge, "{said:?}");
    }
    scene.deliver(EXPIRED_TOO, None);
    assert_eq!(scene.settlement().await, Settlement::Acknowledge);
    assert_eq!(scene.dead_letters(), []);
    scene.end().await;
    let lines = lines.take(LOG, tracing::Level::ERROR);
    let wanted = "ERROR message of topic orders of broker dropped after 16 dead letters: the dead-letter topics form a loop; \
                  the next is dead; reason: it has expired";
    assert_eq!(lines.len(), 3, "{lines:#?}");
    assert!(lines.iter().any(|line| line.to_string() == wanted), "{lines:#?}");
}
