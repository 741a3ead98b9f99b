use std::sync::{Arc, Mutex, PoisonError};

use ::redis::{
    AsyncConnectionConfig, Client, RedisResult,
    aio::{MultiplexedConnection, PubSub},
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};

use super::settings::Settings;

/// The connection to whichever server the sentinels call the master.
#[derive(Clone)]
pub(super) struct Sentinel {
    client: Arc<tokio::sync::Mutex<SentinelClient>>,
    current: Arc<Mutex<Option<MultiplexedConnection>>>,
    config: AsyncConnectionConfig,
}

impl Sentinel {
    pub(super) fn new(settings: &Settings, master: &str) -> RedisResult<Self> {
        let addresses = settings
            .hosts
            .iter()
            .map(|(host, port)| settings.address(host, *port));
        let mut builder = SentinelClientBuilder::new(addresses, master, SentinelServerType::Master)?
            .set_client_to_redis_db(settings.database)
            .set_client_to_redis_tcp_settings(settings.tcp())
            .set_client_to_sentinel_tcp_settings(settings.tcp());
        if let (Some(mode), Some(certificates)) = (settings.tls_mode(), &settings.tls) {
            builder = builder
                .set_client_to_redis_tls_mode(mode)
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_tls_mode(mode)
                .set_client_to_sentinel_certificates(certificates.clone());
        }
        if let Some(user) = &settings.account.user {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = &settings.account.password {
            builder = builder.set_client_to_redis_password(password);
        }
        if let Some(user) = &settings.sentinel_account.user {
            builder = builder.set_client_to_sentinel_username(user);
        }
        if let Some(password) = &settings.sentinel_account.password {
            builder = builder.set_client_to_sentinel_password(password);
        }
        Ok(Self {
            client: Arc::new(tokio::sync::Mutex::new(builder.build()?)),
            current: Arc::default(),
            config: AsyncConnectionConfig::new()
                .set_connection_timeout(Some(settings.dial_timeout))
                .set_response_timeout(settings.read_timeout),
        })
    }

    pub(super) async fn connection(&self) -> RedisResult<MultiplexedConnection> {
        if let Some(current) = self.known() {
            return Ok(current);
        }
        let mut client = self.client.lock().await;
        // Another task may have found it while this one waited.
        if let Some(current) = self.known() {
            return Ok(current);
        }
        let found = client.get_async_connection_with_config(&self.config).await?;
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
        let client: Client = self.client.lock().await.async_get_client().await?;
        client.get_async_pubsub().await
    }
}
