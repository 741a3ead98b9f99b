//! Tests against the API test server, and under simulated time against one with delays, losses and
//! partitions.

mod faults;
mod random;
mod simulated;

use super::super::store::ApiLease;
use super::*;
use crate::testing::Server;

#[test]
fn formats_microseconds() {
    let at: Timestamp = "2026-01-02T03:04:05.5Z".parse().unwrap();
    assert_eq!(micro_time(at), "2026-01-02T03:04:05.500000Z");
}

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l";

fn candidate(server: &Server, name: &str) -> Candidate<ApiLease> {
    let pace = Pace {
        renew: Duration::from_millis(20),
        retry: Duration::from_millis(10),
        ..Pace::SLOW
    };
    let store = ApiLease {
        client: server.client(),
        namespace: "ns".to_owned(),
        name: "l".to_owned(),
    };
    Candidate::new(store, "ns", "l", name.to_owned(), pace)
}

fn holder(server: &Server) -> Value {
    server.object(LEASE).unwrap()["spec"]["holderIdentity"].clone()
}

#[tokio::test]
async fn one_leads_other_follows() {
    let server = Server::start().await;
    let (mut one, mut two) = (candidate(&server, "one"), candidate(&server, "two"));
    assert_eq!(one.look().await.unwrap(), Leads::First);
    assert_eq!(two.look().await.unwrap(), Leads::No);
    assert!(one.renew().await.unwrap(), "a holder renews");
    one.release().await.unwrap();
    assert_eq!(two.look().await.unwrap(), Leads::Next);
    let lease = server.object(LEASE).unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "two");
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
    assert!(!one.renew().await.unwrap());
}

#[tokio::test]
async fn acquires_expired_lease() {
    let server = Server::start().await;
    let lease = json!({
        "metadata": {"name": "l", "namespace": "ns"},
        "spec": {"holderIdentity": "gone", "leaseDurationSeconds": 1, "renewTime": "2001-01-01T00:00:00.000000Z"},
    });
    server.put(LEASE, lease);
    let mut candidate = candidate(&server, "new");
    assert_eq!(
        candidate.look().await.unwrap(),
        Leads::No,
        "its holder may be alive"
    );
    candidate.follow().await.unwrap();
    assert_eq!(candidate.look().await.unwrap(), Leads::Next);
}

#[tokio::test]
async fn watches_lease_older_than_history() {
    let server = Server::start().await;
    let held = |by: &str| {
        json!({"metadata": {"name": "l", "namespace": "ns"},
            "spec": {"holderIdentity": by, "leaseDurationSeconds": 60}})
    };
    server.put(LEASE, held("other"));
    server.put("/api/v1/namespaces/ns/configmaps/c", json!({}));
    server.forget();
    let mut candidate = candidate(&server, "new");
    assert_eq!(candidate.look().await.unwrap(), Leads::No);
    let following = tokio::spawn(async move { candidate.follow().await });
    server.asked("WATCH", "/leases", 1).await;
    // Other leases do not matter.
    let other = json!({"metadata": {"name": "k", "namespace": "ns"}, "spec": {"holderIdentity": ""}});
    server.put("/apis/coordination.k8s.io/v1/namespaces/ns/leases/k", other);
    server.put(LEASE, held("another"));
    server.put(LEASE, held(""));
    following.await.unwrap().unwrap();
}

#[tokio::test]
async fn replaces_stopped_leader_at_once() {
    let server = Server::start().await;
    let (one, two) = (candidate(&server, "one"), candidate(&server, "two"));
    let (mut first, mut second) = (one.leadership(), two.leadership());
    let (stop, end) = (CancellationToken::new(), CancellationToken::new());
    let running = tokio::spawn(one.run(stop.clone()));
    first.wait_for(|leads| leads.is_leading()).await.unwrap();
    let other = tokio::spawn(two.run(end.clone()));
    server.asked("WATCH", "/leases", 1).await;
    stop.cancel();
    running.await.unwrap();
    second.wait_for(|leads| leads.is_leading()).await.unwrap();
    assert_eq!(holder(&server), "two");
    end.cancel();
    other.await.unwrap();
    assert_eq!(holder(&server), "");
}

#[tokio::test]
async fn idle_election_only_renews() {
    let server = Server::start().await;
    let (one, two) = (candidate(&server, "one"), candidate(&server, "two"));
    let (mut first, second) = (one.leadership(), two.leadership());
    let stop = CancellationToken::new();
    let leading = tokio::spawn(one.run(stop.clone()));
    first.wait_for(|leads| leads.is_leading()).await.unwrap();
    let following = tokio::spawn(two.run(stop.clone()));
    server.asked("WATCH", "/leases", 1).await;
    let begun = server.requests("PUT", LEASE).len();
    server.asked("PUT", LEASE, begun + 5).await;
    assert_eq!(server.requests("GET", LEASE).len(), 2, "each looked once");
    assert_eq!(server.requests("WATCH", "/leases").len(), 1);
    assert!(first.borrow().is_leading() && !second.borrow().is_leading());
    stop.cancel();
    leading.await.unwrap();
    following.await.unwrap();
}

#[tokio::test]
async fn steps_down_without_renewal_and_recovers() {
    let server = Server::start().await;
    let mut one = candidate(&server, "one");
    one.pace.give_up = Duration::from_millis(200);
    let (mut leads, stop) = (one.leadership(), CancellationToken::new());
    let running = tokio::spawn(one.run(stop.clone()));
    leads.wait_for(|leads| *leads == Leads::First).await.unwrap();
    server.down(true);
    leads.wait_for(|leads| *leads == Leads::No).await.unwrap();
    server.down(false);
    leads.wait_for(|leads| *leads == Leads::Next).await.unwrap();
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn errors_name_missing_rights() {
    let server = Server::start().await;
    let forbidden = json!({"kind": "Status", "code": 403, "message": "leases \"l\" is forbidden"});
    server.fix(LEASE, http::StatusCode::FORBIDDEN, forbidden);
    let error = candidate(&server, "one").look().await.unwrap_err();
    assert!(error.is_forbidden());
    assert_eq!(
        error.to_string(),
        "the Kubernetes API refused GET /apis/coordination.k8s.io/v1/namespaces/ns/leases/l: 403 Forbidden leases \"l\" \
         is forbidden; the service account needs a role in the namespace ns that allows to get, watch and update the \
         lease l, and to create leases"
    );
}
