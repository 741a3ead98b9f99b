//! Which code a failed publishing has, for policies that choose by codes what is tried again.

use outrigger_component::Error;

use super::Protocol;

/// The code that a component's error has, as policies match it: `gRPCStatusCodes` for callers over gRPC, `httpStatusCodes`
/// for those over HTTP.
pub(super) fn code(error: &Error, protocol: Protocol) -> Option<i32> {
    match protocol {
        Protocol::Grpc => error.code(),
        Protocol::Http => match error.api_status() {
            Some(status) => Some(status.http.into()),
            None => error.code().map(http_status),
        },
    }
}

/// The HTTP status that stands for a gRPC code: the table of `google/rpc/code.proto`, but for a call that was given up,
/// which Dapr shows as 408.
fn http_status(grpc: i32) -> i32 {
    match grpc {
        0 => 200,
        1 => 408,
        3 | 9 | 11 => 400,
        4 => 504,
        5 => 404,
        6 | 10 => 409,
        7 => 403,
        8 => 429,
        12 => 501,
        14 => 503,
        16 => 401,
        _ => 500,
    }
}

#[cfg(test)]
mod tests {
    use outrigger_component::{ApiStatus, Kind};

    use super::*;

    #[test]
    fn codes_are_those_of_the_callers_protocol() {
        for (grpc, http) in [(9, 400), (14, 503), (13, 500), (4, 504), (2, 500), (8, 429)] {
            let error = Error::new(Kind::Internal, "no").with_code(grpc);
            assert_eq!(code(&error, Protocol::Grpc), Some(grpc));
            assert_eq!(code(&error, Protocol::Http), Some(http));
        }
        assert_eq!(code(&Error::new(Kind::Internal, "no"), Protocol::Http), None);
    }

    #[test]
    fn what_a_component_tells_callers_is_what_policies_match() {
        let status = ApiStatus {
            grpc: 9,
            http: 418,
            message: String::new(),
            tag: String::new(),
            reason: String::new(),
            domain: String::new(),
        };
        let error = Error::new(Kind::Internal, "no").with_api_status(status);
        assert_eq!(code(&error, Protocol::Http), Some(418));
        assert_eq!(code(&error, Protocol::Grpc), Some(9));
    }
}
