//! JSON as Go's decoder reads it from a stream, which is how Dapr reads what apps say: member names in any case, unknown
//! members skipped, null as absence, of members with the same name the last, and nothing after the first value looked at.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// An object whose members are read one by one.
pub trait Object<'de>: Default {
    /// What the decoder says it expected.
    const NAME: &'static str;

    /// Takes a member, its value being the next of `map`; false for a member that means nothing here.
    ///
    /// # Errors
    /// Its value is not what it has to be.
    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error>;
}

/// The first JSON value of a text.
///
/// # Errors
/// It is no JSON, or not that of such a value.
pub fn parse<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<T, serde_json::Error> {
    T::deserialize(&mut serde_json::Deserializer::from_slice(text))
}

/// The value of the current member, null being the empty one.
///
/// # Errors
/// It is not that of such a value.
pub fn value<'de, A: MapAccess<'de>, T: Deserialize<'de> + Default>(map: &mut A) -> Result<T, A::Error> {
    Ok(map.next_value::<Option<T>>()?.unwrap_or_default())
}

/// The value of the current member, a list, null being the empty one, and the empty value in it.
///
/// # Errors
/// It is not that of such a list.
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

/// A member name, borrowed where it has no escapes.
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
