//! Settings of the Consul resolver.

use std::time::Duration;

use outrigger_resources::value::go_bool;
use serde_json::{Map, Value, json};

use super::shape;
use crate::{
    Registration,
    settings::{Settings, SettingsError},
};

const DEFAULT_PORT_KEY: &str = "DAPR_PORT";
const DEFAULT_ADDRESS: &str = "127.0.0.1:8500";

/// Why a Consul configuration is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConsulConfigError {
    /// A setting has the wrong form.
    #[error("error deserializing to configSpec: {0}")]
    Settings(#[from] SettingsError),
    /// Self-registration needs this property of the sidecar.
    #[error("metadata property missing: {0}")]
    PropertyMissing(&'static str),
    /// Invalid address of the agent.
    #[error("Consul address `{0}` is not usable: expected HOST:PORT with http or https")]
    Address(String),
}

/// Validated settings of the Consul resolver.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) client: Client,
    pub(super) query: Query,
    /// Registration to send to the agent; `None` if this sidecar is registered externally.
    pub(super) registration: Option<Value>,
    pub(super) deregister: bool,
    pub(super) port_key: String,
    /// Cache and watch the instances of every app that was looked up.
    pub(super) use_cache: bool,
}

/// Connection to the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Client {
    /// `http` or `https`.
    pub(super) scheme: String,
    /// `HOST:PORT`.
    pub(super) address: String,
    pub(super) datacenter: Option<String>,
    pub(super) basic_auth: Option<(String, String)>,
    pub(super) wait_time: Option<Duration>,
    pub(super) token: Option<String>,
    pub(super) token_file: Option<String>,
    pub(super) server_name: Option<String>,
    pub(super) ca_file: Option<String>,
    pub(super) ca_path: Option<String>,
    pub(super) cert_file: Option<String>,
    pub(super) key_file: Option<String>,
    pub(super) skip_verify: bool,
}

/// Options of a health query, as parameters and headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) parameters: Vec<(&'static str, String)>,
    pub(super) use_cache: bool,
    pub(super) cache_control: Option<String>,
    pub(super) token: Option<String>,
    pub(super) wait_time: Option<Duration>,
}

impl Config {
    /// `env` reads Consul's environment variables.
    pub(super) fn read(
        configuration: &Value,
        registration: &Registration,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConsulConfigError> {
        let settings = Settings::new(configuration)?;
        let config = Self::of(&settings, registration, env);
        settings.show_unused("consul", config.is_ok());
        config
    }

    fn of(
        settings: &Settings<'_>,
        registration: &Registration,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConsulConfigError> {
        if registration.internal_port == 0 {
            return Err(ConsulConfigError::PropertyMissing("DAPR_PORT"));
        }
        let port_key = settings.filled_or(&["daprPortMetaKey"], DEFAULT_PORT_KEY)?;
        // Often set along with `advancedRegistration`, which overrides it.
        let self_register = settings.flag(&["selfRegister"])?;
        let mut body = match settings.value("advancedRegistration") {
            Some(advanced) => Some(shape::canonical(advanced, shape::registration())),
            None if self_register => Some(own_registration(settings, registration)?),
            None => None,
        };
        if let Some(Value::Object(body)) = &mut body {
            let meta = body.entry("Meta").or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(meta) = meta {
                meta.insert(port_key.clone(), registration.internal_port.to_string().into());
            }
        }
        Ok(Self {
            client: Client::read(&settings.nested("client")?, env)?,
            query: match settings.value("queryOptions") {
                Some(_) => Query::read(&settings.nested("queryOptions")?)?,
                None => Query {
                    use_cache: true,
                    ..Query::default()
                },
            },
            registration: body,
            deregister: settings.flag(&["selfDeregister"])?,
            port_key,
            use_cache: settings.flag(&["useCache"])?,
        })
    }
}

fn own_registration(
    settings: &Settings<'_>,
    registration: &Registration,
) -> Result<Value, ConsulConfigError> {
    let Registration {
        app_id,
        host_address: host,
        http_port,
        app_port,
        ..
    } = registration;
    for (missing, property) in [
        (app_id.is_empty(), "APP_ID"),
        (*app_port == 0, "APP_PORT"),
        (host.is_empty(), "HOST_ADDRESS"),
        (*http_port == 0, "DAPR_HTTP_PORT"),
    ] {
        if missing {
            return Err(ConsulConfigError::PropertyMissing(property));
        }
    }
    let id = format!("{app_id}-{host}-{http_port}");
    let checks = match settings.value("checks") {
        Some(Value::Array(checks)) if !checks.is_empty() => checks
            .iter()
            .map(|check| shape::canonical(check, shape::check()))
            .collect(),
        _ => {
            let address = crate::Address::new(host, *http_port);
            json!([{
                "Name": "Dapr Health Status",
                "CheckID": format!("daprHealth:{id}"),
                "Interval": "15s",
                "HTTP": format!("http://{address}/v1.0/healthz?appid={app_id}"),
            }])
        }
    };
    Ok(json!({
        "ID": id,
        "Name": app_id,
        "Address": host,
        "Port": app_port,
        "Checks": checks,
        "Tags": settings.value("tags").cloned().unwrap_or_else(|| json!([])),
        "Meta": settings.value("meta").cloned().unwrap_or_else(|| json!({})),
    }))
}

impl Client {
    fn read(
        settings: &Settings<'_>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConsulConfigError> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let text = |key: &str| settings.filled(&[key]);
        let tls = settings.nested("tlsConfig")?;
        let tls_text =
            |key: &str, name: &str| Ok::<_, SettingsError>(tls.filled(&[key])?.or_else(|| env(name)));
        let auth = settings.nested("httpAuth")?;
        let user = auth.text("username")?.map(|user| {
            let password = auth.text("password").ok().flatten().unwrap_or_default();
            (user, password)
        });
        let is_set = |name: &str| env(name).as_deref().and_then(go_bool) == Some(true);
        let given = text("address")?
            .or_else(|| env("CONSUL_HTTP_ADDR"))
            .unwrap_or_else(|| DEFAULT_ADDRESS.to_owned());
        let (prefix, address) = given.split_once("://").unwrap_or(("", &given));
        let scheme = match (prefix, text("scheme")?) {
            ("", Some(scheme)) => scheme.to_ascii_lowercase(),
            ("", None) if is_set("CONSUL_HTTP_SSL") => "https".to_owned(),
            ("", None) => "http".to_owned(),
            (prefix, _) => prefix.to_ascii_lowercase(),
        };
        if !matches!(&scheme[..], "http" | "https") || address.is_empty() {
            return Err(ConsulConfigError::Address(given));
        }
        Ok(Self {
            scheme,
            address: address.trim_end_matches('/').to_owned(),
            datacenter: text("datacenter")?,
            basic_auth: user.or_else(|| basic_auth_of(env("CONSUL_HTTP_AUTH")?)),
            wait_time: settings.nanoseconds("waitTime")?,
            token: text("token")?.or_else(|| env("CONSUL_HTTP_TOKEN")),
            token_file: text("tokenFile")?.or_else(|| env("CONSUL_HTTP_TOKEN_FILE")),
            server_name: tls_text("address", "CONSUL_TLS_SERVER_NAME")?,
            ca_file: tls_text("caFile", "CONSUL_CACERT")?,
            ca_path: tls_text("caPath", "CONSUL_CAPATH")?,
            cert_file: tls_text("certFile", "CONSUL_CLIENT_CERT")?,
            key_file: tls_text("keyFile", "CONSUL_CLIENT_KEY")?,
            skip_verify: tls.flag(&["insecureSkipVerify"])?
                || env("CONSUL_HTTP_SSL_VERIFY")
                    .is_some_and(|value| matches!(&value[..], "0" | "f" | "false")),
        })
    }
}

fn basic_auth_of(text: String) -> Option<(String, String)> {
    let (user, password) = text.split_once(':').unwrap_or((&text, ""));
    Some((user.to_owned(), password.to_owned()))
}

impl Query {
    fn read(settings: &Settings<'_>) -> Result<Self, ConsulConfigError> {
        let mut parameters = Vec::new();
        for (key, parameter) in [("datacenter", "dc"), ("near", "near"), ("filter", "filter")] {
            if let Some(text) = settings.filled(&[key])? {
                parameters.push((parameter, text));
            }
        }
        for (key, parameter) in [
            ("allowStale", "stale"),
            ("requireConsistent", "consistent"),
            ("localOnly", "local-only"),
            ("connect", "connect"),
        ] {
            if settings.flag(&[key])? {
                parameters.push((parameter, "true".to_owned()));
            }
        }
        for (key, value) in settings.text_map("nodeMeta")? {
            parameters.push(("node-meta", format!("{key}:{value}")));
        }
        if let Some(factor) = settings.number("relayFactor")?.filter(|factor| *factor > 0) {
            parameters.push(("relay-factor", factor.to_string()));
        }
        let use_cache = settings.flag(&["useCache"])? && !settings.flag(&["requireConsistent"])?;
        let directives = [("max-age", "maxAge"), ("stale-if-error", "staleIfError")];
        let mut cache_control = Vec::new();
        for (directive, key) in directives {
            if let Some(time) = settings.nanoseconds(key)?.filter(|time| !time.is_zero()) {
                cache_control.push(format!("{directive}={}", time.as_secs()));
            }
        }
        Ok(Self {
            parameters,
            use_cache,
            cache_control: (use_cache && !cache_control.is_empty()).then(|| cache_control.join(", ")),
            token: settings.filled(&["token"])?,
            wait_time: settings.nanoseconds("waitTime")?,
        })
    }
}

#[cfg(test)]
mod tests;
