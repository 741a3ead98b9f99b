//! The gRPC service, `dapr.proto.operator.v1.Operator`.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::Stream;
use futures::stream::{empty, unfold};
use outrigger_controlplane::grpc;
use outrigger_kube::{Client, Kind, Meta, Watched};
use outrigger_wire::operator::v1 as wire;
use outrigger_wire::operator::v1::operator_server::Operator;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::authorize::app_id;
use crate::copies::{Copies, Copy};
use crate::metrics::{Metrics, OpenStream};
use crate::resource::{AppPod, Configuration, Resource, ResourceKind};
use crate::secrets::{NotBefore, Secrets};
use crate::updates::{Concerns, Follower, Update};

const LOG: &str = "dapr.operator.api";

/// Serves the gRPC calls.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    pub(crate) copies: Copies,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) client: Client,
    /// Cancelled at shutdown.
    pub(crate) drain: CancellationToken,
}

type Updates<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    /// The manifest of a resource, with its secrets as of `not_before` or later.
    async fn manifest<K: ResourceKind>(
        &self,
        namespace: &str,
        resource: &Resource<K>,
        not_before: NotBefore,
    ) -> Result<Bytes, Status> {
        if !resource.has_secrets {
            return Ok(resource.manifest.clone());
        }
        let revealed = self
            .secrets
            .reveal(K::SECRETS, namespace, &resource.manifest, not_before)
            .await;
        let manifest = revealed.map_err(|error| {
            tracing::warn!(target: LOG, "{} of {namespace}: {error}", K::KIND.plural);
            let plural = K::KIND.plural;
            match error.is_passing() {
                // Sidecars retry at their start.
                true => Status::unavailable(format!("{plural}: {error}")),
                false => Status::failed_precondition(format!(
                    "{plural}: {error}; create it, or correct the reference"
                )),
            }
        })?;
        Ok(manifest.into())
    }

    /// The resources of a kind with their secrets; `T` is the response with their list. Manifests without
    /// secrets are shared by all responses.
    async fn list<K: ResourceKind, T: Default>(
        &self,
        copy: &Copy<Resource<K>>,
        namespace: &str,
        app_id: Option<&str>,
    ) -> Result<Response<T>, Status> {
        let (mut listed, not_before) = (Vec::new(), NotBefore::call());
        for resource in copy.known().await?.of_namespace(namespace) {
            if app_id.is_none_or(|app_id| resource.is_for(app_id)) {
                listed.push(self.manifest(namespace, &resource, not_before).await?);
            }
        }
        grpc::list(listed)
    }

    /// Streams the changes of a kind that concern the caller.
    async fn follow<K: ResourceKind, T: prost::Message + 'static>(
        &self,
        copy: &Copy<Resource<K>>,
        namespace: String,
        concerns: Concerns<K>,
        event: fn(Update) -> T,
    ) -> Result<Response<Updates<T>>, Status> {
        if self.drain.is_cancelled() {
            return Err(Status::unavailable("operator is shutting down"));
        }
        let (changes, secrets) = (copy.known().await?.follow(), Arc::clone(&self.secrets));
        let follower = Follower::new(changes, secrets, namespace, concerns, self.drain.clone());
        let open = OpenStream::of(&self.metrics, K::KIND.plural);
        let stream = unfold(Some((follower, open)), move |following| async move {
            let (mut follower, open) = following?;
            Some(match follower.next().await? {
                Err(status) => (Err(status), None),
                Ok(update) => (Ok(event(update)), Some((follower, open))),
            })
        });
        let nothing: Updates<T> = Box::pin(empty());
        Ok(grpc::stream(nothing, stream))
    }

    /// A Configuration from the copy; if the API refuses to list them, read by itself.
    async fn configuration(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Resource<Configuration>>>, Status> {
        if let Some(known) = self.copies.configurations.if_listed().await? {
            return Ok(known.get(namespace, name));
        }
        let object: Value = match self.client.get(Kind::CONFIGURATIONS, Some(namespace), name).await {
            Ok(object) => object,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(Status::unavailable(error.to_string())),
        };
        let read = Resource::read(&Meta::of(&object), object);
        read.map(|read| read.map(Arc::new)).map_err(Status::internal)
    }
}

#[tonic::async_trait]
impl Operator for Service {
    async fn component_update(
        &self,
        request: Request<wire::ComponentUpdateRequest>,
    ) -> Result<Response<Updates<wire::ComponentUpdateEvent>>, Status> {
        let (_, extensions, request) = request.into_parts();
        let app_id = app_id(&extensions, &request.namespace)?;
        let concerns = scoped(app_id);
        let event = |update: Update| wire::ComponentUpdateEvent {
            component: update.manifest,
            r#type: update.event.into(),
        };
        self.follow(&self.copies.components, request.namespace, concerns, event)
            .await
    }

    async fn list_components(
        &self,
        request: Request<wire::ListComponentsRequest>,
    ) -> Result<Response<wire::ListComponentResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let app_id = app_id(&extensions, &request.namespace)?;
        self.list(&self.copies.components, &request.namespace, Some(&app_id))
            .await
    }

    async fn get_configuration(
        &self,
        request: Request<wire::GetConfigurationRequest>,
    ) -> Result<Response<wire::GetConfigurationResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        app_id(&extensions, &request.namespace)?;
        let not_before = NotBefore::call();
        let configuration = match self.configuration(&request.namespace, &request.name).await? {
            Some(found) => self.manifest(&request.namespace, &found, not_before).await?,
            // An empty response means that there is none.
            None => Bytes::new(),
        };
        Ok(Response::new(wire::GetConfigurationResponse { configuration }))
    }

    /// The request names no namespace, so no caller is authorized.
    async fn list_subscriptions(
        &self,
        request: Request<()>,
    ) -> Result<Response<wire::ListSubscriptionsResponse>, Status> {
        app_id(request.extensions(), "")?;
        Ok(Response::new(wire::ListSubscriptionsResponse::default()))
    }

    async fn get_resiliency(
        &self,
        request: Request<wire::GetResiliencyRequest>,
    ) -> Result<Response<wire::GetResiliencyResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        app_id(&extensions, &request.namespace)?;
        let found = self
            .copies
            .resiliencies
            .known()
            .await?
            .get(&request.namespace, &request.name);
        let found = found.ok_or_else(|| {
            Status::not_found(format!(
                "error getting resiliency: {}/{} does not exist",
                request.namespace, request.name
            ))
        })?;
        let resiliency = found.manifest.clone();
        Ok(Response::new(wire::GetResiliencyResponse { resiliency }))
    }

    async fn list_resiliency(
        &self,
        request: Request<wire::ListResiliencyRequest>,
    ) -> Result<Response<wire::ListResiliencyResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        app_id(&extensions, &request.namespace)?;
        self.list(&self.copies.resiliencies, &request.namespace, None)
            .await
    }

    async fn list_subscriptions_v2(
        &self,
        request: Request<wire::ListSubscriptionsRequest>,
    ) -> Result<Response<wire::ListSubscriptionsResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        app_id(&extensions, &request.namespace)?;
        self.list(&self.copies.subscriptions, &request.namespace, None)
            .await
    }

    async fn subscription_update(
        &self,
        request: Request<wire::SubscriptionUpdateRequest>,
    ) -> Result<Response<Updates<wire::SubscriptionUpdateEvent>>, Status> {
        let (_, extensions, request) = request.into_parts();
        app_id(&extensions, &request.namespace)?;
        let event = |update: Update| wire::SubscriptionUpdateEvent {
            subscription: update.manifest,
            r#type: update.event.into(),
        };
        self.follow(&self.copies.subscriptions, request.namespace, every(), event)
            .await
    }

    async fn list_http_endpoints(
        &self,
        request: Request<wire::ListHttpEndpointsRequest>,
    ) -> Result<Response<wire::ListHttpEndpointsResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let app_id = app_id(&extensions, &request.namespace)?;
        self.list(&self.copies.endpoints, &request.namespace, Some(&app_id))
            .await
    }

    async fn http_endpoint_update(
        &self,
        request: Request<wire::HttpEndpointUpdateRequest>,
    ) -> Result<Response<Updates<wire::HttpEndpointUpdateEvent>>, Status> {
        let (_, extensions, request) = request.into_parts();
        let app_id = app_id(&extensions, &request.namespace)?;
        let event = |update: Update| wire::HttpEndpointUpdateEvent {
            http_endpoints: update.manifest,
            r#type: update.event.into(),
        };
        self.follow(&self.copies.endpoints, request.namespace, scoped(app_id), event)
            .await
    }

    /// Empty if the API refuses to list MCP servers.
    async fn list_mcp_servers(
        &self,
        request: Request<wire::ListMcpServersRequest>,
    ) -> Result<Response<wire::ListMcpServersResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let app_id = app_id(&extensions, &request.namespace)?;
        match self.copies.mcp_servers.if_listed().await? {
            None => Ok(Response::new(wire::ListMcpServersResponse::default())),
            Some(_) => {
                self.list(&self.copies.mcp_servers, &request.namespace, Some(&app_id))
                    .await
            }
        }
    }

    async fn mcp_server_update(
        &self,
        request: Request<wire::McpServerUpdateRequest>,
    ) -> Result<Response<Updates<wire::McpServerUpdateEvent>>, Status> {
        let (_, extensions, request) = request.into_parts();
        let app_id = app_id(&extensions, &request.namespace)?;
        let event = |update: Update| wire::McpServerUpdateEvent {
            mcp_server: update.manifest,
            r#type: update.event.into(),
        };
        self.follow(&self.copies.mcp_servers, request.namespace, scoped(app_id), event)
            .await
    }

    async fn resiliency_update(
        &self,
        request: Request<wire::ResiliencyUpdateRequest>,
    ) -> Result<Response<Updates<wire::ResiliencyUpdateEvent>>, Status> {
        let (_, extensions, request) = request.into_parts();
        app_id(&extensions, &request.namespace)?;
        let event = |update: Update| wire::ResiliencyUpdateEvent {
            resiliency: update.manifest,
            r#type: update.event.into(),
        };
        self.follow(&self.copies.resiliencies, request.namespace, every(), event)
            .await
    }

    async fn list_workflow_access_policy(
        &self,
        request: Request<wire::ListWorkflowAccessPolicyRequest>,
    ) -> Result<Response<wire::ListWorkflowAccessPolicyResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        app_id(&extensions, &request.namespace)?;
        self.list(&self.copies.workflow_access_policies, &request.namespace, None)
            .await
    }

    async fn workflow_access_policy_update(
        &self,
        request: Request<wire::WorkflowAccessPolicyUpdateRequest>,
    ) -> Result<Response<Updates<wire::WorkflowAccessPolicyUpdateEvent>>, Status> {
        let (_, extensions, request) = request.into_parts();
        let app_id = app_id(&extensions, &request.namespace)?;
        let event = |update: Update| wire::WorkflowAccessPolicyUpdateEvent {
            policy: update.manifest,
            r#type: update.event.into(),
        };
        let concerns = scoped(app_id);
        let policies = &self.copies.workflow_access_policies;
        self.follow(policies, request.namespace, concerns, event).await
    }

    /// Reports the Configurations that pods of the caller name; all, if the API refuses to list pods.
    async fn configuration_update(
        &self,
        request: Request<wire::ConfigurationUpdateRequest>,
    ) -> Result<Response<Updates<wire::ConfigurationUpdateEvent>>, Status> {
        let (_, extensions, request) = request.into_parts();
        let app_id = app_id(&extensions, &request.namespace)?;
        let concerns: Concerns<Configuration> = match self.copies.pods.if_listed().await? {
            None => every(),
            Some(_) => {
                let pods = self.copies.pods.store();
                Box::new(move |meta, _| {
                    let uses = |pod: &Meta, app: &AppPod| {
                        pod.namespace == meta.namespace && app.uses(&app_id, &meta.name)
                    };
                    pods.find(uses).is_some()
                })
            }
        };
        let event = |update: Update| wire::ConfigurationUpdateEvent {
            configuration: update.manifest,
            r#type: update.event.into(),
        };
        self.follow(&self.copies.configurations, request.namespace, concerns, event)
            .await
    }
}

/// The resources without scopes and those in the app's scope, which may hold secrets.
fn scoped<K: ResourceKind>(app_id: String) -> Concerns<K> {
    Box::new(move |_, resource| resource.is_for(&app_id))
}

/// All resources of the namespace concern the caller.
fn every<K: ResourceKind>() -> Concerns<K> {
    Box::new(|_, _| true)
}
