//! The connection to a single server: the configured one, or the sentinels' master.

use std::sync::{Arc, Mutex, PoisonError};

use ::redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, RedisError, RedisResult, Role, Value,
    aio::{ConnectionLike, MultiplexedConnection, PubSub},
    cmd,
};
use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, Shared},
    stream::FuturesUnordered,
};
use outrigger_component::Kind;
use tokio_util::task::AbortOnDropHandle;

use super::{
    link::kind,
    settings::{Account, PIPELINE, Settings, Topology},
};

type Address = (String, u16);

/// A server, connected on first use and after failures.
#[derive(Clone)]
pub(super) struct Server {
    settings: Arc<Settings>,
    current: Arc<Mutex<Option<Attempt>>>,
}

/// A shared connection attempt: sequential attempts would add up their timeouts.
type Attempt = Shared<BoxFuture<'static, RedisResult<Connected>>>;

/// A connection, closed with its last user.
#[derive(Clone)]
struct Connected {
    connection: MultiplexedConnection,
    driver: Arc<AbortOnDropHandle<()>>,
}

fn no_master(why: &'static str) -> RedisError {
    RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, why))
}

fn too_late(late: tokio::time::error::Elapsed) -> RedisError {
    RedisError::from(std::io::Error::from(late))
}

impl Server {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            settings: Arc::new(settings.clone()),
            current: Arc::default(),
        }
    }

    /// The attempt in progress, or that of the current connection; otherwise a new one.
    fn attempt(&self) -> Attempt {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let serves = |attempt: &&Attempt| match attempt.peek() {
            None => true,
            Some(Ok(connected)) => !connected.driver.is_finished(),
            Some(Err(_)) => false,
        };
        if let Some(attempt) = current.as_ref().filter(serves) {
            return attempt.clone();
        }
        let settings = Arc::clone(&self.settings);
        let attempt = async move { Ok(settings.find().await?.1) }.boxed().shared();
        // Continues if the callers give up.
        tokio::spawn(attempt.clone());
        current.insert(attempt).clone()
    }

    /// Runs `command`; a broken connection is replaced on the next call.
    pub(super) async fn run(&self, command: &Cmd) -> RedisResult<Value> {
        let mut used = self.attempt().await?;
        let answer = used.connection.req_packed_command(command).await;
        // Server errors arrive as values too.
        let answer = answer.and_then(|value| match value {
            Value::ServerError(error) => Err(error.into()),
            value => Ok(value),
        });
        let is_useless = |error: &RedisError| matches!(kind(error), Kind::Unavailable | Kind::Timeout);
        if answer.as_ref().is_err_and(is_useless) {
            self.forget(&used);
        }
        answer
    }

    /// Reconnects on the next call, unless that happened since `used`. Pending answers are still delivered.
    fn forget(&self, used: &Connected) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.take_if(|attempt| match attempt.peek() {
            Some(Ok(connected)) => Arc::ptr_eq(&connected.driver, &used.driver),
            _ => false,
        });
    }

    /// A dedicated connection for messages.
    pub(super) async fn pubsub(&self) -> RedisResult<PubSub> {
        let (host, port) = match &self.settings.topology {
            Topology::Sentinel(_) => self.settings.find().await?.0,
            Topology::Node | Topology::Cluster => self.settings.configured()?.clone(),
        };
        let settings = &self.settings;
        let info = settings.info(&settings.account, settings.database);
        PubSub::new(&info, settings.dial(&host, port).await?).await
    }
}

impl Settings {
    fn configured(&self) -> RedisResult<&Address> {
        let first = self.hosts.first();
        first.ok_or_else(|| RedisError::from((ErrorKind::InvalidClientConfig, "set redisHost to HOST:PORT")))
    }

    async fn find(&self) -> RedisResult<(Address, Connected)> {
        match &self.topology {
            Topology::Sentinel(master) => self.ask_sentinels(master).await,
            Topology::Node | Topology::Cluster => {
                let address = self.configured()?;
                let connected = self.connect(address, &self.account, self.database).await?;
                Ok((address.clone(), connected))
            }
        }
    }

    /// Queries all sentinels at once and takes the first address that is a master.
    async fn ask_sentinels(&self, master: &str) -> RedisResult<(Address, Connected)> {
        let asked = self
            .hosts
            .iter()
            .map(|sentinel| self.query_sentinel(sentinel, master));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let (mut tried, mut last) = (Vec::new(), None);
        while let Some(answer) = asked.next().await {
            let found = match answer {
                Ok(address) if tried.contains(&address) => continue,
                Ok(address) => {
                    let found = self
                        .connect_master(&address)
                        .await
                        .map(|found| (address.clone(), found));
                    tried.push(address);
                    found
                }
                Err(error) => Err(error),
            };
            match found {
                Ok(found) => return Ok(found),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| no_master("no sentinel is configured; set redisHost")))
    }

    /// The master's address according to a sentinel.
    async fn query_sentinel(&self, sentinel: &Address, master: &str) -> RedisResult<Address> {
        let mut asked = self.connect(sentinel, &self.sentinel_account, 0).await?;
        let mut question = cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let asking = question.query_async(&mut asked.connection);
        let answer: Option<Address> = self.within_timeout(asking).await?;
        answer.ok_or_else(|| no_master("no master of that name; check sentinelMasterName"))
    }

    /// Connects to the reported master and checks its role, because a sentinel may be outdated.
    async fn connect_master(&self, address: &Address) -> RedisResult<Connected> {
        let mut found = self.connect(address, &self.account, self.database).await?;
        match self
            .within_timeout(cmd("ROLE").query_async(&mut found.connection))
            .await
        {
            Ok(Role::Primary { .. }) => Ok(found),
            Ok(_) => Err(no_master("the server named by a sentinel is not the master")),
            // Some accounts may not query the role; a replica would reject writes.
            Err(error) if matches!(error.kind(), ErrorKind::Server(_)) => Ok(found),
            Err(error) => Err(error),
        }
    }

    /// A fixed timeout instead of `readTimeout`, because callers share the attempt.
    async fn within_timeout<T>(&self, step: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let done = tokio::time::timeout(self.dial_timeout, step).await;
        done.map_err(too_late)?
    }

    async fn connect(
        &self,
        (host, port): &Address,
        account: &Account,
        database: i64,
    ) -> RedisResult<Connected> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(self.read_timeout)
            .set_pipeline_buffer_size(PIPELINE);
        let info = self.info(account, database);
        let connecting = async {
            let stream = self.dial(host, *port).await?;
            MultiplexedConnection::new_with_config(&info, stream, config).await
        };
        let (connection, driver) = self.within_timeout(connecting).await?;
        Ok(Connected {
            connection,
            driver: Arc::new(AbortOnDropHandle::new(tokio::spawn(driver))),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outrigger_component::Metadata;
    use tokio::{net::TcpListener, time::Instant};

    use super::*;
    use crate::settings::Role;

    #[tokio::test(start_paused = true)]
    async fn callers_share_attempt_and_failure() {
        // Accepts connections and never answers.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let properties = [
            ("redisHost", &*host),
            ("redisPassword", "p"),
            ("dialTimeout", "5s"),
        ];
        let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let metadata = Metadata::new("store", properties).unwrap();
        let server = Server::new(&Settings::read(&metadata, Role::State).unwrap());
        let mut accepted = Vec::new();
        for attempts in 1..=2 {
            let started = Instant::now();
            let ping = cmd("PING");
            let given_up = tokio::time::timeout(Duration::from_secs(1), server.run(&ping)).await;
            given_up.unwrap_err();
            let calls = (0..20).map(|_| server.run(&ping));
            for answer in futures::future::join_all(calls).await {
                assert!(answer.unwrap_err().is_timeout());
            }
            assert_eq!(started.elapsed().as_secs(), 5);
            while let Some(connection) = listener.accept().now_or_never() {
                accepted.push(connection.unwrap());
            }
            assert_eq!(accepted.len(), attempts);
        }
    }
}
