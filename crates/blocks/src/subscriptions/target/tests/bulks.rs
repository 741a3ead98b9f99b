//! How large bulks are, between a broker and an app over HTTP.

use outrigger_resources::configuration::Configuration;
use outrigger_runtime::app::{App, AppProtocol, Health};
use outrigger_runtime::middleware::Middlewares;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use super::super::super::spec::Bulk;
use super::*;

/// An app that drops every bulk, and tells how many events each has.
async fn app() -> (Arc<AppChannel>, UnboundedReceiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = App {
        port: listener.local_addr().unwrap().port(),
        protocol: AppProtocol::Http,
        address: "127.0.0.1".to_owned(),
        max_concurrency: None,
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
    let channel = AppChannel::build(&config, Health::new(true).1, None, metrics, middlewares);
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
        sizes
            .send(String::from_utf8(body).unwrap().matches("entryId").count())
            .unwrap();
        let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
        stream.get_mut().write_all(answer).await.unwrap();
    }
}

/// The sizes of the bulks by which the app gets so many events, for which nobody may wait.
async fn bulks(concurrency: Option<usize>, count: usize, events: usize) -> Vec<usize> {
    let concurrency = concurrency.and_then(NonZeroUsize::new);
    let mut scene = Scene::with_concurrency("", wanted(), concurrency).await;
    let (app, mut sizes) = app().await;
    let wanted = AppSubscription {
        origin: SubscriptionType::Declared,
        dead_letter: None,
        bulk: Some(Bulk {
            count,
            wait: Duration::from_secs(3600),
        }),
        ..wanted()
    };
    // The broker has steps for this subscription too.
    let subscriptions = Arc::clone(&scene.subscriptions);
    let broker = subscriptions.dependencies.pubsubs.broker("broker").unwrap();
    let (steps, to_do) = mpsc::unbounded_channel();
    *scene.fake.steps.lock().unwrap() = Some(to_do);
    let target = Target::new(subscriptions, Arc::new(wanted), broker, Sink::App(app));
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let running = tokio::spawn(async move { target.run(&stopped, &CancellationToken::new(), None).await });
    for _ in 0..events {
        assert!(steps.send(Step::Deliver(EVENT, None)).is_ok());
    }
    for _ in 0..events {
        assert_eq!(scene.settlement().await, Settlement::Acknowledge);
    }
    stop.cancel();
    running.await.unwrap();
    scene.end().await;
    std::iter::from_fn(|| sizes.try_recv().ok()).collect()
}

#[tokio::test]
async fn a_bulk_has_as_many_events_as_its_subscription_says() {
    assert_eq!(bulks(None, 500, 1000).await, [500, 500]);
}

#[tokio::test]
async fn a_bulk_does_not_wait_for_events_that_cannot_come() {
    assert_eq!(bulks(Some(10), 100, 30).await, [10, 10, 10]);
    assert_eq!(bulks(Some(1), 100, 2).await, [1, 1]);
}
