//! JSON bodies as Go's decoder reads them: member names in any case, unknown members skipped, null as absence, and
//! nothing after the first value looked at. Values that only pass through stay slices of the body.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::api::error::ApiError;

/// An object whose members are read one by one.
pub(super) trait Object<'de>: Default {
    /// What the decoder says it expected.
    const NAME: &'static str;

    /// Takes a member, its value being the next of `map`; false for a member that means nothing here.
    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error>;
}

/// The first JSON value of a body.
pub(super) fn parse<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, serde_json::Error> {
    T::deserialize(&mut serde_json::Deserializer::from_slice(body))
}

/// What a body that is not what the route wants is answered with.
pub(super) fn undecoded(error: impl fmt::Display) -> ApiError {
    ApiError::malformed(format!("failed deserializing HTTP body: {error}"))
}

/// The value of the current member, null being the empty one.
pub(super) fn value<'de, A: MapAccess<'de>, T: Deserialize<'de> + Default>(
    map: &mut A,
) -> Result<T, A::Error> {
    Ok(map.next_value::<Option<T>>()?.unwrap_or_default())
}

/// A member that is an object.
pub(super) struct Of<T>(pub(super) T);

impl<T: Default> Default for Of<T> {
    fn default() -> Self {
        Self(T::default())
    }
}

impl<'de, T: Object<'de>> Deserialize<'de> for Of<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);

        impl<'de, T: Object<'de>> Visitor<'de> for Members<T> {
            type Value = Of<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::NAME)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Of<T>, A::Error> {
                let mut object = T::default();
                while let Some(Name(name)) = map.next_key()? {
                    if !object.member(&name, &mut map)? {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Of(object))
            }
        }

        deserializer.deserialize_map(Members(PhantomData))
    }
}

/// A member name, borrowed where it has no escapes.
struct Name<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl<'de> Visitor<'de> for Text {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a member name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(name)))
            }

            fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }

        deserializer.deserialize_str(Text)
    }
}
