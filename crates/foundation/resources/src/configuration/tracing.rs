//! `tracing`: sampling and exporters.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};

use super::raw::GoDuration;
use crate::meta::NameValue;

/// Sampling rate for an empty or invalid text.
pub const DEFAULT_SAMPLING: f64 = 0.0001;

/// The effective tracing settings.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tracing {
    /// `samplingRate` as written; see [`Tracing::rate`].
    pub sampling_rate: String,
    /// Log spans.
    pub stdout: bool,
    /// `zipkin.endpointAddress`, a URL; empty disables Zipkin.
    pub zipkin_endpoint: String,
    /// `otel`.
    pub otel: Otel,
}

impl Tracing {
    /// The sampled fraction of root spans, 0 to 1. 0 disables tracing.
    pub fn rate(&self) -> f64 {
        self.sampling_rate
            .parse::<f64>()
            .ok()
            .filter(|r| !r.is_nan())
            .unwrap_or(DEFAULT_SAMPLING)
            .clamp(0.0, 1.0)
    }
}

/// `otel` of the tracing settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Otel {
    /// `host:port` of the collector; empty disables OTLP.
    pub endpoint: String,
    /// `http` or `grpc`; empty disables the exporter; other values are a startup error.
    pub protocol: String,
    /// TLS to the collector.
    pub secure: bool,
    /// Headers of every export, as name and value.
    pub headers: Vec<(String, String)>,
    /// Timeout of an export; `None` means the exporter's 10 s.
    pub timeout: Option<Duration>,
}

impl Default for Otel {
    fn default() -> Self {
        Otel {
            endpoint: String::new(),
            protocol: String::new(),
            secure: true,
            headers: Vec::new(),
            timeout: None,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Raw {
    sampling_rate: String,
    stdout: bool,
    zipkin: RawZipkin,
    otel: RawOtel,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawZipkin {
    endpoint_address: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawOtel {
    endpoint_address: String,
    protocol: String,
    is_secure: Option<bool>,
    headers: Vec<Header>,
    timeout: Option<GoDuration>,
}

impl From<Raw> for Tracing {
    fn from(raw: Raw) -> Tracing {
        Tracing {
            sampling_rate: raw.sampling_rate,
            stdout: raw.stdout,
            zipkin_endpoint: raw.zipkin.endpoint_address,
            otel: Otel {
                endpoint: raw.otel.endpoint_address,
                protocol: raw.otel.protocol,
                secure: raw.otel.is_secure.unwrap_or(true),
                headers: raw.otel.headers.into_iter().filter_map(|h| h.0).collect(),
                timeout: raw.otel.timeout.map(|d| d.0),
            },
        }
    }
}

/// `name=value` in files, an object in Kubernetes. An entry without `=` is ignored.
struct Header(Option<(String, String)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: serde::Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a header as name=value")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Header, E> {
                let pair = text.split_once('=');
                Ok(Header(
                    pair.map(|(name, value)| (name.to_owned(), value.to_owned())),
                ))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Header, A::Error> {
                let item = NameValue::deserialize(MapAccessDeserializer::new(map))?;
                let value = item.text().to_owned();
                Ok(Header(Some((item.name, value))))
            }
        }
        de.deserialize_any(Either)
    }
}
