//! Election by a Lease, with replicas in this process and as killed processes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::json;
use tonic::Code;

use crate::cluster::{Cluster, LEASE, Way, environment};
use crate::running::{Running, Sidecar, TIMEOUT, host, until};

/// Less than the lease duration. The timing of each step is tested under simulated time in `kube`.
const AT_ONCE: Duration = Duration::from_secs(8);

/// A process and its log lines.
struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(arguments: &[String]) -> Self {
        let variables = ["NAMESPACE", "DAPR_UNSAFE_SKIP_CONTAINER_UID_GID_CHECK"];
        let mut child = Command::new(env!("CARGO_BIN_EXE_placement"))
            .args(arguments)
            .envs(variables.map(|name| (name, environment(name).unwrap())))
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// Waits for a log line, up to `time`.
    fn says(&self, text: &str, time: Duration) {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            if line
                .unwrap_or_else(|_| panic!("{text}: not in time"))
                .contains(text)
            {
                return;
            }
        }
    }

    fn tell(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &pid])
                .status()
                .unwrap()
                .success()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaces_killed_and_stopped_leaders() {
    let cluster = Cluster::start().await;
    let start = |id: &str| Process::start(&cluster.arguments(id, cluster.api.address()));
    let one = start("one");
    tokio::task::block_in_place(|| one.says("replica one is the leader", TIMEOUT));
    assert!(
        cluster.lease()["holderIdentity"]
            .as_str()
            .unwrap()
            .starts_with("one_")
    );
    assert_eq!(cluster.lease()["leaseDurationSeconds"], 12);
    let two = start("two");
    cluster.api.asked("WATCH", "/leases", 1).await;
    one.tell("-KILL");
    tokio::task::block_in_place(|| two.says("replica two is the leader", TIMEOUT));

    let three = start("three");
    cluster.api.asked("WATCH", "/leases", 2).await;
    let signalled = Instant::now();
    two.tell("-TERM");
    tokio::task::block_in_place(|| three.says("replica three is the leader", TIMEOUT));
    assert!(signalled.elapsed() < AT_ONCE, "{:?}", signalled.elapsed());
    tokio::task::block_in_place(|| two.says("Placement service shut down gracefully", TIMEOUT));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn isolated_leader_steps_down_first() {
    let cluster = Cluster::start().await;
    let way = Way::to(cluster.api.address()).await;
    let one = cluster.replica("one", way.address).await;
    assert_eq!(one.addresses.raft, None);
    one.until_leader().await;
    let two = cluster.replica("two", cluster.api.address()).await;
    cluster.api.asked("WATCH", "/leases", 1).await;
    let refused = Sidecar::try_connect(&mut cluster.sidecar(&two).await, host("h1:1", &["t"])).await;
    assert_eq!(
        refused.err().expect("it does not lead").code(),
        Code::FailedPrecondition
    );
    assert_eq!(two.state().await, "null");
    let mut sidecar = Sidecar::connect(&mut cluster.sidecar(&one).await, host("h1:1", &["t"])).await;
    sidecar.table().await.unwrap();
    assert!(one.state().await.contains("h1:1"));
    let ended = sidecar.obey();

    way.cut.send_replace(true);
    until("it ends", async || {
        let leading = one.leads().await;
        assert!(!two.leads().await || !leading, "both lead");
        !leading
    })
    .await;
    assert_eq!(ended.await.unwrap().code(), Code::FailedPrecondition);
    assert_eq!(one.state().await, "null");
    two.until_leader().await;
    assert_eq!(cluster.lease()["leaseTransitions"], 1);
    let mut sidecar = Sidecar::connect(&mut cluster.sidecar(&two).await, host("h2:1", &["t"])).await;
    sidecar.table().await.unwrap();
    // The isolated replica stops too.
    let signalled = Instant::now();
    one.stop().await;
    assert!(
        signalled.elapsed() < Duration::from_secs(10),
        "{:?}",
        signalled.elapsed()
    );
    Running::stop(two).await;
    assert_eq!(cluster.lease()["holderIdentity"], "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_unreadable_lease() {
    let cluster = Cluster::start().await;
    let forbidden = json!({"kind": "Status", "code": 403, "message": "leases is forbidden"});
    cluster.api.fix(LEASE, http::StatusCode::FORBIDDEN, forbidden);
    let ends = |arguments: Vec<String>, texts: &[&str]| {
        let mut process = Process::start(&arguments);
        tokio::task::block_in_place(|| {
            let line = process
                .lines
                .iter()
                .find(|line| line.contains("--leader-election lease"));
            let line = line.expect("it does not say why");
            assert!(texts.iter().all(|text| line.contains(text)), "{line}");
            assert_eq!(process.child.wait().unwrap().code(), Some(1));
        });
    };
    let mut arguments = cluster.arguments("one", cluster.api.address());
    ends(
        arguments.clone(),
        &[
            "cannot use the lease placement.dapr.io in the namespace dapr-system (NAMESPACE)",
            "403 Forbidden",
            "needs a role in the namespace dapr-system that allows to get, watch and update the lease placement.dapr.io",
        ],
    );
    arguments.push("--kubeconfig=/does/not/exist".to_owned());
    ends(arguments, &["cannot use the kubeconfig /does/not/exist"]);
    ends(
        vec!["--leader-election=lease".to_owned()],
        &["is for --mode kubernetes only"],
    );
}
