//! Converts a component's gRPC status to an [`Error`].

use outrigger_component::{ApiStatus, Error, Kind};
use prost::Message;
use tonic::{Code, Status};
use tonic_types::pb::{self, BadRequest, ErrorInfo};

use super::link::LinkError;

/// A violation of this field marks an ETag error.
const ETAG: &str = "etag";

/// gRPC code names by number, as Dapr writes them.
const NAMES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

fn name(code: Code) -> &'static str {
    NAMES[code as usize]
}

/// A status in the form of Dapr's errors.
pub(super) fn text(status: &Status) -> String {
    format!(
        "rpc error: code = {} desc = {}",
        name(code(status)),
        status.message()
    )
}

fn code(status: &Status) -> Code {
    if from_us(status) {
        Code::Unavailable
    } else {
        status.code()
    }
}

/// Whether the sidecar created the status, because the call failed or the answer was cut off.
fn from_us(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// Error of any call.
pub(super) fn error(status: &Status) -> Error {
    let cause = std::error::Error::source(status);
    if let Some(LinkError::Closed) = cause.and_then(|cause| cause.downcast_ref()) {
        return Error::closed();
    }
    let kind = match status.code() {
        _ if cause.is_some() => Kind::Unavailable,
        Code::Unavailable => Kind::Unavailable,
        Code::DeadlineExceeded => Kind::Timeout,
        Code::NotFound => Kind::NotFound,
        Code::PermissionDenied | Code::Unauthenticated => Kind::Denied,
        Code::Unimplemented => Kind::Unsupported,
        Code::InvalidArgument => Kind::InvalidRequest,
        _ => Kind::Internal,
    };
    Error::new(kind, text(status)).with_code(code(status) as i32)
}

/// Error of a state read.
pub(super) fn read_error(status: &Status) -> Error {
    match api_status(status) {
        Some(api_status) => {
            let text = format!(
                "api error: code = {} desc = {}",
                name(status.code()),
                api_status.message
            );
            Error::new(Kind::Internal, text).with_api_status(api_status)
        }
        None => error(status),
    }
}

/// Error of a state write.
pub(super) fn write_error(status: &Status) -> Error {
    etag_error(status).unwrap_or_else(|| read_error(status))
}

/// Error of a bulk delete.
pub(super) fn bulk_delete_error(status: &Status) -> Error {
    if status.code() == Code::Internal
        && let Some(info) = only_detail::<ErrorInfo>(status, "ErrorInfo")
        && let Some((expected, affected)) = rows(&info)
    {
        let text = format!("delete affected only {affected} rows, expected {expected}");
        return Error::new(Kind::Internal, text);
    }
    write_error(status)
}

fn rows(info: &ErrorInfo) -> Option<(u64, u64)> {
    let rows = |name: &str| info.metadata.get(name)?.parse().ok();
    Some((rows("expected")?, rows("affected")?))
}

/// The API status set by the component in a marked ErrorInfo.
fn api_status(status: &Status) -> Option<ApiStatus> {
    let info = only_detail::<ErrorInfo>(status, "ErrorInfo")?;
    let field = |name: &str| info.metadata.get(name).map(String::as_str);
    if field("kit_error") != Some("true") {
        return None;
    }
    let http = field("http_code")?.parse().ok();
    Some(ApiStatus {
        grpc: status.code() as i32,
        http: http.filter(|http| (400..600).contains(http))?,
        message: status.message().to_owned(),
        tag: field("tag").unwrap_or_default().to_owned(),
        reason: info.reason,
        domain: info.domain,
    })
}

fn etag_error(status: &Status) -> Option<Error> {
    let kind = match status.code() {
        Code::FailedPrecondition => Kind::EtagMismatch,
        Code::InvalidArgument => Kind::InvalidEtag,
        _ => return None,
    };
    let violations = only_detail::<BadRequest>(status, "BadRequest")?.field_violations;
    let [violation] = violations.as_slice() else {
        return None;
    };
    (violation.field == ETAG).then(|| Error::new(kind, violation.description.clone()))
}

/// The only detail of a status, if it is an `M`, which is `google.rpc.<name>`.
fn only_detail<M: Message + Default>(status: &Status, name: &str) -> Option<M> {
    let rich = pb::Status::decode(status.details()).ok()?;
    let [detail] = rich.details.as_slice() else {
        return None;
    };
    let full_name = detail.type_url.rsplit('/').next()?;
    if full_name.strip_prefix("google.rpc.") != Some(name) {
        return None;
    }
    M::decode(detail.value.as_slice()).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic_types::{ErrorDetails, StatusExt};

    use super::*;

    fn about(field: &str, code: Code) -> Status {
        Status::with_error_details(
            code,
            "no",
            ErrorDetails::with_bad_request_violation(field, "is 4"),
        )
    }

    fn informed(code: Code, metadata: &[(&str, &str)]) -> Status {
        let metadata: HashMap<_, _> = metadata
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        Status::with_error_details(
            code,
            "no",
            ErrorDetails::with_error_info("reason", "domain", metadata),
        )
    }

    #[test]
    fn status_text_matches_dapr() {
        let error = error(&Status::cancelled("stop"));
        assert_eq!(error.to_string(), "rpc error: code = Canceled desc = stop");
        assert_eq!((error.kind(), error.code()), (Kind::Internal, Some(1)));
        assert!(error.api_status().is_none(), "callers are not told the code");
        for (code, name) in (0..).zip(NAMES) {
            let spelt = format!("{:?}", Code::from_i32(code)).to_lowercase();
            assert_eq!(name.to_lowercase(), spelt.replace("cancelled", "canceled"));
        }
    }

    #[test]
    fn recognises_etag_violation() {
        let mismatch = write_error(&about("etag", Code::FailedPrecondition));
        assert_eq!(mismatch.kind(), Kind::EtagMismatch);
        assert_eq!(
            mismatch.to_string(),
            "possible etag mismatch. error from state store: is 4"
        );
        assert_eq!(
            write_error(&about("etag", Code::InvalidArgument)).kind(),
            Kind::InvalidEtag
        );
        assert!(!write_error(&about("etag", Code::Internal)).is_etag());
        assert!(!write_error(&about("key", Code::FailedPrecondition)).is_etag());
        assert!(!write_error(&Status::failed_precondition("etag")).is_etag());
        let mut two = ErrorDetails::with_bad_request_violation("etag", "is 4");
        two.set_error_info("reason", "domain", HashMap::new());
        let two = Status::with_error_details(Code::FailedPrecondition, "no", two);
        assert!(!write_error(&two).is_etag());
        assert!(!read_error(&about("etag", Code::FailedPrecondition)).is_etag());
    }

    #[test]
    fn component_sets_api_status() {
        let status = informed(
            Code::DataLoss,
            &[("kit_error", "true"), ("http_code", "506"), ("tag", "t")],
        );
        let error = read_error(&status);
        assert_eq!(error.to_string(), "api error: code = DataLoss desc = no");
        let api_status = error.api_status().unwrap();
        assert_eq!(
            (api_status.grpc, api_status.http, api_status.tag.as_str()),
            (15, 506, "t")
        );
        assert_eq!(
            (api_status.reason.as_str(), api_status.domain.as_str()),
            ("reason", "domain")
        );
        for wrong in [
            [("kit_error", "false"), ("http_code", "506")],
            [("kit_error", "true"), ("http_code", "200")],
            [("kit_error", "true"), ("http_code", "teapot")],
        ] {
            assert!(
                read_error(&informed(Code::DataLoss, &wrong))
                    .api_status()
                    .is_none(),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn reports_undeleted_rows() {
        let status = informed(Code::Internal, &[("expected", "3"), ("affected", "1")]);
        assert_eq!(
            bulk_delete_error(&status).to_string(),
            "delete affected only 1 rows, expected 3"
        );
        let status = informed(Code::Internal, &[("expected", "3"), ("affected", "-")]);
        assert_eq!(
            bulk_delete_error(&status).to_string(),
            "rpc error: code = Internal desc = no"
        );
    }

    #[test]
    fn ignores_invalid_details() {
        let status = Status::with_details(Code::FailedPrecondition, "no", vec![0xff, 0xff, 0xff].into());
        assert_eq!(
            write_error(&status).to_string(),
            "rpc error: code = FailedPrecondition desc = no"
        );
    }
}
