//! The connection to one server: the one that is configured, or whichever the sentinels call the master.

use std::sync::{Arc, Mutex, PoisonError};

use ::redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, RedisError, RedisResult, Role, Value,
    aio::{ConnectionLike, MultiplexedConnection, PubSub},
    cmd,
};
use futures::{StreamExt, stream::FuturesUnordered};
use outrigger_component::Kind;
use tokio_util::task::AbortOnDropHandle;

use super::{
    link::kind,
    settings::{Account, PIPELINE, Settings, Topology},
};

type Address = (String, u16);

/// A server, connected to when first used and when the connection broke.
#[derive(Clone)]
pub(super) struct Server {
    settings: Arc<Settings>,
    /// Held by the one who connects.
    connecting: Arc<tokio::sync::Mutex<()>>,
    current: Arc<Mutex<Option<Connected>>>,
}

/// A connection, which ends with the last who has it.
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
            connecting: Arc::default(),
            current: Arc::default(),
        }
    }

    async fn connection(&self) -> RedisResult<Connected> {
        if let Some(current) = self.known() {
            return Ok(current);
        }
        let _connecting = self.connecting.lock().await;
        // Another task may have connected while this one waited.
        if let Some(current) = self.known() {
            return Ok(current);
        }
        let (_, found) = self.find().await?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(found.clone());
        Ok(found)
    }

    /// Runs `command`, and connects anew next time where the connection does not serve any more.
    pub(super) async fn run(&self, command: &Cmd) -> RedisResult<Value> {
        let mut used = self.connection().await?;
        let answer = used.connection.req_packed_command(command).await;
        // Errors of the server arrive as values too.
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

    fn known(&self) -> Option<Connected> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.clone().filter(|known| !known.driver.is_finished())
    }

    /// Connects again next time, unless that has been done since `used`. Answers that still come on it reach who waits for
    /// them.
    fn forget(&self, used: &Connected) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.take_if(|current| Arc::ptr_eq(&current.driver, &used.driver));
    }

    /// A connection of its own for messages.
    pub(super) async fn pubsub(&self) -> RedisResult<PubSub> {
        let (host, port) = match &self.settings.topology {
            Topology::Sentinel(_) => self.find().await?.0,
            Topology::Node | Topology::Cluster => self.configured()?.clone(),
        };
        let settings = &self.settings;
        let info = settings.info(&settings.account, settings.database);
        PubSub::new(&info, settings.dial(&host, port).await?).await
    }

    fn configured(&self) -> RedisResult<&Address> {
        let first = self.settings.hosts.first();
        first.ok_or_else(|| RedisError::from((ErrorKind::InvalidClientConfig, "set redisHost to HOST:PORT")))
    }

    async fn find(&self) -> RedisResult<(Address, Connected)> {
        let settings = &self.settings;
        match &settings.topology {
            Topology::Sentinel(master) => self.ask_sentinels(master).await,
            Topology::Node | Topology::Cluster => {
                let address = self.configured()?;
                let connected = self
                    .connect(address, &settings.account, settings.database)
                    .await?;
                Ok((address.clone(), connected))
            }
        }
    }

    /// Asks all sentinels at once: the first of their answers that is a master counts.
    async fn ask_sentinels(&self, master: &str) -> RedisResult<(Address, Connected)> {
        let asked = self
            .settings
            .hosts
            .iter()
            .map(|sentinel| self.ask(sentinel, master));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let (mut tried, mut last) = (Vec::new(), None);
        while let Some(answer) = asked.next().await {
            let found = match answer {
                Ok(address) if tried.contains(&address) => continue,
                Ok(address) => {
                    let found = self.reach(&address).await.map(|found| (address.clone(), found));
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

    /// Where a sentinel says that the master is.
    async fn ask(&self, sentinel: &Address, master: &str) -> RedisResult<Address> {
        let mut asked = self.connect(sentinel, &self.settings.sentinel_account, 0).await?;
        let mut question = cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let answer: Option<Address> = question.query_async(&mut asked.connection).await?;
        answer.ok_or_else(|| no_master("no master of that name; check sentinelMasterName"))
    }

    /// Connects to what a sentinel called the master: it may not know yet that another one is.
    async fn reach(&self, address: &Address) -> RedisResult<Connected> {
        let settings = &self.settings;
        let mut found = self
            .connect(address, &settings.account, settings.database)
            .await?;
        match cmd("ROLE").query_async(&mut found.connection).await {
            Ok(Role::Primary { .. }) => Ok(found),
            Ok(_) => Err(no_master("the server that a sentinel named is not the master")),
            // Not every account may ask; a server that is no master refuses what is written to it.
            Err(error) if matches!(error.kind(), ErrorKind::Server(_)) => Ok(found),
            Err(error) => Err(error),
        }
    }

    async fn connect(
        &self,
        (host, port): &Address,
        account: &Account,
        database: i64,
    ) -> RedisResult<Connected> {
        let settings = &self.settings;
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(settings.read_timeout)
            .set_pipeline_buffer_size(PIPELINE);
        let info = settings.info(account, database);
        let connecting = async {
            let stream = settings.dial(host, *port).await?;
            MultiplexedConnection::new_with_config(&info, stream, config).await
        };
        let connected = tokio::time::timeout(settings.dial_timeout, connecting).await;
        let (connection, driver) = connected.map_err(too_late)??;
        Ok(Connected {
            connection,
            driver: Arc::new(AbortOnDropHandle::new(tokio::spawn(driver))),
        })
    }
}
