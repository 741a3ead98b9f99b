//! Status codes: mapping between gRPC and HTTP, and their standard texts.

/// gRPC status codes.
pub mod grpc {
    /// Success.
    pub const OK: i32 = 0;
    /// The caller cancelled the call.
    pub const CANCELLED: i32 = 1;
    /// No better code applies.
    pub const UNKNOWN: i32 = 2;
    /// The request is invalid in any state of the system.
    pub const INVALID_ARGUMENT: i32 = 3;
    /// The deadline passed.
    pub const DEADLINE_EXCEEDED: i32 = 4;
    /// The requested entity does not exist.
    pub const NOT_FOUND: i32 = 5;
    /// The entity to create already exists.
    pub const ALREADY_EXISTS: i32 = 6;
    /// The caller lacks permission.
    pub const PERMISSION_DENIED: i32 = 7;
    /// A quota or limit is exhausted.
    pub const RESOURCE_EXHAUSTED: i32 = 8;
    /// The system is not in the required state.
    pub const FAILED_PRECONDITION: i32 = 9;
    /// A conflict; retrying at a higher level may help.
    pub const ABORTED: i32 = 10;
    /// Beyond the valid range.
    pub const OUT_OF_RANGE: i32 = 11;
    /// Not implemented or not enabled.
    pub const UNIMPLEMENTED: i32 = 12;
    /// An invariant is violated.
    pub const INTERNAL: i32 = 13;
    /// Unavailable; a retry may help.
    pub const UNAVAILABLE: i32 = 14;
    /// Unrecoverable loss of data.
    pub const DATA_LOSS: i32 = 15;
    /// The caller is not authenticated.
    pub const UNAUTHENTICATED: i32 = 16;
}

/// The HTTP status for a gRPC code; unknown codes map to 500.
pub const fn http_from_grpc(code: i32) -> u16 {
    match code {
        grpc::OK => 200,
        grpc::CANCELLED => 408,
        grpc::INVALID_ARGUMENT | grpc::FAILED_PRECONDITION | grpc::OUT_OF_RANGE => 400,
        grpc::DEADLINE_EXCEEDED => 504,
        grpc::NOT_FOUND => 404,
        grpc::ALREADY_EXISTS | grpc::ABORTED => 409,
        grpc::PERMISSION_DENIED => 403,
        grpc::UNAUTHENTICATED => 401,
        grpc::RESOURCE_EXHAUSTED => 429,
        grpc::UNIMPLEMENTED => 501,
        grpc::UNAVAILABLE => 503,
        _ => 500,
    }
}

/// The gRPC code for an HTTP status.
pub const fn grpc_from_http(status: u16) -> i32 {
    match status {
        200..=299 => grpc::OK,
        400 => grpc::INTERNAL,
        401 => grpc::UNAUTHENTICATED,
        403 => grpc::PERMISSION_DENIED,
        404 => grpc::NOT_FOUND,
        408 => grpc::CANCELLED,
        409 => grpc::ALREADY_EXISTS,
        429 => grpc::RESOURCE_EXHAUSTED,
        501 => grpc::UNIMPLEMENTED,
        503 => grpc::UNAVAILABLE,
        504 => grpc::DEADLINE_EXCEEDED,
        _ => grpc::UNKNOWN,
    }
}

/// The reason phrase of an HTTP status in the wording of Go's standard library, which callers see in error
/// bodies and gRPC messages; empty for unassigned codes.
pub const fn reason_phrase(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        102 => "Processing",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        208 => "Already Reported",
        226 => "IM Used",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        305 => "Use Proxy",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400..=499 => client_error_phrase(status),
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        506 => "Variant Also Negotiates",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        510 => "Not Extended",
        511 => "Network Authentication Required",
        _ => "",
    }
}

const fn client_error_phrase(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Request Entity Too Large",
        414 => "Request URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Requested Range Not Satisfiable",
        417 => "Expectation Failed",
        418 => "I'm a teapot",
        421 => "Misdirected Request",
        422 => "Unprocessable Entity",
        423 => "Locked",
        424 => "Failed Dependency",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_codes_round_trip() {
        for status in [200, 401, 403, 404, 408, 409, 429, 501, 503, 504] {
            assert_eq!(http_from_grpc(grpc_from_http(status)), status);
        }
        assert_eq!(grpc_from_http(204), grpc::OK);
        assert_eq!(grpc_from_http(400), grpc::INTERNAL);
        assert_eq!(grpc_from_http(418), grpc::UNKNOWN);
        assert_eq!(http_from_grpc(grpc::UNKNOWN), 500);
        assert_eq!(http_from_grpc(99), 500);
        assert_eq!(http_from_grpc(-1), 500);
    }

    #[test]
    fn phrases_match_go() {
        assert_eq!(reason_phrase(413), "Request Entity Too Large");
        assert_eq!(reason_phrase(418), "I'm a teapot");
        assert_eq!(reason_phrase(299), "");
    }
}
