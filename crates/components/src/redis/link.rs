use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ::redis::{
    Client, Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind, TlsMode, Value,
    aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig, PubSub},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
};
use outrigger_component::{Error, Kind, Metadata, Result};

use super::{
    sentinel::Sentinel,
    settings::{Role, Settings, Topology},
};

/// Whether a command may run twice when nobody knows whether it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    Yes,
    /// Only if it was certainly not sent.
    No,
}

#[derive(Clone)]
enum Connection {
    Node(ConnectionManager),
    Cluster(ClusterConnection),
    Sentinel(Sentinel),
}

/// A connection that comes back after it broke, and how patient callers are.
pub(super) struct Link {
    connection: Mutex<Option<Connection>>,
    /// Opens connections that are not shared.
    client: Option<Client>,
    pub(super) settings: Settings,
    component: Arc<str>,
}

fn kind(error: &RedisError) -> Kind {
    if error.is_timeout() {
        return Kind::Timeout;
    }
    if error.is_io_error() || error.is_connection_dropped() {
        return Kind::Unavailable;
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::Server(ServerErrorKind::NoPerm) => Kind::Denied,
        ErrorKind::InvalidClientConfig => Kind::Configuration,
        ErrorKind::MasterNameNotFoundBySentinel
        | ErrorKind::ClusterConnectionNotFound
        | ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly
            | ServerErrorKind::TryAgain,
        ) => Kind::Unavailable,
        _ if error.code() == Some("NOAUTH") || error.code() == Some("WRONGPASS") => Kind::Denied,
        _ => Kind::Internal,
    }
}

/// Whether the server certainly did nothing.
fn untouched(error: &RedisError) -> bool {
    error.is_connection_refusal()
        || matches!(
            error.kind(),
            ErrorKind::MasterNameNotFoundBySentinel
                | ErrorKind::ClusterConnectionNotFound
                | ErrorKind::Server(_)
        )
}

impl Link {
    /// Connects and asks the server for a sign of life.
    pub(super) async fn open(metadata: &Metadata, role: Role) -> Result<Self> {
        let settings = Settings::read(metadata, role)?;
        let component = metadata.component().clone();
        let refused = |error: RedisError| {
            Error::new(
                kind(&error),
                format!("error connecting to redis at {}", settings.shown()),
            )
            .because(error)
            .of(&component)
        };
        let client = match (settings.connections()?.into_iter().next(), &settings.tls) {
            (Some(first), None) => Some(Client::open(first).map_err(refused)?),
            (Some(first), Some(tls)) => Some(Client::build_with_tls(first, tls.clone()).map_err(refused)?),
            (None, _) => None,
        };
        let connection = match (&settings.topology, &client) {
            (Topology::Sentinel(master), _) => {
                Connection::Sentinel(Sentinel::new(&settings, master).map_err(refused)?)
            }
            (Topology::Node, Some(client)) => Connection::Node(manager(client, &settings).map_err(refused)?),
            (Topology::Node, None) => {
                return Err(metadata.wrong(&["redisHost"], "it must be HOST:PORT").into());
            }
            (Topology::Cluster, _) => Connection::Cluster(cluster(&settings).await.map_err(refused)?),
        };
        let link = Self {
            connection: Mutex::new(Some(connection)),
            client,
            component: component.clone(),
            settings: settings.clone(),
        };
        let ping = ::redis::cmd("PING");
        link.attempt(&ping, Repeat::Yes).await?.map_err(refused)?;
        Ok(link)
    }

    /// A second connection to the same server; connects when first used.
    pub(super) fn apart(&self) -> Result<Option<Self>> {
        let (Topology::Node, Some(client)) = (&self.settings.topology, &self.client) else {
            return Ok(None);
        };
        let manager = manager(client, &self.settings).map_err(|error| self.failure(error))?;
        Ok(Some(Self {
            connection: Mutex::new(Some(Connection::Node(manager))),
            client: self.client.clone(),
            settings: self.settings.clone(),
            component: self.component.clone(),
        }))
    }

    fn connection(&self) -> Result<Connection> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection
            .clone()
            .ok_or_else(|| Error::closed().of(&self.component))
    }

    pub(super) fn failure(&self, error: RedisError) -> Error {
        Error::new(kind(&error), format!("redis at {}", self.settings.shown()))
            .because(error)
            .of(&self.component)
    }

    pub(super) fn check_open(&self) -> Result<()> {
        self.connection().map(drop)
    }

    /// Runs `command`. The outer error is that the link is closed, the inner one the server's.
    pub(super) async fn attempt(&self, command: &Cmd, repeat: Repeat) -> Result<RedisResult<Value>> {
        let mut pause = self.settings.least_pause;
        for _ in 0..self.settings.retries {
            let error = match self.once(command).await? {
                Ok(value) => return Ok(Ok(value)),
                Err(error) => error,
            };
            let curable = kind(&error) == Kind::Unavailable;
            if !curable || (repeat == Repeat::No && !untouched(&error)) {
                return Ok(Err(error));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).clamp(Duration::from_millis(1), self.settings.most_pause);
        }
        self.once(command).await
    }

    async fn once(&self, command: &Cmd) -> Result<RedisResult<Value>> {
        let result = match self.connection()? {
            Connection::Node(mut manager) => manager.req_packed_command(command).await,
            Connection::Cluster(mut cluster) => cluster.req_packed_command(command).await,
            Connection::Sentinel(sentinel) => {
                let result = match sentinel.connection().await {
                    Ok(mut connection) => connection.req_packed_command(command).await,
                    Err(error) => Err(error),
                };
                if result.as_ref().is_err_and(|error| kind(error) != Kind::Internal) {
                    sentinel.forget();
                }
                result
            }
        };
        // Errors of the server arrive as values too.
        Ok(result.and_then(Value::extract_error))
    }

    /// Runs `command` and reads its answer.
    pub(super) async fn call<T: FromRedisValue>(&self, command: &Cmd, repeat: Repeat) -> Result<T> {
        let value = self.attempt(command, repeat).await?;
        value
            .and_then(|value| Ok(T::from_redis_value(value)?))
            .map_err(|error| self.failure(error))
    }

    /// How many replicas follow the server.
    pub(super) async fn replicas(&self) -> Result<u32> {
        if self.settings.topology == Topology::Cluster {
            return Ok(0);
        }
        let mut info = ::redis::cmd("INFO");
        info.arg("replication");
        let text: String = self.call(&info, Repeat::Yes).await?;
        let count = text
            .lines()
            .find_map(|line| line.strip_prefix("connected_slaves:"));
        Ok(count.and_then(|count| count.trim().parse().ok()).unwrap_or(0))
    }

    /// A connection of its own for messages.
    pub(super) async fn pubsub(&self) -> Result<PubSub> {
        let opened = match (self.connection()?, &self.client) {
            (Connection::Sentinel(sentinel), _) => sentinel.pubsub().await,
            (Connection::Node(_), Some(client)) => {
                let limit = self.settings.dial_timeout;
                match tokio::time::timeout(limit, client.get_async_pubsub()).await {
                    Ok(opened) => opened,
                    Err(late) => Err(RedisError::from(std::io::Error::from(late))),
                }
            }
            _ => {
                return Err(Error::unsupported(
                    "redis: a cluster cannot be watched for changes",
                ));
            }
        };
        opened.map_err(|error| self.failure(error))
    }

    /// Commands that come later fail; the connection ends when the last one in flight is answered.
    pub(super) fn close(&self) {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }
}

fn manager(client: &Client, settings: &Settings) -> RedisResult<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(settings.dial_timeout))
        .set_response_timeout(settings.read_timeout)
        // Commands are tried again one by one, see `Link::attempt`.
        .set_number_of_retries(0);
    ConnectionManager::new_lazy_with_config(client.clone(), config)
}

async fn cluster(settings: &Settings) -> RedisResult<ClusterConnection> {
    let hosts = settings
        .hosts
        .iter()
        .map(|(host, port)| settings.address(host, *port));
    let mut builder = ClusterClient::builder(hosts)
        .connection_timeout(settings.dial_timeout)
        .retries(settings.retries);
    if let Some(limit) = settings.read_timeout {
        builder = builder.response_timeout(limit);
    }
    if let Some(user) = &settings.account.user {
        builder = builder.username(user);
    }
    if let Some(password) = &settings.account.password {
        builder = builder.password(password);
    }
    if let Some(certificates) = &settings.tls {
        let mode = if certificates.root_cert.is_none() {
            TlsMode::Insecure
        } else {
            TlsMode::Secure
        };
        builder = builder.tls(mode).certs(certificates.clone());
    }
    builder.build()?.get_async_connection().await
}
