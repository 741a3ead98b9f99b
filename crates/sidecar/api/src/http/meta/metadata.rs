//! The metadata of a sidecar in the JSON of the HTTP API, whose members differ from the message.

use std::collections::BTreeMap;

use outrigger_wire::runtime::v1 as proto;
use serde_json::{Map, Value, json};

/// All members; most empty ones are left out.
pub(super) fn json(message: proto::GetMetadataResponse) -> Value {
    let mut all = Map::new();
    all.insert("id".into(), message.id.into());
    all.insert("runtimeVersion".into(), message.runtime_version.into());
    if !message.enabled_features.is_empty() {
        all.insert("enabledFeatures".into(), message.enabled_features.into());
    }
    if !message.registered_components.is_empty() {
        let components = message.registered_components.into_iter().map(component);
        all.insert("components".into(), components.collect());
    }
    if !message.active_actors_count.is_empty() {
        let actors = message.active_actors_count.into_iter().map(active);
        all.insert("actors".into(), actors.collect());
    }
    let extended: BTreeMap<_, _> = message.extended_metadata.into_iter().collect();
    all.insert("extended".into(), json!(extended));
    if !message.subscriptions.is_empty() {
        let subscriptions = message.subscriptions.into_iter().map(subscription);
        all.insert("subscriptions".into(), subscriptions.collect());
    }
    let endpoints = message.http_endpoints.into_iter().map(|named| named.name);
    put_names(&mut all, "httpEndpoints", endpoints);
    let servers = message.mcp_servers.into_iter().map(|named| named.name);
    put_names(&mut all, "mcpServers", servers);
    let resiliencies = message.resiliencies.into_iter().map(|named| named.name);
    put_names(&mut all, "resiliencies", resiliencies);
    let policies = message
        .workflow_access_policies
        .into_iter()
        .map(|named| named.name);
    put_names(&mut all, "workflowAccessPolicies", policies);
    if let Some(properties) = message.app_connection_properties {
        all.insert("appConnectionProperties".into(), connection(properties));
    }
    if let Some(actors) = message.actor_runtime {
        all.insert("actorRuntime".into(), actor_runtime(actors));
    }
    if let Some(scheduler) = message.scheduler {
        let addresses = json!({ "connected_addresses": scheduler.connected_addresses });
        all.insert("scheduler".into(), addresses);
    }
    let workers = message.workflows.unwrap_or_default().connected_workers;
    if workers > 0 {
        all.insert("workflows".into(), json!({ "connectedWorkers": workers }));
    }
    Value::Object(all)
}

fn actor_runtime(actors: proto::ActorRuntime) -> Value {
    let mut shown = Map::new();
    let status = actors.runtime_status().as_str_name();
    shown.insert("runtimeStatus".into(), status.into());
    if !actors.active_actors.is_empty() {
        let active = actors.active_actors.into_iter().map(active);
        shown.insert("activeActors".into(), active.collect());
    }
    shown.insert("hostReady".into(), actors.host_ready.into());
    shown.insert("placement".into(), actors.placement.into());
    shown.into()
}

/// Without the count if no actor is active.
fn active(actors: proto::ActiveActorsCount) -> Value {
    let mut shown = Map::new();
    put(&mut shown, "type", actors.r#type);
    if actors.count != 0 {
        shown.insert("count".into(), actors.count.into());
    }
    shown.into()
}

fn component(component: proto::RegisteredComponents) -> Value {
    let mut shown = Map::new();
    put(&mut shown, "name", component.name);
    put(&mut shown, "type", component.r#type);
    put(&mut shown, "version", component.version);
    if !component.capabilities.is_empty() {
        shown.insert("capabilities".into(), component.capabilities.into());
    }
    shown.into()
}

fn subscription(subscription: proto::PubsubSubscription) -> Value {
    let mut shown = Map::new();
    put(&mut shown, "type", subscription.r#type().as_str_name().to_owned());
    shown.insert("pubsubname".into(), subscription.pubsub_name.into());
    shown.insert("topic".into(), subscription.topic.into());
    let rules = subscription
        .rules
        .unwrap_or_default()
        .rules
        .into_iter()
        .map(|rule| {
            let mut shown = Map::new();
            put(&mut shown, "match", rule.r#match);
            put(&mut shown, "path", rule.path);
            Value::from(shown)
        });
    shown.insert("rules".into(), rules.collect());
    if !subscription.metadata.is_empty() {
        let metadata: BTreeMap<_, _> = subscription.metadata.into_iter().collect();
        shown.insert("metadata".into(), json!(metadata));
    }
    shown.insert("deadLetterTopic".into(), subscription.dead_letter_topic.into());
    shown.into()
}

fn connection(properties: proto::AppConnectionProperties) -> Value {
    let mut shown = Map::new();
    if properties.port != 0 {
        shown.insert("port".into(), properties.port.into());
    }
    shown.insert("protocol".into(), properties.protocol.into());
    put(&mut shown, "channelAddress", properties.channel_address);
    if properties.max_concurrency != 0 {
        shown.insert("maxConcurrency".into(), properties.max_concurrency.into());
    }
    if let Some(health) = properties.health {
        let mut checks = Map::new();
        put(&mut checks, "healthCheckPath", health.health_check_path);
        checks.insert("healthProbeInterval".into(), health.health_probe_interval.into());
        checks.insert("healthProbeTimeout".into(), health.health_probe_timeout.into());
        checks.insert("healthThreshold".into(), health.health_threshold.into());
        shown.insert("health".into(), checks.into());
    }
    shown.into()
}

/// Adds a list of names that is not empty.
fn put_names(members: &mut Map<String, Value>, member: &str, names: impl Iterator<Item = String>) {
    let names: Vec<_> = names.map(|name| json!({ "name": name })).collect();
    if !names.is_empty() {
        members.insert(member.to_owned(), names.into());
    }
}

/// Adds a non-empty text.
fn put(members: &mut Map<String, Value>, name: &str, text: String) {
    if !text.is_empty() {
        members.insert(name.to_owned(), text.into());
    }
}
