use outrigger_flags::{Parsed, parse};

use super::*;

fn config_with(args: &[&str], namespace: Option<&str>) -> Result<Config, ConfigError> {
    let Ok(Parsed::Run(flags)) = parse(FLAGS, args.iter().map(|&arg| arg.to_owned())) else {
        panic!("{args:?}");
    };
    Config::from_flags(&flags, |name| {
        (name == "NAMESPACE")
            .then(|| namespace.map(str::to_owned))
            .flatten()
    })
}

fn config(args: &[&str]) -> Config {
    config_with(args, None).unwrap()
}

fn problems(args: &[&str]) -> Vec<String> {
    config_with(args, None).unwrap_err().0
}

#[test]
fn has_dapr_defaults() {
    let config = config(&[]);
    assert_eq!(
        config.grpc,
        Listen {
            host: String::new(),
            port: 50001
        }
    );
    assert_eq!((config.healthz_port, config.metrics_port), (8080, Some(9090)));
    assert_eq!(
        config.paths.root.to_str(),
        Some("/var/run/secrets/dapr.io/credentials/ca.crt")
    );
    assert_eq!(
        (config.trust_domain.as_str(), &*config.namespace),
        ("localhost", "default")
    );
    assert!(config.jwt.is_none() && config.oidc.is_none());
    assert_eq!(config.log.level, outrigger_telemetry::log::Level::Info);
}

#[test]
fn reads_namespace_from_environment() {
    assert_eq!(
        config_with(&[], Some("dapr-system")).unwrap().namespace,
        "dapr-system"
    );
    assert_eq!(config_with(&[], Some("")).unwrap().namespace, "default");
}

#[test]
fn joins_credential_files_to_folder() {
    let config = config(&[
        "-issuer-credentials=/c",
        "-issuer-ca-filename=/abs/root.pem",
        "-issuer-key-filename",
        "k.pem",
        "-jwt-key-filename=relative.key",
        "-jwks-filename=/abs/jwks.json",
    ]);
    let path = |path: &str| PathBuf::from(path);
    assert_eq!(config.paths.root, path("/abs/root.pem"));
    assert_eq!(config.paths.issuer, path("/c/issuer.crt"));
    assert_eq!(config.paths.issuer_key, path("/c/k.pem"));
    assert_eq!(
        config.paths.jwt_key,
        path("/c/jwt.key"),
        "a relative name is ignored"
    );
    assert_eq!(config.paths.jwks, path("/abs/jwks.json"));
}

#[test]
fn reads_jwt_and_oidc_flags() {
    let config = config(&[
        "-jwt-enabled=true",
        "-jwt-issuer=https://i",
        "-jwt-ttl=90m",
        "-jwt-signing-algorithm=ES384",
        "-jwt-key-id=k",
        "-oidc-enabled=true",
        "-oidc-server-tls-enabled=false",
        "-oidc-path-prefix=auth/",
        "-oidc-allowed-hosts=a,b",
        "-oidc-jwks-uri=https://e/jwks",
        "-enable-metrics=false",
    ]);
    let jwt = config.jwt.unwrap();
    assert_eq!(jwt.issuer.as_deref(), Some("https://i"));
    assert_eq!(
        (jwt.ttl, jwt.algorithm, jwt.key_id.as_deref()),
        (Duration::from_secs(5400), Algorithm::Es384, Some("k"))
    );
    let oidc = config.oidc.unwrap();
    assert_eq!(
        oidc.listen,
        Listen {
            host: "localhost".to_owned(),
            port: 9080
        }
    );
    assert_eq!((oidc.path_prefix.as_str(), oidc.tls), ("/auth", None));
    assert_eq!(oidc.allowed_hosts, ["a", "b"]);
    assert_eq!(config.metrics_port, None);
}

#[test]
fn ignores_prefix_of_slashes() {
    for prefix in ["", "/", "//"] {
        assert_eq!(path_prefix(prefix), "");
    }
    assert_eq!(path_prefix("/a/b/"), "/a/b");
}

#[test]
fn requires_namespace_in_kubernetes() {
    let problems = problems(&["--mode", "kubernetes"]);
    assert!(
        problems.len() == 1 && problems[0].contains("NAMESPACE is not set"),
        "{problems:?}"
    );
    assert!(self::problems(&["--mode=x"])[0].contains("want standalone or kubernetes"));
    let config = config_with(&["--mode=kubernetes", "--kubeconfig=/k"], Some("dapr-system")).unwrap();
    assert_eq!(config.cluster.unwrap().kubeconfig, Some("/k".into()));
    assert!(config_with(&[], Some("x")).unwrap().cluster.is_none());
}

#[test]
fn reports_all_errors_together() {
    let found = problems(&[
        "--trust-domain=Not Legal",
        "--port=70000",
        "--metrics-port=x",
        "--log-level=loud",
        "--jwt-issuer=i",
        "--oidc-enabled=true",
        "--oidc-server-tls-cert-file=c",
    ]);
    for wanted in [
        "--trust-domain",
        "--port 70000",
        "--metrics-port \"x\"",
        "loud",
        "--jwt-issuer",
        "belong together",
    ] {
        assert!(
            found.iter().any(|problem| problem.contains(wanted)),
            "{wanted}: {found:?}"
        );
    }
    let found = problems(&["--jwt-enabled", "--jwt-signing-algorithm=HS256", "--oidc-enabled"]);
    assert!(
        found[0].contains("HS256") && found[1].contains("the OIDC server uses TLS"),
        "{found:?}"
    );
}

#[test]
fn reads_rotation_mode() {
    assert_eq!(config(&[]).rotation, RotationMode::Own);
    assert_eq!(config(&["--ca-rotation=adopt"]).rotation, RotationMode::Adopt);
    assert_eq!(config(&["--ca-rotation=off"]).rotation, RotationMode::Off);
    let problems = problems(&["--ca-rotation=never"]);
    assert_eq!(
        problems,
        ["--ca-rotation \"never\" is unknown, want own, adopt or off"]
    );
}
