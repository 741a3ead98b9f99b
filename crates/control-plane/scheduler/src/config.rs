//! The settings of a scheduler process, read from flags and the environment and validated as a whole.

mod cluster;
mod flags;
mod store;

use std::path::PathBuf;

use outrigger_accept::Listen;
use outrigger_controlplane::TlsConfig;
use outrigger_controlplane::config::{Reader, namespace};
use outrigger_flags::Values;
use outrigger_identity::Mode;
use outrigger_resources::value::quantity;

use crate::storage::{etcd, postgres};
pub use cluster::Cluster;
use cluster::{Named, holds_etcd};
pub use flags::FLAGS;
pub use outrigger_controlplane::config::{ConfigError, LogSettings};
pub use store::{End, EtcdAccess, PostgresAccess, Store};

/// The value of `--etcd-initial-cluster` when the flag is not set.
const DEFAULT_CLUSTER: &str = "dapr-scheduler-server-0=http://localhost:2380";

/// Environment variable with the connection string of PostgreSQL, used when the flag is not set. Other users
/// can see command lines.
const POSTGRES: &str = "SCHEDULER_POSTGRES";

/// Everything a scheduler needs to be built.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address of the gRPC server. An empty host means all addresses.
    pub grpc: Listen,
    /// `host:port` announced to sidecars; `None` means the scheduler detects its address.
    pub broadcast: Option<String>,
    /// Port of the health server, on all addresses.
    pub healthz_port: u16,
    /// Address of the metrics server; `None` if metrics are off.
    pub metrics: Option<Listen>,
    /// mTLS settings; `None` if mTLS is off.
    pub tls: Option<TlsConfig>,
    /// Namespace of this scheduler.
    pub namespace: String,
    /// Id of this scheduler.
    pub id: String,
    /// The cluster whose namespaces the scheduler watches; `None` outside of Kubernetes.
    pub kubernetes: Option<Kubernetes>,
    /// The store for jobs.
    pub store: Store,
    /// Folder of the embedded store, below `--etcd-data-dir`.
    pub data: PathBuf,
    /// Maximum size of the embedded store in bytes.
    pub quota: i64,
    /// Address on which the embedded store answers etcd clients.
    pub etcd_api: Listen,
    /// Maximum number of triggers in flight.
    pub workers: usize,
    /// One-off task to run instead of serving.
    pub task: Option<Task>,
    /// Settings of the process log.
    pub log: LogSettings,
}

/// A one-off task on the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// Copy the store to a file.
    Snapshot(PathBuf),
    /// Restore the store from a copy.
    Restore(PathBuf),
    /// Copy all jobs from one store to another.
    Migrate(End, End),
}

/// A Kubernetes cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubernetes {
    /// Path of a kubeconfig, for use outside of a pod.
    pub kubeconfig: Option<PathBuf>,
}

impl Config {
    /// Reads the flags in [`FLAGS`] and, through `env`, the environment.
    ///
    /// # Errors
    /// All problems found, not only the first.
    pub fn from_flags(flags: &Values, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let namespace = namespace(&env);
        let mut reader = Reader::new(flags);
        let mode = reader.mode();
        let kubernetes = kubernetes(&mut reader, mode);
        let members = members(&mut reader);
        let id = id(&mut reader);
        let tls = reader.tls(&namespace, mode);
        let host = flags.text("listen-address");
        let listen = |host: &str, port| Listen {
            host: host.to_owned(),
            port,
        };
        let grpc = listen(host, reader.port("port"));
        let healthz_port = reader.port("healthz-port");
        let metrics = reader.metrics_port().map(|port| listen(host, port));
        let client_port = i64::try_from(flags.uint("etcd-client-port")).unwrap_or(i64::MAX);
        let etcd_api = listen(
            flags.text("etcd-client-listen-address"),
            reader.checked_port("etcd-client-port", client_port),
        );
        let data = data_folder(flags, mode, &namespace, &id);
        let postgres = reader
            .given("postgres")
            .or_else(|| env(POSTGRES).filter(|text| !text.is_empty()));
        let store = store(
            &mut reader,
            postgres,
            &Named {
                flags,
                id: &id,
                members: &members,
                data: &data,
                namespace: &namespace,
                client: &etcd_api,
            },
        );
        let workers = workers(&mut reader);
        let task = task(&mut reader);
        match (reader.log(), reader.problems.is_empty()) {
            (Some(log), true) => Ok(Self {
                grpc,
                broadcast: reader.given("override-broadcast-host-port"),
                healthz_port,
                metrics,
                tls,
                kubernetes,
                store,
                data,
                namespace,
                id,
                quota: quantity(flags.text("etcd-space-quota")).unwrap_or(i64::MAX),
                etcd_api,
                workers,
                task,
                log,
            }),
            _ => Err(ConfigError(reader.problems)),
        }
    }
}

/// The folder of an etcd. In Kubernetes each scheduler has its own volume, so this is the folder of the flag,
/// as in Dapr. Earlier builds used a subfolder there too; their jobs are not moved.
fn data_folder(flags: &Values, mode: Mode, namespace: &str, id: &str) -> PathBuf {
    let root = PathBuf::from(flags.text("etcd-data-dir"));
    let own = root.join(format!("{namespace}-{id}"));
    match mode {
        Mode::Kubernetes if !own.is_dir() => root,
        Mode::Kubernetes | Mode::Standalone => own,
    }
}

fn kubernetes(reader: &mut Reader<'_>, mode: Mode) -> Option<Kubernetes> {
    let kubeconfig = reader.given("kubeconfig").map(PathBuf::from);
    match mode {
        Mode::Kubernetes => Some(Kubernetes { kubeconfig }),
        Mode::Standalone => {
            if kubeconfig.is_some() {
                reader.problem("--kubeconfig is for --mode kubernetes only: omit it");
            }
            None
        }
    }
}

fn store(reader: &mut Reader<'_>, postgres: Option<String>, named: &Named<'_>) -> Store {
    let endpoints = reader.flags.list("etcd-client-endpoints");
    if let Some(connection) = postgres {
        if !reader.flags.boolean("etcd-embed") || !endpoints.is_empty() {
            reader.problem(
                "--postgres and etcd exclude each other: omit --etcd-embed and --etcd-client-endpoints",
            );
        }
        if let Err(error) = postgres::check(&connection) {
            reader.problem(format!("--postgres: {error}"));
        }
        return Store::Postgres(PostgresAccess(connection));
    }
    check_id(reader, named);
    if !reader.flags.boolean("etcd-embed") {
        if endpoints.is_empty() {
            reader.problem("must specify --etcd-client-endpoints when not using embedded etcd");
        }
        let access = EtcdAccess {
            endpoints,
            username: reader.flags.text("etcd-client-username").to_owned(),
            password: reader.flags.text("etcd-client-password").to_owned(),
        };
        if let Err(error) = etcd::check(&access) {
            reader.problem(error.to_string());
        }
        return Store::Etcd(access);
    }
    for flag in [
        "etcd-client-endpoints",
        "etcd-client-username",
        "etcd-client-password",
    ] {
        if reader.flags.given(flag) {
            reader.problem(format!(
                "cannot use --{flag} with --etcd-embed: omit it, or set --etcd-embed=false"
            ));
        }
    }
    if named.members.len() > 1 && named.data.join("jobs.db").exists() {
        reader.problem(format!(
            "--etcd-initial-cluster names several schedulers, but {} has the jobs of a single one: copy them with \
             --migrate embedded etcd://..., then move the file away",
            named.data.join("jobs.db").display()
        ));
    }
    match named.members.len() > 1 || holds_etcd(named.data) {
        true => Cluster::read(named).map_or(Store::Embedded, |cluster| Store::Cluster(Box::new(cluster))),
        false => Store::Embedded,
    }
}

/// The members of the cluster, each as `id=url`.
fn members(reader: &mut Reader<'_>) -> Vec<String> {
    let mut members = reader.flags.list("etcd-initial-cluster");
    if members.is_empty() {
        members.push(DEFAULT_CLUSTER.to_owned());
    }
    for member in &members {
        if !member.split_once('=').is_some_and(|(_, url)| url.contains("://")) {
            reader.problem(format!(
                "--etcd-initial-cluster: {member:?} is not id=url with a scheme, such as {DEFAULT_CLUSTER}"
            ));
        }
    }
    members
}

/// The id. It is part of paths and keys, so its characters are restricted.
fn id(reader: &mut Reader<'_>) -> String {
    let id = reader.flags.text("id").to_owned();
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if id.is_empty() || id.starts_with('.') || !id.chars().all(is_name) {
        reader.problem(format!(
            "--id {id:?} is not valid: use letters, digits, '-', '_' and '.'"
        ));
    }
    id
}

/// Checks that the cluster has an entry for this id.
fn check_id(reader: &mut Reader<'_>, named: &Named<'_>) {
    let ids: Vec<&str> = named
        .members
        .iter()
        .filter_map(|member| member.split_once('=').map(|(id, _)| id))
        .collect();
    if reader.flags.boolean("etcd-embed") && !ids.is_empty() && !ids.contains(&named.id) {
        reader.problem(format!(
            "--id {:?} is not in --etcd-initial-cluster ({}): name it there",
            named.id,
            ids.join(", ")
        ));
    }
}

fn workers(reader: &mut Reader<'_>) -> usize {
    let workers = reader.flags.uint("workers");
    match u32::try_from(workers) {
        Ok(workers @ 1..) => workers as usize,
        _ => {
            reader.problem(format!(
                "--workers {workers} is out of range, want 1 to 4294967295"
            ));
            1
        }
    }
}

fn task(reader: &mut Reader<'_>) -> Option<Task> {
    let (to, from) = (reader.given("snapshot-to"), reader.given("restore-from"));
    match (to, from, reader.given("migrate"), reader.given("migrate-to")) {
        (Some(to), None, None, None) => Some(Task::Snapshot(to.into())),
        (None, Some(from), None, None) => Some(Task::Restore(from.into())),
        (None, None, Some(from), Some(to)) if from == to => {
            reader.problem("--migrate FROM TO: both are the same store");
            None
        }
        (None, None, Some(from), Some(to)) => Some(Task::Migrate(end(reader, &from)?, end(reader, &to)?)),
        (None, None, None, None) => None,
        (None, None, _, _) => {
            reader.problem(
                "--migrate FROM TO: two stores are expected, such as --migrate embedded etcd://localhost:2379",
            );
            None
        }
        _ => {
            reader.problem("--snapshot-to, --restore-from and --migrate exclude each other: give one");
            None
        }
    }
}

/// Parses the name of a store.
fn end(reader: &mut Reader<'_>, text: &str) -> Option<End> {
    let named = End::read(text);
    if let Err(why) = &named {
        reader.problem(format!("--migrate: {why}"));
    }
    named.ok()
}

#[cfg(test)]
mod tests {
    use outrigger_flags::{Parsed, parse};

    use super::*;

    fn config(args: &[&str]) -> Result<Config, ConfigError> {
        let Ok(Parsed::Run(flags)) = parse(FLAGS, args.iter().map(|&arg| arg.to_owned())) else {
            panic!("{args:?}");
        };
        Config::from_flags(&flags, |name| (name == "NAMESPACE").then(|| "ns".to_owned()))
    }

    #[test]
    fn has_dapr_defaults() {
        let config = config(&[]).unwrap();
        assert_eq!((config.grpc.port, config.healthz_port), (50006, 8080));
        assert_eq!(config.data, PathBuf::from("./data/ns-dapr-scheduler-server-0"));
        assert_eq!((config.workers, config.quota), (2048, 9_200_000_000_000_000_000));
        assert_eq!(config.etcd_api.host, "localhost");
        assert_eq!(config.metrics.unwrap().port, 9090);
        assert!(config.tls.is_none() && config.task.is_none() && config.broadcast.is_none());
    }

    #[test]
    fn kubernetes_uses_folder_of_flag() {
        let volume = tempfile::tempdir().unwrap();
        let root = volume.path();
        let of = |mode: &str| {
            let folder = format!("--etcd-data-dir={}", root.display());
            let cluster = "--etcd-initial-cluster=dapr-scheduler-server-0=http://a:2380,b=http://b:2380";
            config(&[mode, &folder, cluster]).unwrap()
        };
        let etcd_folder = |config: Config| match config.store {
            Store::Cluster(cluster) => cluster.folder,
            other => panic!("{other:?}"),
        };
        assert_eq!(of("--mode=kubernetes").data, root);
        assert_eq!(etcd_folder(of("--mode=kubernetes")), root.join("dapr-0.1"));
        let own = root.join("ns-dapr-scheduler-server-0");
        assert_eq!(etcd_folder(of("--mode=standalone")), own.join("dapr-0.1"));
        std::fs::create_dir(&own).unwrap();
        assert_eq!(of("--mode=kubernetes").data, own);
    }

    #[test]
    fn reads_cluster_members() {
        let cluster =
            "--etcd-initial-cluster=dapr-scheduler-server-0=http://127.0.0.1:7,b=http://127.0.0.1:8";
        let Store::Cluster(cluster) = config(&[cluster, "--etcd-client-port=9"]).unwrap().store else {
            panic!("it is another store");
        };
        assert_eq!(
            cluster.folder,
            PathBuf::from("./data/ns-dapr-scheduler-server-0/dapr-0.1")
        );
        for (flag, value) in [
            ("name", "dapr-scheduler-server-0"),
            ("listen-peer-urls", "http://127.0.0.1:7"),
            ("listen-client-urls", "http://localhost:9"),
            ("auto-compaction-retention", "1000000"),
            ("max-txn-ops", "10000"),
        ] {
            assert!(
                cluster.flags.contains(&(flag, value.to_owned())),
                "{flag} in {:?}",
                cluster.flags
            );
        }
    }

    #[test]
    fn reads_etcd_endpoints_and_credentials() {
        let config = config(&[
            "--etcd-embed=false",
            "--etcd-client-endpoints=http://a:1,b:2",
            "--etcd-client-username=user",
            "--etcd-client-password=secret",
        ]);
        let Store::Etcd(access) = config.unwrap().store else {
            panic!("it is another store");
        };
        assert_eq!(access.endpoints, ["http://a:1", "b:2"]);
        assert_eq!(
            (access.username.as_str(), access.password.as_str()),
            ("user", "secret")
        );
        assert!(!format!("{access:?}").contains("secret"));
    }

    #[test]
    fn tls_has_dapr_defaults() {
        let tls = config(&["--tls-enabled"]).unwrap().tls.unwrap();
        assert_eq!(tls.sentry_address, "dapr-sentry.ns.svc:443");
        assert_eq!(tls.anchors, None);
        let tls = config(&["--tls-enabled", "--trust-anchors-file=/ca"])
            .unwrap()
            .tls
            .unwrap();
        assert_eq!(tls.anchors, Some("/ca".into()));
    }

    #[test]
    fn rejects_invalid_settings() {
        for (args, text) in [
            (&["--mode=x"][..], "--mode \"x\" is unknown"),
            (&["--kubeconfig=x"], "--kubeconfig"),
            (
                &["--etcd-client-endpoints=a"],
                "cannot use --etcd-client-endpoints with --etcd-embed",
            ),
            (
                &["--etcd-client-username=a"],
                "cannot use --etcd-client-username with --etcd-embed",
            ),
            (
                &["--etcd-embed=false"],
                "must specify --etcd-client-endpoints when not using embedded etcd",
            ),
            (
                &["--etcd-embed=false", "--etcd-client-endpoints=a"],
                "--etcd-client-endpoints: \"a\" is not host:port",
            ),
            (&["--id=a"], "--id \"a\" is not in --etcd-initial-cluster"),
            (
                &["--id=../a", "--etcd-initial-cluster=../a=http://x"],
                "is not valid: use letters",
            ),
            (&["--etcd-initial-cluster=a"], "is not id=url"),
            (&["--workers=0"], "--workers 0"),
            (&["--postgres=nonsense"], "--postgres: "),
            (&["--postgres=host=x", "--etcd-embed=false"], "exclude each other"),
            (&["--port=70000"], "--port 70000"),
            (&["--snapshot-to=a", "--restore-from=b"], "exclude each other"),
            (&["--migrate=embedded"], "two stores are expected"),
            (
                &["--migrate=embedded", "--migrate-to=etcd://a"],
                "\"http://a\" is not host:port",
            ),
            (
                &["--migrate=embedded", "--migrate-to=mysql"],
                "is not `embedded`, etcd://",
            ),
            (&["--migrate=embedded", "--migrate-to=embedded"], "the same store"),
        ] {
            let problems = config(args).unwrap_err().to_string();
            assert!(problems.contains(text), "{args:?}: {problems}");
        }
    }
}
