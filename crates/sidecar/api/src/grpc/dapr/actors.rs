//! Actors over gRPC.

use bytes::Bytes;
use http::HeaderValue;
use outrigger_blocks::state::StateError;
use outrigger_blocks_actors::actors::{
    API_CALL, ActorCall, ActorError, Caller, StateOperation, StateStep, TimerRequest,
};
use outrigger_component::state::Value;
use outrigger_policy::path::canonical;
use outrigger_transport::headers::{grpc_to_internal, strip_identities};
use outrigger_wire::runtime::v1::{
    ExecuteActorStateTransactionRequest, GetActorStateRequest, GetActorStateResponse, InvokeActorRequest,
    InvokeActorResponse, RegisterActorTimerRequest, UnregisterActorTimerRequest,
};
use tonic::{Request, Response, Status};

use super::super::CurrentSpan;
use super::DaprService;
use crate::error::{ApiError, actor_status};
use crate::grpc::groups::Group;

/// Method groups, as API lists name them.
pub(super) const GROUPS: &[Group] = &[
    Group::of(
        "actors",
        "v1",
        &[
            "RegisterActorTimer",
            "UnregisterActorTimer",
            "RegisterActorReminder",
            "GetActorReminder",
            "UnregisterActorReminder",
            "UnregisterActorRemindersByType",
            "ListActorReminders",
            "GetActorState",
            "ExecuteActorStateTransaction",
            "InvokeActor",
        ],
    ),
    Group::of("actors", "v1alpha1", &["SubscribeActorEventsAlpha1"]),
];

impl DaprService {
    pub(super) async fn actor_invoke(
        &self,
        request: Request<InvokeActorRequest>,
    ) -> Result<Response<InvokeActorResponse>, Status> {
        let trace = request
            .extensions()
            .get::<CurrentSpan>()
            .map(|s| s.0.clone())
            .unwrap_or_default();
        let (metadata, _, message) = request.into_parts();
        let method = canonical(&message.method)
            .map_err(|error| {
                let text = format!("invalid actor method: {error}");
                self.fail(&ApiError::bad_request(text))
            })?
            .into_owned();
        let mut metadata = grpc_to_internal(metadata.into_headers());
        metadata.remove(http::header::CONTENT_TYPE);
        for (name, value) in &message.metadata {
            let name = http::HeaderName::try_from(name.as_str());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value.as_str())) {
                metadata.insert(name, value);
            }
        }
        strip_identities(&mut metadata);
        metadata.insert(API_CALL, HeaderValue::from_static("true"));
        let content_type = metadata.get(http::header::CONTENT_TYPE).cloned();
        // As in Dapr, half a name counts as none.
        let named = !message.actor_type.is_empty() && !message.actor_id.is_empty();
        let name = named.then_some((message.actor_type, message.actor_id));
        let (kind, id) = name.unwrap_or_default();
        let call = ActorCall {
            kind,
            id,
            method,
            query: String::new(),
            content_type,
            metadata,
            from_grpc: true,
            body: message.data,
            trace,
            caller: Caller::Own,
        };
        let reply = self.actors.invoke(&call).await;
        let reply = reply.map_err(|error| self.actor_failed(error))?;
        let data = reply.body.collect_up_to(self.max_message).await;
        let data = data.map_err(|error| outrigger_transport::grpc::body_status(&error))?;
        Ok(Response::new(InvokeActorResponse { data }))
    }

    pub(super) async fn actor_state(
        &self,
        request: GetActorStateRequest,
    ) -> Result<Response<GetActorStateResponse>, Status> {
        let GetActorStateRequest {
            actor_type,
            actor_id,
            key,
        } = request;
        let item = self.actors.read_state(&actor_type, &actor_id, &key).await;
        let item = item.map_err(|error| self.actor_failed(error))?;
        let item = item.unwrap_or_default();
        Ok(Response::new(GetActorStateResponse {
            data: item.data,
            metadata: item.metadata,
        }))
    }

    pub(super) async fn actor_transaction(
        &self,
        request: ExecuteActorStateTransactionRequest,
    ) -> Result<Response<()>, Status> {
        let operations = request.operations.into_iter().map(|operation| {
            let step = match operation.operation_type.as_str() {
                "upsert" => {
                    let value = operation.value.unwrap_or_default().value;
                    StateStep::Upsert(Value::Bytes(Bytes::from(value)))
                }
                "delete" => StateStep::Delete,
                // Over HTTP this is checked later and is another error.
                other => {
                    let unknown = StateError::UnknownOperation(other.to_owned());
                    return Err(self.fail(&ApiError::state(unknown, None)));
                }
            };
            Ok(StateOperation {
                step,
                key: operation.key,
                etag: None,
                only_new: false,
                metadata: operation.metadata,
            })
        });
        let (kind, id) = (&request.actor_type, &request.actor_id);
        let operations = operations.collect::<Result<_, _>>()?;
        let changed = self.actors.change_state(kind, id, operations).await;
        changed.map_err(|error| self.actor_failed(error))?;
        Ok(Response::new(()))
    }

    pub(super) async fn actor_timer(
        &self,
        request: RegisterActorTimerRequest,
    ) -> Result<Response<()>, Status> {
        let request = TimerRequest {
            kind: request.actor_type,
            id: request.actor_id,
            name: request.name,
            due_time: request.due_time,
            period: request.period,
            ttl: request.ttl,
            callback: request.callback,
            data: json_bytes(&request.data),
        };
        let registered = self.actors.register_timer(request).await;
        registered.map_err(|error| self.actor_failed(error))?;
        Ok(Response::new(()))
    }

    pub(super) async fn actor_no_timer(
        &self,
        request: UnregisterActorTimerRequest,
    ) -> Result<Response<()>, Status> {
        let UnregisterActorTimerRequest {
            actor_type,
            actor_id,
            name,
        } = request;
        let ended = self.actors.unregister_timer(&actor_type, &actor_id, &name).await;
        ended.map_err(|error| self.actor_failed(error))?;
        Ok(Response::new(()))
    }

    /// Counts an error. Statuses of other sidecars are forwarded unchanged.
    pub(super) fn actor_failed(&self, error: ActorError) -> Status {
        let peers = actor_status(&error);
        let own = self.fail(&error.into());
        peers.unwrap_or(own)
    }
}

/// Bytes as a JSON string in base64; no bytes stay empty.
pub(super) fn json_bytes(data: &[u8]) -> Vec<u8> {
    if data.is_empty() {
        return Vec::new();
    }
    format!("\"{}\"", outrigger_protojson::bytes(data)).into_bytes()
}
