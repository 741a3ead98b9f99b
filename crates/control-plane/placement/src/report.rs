//! Validation of reports: shape, size, and whether the caller may report this host.

use std::sync::Arc;

use outrigger_controlplane::actor_types::is_of_another_app;
use outrigger_controlplane::grpc::Caller;
use outrigger_wire::placement::v1::{Host, HostOperation};
use tonic::Status;

use crate::dissemination::{Message, Phase};

/// Maximum length of a name in a report, bytes.
const MAX_NAME: usize = 512;
/// Maximum actor types of a host.
const MAX_TYPES: usize = 4096;

/// Validates and normalizes a message of a stream.
///
/// # Errors
/// The status that closes the stream.
pub(crate) fn message(caller: &Caller, host: Host) -> Result<Message, Status> {
    let operation = HostOperation::try_from(host.operation)
        .map_err(|_| Status::invalid_argument(format!("unknown host operation: {}", host.operation)))?;
    if operation == HostOperation::Unknown && host.version.is_some() {
        return Err(Status::invalid_argument(
            "a version needs an operation: set REPORT, LOCK, UPDATE or UNLOCK",
        ));
    }
    allowed(caller, &host)?;
    let version = host.version;
    let phase = match operation {
        HostOperation::Unknown => return Ok(Message::ReportOrAnswer(kept(host))),
        HostOperation::Report => return Ok(Message::Report(kept(host))),
        HostOperation::Lock => Phase::Lock,
        HostOperation::Update => Phase::Update,
        HostOperation::Unlock => Phase::Unlock,
    };
    match version {
        Some(version) => Ok(Message::Answer { phase, version }),
        None => Err(Status::invalid_argument(format!(
            "operation {} needs the version that it answers",
            operation.as_str_name()
        ))),
    }
}

/// Validates the first message of a stream, which must be a report.
///
/// # Errors
/// The status that closes the stream.
pub(crate) fn first(caller: &Caller, host: Host) -> Result<Arc<Host>, Status> {
    allowed(caller, &host)?;
    if host.operation() == HostOperation::Unknown && host.version.is_some() {
        return Err(Status::invalid_argument(
            "a version needs an operation: set REPORT, LOCK, UPDATE or UNLOCK",
        ));
    }
    Ok(kept(host))
}

fn allowed(caller: &Caller, host: &Host) -> Result<(), Status> {
    let (id, namespace) = (&host.id, &host.namespace);
    if id.is_empty() || namespace.is_empty() {
        return Err(Status::invalid_argument(
            "id and namespace of the host are required: set both",
        ));
    }
    if let Caller::Workload(caller) = caller
        && (caller.app_id() != id || caller.namespace() != namespace)
    {
        return Err(Status::permission_denied(format!(
            "provided app ID {id:?} in namespace {namespace:?} does not match the identity of the caller, app \
             {:?} in namespace {:?}",
            caller.app_id(),
            caller.namespace()
        )));
    }
    if host.entities.len() > MAX_TYPES {
        return Err(Status::invalid_argument(format!(
            "a host may have {MAX_TYPES} actor types, not {}",
            host.entities.len()
        )));
    }
    let mut names = [&host.name, id, namespace, &host.pod]
        .into_iter()
        .chain(&host.entities);
    if names.any(|name| name.len() > MAX_NAME) {
        return Err(Status::invalid_argument(format!(
            "a name in the report is longer than {MAX_NAME} bytes"
        )));
    }
    let of_another = |entity: &&String| is_of_another_app(entity, &host.namespace, &host.id);
    match host.entities.iter().find(of_another) {
        Some(entity) => Err(Status::permission_denied(format!(
            "entity {entity} is not allowed for app ID {id} in namespace {namespace}"
        ))),
        None => Ok(()),
    }
}

fn kept(mut host: Host) -> Arc<Host> {
    host.entities.sort_unstable();
    host.entities.dedup();
    host.entities.shrink_to_fit();
    host.version = None;
    Arc::new(host)
}

/// Upper bound of the table bytes of a host.
pub(crate) fn table_bytes(host: &Host) -> usize {
    // Tags, lengths and numbers.
    const REST: usize = 64;
    let each = 2 * host.name.len() + host.id.len() + host.namespace.len() + host.pod.len() + REST;
    host.entities.iter().map(|entity| entity.len() + each).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn host(entities: &[&str]) -> Host {
        Host {
            name: "10.0.0.1:50002".to_owned(),
            id: "app".to_owned(),
            namespace: "ns".to_owned(),
            entities: entities.iter().map(|&name| name.to_owned()).collect(),
            operation: HostOperation::Report.into(),
            ..Host::default()
        }
    }

    fn refused(caller: &Caller, host: Host) -> Status {
        message(caller, host).unwrap_err()
    }

    #[test]
    fn hosts_report_only_themselves() {
        let caller = Caller::Workload("spiffe://localhost/ns/ns/app".parse().unwrap());
        assert!(message(&caller, host(&["t"])).is_ok());
        for (id, namespace) in [("other", "ns"), ("app", "other"), ("App", "ns")] {
            let (id, namespace) = (id.to_owned(), namespace.to_owned());
            let other = Host {
                id,
                namespace,
                ..host(&[])
            };
            assert_eq!(refused(&caller, other.clone()).code(), Code::PermissionDenied);
            assert!(message(&Caller::Anyone, other).is_ok(), "without mTLS anybody is");
        }
        for caller in [caller, Caller::Anyone] {
            for (id, namespace) in [("", "ns"), ("app", "")] {
                let (id, namespace) = (id.to_owned(), namespace.to_owned());
                let status = refused(
                    &caller,
                    Host {
                        id,
                        namespace,
                        ..host(&[])
                    },
                );
                assert_eq!(status.code(), Code::InvalidArgument);
            }
        }
    }

    #[test]
    fn internal_types_require_their_app() {
        for entity in [
            "dapr",
            "dapr.internals.x",
            "my.dapr.internal",
            "dapr.internal.ns.app",
            "dapr.internal.ns.app.x.y",
        ] {
            assert!(message(&Caller::Anyone, host(&["t", entity])).is_ok(), "{entity}");
        }
        for entity in [
            "dapr.internal",
            "dapr.internal.",
            "dapr.internal.ns",
            "dapr.internal.ns.",
            "dapr.internal.app.ns",
        ] {
            let status = refused(&Caller::Anyone, host(&["t", entity]));
            assert_eq!(status.code(), Code::PermissionDenied);
            assert_eq!(
                status.message(),
                format!("entity {entity} is not allowed for app ID app in namespace ns")
            );
        }
    }

    #[test]
    fn operation_requires_version() {
        let of = |operation: i32, version| Host {
            operation,
            version,
            ..host(&["t"])
        };
        assert!(matches!(
            message(&Caller::Anyone, of(0, None)),
            Ok(Message::ReportOrAnswer(_))
        ));
        assert!(matches!(
            message(&Caller::Anyone, of(1, None)),
            Ok(Message::Report(_))
        ));
        assert!(matches!(
            message(&Caller::Anyone, of(3, Some(7))),
            Ok(Message::Answer {
                phase: Phase::Update,
                version: 7
            })
        ));
        for (operation, version) in [(0, Some(1)), (2, None), (9, None)] {
            assert_eq!(
                refused(&Caller::Anyone, of(operation, version)).code(),
                Code::InvalidArgument
            );
        }
    }

    #[test]
    fn rejects_oversized_reports() {
        let long = "x".repeat(MAX_NAME + 1);
        assert_eq!(
            refused(&Caller::Anyone, host(&[&long])).code(),
            Code::InvalidArgument
        );
        assert_eq!(
            refused(
                &Caller::Anyone,
                Host {
                    name: long,
                    ..host(&[])
                }
            )
            .code(),
            Code::InvalidArgument
        );
        let many = vec!["t"; MAX_TYPES + 1];
        assert_eq!(
            refused(&Caller::Anyone, host(&many)).code(),
            Code::InvalidArgument
        );
    }

    #[test]
    fn sorts_and_deduplicates_types() {
        let Ok(Message::Report(kept)) = message(&Caller::Anyone, host(&["b", "a", "b"])) else {
            panic!("not a report");
        };
        assert_eq!(kept.entities, ["a", "b"]);
    }
}
