//! Any message through its descriptor: unknown members are skipped, default values omitted.

use std::io;
use std::sync::LazyLock;

use prost::Message;
use prost_reflect::prost_types::FileDescriptorSet;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions,
};
use serde_json::ser::{CompactFormatter, Formatter};

/// Numbers from here on have an exponent.
const WRITTEN_OUT_BELOW: f64 = 1e21;
/// Packages searched for messages.
const PACKAGES: [&str; 2] = ["dapr.proto.runtime.v1", "dapr.proto.internals.v1"];
/// Proto files that define the supported messages; imports are included.
const FILES: [&str; 5] = [
    "dapr/proto/internals/v1/jobs.proto",
    "dapr/proto/runtime/v1/ai.proto",
    "dapr/proto/runtime/v1/crypto.proto",
    "dapr/proto/runtime/v1/jobs.proto",
    "dapr/proto/runtime/v1/workflow.proto",
];

/// Proto files of the workflow worker protocol, which have no package.
const WORKERS: [&str; 1] = ["orchestrator_service.proto"];

/// Descriptors of the messages, built on first use.
static POOL: LazyLock<Option<DescriptorPool>> = LazyLock::new(|| pool(&FILES));
/// Descriptors of [`WORKERS`].
static WORKERS_POOL: LazyLock<Option<DescriptorPool>> = LazyLock::new(|| pool(&WORKERS));

fn pool(files: &[&str]) -> Option<DescriptorPool> {
    let mut all = FileDescriptorSet::decode(outrigger_wire::FILE_DESCRIPTOR_SET).ok()?;
    let mut wanted: Vec<String> = files.iter().map(|name| (*name).to_owned()).collect();
    let mut at = 0;
    while let Some(name) = wanted.get(at) {
        let file = all.file.iter().find(|file| file.name() == name.as_str())?;
        for import in &file.dependency {
            if !wanted.contains(import) {
                wanted.push(import.clone());
            }
        }
        at += 1;
    }
    // Google's descriptors are already in the global pool, including those that apps put into an Any.
    all.file
        .retain(|file| wanted.iter().any(|name| name == file.name()) && file.package() != "google.protobuf");
    let mut pool = DescriptorPool::global();
    pool.add_file_descriptor_set(all).ok()?;
    Some(pool)
}

fn descriptor(name: &str) -> Result<MessageDescriptor, String> {
    let named = |pool: &DescriptorPool| {
        let mut packages = PACKAGES.iter();
        packages.find_map(|package| pool.get_message_by_name(&format!("{package}.{name}")))
    };
    let of_workers = || WORKERS_POOL.as_ref()?.get_message_by_name(name);
    let found = POOL.as_ref().and_then(named).or_else(of_workers);
    found.ok_or_else(|| format!("this build has no descriptor of {name}"))
}

/// Decodes the message `name` from JSON; an empty text is the empty message. Limit the number of values and
/// members before: each takes some hundred bytes while decoding, whatever its size in the message.
///
/// # Errors
/// Invalid JSON, or an unknown message name.
pub fn decode<M: Message + Default>(name: &str, json: &[u8]) -> Result<M, String> {
    if json.is_empty() {
        return Ok(M::default());
    }
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let message = DynamicMessage::deserialize_with_options(descriptor(name)?, &mut deserializer, &options);
    let message = message.map_err(|error| error.to_string())?;
    deserializer.end().map_err(|error| error.to_string())?;
    let encoded = message.encode_to_vec();
    // The dynamic message is the largest allocation.
    drop(message);
    M::decode(encoded.as_slice()).map_err(|error| error.to_string())
}

/// Writes whole numbers without a fraction, because clients parse them as integers.
struct WholeNumbers;

impl Formatter for WholeNumbers {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        if value.fract() == 0.0 && value.abs() < WRITTEN_OUT_BELOW {
            write!(writer, "{value}")
        } else {
            CompactFormatter.write_f64(writer, value)
        }
    }
}

/// Encodes the message `name` as JSON.
///
/// # Errors
/// An unknown message name, or an `Any` with an invalid value.
pub fn encode<M: Message>(name: &str, message: &M) -> Result<Vec<u8>, String> {
    let mut dynamic = DynamicMessage::new(descriptor(name)?);
    dynamic
        .transcode_from(message)
        .map_err(|error| error.to_string())?;
    let mut serializer = serde_json::Serializer::with_formatter(Vec::new(), WholeNumbers);
    dynamic
        .serialize_with_options(&mut serializer, &SerializeOptions::new())
        .map_err(|error| error.to_string())?;
    Ok(serializer.into_inner())
}

#[cfg(test)]
mod tests {
    use outrigger_wire::runtime::v1 as proto;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn accepts_both_member_spellings() {
        let text = br#"{"context_id":"a","promptCacheRetention":"86400s","scrubPii":true,"temperature":"0.5",
            "unknown":{"x":[1]},"inputs":[{"messages":[{"ofUser":{"content":[{"text":"hi"}]}}],"scrubPII":true}],
            "responseFormat":{"type":"object","n":1.5},"tools":null}"#;
        let message: proto::ConversationRequestAlpha2 = decode("ConversationRequestAlpha2", text).unwrap();
        assert_eq!(message.context_id(), "a");
        assert_eq!(
            message.prompt_cache_retention.map(|span| span.seconds),
            Some(86_400)
        );
        assert_eq!((message.scrub_pii(), message.temperature()), (true, 0.5));
        assert_eq!(message.inputs[0].scrub_pii, None, "its name is another one");
        assert_eq!(message.response_format.map(|schema| schema.fields.len()), Some(2));
    }

    #[test]
    fn values_round_trip() {
        let parameters = json!({
            "max": { "@type": "type.googleapis.com/google.protobuf.Int64Value", "value": "100" },
            "s": { "@type": "type.googleapis.com/google.protobuf.StringValue", "value": "x" },
        });
        let text = json!({ "parameters": parameters }).to_string();
        let request: proto::ConversationRequest = decode("ConversationRequest", text.as_bytes()).unwrap();
        let result = proto::ConversationResult {
            result: String::new(),
            parameters: request.parameters,
        };
        let encoded: Value = serde_json::from_slice(&encode("ConversationResult", &result).unwrap()).unwrap();
        assert_eq!(encoded, json!({ "parameters": parameters }));
    }

    #[test]
    fn whole_numbers_have_no_fraction() {
        let text =
            br#"{"data":{"@type":"type.googleapis.com/google.protobuf.Value","value":[1,-2.0,2.5,1e22]}}"#;
        let job: proto::Job = decode("Job", text).unwrap();
        let encoded = encode("Job", &job).unwrap();
        let encoded = std::str::from_utf8(&encoded).unwrap();
        assert!(encoded.contains("[1,-2,2.5,1e+22]"), "{encoded}");
    }

    #[test]
    fn times_bytes_and_large_integers_are_strings() {
        use outrigger_wire::durabletask as tasks;
        let event = tasks::HistoryEvent {
            event_id: -1,
            timestamp: Some(prost_types::Timestamp {
                seconds: 1_700_000_000,
                nanos: 120_000_000,
            }),
            ..tasks::HistoryEvent::default()
        };
        let history = tasks::GetInstanceHistoryResponse { events: vec![event] };
        let signed = proto::SubtleSignResponse {
            signature: vec![0xfb, 0xff].into(),
        };
        let job = proto::Job {
            name: "j".to_owned(),
            repeats: Some(0),
            ..proto::Job::default()
        };
        for (json, expected) in [
            (
                encode("GetInstanceHistoryResponse", &history),
                r#"{"events":[{"eventId":-1,"timestamp":"2023-11-14T22:13:20.120Z"}]}"#,
            ),
            (encode("SubtleSignResponse", &signed), r#"{"signature":"+/8="}"#),
            (encode("Job", &job), r#"{"name":"j","repeats":0}"#),
        ] {
            assert_eq!(String::from_utf8(json.unwrap()).unwrap(), expected);
        }
        assert!(encode("Nonsense", &job).is_err());
    }

    #[test]
    fn rejects_invalid_messages() {
        for text in [
            "{",
            "[]",
            "1",
            r#"{"inputs":1}"#,
            r#"{"inputs":[]}x"#,
            r#"{"temperature":"hot"}"#,
        ] {
            let read =
                decode::<proto::ConversationRequestAlpha2>("ConversationRequestAlpha2", text.as_bytes());
            assert!(read.is_err(), "{text}");
        }
        let bytes = decode::<proto::SubtleSignRequest>("SubtleSignRequest", br#"{"digest":"AQI="}"#).unwrap();
        assert_eq!(bytes.digest.as_ref(), [1, 2]);
    }
}
