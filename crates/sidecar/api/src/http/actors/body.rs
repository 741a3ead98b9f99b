//! Request bodies of the actor API.

use bytes::Bytes;
use outrigger_blocks_actors::actors::{ReminderRequest, StateOperation, StateStep, TimerRequest};
use outrigger_component::Pairs;
use outrigger_component::state::Value;
use outrigger_go_json::Strings;
use serde::de::MapAccess;
use serde_json::value::RawValue;

use crate::http::json::{JsonObject, List, Object, decodable, parse, value};
use crate::http::state::Operation;

#[derive(Default)]
struct Request<'de> {
    key: String,
    value: Option<&'de RawValue>,
    etag: Option<String>,
    metadata: Pairs,
}

impl<'de> Object<'de> for Request<'de> {
    const NAME: &'static str = "an object with key and value";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        let is = |expected: &str| name.eq_ignore_ascii_case(expected);
        if is("key") {
            self.key = value(map)?;
        } else if is("value") {
            self.value = Some(map.next_value()?);
        } else if is("etag") {
            self.etag = map.next_value()?;
        } else if is("metadata") {
            Strings(self.metadata) = value(map)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

/// The operations of a transaction; values stay slices of `body`.
pub(super) fn operations(body: &Bytes) -> Result<Vec<StateOperation>, serde_json::Error> {
    let List(items) = parse::<Option<List<JsonObject<Operation<'_>>>>>(body)?.unwrap_or_default();
    let operation = |JsonObject(item): JsonObject<Operation<'_>>| {
        let request = item.request.map(|request| parse(request.get().as_bytes()));
        let JsonObject::<Request<'_>>(request) = match request.transpose() {
            Ok(request) => request.unwrap_or_default(),
            // As in Dapr, only the transaction fails if an operation is invalid.
            Err(error) if error.is_data() => {
                return Ok(StateOperation {
                    step: StateStep::Malformed(error.to_string()),
                    key: String::new(),
                    etag: None,
                    only_new: false,
                    metadata: Pairs::new(),
                });
            }
            Err(error) => return Err(error),
        };
        let value = request.value.map(decodable::<serde_json::Error>).transpose()?;
        Ok(StateOperation {
            step: match item.operation.as_str() {
                "upsert" => StateStep::Upsert(Value::Json(match value {
                    Some(value) => body.slice_ref(value.get().as_bytes()),
                    None => Bytes::from_static(b"null"),
                })),
                "delete" => StateStep::Delete,
                other => StateStep::Unknown(other.to_owned()),
            },
            key: request.key,
            etag: request.etag,
            only_new: false,
            metadata: request.metadata,
        })
    };
    items.into_iter().map(operation).collect()
}

#[derive(Default)]
struct Timer<'de> {
    data: Option<&'de RawValue>,
    request: TimerRequest,
}

impl<'de> Object<'de> for Timer<'de> {
    const NAME: &'static str = "an object with dueTime and period";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        let is = |expected: &str| name.eq_ignore_ascii_case(expected);
        if is("data") {
            self.data = Some(decodable(map.next_value()?)?);
            return Ok(true);
        }
        let member = if is("dueTime") {
            &mut self.request.due_time
        } else if is("period") {
            &mut self.request.period
        } else if is("ttl") {
            &mut self.request.ttl
        } else if is("callback") {
            &mut self.request.callback
        } else {
            return Ok(false);
        };
        *member = value(map)?;
        Ok(true)
    }
}

/// A timer; its names come from the path.
pub(super) fn timer(body: &Bytes) -> Result<TimerRequest, serde_json::Error> {
    let JsonObject(timer) = parse::<JsonObject<Timer<'_>>>(body)?;
    let data = timer.data.map(|data| data.get().as_bytes().to_vec());
    Ok(TimerRequest {
        data: data.unwrap_or_default(),
        ..timer.request
    })
}

struct Reminder<'de> {
    data: Option<&'de RawValue>,
    request: ReminderRequest,
}

impl Default for Reminder<'_> {
    fn default() -> Self {
        let overwrite = true;
        Self {
            data: None,
            request: ReminderRequest {
                overwrite,
                ..ReminderRequest::default()
            },
        }
    }
}

impl<'de> Object<'de> for Reminder<'de> {
    const NAME: &'static str = "an object with dueTime and period";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        let is = |expected: &str| name.eq_ignore_ascii_case(expected);
        if is("data") {
            self.data = Some(decodable(map.next_value()?)?);
            return Ok(true);
        }
        if is("overwrite") {
            self.request.overwrite = map.next_value::<Option<bool>>()?.unwrap_or(true);
            return Ok(true);
        }
        let member = if is("dueTime") {
            &mut self.request.due_time
        } else if is("period") {
            &mut self.request.period
        } else if is("ttl") {
            &mut self.request.ttl
        } else {
            return Ok(false);
        };
        *member = value(map)?;
        Ok(true)
    }
}

/// A reminder; its names come from the path.
pub(super) fn reminder(body: &Bytes) -> Result<ReminderRequest, serde_json::Error> {
    let JsonObject(reminder) = parse::<JsonObject<Reminder<'_>>>(body)?;
    let data = reminder.data.map(|data| data.get().as_bytes().to_vec());
    Ok(ReminderRequest {
        data: data.unwrap_or_default(),
        ..reminder.request
    })
}

#[cfg(test)]
mod tests {
    use outrigger_go_json::MAX_DEPTH;

    use super::*;

    #[test]
    fn refuses_undecodable_values() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        let read = |value: &str| {
            let upsert = format!(r#"[{{"operation":"upsert","request":{{"key":"k","value":{value}}}}}]"#);
            let due = Bytes::from(format!(r#"{{"dueTime":"1h","data":{value}}}"#));
            [
                operations(&upsert.into()).map(drop),
                timer(&due).map(drop),
                reminder(&due).map(drop),
            ]
        };
        for value in [nested(MAX_DEPTH).as_str(), "1E300", r#""1E400""#, "null"] {
            assert!(read(value).iter().all(Result::is_ok), "{value}");
        }
        for (value, expected) in [
            (r#"{"a":[1E400]}"#, "the number 1E400 is out of range"),
            (&nested(MAX_DEPTH + 1), "nested deeper than 127 levels"),
        ] {
            for read in read(value) {
                let error = read.unwrap_err().to_string();
                assert!(error.contains(expected), "{error}");
            }
        }
    }

    #[test]
    fn invalid_request_fails_transaction_only() {
        let body = br#"[{"operation":"upsert","request":{"key":5}}]"#;
        let read = operations(&Bytes::from_static(body)).unwrap();
        assert!(matches!(read[0].step, StateStep::Malformed(_)), "{read:?}");
    }
}
