//! Annotations and labels of Dapr, as the operator and the injector read them.

use std::collections::BTreeMap;

pub use outrigger_resources::value::truthy as is_truthy;
/// What the sidecar reads its flags with.
pub use outrigger_resources::value::{go_nanos, quantity};

/// Whether a pod gets a sidecar.
pub const ENABLED: &str = "dapr.io/enabled";
/// App id.
pub const APP_ID: &str = "dapr.io/app-id";
/// Marks the pods of the control plane.
pub const CONTROL_PLANE: &str = "dapr.io/control-plane";
/// Name of the app's Configuration.
pub const CONFIG: &str = "dapr.io/config";
/// Whether the sidecar serves metrics.
pub const ENABLE_METRICS: &str = "dapr.io/enable-metrics";
/// Their port.
pub const METRICS_PORT: &str = "dapr.io/metrics-port";
/// Port of the sidecar's gRPC API.
pub const GRPC_PORT: &str = "dapr.io/grpc-port";
/// Port for other sidecars.
pub const INTERNAL_GRPC_PORT: &str = "dapr.io/internal-grpc-port";
/// Annotations of the service of the sidecar.
pub const SERVICE_ANNOTATIONS: &str = "dapr.io/sidecar-svc-annotations";
/// Label of pods that the injector changed.
pub const INJECTED: &str = "dapr.io/sidecar-injected";
/// Label of pods that the watchdog looked at.
pub const WATCHED: &str = "dapr.io/watchdog-patched";
/// The container of the sidecar.
pub const CONTAINER: &str = "daprd";

/// Whether the sidecar is a native one; only here, Dapr has none.
pub const NATIVE: &str = "dapr.io/enable-native-sidecar";

/// Port of a sidecar's HTTP API in a pod.
pub const HTTP_PORT: u16 = 3500;
/// Port of the gRPC API, where no annotation says otherwise.
pub const DEFAULT_GRPC_PORT: i32 = 50001;
/// Port where other sidecars call, where no annotation says otherwise.
pub const DEFAULT_INTERNAL_GRPC_PORT: i32 = 50002;
/// Port of the metrics, where no annotation says otherwise.
pub const DEFAULT_METRICS_PORT: i32 = 9090;

/// Longest name of a service: a DNS label (RFC 1123).
const MAX_LABEL: usize = 63;
/// What is appended to an app id for the name of its service.
const SERVICE_SUFFIX: &str = "-dapr";

/// Whether a value of [`ENABLED`] gives a pod a sidecar: one word alone does, in any case, as with Dapr's injector. Who
/// looks for pods that lack theirs has to ask the same question, or it deletes pods that will never get one.
pub fn enables_sidecar(text: &str) -> bool {
    text.eq_ignore_ascii_case("true")
}

/// Whether one of a pod's containers is the sidecar: `init` are those that are started before the others, where a native
/// one is. Who gives pods their sidecar and who looks for pods without it ask this same question.
pub fn has_sidecar<'a>(
    containers: impl IntoIterator<Item = &'a str>,
    init: impl IntoIterator<Item = &'a str>,
) -> bool {
    // Names are a pod's, of whichever kind containers are.
    containers.into_iter().chain(init).any(|name| name == CONTAINER)
}

/// The annotations of an object.
#[derive(Debug, Clone, Copy)]
pub struct Annotations<'a>(pub &'a BTreeMap<String, String>);

impl<'a> Annotations<'a> {
    /// The value of an annotation; `None` when absent.
    pub fn text(self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(String::as_str)
    }

    /// A boolean; `default` where there is none.
    pub fn boolean(self, name: &str, default: bool) -> bool {
        self.text(name).map_or(default, is_truthy)
    }

    /// Whether a pod with them gets a sidecar; see [`enables_sidecar`].
    pub fn wants_sidecar(self) -> bool {
        self.text(ENABLED).is_some_and(enables_sidecar)
    }

    /// A whole number; nothing where there is none, or no number.
    pub fn number(self, name: &str) -> Option<i32> {
        self.text(name)?.parse().ok()
    }
}

/// The name of the service of an app: a DNS label.
///
/// # Errors
/// What is wrong with the app id.
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
