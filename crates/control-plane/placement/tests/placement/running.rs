//! A placement service under test, and the sidecar's side of the protocol.

use std::net::SocketAddr;
use std::time::Duration;

use outrigger_flags::{Parsed, parse};
use outrigger_placement::config::FLAGS;
use outrigger_placement::{Addresses, Config, Placement};
use outrigger_wire::placement::v1::placement_client::PlacementClient;
use outrigger_wire::placement::v1::{Host, HostOperation, PlacementOrder, PlacementTables};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;
use tonic::{Status, Streaming};

/// Timeout of waits in tests.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A running placement service; dropping it stops it.
pub(crate) struct Running {
    pub(crate) addresses: Addresses,
    stop: DropGuard,
    task: tokio::task::JoinHandle<()>,
}

pub(crate) async fn start(more: &[&str]) -> Running {
    let running = start_replica(more).await;
    running.until_leader().await;
    running
}

pub(crate) async fn start_replica(more: &[&str]) -> Running {
    let mut arguments = vec![
        "--port=0",
        "--healthz-port=0",
        "--metrics-port=0",
        "--listen-address=127.0.0.1",
        "--metadata-enabled",
    ];
    if !more
        .iter()
        .any(|argument| argument.starts_with("--initial-cluster"))
    {
        arguments.push("--initial-cluster=dapr-placement-0=127.0.0.1:0");
    }
    arguments.extend(more);
    start_with(arguments.into_iter().map(str::to_owned).collect(), |_| None).await
}

/// Starts with these arguments and environment.
pub(crate) async fn start_with(arguments: Vec<String>, env: fn(&str) -> Option<String>) -> Running {
    let Ok(Parsed::Run(flags)) = parse(FLAGS, arguments) else {
        panic!("the flags are not understood");
    };
    let config = Config::from_flags(&flags, env).unwrap();
    let drain = CancellationToken::new();
    let placement = Placement::build(config, env, drain.clone()).await.unwrap();
    let addresses = placement.addresses();
    let task = tokio::spawn(async move { placement.run().await.unwrap() });
    Running {
        addresses,
        stop: drain.drop_guard(),
        task,
    }
}

impl Running {
    pub(crate) async fn client(&self) -> PlacementClient<Channel> {
        let endpoint = Channel::from_shared(format!("http://{}", self.addresses.grpc)).unwrap();
        PlacementClient::new(endpoint.connect().await.unwrap())
    }

    pub(crate) async fn connect(&self, host: Host) -> Sidecar {
        Sidecar::connect(&mut self.client().await, host).await
    }

    /// The value of a metric.
    pub(crate) async fn metric(&self, name: &str) -> Option<String> {
        let text = http(self.addresses.metrics.unwrap(), "/metrics").await;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map(str::to_owned)
    }

    pub(crate) async fn leads(&self) -> bool {
        self.metric("dapr_placement_leader_status").await.as_deref() == Some("1")
    }

    pub(crate) async fn until_leader(&self) {
        until("it leads", async || self.leads().await).await;
    }

    /// Stops the service and waits for its end.
    pub(crate) async fn stop(self) {
        drop(self.stop);
        self.task.await.unwrap();
    }

    pub(crate) async fn state(&self) -> String {
        let answer = http(self.addresses.healthz, "/placement/state").await;
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }
}

/// The full HTTP response: status line, head and body.
pub(crate) async fn http(address: SocketAddr, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let address = match address.ip().is_unspecified() {
        true => SocketAddr::from(([127, 0, 0, 1], address.port())),
        false => address,
    };
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// A host of namespace `ns`.
pub(crate) fn host(name: &str, entities: &[&str]) -> Host {
    Host {
        name: name.to_owned(),
        id: "app".to_owned(),
        namespace: "ns".to_owned(),
        entities: entities.iter().map(|&entity| entity.to_owned()).collect(),
        api_level: 20,
        operation: HostOperation::Report.into(),
        ..Host::default()
    }
}

/// A sidecar's stream.
pub(crate) struct Sidecar {
    reports: mpsc::UnboundedSender<Host>,
    orders: Streaming<PlacementOrder>,
    host: Host,
}

impl Sidecar {
    pub(crate) async fn connect(client: &mut PlacementClient<Channel>, host: Host) -> Self {
        Self::try_connect(client, host).await.unwrap()
    }

    pub(crate) async fn try_connect(
        client: &mut PlacementClient<Channel>,
        host: Host,
    ) -> Result<Self, Status> {
        let (reports, messages) = mpsc::unbounded_channel();
        reports.send(host.clone()).unwrap();
        let stream = UnboundedReceiverStream::new(messages);
        let orders = client.report_dapr_status(stream).await?.into_inner();
        Ok(Self {
            reports,
            orders,
            host,
        })
    }

    pub(crate) fn report(&self, host: Host) {
        // Fails if the service is gone.
        let _ = self.reports.send(host);
    }

    pub(crate) async fn next(&mut self) -> Result<PlacementOrder, Status> {
        let next = tokio::time::timeout(TIMEOUT, self.orders.message()).await;
        next.expect("nothing was said")
            .map(|order| order.expect("the stream ended"))
    }

    pub(crate) fn answer(&self, order: &PlacementOrder) {
        let operation = match order.operation.as_str() {
            "lock" => HostOperation::Lock,
            "update" => HostOperation::Update,
            "unlock" => HostOperation::Unlock,
            other => panic!("{other}"),
        };
        self.report(Host {
            operation: operation.into(),
            version: Some(order.version),
            id: self.host.id.clone(),
            namespace: self.host.namespace.clone(),
            ..Host::default()
        });
    }

    /// Acknowledges orders until a table arrives; returns its version and the table.
    pub(crate) async fn table(&mut self) -> Result<(u64, PlacementTables), Status> {
        let mut table = None;
        loop {
            let order = self.next().await?;
            self.answer(&order);
            match (order.operation.as_str(), table.take()) {
                ("unlock", Some(table)) => return Ok((order.version, table)),
                _ => table = order.tables,
            }
        }
    }

    /// Acknowledges orders until the type has these hosts.
    pub(crate) async fn until_hosts(&mut self, entity: &str, hosts: &[&str]) -> u64 {
        loop {
            let (version, table) = self.table().await.unwrap();
            if names(&table, entity) == hosts {
                return version;
            }
        }
    }

    /// Acknowledges orders forever.
    pub(crate) fn obey(mut self) -> tokio::task::JoinHandle<Status> {
        tokio::spawn(async move {
            loop {
                match self.orders.message().await {
                    Ok(Some(order)) => self.answer(&order),
                    Ok(None) => return Status::ok(""),
                    Err(status) => return status,
                }
            }
        })
    }
}

/// The hosts of a type.
pub(crate) fn names(table: &PlacementTables, entity: &str) -> Vec<String> {
    let mut names: Vec<String> = table
        .entries
        .get(entity)
        .map(|table| table.load_map.keys().cloned().collect())
        .unwrap_or_default();
    names.sort();
    names
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting)
        .await
        .unwrap_or_else(|_| panic!("{what}: not in time"));
}
