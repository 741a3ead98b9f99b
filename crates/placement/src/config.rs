//! What a placement process is told by flags and environment, checked as a whole.

mod flags;

use std::path::PathBuf;
use std::time::Duration;

use outrigger_accept::Listen;
use outrigger_controlplane::TlsConfig;
use outrigger_flags::Values;
use outrigger_identity::TrustDomain;
use outrigger_resources::value::{format_go_duration, go_duration};
use outrigger_telemetry::log::Level;

pub use flags::FLAGS;

/// Namespace when the environment gives none.
const DEFAULT_NAMESPACE: &str = "default";
/// What stands for `--metadata-enabled`.
const METADATA_VARIABLE: &str = "DAPR_PLACEMENT_METADATA_ENABLED";
/// Replicas of a cluster.
const MAX_REPLICAS: usize = 9;
/// Points of a host on a ring.
const MAX_FACTOR: i64 = 10_000;

/// Everything a placement service needs to be built.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address of the gRPC server; an empty host means all addresses.
    pub grpc: Listen,
    /// Port of the health server, on all addresses.
    pub healthz_port: u16,
    /// The metrics server; `None` when metrics are off.
    pub metrics: Option<Listen>,
    /// mTLS; `None` without.
    pub tls: Option<TlsConfig>,
    /// Namespace this service belongs to.
    pub namespace: String,
    /// Id of this replica, one of [`Config::cluster`].
    pub id: String,
    /// All replicas.
    pub cluster: Vec<Replica>,
    /// Whether `/placement/state` is served.
    pub metadata: bool,
    /// Points of a host on the ring of an actor type.
    pub replication_factor: i64,
    /// Silence on a connection before a ping.
    pub keepalive_time: Duration,
    /// Time to answer it.
    pub keepalive_timeout: Duration,
    /// Time that a stream has to answer in a round.
    pub disseminate_timeout: Duration,
    /// The process log.
    pub log: LogSettings,
}

/// A replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// Its `--id`.
    pub id: String,
    /// Where it takes part in elections.
    pub listen: Listen,
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
        let metadata = match flags.given("metadata-enabled") {
            true => flags.boolean("metadata-enabled"),
            false => env(METADATA_VARIABLE).is_some_and(|text| is_truthy(&text)),
        };
        let mut reader = Reader {
            flags,
            problems: Vec::new(),
        };
        reader.check_mode();
        let (id, cluster) = reader.cluster();
        let tls = reader.tls(&namespace);
        let host = flags.text("listen-address");
        let listen = |port| Listen {
            host: host.to_owned(),
            port,
        };
        let grpc = listen(reader.port("port", flags.int("port")));
        let healthz_port = reader.port("healthz-port", flags.int("healthz-port"));
        let metrics_port = flags.boolean("enable-metrics").then(|| reader.metrics_port());
        let replication_factor = reader.replication_factor();
        let keepalive_time = reader.keepalive("keepalive-time");
        let keepalive_timeout = reader.keepalive("keepalive-timeout");
        let disseminate_timeout = reader.disseminate_timeout();
        match (reader.log(), reader.problems.is_empty()) {
            (Some(log), true) => Ok(Self {
                grpc,
                healthz_port,
                metrics: metrics_port.map(listen),
                tls,
                namespace,
                id,
                cluster,
                metadata,
                replication_factor,
                keepalive_time,
                keepalive_timeout,
                disseminate_timeout,
                log,
            }),
            _ => Err(ConfigError(reader.problems)),
        }
    }
}

fn is_truthy(text: &str) -> bool {
    ["y", "yes", "true", "t", "on", "1"].contains(&text.trim().to_lowercase().as_str())
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
            "standalone" => {}
            "kubernetes" => self.problem(
                "--mode kubernetes is not supported yet: run the placement service with --mode standalone, or use \
                 Dapr's own in the cluster",
            ),
            other => self.problem(format!("--mode \"{other}\" is unknown, want standalone")),
        }
    }

    /// This replica, and all of them.
    fn cluster(&mut self) -> (String, Vec<Replica>) {
        let id = self.flags.text("id").to_owned();
        let mut given = self.flags.list("initial-cluster");
        if given.is_empty() {
            given.push(flags::DEFAULT_CLUSTER.to_owned());
        }
        let mut cluster: Vec<Replica> = Vec::with_capacity(given.len());
        for member in &given {
            match replica(member) {
                Some(replica) if cluster.iter().any(|other| other.id == replica.id) => {
                    self.problem(format!("--initial-cluster names {:?} twice", replica.id));
                }
                Some(replica) => cluster.push(replica),
                None => self.problem(format!(
                    "--initial-cluster: {member:?} is not id=host:port, such as {}",
                    flags::DEFAULT_CLUSTER
                )),
            }
        }
        let ids: Vec<&str> = cluster.iter().map(|replica| replica.id.as_str()).collect();
        if !ids.contains(&id.as_str()) {
            let ids = ids.join(", ");
            self.problem(format!(
                "--id {id:?} is not in --initial-cluster ({ids}): name it there"
            ));
        }
        if cluster.len() > MAX_REPLICAS {
            self.problem(format!(
                "--initial-cluster names {} replicas, which can be {MAX_REPLICAS} at most; three are enough to lose one",
                cluster.len()
            ));
        }
        (id, cluster)
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

    fn replication_factor(&mut self) -> i64 {
        let factor = self.flags.int("replicationFactor");
        if !(1..=MAX_FACTOR).contains(&factor) {
            self.problem(format!(
                "--replicationFactor {factor} is out of range, want 1 to {MAX_FACTOR}"
            ));
        }
        factor
    }

    fn duration(&mut self, flag: &str) -> Duration {
        // The flag's kind has checked it.
        go_duration(self.flags.text(flag)).unwrap_or_default()
    }

    fn keepalive(&mut self, flag: &str) -> Duration {
        let duration = self.duration(flag);
        if !(Duration::from_secs(1)..=Duration::from_secs(10)).contains(&duration) {
            self.problem(format!(
                "invalid value for {flag}: {}, want 1s to 10s (--{flag})",
                format_go_duration(duration)
            ));
        }
        duration
    }

    fn disseminate_timeout(&mut self) -> Duration {
        let duration = self.duration("disseminate-timeout");
        if duration.is_zero() || duration > Duration::from_secs(3600) {
            self.problem(format!(
                "--disseminate-timeout {} is out of range, want more than 0s and at most 1h",
                format_go_duration(duration)
            ));
        }
        duration
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

fn replica(text: &str) -> Option<Replica> {
    let (id, address) = text.split_once('=')?;
    let (host, port) = address.rsplit_once(':')?;
    if id.is_empty() || host.is_empty() {
        return None;
    }
    let listen = Listen {
        host: host.to_owned(),
        port: port.parse().ok()?,
    };
    let id = id.to_owned();
    Some(Replica { id, listen })
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
        assert_eq!((config.grpc.port, config.healthz_port), (50005, 8080));
        assert_eq!(config.metrics.unwrap().port, 9090);
        assert_eq!(config.id, "dapr-placement-0");
        assert_eq!(config.cluster, [replica(flags::DEFAULT_CLUSTER).unwrap()]);
        assert_eq!(config.replication_factor, 100);
        assert_eq!(config.disseminate_timeout, Duration::from_secs(8));
        let keepalive = (config.keepalive_time, config.keepalive_timeout);
        assert_eq!(keepalive, (Duration::from_secs(2), Duration::from_secs(3)));
        assert!(config.tls.is_none() && !config.metadata);
    }

    #[test]
    fn replicas_are_a_list() {
        let config = config(&[
            "--id=b",
            "--initial-cluster=a=h1:1,b=[::1]:2",
            "--initial-cluster=c=h3:3",
        ])
        .unwrap();
        let ids: Vec<_> = config.cluster.iter().map(|replica| replica.id.as_str()).collect();
        assert_eq!(ids, ["a", "b", "c"]);
        assert_eq!(
            (
                config.cluster[1].listen.host.as_str(),
                config.cluster[1].listen.port
            ),
            ("[::1]", 2)
        );
    }

    #[test]
    fn the_environment_can_ask_for_the_state() {
        let metadata = |args: &[&str], value: &str| {
            let Ok(Parsed::Run(flags)) = parse(FLAGS, args.iter().map(|&arg| arg.to_owned())) else {
                panic!("{args:?}");
            };
            let env = |name: &str| (name == METADATA_VARIABLE).then(|| value.to_owned());
            Config::from_flags(&flags, env).unwrap().metadata
        };
        assert!(metadata(&[], "Yes") && metadata(&[], "1") && metadata(&["--metadata-enabled"], "no"));
        assert!(!metadata(&[], "no") && !metadata(&["--metadata-enabled=false"], "true"));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (args, text) in [
            (&["--mode=kubernetes"][..], "not supported yet"),
            (&["--mode=x"], "--mode \"x\" is unknown"),
            (
                &["--id=a"],
                "--id \"a\" is not in --initial-cluster (dapr-placement-0)",
            ),
            (&["--initial-cluster=a"], "\"a\" is not id=host:port"),
            (
                &["--initial-cluster=dapr-placement-0=h:70000"],
                "is not id=host:port",
            ),
            (&["--id=a", "--initial-cluster=a=h:1,a=h:2"], "names \"a\" twice"),
            (&["--keepalive-time=20s"], "invalid value for keepalive-time: 20s"),
            (
                &["--keepalive-timeout=1ms"],
                "invalid value for keepalive-timeout: 1ms",
            ),
            (&["--disseminate-timeout=0s"], "--disseminate-timeout 0s"),
            (&["--replicationFactor=0"], "--replicationFactor 0"),
            (&["--port=70000"], "--port 70000"),
        ] {
            let problems = config(args).unwrap_err().to_string();
            assert!(problems.contains(text), "{args:?}: {problems}");
        }
    }
}
