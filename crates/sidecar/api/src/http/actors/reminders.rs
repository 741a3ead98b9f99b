//! Actor reminders over HTTP.

use bytes::Bytes;
use http::{Method, StatusCode};
use outrigger_blocks_actors::actors::{KnownReminder, ReminderRequest};
use outrigger_transport::response::{bytes_response, empty_response};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{body, three, v1, whole};
use crate::error::{ApiError, JSON};
use crate::http::route::{Endpoint, Handler, HandlerResult};
use crate::http::{Context, HttpApi, json};

const REMINDER: &[&str] = &["actors", "{actorType}", "{actorId}", "reminders", "{name}"];
const ADD: Handler = |api, context| Box::pin(api.register_actor_reminder(context));

pub(in crate::http) static ROUTES: &[Endpoint] = &[
    v1(Method::POST, REMINDER, "RegisterActorReminder", ADD),
    v1(Method::PUT, REMINDER, "RegisterActorReminder", ADD),
    v1(Method::GET, REMINDER, "GetActorReminder", |api, context| {
        Box::pin(api.get_actor_reminder(context))
    }),
    v1(
        Method::DELETE,
        REMINDER,
        "UnregisterActorReminder",
        |api, context| Box::pin(api.unregister_actor_reminder(context)),
    ),
];

/// The JSON of a reminder; absent fields are left out.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    #[serde(rename = "actorID", skip_serializing_if = "str::is_empty")]
    id: &'a str,
    #[serde(rename = "actorType", skip_serializing_if = "str::is_empty")]
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_time: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    period: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: &'a Option<String>,
}

impl HttpApi {
    async fn register_actor_reminder(&self, mut context: Context<'_>) -> HandlerResult {
        let (kind, id, name) = three(&context)?;
        context.describe_actor(&kind, &id);
        let body = whole(context).await?;
        let read = json::read(body, body::reminder).await;
        let read = read.map_err(json::undecoded)?;
        let request = ReminderRequest {
            kind,
            id,
            name,
            ..read
        };
        self.actors.register_reminder(request).await?;
        Ok(empty_response(StatusCode::NO_CONTENT))
    }

    async fn get_actor_reminder(&self, mut context: Context<'_>) -> HandlerResult {
        let (kind, id, name) = three(&context)?;
        context.describe_actor(&kind, &id);
        let reminder = self.actors.reminder(&kind, &id, &name).await?;
        Ok(bytes_response(StatusCode::OK, JSON, shown(&reminder)?))
    }

    async fn unregister_actor_reminder(&self, mut context: Context<'_>) -> HandlerResult {
        let (kind, id, name) = three(&context)?;
        context.describe_actor(&kind, &id);
        self.actors.unregister_reminder(&kind, &id, &name).await?;
        Ok(empty_response(StatusCode::NO_CONTENT))
    }
}

fn shown(reminder: &KnownReminder) -> Result<Bytes, ApiError> {
    let unreadable =
        |error: String| ApiError::malformed_response(&format!("the data of the reminder: {error}"));
    let data = reminder.json().map_err(unreadable)?;
    let data = data
        .as_deref()
        .map(serde_json::from_slice)
        .transpose()
        .map_err(|error: serde_json::Error| unreadable(error.to_string()))?;
    let shown = Shown {
        id: &reminder.id,
        kind: &reminder.kind,
        data,
        due_time: &reminder.job.due_time,
        period: &reminder.job.schedule,
        ttl: &reminder.job.ttl,
    };
    // Serialising texts and JSON cannot fail.
    Ok(serde_json::to_vec(&shown).unwrap_or_default().into())
}
