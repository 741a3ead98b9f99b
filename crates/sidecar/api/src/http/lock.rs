//! `/v1.0-alpha1/lock/…` and `/v1.0-alpha1/unlock/…`.

use bytes::Bytes;
use http::{Method, StatusCode};
use serde::de::{Error as _, MapAccess};
use serde_json::{Value, json};

use super::route::{Endpoint, HandlerResult};
use super::unread::body_read;
use super::{Context, HttpApi, json};
use crate::error::{ApiError, json_response};

pub(super) static ROUTES: &[Endpoint] = &[
    Endpoint::alpha1(
        Method::POST,
        "lock",
        &["lock", "{storeName}"],
        "TryLock",
        |api, context| Box::pin(api.try_lock(context)),
    ),
    Endpoint::alpha1(
        Method::POST,
        "unlock",
        &["unlock", "{storeName}"],
        "Unlock",
        |api, context| Box::pin(api.unlock(context)),
    ),
];

impl HttpApi {
    async fn try_lock(&self, context: Context<'_>) -> HandlerResult {
        let (store, Lease::<true>(request)) = lock_request(context).await?;
        let Fields {
            resource,
            owner,
            expiry,
            ..
        } = &request;
        let locks = &self.blocks.locks;
        let success = locks.try_lock(&store, resource, owner, *expiry).await?;
        Ok(json_response(StatusCode::OK, &json!({ "success": success })))
    }

    async fn unlock(&self, context: Context<'_>) -> HandlerResult {
        let (store, Lease::<false>(request)) = lock_request(context).await?;
        let unlocking = self
            .blocks
            .locks
            .unlock(&store, &request.resource, &request.owner);
        let status = unlocking.await? as u8;
        Ok(json_response(StatusCode::OK, &json!({ "status": status })))
    }
}

/// The store from the path, and the body.
async fn lock_request<const EXPIRES: bool>(
    context: Context<'_>,
) -> Result<(String, Lease<EXPIRES>), ApiError> {
    let store = context.parameter(0)?;
    // The API has already limited the body.
    let body = context.request.into_body().collect_up_to(usize::MAX).await;
    let body: Bytes = body.map_err(|error| body_read(&error))?;
    if body.is_empty() {
        return Ok((store, Lease::default()));
    }
    let json::JsonObject(lease) =
        json::parse_all::<json::JsonObject<Lease<EXPIRES>>>(&body).map_err(json::undecoded)?;
    Ok((store, lease))
}

/// A lock or unlock request in protobuf JSON: each field in either spelling, at most once. `EXPIRES`: whether
/// it has an expiry; without, the field is unknown.
#[derive(Default)]
struct Lease<const EXPIRES: bool>(Fields);

#[derive(Default)]
struct Fields {
    resource: String,
    owner: String,
    /// Seconds.
    expiry: i32,
    /// The fields present, in their primary spelling.
    seen: Vec<&'static str>,
}

impl<'de, const EXPIRES: bool> json::Object<'de> for Lease<EXPIRES> {
    const NAME: &'static str = "an object with resourceId, lockOwner and expiryInSeconds";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        let field = match name {
            "storeName" | "store_name" => "storeName",
            "resourceId" | "resource_id" => "resourceId",
            "lockOwner" | "lock_owner" => "lockOwner",
            "expiryInSeconds" | "expiry_in_seconds" if EXPIRES => "expiryInSeconds",
            _ => return Ok(false),
        };
        let fields = &mut self.0;
        if fields.seen.contains(&field) {
            return Err(A::Error::custom(format!("duplicate field {name}")));
        }
        fields.seen.push(field);
        match field {
            // The path names the store.
            "storeName" => drop(json::value::<_, String>(map)?),
            "resourceId" => fields.resource = json::value(map)?,
            "lockOwner" => fields.owner = json::value(map)?,
            _ => {
                let given: Value = json::value(map)?;
                fields.expiry = seconds(&given).ok_or_else(|| {
                    A::Error::custom(format!("invalid value for int32 field {name}: {given}"))
                })?;
            }
        }
        Ok(true)
    }
}

/// A 32-bit integer, or one as text.
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

/// `1e2` and `5.0` are integers too.
fn whole(number: f64) -> Option<i32> {
    let fits = number.fract() == 0.0 && number.abs() <= f64::from(i32::MAX);
    #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and in range")]
    fits.then_some(number as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(text: &str) -> Option<(String, String, i32)> {
        let json::JsonObject(Lease(lease)) =
            json::parse_all::<json::JsonObject<Lease<true>>>(text.as_bytes()).ok()?;
        Some((lease.resource, lease.owner, lease.expiry))
    }

    #[test]
    fn unlock_has_no_expiry() {
        let read =
            |text: &str| json::parse_all::<json::JsonObject<Lease<false>>>(text.as_bytes()).map(|_| ());
        for fine in [
            r#"{"expiryInSeconds":"soon","other":[{}]}"#,
            r#"{"resourceId":"r","expiryInSeconds":{}}"#,
        ] {
            assert!(read(fine).is_ok(), "{fine}");
        }
        for wrong in [
            r#"{"resourceId":"r"}x"#,
            r#"{"resourceId":"r","resource_id":"r"}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn accepts_both_spellings_and_text_numbers() {
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
    fn refuses_invalid_lock_requests() {
        for text in [
            "[]",
            r#"{"resourceId":1}"#,
            r#"{"expiryInSeconds":1.5}"#,
            r#"{"expiryInSeconds":3000000000}"#,
            r#"{"expiryInSeconds":"soon"}"#,
            r#"{"expiryInSeconds":true}"#,
            r#"{"resourceId":"r"} x"#,
            r#"{"resourceId":"r"}{}"#,
            r#"{"resourceId":"r","resourceId":"r"}"#,
            r#"{"lockOwner":"o","lock_owner":null}"#,
            r#"{"storeName":1}"#,
            r#"{"resourceId":"\ud800"}"#,
            "null",
        ] {
            assert_eq!(lease(text), None, "{text}");
        }
    }
}
