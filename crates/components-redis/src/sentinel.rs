use std::sync::{Arc, Mutex, PoisonError};

use ::redis::{
    AsyncConnectionConfig, Client, ErrorKind, RedisError, RedisResult, Role,
    aio::{MultiplexedConnection, PubSub},
    cmd,
};
use futures::{StreamExt, stream::FuturesUnordered};

use super::settings::{Account, PIPELINE, Settings};

type Address = (String, u16);

/// The connection to whichever server the sentinels call the master.
#[derive(Clone)]
pub(super) struct Sentinel {
    settings: Arc<Settings>,
    /// The name the sentinels know it by.
    master: Arc<str>,
    /// Held by the one who asks the sentinels.
    asking: Arc<tokio::sync::Mutex<()>>,
    current: Arc<Mutex<Option<MultiplexedConnection>>>,
}

fn no_master(why: &'static str) -> RedisError {
    RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, why))
}

impl Sentinel {
    pub(super) fn new(settings: &Settings, master: &str) -> Self {
        Self {
            settings: Arc::new(settings.clone()),
            master: master.into(),
            asking: Arc::default(),
            current: Arc::default(),
        }
    }

    pub(super) async fn connection(&self) -> RedisResult<MultiplexedConnection> {
        if let Some(current) = self.known() {
            return Ok(current);
        }
        let _asking = self.asking.lock().await;
        // Another task may have found it while this one waited.
        if let Some(current) = self.known() {
            return Ok(current);
        }
        let (_, found) = self.find().await?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(found.clone());
        Ok(found)
    }

    fn known(&self) -> Option<MultiplexedConnection> {
        self.current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Asks the sentinels again next time.
    pub(super) fn forget(&self) {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub(super) async fn pubsub(&self) -> RedisResult<PubSub> {
        let (client, _) = self.find().await?;
        client.get_async_pubsub().await
    }

    /// Asks all sentinels at once: the first of their answers that is a master counts.
    async fn find(&self) -> RedisResult<(Client, MultiplexedConnection)> {
        let asked = self.settings.hosts.iter().map(|sentinel| self.ask(sentinel));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let (mut tried, mut last) = (Vec::new(), None);
        while let Some(answer) = asked.next().await {
            let found = match answer {
                Ok(address) if tried.contains(&address) => continue,
                Ok(address) => {
                    let found = self.reach(&address).await;
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
    async fn ask(&self, (host, port): &Address) -> RedisResult<Address> {
        let settings = &self.settings;
        let (_, mut connection) = self.connect(host, *port, &settings.sentinel_account, 0).await?;
        let mut question = cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.master);
        let answer: Option<Address> = question.query_async(&mut connection).await?;
        answer.ok_or_else(|| no_master("no master of that name; check sentinelMasterName"))
    }

    /// Connects to what a sentinel called the master: it may not know yet that another one is.
    async fn reach(&self, (host, port): &Address) -> RedisResult<(Client, MultiplexedConnection)> {
        let settings = &self.settings;
        let (client, mut connection) = self
            .connect(host, *port, &settings.account, settings.database)
            .await?;
        match cmd("ROLE").query_async(&mut connection).await {
            Ok(Role::Primary { .. }) => Ok((client, connection)),
            Ok(_) => Err(no_master("the server that a sentinel named is not the master")),
            // Not every account may ask; a server that is no master refuses what is written to it.
            Err(error) if matches!(error.kind(), ErrorKind::Server(_)) => Ok((client, connection)),
            Err(error) => Err(error),
        }
    }

    async fn connect(
        &self,
        host: &str,
        port: u16,
        account: &Account,
        database: i64,
    ) -> RedisResult<(Client, MultiplexedConnection)> {
        let settings = &self.settings;
        let client = settings.client(host, port, account, database)?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(settings.dial_timeout))
            .set_response_timeout(settings.read_timeout)
            .set_pipeline_buffer_size(PIPELINE);
        let connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok((client, connection))
    }
}
