use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc as queue;

use outrigger_identity::TrustAnchors;
use outrigger_identity::testing::{Algorithm, Authority};

use super::*;

const PACE: Pace = Pace {
    spread: Duration::from_secs(600),
    poll: Duration::from_secs(30),
    give_up_after: Duration::from_secs(3600),
};

fn anchors() -> TrustAnchors {
    TrustAnchors::new(Authority::new("td", Algorithm::P256).bundle())
}

fn supervised(folder: &Path) -> Arc<Supervised> {
    let file = folder.join("ca.pem");
    std::fs::write(&file, "one").unwrap();
    Arc::new(Supervised {
        file: Some(file),
        ..Supervised::default()
    })
}

/// Follows a child that counts as started.
fn followed(
    folder: &Path,
    others: Vec<String>,
    anchors: &TrustAnchors,
) -> (
    Arc<Supervised>,
    queue::Receiver<Order>,
    tokio::task::JoinHandle<()>,
) {
    let supervised = supervised(folder);
    supervised.note_start();
    let (orders, ordered) = queue::channel();
    let trust = Trust {
        supervised: Arc::clone(&supervised),
        others,
        orders,
    };
    let follow = trust.follow(anchors.subscribe(), PACE, CancellationToken::new());
    (supervised, ordered, tokio::spawn(follow))
}

#[tokio::test(start_paused = true)]
async fn restarts_once_on_new_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let anchors = anchors();
    let (supervised, ordered, _follow) = followed(folder.path(), Vec::new(), &anchors);
    anchors.replace(Authority::new("td", Algorithm::P256).bundle());
    std::fs::write(folder.path().join("ca.pem"), "one").unwrap();
    sleep(PACE.spread * 2).await;
    assert_eq!(ordered.try_recv(), Err(queue::TryRecvError::Empty));
    anchors.replace(Authority::new("td", Algorithm::P256).bundle());
    // The file is written slightly after the signal.
    sleep(Duration::from_millis(10)).await;
    std::fs::write(folder.path().join("ca.pem"), "two").unwrap();
    sleep(PACE.spread + PACE.poll * 2).await;
    assert_eq!(ordered.try_recv(), Ok(Order::Restart));
    sleep(PACE.spread * 2).await;
    supervised.note_start();
    sleep(PACE.spread * 2).await;
    assert_eq!(ordered.try_recv(), Err(queue::TryRecvError::Empty));
}

#[tokio::test(start_paused = true)]
async fn skips_restart_after_exit() {
    let folder = tempfile::tempdir().unwrap();
    let (supervised, ordered, _follow) = followed(folder.path(), Vec::new(), &anchors());
    std::fs::write(folder.path().join("ca.pem"), "two").unwrap();
    assert!(supervised.is_outdated());
    supervised.note_start();
    sleep(PACE.spread * 2).await;
    assert_eq!(ordered.try_recv(), Err(queue::TryRecvError::Empty));
    std::fs::remove_file(folder.path().join("ca.pem")).unwrap();
    assert!(!supervised.is_outdated(), "it is being replaced");
}

#[tokio::test(start_paused = true)]
async fn waits_for_silent_members_with_deadline() {
    let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let answers = listening.local_addr().unwrap().to_string();
    // Nothing listens on port 0.
    for (other, early) in [(answers, true), ("127.0.0.1:0".to_owned(), false)] {
        let folder = tempfile::tempdir().unwrap();
        let (_supervised, ordered, _follow) = followed(folder.path(), vec![other], &anchors());
        std::fs::write(folder.path().join("ca.pem"), "two").unwrap();
        sleep(PACE.spread + PACE.poll * 3).await;
        assert_eq!(ordered.try_recv().is_ok(), early);
        sleep(PACE.give_up_after).await;
        assert_eq!(ordered.try_recv().is_ok(), !early);
    }
}

/// A stand-in for etcd that records its starts and its SIGTERM in a file.
fn program(folder: &Path) -> PathBuf {
    let program = folder.join("etcd");
    let journal = folder.join("told").display().to_string();
    let script = format!(
        "#!/bin/sh\ntrap 'echo ended >> {journal}; kill $!; exit 0' TERM\nsleep 60 > /dev/null 2>&1 &\necho started >> {journal}\nwait\n"
    );
    // Written by another process: Linux refuses to execute a file that any thread of this process has open
    // for writing.
    let written = Command::new("sh")
        .arg("-c")
        .arg("printf %s \"$1\" > \"$2\" && chmod +x \"$2\"")
        .args(["sh", &script])
        .arg(&program)
        .stdin(Stdio::null())
        .status();
    assert!(written.unwrap().success());
    program
}

#[tokio::test]
async fn restarts_child_gracefully() {
    let folder = tempfile::tempdir().unwrap();
    let (program, supervised) = (program(folder.path()), supervised(folder.path()));
    let journal = || std::fs::read_to_string(folder.path().join("told")).unwrap_or_default();
    let (orders, ordered) = queue::channel();
    let trust = Trust {
        supervised: Arc::clone(&supervised),
        others: Vec::new(),
        orders: orders.clone(),
    };
    let path = folder.path().to_owned();
    let supervisor =
        std::thread::spawn(move || super::super::supervise(&program, &path, &[], &ordered, &supervised));
    let until = async |wanted: &str| {
        let wait = async {
            while journal() != wanted {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = timeout(Duration::from_secs(60), wait).await;
        assert!(waited.is_ok(), "{}", journal());
    };
    until("started\n").await;
    let pace = Pace {
        spread: Duration::ZERO,
        poll: Duration::from_millis(10),
        ..PACE
    };
    let stop = CancellationToken::new();
    let follow = tokio::spawn(trust.follow(anchors().subscribe(), pace, stop.clone()));
    std::fs::write(folder.path().join("ca.pem"), "two").unwrap();
    until("started\nended\nstarted\n").await;
    stop.cancel();
    follow.await.unwrap();
    orders.send(Order::Stop).unwrap();
    supervisor.join().unwrap().unwrap();
    assert_eq!(journal(), "started\nended\nstarted\nended\n");
}

#[test]
fn reads_peers_from_flags() {
    let members = "a=https://a.ns:2380,b=https://b.ns:2380/,b=https://b.ns:2380,c=http://[::1]:2381";
    assert_eq!(others(members, "a"), ["[::1]:2381", "b.ns:2380"]);
    assert!(others("", "a").is_empty());
}
