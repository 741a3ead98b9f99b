//! Authentication of API callers.

use http::HeaderMap;
use outrigger_transport::headers::names;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// `DAPR_API_TOKEN`. Comparison takes constant time for wrong tokens of any length.
pub struct Token(Option<[u8; 32]>);

impl Token {
    /// The required token; `None` or an empty one disables the check.
    pub fn new(token: Option<&str>) -> Self {
        Self(token.filter(|t| !t.is_empty()).map(digest))
    }

    fn matches(&self, presented: &[u8]) -> bool {
        self.0.is_none_or(|expected| {
            let presented: [u8; 32] = Sha256::digest(presented).into();
            expected.ct_eq(&presented).into()
        })
    }

    /// Whether an HTTP request has the token.
    pub fn admits_http(&self, headers: &HeaderMap) -> bool {
        self.matches(headers.get(names::API_TOKEN).map_or(b"", |v| v.as_bytes()))
    }

    /// Whether a gRPC request has the token.
    ///
    /// # Errors
    /// The `Unauthenticated` status of the contract.
    pub fn admit_grpc(&self, headers: &HeaderMap) -> Result<(), Status> {
        if self.0.is_none() {
            return Ok(());
        }
        let Some(presented) = headers.get(names::API_TOKEN) else {
            return Err(unauthorized("missing api token in request metadata"));
        };
        if self.matches(presented.as_bytes()) {
            Ok(())
        } else {
            Err(unauthorized("authentication error: api token mismatch"))
        }
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn unauthorized(reason: &str) -> Status {
    let metadata = [("http.code", "401"), ("http.error_message", reason)];
    let metadata = metadata.map(|(k, v)| (k.to_owned(), v.to_owned()));
    let details = ErrorDetails::with_error_info("Unauthorized", "dapr.io", metadata);
    Status::with_error_details(Code::Unauthenticated, "Unauthorized", details)
}

/// The status of a method that an allow or deny list hides.
pub fn hidden() -> Status {
    let metadata = [
        ("http.code".to_owned(), "501".to_owned()),
        (
            "http.error_message".to_owned(),
            "requested endpoint is not available".to_owned(),
        ),
    ];
    let details = ErrorDetails::with_error_info("Not Implemented", "dapr.io", metadata);
    Status::with_error_details(Code::Unimplemented, "Not Implemented", details)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn only_the_token_passes() {
        let token = Token::new(Some("secret"));
        let with =
            |value: &'static str| HeaderMap::from_iter([(names::API_TOKEN, HeaderValue::from_static(value))]);
        assert!(token.admits_http(&with("secret")));
        for wrong in ["", "secre", "secret1", "Secret"] {
            assert!(!token.admits_http(&with(wrong)), "{wrong}");
            assert_eq!(
                token.admit_grpc(&with(wrong)).unwrap_err().code(),
                Code::Unauthenticated
            );
        }
        assert!(!token.admits_http(&HeaderMap::new()));
        assert!(token.admit_grpc(&HeaderMap::new()).is_err());
        assert!(Token::new(None).admits_http(&HeaderMap::new()));
        assert!(Token::new(Some("")).admit_grpc(&HeaderMap::new()).is_ok());
    }
}
