//! `dapr.proto.runtime.v1.Dapr`.

mod actor_stream;
mod actors;
mod bindings;
mod configuration;
mod conversation;
mod crypto;
mod invoke;
mod jobs;
mod lock;
mod publish;
mod reminders;
mod secrets;
mod state;
mod subscriptions;
mod subtle;
mod workflow;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use outrigger_blocks::Blocks;
use outrigger_blocks::invoke::Invoker;
use outrigger_blocks_actors::actors::Actors;
use outrigger_blocks_actors::workflow::Workflows;
use outrigger_runtime::life::Shutdown;
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_wire::common::v1::InvokeResponse;
use outrigger_wire::runtime::v1::dapr_server::Dapr;
use outrigger_wire::runtime::v1::{
    BulkPublishRequest, BulkPublishResponse, ConversationRequest, ConversationRequestAlpha2,
    ConversationResponse, ConversationResponseAlpha2, DecryptRequest, DecryptResponse,
    DeleteBulkStateRequest, DeleteJobRequest, DeleteJobResponse, DeleteJobsByPrefixRequest,
    DeleteJobsByPrefixRequestAlpha1, DeleteJobsByPrefixResponse, DeleteJobsByPrefixResponseAlpha1,
    DeleteStateRequest, EncryptRequest, EncryptResponse, ExecuteActorStateTransactionRequest,
    ExecuteStateTransactionRequest, GetActorReminderRequest, GetActorReminderResponse, GetActorStateRequest,
    GetActorStateResponse, GetBulkSecretRequest, GetBulkSecretResponse, GetBulkStateRequest,
    GetBulkStateResponse, GetConfigurationRequest, GetConfigurationResponse, GetJobRequest, GetJobResponse,
    GetMetadataRequest, GetMetadataResponse, GetSecretRequest, GetSecretResponse, GetStateRequest,
    GetStateResponse, GetWorkflowRequest, GetWorkflowResponse, InvokeActorRequest, InvokeActorResponse,
    InvokeBindingRequest, InvokeBindingResponse, InvokeServiceRequest, ListActorRemindersRequest,
    ListActorRemindersResponse, ListJobsRequest, ListJobsRequestAlpha1, ListJobsResponse,
    ListJobsResponseAlpha1, PauseWorkflowRequest, PublishEventRequest, PurgeWorkflowRequest,
    QueryStateRequest, QueryStateResponse, RaiseEventWorkflowRequest, RegisterActorReminderRequest,
    RegisterActorTimerRequest, ResumeWorkflowRequest, SaveStateRequest, ScheduleJobRequest,
    ScheduleJobResponse, SetMetadataRequest, ShutdownRequest, StartWorkflowRequest, StartWorkflowResponse,
    SubscribeActorEventsRequestAlpha1, SubscribeActorEventsResponseAlpha1, SubscribeConfigurationRequest,
    SubscribeConfigurationResponse, SubscribeTopicEventsRequestAlpha1, SubscribeTopicEventsResponseAlpha1,
    SubtleDecryptRequest, SubtleDecryptResponse, SubtleEncryptRequest, SubtleEncryptResponse,
    SubtleGetKeyRequest, SubtleGetKeyResponse, SubtleSignRequest, SubtleSignResponse, SubtleUnwrapKeyRequest,
    SubtleUnwrapKeyResponse, SubtleVerifyRequest, SubtleVerifyResponse, SubtleWrapKeyRequest,
    SubtleWrapKeyResponse, TerminateWorkflowRequest, TryLockRequest, TryLockResponse, UnlockRequest,
    UnlockResponse, UnregisterActorReminderRequest, UnregisterActorRemindersByTypeRequest,
    UnregisterActorRemindersByTypeResponse, UnregisterActorTimerRequest, UnsubscribeConfigurationRequest,
    UnsubscribeConfigurationResponse,
};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use super::CurrentSpan;
use super::boxed::boxed_methods;
use super::groups::Group;
use crate::error::ApiError;
use crate::metadata::Metadata;

/// The groups of methods of each block.
pub(super) const ALL: &[&[Group]] = &[
    actors::GROUPS,
    bindings::GROUPS,
    configuration::GROUPS,
    conversation::GROUPS,
    crypto::GROUPS,
    invoke::GROUPS,
    jobs::GROUPS,
    lock::GROUPS,
    publish::GROUPS,
    secrets::GROUPS,
    state::GROUPS,
    subscriptions::GROUPS,
    subtle::GROUPS,
    workflow::GROUPS,
];

/// Methods that belong to no block, as API lists name them.
pub(super) const OWN: &[Group] = &[
    Group::of("metadata", "v1", &["GetMetadata", "SetMetadata"]),
    Group::of("shutdown", "v1", &["Shutdown"]),
];

/// The service. Methods that are not supported return `Unimplemented`.
pub struct DaprService {
    /// Service invocation.
    pub invoker: Arc<Invoker>,
    /// All building blocks except invocation.
    pub blocks: Blocks,
    /// Actor calls, state, reminders and timers.
    pub actors: Arc<Actors>,
    /// Starts, ends and queries workflow instances.
    pub workflows: Arc<Workflows>,
    /// The metadata block.
    pub metadata: Arc<Metadata>,
    /// Ends the process.
    pub shutdown: Shutdown,
    /// Counts errors.
    pub metrics: Arc<SidecarMetrics>,
    /// Largest message, bytes.
    pub max_message: usize,
    /// Whether the deprecation of InvokeService was logged.
    pub warned: AtomicBool,
}

boxed_methods! {
    impl Dapr for DaprService {
        invoke_service(Request<InvokeServiceRequest>) -> Response<InvokeResponse>;
        get_state(Request<GetStateRequest>) -> Response<GetStateResponse>;
        get_bulk_state(Request<GetBulkStateRequest>) -> Response<GetBulkStateResponse>;
        save_state(Request<SaveStateRequest>) -> Response<()>;
        delete_state(Request<DeleteStateRequest>) -> Response<()>;
        delete_bulk_state(Request<DeleteBulkStateRequest>) -> Response<()>;
        execute_state_transaction(Request<ExecuteStateTransactionRequest>) -> Response<()>;
        query_state_alpha1(Request<QueryStateRequest>) -> Response<QueryStateResponse>;
        get_secret(Request<GetSecretRequest>) -> Response<GetSecretResponse>;
        get_bulk_secret(Request<GetBulkSecretRequest>) -> Response<GetBulkSecretResponse>;
        get_configuration_alpha1(Request<GetConfigurationRequest>) -> Response<GetConfigurationResponse>;
        get_configuration(Request<GetConfigurationRequest>) -> Response<GetConfigurationResponse>;
        subscribe_configuration_alpha1(Request<SubscribeConfigurationRequest>) -> Response<BoxStream<SubscribeConfigurationResponse>>;
        subscribe_configuration(Request<SubscribeConfigurationRequest>) -> Response<BoxStream<SubscribeConfigurationResponse>>;
        unsubscribe_configuration_alpha1(Request<UnsubscribeConfigurationRequest>) -> Response<UnsubscribeConfigurationResponse>;
        unsubscribe_configuration(Request<UnsubscribeConfigurationRequest>) -> Response<UnsubscribeConfigurationResponse>;
        subscribe_topic_events_alpha1(Request<Streaming<SubscribeTopicEventsRequestAlpha1>>) -> Response<BoxStream<SubscribeTopicEventsResponseAlpha1>>;
        subscribe_actor_events_alpha1(Request<Streaming<SubscribeActorEventsRequestAlpha1>>) -> Response<BoxStream<SubscribeActorEventsResponseAlpha1>>;
        try_lock_alpha1(Request<TryLockRequest>) -> Response<TryLockResponse>;
        unlock_alpha1(Request<UnlockRequest>) -> Response<UnlockResponse>;
        invoke_binding(Request<InvokeBindingRequest>) -> Response<InvokeBindingResponse>;
        publish_event(Request<PublishEventRequest>) -> Response<()>;
        bulk_publish_event(Request<BulkPublishRequest>) -> Response<BulkPublishResponse>;
        bulk_publish_event_alpha1(Request<BulkPublishRequest>) -> Response<BulkPublishResponse>;
        schedule_job(Request<ScheduleJobRequest>) -> Response<ScheduleJobResponse>;
        get_job(Request<GetJobRequest>) -> Response<GetJobResponse>;
        delete_job(Request<DeleteJobRequest>) -> Response<DeleteJobResponse>;
        delete_jobs_by_prefix(Request<DeleteJobsByPrefixRequest>) -> Response<DeleteJobsByPrefixResponse>;
        list_jobs(Request<ListJobsRequest>) -> Response<ListJobsResponse>;
        schedule_job_alpha1(Request<ScheduleJobRequest>) -> Response<ScheduleJobResponse>;
        get_job_alpha1(Request<GetJobRequest>) -> Response<GetJobResponse>;
        delete_job_alpha1(Request<DeleteJobRequest>) -> Response<DeleteJobResponse>;
        delete_jobs_by_prefix_alpha1(Request<DeleteJobsByPrefixRequestAlpha1>) -> Response<DeleteJobsByPrefixResponseAlpha1>;
        list_jobs_alpha1(Request<ListJobsRequestAlpha1>) -> Response<ListJobsResponseAlpha1>;
        encrypt_alpha1(Request<Streaming<EncryptRequest>>) -> Response<BoxStream<EncryptResponse>>;
        decrypt_alpha1(Request<Streaming<DecryptRequest>>) -> Response<BoxStream<DecryptResponse>>;
        subtle_get_key_alpha1(Request<SubtleGetKeyRequest>) -> Response<SubtleGetKeyResponse>;
        subtle_encrypt_alpha1(Request<SubtleEncryptRequest>) -> Response<SubtleEncryptResponse>;
        subtle_decrypt_alpha1(Request<SubtleDecryptRequest>) -> Response<SubtleDecryptResponse>;
        subtle_wrap_key_alpha1(Request<SubtleWrapKeyRequest>) -> Response<SubtleWrapKeyResponse>;
        subtle_unwrap_key_alpha1(Request<SubtleUnwrapKeyRequest>) -> Response<SubtleUnwrapKeyResponse>;
        subtle_sign_alpha1(Request<SubtleSignRequest>) -> Response<SubtleSignResponse>;
        subtle_verify_alpha1(Request<SubtleVerifyRequest>) -> Response<SubtleVerifyResponse>;
        converse_alpha1(Request<ConversationRequest>) -> Response<ConversationResponse>;
        converse_alpha2(Request<ConversationRequestAlpha2>) -> Response<ConversationResponseAlpha2>;
        invoke_actor(Request<InvokeActorRequest>) -> Response<InvokeActorResponse>;
        get_actor_state(Request<GetActorStateRequest>) -> Response<GetActorStateResponse>;
        execute_actor_state_transaction(Request<ExecuteActorStateTransactionRequest>) -> Response<()>;
        register_actor_timer(Request<RegisterActorTimerRequest>) -> Response<()>;
        unregister_actor_timer(Request<UnregisterActorTimerRequest>) -> Response<()>;
        register_actor_reminder(Request<RegisterActorReminderRequest>) -> Response<()>;
        unregister_actor_reminder(Request<UnregisterActorReminderRequest>) -> Response<()>;
        unregister_actor_reminders_by_type(Request<UnregisterActorRemindersByTypeRequest>) -> Response<UnregisterActorRemindersByTypeResponse>;
        list_actor_reminders(Request<ListActorRemindersRequest>) -> Response<ListActorRemindersResponse>;
        get_actor_reminder(Request<GetActorReminderRequest>) -> Response<GetActorReminderResponse>;
        get_metadata(Request<GetMetadataRequest>) -> Response<GetMetadataResponse>;
        set_metadata(Request<SetMetadataRequest>) -> Response<()>;
        start_workflow_alpha1(Request<StartWorkflowRequest>) -> Response<StartWorkflowResponse>;
        get_workflow_alpha1(Request<GetWorkflowRequest>) -> Response<GetWorkflowResponse>;
        raise_event_workflow_alpha1(Request<RaiseEventWorkflowRequest>) -> Response<()>;
        purge_workflow_alpha1(Request<PurgeWorkflowRequest>) -> Response<()>;
        terminate_workflow_alpha1(Request<TerminateWorkflowRequest>) -> Response<()>;
        pause_workflow_alpha1(Request<PauseWorkflowRequest>) -> Response<()>;
        resume_workflow_alpha1(Request<ResumeWorkflowRequest>) -> Response<()>;
        start_workflow_beta1(Request<StartWorkflowRequest>) -> Response<StartWorkflowResponse>;
        get_workflow_beta1(Request<GetWorkflowRequest>) -> Response<GetWorkflowResponse>;
        raise_event_workflow_beta1(Request<RaiseEventWorkflowRequest>) -> Response<()>;
        purge_workflow_beta1(Request<PurgeWorkflowRequest>) -> Response<()>;
        terminate_workflow_beta1(Request<TerminateWorkflowRequest>) -> Response<()>;
        pause_workflow_beta1(Request<PauseWorkflowRequest>) -> Response<()>;
        resume_workflow_beta1(Request<ResumeWorkflowRequest>) -> Response<()>;
        shutdown(Request<ShutdownRequest>) -> Response<()>;
    }
}

impl DaprService {
    async fn invoke_service(
        &self,
        request: Request<InvokeServiceRequest>,
    ) -> Result<Response<InvokeResponse>, Status> {
        self.service_invoke(request).await
    }

    async fn get_state(
        &self,
        request: Request<GetStateRequest>,
    ) -> Result<Response<GetStateResponse>, Status> {
        self.state_get(request).await
    }

    async fn get_bulk_state(
        &self,
        request: Request<GetBulkStateRequest>,
    ) -> Result<Response<GetBulkStateResponse>, Status> {
        self.state_bulk_get(request.into_inner()).await
    }

    async fn save_state(&self, request: Request<SaveStateRequest>) -> Result<Response<()>, Status> {
        self.state_save(request).await
    }

    async fn delete_state(&self, request: Request<DeleteStateRequest>) -> Result<Response<()>, Status> {
        self.state_delete(request).await
    }

    async fn delete_bulk_state(
        &self,
        request: Request<DeleteBulkStateRequest>,
    ) -> Result<Response<()>, Status> {
        self.state_bulk_delete(request.into_inner()).await
    }

    async fn execute_state_transaction(
        &self,
        request: Request<ExecuteStateTransactionRequest>,
    ) -> Result<Response<()>, Status> {
        self.state_transact(request).await
    }

    async fn query_state_alpha1(
        &self,
        request: Request<QueryStateRequest>,
    ) -> Result<Response<QueryStateResponse>, Status> {
        self.state_query(request.into_inner()).await
    }

    async fn get_secret(
        &self,
        request: Request<GetSecretRequest>,
    ) -> Result<Response<GetSecretResponse>, Status> {
        self.secret_get(request).await
    }

    async fn get_bulk_secret(
        &self,
        request: Request<GetBulkSecretRequest>,
    ) -> Result<Response<GetBulkSecretResponse>, Status> {
        self.secret_bulk_get(request.into_inner()).await
    }

    async fn get_configuration_alpha1(
        &self,
        request: Request<GetConfigurationRequest>,
    ) -> Result<Response<GetConfigurationResponse>, Status> {
        self.configuration_get(request.into_inner()).await
    }

    async fn get_configuration(
        &self,
        request: Request<GetConfigurationRequest>,
    ) -> Result<Response<GetConfigurationResponse>, Status> {
        self.configuration_get(request.into_inner()).await
    }

    async fn subscribe_configuration_alpha1(
        &self,
        request: Request<SubscribeConfigurationRequest>,
    ) -> Result<Response<BoxStream<SubscribeConfigurationResponse>>, Status> {
        self.configuration_subscribe(request.into_inner()).await
    }

    async fn subscribe_configuration(
        &self,
        request: Request<SubscribeConfigurationRequest>,
    ) -> Result<Response<BoxStream<SubscribeConfigurationResponse>>, Status> {
        self.configuration_subscribe(request.into_inner()).await
    }

    async fn unsubscribe_configuration_alpha1(
        &self,
        request: Request<UnsubscribeConfigurationRequest>,
    ) -> Result<Response<UnsubscribeConfigurationResponse>, Status> {
        Ok(self.configuration_unsubscribe(request.get_ref()).await)
    }

    async fn unsubscribe_configuration(
        &self,
        request: Request<UnsubscribeConfigurationRequest>,
    ) -> Result<Response<UnsubscribeConfigurationResponse>, Status> {
        Ok(self.configuration_unsubscribe(request.get_ref()).await)
    }

    async fn subscribe_topic_events_alpha1(
        &self,
        request: Request<Streaming<SubscribeTopicEventsRequestAlpha1>>,
    ) -> Result<Response<BoxStream<SubscribeTopicEventsResponseAlpha1>>, Status> {
        self.topic_events(request.into_inner()).await
    }

    async fn subscribe_actor_events_alpha1(
        &self,
        request: Request<Streaming<SubscribeActorEventsRequestAlpha1>>,
    ) -> Result<Response<BoxStream<SubscribeActorEventsResponseAlpha1>>, Status> {
        self.actor_events(request.into_inner()).await
    }

    async fn try_lock_alpha1(
        &self,
        request: Request<TryLockRequest>,
    ) -> Result<Response<TryLockResponse>, Status> {
        self.lock_try(request.get_ref()).await
    }

    async fn unlock_alpha1(
        &self,
        request: Request<UnlockRequest>,
    ) -> Result<Response<UnlockResponse>, Status> {
        self.lock_unlock(request.get_ref()).await
    }

    async fn invoke_binding(
        &self,
        request: Request<InvokeBindingRequest>,
    ) -> Result<Response<InvokeBindingResponse>, Status> {
        self.binding_invoke(request).await
    }

    async fn publish_event(&self, request: Request<PublishEventRequest>) -> Result<Response<()>, Status> {
        self.event_publish(request).await
    }

    async fn bulk_publish_event(
        &self,
        request: Request<BulkPublishRequest>,
    ) -> Result<Response<BulkPublishResponse>, Status> {
        self.event_publish_bulk(request, "/dapr.proto.runtime.v1.Dapr/BulkPublishEvent/")
            .await
    }

    async fn bulk_publish_event_alpha1(
        &self,
        request: Request<BulkPublishRequest>,
    ) -> Result<Response<BulkPublishResponse>, Status> {
        self.event_publish_bulk(request, "/dapr.proto.runtime.v1.Dapr/BulkPublishEventAlpha1/")
            .await
    }

    async fn schedule_job(
        &self,
        request: Request<ScheduleJobRequest>,
    ) -> Result<Response<ScheduleJobResponse>, Status> {
        self.job_schedule(request.into_inner()).await
    }

    async fn get_job(&self, request: Request<GetJobRequest>) -> Result<Response<GetJobResponse>, Status> {
        self.job_get(request.into_inner()).await
    }

    async fn delete_job(
        &self,
        request: Request<DeleteJobRequest>,
    ) -> Result<Response<DeleteJobResponse>, Status> {
        self.job_delete(request.get_ref()).await
    }

    async fn delete_jobs_by_prefix(
        &self,
        request: Request<DeleteJobsByPrefixRequest>,
    ) -> Result<Response<DeleteJobsByPrefixResponse>, Status> {
        self.job_delete_prefix(request.get_ref().name_prefix()).await?;
        Ok(Response::new(DeleteJobsByPrefixResponse {}))
    }

    async fn list_jobs(
        &self,
        _request: Request<ListJobsRequest>,
    ) -> Result<Response<ListJobsResponse>, Status> {
        let jobs = self.job_list().await?;
        Ok(Response::new(ListJobsResponse { jobs }))
    }

    async fn schedule_job_alpha1(
        &self,
        request: Request<ScheduleJobRequest>,
    ) -> Result<Response<ScheduleJobResponse>, Status> {
        self.job_schedule(request.into_inner()).await
    }

    async fn get_job_alpha1(
        &self,
        request: Request<GetJobRequest>,
    ) -> Result<Response<GetJobResponse>, Status> {
        self.job_get(request.into_inner()).await
    }

    async fn delete_job_alpha1(
        &self,
        request: Request<DeleteJobRequest>,
    ) -> Result<Response<DeleteJobResponse>, Status> {
        self.job_delete(request.get_ref()).await
    }

    async fn delete_jobs_by_prefix_alpha1(
        &self,
        request: Request<DeleteJobsByPrefixRequestAlpha1>,
    ) -> Result<Response<DeleteJobsByPrefixResponseAlpha1>, Status> {
        self.job_delete_prefix(request.get_ref().name_prefix()).await?;
        Ok(Response::new(DeleteJobsByPrefixResponseAlpha1 {}))
    }

    async fn list_jobs_alpha1(
        &self,
        _request: Request<ListJobsRequestAlpha1>,
    ) -> Result<Response<ListJobsResponseAlpha1>, Status> {
        let jobs = self.job_list().await?;
        Ok(Response::new(ListJobsResponseAlpha1 { jobs }))
    }

    async fn encrypt_alpha1(
        &self,
        request: Request<Streaming<EncryptRequest>>,
    ) -> Result<Response<BoxStream<EncryptResponse>>, Status> {
        self.crypto_encrypt(request.into_inner()).await
    }

    async fn decrypt_alpha1(
        &self,
        request: Request<Streaming<DecryptRequest>>,
    ) -> Result<Response<BoxStream<DecryptResponse>>, Status> {
        self.crypto_decrypt(request.into_inner()).await
    }

    async fn subtle_get_key_alpha1(
        &self,
        request: Request<SubtleGetKeyRequest>,
    ) -> Result<Response<SubtleGetKeyResponse>, Status> {
        self.subtle_get_key(request.into_inner()).await
    }

    async fn subtle_encrypt_alpha1(
        &self,
        request: Request<SubtleEncryptRequest>,
    ) -> Result<Response<SubtleEncryptResponse>, Status> {
        self.subtle_encrypt(request.into_inner()).await
    }

    async fn subtle_decrypt_alpha1(
        &self,
        request: Request<SubtleDecryptRequest>,
    ) -> Result<Response<SubtleDecryptResponse>, Status> {
        self.subtle_decrypt(request.into_inner()).await
    }

    async fn subtle_wrap_key_alpha1(
        &self,
        request: Request<SubtleWrapKeyRequest>,
    ) -> Result<Response<SubtleWrapKeyResponse>, Status> {
        self.subtle_wrap_key(request.into_inner()).await
    }

    async fn subtle_unwrap_key_alpha1(
        &self,
        request: Request<SubtleUnwrapKeyRequest>,
    ) -> Result<Response<SubtleUnwrapKeyResponse>, Status> {
        self.subtle_unwrap_key(request.into_inner()).await
    }

    async fn subtle_sign_alpha1(
        &self,
        request: Request<SubtleSignRequest>,
    ) -> Result<Response<SubtleSignResponse>, Status> {
        self.subtle_sign(request.into_inner()).await
    }

    async fn subtle_verify_alpha1(
        &self,
        request: Request<SubtleVerifyRequest>,
    ) -> Result<Response<SubtleVerifyResponse>, Status> {
        self.subtle_verify(request.into_inner()).await
    }

    async fn converse_alpha1(
        &self,
        request: Request<ConversationRequest>,
    ) -> Result<Response<ConversationResponse>, Status> {
        self.conversation_alpha1(request).await
    }

    async fn converse_alpha2(
        &self,
        request: Request<ConversationRequestAlpha2>,
    ) -> Result<Response<ConversationResponseAlpha2>, Status> {
        self.conversation_alpha2(request).await
    }

    async fn invoke_actor(
        &self,
        request: Request<InvokeActorRequest>,
    ) -> Result<Response<InvokeActorResponse>, Status> {
        self.actor_invoke(request).await
    }

    async fn get_actor_state(
        &self,
        request: Request<GetActorStateRequest>,
    ) -> Result<Response<GetActorStateResponse>, Status> {
        self.actor_state(request.into_inner()).await
    }

    async fn execute_actor_state_transaction(
        &self,
        request: Request<ExecuteActorStateTransactionRequest>,
    ) -> Result<Response<()>, Status> {
        self.actor_transaction(request.into_inner()).await
    }

    async fn register_actor_timer(
        &self,
        request: Request<RegisterActorTimerRequest>,
    ) -> Result<Response<()>, Status> {
        self.actor_timer(request.into_inner()).await
    }

    async fn unregister_actor_timer(
        &self,
        request: Request<UnregisterActorTimerRequest>,
    ) -> Result<Response<()>, Status> {
        self.actor_no_timer(request.into_inner()).await
    }

    async fn register_actor_reminder(
        &self,
        request: Request<RegisterActorReminderRequest>,
    ) -> Result<Response<()>, Status> {
        self.reminder_register(request.into_inner()).await
    }

    async fn unregister_actor_reminder(
        &self,
        request: Request<UnregisterActorReminderRequest>,
    ) -> Result<Response<()>, Status> {
        self.reminder_unregister(request.into_inner()).await
    }

    async fn unregister_actor_reminders_by_type(
        &self,
        request: Request<UnregisterActorRemindersByTypeRequest>,
    ) -> Result<Response<UnregisterActorRemindersByTypeResponse>, Status> {
        self.reminders_unregister(request.into_inner()).await
    }

    async fn list_actor_reminders(
        &self,
        request: Request<ListActorRemindersRequest>,
    ) -> Result<Response<ListActorRemindersResponse>, Status> {
        self.reminders_list(request.into_inner()).await
    }

    async fn get_actor_reminder(
        &self,
        request: Request<GetActorReminderRequest>,
    ) -> Result<Response<GetActorReminderResponse>, Status> {
        self.reminder_get(request.into_inner()).await
    }

    async fn get_metadata(
        &self,
        _request: Request<GetMetadataRequest>,
    ) -> Result<Response<GetMetadataResponse>, Status> {
        Ok(Response::new(self.metadata.message()))
    }

    async fn set_metadata(&self, request: Request<SetMetadataRequest>) -> Result<Response<()>, Status> {
        let SetMetadataRequest { key, value } = request.into_inner();
        match self.metadata.set(key, value) {
            Ok(()) => Ok(Response::new(())),
            Err(error) => Err(self.fail(&ApiError::metadata(&error))),
        }
    }

    async fn shutdown(&self, request: Request<ShutdownRequest>) -> Result<Response<()>, Status> {
        let forced = request
            .metadata()
            .get("dapr-force-shutdown")
            .is_some_and(|v| v.as_encoded_bytes().eq_ignore_ascii_case(b"true"));
        self.shutdown.request(forced);
        Ok(Response::new(()))
    }
}

impl DaprService {
    /// Counts an error by its code.
    fn fail(&self, error: &ApiError) -> Status {
        self.metrics.error_code(error.counted_as(), error.category);
        error.status()
    }
}
