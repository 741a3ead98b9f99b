//! Benchmark of a placement service, ours or Dapr's, with simulated hosts: CPU and duration of a
//! dissemination.
//!
//! usage: fleet HOST:PORT PID [HOSTS [TYPES]], where PID is the process of the service

use std::error::Error;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use outrigger_wire::placement::v1::{Host, HostOperation};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// Joins measured.
const JOINS: usize = 10;
/// The fleet is idle after this long without an order.
const REST: Duration = Duration::from_secs(2);
const METHOD: &str = "/dapr.proto.placement.v1.Placement/ReportDaprStatus";

type Failure = Box<dyn Error + Send + Sync>;

/// An order without its table, which is skipped to keep the benchmark cheap.
#[derive(Clone, PartialEq, prost::Message)]
struct Order {
    #[prost(string, tag = "2")]
    operation: String,
    #[prost(uint64, tag = "3")]
    version: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, pid, more @ ..] = arguments.as_slice() else {
        return Err("usage: fleet HOST:PORT PID [HOSTS [TYPES]]".into());
    };
    let number = |index: usize, default: usize| more.get(index).map_or(Ok(default), |text| text.parse());
    let (hosts, types) = (number(0, 1000)?, number(1, 4)?);
    let (unlocked, mut done) = mpsc::unbounded_channel();

    let before = cpu(pid)?;
    let started = Instant::now();
    for host in 0..hosts {
        tokio::spawn(join(address.clone(), host, types, unlocked.clone()));
    }
    let last = rest(&mut done, started).await;
    println!(
        "{hosts} hosts with {types} actor types: all know each other after {:.2} s, {:.2} s of CPU, {} MiB resident",
        (last - started).as_secs_f64(),
        cpu(pid)? - before,
        resident(pid)? / 1024
    );

    let (mut times, before) = (Vec::new(), cpu(pid)?);
    for _ in 0..JOINS {
        let started = Instant::now();
        let newcomer = tokio::spawn(join(address.clone(), hosts, types, unlocked.clone()));
        times.push(rest(&mut done, started).await - started);
        newcomer.abort();
        rest(&mut done, Instant::now()).await;
    }
    times.sort();
    let disseminations = 2.0 * JOINS as f64;
    println!(
        "one joins: the last host is unlocked after {:.0} ms (median of {JOINS}; {:.0} to {:.0}), {:.0} ms of CPU a \
         dissemination, {} MiB resident at most",
        times[JOINS / 2].as_secs_f64() * 1e3,
        times[0].as_secs_f64() * 1e3,
        times[JOINS - 1].as_secs_f64() * 1e3,
        (cpu(pid)? - before) * 1e3 / disseminations,
        peak(pid)? / 1024
    );
    Ok(())
}

/// Waits until no host is unlocked any longer; returns the time of the last unlock.
async fn rest(done: &mut mpsc::UnboundedReceiver<Instant>, since: Instant) -> Instant {
    let mut last = since;
    while let Ok(Some(at)) = tokio::time::timeout(REST, done.recv()).await {
        last = last.max(at);
    }
    last
}

async fn join(address: String, host: usize, types: usize, unlocked: mpsc::UnboundedSender<Instant>) {
    loop {
        if let Err(error) = stay(&address, host, types, &unlocked).await {
            eprintln!("host {host}: {error}");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// One stream, which acknowledges each order.
async fn stay(
    address: &str,
    number: usize,
    types: usize,
    unlocked: &mpsc::UnboundedSender<Instant>,
) -> Result<(), Failure> {
    let channel: Channel = Endpoint::from_shared(format!("http://{address}"))?
        .connect()
        .await?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await?;
    let host = Host {
        name: format!(
            "10.{}.{}.{}:50002",
            number >> 16,
            (number >> 8) & 255,
            number & 255
        ),
        id: format!("app-{number}"),
        namespace: "default".to_owned(),
        entities: (0..types).map(|of| format!("actor-type-{of}")).collect(),
        hands_over: true,
        api_level: 20,
        operation: HostOperation::Report.into(),
        ..Host::default()
    };
    let (reports, messages) = mpsc::unbounded_channel();
    reports.send(host.clone())?;
    let codec = ProstCodec::<Host, Order>::default();
    let stream = tonic::Request::new(UnboundedReceiverStream::new(messages));
    let mut orders = client
        .streaming(stream, PathAndQuery::from_static(METHOD), codec)
        .await?
        .into_inner();
    while let Some(order) = orders.message().await? {
        let operation = match order.operation.as_str() {
            "lock" => HostOperation::Lock,
            "update" => HostOperation::Update,
            _ => HostOperation::Unlock,
        };
        reports.send(Host {
            operation: operation.into(),
            version: Some(order.version),
            id: host.id.clone(),
            namespace: host.namespace.clone(),
            ..Host::default()
        })?;
        if operation == HostOperation::Unlock {
            unlocked.send(Instant::now())?;
        }
    }
    Ok(())
}

/// CPU seconds used by a process.
fn cpu(pid: &str) -> Result<f64, Failure> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Skips the process name in parentheses; user and system time are fields 12 and 13 after it.
    let fields = text.rsplit_once(')').ok_or("no name in /proc")?.1;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / 100.0)
}

/// Resident memory of a process, KiB.
fn resident(pid: &str) -> Result<u64, Failure> {
    status(pid, "VmRSS:")
}

/// Peak resident memory, KiB.
fn peak(pid: &str) -> Result<u64, Failure> {
    status(pid, "VmHWM:")
}

fn status(pid: &str, name: &str) -> Result<u64, Failure> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .ok_or("no such line in /proc")?;
    Ok(value.trim().trim_end_matches(" kB").parse()?)
}
