//! The load generator against this program's app.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::time::{Duration, Instant, sleep};

use super::{Call, Connection, Load, Pace, Traffic};
use crate::app::{self, Ports};
use crate::procfs::Watched;

async fn start_app() -> Ports {
    let mut ports = [0; 2];
    let mut held = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        *port = listener.local_addr().unwrap().port();
        held.push(listener);
    }
    drop(held);
    let ports = Ports {
        http: ports[0],
        grpc: ports[1],
    };
    let served = ports.clone();
    tokio::spawn(async move { app::serve(&served).await });
    for port in [ports.http, ports.grpc] {
        let deadline = Instant::now() + Duration::from_secs(10);
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            assert!(Instant::now() < deadline, "the app does not listen");
            sleep(Duration::from_millis(5)).await;
        }
    }
    ports
}

#[tokio::test]
async fn all_calls_succeed_at_rate_and_full_load() {
    let ports = start_app().await;
    for call in [
        Call::post(ports.http, "/echo", 1024).unwrap(),
        Call::post(ports.http, "/echo", 0).unwrap(),
        Call::on_invoke(ports.grpc, 1024).unwrap(),
        Call::unary(ports.grpc, "/any.Service/Method", 1 << 20).unwrap(),
    ] {
        let payload = call.payload as u64;
        for pace in [
            Pace::Open {
                qps: 500.0,
                requests: 50,
            },
            Pace::Closed { seconds: 0.05 },
        ] {
            let load = Load {
                call: call.clone(),
                connections: 4,
                pace,
            };
            let (measured, record) = load.run(&Watched::new(Vec::new())).await.unwrap();
            assert!(
                measured.errors.is_empty(),
                "{}: {:?}",
                call.name(),
                measured.errors
            );
            assert!(measured.requests > 0);
            assert_eq!(
                measured.requests,
                record.buckets().iter().map(|(_, count)| count).sum::<u64>()
            );
            assert_eq!(measured.payload_sent, measured.requests * payload);
            // Headers add to the payload, in both directions.
            assert!(measured.sent > measured.payload_sent && measured.received > measured.payload_received);
            assert!(measured.latency.min > 0.0 && measured.latency.max >= measured.latency.p50);
            if let Pace::Open { requests, .. } = pace {
                assert_eq!(measured.requests, requests);
            }
        }
    }
}

#[tokio::test]
async fn rejects_unknown_callback_methods() {
    let ports = start_app().await;
    let call = Call::unary(
        ports.grpc,
        "/dapr.proto.runtime.v1.AppCallback/ListTopicSubscriptions",
        0,
    )
    .unwrap();
    let mut connection = Connection::open(&call, &Arc::new(Traffic::default()))
        .await
        .unwrap();
    let error = connection.call().await.unwrap_err();
    assert_eq!(error.to_string().trim_end(), "grpc-status 12");
}

/// A server that delays its first response: calls due during the delay must count as late.
#[tokio::test]
async fn stall_delays_all_due_calls() {
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;

    const STALL: Duration = Duration::from_millis(200);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let calls = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let service = service_fn(move |_request| {
            let number = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            async move {
                // The first is the uncounted call.
                if number == 1 {
                    sleep(STALL).await;
                }
                Ok::<_, std::convert::Infallible>(http::Response::new(
                    http_body_util::Empty::<bytes::Bytes>::new(),
                ))
            }
        });
        let _ended = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
    });
    let load = Load {
        call: Call::get(port, "/").unwrap(),
        connections: 1,
        pace: Pace::Open {
            qps: 200.0,
            requests: 40,
        },
    };
    let (measured, _) = load.run(&Watched::new(Vec::new())).await.unwrap();
    // The stall covers about 40 periods, so calls waited for half of it on average. Counted from sending,
    // all but one would take no time.
    assert!(measured.latency.p50 > 50_000.0, "{:?}", measured.latency);
    assert!(measured.latency.max >= 200_000.0);
}
