//! A fake placement: one namespace, rounds as on the wire, controlled by the test.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use outrigger_identity::Identity;
use outrigger_wire::placement::v1 as wire;
use outrigger_wire::placement::v1::HostOperation as Operation;
use outrigger_wire::placement::v1::placement_server::{Placement as Service, PlacementServer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

type Orders = mpsc::UnboundedSender<Result<wire::PlacementOrder, Status>>;

/// A placement service. It stops, with its streams, on drop.
pub struct Placement {
    pub port: u16,
    rounds: Arc<Mutex<Rounds>>,
    _serving: JoinSet<()>,
}

#[derive(Default)]
struct Rounds {
    version: u64,
    phase: Option<Operation>,
    streams: BTreeMap<u64, Stream>,
    next: u64,
    /// Stops the round after `lock` while set.
    held: bool,
}

struct Stream {
    orders: Orders,
    host: wire::Host,
    answered: bool,
}

async fn serve<I>(stream: I, service: PlacementServer<Played>)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    let service = TowerToHyperService::new(service);
    let _ended = builder.serve_connection(TokioIo::new(stream), service).await;
}

impl Placement {
    /// Starts to listen.
    pub async fn start() -> Self {
        Self::listen(None).await
    }

    /// Like `start`, for sidecars with identities; `identity` is that of placement.
    pub async fn secure(identity: &Identity) -> Self {
        Self::listen(Some(TlsAcceptor::from(identity.server_config()))).await
    }

    async fn listen(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let rounds = Arc::<Mutex<Rounds>>::default();
        let service = PlacementServer::new(Played(Arc::clone(&rounds)));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    continue;
                };
                let (service, tls) = (service.clone(), tls.clone());
                connections.spawn(async move {
                    match tls {
                        None => serve(stream, service).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, service).await;
                            }
                        }
                    }
                });
            }
        });
        Self {
            port,
            rounds,
            _serving: serving,
        }
    }

    /// The sidecar flag for it.
    pub fn flag(&self) -> String {
        format!("--placement-host-address=127.0.0.1:{}", self.port)
    }

    /// Rounds stop after `lock` until this is called with `false`.
    pub fn hold(&self, held: bool) {
        let mut rounds = self.rounds.lock().unwrap();
        rounds.held = held;
        rounds.proceed();
    }

    /// Begins a round.
    pub fn begin(&self) {
        self.rounds.lock().unwrap().begin();
    }

    /// Whether all have answered `lock`.
    pub fn is_locked(&self) -> bool {
        let rounds = self.rounds.lock().unwrap();
        rounds.phase == Some(Operation::Lock) && rounds.streams.values().all(|stream| stream.answered)
    }

    /// Whether all have the table, with this number of hosts of a type.
    pub fn has(&self, kind: &str, hosts: usize) -> bool {
        let rounds = self.rounds.lock().unwrap();
        let of_kind = |stream: &&Stream| stream.host.entities.iter().any(|entity| entity == kind);
        rounds.phase.is_none() && rounds.streams.values().filter(of_kind).count() == hosts
    }

    /// Ends all streams, like a leader that loses its leadership.
    pub fn end_streams(&self) {
        let mut rounds = self.rounds.lock().unwrap();
        for stream in std::mem::take(&mut rounds.streams).into_values() {
            let _gone = stream
                .orders
                .send(Err(Status::failed_precondition("not a leader")));
        }
        rounds.phase = None;
    }
}

impl Rounds {
    fn begin(&mut self) {
        self.version += 1;
        self.phase = Some(Operation::Lock);
        self.tell("lock", None);
    }

    fn tell(&mut self, operation: &str, tables: Option<&wire::PlacementTables>) {
        for stream in self.streams.values_mut() {
            stream.answered = false;
            let order = wire::PlacementOrder {
                operation: operation.to_owned(),
                version: self.version,
                tables: tables.cloned(),
                ..wire::PlacementOrder::default()
            };
            let _gone = stream.orders.send(Ok(order));
        }
    }

    fn tables(&self) -> wire::PlacementTables {
        let mut entries = HashMap::<String, wire::PlacementTable>::new();
        for stream in self.streams.values() {
            for entity in &stream.host.entities {
                let table = entries.entry(entity.clone()).or_default();
                table
                    .load_map
                    .insert(stream.host.name.clone(), stream.host.clone());
            }
        }
        wire::PlacementTables {
            entries,
            replication_factor: 100,
            version: self.version.to_string(),
            ..wire::PlacementTables::default()
        }
    }

    fn proceed(&mut self) {
        if self.streams.values().any(|stream| !stream.answered) || self.held {
            return;
        }
        match self.phase {
            Some(Operation::Lock) => {
                self.phase = Some(Operation::Update);
                let tables = self.tables();
                self.tell("update", Some(&tables));
            }
            Some(Operation::Update) => {
                self.phase = Some(Operation::Unlock);
                self.tell("unlock", None);
            }
            _ => self.phase = None,
        }
    }

    fn said(&mut self, number: u64, host: wire::Host) {
        let version = self.version;
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        if host.operation() == Operation::Report {
            stream.host = host;
            self.begin();
        } else if host.version == Some(version) && Some(host.operation()) == self.phase {
            stream.answered = true;
            self.proceed();
        }
    }

    fn ended(&mut self, number: u64) {
        if self.streams.remove(&number).is_none() {
            return;
        }
        if self.streams.is_empty() {
            // No host is left to answer.
            self.phase = None;
        } else {
            self.begin();
        }
    }
}

#[derive(Clone)]
struct Played(Arc<Mutex<Rounds>>);

#[tonic::async_trait]
impl Service for Played {
    async fn report_dapr_status(
        &self,
        request: Request<Streaming<wire::Host>>,
    ) -> Result<Response<BoxStream<wire::PlacementOrder>>, Status> {
        let mut hosts = request.into_inner();
        let (orders, receiver) = mpsc::unbounded_channel();
        let rounds = Arc::clone(&self.0);
        let number = {
            let mut rounds = rounds.lock().unwrap();
            rounds.next += 1;
            let number = rounds.next;
            let stream = Stream {
                orders,
                host: wire::Host::default(),
                answered: true,
            };
            rounds.streams.insert(number, stream);
            number
        };
        tokio::spawn(async move {
            while let Ok(Some(host)) = hosts.message().await {
                rounds.lock().unwrap().said(number, host);
            }
            rounds.lock().unwrap().ended(number);
        });
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }
}
