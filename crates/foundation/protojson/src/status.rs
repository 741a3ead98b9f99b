//! `google.rpc.Status`.

use std::collections::BTreeMap;

use prost::Message;
use prost_types::Any;
use serde_json::{Map, Value, json};
use tonic_types::pb::ErrorInfo;

use crate::bytes;

/// The JSON of a gRPC status. `ErrorInfo` details are expanded; others have their bytes as `value`.
pub fn status(code: i32, message: &str, details: &[Any]) -> String {
    let mut body = Map::new();
    if code != 0 {
        body.insert("code".into(), code.into());
    }
    if !message.is_empty() {
        body.insert("message".into(), message.into());
    }
    if !details.is_empty() {
        body.insert("details".into(), details.iter().map(detail).collect());
    }
    Value::Object(body).to_string()
}

fn detail(any: &Any) -> Value {
    if any.type_url.ends_with("/google.rpc.ErrorInfo")
        && let Ok(info) = ErrorInfo::decode(any.value.as_slice())
    {
        return json!({
            "@type": any.type_url, "reason": info.reason, "domain": info.domain,
            "metadata": info.metadata.into_iter().collect::<BTreeMap<_, _>>(),
        });
    }
    json!({ "@type": any.type_url, "value": bytes(&any.value) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omits_absent_fields_and_types_details() {
        assert_eq!(status(0, "", &[]), "{}");
        assert_eq!(status(5, "no \"x\"", &[]), r#"{"code":5,"message":"no \"x\""}"#);
        let info = ErrorInfo {
            reason: "GONE".to_owned(),
            domain: "dapr.io".to_owned(),
            metadata: [("b".to_owned(), "2".to_owned()), ("a".to_owned(), "1".to_owned())].into(),
        };
        let of = |name: &str, value: Vec<u8>| Any {
            type_url: format!("type.googleapis.com/{name}"),
            value,
        };
        let details = [
            of("google.rpc.ErrorInfo", info.encode_to_vec()),
            of("google.rpc.ErrorInfo", vec![0xff]),
            of("x.Y", b"ab".to_vec()),
        ];
        let parsed: Value = serde_json::from_str(&status(13, "m", &details)).unwrap();
        let kind = "type.googleapis.com/google.rpc.ErrorInfo";
        assert_eq!(
            parsed,
            json!({"code": 13, "message": "m", "details": [
                {"@type": kind, "reason": "GONE", "domain": "dapr.io", "metadata": {"a": "1", "b": "2"}},
                {"@type": kind, "value": "/w=="},
                {"@type": "type.googleapis.com/x.Y", "value": "YWI="},
            ]})
        );
    }
}
