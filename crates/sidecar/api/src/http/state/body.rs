//! Request bodies of the state API.

use bytes::Bytes;
use outrigger_blocks::outbound::Cause;
use outrigger_blocks::state::{StateError, StepKind, check_metadata};
use outrigger_component::state::{Concurrency, Consistency, Delete, Operation as Step, Set, Value};
use outrigger_component::{Error, Pairs};
use outrigger_go_json::Strings;
use serde::de::{Error as _, MapAccess};
use serde_json::value::RawValue;

use crate::http::json::{JsonObject, List, Object, decodable, parse, value};

/// A value to write, or a key to delete.
#[derive(Default)]
struct SetItem<'de> {
    key: String,
    value: Option<&'de RawValue>,
    etag: Option<String>,
    metadata: Pairs,
    options: JsonObject<Options>,
    content_type: Option<String>,
}

impl<'de> Object<'de> for SetItem<'de> {
    const NAME: &'static str = "an object with key and value";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        let is = |expected: &str| name.eq_ignore_ascii_case(expected);
        if is("key") {
            self.key = value(map)?;
        } else if is("value") {
            self.value = Some(decodable(map.next_value()?)?);
        } else if is("etag") {
            self.etag = map.next_value()?;
        } else if is("metadata") {
            Strings(self.metadata) = value(map)?;
        } else if is("options") {
            self.options = value(map)?;
        } else if is("contentType") {
            self.content_type = map.next_value()?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

impl SetItem<'_> {
    /// The value stays a slice of `body`; metadata of the URL win.
    fn into_set(mut self, body: &Bytes, metadata: &Pairs) -> Result<Set, Error> {
        extend(&mut self.metadata, metadata);
        Ok(Set {
            concurrency: Concurrency::parse(&self.options.0.concurrency)?,
            consistency: Consistency::parse(&self.options.0.consistency)?,
            key: self.key,
            value: Value::Json(match self.value {
                Some(value) => body.slice_ref(value.get().as_bytes()),
                None => Bytes::from_static(b"null"),
            }),
            etag: self.etag,
            only_new: false,
            metadata: self.metadata,
            content_type: self.content_type,
        })
    }

    fn into_delete(mut self, metadata: &Pairs) -> Result<Delete, Error> {
        extend(&mut self.metadata, metadata);
        Ok(Delete {
            concurrency: Concurrency::parse(&self.options.0.concurrency)?,
            consistency: Consistency::parse(&self.options.0.consistency)?,
            key: self.key,
            etag: self.etag,
            metadata: self.metadata,
        })
    }
}

fn extend(metadata: &mut Pairs, more: &Pairs) {
    metadata.extend(more.iter().map(|(name, value)| (name.clone(), value.clone())));
}

#[derive(Default)]
struct Options {
    concurrency: String,
    consistency: String,
}

impl<'de> Object<'de> for Options {
    const NAME: &'static str = "an object with concurrency and consistency";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        if name.eq_ignore_ascii_case("concurrency") {
            self.concurrency = value(map)?;
        } else if name.eq_ignore_ascii_case("consistency") {
            self.consistency = value(map)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

/// The error of a value or operation without a key.
pub(super) const NO_KEY: &str = "\"key\" is a required field";

/// Why a value cannot be written.
pub(super) enum SetError {
    /// Its key is missing.
    NoKey,
    /// An option is invalid.
    Option(Error),
}

/// The values of a body. The outer error means that the body has another form.
pub(super) fn sets(body: &Bytes, metadata: &Pairs) -> Result<Result<Vec<Set>, SetError>, serde_json::Error> {
    let List(items) = parse::<Option<List<JsonObject<SetItem<'_>>>>>(body)?.unwrap_or_default();
    check_metadata(items.len(), metadata).map_err(serde_json::Error::custom)?;
    let set = |JsonObject(item): JsonObject<SetItem<'_>>| {
        if item.key.is_empty() {
            return Err(SetError::NoKey);
        }
        item.into_set(body, metadata).map_err(SetError::Option)
    };
    Ok(items.into_iter().map(set).collect())
}

/// The operations of a body and the metadata of the transaction. The outer error means that the body has
/// another form.
pub(super) fn steps(
    body: &Bytes,
    metadata: &Pairs,
) -> Result<Result<(Vec<Step>, Pairs), StateError>, serde_json::Error> {
    let JsonObject(request) = parse::<JsonObject<Transaction<'_>>>(body)?;
    check_metadata(request.operations.len(), metadata).map_err(serde_json::Error::custom)?;
    let mut steps = Vec::with_capacity(request.operations.len());
    for JsonObject(operation) in request.operations {
        match operation.into_step(body, metadata) {
            Ok(step) => steps.push(step),
            Err(StepError::Malformed(error)) => return Err(error),
            Err(StepError::State(error)) => return Ok(Err(error)),
        }
    }
    let mut all = request.metadata;
    extend(&mut all, metadata);
    Ok(Ok((steps, all)))
}

/// Keys to read.
#[derive(Default)]
pub(super) struct BulkGet {
    pub(super) keys: Vec<String>,
    pub(super) parallelism: i32,
    pub(super) metadata: Pairs,
}

impl<'de> Object<'de> for BulkGet {
    const NAME: &'static str = "an object with keys";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        if name.eq_ignore_ascii_case("keys") {
            let List(keys): List<Option<String>> = value(map)?;
            self.keys = keys.into_iter().map(Option::unwrap_or_default).collect();
        } else if name.eq_ignore_ascii_case("parallelism") {
            self.parallelism = value(map)?;
        } else if name.eq_ignore_ascii_case("metadata") {
            Strings(self.metadata) = value(map)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

/// Operations of a transaction.
#[derive(Default)]
struct Transaction<'de> {
    operations: Vec<JsonObject<Operation<'de>>>,
    metadata: Pairs,
}

impl<'de> Object<'de> for Transaction<'de> {
    const NAME: &'static str = "an object with operations";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        if name.eq_ignore_ascii_case("operations") {
            List(self.operations) = value(map)?;
        } else if name.eq_ignore_ascii_case("metadata") {
            Strings(self.metadata) = value(map)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

/// An operation of a state or actor transaction. Its request is parsed later, because the operation type may
/// follow it.
#[derive(Default)]
pub(in crate::http) struct Operation<'de> {
    pub(in crate::http) operation: String,
    pub(in crate::http) request: Option<&'de RawValue>,
}

impl<'de> Object<'de> for Operation<'de> {
    const NAME: &'static str = "an object with operation and request";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        if name.eq_ignore_ascii_case("operation") {
            self.operation = value(map)?;
        } else if name.eq_ignore_ascii_case("request") {
            self.request = map.next_value()?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

/// Why an operation is invalid.
enum StepError {
    /// Its request is malformed.
    Malformed(serde_json::Error),
    /// The state block refuses it.
    State(StateError),
}

impl Operation<'_> {
    fn into_step(self, body: &Bytes, metadata: &Pairs) -> Result<Step, StepError> {
        let text = self.request.map_or("{}", RawValue::get).as_bytes();
        let item = || {
            let item = parse::<JsonObject<SetItem<'_>>>(text).map_err(StepError::Malformed)?;
            // A misspelt `request` would otherwise write to the empty key, which no call reads.
            if item.0.key.is_empty() {
                return Err(StepError::Malformed(serde_json::Error::custom(NO_KEY)));
            }
            Ok(item)
        };
        let failed = |error: Error| StepError::State(StateError::Transaction(Cause::from(error)));
        match StepKind::named(&self.operation).map_err(StepError::State)? {
            StepKind::Upsert => item()?.0.into_set(body, metadata).map(Step::Set).map_err(failed),
            StepKind::Delete => item()?.0.into_delete(metadata).map(Step::Delete).map_err(failed),
        }
    }
}

/// Parses `body` as each request body.
///
/// # Panics
///
/// If a value is not a slice of the body.
#[cfg(feature = "fuzzing")]
pub fn fuzz_bodies(body: &Bytes) {
    let metadata = Pairs::new();
    let within = |set: &Set| match &set.value {
        Value::Json(value) | Value::Canonical(value) | Value::Bytes(value) => {
            assert!(value == "null" || body.as_ptr_range().contains(&value.as_ptr()));
        }
    };
    for JsonObject(item) in parse::<Vec<JsonObject<SetItem<'_>>>>(body).unwrap_or_default() {
        if let Ok(set) = item.into_set(body, &metadata) {
            within(&set);
        }
    }
    if let Ok(JsonObject(transaction)) = parse::<JsonObject<Transaction<'_>>>(body) {
        for JsonObject(operation) in transaction.operations {
            if let Ok(Step::Set(set)) = operation.into_step(body, &metadata) {
                within(&set);
            }
        }
    }
    let _read = parse::<JsonObject<BulkGet>>(body);
}

#[cfg(test)]
mod tests {
    use outrigger_go_json::MAX_DEPTH;

    use super::*;

    #[test]
    fn refuses_undecodable_values() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        let read = |value: String| {
            let body = format!(r#"[{{"key":"a","value":1}},{{"key":"b","value":{value}}}]"#);
            sets(&body.into(), &Pairs::new()).map(|sets| sets.map_or(0, |sets| sets.len()))
        };
        assert_eq!(read(nested(MAX_DEPTH)).unwrap(), 2);
        let error = read(nested(MAX_DEPTH + 1)).unwrap_err().to_string();
        assert!(error.contains("nested deeper than 127 levels"), "{error}");
        let text = format!("\"{}\"", nested(MAX_DEPTH + 1));
        assert_eq!(read(text).unwrap(), 2);
    }

    #[test]
    fn null_string_is_empty() {
        let expected = Pairs::from([("x".to_owned(), String::new())]);
        let item = r#"{"key":"a","value":1,"metadata":{"x":null}}"#;
        let read = sets(&format!("[{item}]").into(), &Pairs::new()).unwrap();
        assert_eq!(read.ok().unwrap()[0].metadata, expected);

        let body = format!(
            r#"{{"operations":[{{"operation":"upsert","request":{item}}}],"metadata":{{"x":null}}}}"#
        );
        let (steps, metadata) = steps(&body.into(), &Pairs::new()).unwrap().ok().unwrap();
        assert!(matches!(&steps[0], Step::Set(set) if set.metadata == expected));
        assert_eq!(metadata, expected);

        let body = br#"{"keys":[null,"a"],"metadata":{"x":null}}"#;
        let JsonObject(request) = parse::<JsonObject<BulkGet>>(body).unwrap();
        assert_eq!(request.keys, ["", "a"]);
        assert_eq!(request.metadata, expected);
        assert!(parse::<JsonObject<BulkGet>>(br#"{"keys":[1]}"#).is_err());
    }

    #[test]
    fn url_metadata_applies_to_each_item() {
        let metadata = Pairs::from([("a".to_owned(), "x".repeat((1 << 16) - 1))]);
        for most in [1 << 10, (1 << 10) + 1] {
            let items = |item| format!("[{}]", vec![item; most].join(","));
            let read = sets(&items(r#"{"key":"a"}"#).into(), &metadata);
            assert_eq!(read.is_ok(), most == 1 << 10);
            let operations = items(r#"{"operation":"delete","request":{"key":"a"}}"#);
            let read = steps(&format!(r#"{{"operations":{operations}}}"#).into(), &metadata);
            assert_eq!(read.is_ok(), most == 1 << 10);
        }
    }

    #[test]
    fn refuses_operation_without_key() {
        for request in [
            "",
            r#","request":{"value":1}"#,
            r#","requets":{"key":"a"}"#,
            r#","request":{"key":""}"#,
        ] {
            for operation in ["upsert", "delete"] {
                let body = format!(r#"{{"operations":[{{"operation":"{operation}"{request}}}]}}"#);
                let read = steps(&body.into(), &Pairs::new());
                let Err(error) = read else {
                    panic!("{operation}{request} is taken")
                };
                assert!(error.to_string().contains(NO_KEY), "{error}");
            }
        }
        let body = r#"{"operations":[{"operation":"upsert","request":{"key":"a"}}]}"#;
        assert!(matches!(steps(&body.into(), &Pairs::new()), Ok(Ok((steps, _))) if steps.len() == 1));
    }
}
