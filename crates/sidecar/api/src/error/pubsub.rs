//! Errors of publishing.

use http::StatusCode;
use outrigger_blocks::outbound::Cause;
use outrigger_blocks::pubsub::PublishError;
use outrigger_component::ApiStatus;
use tonic::Code;

use super::{ApiError, Detail};

const CATEGORY: &str = "pubsub";
const INTERNAL: (StatusCode, Code) = (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal);
const BAD: (StatusCode, Code) = (StatusCode::BAD_REQUEST, Code::InvalidArgument);
const MISSING: (StatusCode, Code) = (StatusCode::NOT_FOUND, Code::InvalidArgument);

impl From<PublishError> for ApiError {
    fn from(error: PublishError) -> Self {
        if let Some(status) = api_status(&error) {
            return Self::from_component(status);
        }
        match error {
            PublishError::NoName => about("ERR_PUBSUB_EMPTY", MISSING, "pubsub name is empty".to_owned())
                .of_pubsub("", "DAPR_PUBSUB_NAME_EMPTY", []),
            PublishError::NotFound { pubsub, metadata } => about(
                "ERR_PUBSUB_NOT_FOUND",
                MISSING,
                format!("pubsub {pubsub} is not found"),
            )
            .with_detail(Detail::ErrorInfo {
                reason: "DAPR_PUBSUB_NOT_FOUND",
                metadata: Some(metadata.into_iter().collect()),
            }),
            PublishError::NoTopic { pubsub } => {
                let message = format!("topic is empty in pubsub {pubsub}");
                about("ERR_TOPIC_NAME_EMPTY", MISSING, message).of_pubsub(
                    &pubsub,
                    "DAPR_PUBSUB_TOPIC_NAME_EMPTY",
                    [],
                )
            }
            PublishError::RawPayload { pubsub, value } => {
                let message = format!(
                    "failed deserializing metadata. Error: rawPayload value must be a valid boolean: actual is \
                     '{value}'"
                );
                about("ERR_PUBSUB_REQUEST_METADATA", BAD, message).of_pubsub(
                    &pubsub,
                    "DAPR_PUBSUB_METADATA_DESERIALIZATION",
                    [("rawPayload", value.as_str())],
                )
            }
            PublishError::Malformed {
                pubsub,
                app_id,
                cause,
            } => about(
                "ERR_PUBSUB_CLOUD_EVENTS_SER",
                (StatusCode::INTERNAL_SERVER_ERROR, Code::InvalidArgument),
                "cannot create cloudevent".to_owned(),
            )
            .of_pubsub(
                &pubsub,
                "DAPR_PUBSUB_CLOUD_EVENT_CREATION",
                [("appID", app_id.as_str()), ("error", cause.as_str())],
            ),
            PublishError::Forbidden {
                pubsub,
                topic,
                app_id,
            } => {
                let message = format!("topic {topic} is not allowed for app id {app_id}");
                about(
                    "ERR_PUBSUB_FORBIDDEN",
                    (StatusCode::FORBIDDEN, Code::PermissionDenied),
                    message.clone(),
                )
                .of_pubsub(
                    &pubsub,
                    "DAPR_PUBSUB_FORBIDDEN",
                    [("error", message.as_str()), ("topic", topic.as_str())],
                )
            }
            PublishError::EntryIds {
                pubsub,
                topic,
                app_id,
            } => {
                let cause = "entryId is duplicated or not present for entry";
                let message = format!(
                    "error marshaling events to bytes for topic {topic} pubsub {pubsub}. error: {cause}"
                );
                events(message, &pubsub, "DAPR_PUBSUB_MARSHAL_EVENTS", &app_id, cause)
            }
            PublishError::Metadata { pubsub, cause } => about(
                "ERR_PUBSUB_REQUEST_METADATA",
                (StatusCode::BAD_REQUEST, Code::ResourceExhausted),
                cause.clone(),
            )
            .of_pubsub(
                &pubsub,
                "DAPR_PUBSUB_METADATA_DESERIALIZATION",
                [("error", cause.as_str())],
            ),
            PublishError::Publish {
                pubsub, topic, cause, ..
            } => {
                let cause = cause.to_string();
                let message = format!("error when publishing to topic {topic} in pubsub {pubsub}: {cause}");
                about("ERR_PUBSUB_PUBLISH_MESSAGE", INTERNAL, message).of_pubsub(
                    &pubsub,
                    "DAPR_PUBSUB_PUBLISH_MESSAGE",
                    [("error", cause.as_str()), ("topic", topic.as_str())],
                )
            }
        }
    }
}

impl ApiError {
    /// A bulk that is not a JSON list of entries.
    pub fn unread_bulk(pubsub: &str, topic: &str, app_id: &str, cause: &str) -> Self {
        let message =
            format!("error when unmarshaling the request for topic {topic} pubsub {pubsub}: {cause}");
        let app = [("appID", app_id)];
        about("ERR_PUBSUB_EVENTS_SER", BAD, message).of_pubsub(pubsub, "DAPR_PUBSUB_UNMARSHAL_EVENTS", app)
    }

    /// A bulk entry whose event does not match its media type.
    pub fn bulk_event(pubsub: &str, topic: &str, app_id: &str, cause: &str) -> Self {
        let message =
            format!("error when marshalling cloud event envelope for topic {topic} pubsub {pubsub}: {cause}");
        events(message, pubsub, "DAPR_PUBSUB_MARSHAL_ENVELOPE", app_id, cause)
    }

    /// A body that could not be read.
    pub fn unread_event(pubsub: &str, topic: &str, cause: String) -> Self {
        PublishError::Publish {
            pubsub: pubsub.to_owned(),
            topic: topic.to_owned(),
            cause: Cause::Own(cause),
            failed: Vec::new(),
        }
        .into()
    }

    /// A state transaction whose outbox events could not be published.
    pub fn outbox(app_id: String, cause: String) -> Self {
        let message = format!("error while publishing outbox message: {cause}");
        about("ERR_PUBLISH_OUTBOX", INTERNAL, message).with_detail(Detail::ErrorInfo {
            reason: "DAPR_PUBSUB_OUTBOX",
            metadata: Some(vec![("appID".to_owned(), app_id), ("error".to_owned(), cause)]),
        })
    }

    fn of_pubsub<const N: usize>(
        self,
        pubsub: &str,
        reason: &'static str,
        metadata: [(&str, &str); N],
    ) -> Self {
        let resource = Detail::ResourceInfo {
            kind: "pubsub".to_owned(),
            name: pubsub.to_owned(),
            description: self.message.clone(),
        };
        let metadata = metadata.map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.with_detail(resource).with_detail(Detail::ErrorInfo {
            reason,
            metadata: (N > 0).then(|| metadata.into()),
        })
    }
}

/// The status that a broker chose for the caller, if any.
fn api_status(error: &PublishError) -> Option<&ApiStatus> {
    match error {
        PublishError::Publish { cause, .. } => cause.api_status(),
        _ => None,
    }
}

fn events(message: String, pubsub: &str, reason: &'static str, app_id: &str, cause: &str) -> ApiError {
    let metadata = [("appID", app_id), ("error", cause)];
    about("ERR_PUBSUB_EVENTS_SER", BAD, message).of_pubsub(pubsub, reason, metadata)
}

fn about(code: &'static str, (http, grpc): (StatusCode, Code), message: String) -> ApiError {
    ApiError::new(code, CATEGORY, http, grpc, message)
}
