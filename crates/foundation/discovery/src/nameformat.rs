//! Name resolution by a format: the address of an app contains its ID. There is no registry.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use crate::{
    Address, Registration, ResolveError,
    polled::Registry,
    settings::{Settings, SettingsError},
};

const NAME: &str = "nameformat";
const PLACEHOLDER: &str = "{appid}";
/// An answer never changes; dialing looks up its host name.
const CACHE_TTL: Duration = Duration::from_secs(60 * 60);

/// Why the resolver failed to start.
#[derive(Debug, thiserror::Error)]
pub enum NameFormatError {
    /// A setting has the wrong form.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// There is no format.
    #[error("format is required in metadata")]
    Missing,
    /// Every app would have the same address.
    #[error("format must contain {PLACEHOLDER} placeholder")]
    NoPlaceholder,
}

/// Puts app IDs into a format.
pub(crate) struct NameFormat {
    format: String,
    /// Port of addresses without one.
    port: u16,
}

impl NameFormat {
    pub(crate) fn start(configuration: &Value, registration: &Registration) -> Result<Self, NameFormatError> {
        let settings = Settings::new(configuration)?;
        let format = settings.filled(&["format"])?.ok_or(NameFormatError::Missing);
        settings.show_unused(NAME, format.is_ok());
        let format = format?;
        match format.contains(PLACEHOLDER) {
            true => Ok(Self {
                format,
                port: registration.internal_port,
            }),
            false => Err(NameFormatError::NoPlaceholder),
        }
    }
}

#[async_trait]
impl Registry for NameFormat {
    fn name(&self) -> &'static str {
        NAME
    }

    fn fresh_for(&self) -> Duration {
        CACHE_TTL
    }

    async fn look_up(&self, app_id: &str, _: &str) -> Result<Vec<Address>, ResolveError> {
        if app_id.is_empty() {
            return Err(ResolveError::EmptyId);
        }
        let text = self.format.replace(PLACEHOLDER, app_id);
        let address = text.parse().unwrap_or_else(|_| Address::new(&text, self.port));
        Ok(vec![address])
    }

    async fn close(&self) {}
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn start(configuration: Value) -> Result<NameFormat, NameFormatError> {
        let registration = Registration {
            internal_port: 50002,
            ..Registration::default()
        };
        NameFormat::start(&configuration, &registration)
    }

    #[tokio::test]
    async fn puts_id_into_format() {
        for (format, expected) in [
            ("{appid}-dapr.shop.local:7000", "orders-dapr.shop.local:7000"),
            ("{appid}.{appid}", "orders.orders:50002"),
        ] {
            let resolver = start(json!({ "Format": format })).unwrap();
            let found = resolver.look_up("orders", "ns").await.unwrap();
            assert_eq!(found[0].to_string(), expected);
        }
        let resolver = start(json!({"format": "{appid}:1"})).unwrap();
        let error = resolver.look_up("", "ns").await.unwrap_err();
        assert_eq!(error.to_string(), "empty ID not allowed");
    }

    #[test]
    fn reference_lists_settings() {
        let configuration = json!({"format": "{appid}"});
        let settings = Settings::new(&configuration).unwrap();
        settings.filled(&["format"]).unwrap();
        crate::settings::tests::check_docs("Format", &settings);
    }

    #[test]
    fn format_needs_placeholder() {
        for (configuration, text) in [
            (Value::Null, "format is required in metadata"),
            (json!({"format": ""}), "format is required in metadata"),
            (
                json!({"format": "host:1"}),
                "format must contain {appid} placeholder",
            ),
        ] {
            assert_eq!(start(configuration).err().unwrap().to_string(), text);
        }
    }
}
