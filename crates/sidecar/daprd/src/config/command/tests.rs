use std::path::{Path, PathBuf};
use std::time::Duration;

use outrigger_runtime::app::{AppHealth, AppProtocol};

use super::*;
use crate::config::{Cors, LogLevel, Mode};

fn command(args: &[&str], env: &[(&str, &str)]) -> Result<Command, Exit> {
    let args = args.iter().map(|a| (*a).to_owned());
    Config::from_args(
        args,
        |name| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()),
        |_| {},
    )
}

fn run_with(args: &[&str], env: &[(&str, &str)]) -> Config {
    let mut all = vec!["--app-id=app"];
    all.extend(args);
    match command(&all, env) {
        Ok(Command::Run(config)) => *config,
        other => panic!("expected a sidecar: {other:?}"),
    }
}

fn run(args: &[&str]) -> Config {
    run_with(args, &[])
}

fn refused(args: &[&str]) -> Vec<String> {
    match command(args, &[]) {
        Err(exit @ Exit::Settings { .. }) => {
            assert_eq!(exit.code(), 1);
            let opening = if args.contains(&"--max-body-size=4MB") {
                "Failed to parse flags: "
            } else {
                "Fatal error from runtime: "
            };
            assert!(exit.to_string().starts_with(opening), "{exit}");
            exit.invalid().iter().map(|i| i.what.clone()).collect()
        }
        other => panic!("expected wrong settings: {other:?}"),
    }
}

#[test]
fn names_wrong_argument_and_remedy() {
    let args = [
        "--ap-id=x",
        "--app-max-concurrency=many",
        "--wait=maybe",
        "--app-binding-options-timeout=3",
        "--app-prot=grpc",
        "--app-port",
    ];
    let Err(exit @ Exit::Syntax { .. }) = command(&args, &[]) else {
        panic!("is refused")
    };
    assert_eq!(exit.code(), 2);
    let text = exit.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "unknown flag: --ap-id (--ap-id: did you mean --app-id?)",
            "invalid argument \"many\" for \"--app-max-concurrency\" flag: parsing \"many\": invalid syntax \
             (--app-max-concurrency: give a whole number)",
            "invalid argument \"maybe\" for \"--wait\" flag: parsing \"maybe\": invalid syntax \
             (--wait: give true or false)",
            "invalid argument \"3\" for \"--app-binding-options-timeout\" flag: time: missing unit in duration \"3\" \
             (--app-binding-options-timeout: give a duration such as 5s or 1m30s)",
            "unknown flag: --app-prot (--app-prot: did you mean --app-protocol?)",
            "flag needs an argument: --app-port (--app-port: add its value)",
            "all flags: daprd --help",
        ]
    );
}

#[test]
fn reports_flag_and_value_errors() {
    let args = ["--ap-id=x", "--zzzzzz", "--log-level=loud", "--mode"];
    let Err(exit @ Exit::Syntax { .. }) = command(&args, &[]) else {
        panic!("is refused")
    };
    let places: Vec<_> = exit
        .invalid()
        .iter()
        .map(|invalid| invalid.place.as_str())
        .collect();
    assert_eq!(places, ["--ap-id", "--zzzzzz", "--mode", "--log-level"]);
    assert!(exit.config().is_some());
}

#[test]
fn has_contract_defaults() {
    let c = run(&[]);
    assert_eq!(
        (c.mode, c.app_id.as_str(), c.workload.namespace_or_default()),
        (Mode::Standalone, "app", "default")
    );
    assert_eq!(
        (c.app.port, c.app.protocol, c.app.address.as_str()),
        (0, AppProtocol::Http, "127.0.0.1")
    );
    assert_eq!(
        (c.app.max_concurrency, c.app.health, c.app.health_path.as_str()),
        (None, None, "/healthz")
    );
    assert_eq!(c.app.binding_options_timeout, Duration::from_secs(3));
    assert_eq!(
        (
            c.api.http_port,
            c.api.grpc_port,
            c.api.listen_addresses.as_slice()
        ),
        (3500, 50001, &[String::new()][..])
    );
    assert_eq!(
        (c.api.max_body_size, c.api.read_buffer_size),
        (Some(4 << 20), 4 << 10)
    );
    assert_eq!(
        (&c.api.cors, c.api.api_logging, &c.api.token),
        (&Cors::Off, None, &None)
    );
    assert_eq!((c.internal.port, c.public.clone()), (None, None));
    assert_eq!(
        (
            c.metrics.enabled,
            c.metrics.port,
            c.metrics.listen_address.as_str()
        ),
        (true, 9090, "0.0.0.0")
    );
    assert_eq!((c.profiling.enabled, c.profiling.port), (false, 7777));
    assert_eq!(
        c.resources.pluggable_sockets,
        Path::new("/tmp/dapr-components-sockets")
    );
    assert_eq!(c.security.control_plane_trust_domain, "localhost");
    assert_eq!(c.security.control_plane_namespace, "default");
    assert_eq!(
        (c.control_plane.scheduler_streams, c.control_plane.placement.len()),
        (3, 0)
    );
    assert_eq!(
        (c.shutdown.grace, c.shutdown.block),
        (Some(Duration::from_secs(5)), None)
    );
    assert_eq!(
        (c.log.level, c.log.json, c.log.file),
        (LogLevel::Info, false, None)
    );
}

/// The flags with which Dapr's integration suite starts sidecars.
#[test]
fn reads_full_command_line() {
    let c = run(&[
        "--log-level=debug",
        "--app-protocol=GRPC",
        "--app-port=1",
        "--dapr-grpc-port=2",
        "--dapr-http-port=3",
        "--dapr-internal-grpc-port=4",
        "--dapr-internal-grpc-listen-address=127.0.0.1",
        "--dapr-listen-addresses=127.0.0.1, [::1]",
        "--dapr-public-port=5",
        "--dapr-public-listen-address=127.0.0.1",
        "--metrics-port=6",
        "--metrics-listen-address=127.0.0.1",
        "--profile-port=7",
        "--enable-app-health-check=true",
        "--app-health-probe-interval=0",
        "--app-health-threshold=0",
        "--mode=standalone",
        "--enable-mtls=true",
        "--enable-api-logging=true",
        "--enable-profiling",
        "--app-health-check-path=/foo",
        "--resources-path=/a",
        "--resources-path=/b",
        "--config=/c.yaml",
        "--placement-host-address=p:1,q:2",
        "--sentry-address=s:1",
        "--control-plane-address=o:1",
        "--disable-builtin-k8s-secret-store=true",
        "--dapr-graceful-shutdown-seconds=0",
        "--dapr-block-shutdown-duration=180s",
        "--scheduler-host-address=x:1,y:2",
        "--control-plane-trust-domain=td",
        "--max-body-size=1Ki",
        "--allowed-origins=http://a,http://b",
        "--disable-init-endpoints=Config, ,subscribe",
    ]);
    assert_eq!(
        (c.log.level, c.app.protocol, c.app.port),
        (LogLevel::Debug, AppProtocol::Grpc, 1)
    );
    assert_eq!(
        (c.api.grpc_port, c.api.http_port, c.internal.port),
        (2, 3, Some(4))
    );
    assert_eq!(c.api.listen_addresses, ["127.0.0.1", "[::1]"]);
    assert_eq!(c.public.map(|p| p.port), Some(5));
    let health = AppHealth {
        interval: Duration::from_secs(5),
        timeout: Duration::from_millis(500),
        threshold: 3,
    };
    assert_eq!(c.app.health, Some(health));
    assert_eq!(c.resources.paths, [PathBuf::from("/a"), PathBuf::from("/b")]);
    assert_eq!(c.resources.configs, ["/c.yaml"]);
    assert!(c.resources.disable_builtin_kubernetes_secret_store && c.security.mtls && c.profiling.enabled);
    assert_eq!(c.control_plane.placement, ["p:1", "q:2"]);
    assert_eq!(c.control_plane.scheduler, ["x:1", "y:2"]);
    assert_eq!(
        (c.shutdown.grace, c.shutdown.block),
        (None, Some(Duration::from_secs(180)))
    );
    assert_eq!((c.api.max_body_size, c.api.api_logging), (Some(1024), Some(true)));
    assert_eq!(c.api.cors, Cors::Only(vec!["http://a".into(), "http://b".into()]));
    assert!(c.app.skip_config_endpoint && c.app.skip_subscribe_endpoint);
    assert_eq!(c.security.control_plane_trust_domain, "td");
}

#[test]
fn environment_supplies_missing_flags() {
    let env = [
        ("NAMESPACE", "ns"),
        ("DAPR_API_TOKEN", "in"),
        ("APP_API_TOKEN", "out"),
        ("DAPR_CONTROLPLANE_TRUST_DOMAIN", "td"),
        ("DAPR_CONTROLPLANE_NAMESPACE", "cp"),
        ("DAPR_SCHEDULER_HOST_ADDRESS_DNS_A", "a:1,b:2"),
        ("DAPR_SENTRY_TOKEN_FILE", ""),
        ("DAPR_HTTP_DISABLE_H2C", "Yes"),
        ("DAPR_TRUST_ANCHORS", "PEM"),
        ("DAPR_ENV_KEYS", "A B"),
        ("DAPR_COMPONENTS_SOCKETS_FOLDER", "/s"),
    ];
    let c = run_with(&["--control-plane-namespace=mine"], &env);
    assert_eq!(
        (c.workload.namespace_raw(), c.workload.namespace_or_default()),
        ("ns", "ns")
    );
    assert_eq!(
        (c.api.token.as_deref(), c.app.api_token.as_deref()),
        (Some("in"), Some("out"))
    );
    assert_eq!(c.security.control_plane_trust_domain, "td");
    assert_eq!(c.security.control_plane_namespace, "mine");
    assert_eq!(c.control_plane.scheduler, ["a:1", "b:2"]);
    assert_eq!(c.security.token_file.as_deref(), Some(""));
    assert!(c.api.disable_h2c && c.security.trust_anchors.is_some());
    assert_eq!(
        (c.resources.env_keys.as_str(), c.resources.pluggable_sockets),
        ("A B", PathBuf::from("/s"))
    );
    assert_eq!(
        run_with(&["--scheduler-host-address="], &env)
            .control_plane
            .scheduler,
        [""; 0]
    );
    let injected = ("DAPR_COMPONENT_SOCKETS_FOLDER", "/injected");
    for (env, folder) in [(vec![injected], "/injected"), (vec![injected, env[10]], "/s")] {
        assert_eq!(run_with(&[], &env).resources.pluggable_sockets, Path::new(folder));
    }
    let empty = run_with(&[], &[("DAPR_API_TOKEN", ""), ("NAMESPACE", "")]);
    assert_eq!(
        (
            empty.api.token,
            empty.workload.namespace_raw(),
            empty.workload.namespace_or_default()
        ),
        (None, "", "default")
    );
}

#[test]
fn accepts_deprecated_flags() {
    assert_eq!(run(&["--app-ssl"]).app.protocol, AppProtocol::Https);
    assert_eq!(
        run(&["--app-ssl", "--app-protocol=grpc"]).app.protocol,
        AppProtocol::Grpcs
    );
    assert_eq!(
        run(&["--components-path=/x"]).resources.paths,
        [PathBuf::from("/x")]
    );
    assert_eq!(
        run(&["--components-path=/x", "--resources-path=/y"])
            .resources
            .paths,
        [PathBuf::from("/y")]
    );
    assert_eq!(
        run(&["--dapr-http-max-request-size=8"]).api.max_body_size,
        Some(8 << 20)
    );
    assert_eq!(
        run(&["--dapr-http-max-request-size=8", "--max-body-size=1Mi"])
            .api
            .max_body_size,
        Some(1 << 20)
    );
    assert_eq!(
        run(&["--dapr-http-read-buffer-size=8"]).api.read_buffer_size,
        8 << 10
    );
    let mut notes = Vec::new();
    let args = ["--app-id=a", "--app-ssl"].map(str::to_owned);
    Config::from_args(args, |_| None, |note| notes.push(note.to_owned())).unwrap();
    assert_eq!(
        notes,
        ["Flag --app-ssl has been deprecated, use '--app-protocol https|grpcs'"]
    );
}

#[test]
fn reports_unsupported_actors_service() {
    for (args, told) in [
        (&["--actors-service", "mine:host:7"][..], 1),
        (&["--actors-service", "placement:host:7"], 0),
        (
            &[
                "--actors-service",
                "mine:host:7",
                "--placement-host-address",
                "p:1",
            ],
            0,
        ),
        (&[], 0),
    ] {
        let mut notes = Vec::new();
        let args = args
            .iter()
            .map(|arg| (*arg).to_owned())
            .chain(["--app-id".to_owned(), "a".to_owned()]);
        Config::from_args(args, |_| None, |note| notes.push(note.to_owned())).unwrap();
        notes.retain(|note| note.contains("so actors are disabled"));
        assert_eq!(notes.len(), told, "{notes:?}");
    }
}

#[test]
fn maps_special_values() {
    assert_eq!(run(&["--max-body-size=-1"]).api.max_body_size, Some(4 << 20));
    assert_eq!(run(&["--max-body-size=0"]).api.max_body_size, None);
    assert_eq!(
        run(&["--dapr-http-max-request-size=-1"]).api.max_body_size,
        Some(4 << 20)
    );
    assert_eq!(run(&["--read-buffer-size=-1"]).api.read_buffer_size, 4 << 10);
    assert_eq!(run(&["--app-max-concurrency=7"]).app.max_concurrency, Some(7));
    assert_eq!(
        run(&["--dapr-graceful-shutdown-seconds=-3"]).shutdown.grace,
        Some(Duration::from_secs(5))
    );
    assert_eq!(
        run(&["--app-binding-options-timeout=-1s"])
            .app
            .binding_options_timeout,
        Duration::from_secs(3)
    );
    assert_eq!(run(&["--dapr-internal-grpc-port=0"]).internal.port, None);
    assert_eq!(run(&["--app-protocol="]).app.protocol, AppProtocol::Http);
    assert_eq!(run(&["--allowed-origins=*"]).api.cors, Cors::Any);
    assert_eq!(run(&["--enable-api-logging=false"]).api.api_logging, Some(false));
    for empty in ["", " ", "''", "'      '", "'\"\"'", "\"\"", "\"   \""] {
        let c = run(&[&format!("--placement-host-address={empty}")]);
        assert!(c.control_plane.placement.is_empty(), "{empty:?}");
    }
}

/// The flags with which Dapr's CLI starts a sidecar, in its order. The CLI also passes ports that it does not
/// choose.
#[test]
fn reads_command_line_of_cli() {
    let args = "--config /c.yaml --app-protocol http --log-level info --app-max-concurrency -1 \
                --placement-host-address localhost:50005 --components-path /c --max-body-size 4Mi \
                --read-buffer-size 4Ki --scheduler-host-address localhost:50006 --app-id x --app-port 0 \
                --dapr-http-port 1 --dapr-grpc-port 2 --profile-port -1 --metrics-port 3 \
                --dapr-internal-grpc-port 4";
    let c = run(&args.split_whitespace().collect::<Vec<_>>());
    assert_eq!(
        (c.app_id.as_str(), c.app.port, c.app.max_concurrency),
        ("x", 0, None)
    );
    assert_eq!((c.api.http_port, c.api.grpc_port, c.metrics.port), (1, 2, 3));
    assert!(!c.profiling.enabled && c.internal.port == Some(4));
    // Versions before 1.15.
    let older = "--dapr-http-max-request-size -1 --dapr-http-read-buffer-size -1 --profile-port -1 --app-ssl";
    let c = run(&older.split_whitespace().collect::<Vec<_>>());
    assert_eq!(
        (c.api.max_body_size, c.api.read_buffer_size),
        (Some(4 << 20), 4 << 10)
    );
}

#[test]
fn ignores_port_of_disabled_server() {
    for args in [
        &["--profile-port=-1"][..],
        &["--profile-port=70000", "--enable-profiling=false"],
        &["--metrics-port=-1", "--enable-metrics=false"],
        &[
            "--dapr-http-port=-1",
            "--dapr-grpc-port=-1",
            "--unix-domain-socket=/run",
        ],
    ] {
        run(args);
    }
    for (args, refusal) in [
        (
            &["--profile-port=-1", "--enable-profiling"][..],
            "error parsing profile-port: \"-1\" is not a port",
        ),
        (
            &["--profile-port=x"],
            "error parsing profile-port: \"x\" is not a port",
        ),
        (
            &["--metrics-port=-1"],
            "error parsing metrics-port: \"-1\" is not a port",
        ),
        (
            &["--dapr-http-port=-1"],
            "error parsing dapr-http-port: \"-1\" is not a port",
        ),
    ] {
        let all = [&["--app-id=app"], args].concat();
        assert_eq!(refused(&all), [refusal]);
    }
}

#[test]
fn names_sockets_after_app() {
    let c = run(&["--unix-domain-socket=/run"]);
    assert_eq!(
        c.api.http_socket("app"),
        Some(PathBuf::from("/run/dapr-app-http.socket"))
    );
    assert_eq!(
        c.api.grpc_socket("app"),
        Some(PathBuf::from("/run/dapr-app-grpc.socket"))
    );
}

#[test]
fn refuses_wrong_settings_with_contract_texts() {
    let with = |arg: &str| refused(&["--app-id=app", arg]);
    assert_eq!(refused(&[]), ["parameter app-id cannot be empty"]);
    assert_eq!(
        refused(&["--app-id=a.b"]),
        ["parameter app-id cannot contain dots"]
    );
    assert_eq!(
        with("--app-port=3500"),
        ["the 'dapr-http-port' argument value 3500 conflicts with 'app-port'"]
    );
    assert_eq!(
        with("--app-port=50001"),
        ["the 'dapr-grpc-port' argument value 50001 conflicts with 'app-port'"]
    );
    assert_eq!(
        with("--dapr-http-port=x"),
        ["error parsing dapr-http-port: \"x\" is not a port"]
    );
    assert_eq!(
        with("--app-port=70000"),
        ["error parsing app-port: \"70000\" is not a port"]
    );
    assert_eq!(
        with("--app-protocol=ftp"),
        ["invalid value for 'app-protocol': ftp"]
    );
    assert_eq!(
        with("--disable-init-endpoints=config,x"),
        ["invalid value for 'disable-init-endpoints': x"]
    );
    assert_eq!(
        with("--app-health-probe-timeout=6000"),
        ["value for 'health-probe-timeout' must be smaller than 'health-probe-interval'"]
    );
    assert!(with("--max-body-size=4MB")[0].starts_with("invalid value for 'max-body-size' option: "));
    assert_eq!(with("--scheduler-job-streams=0").len(), 1);
    assert_eq!(with("--log-level=loud"), ["invalid value for 'log-level': loud"]);
    assert_eq!(with("--mode=swarm"), ["invalid value for 'mode': swarm"]);
}

#[test]
fn refuses_app_port_as_own_port() {
    for (flag, more) in [
        ("dapr-http-port", None),
        ("dapr-grpc-port", None),
        ("dapr-internal-grpc-port", None),
        ("dapr-public-port", None),
        ("metrics-port", None),
        ("profile-port", Some("--enable-profiling")),
    ] {
        let port = format!("--{flag}=6001");
        let mut args = vec!["--app-id=app", "--app-port=6001", port.as_str()];
        args.extend(more);
        let Err(exit) = command(&args, &[]) else {
            panic!("{flag} is refused")
        };
        let text = exit.to_string();
        let expected = format!(
            "the '{flag}' argument value 6001 conflicts with 'app-port' (--{flag}: give it another port than --app-port)"
        );
        assert!(text.ends_with(&expected), "{text}");
    }
    // Default values count too.
    let taken = "the 'metrics-port' argument value 9090 conflicts with 'app-port'";
    assert_eq!(refused(&["--app-id=app", "--app-port=9090"]), [taken]);
    // A disabled server has no port, and an app on another machine has no local port.
    run(&["--app-port=9090", "--enable-metrics=false"]);
    run(&["--app-port=7777"]);
    run(&["--app-port=9090", "--app-channel-address=10.0.0.7"]);
}

#[test]
fn reports_all_wrong_settings() {
    let all = refused(&[
        "--app-id=a.b",
        "--app-port=3500",
        "--app-protocol=x",
        "--metrics-port=",
        "--log-level=y",
    ]);
    assert_eq!(all.len(), 5, "{all:?}");
}

#[test]
fn kubernetes_accepts_any_app_id() {
    assert!(
        matches!(command(&["--mode=kubernetes"], &[]), Ok(Command::Run(c)) if c.mode == Mode::Kubernetes)
    );
}

#[test]
fn printing_commands_ignore_settings() {
    // Tools parse the contract's version, in every build.
    assert_eq!(
        command(&["--version"], &[]),
        Ok(Command::Version("1.18.3".to_owned()))
    );
    assert!(
        matches!(command(&["--help"], &[]), Ok(Command::Help(text)) if text.starts_with("Usage of daprd:"))
    );
    assert_eq!(
        command(&["--wait", "--dapr-http-port=1"], &[]),
        Ok(Command::Wait { http_port: 1 })
    );
    let Ok(Command::BuildInfo(text)) = command(&["--build-info"], &[]) else {
        panic!("build info")
    };
    assert_eq!(text.lines().count(), 3);
    let head = format!("Version: {VERSION}\nGit Commit: ");
    assert!(text.starts_with(&head), "{text}");
}

#[test]
fn unknown_flags_exit_with_2() {
    let exit = command(&["--app-id=app", "--nope", "--app-max-concurrency=x"], &[]).unwrap_err();
    assert_eq!((exit.code(), exit.invalid().len()), (2, 2));
    let text = exit.to_string();
    assert!(
        text.contains("unknown flag: --nope") && text.ends_with("all flags: daprd --help"),
        "{text}"
    );
}

#[test]
fn environment_names_ports() {
    let variables = run(&["--app-port=8080"]).own_environment(Some("10.0.0.1"), 47301);
    for (name, value) in [
        ("APP_PORT", "8080"),
        ("DAPR_PORT", "47301"),
        ("HOST_ADDRESS", "10.0.0.1"),
        ("APP_ID", "app"),
    ] {
        assert!(variables.contains(&(name, value.to_owned())), "{name}");
    }
    assert_eq!(run(&[]).own_environment(None, 1).len(), 7);
}
