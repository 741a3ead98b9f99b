//! The schedulers' etcd with one of three members partitioned: traffic between the etcds is lost, but clients
//! reach the scheduler, and the scheduler its etcd.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_component_conformance::Link as _;
use outrigger_components_testing::proxy::Proxy;
use outrigger_components_testing::server::free_port;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::cluster::{get, installed, processes};
use super::etcd_members::{endpoint, leader};
use super::group::{App, Hosts};
use crate::crash::Process;
use crate::running::{app, arguments, client, due, schedule, until};

const MEMBERS: usize = 3;
/// An etcd that listens for peers on the port in the variable; the announced port leads through a proxy.
const BEHIND: &str = r#"#!/bin/sh
for argument; do
  shift
  case $argument in --listen-peer-urls=*) argument=--listen-peer-urls=http://127.0.0.1:$PEER_PORT ;; esac
  set -- "$@" "$argument"
done
PATH=$REAL_PATH exec etcd "$@"
"#;

/// The proxies between members, one per sender and receiver.
struct Ways {
    /// By sender, then by receiver.
    ways: Arc<Vec<Vec<Proxy>>>,
    _fronts: Vec<AbortOnDropHandle<()>>,
}

impl Ways {
    /// To etcds on the ports `to` with data in `folders`, behind the announced listeners.
    async fn open(fronts: Vec<TcpListener>, to: [u16; MEMBERS], folders: [String; MEMBERS]) -> Self {
        let mut ways = Vec::new();
        for _ in 0..MEMBERS {
            let mut of = Vec::new();
            for port in to {
                of.push(Proxy::start(port).await);
            }
            ways.push(of);
        }
        let (ways, folders) = (Arc::new(ways), Arc::new(folders));
        let front = |(called, listener): (usize, TcpListener)| {
            let (ways, folders) = (Arc::clone(&ways), Arc::clone(&folders));
            AbortOnDropHandle::new(tokio::spawn(async move {
                loop {
                    let (from, address) = listener.accept().await.unwrap();
                    tokio::spawn(pass_on(
                        from,
                        address,
                        called,
                        Arc::clone(&ways),
                        Arc::clone(&folders),
                    ));
                }
            }))
        };
        let fronts = fronts.into_iter().enumerate().map(front).collect();
        Self {
            ways,
            _fronts: fronts,
        }
    }

    /// The proxies from and to a member.
    fn of(&self, member: usize) -> impl Iterator<Item = &Proxy> {
        let all = self.ways.iter().enumerate();
        let all = all.flat_map(|(caller, to)| {
            to.iter()
                .enumerate()
                .map(move |(called, way)| (caller, called, way))
        });
        all.filter(move |(caller, called, _)| (*caller == member) != (*called == member))
            .map(|(_, _, way)| way)
    }
}

/// Forwards a connection through the proxy of its sender.
async fn pass_on(
    mut from: TcpStream,
    address: SocketAddr,
    called: usize,
    ways: Arc<Vec<Vec<Proxy>>>,
    folders: Arc<[String; MEMBERS]>,
) {
    // On a blocking thread: it reads many files and members connect often during discovery, while the test
    // must answer pings.
    let caller = tokio::task::spawn_blocking(move || caller(&*folders, address));
    // The caller may have exited.
    let Some(caller) = caller.await.unwrap() else {
        return;
    };
    let way = (Ipv4Addr::LOCALHOST, ways[caller][called].port);
    let mut to = TcpStream::connect(way).await.unwrap();
    // Ends when either side closes.
    let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
}

/// Which etcd, by data folder, owns the socket with this address.
fn caller(folders: &[String], address: SocketAddr) -> Option<usize> {
    // The table has addresses in native byte order, so only the port is matched, which is unique among
    // connections to one listener.
    let port = format!(":{:04X}", address.port());
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let sockets: Vec<_> = table
        .lines()
        .filter_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let found = fields.get(1)?.ends_with(&port);
            found.then(|| format!("socket:[{}]", fields.get(9).unwrap_or(&"")))
        })
        .collect();
    let has_socket = |id: &u32| {
        let files = fs::read_dir(format!("/proc/{id}/fd"))
            .into_iter()
            .flatten()
            .flatten();
        let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
        links.any(|link| sockets.iter().any(|socket| link.as_os_str() == socket.as_str()))
    };
    folders
        .iter()
        .position(|folder| processes(folder).iter().any(has_socket))
}

/// Invariant: no job is lost or early while the etcd leader is partitioned from the other two but not from
/// its clients. The leader acknowledges no writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_partitioned_etcd_leader() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("bin/etcd");
    fs::create_dir(folder.path().join("bin")).unwrap();
    fs::write(&program, BEHIND).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let real_path = std::env::var("PATH").unwrap();
    let path = format!("{}:{real_path}", program.parent().unwrap().display());

    let mut fronts = Vec::new();
    for _ in 0..MEMBERS {
        fronts.push(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
    }
    let url = |at: usize, front: &TcpListener| {
        format!(
            "dapr-scheduler-server-{at}=http://{}",
            front.local_addr().unwrap()
        )
    };
    let all: Vec<_> = fronts
        .iter()
        .enumerate()
        .map(|(at, front)| url(at, front))
        .collect();
    let peers = [(); MEMBERS].map(|()| free_port());
    let data = |at: usize| {
        folder
            .path()
            .join(format!("default-dapr-scheduler-server-{at}/dapr-0.1"))
    };
    let folders = std::array::from_fn(|at| data(at).display().to_string());
    let ways = Ways::open(fronts, peers, folders).await;
    let flags: [Vec<String>; MEMBERS] = std::array::from_fn(|at| member(folder.path(), at, &all));
    let running: Vec<_> = (0..MEMBERS)
        .map(|at| {
            let port = peers[at].to_string();
            let variables = [
                ("PATH", path.as_str()),
                ("REAL_PATH", &real_path),
                ("PEER_PORT", &port),
            ];
            Process::start_in(&flags[at], &variables)
        })
        .collect();
    let served = App::default();
    let mut serving = Vec::new();
    for process in &running {
        Hosts::of(&process.address).await.are(MEMBERS).await;
        serving.push(served.serve(&process.address).await);
    }
    let endpoints: Vec<_> = flags.iter().map(|flags| endpoint(flags)).collect();
    let cut_off = leader(&endpoints).await;
    let staying = &running[(cut_off + 1) % MEMBERS];
    let mut client_of_staying = client(&staying.address).await;
    let (mut jobs, begun) = (Vec::new(), Timestamp::now());
    for at in 0..30 {
        // Some are due before the takeover, some after.
        let time = begun + Duration::from_secs(2 + at);
        let name = format!("job-{at}");
        let request = schedule(&name, app("app"), due(&time.to_string()));
        client_of_staying.schedule_job(request).await.unwrap();
        jobs.push((name, time));
    }

    let mut silences: Vec<_> = ways.of(cut_off).map(Proxy::silence).collect();
    silences.iter_mut().for_each(|way| way.cut());
    // It is reachable but cannot acknowledge anything.
    let time = Timestamp::now();
    let request = schedule("asked", app("app"), due(&time.to_string()));
    let asked = client(&running[cut_off].address)
        .await
        .schedule_job(request)
        .await;
    assert!(asked.is_err(), "it acknowledges a write without a majority");
    Hosts::of(&staying.address).await.are(MEMBERS - 1).await;
    let (name, time) = ("meanwhile".to_owned(), Timestamp::now());
    let request = schedule(&name, app("app"), due(&time.to_string()));
    until("the other members accept jobs", || async {
        client(&staying.address)
            .await
            .schedule_job(request.clone())
            .await
            .is_ok()
    })
    .await;
    jobs.push((name, time));
    served.has(jobs.iter().map(|(name, _)| name.clone())).await;
    served.tally(
        jobs.iter().map(|(name, due)| (name, due)),
        "the one whose etcd leads cut off from the others, its clients not",
    );

    silences.iter_mut().for_each(|way| way.restore());
    Hosts::of(&staying.address).await.are(MEMBERS).await;
    until("it accepts jobs again", || async {
        let request = schedule("again", app("app"), due("1h"));
        let mut client = client(&running[cut_off].address).await;
        client.schedule_job(request).await.is_ok()
    })
    .await;
    assert!(get(&staying.address, "again").await.is_ok());
}

/// Flags of member `at` of a cluster with these members.
fn member(folder: &Path, at: usize, all: &[String]) -> Vec<String> {
    let mut flags = arguments(folder);
    flags.push(format!("--id=dapr-scheduler-server-{at}"));
    flags.push(format!("--etcd-initial-cluster={}", all.join(",")));
    flags.push(format!("--etcd-client-port={}", free_port()));
    flags
}
