//! The sizes of bulks, between a broker and an HTTP app.

use outrigger_resources::configuration::Configuration;
use outrigger_runtime::app::{App, AppProtocol, Health};
use outrigger_runtime::middleware::Middlewares;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use super::super::super::spec::Bulk;
use super::*;

/// An event that makes the app fail the whole bulk.
const REFUSED: &str = r#"{"id":"refused","type":"t","source":"s","specversion":"1.0","data":1}"#;

/// An app that drops every bulk except those with a refused event, and reports the size of each.
pub(super) async fn app(
    health: Health,
    max_concurrency: Option<usize>,
) -> (Arc<AppChannel>, UnboundedReceiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = App {
        port: listener.local_addr().unwrap().port(),
        protocol: AppProtocol::Http,
        address: "127.0.0.1".to_owned(),
        max_concurrency,
        api_token: None,
        health: None,
        health_path: String::new(),
        binding_options_timeout: LONG,
        skip_config_endpoint: true,
        skip_subscribe_endpoint: true,
    };
    let (tell, sizes) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(BufReader::new(stream), tell.clone()));
        }
    });
    let metrics = Arc::new(SidecarMetrics::new(Metrics::disabled()));
    let middlewares = Arc::new(Middlewares::new(&Configuration::default()));
    let channel = AppChannel::build(&config, health, None, metrics, middlewares);
    (Arc::new(channel.unwrap()), sizes)
}

async fn serve(mut stream: BufReader<tokio::net::TcpStream>, sizes: UnboundedSender<usize>) {
    loop {
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.unwrap();
        let body = String::from_utf8(body).unwrap();
        sizes.send(body.matches("entryId").count()).unwrap();
        let status = if body.contains("refused") {
            "500 Internal Server Error"
        } else {
            "404 Not Found"
        };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        stream.get_mut().write_all(answer.as_bytes()).await.unwrap();
    }
}

/// Settings of the broker, its policy and the bulk subscription.
#[derive(Default)]
struct Setting {
    concurrency: Option<usize>,
    window: Option<usize>,
    policy: &'static str,
    count: usize,
    /// Concurrency of the app.
    calls: Option<usize>,
    /// How long a bulk waits for more events; forever by default.
    wait: Option<Duration>,
}

/// A broker and an app with bulks between them.
struct Bulks {
    scene: Scene,
    steps: UnboundedSender<Step>,
    sizes: UnboundedReceiver<usize>,
    app: Arc<AppChannel>,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<()>,
}

impl Bulks {
    async fn start(setting: Setting) -> Self {
        let concurrency = setting.concurrency.and_then(NonZeroUsize::new);
        let scene = Scene::of_broker(setting.policy, wanted(), concurrency, setting.window).await;
        let (app, sizes) = app(Health::new(true).1, setting.calls).await;
        let wanted = AppSubscription {
            origin: SubscriptionType::Declared,
            dead_letter: None,
            bulk: Some(Bulk {
                count: setting.count,
                wait: setting.wait.unwrap_or(Duration::from_secs(3600)),
            }),
            ..wanted()
        };
        let (steps, target) = scene.target(wanted, Arc::clone(&app));
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let running = tokio::spawn(async move {
            target.run(&stopped, &CancellationToken::new(), None).await;
        });
        Self {
            scene,
            steps,
            sizes,
            app,
            stop,
            running,
        }
    }

    fn deliver(&self, event: &'static str, key: Option<&'static str>) {
        let ordering_key = key.map(|key| OrderingKey {
            partition: None,
            key: Some(key.into()),
        });
        assert!(self.steps.send(Step::Deliver(event, ordering_key)).is_ok());
    }

    /// The size of the next bulk.
    async fn next(&mut self) -> usize {
        let next = tokio::time::timeout(LONG, self.sizes.recv());
        next.await.unwrap().unwrap()
    }

    /// Waits until `events` messages are settled, all acknowledged.
    async fn acknowledged(&mut self, events: usize) {
        for _ in 0..events {
            assert_eq!(self.scene.settlement().await, Settlement::Acknowledge);
        }
    }

    async fn end(self) {
        self.stop.cancel();
        self.running.await.unwrap();
        self.scene.end().await;
    }
}

/// The sizes of the bulks in which the app gets `events` events.
async fn bulks(setting: Setting, events: usize) -> Vec<usize> {
    let mut bulks = Bulks::start(setting).await;
    for _ in 0..events {
        bulks.deliver(EVENT, None);
    }
    bulks.acknowledged(events).await;
    let sizes = std::iter::from_fn(|| bulks.sizes.try_recv().ok()).collect();
    bulks.end().await;
    sizes
}

#[tokio::test]
async fn bulk_size_follows_subscription() {
    let setting = Setting {
        count: 500,
        ..Setting::default()
    };
    assert_eq!(bulks(setting, 1000).await, [500, 500]);
}

#[tokio::test]
async fn bulk_does_not_wait_beyond_limits() {
    for (concurrency, window, events, sizes) in [
        (Some(10), None, 30, vec![10, 10, 10]),
        (None, Some(10), 10, vec![10]),
        (Some(20), Some(10), 10, vec![10]),
        (Some(5), Some(10), 10, vec![5, 5]),
    ] {
        let setting = Setting {
            concurrency,
            window,
            count: 100,
            ..Setting::default()
        };
        assert_eq!(bulks(setting, events).await, sizes, "{concurrency:?} {window:?}");
    }
}

/// An event queued behind another of its key takes a slot of the broker's window, but cannot join the bulk.
#[tokio::test]
async fn bulk_does_not_wait_for_queued_keys() {
    let mut bulks = Bulks::start(Setting {
        window: Some(5),
        count: 100,
        ..Setting::default()
    })
    .await;
    for key in ["a", "b", "a", "c", "b"] {
        bulks.deliver(EVENT, Some(key));
    }
    assert_eq!(bulks.next().await, 3);
    // Three are settled, so the broker sends three more.
    bulks.acknowledged(3).await;
    for key in ["d", "e", "f"] {
        bulks.deliver(EVENT, Some(key));
    }
    assert_eq!(bulks.next().await, 5);
    bulks.acknowledged(5).await;
    bulks.end().await;
}

/// Nor for an event that waits for its retry, even if its failure completes the bulk.
#[tokio::test]
async fn bulk_does_not_wait_for_retry() {
    let mut bulks = Bulks::start(Setting {
        window: Some(4),
        policy: PATIENT,
        count: 3,
        ..Setting::default()
    })
    .await;
    for event in [REFUSED, REFUSED, REFUSED, EVENT] {
        bulks.deliver(event, None);
    }
    assert_eq!((bulks.next().await, bulks.next().await), (3, 1));
    bulks.acknowledged(1).await;
    bulks.end().await;
}

/// Invariant: a partial bulk that waits for the app is not in flight, so it keeps filling.
#[tokio::test]
async fn bulk_fills_while_app_is_busy() {
    let wait = Duration::from_millis(10);
    let mut bulks = Bulks::start(Setting {
        count: 100,
        calls: Some(1),
        wait: Some(wait),
        ..Setting::default()
    })
    .await;
    let busy = bulks.app.turn().await.unwrap();
    for _ in 0..3 {
        bulks.deliver(EVENT, None);
        // No signal shows that a bulk waits for the app. Too short a sleep can only miss a bug, not fail a
        // correct run.
        tokio::time::sleep(10 * wait).await;
    }
    assert!(
        bulks.sizes.try_recv().is_err(),
        "the app takes one call at a time"
    );
    drop(busy);
    assert_eq!(bulks.next().await, 3);
    bulks.acknowledged(3).await;
    bulks.end().await;
}
