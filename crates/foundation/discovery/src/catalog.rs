//! The available name resolvers, by their names in a Configuration resource.

use std::sync::Arc;

use outrigger_nearest::hint;
use serde_json::Value;

use crate::{Mdns, MdnsError, Registration, Resolver};

/// Component names known to [`build`], including aliases. `aws.cloudmap` is known but not supported.
pub const REGISTERED: &[&str] = &[
    "mdns",
    #[cfg(feature = "kubernetes")]
    "kubernetes",
    #[cfg(feature = "consul")]
    "consul",
    #[cfg(feature = "consul")]
    "hashicorp.consul",
    #[cfg(feature = "sqlite")]
    "sqlite",
    "nameformat",
];

/// Input of [`build`]: `spec.nameResolution` of the Configuration, and data about this sidecar.
#[derive(Clone)]
pub struct Options {
    /// Component name in any case; see [`default_component`].
    pub component: String,
    /// Empty, `v0` and `v1` all select the first version.
    pub version: String,
    /// Settings of the resolver, or null.
    pub configuration: Value,
    /// App ID and address to register for this sidecar.
    pub registration: Registration,
    /// Called when the sidecar must stop.
    pub on_fatal: FatalHook,
}

/// Called at most once; must not block.
pub type FatalHook = Arc<dyn Fn(FatalError) + Send + Sync>;

/// Errors that must stop the sidecar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FatalError {
    /// SQLite: another sidecar registered this sidecar's address, so calls for this app would reach the
    /// other one.
    #[error("Host registration lost: another sidecar registered {address}")]
    RegistrationLost {
        /// The contested address.
        address: String,
    },
}

/// Why a resolver could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Unknown component name or version.
    #[error("couldn't find name resolver {name}/{version}; {}", remedy(name))]
    Unknown {
        /// The requested name.
        name: String,
        /// The requested version.
        version: String,
    },
    /// A Dapr component that Outrigger does not support.
    #[error(
        "name resolver {name} is not supported; in spec.nameResolution of the Configuration choose \
         one of: {}",
        REGISTERED.join(", ")
    )]
    Unsupported {
        /// The requested name.
        name: String,
    },
    /// Multicast DNS failed to start.
    #[error(transparent)]
    Mdns(#[from] MdnsError),
    /// Invalid settings of the format resolver.
    #[error("name resolver nameformat: {0}")]
    NameFormat(#[from] crate::NameFormatError),
    /// Invalid settings of the SQLite resolver.
    #[cfg(feature = "sqlite")]
    #[error("SQLite name resolver: {0}")]
    SqliteConfig(#[from] crate::SqliteConfigError),
    /// The SQLite resolver failed to start.
    #[cfg(feature = "sqlite")]
    #[error(transparent)]
    Sqlite(#[from] crate::SqliteError),
    /// The Consul resolver failed to start.
    #[cfg(feature = "consul")]
    #[error("Consul name resolver: {0}")]
    Consul(#[from] crate::ConsulError),
    /// The Kubernetes resolver failed to start.
    #[cfg(feature = "kubernetes")]
    #[error(transparent)]
    Kubernetes(#[from] crate::KubernetesError),
}

/// Suggests a valid name or version in place of an unknown one.
fn remedy(name: &str) -> String {
    if REGISTERED.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        return "set spec.nameResolution.version of the Configuration to v1".to_owned();
    }
    let hint = hint(name, REGISTERED.iter().copied());
    format!("{hint}available: {}", REGISTERED.join(", "))
}

/// The default component when the Configuration names none.
pub fn default_component(kubernetes_mode: bool) -> &'static str {
    if kubernetes_mode { "kubernetes" } else { "mdns" }
}

/// Builds a resolver, registers this sidecar with it, and starts its background tasks. Needs a tokio
/// runtime.
pub async fn build(options: Options) -> Result<Arc<dyn Resolver>, BuildError> {
    let Options {
        component,
        version,
        registration,
        ..
    } = &options;
    let name = component.to_ascii_lowercase();
    if !matches!(&version.to_ascii_lowercase()[..], "" | "v0" | "v1") {
        return Err(unknown(&options));
    }
    Ok(match &name[..] {
        "mdns" => {
            if options
                .configuration
                .as_object()
                .is_some_and(|map| !map.is_empty())
            {
                tracing::warn!(
                    target: "dapr.contrib",
                    "name resolver mdns: it has no settings, and those in spec.nameResolution.configuration of the \
                     Configuration are not used"
                );
            }
            Arc::new(Mdns::start(registration)?)
        }
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let hook = Arc::clone(&options.on_fatal);
            let registry = crate::sqlite::Sqlite::start(&options.configuration, registration, hook).await?;
            Arc::new(crate::polled::Polled::new(registry))
        }
        #[cfg(feature = "consul")]
        "consul" | "hashicorp.consul" => {
            let registry = crate::consul::Consul::start(&options.configuration, registration).await?;
            Arc::new(crate::polled::Polled::new(registry))
        }
        #[cfg(feature = "kubernetes")]
        "kubernetes" => {
            let registry = crate::kubernetes::Kubernetes::start(&options.configuration, registration)?;
            Arc::new(crate::polled::Polled::new(registry))
        }
        "nameformat" => {
            let registry = crate::nameformat::NameFormat::start(&options.configuration, registration)?;
            Arc::new(crate::polled::Polled::new(registry))
        }
        "aws.cloudmap" => {
            return Err(BuildError::Unsupported {
                name: component.clone(),
            });
        }
        _ => return Err(unknown(&options)),
    })
}

fn unknown(options: &Options) -> BuildError {
    BuildError::Unknown {
        name: options.component.clone(),
        version: options.version.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(component: &str, version: &str) -> Options {
        Options {
            component: component.to_owned(),
            version: version.to_owned(),
            configuration: Value::Null,
            registration: Registration::default(),
            on_fatal: Arc::new(|_| {}),
        }
    }

    async fn error(component: &str, version: &str) -> BuildError {
        build(options(component, version)).await.err().unwrap()
    }

    #[tokio::test]
    async fn checks_names_and_versions() {
        let text = error("structuredformat", "v1").await.to_string();
        assert!(
            text.starts_with("couldn't find name resolver structuredformat/v1; available: mdns"),
            "{text}"
        );
        let text = error("mdsn", "").await.to_string();
        assert!(
            text.starts_with("couldn't find name resolver mdsn/; did you mean mdns? available: "),
            "{text}"
        );
        let text = error("mDNS", "v2").await.to_string();
        assert_eq!(
            text,
            "couldn't find name resolver mDNS/v2; set spec.nameResolution.version of the Configuration to v1"
        );
        assert!(matches!(
            error("AWS.CloudMap", "").await,
            BuildError::Unsupported { .. }
        ));
        // The name matches in any case; the build fails because the registration is empty.
        assert!(matches!(error("mDNS", "V1").await, BuildError::Mdns(_)));
    }

    #[cfg(any(feature = "sqlite", feature = "consul", feature = "kubernetes"))]
    #[test]
    fn warns_of_unknown_mdns_settings() {
        let warnings = |configuration| {
            crate::settings::tests::warnings(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let mut options = options("mdns", "");
                options.configuration = configuration;
                // Fails because the registration is empty.
                assert!(runtime.block_on(build(options)).is_err());
            })
        };
        assert_eq!(warnings(Value::Null), [""; 0]);
        assert_eq!(warnings(serde_json::json!({})), [""; 0]);
        let told = warnings(serde_json::json!({"connectionString": "x.db"}));
        assert!(
            told.len() == 1 && told[0].contains("mdns: it has no settings"),
            "{told:?}"
        );
    }
}
