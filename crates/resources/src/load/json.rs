//! Resources as an operator sends them.

use crate::component::{self, Component};
use crate::http_endpoint::{self, HttpEndpoint};
use crate::meta::Source;
use crate::resiliency::{self, Resiliency};
use crate::subscription::{self, Subscription};
use crate::yaml::{self, Flavour};

/// A resource that can be read from JSON. Its source is empty.
pub trait FromJson: Sized {
    /// Reads one resource; the kind is the caller's knowledge. Errors name the key.
    fn from_json(json: &[u8]) -> Result<Self, String>;
}

macro_rules! from_json {
    ($($resource:ty: $raw:ty,)*) => {$(
        impl FromJson for $resource {
            fn from_json(json: &[u8]) -> Result<Self, String> {
                let node = yaml::from_json(json).map_err(|e| e.to_string())?;
                let raw = yaml::decode::<$raw>(&node, Flavour::Json).map_err(|e| e.to_string())?;
                Ok(raw.value.finish(Source::default()))
            }
        }
    )*};
}

from_json! {
    Component: component::Raw,
    HttpEndpoint: http_endpoint::Raw,
    Resiliency: resiliency::Raw,
    Subscription: subscription::RawV2,
}
