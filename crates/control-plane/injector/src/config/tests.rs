use outrigger_flags::{Parsed, parse};

use super::*;

const REQUIRED: &[(&str, &str)] = &[("SIDECAR_IMAGE", "image"), ("NAMESPACE", "dapr-system")];

fn config(args: &[&str], more: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let env: Vec<_> = more.iter().chain(REQUIRED).copied().collect();
    with_env(args, &env)
}

fn with_env(args: &[&str], env: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let Ok(Parsed::Run(flags)) = parse(FLAGS, args.iter().map(|&arg| arg.to_owned())) else {
        panic!("{args:?}");
    };
    Config::from_flags(&flags, |name| {
        env.iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn has_dapr_defaults() {
    let config = config(&[], &[("KUBE_CLUSTER_DOMAIN", "corp")]).unwrap();
    assert_eq!(
        (
            config.webhook.port,
            config.healthz.port,
            config.metrics.unwrap().port
        ),
        (4000, 8080, 9090)
    );
    assert_eq!(config.sentry_address, "dapr-sentry.dapr-system.svc:443");
    assert_eq!(config.configuration, "daprsystem");
    let settings = config.settings;
    assert_eq!(
        settings.sentry_id,
        "spiffe://cluster.local/ns/dapr-system/dapr-sentry"
    );
    assert_eq!(
        settings.address("dapr-api", 443),
        "dapr-api.dapr-system.svc.corp:443"
    );
    assert_eq!(
        (settings.pull_policy, settings.sockets_folder.as_str()),
        ("Always", "/tmp/dapr-components-sockets")
    );
    assert!(settings.run_as_non_root && settings.read_only_root && settings.scheduler);
    assert!(!settings.drop_capabilities && !settings.downward);
    let actors = settings.actors.unwrap();
    assert_eq!(
        (actors.kind.as_str(), actors.host.as_str(), actors.port),
        ("placement", "dapr-placement-server", 50005)
    );
    assert_eq!(settings.reminders, None);
}

#[test]
fn reads_settings_from_environment() {
    let config = config(
        &["--scheduler-enabled=false"],
        &[
            ("SIDECAR_IMAGE_PULL_POLICY", "other"),
            ("ACTORS_SERVICE_NAME", "mine"),
            ("ACTORS_SERVICE_ADDRESS", "svc:7"),
            ("REMINDERS_SERVICE_NAME", "r"),
            ("REMINDERS_SERVICE_ADDRESS", "rem:8"),
            ("SIDECAR_RUN_AS_USER", "1000"),
            ("SIDECAR_RUN_AS_NON_ROOT", "no"),
            ("IGNORE_ENTRYPOINT_TOLERATIONS", "not json"),
            ("DAPR_CONTROL_PLANE_CONFIGURATION", "mine"),
        ],
    );
    let config = config.unwrap();
    assert_eq!(config.configuration, "mine");
    let settings = config.settings;
    assert_eq!(settings.pull_policy, "IfNotPresent");
    assert_eq!(settings.actors.unwrap().host, "svc");
    assert_eq!(settings.reminders.unwrap().port, 8);
    assert_eq!(
        (settings.run_as_user, settings.run_as_non_root),
        (Some(1000), false)
    );
    assert!(settings.tolerations.is_empty() && !settings.scheduler);
}

#[test]
fn disables_actors_and_reminders() {
    let off = config(
        &[],
        &[
            ("ACTORS_ENABLED", "false"),
            ("ACTORS_SERVICE_NAME", "mine"),
            ("REMINDERS_SERVICE_NAME", "default"),
        ],
    )
    .unwrap()
    .settings;
    assert_eq!((off.actors, off.reminders), (None, None));
}

#[test]
fn rejects_invalid_settings() {
    let problems = with_env(&[], &[]).unwrap_err().to_string();
    assert!(
        problems.contains("SIDECAR_IMAGE is required") && problems.contains("NAMESPACE is required"),
        "{problems}"
    );
    for (name, value, text) in [
        ("SIDECAR_RUN_AS_USER", "root", "\"root\" is not a number"),
        ("ACTORS_SERVICE_ADDRESS", "x", "<service>:<port>"),
        (
            "ACTORS_SERVICE_NAME",
            "mine",
            "ACTORS_SERVICE_ADDRESS is required",
        ),
        (
            "REMINDERS_SERVICE_NAME",
            "mine",
            "REMINDERS_SERVICE_ADDRESS is required",
        ),
        (
            "ALLOWED_SERVICE_ACCOUNTS",
            "a",
            "ALLOWED_SERVICE_ACCOUNTS: \"a\" is not namespace:name",
        ),
        (
            "ALLOWED_SERVICE_ACCOUNTS_PREFIX_NAMES",
            "a:[b",
            "ALLOWED_SERVICE_ACCOUNTS_PREFIX_NAMES: \"[b\"",
        ),
        (
            "DAPR_CONTROL_PLANE_TRUST_DOMAIN",
            "A B",
            "DAPR_CONTROL_PLANE_TRUST_DOMAIN",
        ),
    ] {
        let problems = config(&[], &[(name, value)]).unwrap_err().to_string();
        assert!(problems.contains(text), "{name}: {problems}");
    }
}
