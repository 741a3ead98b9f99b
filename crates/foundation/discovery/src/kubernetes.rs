//! Name resolution by the DNS of a Kubernetes cluster.

mod template;

use std::{net::IpAddr, time::Duration};

use async_trait::async_trait;
use hickory_resolver::TokioResolver;
use serde_json::Value;

use self::template::Template;
pub use self::template::TemplateError;
use crate::{
    Address, Registration, ResolveError,
    polled::Registry,
    settings::{Settings, SettingsError},
};

const DEFAULT_DOMAIN: &str = "cluster.local";
/// Time to cache an answer.
const CACHE_TTL: Duration = Duration::from_secs(20);

/// Why the Kubernetes resolver failed to start.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    /// A setting has the wrong form.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Invalid template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The system's DNS configuration could not be read.
    #[error("Kubernetes name resolver: cannot read the DNS configuration (/etc/resolv.conf): {0}")]
    Dns(String),
}

/// Looks up the service of a Dapr app in the cluster's DNS.
pub(crate) struct Kubernetes {
    domain: String,
    template: Option<Template>,
    port: u16,
    dns: TokioResolver,
}

impl Kubernetes {
    pub(crate) fn start(configuration: &Value, registration: &Registration) -> Result<Self, KubernetesError> {
        let failed = |error: hickory_resolver::net::NetError| KubernetesError::Dns(error.to_string());
        let mut builder = TokioResolver::builder_tokio().map_err(failed)?;
        // Disabled: this resolver has its own cache, and an evicted address must be looked up again.
        builder.options_mut().cache_size = 0;
        Self::with_dns(configuration, registration, builder.build().map_err(failed)?)
    }

    fn with_dns(
        configuration: &Value,
        registration: &Registration,
        dns: TokioResolver,
    ) -> Result<Self, KubernetesError> {
        let settings = Settings::new(configuration)?;
        let resolver = Self::of(&settings, registration, dns);
        settings.show_unused("kubernetes", resolver.is_ok());
        resolver
    }

    fn of(
        settings: &Settings<'_>,
        registration: &Registration,
        dns: TokioResolver,
    ) -> Result<Self, KubernetesError> {
        let template = settings.filled(&["template"])?;
        Ok(Self {
            domain: settings.filled_or(&["clusterDomain"], DEFAULT_DOMAIN)?,
            template: template.as_deref().map(Template::parse).transpose()?,
            port: registration.internal_port,
            dns,
        })
    }

    /// Host and port of an app's service. All sidecars of a cluster use the same internal port, so this
    /// sidecar's port applies.
    fn service(&self, app_id: &str, namespace: &str) -> Result<Address, ResolveError> {
        let text = match &self.template {
            Some(template) => template.render(app_id, namespace, self.port),
            // The trailing dot bypasses the pod's search list: one query instead of six.
            None => format!("{app_id}-dapr.{namespace}.svc.{}.:{}", self.domain, self.port),
        };
        text.parse().map_err(|error| ResolveError::Dns {
            name: text.clone(),
            absent: false,
            cause: format!("{error}"),
        })
    }
}

#[async_trait]
impl Registry for Kubernetes {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    fn fresh_for(&self) -> Duration {
        CACHE_TTL
    }

    async fn look_up(&self, app_id: &str, namespace: &str) -> Result<Vec<Address>, ResolveError> {
        let service = self.service(app_id, namespace)?;
        if service.ip().is_some() {
            return Ok(vec![service]);
        }
        let failed = |absent: bool, cause: String| ResolveError::Dns {
            name: service.host().trim_end_matches('.').to_owned(),
            absent,
            cause,
        };
        let found = self.dns.lookup_ip(service.host()).await;
        let found = found.map_err(|error| failed(error.is_no_records_found(), error.to_string()))?;
        let mut ips: Vec<IpAddr> = found.iter().collect();
        // DNS servers shuffle their answers.
        ips.sort_unstable();
        ips.dedup();
        if ips.is_empty() {
            return Err(failed(true, "no addresses".to_owned()));
        }
        let address = |ip: IpAddr| Address::new(&ip.to_string(), service.port());
        Ok(ips.into_iter().map(address).collect())
    }

    async fn close(&self) {}
}

#[cfg(test)]
mod tests;
