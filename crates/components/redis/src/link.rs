use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ::redis::{
    Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind, Value,
    aio::PubSub,
    cluster::{ClusterClient, ClusterConfig},
};
use outrigger_component::{Error, Kind, Metadata, Result};

use super::{
    answers::TOO_LARGE,
    cluster::Cluster,
    server::Server,
    settings::{Role, Settings, Topology},
};

/// Whether a command may be repeated when its outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    Yes,
    /// Only if it was certainly not sent.
    No,
}

#[derive(Clone)]
enum Connection {
    Server(Server),
    Cluster(Cluster),
}

/// The current connection and its number.
#[derive(Clone)]
struct Current {
    connection: Connection,
    number: u64,
}

/// A reconnecting connection with the timeouts of its callers.
pub(super) struct Link {
    current: Mutex<Option<Current>>,
    /// Creates new cluster connections.
    cluster: Option<Box<ClusterClient>>,
    pub(super) settings: Settings,
    component: Arc<str>,
}

pub(super) fn kind(error: &RedisError) -> Kind {
    if error.is_timeout() {
        return Kind::Timeout;
    }
    if outrigger_tls::refused(error) {
        return Kind::Denied;
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
        _ => match error.code() {
            Some("NOAUTH" | "WRONGPASS") => Kind::Denied,
            Some(TOO_LARGE) => Kind::TooLarge,
            _ => Kind::Internal,
        },
    }
}

fn describe(mut what: String, error: RedisError) -> Error {
    if outrigger_tls::refused(&error) {
        what.push_str(" over TLS (check enableTLS, caCert, clientCert and clientKey)");
    }
    Error::new(kind(&error), what).because(error)
}

/// Whether the server certainly did not run the command.
fn was_not_run(error: &RedisError) -> bool {
    error.is_connection_refusal()
        || matches!(
            error.kind(),
            ErrorKind::MasterNameNotFoundBySentinel
                | ErrorKind::ClusterConnectionNotFound
                | ErrorKind::Server(_)
        )
}

impl Link {
    /// Connects and pings the server.
    pub(super) async fn open(metadata: &Metadata, role: Role) -> Result<Self> {
        let settings = Settings::read(metadata, role)?;
        let component = metadata.component().clone();
        let refused = |error: RedisError| {
            describe(
                format!("error connecting to redis at {}", settings.shown()),
                error,
            )
            .of(&component)
        };
        let (cluster, connection) = match &settings.topology {
            Topology::Node | Topology::Sentinel(_) => (None, Connection::Server(Server::new(&settings))),
            Topology::Cluster => {
                let client = super::cluster::client(&settings).map_err(refused)?;
                let connection = client.get_async_connection().await.map_err(refused)?;
                (Some(Box::new(client)), Connection::Cluster(Cluster(connection)))
            }
        };
        let link = Self::new(connection, cluster, settings.clone(), component.clone());
        let ping = ::redis::cmd("PING");
        link.attempt(&ping, Repeat::Yes).await?.map_err(refused)?;
        Ok(link)
    }

    fn new(
        connection: Connection,
        cluster: Option<Box<ClusterClient>>,
        settings: Settings,
        component: Arc<str>,
    ) -> Self {
        Self {
            current: Mutex::new(Some(Current {
                connection,
                number: 0,
            })),
            cluster,
            settings,
            component,
        }
    }

    /// A second connection to the same server, made on first use. `None` for a cluster.
    pub(super) fn dedicated(&self) -> Option<Self> {
        let is_cluster = self.settings.topology == Topology::Cluster;
        (!is_cluster).then(|| {
            let connection = Connection::Server(Server::new(&self.settings));
            Self::new(connection, None, self.settings.clone(), self.component.clone())
        })
    }

    fn current(&self) -> Result<Current> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.clone().ok_or_else(|| Error::closed().of(&self.component))
    }

    /// Replaces unresponsive cluster connection `number` for later commands, because a connection to a
    /// vanished peer stays open for a long time. Pending answers are still delivered.
    fn replace(&self, number: u64) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(current), Some(client)) = (current.as_mut(), &self.cluster) else {
            return;
        };
        if current.number != number {
            return;
        }
        let mut config = ClusterConfig::new();
        if let Some(limit) = self.settings.read_timeout {
            config = config.set_response_timeout(limit);
        }
        let connection = client.get_pending_async_connection_with_config(config);
        current.connection = Connection::Cluster(Cluster(connection));
        current.number += 1;
    }

    pub(super) fn failure(&self, error: RedisError) -> Error {
        describe(format!("redis at {}", self.settings.shown()), error).of(&self.component)
    }

    pub(super) fn check_open(&self) -> Result<()> {
        self.current().map(drop)
    }

    /// Runs `command`. The outer error means that the link is closed; the inner error is the server's.
    pub(super) async fn attempt(&self, command: &Cmd, repeat: Repeat) -> Result<RedisResult<Value>> {
        let answer = self.attempt_parts(command, repeat).await?;
        // An error in a part fails the whole answer.
        Ok(answer.and_then(Value::extract_error))
    }

    /// Like [`Link::attempt`], but parts of the answer may be errors.
    pub(super) async fn attempt_parts(&self, command: &Cmd, repeat: Repeat) -> Result<RedisResult<Value>> {
        let mut pause = self.settings.least_pause;
        for _ in 0..self.settings.retries {
            let error = match self.once(command).await? {
                Ok(value) => return Ok(Ok(value)),
                Err(error) => error,
            };
            let curable = matches!(kind(&error), Kind::Unavailable | Kind::Timeout);
            if !curable || (repeat == Repeat::No && !was_not_run(&error)) {
                return Ok(Err(error));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2)
                .min(self.settings.most_pause)
                .max(Duration::from_millis(1));
        }
        self.once(command).await
    }

    async fn once(&self, command: &Cmd) -> Result<RedisResult<Value>> {
        let Current { connection, number } = self.current()?;
        let result = match connection {
            Connection::Cluster(cluster) => {
                let result = cluster.run(command).await;
                if result.as_ref().is_err_and(RedisError::is_timeout) {
                    self.replace(number);
                }
                result
            }
            Connection::Server(server) => server.run(command).await,
        };
        Ok(result)
    }

    /// Runs `command` and parses its answer.
    pub(super) async fn call<T: FromRedisValue>(&self, command: &Cmd, repeat: Repeat) -> Result<T> {
        let value = self.attempt(command, repeat).await?;
        value
            .and_then(|value| Ok(T::from_redis_value(value)?))
            .map_err(|error| self.failure(error))
    }

    /// Number of the server's replicas.
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

    /// A dedicated connection for messages.
    pub(super) async fn pubsub(&self) -> Result<PubSub> {
        let opening = async {
            match self.current()?.connection {
                Connection::Server(server) => Ok(server.pubsub().await),
                Connection::Cluster(_) => Err(Error::unsupported(
                    "redis: a cluster cannot be watched for changes",
                )),
            }
        };
        let opened = match tokio::time::timeout(self.settings.dial_timeout, opening).await {
            Ok(opened) => opened?,
            Err(late) => Err(RedisError::from(std::io::Error::from(late))),
        };
        opened.map_err(|error| self.failure(error))
    }

    /// Fails later commands; the connection ends after the last answer.
    pub(super) fn close(&self) {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
