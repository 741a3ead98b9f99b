//! Hostile brokers of AMQP, Redis, NATS, MQTT and Kafka, and hostile clients' messages delivered by an
//! honest AMQP broker. In all cases the sidecar keeps running, serves its callers, and stays below the
//! ceilings for memory and CPU time.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outrigger_testing::ports::free_port;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::app::App;
use crate::child::{Server, raise_file_limit, usage};

/// Nesting that overflows the stack of a recursive parser.
const DEEP: usize = 100_000;
/// Memory of the sidecar with all rows, MiB.
const MEMORY: u64 = 192;
/// CPU time for all rows together. Generous, as for attacks.
const WORK: Duration = Duration::from_secs(30);
/// Timeout for the start of the sidecar, and for its reaction to a broker.
const SOON: Duration = Duration::from_secs(60);

/// A row.
struct Broker {
    name: &'static str,
    /// Type and version of the component, and its metadata, in which `{port}` is the port of the broker.
    kind: &'static str,
    metadata: &'static [(&'static str, &'static str)],
    behavior: Behavior,
}

/// The broker's behavior.
enum Behavior {
    /// Sends this to every client, before or after the first bytes received.
    First(fn() -> Vec<u8>),
    Answer(fn() -> Vec<u8>),
    /// Speaks AMQP, and delivers a message with this header frame, which the client must reject.
    Amqp(fn() -> Vec<u8>),
}

use Behavior::{Amqp, Answer, First};

const AMQP: &[(&str, &str)] = &[("connectionString", "amqp://guest:guest@127.0.0.1:{port}")];
const REDIS: &[(&str, &str)] = &[("redisHost", "127.0.0.1:{port}")];
const MQTT: &[(&str, &str)] = &[("url", "tcp://127.0.0.1:{port}"), ("consumerID", "c")];
const NATS: &[(&str, &str)] = &[("natsURL", "nats://127.0.0.1:{port}")];
const KAFKA: &[(&str, &str)] = &[("brokers", "127.0.0.1:{port}"), ("authType", "none")];

/// Defines a row.
macro_rules! broker {
    ($name:literal, $kind:literal, $metadata:ident, $behavior:expr) => {
        Broker {
            name: $name,
            kind: $kind,
            metadata: $metadata,
            behavior: $behavior,
        }
    };
}

const BROKERS: &[Broker] = &[
    broker!(
        "amqp-server-properties-800-deep",
        "pubsub.rabbitmq",
        AMQP,
        Answer(|| start(&tables(800)))
    ),
    broker!(
        "amqp-server-properties-deep-tables",
        "pubsub.rabbitmq",
        AMQP,
        Answer(|| start(&tables(15_000)))
    ),
    broker!(
        "amqp-server-properties-deep-arrays",
        "pubsub.rabbitmq",
        AMQP,
        Answer(|| start(&arrays(20_000)))
    ),
    broker!(
        "amqp-method-of-a-client",
        "pubsub.rabbitmq",
        AMQP,
        Answer(|| { method(0, [40, 10], &[&[0, 0, 0, 0, 0][..], &tables(800)].concat()) })
    ),
    broker!(
        "amqp-frame-of-4-gib",
        "pubsub.rabbitmq",
        AMQP,
        Answer(|| { [&[1, 0, 0, 0xff, 0xff, 0xff, 0xff][..], &vec![0; 1 << 20]].concat() })
    ),
    broker!(
        "amqp-message-800-deep",
        "pubsub.rabbitmq",
        AMQP,
        Amqp(|| headers(&tables(800)))
    ),
    broker!(
        "amqp-message-deep-tables",
        "pubsub.rabbitmq",
        AMQP,
        Amqp(|| headers(&tables(15_000)))
    ),
    broker!(
        "amqp-message-deep-arrays",
        "pubsub.rabbitmq",
        AMQP,
        Amqp(|| headers(&arrays(20_000)))
    ),
    broker!(
        "amqp-message-malformed-headers",
        "pubsub.rabbitmq",
        AMQP,
        Amqp(|| headers(&[0, 0, 0, 9, 1]))
    ),
    broker!(
        "amqp-message-of-1-gib",
        "pubsub.rabbitmq",
        AMQP,
        Amqp(|| header(1 << 30, &[0, 0]))
    ),
    broker!(
        "resp-deep-arrays",
        "pubsub.redis",
        REDIS,
        Answer(|| b"*1\r\n".repeat(DEEP))
    ),
    broker!(
        "resp-deep-attributes",
        "state.redis",
        REDIS,
        Answer(|| b"|0\r\n".repeat(DEEP))
    ),
    broker!(
        "resp-deep-maps",
        "configuration.redis",
        REDIS,
        Answer(|| b"%1\r\n".repeat(DEEP))
    ),
    broker!(
        "nats-deep-json",
        "pubsub.jetstream",
        NATS,
        First(|| { format!("INFO {{\"a\":{}\r\n", "[".repeat(DEEP)).into_bytes() })
    ),
    broker!(
        "mqtt3-packet-of-256-mib",
        "pubsub.mqtt3",
        MQTT,
        Answer(|| { [&[0x20, 0xff, 0xff, 0xff, 0x7f][..], &vec![0; 1 << 20]].concat() })
    ),
    broker!(
        "mqtt5-endless-properties",
        "pubsub.mqtt5",
        MQTT,
        Answer(|| {
            [
                &[0x20, 0xff, 0xff, 0x03, 0, 0, 0xfc, 0xff, 0x03][..],
                &[0x26, 0, 0, 0, 0].repeat(13_000),
            ]
            .concat()
        })
    ),
    broker!(
        "kafka-noise",
        "pubsub.kafka",
        KAFKA,
        Answer(|| { [&[0, 0x10, 0, 0, 0, 0, 0, 1][..], &vec![0xff; 1 << 20]].concat() })
    ),
];

fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap().to_be_bytes()
}

/// An AMQP string, table or array.
fn long(bytes: &[u8]) -> Vec<u8> {
    [&length(bytes)[..], bytes].concat()
}

fn short(bytes: &[u8]) -> Vec<u8> {
    [&[u8::try_from(bytes.len()).unwrap()][..], bytes].concat()
}

/// Nested tables.
fn tables(levels: usize) -> Vec<u8> {
    (1..levels).fold(long(&[]), |inner, _| {
        long(&[&[1, b'a', b'F'][..], &inner].concat())
    })
}

/// A table with nested arrays.
fn arrays(levels: usize) -> Vec<u8> {
    let array = (1..levels).fold(long(&[]), |inner, _| long(&[&[b'A'][..], &inner].concat()));
    long(&[&[1, b'a', b'A'][..], &array].concat())
}

fn frame(kind: u8, channel: u8, payload: &[u8]) -> Vec<u8> {
    [&[kind, 0, channel][..], &long(payload), &[0xce]].concat()
}

fn method(channel: u8, [class, method]: [u8; 2], arguments: &[u8]) -> Vec<u8> {
    frame(1, channel, &[&[0, class, 0, method][..], arguments].concat())
}

/// `connection.start` with these server properties.
fn start(properties: &[u8]) -> Vec<u8> {
    let mechanisms = [long(b"PLAIN"), long(b"en_US")].concat();
    method(0, [10, 10], &[&[0, 9][..], properties, &mechanisms].concat())
}

/// The header frame of a message of `size` bytes.
fn header(size: u64, properties: &[u8]) -> Vec<u8> {
    frame(
        2,
        1,
        &[&[0, 60, 0, 0][..], &size.to_be_bytes(), properties].concat(),
    )
}

/// The header frame of a message of one byte, with these headers.
fn headers(table: &[u8]) -> Vec<u8> {
    header(1, &[&[0x20, 0][..], table].concat())
}

/// Observations of a broker.
#[derive(Default)]
struct Outcome {
    /// Clients that disconnected after the broker had sent everything.
    left: AtomicU32,
    /// Messages rejected by the client without requeueing.
    refused: AtomicU32,
}

/// A client's frame; `None` if it has disconnected.
async fn receive(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 7];
    stream.read_exact(&mut head).await.ok()?;
    let size = u32::from_be_bytes(head[3..].try_into().unwrap());
    let mut payload = vec![0; usize::try_from(size).unwrap() + 1];
    stream.read_exact(&mut payload).await.ok()?;
    Some((head[2], payload))
}

/// Serves an AMQP client honestly, except for the message.
async fn speak_amqp(mut stream: TcpStream, message: Vec<u8>, outcome: &Outcome) -> Option<()> {
    stream.read_exact(&mut [0; 8]).await.ok()?;
    stream.write_all(&start(&long(&[]))).await.ok()?;
    loop {
        let (channel, payload) = receive(&mut stream).await?;
        let reply = |id, arguments: &[u8]| method(channel, id, arguments);
        let answer = match [payload[1], payload[3]] {
            // No limits on channels and frames, so the client's apply.
            [10, 11] => reply([10, 30], &[0; 8]),
            [10, 40] => reply([10, 41], &[0]),
            [20, 10] => reply([20, 11], &long(&[])),
            [40, 10] => reply([40, 11], &[]),
            [50, 10] => reply([50, 11], &[&short(b"q")[..], &[0; 8]].concat()),
            [50, 20] => reply([50, 21], &[]),
            [60, 10] => reply([60, 11], &[]),
            [85, 10] => reply([85, 11], &[]),
            [60, 20] => {
                // After the name of the queue.
                let at = 7 + usize::from(payload[6]);
                let tag = short(&payload[at + 1..at + 1 + usize::from(payload[at])]);
                let delivered = [&tag[..], &[0, 0, 0, 0, 0, 0, 0, 1, 0], &short(b"t"), &short(b"")].concat();
                [
                    reply([60, 21], &tag),
                    reply([60, 60], &delivered),
                    message.clone(),
                    frame(3, channel, b"x"),
                ]
                .concat()
            }
            // Neither multiple nor requeue.
            [60, 120] if payload[12] == 0 => {
                outcome.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            _ => continue,
        };
        stream.write_all(&answer).await.ok()?;
    }
}

async fn serve(mut stream: TcpStream, broker: &'static Broker, outcome: Arc<Outcome>) {
    let message = match broker.behavior {
        Amqp(message) => {
            let _gone = speak_amqp(stream, message(), &outcome).await;
            return;
        }
        First(message) => message,
        Answer(message) => {
            let _gone = stream.read(&mut [0; 4096]).await;
            message
        }
    };
    let (mut reader, mut writer) = stream.split();
    let writing = async {
        let _cut = writer.write_all(&message()).await;
        let _cut = writer.shutdown().await;
    };
    let receiving = async { while reader.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {} };
    tokio::join!(writing, receiving);
    outcome.left.fetch_add(1, Ordering::Relaxed);
}

/// The components and subscriptions of all rows.
fn resources(ports: &[u16]) -> String {
    let mut text = String::new();
    for (broker, port) in BROKERS.iter().zip(ports) {
        let Broker { name, kind, .. } = broker;
        write!(
            text,
            "---\napiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  type: {kind}\n  version: \
             v1\n  ignoreErrors: true\n  metadata:\n"
        )
        .unwrap();
        for (property, value) in broker.metadata {
            let value = value.replace("{port}", &port.to_string());
            writeln!(text, "  - name: {property}\n    value: \"{value}\"").unwrap();
        }
        if matches!(broker.behavior, Amqp(_)) {
            writeln!(
                text,
                "---\napiVersion: dapr.io/v2alpha1\nkind: Subscription\nmetadata:\n  name: {name}\nspec:\n  pubsubname: \
                 {name}\n  topic: t\n  routes:\n    default: /{name}"
            )
            .unwrap();
        }
    }
    text
}

/// Whether the sidecar serves a caller.
async fn is_served(port: u16) -> bool {
    let asking = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        let request =
            b"GET /v1.0/invoke/hostile/method/own HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer.starts_with("HTTP/1.1 200") && answer.ends_with("/own"))
    };
    let answer = tokio::time::timeout(Duration::from_secs(5), asking).await;
    answer.ok().flatten() == Some(true)
}

/// Waits until `condition` holds, while the sidecar runs.
async fn eventually(what: &str, server: &mut Server, condition: impl AsyncFn() -> bool) {
    let waiting = async {
        while !condition().await {
            assert!(!server.is_over(), "the sidecar exited before: {what}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(SOON, waiting).await;
    assert!(waited.is_ok(), "{what}: not after {SOON:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_brokers_do_not_crash_sidecar() {
    raise_file_limit();
    let folder = tempfile::tempdir().unwrap();
    let app = App::start().await;
    let (mut ports, mut outcomes, mut tasks) = (Vec::new(), Vec::new(), JoinSet::new());
    for broker in BROKERS {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        ports.push(listener.local_addr().unwrap().port());
        let outcome = Arc::new(Outcome::default());
        outcomes.push(Arc::clone(&outcome));
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                clients.spawn(serve(stream, broker, Arc::clone(&outcome)));
            }
        });
    }
    std::fs::write(folder.path().join("brokers.yaml"), resources(&ports)).unwrap();
    let names = format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  name: hostile\nspec:\n  nameResolution:\n    \
         component: sqlite\n    version: v1\n    configuration:\n      connectionString: {}\n",
        folder.path().join("names.db").display()
    );
    let configuration = folder.path().join("configuration");
    std::fs::write(&configuration, names).unwrap();
    let port = free_port();
    let mut arguments = vec![
        "--app-id=hostile".to_owned(),
        "--log-level=warn".to_owned(),
        format!("--resources-path={}", folder.path().display()),
        format!("--config={}", configuration.display()),
        format!("--app-port={}", app.port),
        format!("--dapr-http-port={port}"),
    ];
    for flag in ["dapr-grpc-port", "dapr-internal-grpc-port", "metrics-port"] {
        arguments.push(format!("--{flag}={}", free_port()));
    }
    let log = folder.path().join("log");
    let mut server = Server::start(env!("CARGO_BIN_EXE_hostile-daprd"), &arguments, &[], &log);
    let test = async {
        for (broker, outcome) in BROKERS.iter().zip(&outcomes) {
            let reacted = match broker.behavior {
                Amqp(_) => &outcome.refused,
                First(_) | Answer(_) => &outcome.left,
            };
            let has_reacted = async || reacted.load(Ordering::Relaxed) > 0;
            eventually(broker.name, &mut server, has_reacted).await;
        }
        eventually("it serves its callers", &mut server, async || {
            is_served(port).await
        })
        .await;
    };
    // Prints the sidecar's log on a failure.
    let failed = futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(test)).await;
    if let Err(failed) = failed {
        println!("{}", std::fs::read_to_string(&log).unwrap_or_default());
        std::panic::resume_unwind(failed);
    }
    let used = usage(server.id()).expect("the sidecar has ended");
    println!("{used:?}");
    let messages = app.seen();
    let delivered = messages.iter().find(|head| head.starts_with("POST /amqp-"));
    assert_eq!(delivered, None, "the app got a message that cannot be read");
    assert!(used.peak >> 10 <= MEMORY, "{} MiB", used.peak >> 10);
    assert!(used.work <= WORK, "{:?} of work", used.work);
}
