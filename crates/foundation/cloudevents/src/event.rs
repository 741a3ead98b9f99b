//! Parsing and editing of envelopes.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::member;
use crate::wrap::Object;

/// A parsed event: the members of its envelope, sorted by name. Values stay JSON text until they are
/// requested.
///
/// ```
/// use outrigger_cloudevents::{Event, member};
///
/// let mut event = Event::parse(br#"{"id": "1", "data": {"total": 3}}"#).unwrap();
/// assert_eq!(event.text(member::ID).as_deref(), Some("1"));
/// event.set(member::TOPIC, "orders");
/// assert_eq!(event.to_bytes(), br#"{"data":{"total": 3},"id":"1","topic":"orders"}"#);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event<'e> {
    members: Vec<(Cow<'e, str>, Cow<'e, str>)>,
}

/// The bytes are not an event.
#[derive(Debug, thiserror::Error)]
#[error("not a valid CloudEvent: a JSON object is expected: {0}")]
pub struct Malformed(serde_json::Error);

/// The payload of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data<'e> {
    /// The event has no data.
    None,
    /// JSON as received.
    Json(&'e str),
    /// Base64 text, not decoded yet.
    Base64(Cow<'e, str>),
}

impl<'e> Event<'e> {
    /// Parses an envelope, which is any JSON object. The last of several members with the same name wins.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(text: &'e [u8]) -> Result<Self, Malformed> {
        let Members(mut members) = serde_json::from_slice(text).map_err(Malformed)?;
        // A stable sort keeps the last of equal names last.
        members.sort_by(|(a, _), (b, _)| a.cmp(b));
        members.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                std::mem::swap(&mut later.1, &mut earlier.1);
            }
            same
        });
        Ok(Self { members })
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.members.binary_search_by(|(known, _)| (**known).cmp(name))
    }

    /// The value of a member, as JSON.
    pub fn get(&self, name: &str) -> Option<&str> {
        let at = self.find(name).ok()?;
        self.members.get(at).map(|(_, value)| &**value)
    }

    /// The value of a text member.
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        text_of(self.get(name)?)
    }

    /// Whether a member is a text with an unpaired surrogate, which cannot be decoded.
    pub fn is_broken(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|json| json.starts_with('"') && text_of(json).is_none())
    }

    /// All members, sorted by name, with JSON values.
    pub fn members(&self) -> impl Iterator<Item = (&str, &str)> {
        self.members.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The payload; `data_base64` has precedence.
    pub fn data(&self) -> Data<'_> {
        if let Some(octets) = self.text(member::DATA_BASE64) {
            return Data::Base64(octets);
        }
        match self.get(member::DATA) {
            None | Some("null") => Data::None,
            Some(value) => Data::Json(value),
        }
    }

    /// The publisher's trace context, by either of its names, and trace state; empty if absent.
    pub fn trace(&self) -> (Cow<'_, str>, Cow<'_, str>) {
        let filled = |name| self.text(name).filter(|text| !text.is_empty());
        let parent = filled(member::TRACE_PARENT).or_else(|| filled(member::TRACE_ID));
        (
            parent.unwrap_or_default(),
            filled(member::TRACE_STATE).unwrap_or_default(),
        )
    }

    /// Whether the event has expired. An invalid expiration is ignored.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        let moment = self.text(member::EXPIRATION);
        moment.is_some_and(|text| text.parse::<Timestamp>().is_ok_and(|moment| moment < now))
    }

    /// Sets a member to a text.
    pub fn set(&mut self, name: &'e str, value: &str) {
        // A text always serializes to JSON.
        let json = serde_json::to_string(value).unwrap_or_default();
        self.set_json(name, json.into());
    }

    /// Sets a member to a text if it is absent.
    pub fn set_default(&mut self, name: &'e str, value: &str) {
        if self.find(name).is_err() {
            self.set(name, value);
        }
    }

    /// Sets a member to a JSON value.
    pub fn set_json(&mut self, name: &'e str, json: Cow<'e, str>) {
        match self.find(name) {
            Ok(at) => {
                if let Some((_, value)) = self.members.get_mut(at) {
                    *value = json;
                }
            }
            Err(at) => self.members.insert(at, (Cow::Borrowed(name), json)),
        }
    }

    /// Removes a member.
    pub fn remove(&mut self, name: &str) {
        if let Ok(at) = self.find(name) {
            self.members.remove(at);
        }
    }

    /// The envelope as JSON, with its members sorted by name.
    pub fn to_bytes(&self) -> Vec<u8> {
        let size = |(name, value): &(Cow<'_, str>, Cow<'_, str>)| name.len() + value.len() + 4;
        let mut object = Object::new(2 + self.members.iter().map(size).sum::<usize>());
        for (name, value) in self.members() {
            object.raw(name, value);
        }
        object.end()
    }
}

fn text_of(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        return serde_json::from_str(json).ok().map(Cow::Owned);
    }
    Some(Cow::Borrowed(inner))
}

/// The members of an object, in order.
struct Members<'e>(Vec<(Cow<'e, str>, Cow<'e, str>)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a CloudEvent")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::with_capacity(16);
                while let Some(Name(name)) = map.next_key()? {
                    let value: &'de RawValue = map.next_value()?;
                    members.push((name, Cow::Borrowed(value.get())));
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

/// A member name, borrowed if it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    const EVENT: &[u8] =
        br#"{"id":"7","type":"t\n","data":{"b":[1,2.50]},"traceid":"p","n":null,"id":"8","\u0061":1}"#;

    #[test]
    fn members_round_trip() {
        let mut event = Event::parse(EVENT).unwrap();
        assert_eq!(event.text("id").as_deref(), Some("8"), "the last one counts");
        assert_eq!(event.text("type").as_deref(), Some("t\n"));
        assert_eq!((event.get("n"), event.text("n")), (Some("null"), None));
        assert_eq!(event.data(), Data::Json(r#"{"b":[1,2.50]}"#));
        assert_eq!(event.trace(), ("p".into(), "".into()));
        event.set("topic", "a\"b");
        event.set_default("id", "9");
        event.set_default("source", "s");
        event.remove("n");
        event.remove("nosuch");
        assert_eq!(
            str::from_utf8(&event.to_bytes()).unwrap(),
            r#"{"a":1,"data":{"b":[1,2.50]},"id":"8","source":"s","topic":"a\"b","traceid":"p","type":"t\n"}"#
        );
    }

    #[test]
    fn unpaired_surrogate_is_broken() {
        let event = Event::parse(br#"{"a":"\ud800","b":"\ud83d\ude00\n","c":1}"#).unwrap();
        assert_eq!(
            ["a", "b", "c", "d"].map(|name| event.is_broken(name)),
            [true, false, false, false]
        );
    }

    #[test]
    fn rejects_non_objects() {
        for text in [&b""[..], b"null", b"[]", b"{\"}", b"{} x", b"{\"a\":}", b"\xff"] {
            assert!(Event::parse(text).is_err(), "{text:?}");
        }
        assert_eq!(Event::parse(b" {} ").unwrap().data(), Data::None);
    }

    #[test]
    fn base64_wins_and_null_is_none() {
        let both = Event::parse(br#"{"data":null,"data_base64":"AA=="}"#).unwrap();
        assert_eq!(both.data(), Data::Base64("AA==".into()));
        assert_eq!(Event::parse(br#"{"data":null}"#).unwrap().data(), Data::None);
    }

    #[test]
    fn detects_expiration() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        for (text, expired) in [
            ("2026-01-02T03:04:04Z", true),
            ("2026-01-02T03:04:06Z", false),
            ("2026-01-02T05:04:04+02:00", true),
            ("soon", false),
        ] {
            let json = format!(r#"{{"expiration":"{text}"}}"#);
            assert_eq!(
                Event::parse(json.as_bytes()).unwrap().is_expired(now),
                expired,
                "{text}"
            );
        }
        assert!(!Event::default().is_expired(now));
    }

    proptest! {
        #[test]
        fn rewriting_keeps_values(names in proptest::collection::vec("\\PC{0,4}", 0..8), number in any::<i64>()) {
            let object: serde_json::Map<_, _> =
                names.into_iter().map(|name| (name, Value::from(number))).collect();
            let text = serde_json::to_vec(&object).unwrap();
            let again = Event::parse(&text).unwrap().to_bytes();
            prop_assert_eq!(serde_json::from_slice::<Value>(&again).unwrap(), Value::Object(object));
        }

        #[test]
        fn nothing_panics(text in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(event) = Event::parse(&text) {
                let _read = (event.data(), event.trace(), event.is_expired(Timestamp::UNIX_EPOCH));
            }
        }
    }
}
