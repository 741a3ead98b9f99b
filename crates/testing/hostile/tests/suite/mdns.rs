//! Multicast DNS, which any host on the link can send: packets of maximum size and cost.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outrigger_testing::ports::free_port;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;

use crate::app::App;
use crate::child::{Server, usage};
use crate::honest;
use crate::listeners::LISTENERS;
use crate::peer::Target;

/// RFC 6762, 3.
const GROUP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(224, 0, 0, 251), 5353);
/// The largest packet (RFC 6762, 17).
const MAX_PACKET: usize = 9_000;
/// Packets of each kind; with pauses, sent within a second.
const PACKETS: u16 = 250;
const PAUSE: Duration = Duration::from_millis(4);
/// Replies of the sidecar per packet: three distinct things can be queried.
const ANSWERS: usize = 3;
/// Memory for all kinds together in MiB, and CPU time for each.
const MEMORY: u64 = 24;
const WORK: Duration = Duration::from_secs(5);
/// Timeout for the start of a sidecar, and for a reply.
const START: Duration = Duration::from_secs(20);
const TIMEOUT: Duration = Duration::from_secs(10);

/// The sidecar's app, and one that it looks up.
const OWN: &str = "hostile";
const SOUGHT: &str = "sought";

const A: u16 = 1;
const PTR: u16 = 12;
const SRV: u16 = 33;

/// The content of a kind of packet.
struct Kind {
    name: &'static str,
    packet: fn(u16) -> Vec<u8>,
}

const KINDS: [Kind; 5] = [
    Kind {
        name: "questions for everything",
        packet: |_| questions(),
    },
    Kind {
        name: "instances of an app being looked up",
        packet: instances,
    },
    Kind {
        name: "maximum-length names, by pointers",
        packet: |_| long_names(),
    },
    Kind {
        name: "chains of name pointers",
        packet: |_| chains(),
    },
    Kind {
        name: "counts of missing records",
        packet: |number| message(0x8400, &[u16::MAX; 4], &number.to_be_bytes()),
    },
];

/// A message with these flags, record counts and records.
fn message(flags: u16, counts: &[u16; 4], records: &[u8]) -> Vec<u8> {
    let mut bytes = [0_u16.to_be_bytes(), flags.to_be_bytes()].concat();
    bytes.extend(counts.iter().flat_map(|count| count.to_be_bytes()));
    bytes.extend_from_slice(records);
    bytes
}

/// A name in the domain `local`, not compressed.
fn name(labels: &[&str]) -> Vec<u8> {
    let labels = labels.iter().chain(&["local"]);
    let mut bytes: Vec<u8> = labels
        .flat_map(|label| [&[u8::try_from(label.len()).unwrap()], label.as_bytes()].concat())
        .collect();
    bytes.push(0);
    bytes
}

/// A name that is only a pointer.
fn pointer(to: usize) -> [u8; 2] {
    (0xc000 | u16::try_from(to).unwrap()).to_be_bytes()
}

/// A record with a TTL of one hour.
fn record(name: &[u8], kind: u16, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).unwrap();
    let fixed = [kind, 1, 0, 3_600, length].map(u16::to_be_bytes).concat();
    [name, &fixed, data].concat()
}

/// Questions for the service, whose name is written once.
fn questions() -> Vec<u8> {
    let (first, kind) = (name(&[OWN]), [PTR, 1].map(u16::to_be_bytes).concat());
    let mut records = [first, kind.clone()].concat();
    let mut count = 1;
    while records.len() + 18 < MAX_PACKET {
        records.extend([&pointer(12)[..], &kind].concat());
        count += 1;
    }
    message(0, &[count, 0, 0, 0], &records)
}

/// As many instances as fit, each with a distinct address; the next packet has others.
fn instances(number: u16) -> Vec<u8> {
    let (service, mut records, mut count) = (name(&[SOUGHT]), Vec::new(), 0);
    while records.len() < MAX_PACKET - 200 {
        let label = format!("{number}-{count}");
        let (instance, host) = (name(&[&label, SOUGHT]), name(&[&label]));
        let [high, low] = number.to_be_bytes();
        let at = [&[0; 4][..], &[0, 9], &host].concat();
        records.extend(record(&service, PTR, &instance));
        records.extend(record(&instance, SRV, &at));
        records.extend(record(&host, A, &[127, high, low, count as u8]));
        count += 3;
    }
    message(0x8400, &[0, count, 0, 0], &records)
}

/// One name of 255 bytes, and pointers to it.
fn long_names() -> Vec<u8> {
    let label = "n".repeat(61);
    let long = name(&[&label[..], &label, &label, &label[..60]]);
    let mut records = record(&long, PTR, &pointer(12));
    let mut count = 1;
    while records.len() + 30 < MAX_PACKET {
        records.extend(record(&pointer(12), PTR, &pointer(12)));
        count += 1;
    }
    message(0x8400, &[0, count, 0, 0], &records)
}

/// The name of each record is a pointer to that of the previous record.
fn chains() -> Vec<u8> {
    let mut records = record(&name(&[SOUGHT]), PTR, &pointer(12));
    let (mut count, mut last) = (1, 12);
    while records.len() + 30 < MAX_PACKET {
        let next = 12 + records.len();
        records.extend(record(&pointer(last), PTR, &pointer(last)));
        (count, last) = (count + 1, next);
    }
    message(0x8400, &[0, count, 0, 0], &records)
}

/// A socket on the loopback interface; only responses from the multicast DNS port count.
fn socket(port: u16) -> UdpSocket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    socket.bind(&address.into()).unwrap();
    UdpSocket::from_std(socket.into()).unwrap()
}

/// A sidecar that resolves names by multicast DNS, and the target for its callers.
async fn sidecar(app: &App, folder: &std::path::Path) -> Option<(Server, Target)> {
    let flags = [
        "dapr-http-port",
        "dapr-grpc-port",
        "dapr-internal-grpc-port",
        "metrics-port",
    ];
    let ports = flags.map(|flag| (flag, free_port()));
    let mut arguments = vec![
        format!("--app-id={OWN}"),
        format!("--app-port={}", app.port),
        "--dapr-listen-addresses=127.0.0.1".to_owned(),
        "--log-level=warn".to_owned(),
    ];
    arguments.extend(ports.map(|(flag, port)| format!("--{flag}={port}")));
    let env = [("DAPR_HOST_IP", "127.0.0.1".to_owned())];
    let server = Server::start(
        env!("CARGO_BIN_EXE_hostile-daprd"),
        &arguments,
        &env,
        &folder.join("log"),
    );
    let target = Target {
        listener: LISTENERS.iter().find(|listener| listener.flag == ports[0].0)?,
        address: ([127, 0, 0, 1], ports[0].1).into(),
        socket: None,
        process: server.id(),
        source: Ipv4Addr::LOCALHOST,
        tls: None,
        signing: Arc::default(),
    };
    honest::is_up(&target, START).await.then_some((server, target))
}

/// Repeatedly looks up an app that does not exist.
async fn look_up_repeatedly(target: Target, stop: Arc<AtomicBool>) {
    let request =
        format!("GET /v1.0/invoke/{SOUGHT}/method/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    while !stop.load(Ordering::Acquire) {
        if let Ok(mut peer) = target.connect().await {
            peer.send(request.as_bytes()).await;
            peer.receive(TIMEOUT, |_| false).await;
        }
    }
}

/// The number of replies received by a socket.
async fn answers(socket: &UdpSocket) -> usize {
    let (mut received, mut buffer, mut limit) = (0, vec![0; MAX_PACKET], TIMEOUT);
    while tokio::time::timeout(limit, socket.recv(&mut buffer))
        .await
        .is_ok()
    {
        received += 1;
        limit = Duration::from_millis(500);
    }
    received
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mdns_floods_are_bounded() {
    let (app, folder) = (App::start().await, tempfile::tempdir().unwrap());
    let (server, target) = sidecar(&app, folder.path()).await.expect("the sidecar starts");
    // A plain DNS client, which gets unicast replies.
    let client = socket(0);
    client.send_to(&questions(), GROUP).await.unwrap();
    let answered = answers(&client).await;
    assert!(
        (1..=ANSWERS).contains(&answered),
        "{answered} answers to a packet"
    );
    let stop = Arc::new(AtomicBool::new(false));
    let looking = tokio::spawn(look_up_repeatedly(target.clone(), Arc::clone(&stop)));
    let served = tokio::spawn(honest::keep_calling(target, Arc::clone(&stop)));
    let (first, attacker) = (usage(server.id()).unwrap(), socket(GROUP.port()));
    let mut failures = Vec::new();
    for kind in KINDS {
        let before = usage(server.id()).unwrap();
        for number in 0..PACKETS {
            let packet = (kind.packet)(number);
            assert!(packet.len() <= MAX_PACKET);
            attacker.send_to(&packet, GROUP).await.unwrap();
            tokio::time::sleep(PAUSE).await;
        }
        let after = usage(server.id()).expect("the sidecar has ended");
        let (work, memory) = (
            after.work - before.work,
            after.peak.saturating_sub(first.resident) >> 10,
        );
        println!("{:52} {memory:>5} MiB {work:?}", kind.name);
        if work > WORK {
            failures.push(format!("{}: {work:?} of work", kind.name));
        }
        if memory > MEMORY {
            failures.push(format!("{}: {memory} MiB", kind.name));
        }
    }
    stop.store(true, Ordering::Release);
    looking.await.unwrap();
    failures.extend(served.await.unwrap().err());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
