//! `/v1.0-alpha1/lock/…` and `/v1.0-alpha1/unlock/…`.

use bytes::Bytes;
use http::{Response, StatusCode};
use serde::de::MapAccess;
use serde_json::{Value, json};

use super::route::Parameters;
use super::{Context, HttpApi, json};
use crate::api::error::{ApiError, json_response};
use crate::body::Body;

impl HttpApi {
    pub(super) async fn try_lock(&self, parameters: Parameters, context: Context<'_>) -> Response<Body> {
        let (store, request) = match self.lock_request(&parameters, context).await {
            Ok(found) => found,
            Err(response) => return *response,
        };
        let Lease {
            resource,
            owner,
            expiry,
        } = &request;
        match self.blocks.locks.try_lock(&store, resource, owner, *expiry).await {
            Ok(success) => json_response(StatusCode::OK, &json!({ "success": success })),
            Err(error) => self.error(error.into()),
        }
    }

    pub(super) async fn unlock(&self, parameters: Parameters, context: Context<'_>) -> Response<Body> {
        let (store, request) = match self.lock_request(&parameters, context).await {
            Ok(found) => found,
            Err(response) => return *response,
        };
        match self
            .blocks
            .locks
            .unlock(&store, &request.resource, &request.owner)
            .await
        {
            Ok(status) => json_response(StatusCode::OK, &json!({ "status": status as u8 })),
            Err(error) => self.error(error.into()),
        }
    }

    async fn lock_request(
        &self,
        parameters: &Parameters,
        context: Context<'_>,
    ) -> Result<(String, Lease), Box<Response<Body>>> {
        let store = self.parameter("storeName", &parameters[0])?;
        // The limit of the API is around the body already.
        let body = context.request.into_body().collect_up_to(usize::MAX).await;
        let body: Bytes =
            body.map_err(|error| Box::new(self.error(ApiError::body_read(&error.to_string()))))?;
        if body.is_empty() {
            return Ok((store, Lease::default()));
        }
        match json::parse::<json::Of<Lease>>(&body) {
            Ok(json::Of(lease)) => Ok((store, lease)),
            Err(error) => Err(Box::new(self.error(json::undecoded(error)))),
        }
    }
}

/// What both requests say, in the JSON of protocol buffers.
#[derive(Default)]
struct Lease {
    resource: String,
    owner: String,
    /// Seconds.
    expiry: i32,
}

impl<'de> json::Object<'de> for Lease {
    const NAME: &'static str = "an object with resourceId, lockOwner and expiryInSeconds";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        match name {
            "resourceId" | "resource_id" => self.resource = json::value(map)?,
            "lockOwner" | "lock_owner" => self.owner = json::value(map)?,
            "expiryInSeconds" | "expiry_in_seconds" => {
                let given: Value = json::value(map)?;
                self.expiry = seconds(&given).ok_or_else(|| {
                    serde::de::Error::custom(format!("invalid value for int32 field {name}: {given}"))
                })?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// A 32-bit number, or one as text.
fn seconds(given: &Value) -> Option<i32> {
    match given {
        Value::Null => Some(0),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => i32::try_from(whole).ok(),
            None => number.to_string().parse::<f64>().ok().and_then(whole),
        },
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// `1e2` and `5.0` are whole numbers too.
fn whole(number: f64) -> Option<i32> {
    let fits = number.fract() == 0.0 && number.abs() <= f64::from(i32::MAX);
    #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and in range")]
    fits.then_some(number as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(text: &str) -> Option<(String, String, i32)> {
        let json::Of(lease) = json::parse::<json::Of<Lease>>(text.as_bytes()).ok()?;
        Some((lease.resource, lease.owner, lease.expiry))
    }

    #[test]
    fn both_spellings_and_numbers_as_text_are_understood() {
        let expected = Some(("r".to_owned(), "o".to_owned(), 5));
        for text in [
            r#"{"resourceId":"r","lockOwner":"o","expiryInSeconds":5}"#,
            r#"{"resource_id":"r","lock_owner":"o","expiry_in_seconds":"5","unknown":[{}]}"#,
            r#"{"resourceId":"r","lockOwner":"o","expiryInSeconds":5.0}"#,
        ] {
            assert_eq!(lease(text), expected, "{text}");
        }
        assert_eq!(lease("{}"), Some(Default::default()));
        assert_eq!(lease(r#"{"expiryInSeconds":null}"#), Some(Default::default()));
    }

    #[test]
    fn what_is_no_lease_is_refused() {
        for text in [
            "[]",
            r#"{"resourceId":1}"#,
            r#"{"expiryInSeconds":1.5}"#,
            r#"{"expiryInSeconds":3000000000}"#,
            r#"{"expiryInSeconds":"soon"}"#,
            r#"{"expiryInSeconds":true}"#,
        ] {
            assert_eq!(lease(text), None, "{text}");
        }
    }
}
