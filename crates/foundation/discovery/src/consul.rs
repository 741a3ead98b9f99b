//! Name resolution through a Consul agent.

mod agent;
mod config;
mod shape;
mod tls;

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

pub use self::{agent::AgentError, config::ConsulConfigError};
use self::{
    agent::{Agent, Instance},
    config::{Config, Query},
};
use crate::{Address, Registration, ResolveError, polled::Registry};

/// Time to cache an answer if changes are not watched.
const CACHE_TTL: Duration = Duration::from_secs(1);

/// Why the Consul resolver failed to start.
#[derive(Debug, thiserror::Error)]
pub enum ConsulError {
    /// Invalid configuration.
    #[error(transparent)]
    Config(#[from] ConsulConfigError),
    /// The client could not be created.
    #[error("failed to init consul client: {0}")]
    Client(AgentError),
    /// The agent rejected the registration.
    #[error("failed to register consul service: {0}")]
    Register(AgentError),
    /// The agent did not respond.
    #[error("failed check on consul agent: {0}")]
    Check(AgentError),
}

/// Looks up services in a Consul catalog through one agent.
pub(crate) struct Consul {
    agent: Agent,
    query: Query,
    port_key: String,
    use_cache: bool,
    /// Service ID to deregister on close.
    deregister: Option<String>,
}

impl Consul {
    /// Registers this sidecar if so configured, otherwise checks that the agent responds.
    pub(crate) async fn start(
        configuration: &Value,
        registration: &Registration,
    ) -> Result<Self, ConsulError> {
        let env = |name: &str| std::env::var(name).ok();
        let config = Config::read(configuration, registration, &env)?;
        let agent = Agent::new(config.client).map_err(ConsulError::Client)?;
        let mut deregister = None;
        match &config.registration {
            Some(body) => {
                agent.register(body).await.map_err(ConsulError::Register)?;
                let name = body.get("Name").and_then(Value::as_str).unwrap_or_default();
                tracing::info!(target: "dapr.contrib", "service:{name} registered on consul agent");
                // Consul defaults the ID to the name.
                let id = body.get("ID").and_then(Value::as_str).unwrap_or(name);
                deregister = config.deregister.then(|| id.to_owned());
            }
            None => agent.check().await.map_err(ConsulError::Check)?,
        }
        Ok(Self {
            agent,
            query: config.query,
            port_key: config.port_key,
            use_cache: config.use_cache,
            deregister,
        })
    }

    async fn healthy(&self, app_id: &str, after: Option<u64>) -> Result<(Vec<Instance>, u64), ResolveError> {
        let found = self.agent.healthy(app_id, &self.query, after).await;
        found.map_err(|error| ResolveError::Registry {
            resolver: "consul",
            app_id: app_id.to_owned(),
            cause: error.to_string(),
        })
    }

    /// Addresses of the instances that have an address and a port. An error if there are none.
    fn addresses(&self, app_id: &str, instances: &[Instance]) -> Result<Vec<Address>, ResolveError> {
        let mut port_missing = false;
        let mut found: Vec<(&str, Address)> = Vec::new();
        for Instance { node, service } in instances {
            let port = service.meta.as_ref().and_then(|meta| meta.get(&self.port_key));
            let Some(port) = port.and_then(|port| port.parse().ok()) else {
                port_missing = true;
                continue;
            };
            let host = [&service.address, &node.address]
                .into_iter()
                .find(|host| !host.is_empty());
            if let Some(host) = host {
                found.push((&service.id, Address::new(host, port)));
            }
        }
        if found.is_empty() {
            let app_id = app_id.to_owned();
            return Err(match port_missing {
                true => ResolveError::PortMissing {
                    app_id,
                    key: self.port_key.clone(),
                },
                false => ResolveError::NoHealthyService { app_id },
            });
        }
        // Consul shuffles its answers.
        found.sort_by_key(|(id, _)| *id);
        Ok(found.into_iter().map(|(_, address)| address).collect())
    }
}

#[async_trait]
impl Registry for Consul {
    fn name(&self) -> &'static str {
        "consul"
    }

    fn fresh_for(&self) -> Duration {
        CACHE_TTL
    }

    fn watches_all(&self) -> bool {
        self.use_cache
    }

    async fn look_up(&self, app_id: &str, _namespace: &str) -> Result<Vec<Address>, ResolveError> {
        let (instances, _) = self.healthy(app_id, None).await?;
        self.addresses(app_id, &instances)
    }

    /// A blocking query: the agent answers once the state is newer than the index in `cursor`.
    async fn next(
        &self,
        app_id: &str,
        _namespace: &str,
        cursor: &mut u64,
    ) -> Result<Vec<Address>, ResolveError> {
        let before = *cursor;
        let (instances, index) = self.healthy(app_id, Some(before)).await?;
        // A lower index means that Consul's state was reset.
        *cursor = if index < before { 0 } else { index };
        if index == 0 {
            // No index: the agent or proxy does not support blocking queries. Poll instead.
            tokio::time::sleep(CACHE_TTL).await;
        }
        self.addresses(app_id, &instances)
    }

    async fn close(&self) {
        if let Some(id) = &self.deregister {
            match self.agent.deregister(id).await {
                Ok(()) => tracing::info!(target: "dapr.contrib", "deregistered service from consul"),
                Err(error) => {
                    tracing::warn!(target: "dapr.contrib", "failed to deregister consul service: {error}");
                }
            }
        }
    }
}
