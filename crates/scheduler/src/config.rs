//! What a scheduler process is told by flags and environment, checked as a whole.

mod flags;

use std::path::PathBuf;

use outrigger_accept::Listen;
use outrigger_controlplane::TlsConfig;
use outrigger_flags::Values;
use outrigger_identity::TrustDomain;
use outrigger_resources::value::quantity;
use outrigger_telemetry::log::Level;

pub use flags::FLAGS;

/// Namespace when the environment gives none.
const DEFAULT_NAMESPACE: &str = "default";
/// The cluster of a scheduler that is told of none.
const DEFAULT_CLUSTER: &str = "dapr-scheduler-server-0=http://localhost:2380";

/// Everything a scheduler needs to be built.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address of the gRPC server; an empty host means all addresses.
    pub grpc: Listen,
    /// `host:port` that sidecars are told, where it was given.
    pub broadcast: Option<String>,
    /// Port of the health server, on all addresses.
    pub healthz_port: u16,
    /// The metrics server; `None` when metrics are off.
    pub metrics: Option<Listen>,
    /// mTLS; `None` without.
    pub tls: Option<TlsConfig>,
    /// Namespace this scheduler belongs to.
    pub namespace: String,
    /// Id of this scheduler.
    pub id: String,
    /// Folder of the embedded store, below `--etcd-data-dir`.
    pub data: PathBuf,
    /// Most bytes of the embedded store.
    pub quota: i64,
    /// Where etcd's clients are answered.
    pub etcd_api: Listen,
    /// Triggers under way at a time.
    pub workers: usize,
    /// What to do instead of serving.
    pub task: Option<Task>,
    /// The process log.
    pub log: LogSettings,
}

/// Something to do with the store instead of serving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// Copy it to a file.
    Snapshot(PathBuf),
    /// Make it from a copy.
    Restore(PathBuf),
}

/// The process log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// Lowest severity written.
    pub level: Level,
    /// JSON lines.
    pub json: bool,
    /// File instead of standard output.
    pub file: Option<PathBuf>,
}

/// Flags and environment cannot be used; one line for each reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigError(pub Vec<String>);

impl Config {
    /// Reads the flags of [`FLAGS`] and, through `env`, the environment.
    ///
    /// # Errors
    /// Everything that is wrong, not only what comes first.
    pub fn from_flags(flags: &Values, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let namespace = env("NAMESPACE")
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
        let mut reader = Reader {
            flags,
            problems: Vec::new(),
        };
        reader.check_mode();
        reader.check_store();
        let id = reader.id();
        let tls = reader.tls(&namespace);
        let host = flags.text("listen-address");
        let listen = |host: &str, port| Listen {
            host: host.to_owned(),
            port,
        };
        let grpc = listen(host, reader.port("port", flags.int("port")));
        let healthz_port = reader.port("healthz-port", flags.int("healthz-port"));
        let metrics = flags
            .boolean("enable-metrics")
            .then(|| listen(host, reader.metrics_port()));
        let client_port = i64::try_from(flags.uint("etcd-client-port")).unwrap_or(i64::MAX);
        let etcd_api = listen(
            flags.text("etcd-client-listen-address"),
            reader.port("etcd-client-port", client_port),
        );
        let workers = reader.workers();
        let task = reader.task();
        match (reader.log(), reader.problems.is_empty()) {
            (Some(log), true) => Ok(Self {
                grpc,
                broadcast: reader.given("override-broadcast-host-port"),
                healthz_port,
                metrics,
                tls,
                data: PathBuf::from(flags.text("etcd-data-dir")).join(format!("{namespace}-{id}")),
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

/// Reads flags and collects what is wrong with them.
struct Reader<'a> {
    flags: &'a Values,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn problem(&mut self, text: impl Into<String>) {
        self.problems.push(text.into());
    }

    fn check_mode(&mut self) {
        match self.flags.text("mode") {
            "standalone" if self.given("kubeconfig").is_some() => {
                self.problem("--kubeconfig is for --mode kubernetes only: leave it out");
            }
            "standalone" => {}
            "kubernetes" => self.problem(
                "--mode kubernetes is not supported yet: run the scheduler with --mode standalone, or use Dapr's own \
                 scheduler in the cluster",
            ),
            other => self.problem(format!(
                "--mode \"{other}\" is unknown, want standalone"
            )),
        }
    }

    fn check_store(&mut self) {
        let external = [
            "etcd-client-endpoints",
            "etcd-client-username",
            "etcd-client-password",
        ];
        if self.flags.boolean("etcd-embed") {
            for flag in external {
                if self.flags.given(flag) {
                    self.problem(format!(
                        "cannot use --{flag} with --etcd-embed: leave it out, or give --etcd-embed=false"
                    ));
                }
            }
        } else if self.flags.list("etcd-client-endpoints").is_empty() {
            self.problem("must specify --etcd-client-endpoints when not using embedded etcd");
        } else {
            self.problem(
                "--etcd-embed=false is not supported yet: run a single scheduler on the embedded store, or use Dapr's \
                 own scheduler with your etcd",
            );
        }
    }

    /// The id, which has to be the one of the cluster.
    fn id(&mut self) -> String {
        let id = self.flags.text("id").to_owned();
        let mut cluster = self.flags.list("etcd-initial-cluster");
        if cluster.is_empty() {
            cluster.push(DEFAULT_CLUSTER.to_owned());
        }
        let mut ids = Vec::with_capacity(cluster.len());
        for member in &cluster {
            match member.split_once('=') {
                Some((id, url)) if url.contains("://") => ids.push(id),
                _ => self.problem(format!(
                    "--etcd-initial-cluster: {member:?} is not id=url with a scheme, such as {DEFAULT_CLUSTER}"
                )),
            }
        }
        if ids.len() > 1 {
            self.problem(
                "--etcd-initial-cluster names several schedulers, which is not supported yet: run a single one, or \
                 use Dapr's own",
            );
        } else if !ids.is_empty() && !ids.contains(&id.as_str()) {
            self.problem(format!(
                "--id {id:?} is not in --etcd-initial-cluster ({}): name it there",
                ids.join(", ")
            ));
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if id.is_empty() || id.starts_with('.') || !id.chars().all(is_name) {
            self.problem(format!(
                "--id {id:?} is not a name: it may have letters, digits, '-', '_' and '.'"
            ));
        }
        id
    }

    fn tls(&mut self, namespace: &str) -> Option<TlsConfig> {
        let trust_domain = self
            .flags
            .text("trust-domain")
            .parse::<TrustDomain>()
            .inspect_err(|error| self.problem(format!("--trust-domain: {error}")))
            .ok()?;
        let file = "trust-anchors-file";
        let anchors = self.flags.given(file).then(|| self.flags.text(file).into());
        self.flags.boolean("tls-enabled").then(|| TlsConfig {
            trust_domain,
            anchors,
            sentry_address: self
                .given("sentry-address")
                .unwrap_or_else(|| format!("dapr-sentry.{namespace}.svc:443")),
        })
    }

    fn port(&mut self, flag: &str, value: i64) -> u16 {
        u16::try_from(value).unwrap_or_else(|_| {
            self.problem(format!("--{flag} {value} is not a port, want 0 to 65535"));
            0
        })
    }

    fn metrics_port(&mut self) -> u16 {
        let text = self.flags.text("metrics-port");
        text.parse().unwrap_or_else(|_| {
            self.problem(format!(
                "--metrics-port \"{text}\" is not a port, want 0 to 65535"
            ));
            0
        })
    }

    fn workers(&mut self) -> usize {
        let workers = self.flags.uint("workers");
        match u32::try_from(workers) {
            Ok(workers @ 1..) => workers as usize,
            _ => {
                self.problem(format!(
                    "--workers {workers} is out of range, want 1 to 4294967295"
                ));
                1
            }
        }
    }

    fn task(&mut self) -> Option<Task> {
        let (to, from) = (self.given("snapshot-to"), self.given("restore-from"));
        match (to, from) {
            (Some(_), Some(_)) => {
                self.problem("--snapshot-to and --restore-from exclude each other: give one");
                None
            }
            (Some(to), None) => Some(Task::Snapshot(to.into())),
            (None, Some(from)) => Some(Task::Restore(from.into())),
            (None, None) => None,
        }
    }

    /// The value of a text flag, when it was given and is not empty.
    fn given(&self, flag: &str) -> Option<String> {
        Some(self.flags.text(flag))
            .filter(|value| !value.is_empty())
            .map(str::to_owned)
    }

    fn log(&mut self) -> Option<LogSettings> {
        let level = self
            .flags
            .text("log-level")
            .parse()
            .inspect_err(|error| self.problem(format!("--log-level: {error}")))
            .ok()?;
        Some(LogSettings {
            level,
            json: self.flags.boolean("log-as-json"),
            file: self.given("log-file").map(PathBuf::from),
        })
    }
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
    fn defaults_are_dapr_s() {
        let config = config(&[]).unwrap();
        assert_eq!((config.grpc.port, config.healthz_port), (50006, 8080));
        assert_eq!(config.data, PathBuf::from("./data/ns-dapr-scheduler-server-0"));
        assert_eq!((config.workers, config.quota), (2048, 9_200_000_000_000_000_000));
        assert_eq!(config.etcd_api.host, "localhost");
        assert_eq!(config.metrics.unwrap().port, 9090);
        assert!(config.tls.is_none() && config.task.is_none() && config.broadcast.is_none());
    }

    #[test]
    fn tls_has_dapr_s_defaults() {
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
    fn what_cannot_be_used_is_named() {
        for (args, text) in [
            (&["--mode=kubernetes"][..], "not supported yet"),
            (&["--mode=x"], "--mode \"x\" is unknown"),
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
                "not supported yet",
            ),
            (&["--id=a"], "--id \"a\" is not in --etcd-initial-cluster"),
            (
                &["--id=../a", "--etcd-initial-cluster=../a=http://x"],
                "is not a name",
            ),
            (&["--etcd-initial-cluster=a"], "is not id=url"),
            (
                &["--etcd-initial-cluster=dapr-scheduler-server-0=http://a,b=http://b"],
                "several schedulers",
            ),
            (&["--workers=0"], "--workers 0"),
            (&["--port=70000"], "--port 70000"),
            (&["--snapshot-to=a", "--restore-from=b"], "exclude each other"),
        ] {
            let problems = config(args).unwrap_err().to_string();
            assert!(problems.contains(text), "{args:?}: {problems}");
        }
    }
}
