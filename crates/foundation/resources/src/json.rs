//! JSON with the semantics of Go's stream decoder, which Dapr uses for apps' responses. Member names match
//! in any case, unknown members are skipped, null means absent, the last of equal names wins, and data
//! after the first value is ignored.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// An object whose members are decoded one by one.
pub trait Object<'de>: Default {
    /// The expected form for error texts.
    const NAME: &'static str;

    /// Decodes a member, whose value is next in `map`; false for an unknown member.
    ///
    /// # Errors
    /// If the value has the wrong type.
    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error>;
}

/// The first JSON value of a text.
///
/// # Errors
/// If it is not JSON, or has the wrong type.
pub fn parse<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<T, serde_json::Error> {
    T::deserialize(&mut serde_json::Deserializer::from_slice(text))
}

/// The value of the current member; null becomes the default.
///
/// # Errors
/// If the value has the wrong type.
pub fn value<'de, A: MapAccess<'de>, T: Deserialize<'de> + Default>(map: &mut A) -> Result<T, A::Error> {
    Ok(map.next_value::<Option<T>>()?.unwrap_or_default())
}

/// The value of the current member as a list; null becomes an empty list, and null items the default.
///
/// # Errors
/// If the value has the wrong type.
pub fn list<'de, A: MapAccess<'de>, T: Deserialize<'de> + Default>(map: &mut A) -> Result<Vec<T>, A::Error> {
    let elements = map.next_value::<Option<Vec<Option<T>>>>()?.unwrap_or_default();
    Ok(elements.into_iter().map(Option::unwrap_or_default).collect())
}

/// A value that is an [`Object`], or null.
pub struct JsonObject<T>(pub T);

impl<T: Default> Default for JsonObject<T> {
    fn default() -> Self {
        Self(T::default())
    }
}

impl<'de, T: Object<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// The members, or null.
        struct Nullable<T>(PhantomData<T>);

        impl<'de, T: Object<'de>> Visitor<'de> for Nullable<T> {
            type Value = JsonObject<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::NAME)
            }

            fn visit_none<E>(self) -> Result<JsonObject<T>, E> {
                Ok(JsonObject::default())
            }

            fn visit_unit<E>(self) -> Result<JsonObject<T>, E> {
                Ok(JsonObject::default())
            }

            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<JsonObject<T>, D::Error> {
                deserializer.deserialize_map(Members(PhantomData))
            }
        }

        struct Members<T>(PhantomData<T>);

        impl<'de, T: Object<'de>> Visitor<'de> for Members<T> {
            type Value = JsonObject<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::NAME)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonObject<T>, A::Error> {
                let mut object = T::default();
                while let Some(Name(name)) = map.next_key()? {
                    if !object.member(&name, &mut map)? {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(JsonObject(object))
            }
        }

        deserializer.deserialize_option(Nullable(PhantomData))
    }
}

/// A member name, borrowed if it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq)]
    struct Shelf {
        name: String,
        books: Vec<String>,
    }

    impl<'de> Object<'de> for Shelf {
        const NAME: &'static str = "a shelf";

        fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
            let is = |expected: &str| name.eq_ignore_ascii_case(expected);
            if is("name") {
                self.name = value(map)?;
            } else if is("books") {
                self.books = list(map)?;
            } else {
                return Ok(false);
            }
            Ok(true)
        }
    }

    fn read(text: &str) -> Option<(String, Vec<String>)> {
        let read = parse::<JsonObject<Shelf>>(text.as_bytes()).ok();
        read.map(|JsonObject(shelf)| (shelf.name, shelf.books))
    }

    #[test]
    fn decodes_like_go() {
        let both = ("a".to_owned(), vec!["b".to_owned(), String::new()]);
        for text in [
            r#"{"name":"a","books":["b",null]}"#,
            r#"{"NAME":"x","other":[{}],"Name":"a","b\u006fOks":["b",""]} {"name":"#,
        ] {
            assert_eq!(read(text), Some(both.clone()), "{text}");
        }
        for empty in ["null", "{}", "{}]", r#"{"name":null,"books":null}"#] {
            assert_eq!(read(empty), Some((String::new(), Vec::new())), "{empty}");
        }
        for wrong in ["", "{", "[]", "1", r#"{"name":1}"#, r#"{"books":"b"}"#] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
