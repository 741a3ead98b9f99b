//! The metadata of the sidecar.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outrigger_blocks::invoke::Endpoints;
use outrigger_blocks::subscriptions::{AppSubscription, SubscriptionType, Subscriptions};
use outrigger_blocks_actors::actors::Actors;
use outrigger_blocks_actors::workflow::Workflows;
use outrigger_blocks_actors::workflow::access::WorkflowAccess;
use outrigger_resources::value::format_go_duration;
use outrigger_runtime::app::{App, AppProtocol};
use outrigger_runtime::components::{Components, Registered};
use outrigger_runtime::resilience::Resilience;
use outrigger_runtime::scheduler::Scheduler;
use outrigger_wire::runtime::v1 as proto;

/// Most extended attributes.
const MAX_ATTRIBUTES: usize = 256;
/// Longest name of an attribute, bytes.
const MAX_KEY: usize = 1024;
/// Longest value of an attribute, bytes.
pub const MAX_VALUE: usize = 16 * 1024;

/// Why an extended attribute was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// The limit of attributes is reached.
    #[error("the sidecar keeps at most {MAX_ATTRIBUTES} metadata attributes: set one of those again")]
    TooMany,
    /// The name is too long.
    #[error("the name of a metadata attribute has at most {MAX_KEY} bytes")]
    Key,
    /// The value is too long.
    #[error("the value of a metadata attribute has at most {MAX_VALUE} bytes")]
    Value,
}

/// Values that change while the sidecar runs, read for each response.
pub struct Reported {
    /// Its HTTP endpoints.
    pub endpoints: Arc<Endpoints>,
    /// The components that the metadata API lists.
    pub components: Arc<Components>,
    /// The actors of the app.
    pub actors: Arc<Actors>,
    /// The workflows of the app.
    pub workflows: Arc<Workflows>,
    /// The connected schedulers.
    pub scheduler: Arc<Scheduler>,
    /// The subscriptions of the app.
    pub subscriptions: Arc<Subscriptions>,
    /// The policies in use.
    pub resilience: Arc<Resilience>,
    /// The names of the MCP servers.
    pub mcp_servers: Box<dyn Fn() -> Vec<String> + Send + Sync>,
    /// Access of other apps to workflows.
    pub workflow_access: Arc<WorkflowAccess>,
}

/// Facts fixed at start, and attributes that any client may set.
pub struct Metadata {
    version: &'static str,
    app_id: String,
    features: Vec<String>,
    reported: Reported,
    app: App,
    extended: Mutex<BTreeMap<String, String>>,
}

impl Metadata {
    /// Metadata of a sidecar with this version, app, features and reported values.
    pub fn new(
        version: &'static str,
        app_id: &str,
        app: App,
        features: Vec<String>,
        reported: Reported,
    ) -> Self {
        let extended = Mutex::new(BTreeMap::from([(
            "daprRuntimeVersion".to_owned(),
            version.to_owned(),
        )]));
        Self {
            version,
            app_id: app_id.to_owned(),
            features,
            reported,
            app,
            extended,
        }
    }

    fn extended(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.extended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets an extended attribute; an empty key is ignored.
    ///
    /// # Errors
    /// [`MetadataError`] if it is too large or exceeds the limit.
    pub fn set(&self, key: String, value: String) -> Result<(), MetadataError> {
        if key.is_empty() {
            return Ok(());
        }
        if key.len() > MAX_KEY {
            return Err(MetadataError::Key);
        }
        if value.len() > MAX_VALUE {
            return Err(MetadataError::Value);
        }
        let mut extended = self.extended();
        if extended.len() >= MAX_ATTRIBUTES && !extended.contains_key(&key) {
            return Err(MetadataError::TooMany);
        }
        extended.insert(key, value);
        Ok(())
    }

    /// The metadata message of the contract; the HTTP API uses other names.
    pub fn message(&self) -> proto::GetMetadataResponse {
        let health = self
            .app
            .health
            .map(|health| proto::AppConnectionHealthProperties {
                health_check_path: if is_grpc(self.app.protocol) {
                    String::new()
                } else {
                    self.app.health_path.clone()
                },
                health_probe_interval: format_go_duration(health.interval),
                health_probe_timeout: format_go_duration(health.timeout),
                health_threshold: i32::try_from(health.threshold).unwrap_or(i32::MAX),
            });
        let endpoints = self.reported.endpoints.names().into_iter();
        let policies = self.reported.workflow_access.names().into_iter();
        let actors = self.reported.actors.status();
        let connected_addresses = self.reported.scheduler.addresses();
        proto::GetMetadataResponse {
            id: self.app_id.clone(),
            runtime_version: self.version.to_owned(),
            enabled_features: self.features.clone(),
            registered_components: self
                .reported
                .components
                .registered()
                .iter()
                .map(component_message)
                .collect(),
            subscriptions: self
                .reported
                .subscriptions
                .list()
                .iter()
                .map(|wanted| subscription_message(wanted))
                .collect(),
            extended_metadata: self.extended().clone().into_iter().collect(),
            http_endpoints: endpoints
                .map(|name| proto::MetadataHttpEndpoint { name })
                .collect(),
            app_connection_properties: Some(proto::AppConnectionProperties {
                port: self.app.port.into(),
                protocol: protocol_name(self.app.protocol).to_owned(),
                channel_address: self.app.address.clone(),
                max_concurrency: self
                    .app
                    .max_concurrency
                    .map_or(0, |n| i32::try_from(n).unwrap_or(i32::MAX)),
                health,
            }),
            active_actors_count: actors.active_actors.clone(),
            actor_runtime: Some(actors),
            scheduler: (!connected_addresses.is_empty())
                .then_some(proto::MetadataScheduler { connected_addresses }),
            workflows: Some(proto::MetadataWorkflows {
                connected_workers: i32::try_from(self.reported.workflows.workers().connected())
                    .unwrap_or(i32::MAX),
            }),
            mcp_servers: (self.reported.mcp_servers)()
                .into_iter()
                .map(|name| proto::MetadataMcpServer { name })
                .collect(),
            resiliencies: {
                let policies = self.reported.resilience.policies.load();
                let names = policies.loaded().iter().map(|resource| resource.name.clone());
                names.map(|name| proto::MetadataResiliency { name }).collect()
            },
            workflow_access_policies: policies
                .map(|name| proto::MetadataWorkflowAccessPolicy { name })
                .collect(),
        }
    }
}

fn component_message(component: &Registered) -> proto::RegisteredComponents {
    proto::RegisteredComponents {
        name: component.name.clone(),
        r#type: component.kind.clone(),
        version: component.version.clone(),
        capabilities: component
            .capabilities
            .iter()
            .map(|name| (*name).to_owned())
            .collect(),
    }
}

fn subscription_message(wanted: &AppSubscription) -> proto::PubsubSubscription {
    let rules = wanted
        .routes
        .shown()
        .map(|(rule, path)| proto::PubsubSubscriptionRule {
            r#match: rule.to_owned(),
            path: path.to_owned(),
        });
    let origin = match wanted.origin {
        SubscriptionType::Declared => proto::PubsubSubscriptionType::Declarative,
        SubscriptionType::Programmatic => proto::PubsubSubscriptionType::Programmatic,
        SubscriptionType::Streaming => proto::PubsubSubscriptionType::Streaming,
    };
    proto::PubsubSubscription {
        pubsub_name: wanted.pubsub.clone(),
        topic: wanted.topic.clone(),
        metadata: wanted.metadata.clone(),
        rules: Some(proto::PubsubSubscriptionRules {
            rules: rules.collect(),
        }),
        dead_letter_topic: wanted.dead_letter.clone().unwrap_or_default(),
        r#type: origin.into(),
    }
}

fn is_grpc(protocol: AppProtocol) -> bool {
    matches!(protocol, AppProtocol::Grpc | AppProtocol::Grpcs)
}

fn protocol_name(protocol: AppProtocol) -> &'static str {
    match protocol {
        AppProtocol::Http => "http",
        AppProtocol::Https => "https",
        AppProtocol::H2c => "h2c",
        AppProtocol::Grpc => "grpc",
        AppProtocol::Grpcs => "grpcs",
    }
}
