//! Invalid reports.

use outrigger_wire::placement::v1::Host;
use tonic::{Code, Status};

use crate::running::{Running, host, start};

async fn refused(running: &Running, host: Host) -> Status {
    running.connect(host).await.next().await.unwrap_err()
}

#[tokio::test]
async fn invalid_report_closes_stream_with_reason() {
    let running = start(&[]).await;
    let no_id = Host {
        id: String::new(),
        ..host("h:1", &["t"])
    };
    assert_eq!(refused(&running, no_id).await.code(), Code::InvalidArgument);
    let versioned = Host {
        operation: 0,
        version: Some(1),
        ..host("h:1", &["t"])
    };
    assert_eq!(refused(&running, versioned).await.code(), Code::InvalidArgument);
    let status = refused(&running, host("h:1", &["dapr.internal.ns.other"])).await;
    assert_eq!(status.code(), Code::PermissionDenied);
    let text = "entity dapr.internal.ns.other is not allowed for app ID app in namespace ns";
    assert_eq!(status.message(), text);

    let mut good = running.connect(host("h:1", &["t"])).await;
    good.table().await.unwrap();
    good.report(host("h:1", &["dapr.internal.other.app"]));
    assert_eq!(good.next().await.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn rejects_table_too_large_for_clients() {
    let running = start(&[]).await;
    let mut good = running.connect(host("h:1", &["t"])).await;
    good.table().await.unwrap();
    let types: Vec<String> = (0..4096).map(|number| format!("type-{number}")).collect();
    let types: Vec<&str> = types.iter().map(String::as_str).collect();
    let status = refused(&running, host(&"x".repeat(500), &types)).await;
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(
        status.message().contains("the table of namespace ns has no room"),
        "{status}"
    );
    let mut other = running.connect(host("h:2", &["t"])).await;
    tokio::join!(
        good.until_hosts("t", &["h:1", "h:2"]),
        other.until_hosts("t", &["h:1", "h:2"])
    );
}

#[tokio::test]
async fn oversized_report_closes_stream() {
    let running = start(&[]).await;
    let status = refused(&running, host(&"x".repeat(2 << 20), &[])).await;
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
}
