//! Three replicas; the leader is stopped.

use std::net::TcpListener;
use std::ops::Range;

use tonic::Code;

use crate::running::{Running, Sidecar, host, start_replica, until};

/// Below the ephemeral port range: an outgoing connection could take such a port before its replica listens.
const PORTS: Range<u16> = 10_240..32_768;

/// Free addresses.
fn cluster() -> String {
    let ports = std::iter::repeat_with(|| rand::random_range(PORTS));
    let listeners = ports.filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
    let held: Vec<TcpListener> = listeners.take(3).collect();
    let members: Vec<String> = held
        .iter()
        .zip(["a", "b", "c"])
        .map(|(listener, id)| format!("{id}={}", listener.local_addr().unwrap()))
        .collect();
    format!("--initial-cluster={}", members.join(","))
}

/// Waits for a leader; returns its index.
async fn leader(replicas: &[Option<Running>]) -> usize {
    let leading = async || {
        for (index, replica) in replicas.iter().enumerate() {
            if let Some(replica) = replica
                && replica.leads().await
            {
                return Some(index);
            }
        }
        None
    };
    until("one leads", async || leading().await.is_some()).await;
    leading().await.expect("it leads still")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_may_leave_and_return() {
    let cluster = cluster();
    let ids = ["--id=a", "--id=b", "--id=c"];
    let mut replicas = Vec::new();
    for id in ids {
        replicas.push(Some(start_replica(&[id, &cluster]).await));
    }
    let mut gone = leader(&replicas).await;
    for _ in 0..3 {
        // The leader stops and another one is elected, which knows only what hosts report to it.
        replicas[gone].take().unwrap().stop().await;
        let now = leader(&replicas).await;
        let leading = replicas[now].as_ref().unwrap();
        let mut sidecar = leading.connect(host("h1:1", &["t"])).await;
        let (version, _) = sidecar.table().await.unwrap();
        assert_eq!(version, 1);

        let other = (0..3).find(|&index| index != now && index != gone).unwrap();
        let other = replicas[other].as_ref().unwrap();
        let refused = Sidecar::try_connect(&mut other.client().await, host("h1:1", &["t"])).await;
        let status = refused.err().expect("it does not lead");
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(
            status
                .message()
                .ends_with("is not a leader. Only the leader can serve requests"),
            "{status}"
        );
        assert_eq!(other.state().await, "null");

        replicas[gone] = Some(start_replica(&[ids[gone], &cluster]).await);
        gone = now;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_without_majority_steps_down() {
    let cluster = cluster();
    let mut replicas = Vec::new();
    for id in ["--id=a", "--id=b", "--id=c"] {
        replicas.push(Some(start_replica(&[id, &cluster]).await));
    }
    let leading = leader(&replicas).await;
    let status = replicas[leading]
        .as_ref()
        .unwrap()
        .connect(host("h1:1", &["t"]))
        .await
        .obey();
    for (index, replica) in replicas.iter_mut().enumerate() {
        if index != leading {
            replica.take().unwrap().stop().await;
        }
    }
    let status = status.await.unwrap();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    let alone = replicas[leading].as_ref().unwrap();
    assert!(!alone.leads().await);
}
