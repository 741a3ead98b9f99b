//! The errors of a process that cannot start: all at once, each with place, correct name and remedy.

mod early;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Runs `daprd` in a folder until it exits.
fn daprd(folder: &Path, flags: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_daprd"))
        .args(flags)
        .current_dir(folder)
        .env("DAPR_HOST_IP", "127.0.0.1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("it starts: {:?}", child.wait_with_output().unwrap());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// The log of a sidecar on free ports that fails to start; its exit status is 1.
fn log(folder: &Path, flags: &[&str]) -> String {
    let ports = [
        "--app-id=app",
        "--dapr-http-port=0",
        "--dapr-grpc-port=0",
        "--metrics-port=0",
        "--dapr-listen-addresses=127.0.0.1",
        "--dapr-internal-grpc-listen-address=127.0.0.1",
    ];
    let output = daprd(folder, &[&ports, flags].concat());
    let log = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{log}");
    log
}

fn says(log: &str, parts: &[&str]) {
    let line = |line: &str| parts.iter().all(|part| line.contains(part));
    assert!(log.lines().any(line), "no line has {parts:?}:\n{log}");
}

fn component(kind: &str, name: &str, properties: &[&str]) -> String {
    let items: String = properties
        .iter()
        .map(|name| format!("  - name: {name}\n    value: x\n"))
        .collect();
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  type: {kind}\n  \
         version: v1\n  metadata:\n{items}"
    )
}

#[test]
fn wrong_command_line_omits_usage() {
    let folder = tempfile::tempdir().unwrap();
    let output = daprd(
        folder.path(),
        &["--app-prot", "grpc", "--confg=x", "--app-max-concurrency=all"],
    );
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    for (line, part) in [
        (0, "did you mean --app-protocol?"),
        (1, "did you mean --config?"),
        (2, "--app-max-concurrency"),
        (3, "app-id cannot be empty"),
        (4, "daprd --help"),
    ] {
        assert!(lines[line].contains(part), "{text}");
    }
}

#[test]
fn names_all_missing_files() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("resources")).unwrap();
    std::fs::write(folder.path().join("config.yaml"), "").unwrap();
    let log = log(
        folder.path(),
        &[
            "--resources-path=resorces",
            "--config=confg.yaml",
            "--config=other",
        ],
    );
    for parts in [
        [
            "confg.yaml: cannot read file confg.yaml",
            "did you mean config.yaml?",
        ],
        ["other: cannot read file other", "check path"],
        [
            "resorces: cannot read resources folder resorces",
            "did you mean resources?",
        ],
        [
            "error loading configuration: cannot read file confg.yaml",
            "folder resorces",
        ],
    ] {
        says(&log, &parts);
    }
}

#[test]
fn reports_flag_and_file_errors() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("resources")).unwrap();
    let log = log(
        folder.path(),
        &[
            "--app-protocol=htpp",
            "--resources-path=resorces",
            "--config=confg.yaml",
        ],
    );
    for parts in [
        ["level=fatal", "--app-protocol: did you mean http?"],
        ["level=error", "confg.yaml: cannot read file confg.yaml"],
        ["level=error", "resorces: cannot read resources folder resorces"],
    ] {
        says(&log, &parts);
    }
}

#[test]
fn reports_component_and_subscription_errors() {
    let folder = tempfile::tempdir().unwrap();
    let subscription = "apiVersion: dapr.io/v2alpha1\nkind: Subscription\nmetadata:\n  name: s\nspec:\n  \
                        pubsubname: p\n  topic: t\n  routes:\n    rules:\n    - match: event.type ==\n      \
                        path: /x\n";
    std::fs::write(folder.path().join("s.yaml"), subscription).unwrap();
    std::fs::write(folder.path().join("c.yaml"), component("state.sqlit", "one", &[])).unwrap();
    let log = log(folder.path(), &["--resources-path=."]);
    says(&log, &["level=error", "c.yaml:6", "component one"]);
    says(
        &log,
        &["level=fatal", "component one", "s.yaml:10: subscription s"],
    );
}

#[test]
fn names_lines_of_wrong_resiliency() {
    let folder = tempfile::tempdir().unwrap();
    let policy = "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: r\nspec:\n  policies:\n    \
                  timeouts:\n      slow: soon\n    retries:\n      often: {policy: constant}\n  targets:\n    \
                  components:\n      store:\n        outbound:\n          retry: oftn\n";
    std::fs::write(folder.path().join("policy.yaml"), policy).unwrap();
    // As in Dapr, an invalid policy does not prevent the start; this component does.
    std::fs::write(
        folder.path().join("store.yaml"),
        component("state.none", "store", &[]),
    )
    .unwrap();
    let log = log(folder.path(), &["--resources-path=."]);
    for parts in [
        ["policy.yaml:8: ", "invalid duration"],
        ["policy.yaml:15: ", "did you mean often?"],
    ] {
        says(&log, &parts);
    }
}

#[test]
fn unknown_flag_hides_no_other_errors() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--ap-id=app", "--dapr-http-port=99999", "--mode=kubernets"];
    let files = ["--config=config.yaml", "--resources-path=resources"];
    let output = daprd(folder.path(), &[&flags[..], &files].concat());
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    says(&text, &["unknown flag: --ap-id", "did you mean --app-id?"]);
    says(&text, &["--dapr-http-port", "\"99999\"", "0 to 65535"]);
    says(&text, &["kubernets", "did you mean kubernetes?"]);
    assert!(!text.contains("app-id cannot be empty"), "{text}");
    let log = String::from_utf8(output.stdout).unwrap();
    says(&log, &["cannot read file config.yaml"]);
    says(&log, &["cannot read resources folder resources"]);
}

#[test]
fn duplicate_name_hides_no_other_errors() {
    let folder = tempfile::tempdir().unwrap();
    for (file, text) in [
        ("a.yaml", component("state.in-memory", "one", &[])),
        ("b.yaml", component("state.in-memory", "one", &[])),
        ("c.yaml", component("state.sqlit", "two", &[])),
        ("d.yaml", component("stat.sqlite", "three", &[])),
        (
            "e.yaml",
            component("state.sqlite", "four", &[]).replace("v1\n  meta", "v7\n  meta"),
        ),
        ("f.yaml", component("[state.sqlite]", "five", &[])),
        (
            "g.yaml",
            "apiVersion: dapr.io/v1alpha1\nkind: HTTPEndpoint\nmetadata:\n  name: six\nspec:\n  \
             baseUrl: ftp://localhost\n"
                .to_owned(),
        ),
    ] {
        std::fs::write(folder.path().join(file), text).unwrap();
    }
    let log = log(folder.path(), &["--resources-path=."]);
    for parts in [
        &[
            "b.yaml:1: ",
            "duplicate definition of Component name one",
            "a.yaml:1",
        ][..],
        &["c.yaml:6", "did you mean state.sqlite?"],
        &["d.yaml:6", "did you mean state.sqlite?"],
        &["e.yaml:7", "set spec.version to v1"],
        &["f.yaml:6: ", "expected a text, found a list"],
        &["g.yaml:6: ", "ftp://localhost", "http://HOST"],
    ] {
        says(&log, parts);
    }
}

#[test]
fn names_lines_of_wrong_components() {
    let folder = tempfile::tempdir().unwrap();
    let resources = folder.path().join("resources");
    std::fs::create_dir(&resources).unwrap();
    for (file, text) in [
        ("vault.yaml", component("secretstores.local.flie", "vault", &[])),
        ("typo.yaml", component("stat.sqlite", "typo", &[])),
        ("type.yaml", component("state.sqlit", "type", &[])),
        ("binding.yaml", component("bindings.htttp", "binding", &[])),
        (
            "version.yaml",
            component("state.sqlite", "version", &[]).replace("version: v1", "version: v7"),
        ),
        (
            "missing.yaml",
            component("state.sqlite", "missing", &["conectionString", "colour"]),
        ),
        (
            "value.yaml",
            component("state.sqlite", "value", &["connectionString", "timeout"]),
        ),
        (
            "unused.yaml",
            component(
                "state.in-memory",
                "unused",
                &["colour", "actorStateStore", "KEYPREFIX"],
            ),
        ),
    ] {
        std::fs::write(resources.join(file), text).unwrap();
    }
    let log = log(folder.path(), &["--resources-path=resources"]);
    for parts in [
        &[
            "vault",
            "resources/vault.yaml:6",
            "did you mean secretstores.local.file?",
        ][..],
        &[
            "incorrect type stat.sqlite",
            "resources/typo.yaml:6",
            "did you mean state.sqlite?",
        ],
        &[
            "state.sqlit/v1",
            "resources/type.yaml:6",
            "did you mean state.sqlite?",
        ],
        &[
            "bindings.htttp",
            "resources/binding.yaml:6",
            "did you mean bindings.http?",
        ],
        &[
            "state.sqlite/v7",
            "resources/version.yaml:7",
            "set spec.version to v1",
        ],
        &["missing connection string", "resources/missing.yaml:1)"],
        &[
            "conectionString is not used",
            "resources/missing.yaml:9",
            "did you mean connectionString?",
        ],
        &["property timeout", "resources/value.yaml:11"],
        &[
            "component unused",
            "colour is not used",
            "resources/unused.yaml:9",
            "check its name",
        ],
    ] {
        says(&log, parts);
    }
    for silent in [
        "actorStateStore is not used",
        "KEYPREFIX is not used",
        "missing (state.sqlite/v1): the property colour",
    ] {
        assert!(!log.contains(silent), "{silent}:\n{log}");
    }
}

#[test]
fn names_lines_of_wrong_properties() {
    let folder = tempfile::tempdir().unwrap();
    let properties = [
        "redisHost",
        "redisDB",
        "dialTimeout",
        "redisMaxRetries",
        "ttlInSeconds",
    ];
    let text = component("state.redis", "store", &properties);
    std::fs::write(folder.path().join("store.yaml"), text).unwrap();
    let log = log(folder.path(), &["--resources-path=."]);
    let told = |property: &str, line| {
        let line = format!("(./store.yaml:{line})");
        says(&log, &["level=error", &format!("property {property}: "), &line]);
    };
    told("redisDB", 11);
    told("dialTimeout", 13);
    told("redisMaxRetries", 15);
}

#[test]
fn unusable_log_file_hides_no_errors() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["--log-file=none/daprd.log", "--config=nope.yaml"];
    let told = log(folder.path(), &files);
    says(&told, &["level=fatal", "cannot open log file none/daprd.log"]);
    says(&told, &["nope.yaml"]);

    let told = log(folder.path(), &[&files[..], &["--app-protocol=soap"]].concat());
    says(&told, &["level=error", "cannot open log file none/daprd.log"]);
    says(&told, &["nope.yaml"]);
    says(&told, &["level=fatal", "--app-protocol"]);
}
