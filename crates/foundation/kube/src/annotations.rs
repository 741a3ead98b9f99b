//! Dapr's annotations and labels, for the operator and the injector.

use std::collections::BTreeMap;

pub use outrigger_resources::value::truthy as is_truthy;
/// The parsers of the sidecar's flags.
pub use outrigger_resources::value::{go_nanos, quantity};

/// Whether a pod gets a sidecar.
pub const ENABLED: &str = "dapr.io/enabled";
/// App id.
pub const APP_ID: &str = "dapr.io/app-id";
/// Marks pods of the control plane.
pub const CONTROL_PLANE: &str = "dapr.io/control-plane";
/// Name of the app's Configuration.
pub const CONFIG: &str = "dapr.io/config";
/// Whether the sidecar serves metrics.
pub const ENABLE_METRICS: &str = "dapr.io/enable-metrics";
/// Port of the sidecar's metrics.
pub const METRICS_PORT: &str = "dapr.io/metrics-port";
/// Port of the sidecar's gRPC API.
pub const GRPC_PORT: &str = "dapr.io/grpc-port";
/// Port for other sidecars.
pub const INTERNAL_GRPC_PORT: &str = "dapr.io/internal-grpc-port";
/// Annotations of the sidecar's service.
pub const SERVICE_ANNOTATIONS: &str = "dapr.io/sidecar-svc-annotations";
/// Label of pods changed by the injector.
pub const INJECTED: &str = "dapr.io/sidecar-injected";
/// Label of pods checked by the watchdog.
pub const WATCHED: &str = "dapr.io/watchdog-patched";
/// Name of the sidecar container.
pub const CONTAINER: &str = "daprd";

/// Whether to inject a native sidecar; an Outrigger extension.
pub const NATIVE: &str = "dapr.io/enable-native-sidecar";

/// Port of the sidecar's HTTP API in a pod.
pub const HTTP_PORT: u16 = 3500;
/// Default port of the gRPC API.
pub const DEFAULT_GRPC_PORT: i32 = 50001;
/// Default port for other sidecars.
pub const DEFAULT_INTERNAL_GRPC_PORT: i32 = 50002;
/// Default port of the metrics.
pub const DEFAULT_METRICS_PORT: i32 = 9090;

/// Maximum length of a service name: a DNS label (RFC 1123).
const MAX_LABEL: usize = 63;
/// Suffix of an app ID in the name of its service.
const SERVICE_SUFFIX: &str = "-dapr";

/// Whether a value of [`ENABLED`] requests a sidecar: only `true`, in any case, as in Dapr's injector. The
/// watchdog must use the same rule, or it would delete pods that never get a sidecar.
pub fn enables_sidecar(text: &str) -> bool {
    text.eq_ignore_ascii_case("true")
}

/// Whether a pod has a sidecar among its containers; `init` are the init containers, which include native
/// sidecars. The injector and the watchdog use the same rule.
pub fn has_sidecar<'a>(
    containers: impl IntoIterator<Item = &'a str>,
    init: impl IntoIterator<Item = &'a str>,
) -> bool {
    // Container names are unique in a pod, across both kinds.
    containers.into_iter().chain(init).any(|name| name == CONTAINER)
}

/// The annotations of an object.
#[derive(Debug, Clone, Copy)]
pub struct Annotations<'a>(pub &'a BTreeMap<String, String>);

impl<'a> Annotations<'a> {
    /// The value of an annotation; `None` if absent.
    pub fn text(self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(String::as_str)
    }

    /// A boolean; `default` if absent.
    pub fn boolean(self, name: &str, default: bool) -> bool {
        self.text(name).map_or(default, is_truthy)
    }

    /// Whether a pod with these annotations gets a sidecar; see [`enables_sidecar`].
    pub fn wants_sidecar(self) -> bool {
        self.text(ENABLED).is_some_and(enables_sidecar)
    }

    /// An integer; `None` if absent or invalid.
    pub fn number(self, name: &str) -> Option<i32> {
        self.text(name)?.parse().ok()
    }
}

/// The name of an app's service: a DNS label.
///
/// # Errors
/// Why the app ID is invalid.
pub fn service_name(app_id: &str) -> Result<String, String> {
    let name = format!("{app_id}{SERVICE_SUFFIX}");
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    let right = letter(bytes[0]) && bytes.iter().all(|&byte| letter(byte) || byte == b'-');
    if app_id.is_empty() {
        return Err("value for the dapr.io/app-id annotation is empty".to_owned());
    }
    if bytes.len() > MAX_LABEL {
        let most = MAX_LABEL - SERVICE_SUFFIX.len();
        return Err(format!(
            "invalid app id (input: {app_id}, service: {name}): must be no more than {MAX_LABEL} characters; shorten \
             the dapr.io/app-id annotation to {most}"
        ));
    }
    if !right {
        return Err(format!(
            "invalid app id (input: {app_id}, service: {name}): a lowercase RFC 1123 label must consist of lower case \
             alphanumeric characters or '-', and must start with an alphanumeric character; correct the dapr.io/app-id \
             annotation"
        ));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_true_enables_sidecar() {
        for (text, wanted) in [
            ("true", true),
            ("TRUE", true),
            ("yes", false),
            ("1", false),
            (" true", false),
        ] {
            let map = BTreeMap::from([(ENABLED.to_owned(), text.to_owned())]);
            assert_eq!(Annotations(&map).wants_sidecar(), wanted, "{text:?}");
        }
        assert!(!Annotations(&BTreeMap::new()).wants_sidecar());
    }

    #[test]
    fn finds_sidecar_in_both_container_kinds() {
        assert!(has_sidecar(["app", "daprd"], []));
        assert!(has_sidecar(["app"], ["init", "daprd"]));
        assert!(!has_sidecar(["app"], ["init"]));
    }

    #[test]
    fn builds_service_names() {
        assert_eq!(service_name("cart").as_deref(), Ok("cart-dapr"));
        assert_eq!(service_name("1").as_deref(), Ok("1-dapr"));
        assert!(service_name(&"a".repeat(58)).is_ok());
        for bad in ["", "Cart", "a.b", "a_b", "-a", &"a".repeat(59)] {
            assert!(service_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ignores_invalid_numbers() {
        let map = BTreeMap::from([("a".to_owned(), "7".to_owned()), ("b".to_owned(), "x".to_owned())]);
        let annotations = Annotations(&map);
        assert_eq!(annotations.number("a"), Some(7));
        assert_eq!((annotations.number("b"), annotations.number("c")), (None, None));
        assert!(annotations.boolean("c", true) && !annotations.boolean("b", true));
    }
}
