//! The code of a failed publish call, for policies that retry by code.

use outrigger_component::Error;

use super::Protocol;

/// The code of a component's error as policies match it: `gRPCStatusCodes` for gRPC callers,
/// `httpStatusCodes` for HTTP callers.
pub(super) fn code(error: &Error, protocol: Protocol) -> Option<i32> {
    match protocol {
        Protocol::Grpc => error.code(),
        Protocol::Http => match error.api_status() {
            Some(status) => Some(status.http.into()),
            None => error.code().map(http_status),
        },
    }
}

/// The HTTP status of a gRPC code: the mapping of `google/rpc/code.proto`, except that Dapr maps a cancelled
/// call to 408.
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
    fn codes_match_protocol_of_caller() {
        for (grpc, http) in [(9, 400), (14, 503), (13, 500), (4, 504), (2, 500), (8, 429)] {
            let error = Error::new(Kind::Internal, "no").with_code(grpc);
            assert_eq!(code(&error, Protocol::Grpc), Some(grpc));
            assert_eq!(code(&error, Protocol::Http), Some(http));
        }
        assert_eq!(code(&Error::new(Kind::Internal, "no"), Protocol::Http), None);
    }

    #[test]
    fn component_status_takes_precedence() {
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
