//! The resource that spans belong to.

use percent_encoding::percent_decode_str;

/// Resource attributes in order of first appearance; always includes `service.name`.
#[derive(Debug)]
pub(super) struct Resource {
    pub(super) attributes: Vec<(String, String)>,
}

const SERVICE_NAME: &str = "service.name";

impl Resource {
    /// `service.name` is the app ID unless `OTEL_RESOURCE_ATTRIBUTES` or, with precedence,
    /// `OTEL_SERVICE_NAME` sets it.
    pub(super) fn new(app_id: &str, env: impl Fn(&str) -> Option<String>) -> Self {
        let mut resource = Self {
            attributes: vec![(SERVICE_NAME.into(), app_id.into())],
        };
        for entry in env("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default().split(',') {
            match entry.split_once('=') {
                Some((key, value)) if !key.trim().is_empty() => {
                    let value = percent_decode_str(value.trim()).decode_utf8_lossy().into_owned();
                    resource.set(key.trim(), value);
                }
                _ if entry.trim().is_empty() => {}
                _ => tracing::warn!(
                    target: "dapr.runtime",
                    "OTEL_RESOURCE_ATTRIBUTES: ignoring {entry:?}, which is not key=value"
                ),
            }
        }
        if let Some(name) = env("OTEL_SERVICE_NAME").filter(|name| !name.is_empty()) {
            resource.set(SERVICE_NAME, name);
        }
        resource
    }

    pub(super) fn service_name(&self) -> &str {
        self.attributes
            .iter()
            .find(|(k, _)| k == SERVICE_NAME)
            .map_or("", |(_, v)| v)
    }

    fn set(&mut self, key: &str, value: String) {
        match self.attributes.iter_mut().find(|(k, _)| k == key) {
            Some(slot) => slot.1 = value,
            None => self.attributes.push((key.to_owned(), value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(env: &[(&str, &str)]) -> Resource {
        Resource::new("app", |name| {
            env.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned())
        })
    }

    #[test]
    fn environment_overrides_attributes() {
        assert_eq!(resource(&[]).service_name(), "app");
        let attributes = (
            "OTEL_RESOURCE_ATTRIBUTES",
            "service.name=a,k8s.pod.name=p%201,,broken",
        );
        let merged = resource(&[attributes]);
        assert_eq!(merged.service_name(), "a");
        assert_eq!(
            merged.attributes[1],
            ("k8s.pod.name".to_owned(), "p 1".to_owned())
        );
        assert_eq!(merged.attributes.len(), 2);
        assert_eq!(
            resource(&[attributes, ("OTEL_SERVICE_NAME", "b")]).service_name(),
            "b"
        );
    }
}
