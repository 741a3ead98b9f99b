//! `/v1.0/workflows/…`, and the same routes under older versions.

use http::{Method, StatusCode};
use outrigger_blocks_actors::workflow::{InstanceId, Listing, WorkflowError};
use outrigger_wire::durabletask::GetInstanceHistoryResponse;
use outrigger_wire::runtime::v1::{StartWorkflowRequest, StartWorkflowResponse};
use serde_json::json;

use super::route::{ALPHA1, BETA1, Endpoint, Handler, HandlerResult, V1};
use super::unread::body_read;
use super::{Context, HttpApi};
use crate::error::{ApiError, json_response};

const INSTANCE: &[&str] = &["workflows", "{workflowComponent}", "{instanceID}"];
const START: &[&str] = &["workflows", "{workflowComponent}", "{workflowName}", "start"];
const RAISE: &[&str] = &[
    "workflows",
    "{workflowComponent}",
    "{instanceID}",
    "raiseEvent",
    "{eventName}",
];
const PAUSE: &[&str] = &["workflows", "{workflowComponent}", "{instanceID}", "pause"];
const RESUME: &[&str] = &["workflows", "{workflowComponent}", "{instanceID}", "resume"];
const TERMINATE: &[&str] = &["workflows", "{workflowComponent}", "{instanceID}", "terminate"];
const WAITS: &[&str] = &["workflows", "{workflowComponent}", "{instanceID}", "waits"];
const HISTORY: &[&str] = &["workflows", "{workflowComponent}", "{instanceID}", "history"];
const LIST: &[&str] = &["workflows", "{workflowComponent}"];
const RERUN: &[&str] = &[
    "workflows",
    "{workflowComponent}",
    "{instanceID}",
    "rerun",
    "{eventID}",
];
const PURGE: &[&str] = &["workflows", "{workflowComponent}", "{instanceID}", "purge"];

type Version = (&'static str, &'static str);

/// The routes of one version.
const fn routes(version: Version) -> [Endpoint; 7] {
    [
        of(version, Method::GET, INSTANCE, "GetWorkflow", |api, context| {
            Box::pin(api.get_workflow(context))
        }),
        of(
            version,
            Method::POST,
            RAISE,
            "RaiseEventWorkflow",
            |api, context| Box::pin(api.raise_event_workflow(context)),
        ),
        of(version, Method::POST, START, "StartWorkflow", |api, context| {
            Box::pin(api.start_workflow(context))
        }),
        of(version, Method::POST, PAUSE, "PauseWorkflow", |api, context| {
            Box::pin(async move { accepted(api.workflows.manage_pause(Named::of(&context)?.of_app()).await) })
        }),
        of(version, Method::POST, RESUME, "ResumeWorkflow", |api, context| {
            Box::pin(
                async move { accepted(api.workflows.manage_resume(Named::of(&context)?.of_app()).await) },
            )
        }),
        of(
            version,
            Method::POST,
            TERMINATE,
            "TerminateWorkflow",
            |api, context| {
                Box::pin(async move {
                    accepted(
                        api.workflows
                            .manage_terminate(Named::of(&context)?.of_app())
                            .await,
                    )
                })
            },
        ),
        of(version, Method::POST, PURGE, "PurgeWorkflow", |api, context| {
            Box::pin(api.purge_workflow(context))
        }),
    ]
}

const fn of(
    version: Version,
    method: Method,
    path: &'static [&'static str],
    name: &'static str,
    handler: Handler,
) -> Endpoint {
    Endpoint::new(Some(method), version, "workflows", path, name, handler)
}

pub(super) static STABLE: &[Endpoint] = &routes(V1);
pub(super) static BETA: &[Endpoint] = &routes(BETA1);
pub(super) static ALPHA: &[Endpoint] = &routes(ALPHA1);
/// Routes that Dapr does not have.
pub(super) static OWN: &[Endpoint] = &[
    of(ALPHA1, Method::GET, WAITS, "GetWorkflowWaits", |api, context| {
        Box::pin(api.workflow_waits(context))
    }),
    of(
        ALPHA1,
        Method::GET,
        HISTORY,
        "GetWorkflowHistory",
        |api, context| Box::pin(api.workflow_history(context)),
    ),
    of(ALPHA1, Method::POST, RERUN, "RerunWorkflow", |api, context| {
        Box::pin(api.rerun_workflow(context))
    }),
    of(ALPHA1, Method::GET, LIST, "ListWorkflows", |api, context| {
        Box::pin(api.list_workflows(context))
    }),
];

/// 202: the request is stored and runs later.
fn accepted(done: Result<(), WorkflowError>) -> HandlerResult {
    done?;
    Ok(json_response(StatusCode::ACCEPTED, &json!({})))
}

impl HttpApi {
    async fn start_workflow(&self, context: Context<'_>) -> HandlerResult {
        let workflow_name = context.parameter(1)?;
        let query = context.request.uri().query().unwrap_or_default();
        let instance_id = parameter(query, "instanceID").unwrap_or_default();
        let app_id = parameter(query, APP);
        let parent = context.span.as_parent();
        let input = context.request.into_body().collect_up_to(usize::MAX).await;
        let input = input.map_err(|error| body_read(&error))?;
        let request = StartWorkflowRequest {
            instance_id,
            workflow_name,
            input,
            app_id,
            ..StartWorkflowRequest::default()
        };
        let instance_id = self.workflows.manage_start(request, parent).await?;
        let answer = StartWorkflowResponse { instance_id };
        let mut response = self.message_response("StartWorkflowResponse", answer).await?;
        *response.status_mut() = StatusCode::ACCEPTED;
        Ok(response)
    }

    async fn get_workflow(&self, context: Context<'_>) -> HandlerResult {
        let named = Named::of(&context)?;
        match self.workflows.manage_get(named.of_app()).await? {
            Some(found) => self.message_response("GetWorkflowResponse", found).await,
            None => Err(WorkflowError::NotFound(named.id).into()),
        }
    }

    /// Explains why an instance is waiting.
    async fn workflow_waits(&self, context: Context<'_>) -> HandlerResult {
        let id = context.parameter(1)?;
        match self.workflows.manage_waits(&id).await? {
            Some(waits) => Ok(json_response(StatusCode::OK, &waits.to_json())),
            None => Err(WorkflowError::NotFound(id).into()),
        }
    }

    /// All events of an instance in proto3 JSON, as SDKs have them.
    async fn workflow_history(&self, context: Context<'_>) -> HandlerResult {
        let id = context.parameter(1)?;
        match self.workflows.manage_history(&id).await? {
            Some(events) => {
                let history = GetInstanceHistoryResponse { events };
                self.message_response("GetInstanceHistoryResponse", history).await
            }
            None => Err(WorkflowError::NotFound(id).into()),
        }
    }

    /// Lists instances with their status.
    async fn list_workflows(&self, context: Context<'_>) -> HandlerResult {
        let query = context.request.uri().query().unwrap_or_default();
        let page = self.workflows.manage_list(listing(query)?).await?;
        Ok(json_response(StatusCode::OK, &page.to_json()))
    }

    /// Purges an instance; forced if the query says so.
    async fn purge_workflow(&self, context: Context<'_>) -> HandlerResult {
        let named = Named::of(&context)?;
        let force = is_forced(context.request.uri().query().unwrap_or_default())?;
        accepted(self.workflows.manage_purge(named.of_app(), force).await)
    }

    /// Starts a new instance from an event of a finished one.
    async fn rerun_workflow(&self, context: Context<'_>) -> HandlerResult {
        let (id, event) = (context.parameter(1)?, context.parameter(2)?);
        let event = event.parse().map_err(|_| {
            ApiError::malformed(format!(
                "eventID: '{event}' is not the number of an event in the history"
            ))
        })?;
        let query = context.request.uri().query().unwrap_or_default();
        let new = parameter(query, "newInstanceID");
        let id = self.workflows.manage_rerun(id, event, new).await?;
        Ok(json_response(StatusCode::ACCEPTED, &json!({"instanceID": id})))
    }

    async fn raise_event_workflow(&self, context: Context<'_>) -> HandlerResult {
        let (named, event) = (Named::of(&context)?, context.parameter(2)?);
        let data = context.request.into_body().collect_up_to(usize::MAX).await;
        let data = data.map_err(|error| body_read(&error))?;
        accepted(
            self.workflows
                .manage_raise(named.of_app(), &event, Some(&data))
                .await,
        )
    }
}

/// Query parameter: the app whose workflow is meant.
const APP: &str = "appID";

/// The instance that a path names, and the app that the query names.
struct Named {
    id: String,
    app: Option<String>,
}

impl Named {
    fn of(context: &Context<'_>) -> Result<Self, ApiError> {
        Ok(Self {
            id: context.parameter(1)?,
            app: parameter(context.request.uri().query().unwrap_or_default(), APP),
        })
    }

    fn of_app(&self) -> InstanceId<'_> {
        InstanceId {
            id: &self.id,
            app: self.app.as_deref(),
        }
    }
}

fn parameter(query: &str, wanted: &str) -> Option<String> {
    let mut given = url::form_urlencoded::parse(query.as_bytes());
    let found = given.find(|(name, _)| name == wanted);
    found.map(|(_, value)| value.into_owned())
}

/// The `force` parameter of a query.
fn is_forced(query: &str) -> Result<bool, ApiError> {
    match parameter(query, "force") {
        None => Ok(false),
        Some(value) => value
            .parse()
            .map_err(|_| ApiError::malformed(format!("force: '{value}' must be true or false"))),
    }
}

/// Query parameters of an instance list.
const LISTING: [&str; 7] = [
    "pageSize",
    "continuationToken",
    "runtimeStatus",
    "workflowName",
    "instanceIDPrefix",
    "createdTimeFrom",
    "createdTimeTo",
];

/// Parses the filters of an instance list. An unknown parameter is refused: ignoring it would list too much.
fn listing(query: &str) -> Result<Listing, ApiError> {
    let mut listing = Listing::default();
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let wrong = |must: &str| ApiError::malformed(format!("{name}: '{value}' {must}"));
        let time = || {
            let read = Listing::time_of(&value);
            read.ok_or_else(|| {
                wrong("is not a time in RFC 3339, such as 2026-01-31T12:00:00Z (a + in it is written %2B)")
            })
        };
        match &*name {
            "pageSize" => {
                let size = value.parse().ok().filter(|size| *size > 0);
                listing.size = Some(size.ok_or_else(|| wrong("is not a positive whole number"))?);
            }
            "continuationToken" => listing.token = Some(value.into_owned()).filter(|token| !token.is_empty()),
            "runtimeStatus" => {
                let status = Listing::status_named(&value);
                let must = || wrong(&format!("must be one of {}", Listing::STATUSES.join(", ")));
                listing.statuses.push(status.ok_or_else(must)?);
            }
            "workflowName" => listing.workflow = Some(value.into_owned()),
            "instanceIDPrefix" => listing.prefix = Some(value.into_owned()),
            "createdTimeFrom" => listing.created_from = Some(time()?),
            "createdTimeTo" => listing.created_to = Some(time()?),
            _ => {
                return Err(ApiError::malformed(format!(
                    "'{name}' is not a parameter of the list of workflow instances: those are {}",
                    LISTING.join(", ")
                )));
            }
        }
    }
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn force_must_be_true_or_false() {
        for (query, expected) in [
            ("", false),
            ("a=b", false),
            ("force=false", false),
            ("force=true", true),
        ] {
            assert_eq!(is_forced(query).unwrap(), expected, "{query}");
        }
        assert!(is_forced("force=1").unwrap_err().message.contains("force"));
    }

    #[test]
    fn parses_instance_filters() {
        let query = "pageSize=7&continuationToken=a%20b&runtimeStatus=stalled&runtimeStatus=FAILED";
        let read = listing(query).unwrap();
        assert_eq!((read.size, read.token.as_deref()), (Some(7), Some("a b")));
        let statuses = ["STALLED", "FAILED"].map(|name| Listing::status_named(name).unwrap());
        assert_eq!(read.statuses, statuses);
        let query = "workflowName=order&instanceIDPrefix=a%25&createdTimeFrom=2026-01-31T12:00:00Z\
                     &createdTimeTo=2026-01-31T14:00:00%2B01:00";
        let read = listing(query).unwrap();
        let texts = (read.workflow.as_deref(), read.prefix.as_deref());
        assert_eq!(texts, (Some("order"), Some("a%")));
        assert_eq!(read.created_from, Listing::time_of("2026-01-31T12:00:00Z"));
        assert_eq!(read.created_to, Listing::time_of("2026-01-31T13:00:00Z"));
        assert_eq!(listing("continuationToken=").unwrap(), Listing::default());
        for (query, names) in [
            ("pageSize=0", "pageSize"),
            ("pageSize=many", "pageSize"),
            ("runtimeStatus=fine", "RUNNING"),
            ("createdTimeFrom=2026-01-31T14:00:00+01:00", "%2B"),
            ("createdTimeTo=today", "createdTimeTo"),
            ("status=FAILED", "runtimeStatus"),
        ] {
            let error = listing(query).unwrap_err().message;
            assert!(error.contains(names), "{query}: {error}");
        }
    }
}
