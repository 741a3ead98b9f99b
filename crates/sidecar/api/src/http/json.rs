//! JSON bodies as Go's decoder reads them. Values that only pass through stay slices of the body. Large
//! bodies are parsed off the threads that serve calls.

use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use outrigger_go_json::{MAX_DEPTH, Shape};
use outrigger_offload::offload;
pub(super) use outrigger_resources::json::{JsonObject, Object, parse, value};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::ApiError;

/// Elements of a request's main list: keys, items, steps, events. An empty element takes few bytes of the
/// body but some hundred bytes of memory.
const MAX_ELEMENTS: usize = 128 << 10;

/// Parses a body with `read`. If the body has invalid characters, it is repaired first.
pub(super) async fn read<T: Send + 'static>(
    body: Bytes,
    read: impl Fn(&Bytes) -> Result<T, serde_json::Error> + Send + 'static,
) -> Result<T, serde_json::Error> {
    let size = body.len();
    let work = move || {
        read(&body).or_else(|error| match outrigger_go_json::repaired(&body) {
            Some(repaired) => read(&repaired.into()),
            None => Err(error),
        })
    };
    offload(size, work).await
}

/// The only JSON value of a body. Trailing data and null are errors.
pub(super) fn parse_all<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, serde_json::Error> {
    if body.trim_ascii() == b"null" {
        return Err(serde_json::Error::custom("an object is expected, not null"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = T::deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// The error for a body of the wrong form.
pub(super) fn undecoded(error: impl fmt::Display) -> ApiError {
    ApiError::malformed(format!("failed deserializing HTTP body: {error}"))
}

/// A pass-through value, if later decoders can read it: Go rejects numbers out of range and limits the depth.
pub(super) fn decodable<E: serde::de::Error>(value: &RawValue) -> Result<&RawValue, E> {
    let text = value.get();
    if let Some(number) = outrigger_go_json::out_of_range(text) {
        return Err(E::custom(format!("the number {number} is out of range")));
    }
    if text.len() > MAX_DEPTH && Shape::of(text.as_bytes()).depth > MAX_DEPTH {
        return Err(E::custom(format!(
            "the value is nested deeper than {MAX_DEPTH} levels"
        )));
    }
    Ok(value)
}

/// A list of bounded length.
pub(super) struct List<T>(pub(super) Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<List<T>, A::Error> {
                let mut list = Vec::new();
                while let Some(element) = elements.next_element()? {
                    if list.len() == MAX_ELEMENTS {
                        return Err(A::Error::custom(format!(
                            "a list of the request has more than {MAX_ELEMENTS} elements: send them in several requests"
                        )));
                    }
                    list.push(element);
                }
                Ok(List(list))
            }
        }

        deserializer.deserialize_seq(Elements(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use outrigger_component::Pairs;
    use outrigger_offload::{INLINE, done_at_once};
    use serde::de::MapAccess;

    use super::*;

    #[derive(Default)]
    struct Labels(Pairs);

    impl<'de> Object<'de> for Labels {
        const NAME: &'static str = "an object with labels";

        fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
            let known = name == "labels";
            if known {
                self.0 = value(map)?;
            }
            Ok(known)
        }
    }

    async fn labels(body: &'static [u8]) -> Option<Pairs> {
        let read = read(Bytes::from_static(body), |body| {
            parse::<JsonObject<Labels>>(body).map(|JsonObject(labels)| labels.0)
        });
        read.await.ok()
    }

    #[test]
    fn bounds_list_length() {
        let list = |count| format!("[{}]", vec!["\"\""; count].join(","));
        let read = |text: String| parse::<List<String>>(text.as_bytes()).map(|List(list)| list.len());
        assert_eq!(read(list(MAX_ELEMENTS)).unwrap(), MAX_ELEMENTS);
        let error = read(list(MAX_ELEMENTS + 1)).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("a list of the request has more than 131072 elements"),
            "{error}"
        );
        assert!(parse::<List<String>>(b"{}").is_err());
    }

    #[tokio::test]
    async fn parses_large_bodies_off_thread() {
        for (length, at_once) in [(INLINE, true), (INLINE + 1, false)] {
            let body = Bytes::from(format!("\"{}\"", "x".repeat(length - 2)));
            let reading = super::read(body, |body| parse::<String>(body));
            let (was_at_once, read) = done_at_once(reading).await;
            assert_eq!((was_at_once, read.unwrap().len()), (at_once, length - 2));
        }
    }

    #[tokio::test]
    async fn accepts_what_go_accepts() {
        let expected = Pairs::from([("k\u{fffd}".to_owned(), "v\u{fffd}".to_owned())]);
        for body in [
            &br#"{"labels":{"k\ud800":"v\udfff"},"other":"\ud800"}"#[..],
            b"{\"labels\":{\"k\xff\":\"v\xfe\"}}",
        ] {
            assert_eq!(labels(body).await.as_ref(), Some(&expected));
        }
        assert_eq!(labels(b"null").await, Some(Pairs::new()));
        assert_eq!(labels(br#"{"labels":null}"#).await, Some(Pairs::new()));
        for wrong in [&b"{"[..], b"[]", b"1", b"{\"labels\":{\"a\":\"\\ud8zz\"}}"] {
            assert_eq!(labels(wrong).await, None);
        }
    }
}
