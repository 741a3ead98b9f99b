//! Actor reminders over gRPC.

use outrigger_blocks_actors::actors::ReminderRequest;
use outrigger_wire::runtime::v1::{
    ActorReminder, GetActorReminderRequest, GetActorReminderResponse, ListActorRemindersRequest,
    ListActorRemindersResponse, NamedActorReminder, RegisterActorReminderRequest,
    UnregisterActorReminderRequest, UnregisterActorRemindersByTypeRequest,
    UnregisterActorRemindersByTypeResponse,
};
use tonic::{Response, Status};

use super::DaprService;
use super::actors::json_bytes;

impl DaprService {
    pub(super) async fn reminder_register(
        &self,
        request: RegisterActorReminderRequest,
    ) -> Result<Response<()>, Status> {
        let request = ReminderRequest {
            kind: request.actor_type,
            id: request.actor_id,
            name: request.name,
            due_time: request.due_time,
            period: request.period,
            ttl: request.ttl,
            data: json_bytes(&request.data),
            overwrite: request.overwrite.unwrap_or(true),
            failure_policy: request.failure_policy,
        };
        let registered = self.actors.register_reminder(request).await;
        registered.map_err(|error| self.actor_failed(error))?;
        Ok(Response::new(()))
    }

    pub(super) async fn reminder_get(
        &self,
        request: GetActorReminderRequest,
    ) -> Result<Response<GetActorReminderResponse>, Status> {
        let GetActorReminderRequest {
            actor_type,
            actor_id,
            name,
        } = request;
        let found = self.actors.reminder(&actor_type, &actor_id, &name).await;
        let job = found.map_err(|error| self.actor_failed(error))?.job;
        Ok(Response::new(GetActorReminderResponse {
            actor_type,
            actor_id,
            due_time: job.due_time,
            period: job.schedule,
            data: job.data,
            ttl: job.ttl,
        }))
    }

    pub(super) async fn reminder_unregister(
        &self,
        request: UnregisterActorReminderRequest,
    ) -> Result<Response<()>, Status> {
        let UnregisterActorReminderRequest {
            actor_type,
            actor_id,
            name,
        } = request;
        let deleted = self
            .actors
            .unregister_reminder(&actor_type, &actor_id, &name)
            .await;
        deleted.map_err(|error| self.actor_failed(error))?;
        Ok(Response::new(()))
    }

    pub(super) async fn reminders_unregister(
        &self,
        request: UnregisterActorRemindersByTypeRequest,
    ) -> Result<Response<UnregisterActorRemindersByTypeResponse>, Status> {
        let id = request.actor_id.as_deref();
        let deleted = self.actors.unregister_reminders(&request.actor_type, id).await;
        deleted.map_err(|error| self.actor_failed(error))?;
        Ok(Response::new(UnregisterActorRemindersByTypeResponse {}))
    }

    pub(super) async fn reminders_list(
        &self,
        request: ListActorRemindersRequest,
    ) -> Result<Response<ListActorRemindersResponse>, Status> {
        let id = request.actor_id.as_deref();
        let listed = self.actors.reminders(&request.actor_type, id).await;
        let listed = listed.map_err(|error| self.actor_failed(error))?;
        let reminders = listed.into_iter().map(|reminder| NamedActorReminder {
            name: reminder.name,
            reminder: Some(ActorReminder {
                actor_type: reminder.kind,
                actor_id: reminder.id,
                due_time: reminder.job.due_time,
                period: reminder.job.schedule,
                data: reminder.job.data,
                ttl: reminder.job.ttl,
            }),
        });
        Ok(Response::new(ListActorRemindersResponse {
            reminders: reminders.collect(),
        }))
    }
}
