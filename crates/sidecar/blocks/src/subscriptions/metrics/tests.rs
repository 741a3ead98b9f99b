use outrigger_telemetry::metrics::{Format, Metrics, MetricsConfig};

use super::*;

const HOUR: i64 = 3_600_000;

fn hours_ago(hours: i64) -> Timestamp {
    let now = Timestamp::now().as_millisecond();
    Timestamp::from_millisecond(now - hours * HOUR).unwrap()
}

#[test]
fn forgets_unsubscribed_topics() {
    let metrics = IngressMetrics::new(&SidecarMetrics::new(Metrics::disabled()));
    let lasting: Vec<_> = (0..50)
        .map(|number| metrics.lag("broker", &format!("lasting{number}")))
        .collect();
    for number in 0..1000 {
        drop(metrics.lag("broker", &format!("passing{number}")));
        let kept = metrics.lags.lock().unwrap().by_topic.len();
        assert!(kept <= 2 * (lasting.len() + 1), "{kept}");
    }
    for (number, lag) in lasting.iter().enumerate() {
        let same = metrics.lag("broker", &format!("lasting{number}"));
        assert!(Arc::ptr_eq(&same, lag), "subscriptions of a topic have one lag");
    }
}

#[test]
fn lags_of_shared_series_add_up() {
    let config = MetricsConfig {
        max_series: 1,
        ..MetricsConfig::default()
    };
    let all = Metrics::new(&config).unwrap();
    let metrics = IngressMetrics::new(&SidecarMetrics::new(Arc::clone(&all)));
    let shown = |topic: &str| {
        let text = all.render(Format::negotiate(None));
        let label = format!("topic=\"{topic}\"");
        let mut lines = text.lines();
        let line = lines
            .find(|line| line.starts_with("dapr_component_pubsub_ingress_lag{") && line.contains(&label))
            .unwrap();
        let (_, value) = line.rsplit_once(' ').unwrap();
        // In hours, because the test itself takes time.
        value.parse::<f64>().unwrap() as i64 / HOUR
    };
    let lags = ["first", "second", "third"].map(|topic| metrics.lag("broker", topic));
    let published = [1, 2, 4].map(hours_ago);
    let [first, second, third] = [0, 1, 2].map(|topic| lags[topic].add(published[topic]));
    for _ in 0..2 {
        lags.iter().for_each(|lag| lag.show());
        assert_eq!((shown("first"), shown("other")), (1, 6));
    }
    drop((first, third));
    lags.iter().for_each(|lag| lag.show());
    assert_eq!((shown("first"), shown("other")), (0, 2));
    // An unsubscribed topic has no lag, whatever it showed last.
    drop((second, lags));
    assert_eq!(shown("other"), 0);
}
