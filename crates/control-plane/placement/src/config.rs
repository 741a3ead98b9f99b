//! The configuration of a placement process, from flags and environment.

mod flags;

use std::path::PathBuf;
use std::time::Duration;

use outrigger_accept::Listen;
use outrigger_controlplane::TlsConfig;
use outrigger_controlplane::config::{Reader, namespace, unknown};
use outrigger_flags::Values;
use outrigger_identity::Mode;
use outrigger_resources::value::{format_go_duration, truthy};

pub use flags::FLAGS;
pub use outrigger_controlplane::config::{ConfigError, LogSettings};

/// Environment variable for `--metadata-enabled`.
const METADATA_VARIABLE: &str = "DAPR_PLACEMENT_METADATA_ENABLED";
/// Maximum points of a host on a ring.
const MAX_FACTOR: i64 = 10_000;

/// The configuration of a placement service.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address of the gRPC server; an empty host binds all addresses.
    pub grpc: Listen,
    /// Port of the health server, on all addresses.
    pub healthz_port: u16,
    /// The metrics server; `None` when metrics are off.
    pub metrics: Option<Listen>,
    /// mTLS settings; `None` disables mTLS.
    pub tls: Option<TlsConfig>,
    /// Namespace of this service.
    pub namespace: String,
    /// Id of this replica.
    pub id: String,
    /// Leader election.
    pub electing: Electing,
    /// Whether `/placement/state` is served.
    pub metadata: bool,
    /// Points of a host on the ring of an actor type.
    pub replication_factor: i64,
    /// Idle time of a connection before a ping.
    pub keepalive_time: Duration,
    /// Time to answer a ping.
    pub keepalive_timeout: Duration,
    /// Time to answer a dissemination.
    pub disseminate_timeout: Duration,
    /// Pause after a dissemination; changes within it are batched.
    pub coalesce_window: Duration,
    /// Whether sidecars may hand actors over.
    pub handover: bool,
    /// The process log.
    pub log: LogSettings,
}

/// How replicas elect a leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Electing {
    /// Raft among these replicas, including [`Config::id`].
    Raft(Vec<Replica>),
    /// A Lease of the Kubernetes API.
    Lease {
        /// Kubeconfig for use outside of a pod.
        kubeconfig: Option<PathBuf>,
    },
}

/// A replica of the Raft cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// Its `--id`, unique among the replicas.
    pub id: String,
    /// Its Raft address.
    pub listen: Listen,
}

impl Config {
    /// Reads the flags of [`FLAGS`] and, through `env`, the environment.
    ///
    /// # Errors
    /// All errors, not only the first.
    pub fn from_flags(flags: &Values, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let namespace = namespace(&env);
        let metadata = match flags.given("metadata-enabled") {
            true => flags.boolean("metadata-enabled"),
            false => env(METADATA_VARIABLE).is_some_and(|text| truthy(&text)),
        };
        let mut reader = Reader::new(flags);
        let mode = reader.mode();
        let electing = electing(&mut reader, mode);
        let tls = reader.tls(&namespace, mode);
        let host = flags.text("listen-address");
        let listen = |port| Listen {
            host: host.to_owned(),
            port,
        };
        let grpc = listen(reader.port("port"));
        let healthz_port = reader.port("healthz-port");
        let metrics_port = reader.metrics_port();
        let replication_factor = replication_factor(&mut reader);
        let keepalive_time = keepalive(&mut reader, "keepalive-time");
        let keepalive_timeout = keepalive(&mut reader, "keepalive-timeout");
        let disseminate_timeout = disseminate_timeout(&mut reader);
        let coalesce_window = reader.duration("disseminate-coalesce-window");
        match (reader.log(), reader.problems.is_empty()) {
            (Some(log), true) => Ok(Self {
                grpc,
                healthz_port,
                metrics: metrics_port.map(listen),
                tls,
                namespace,
                id: flags.text("id").to_owned(),
                electing,
                metadata,
                replication_factor,
                keepalive_time,
                keepalive_timeout,
                disseminate_timeout,
                coalesce_window,
                handover: flags.boolean("handover"),
                log,
            }),
            _ => Err(ConfigError(reader.problems)),
        }
    }
}

fn electing(reader: &mut Reader<'_>, mode: Mode) -> Electing {
    let kubeconfig = reader.given("kubeconfig").map(PathBuf::from);
    let way = reader.flags.text("leader-election").to_owned();
    if way == "lease" {
        if mode != Mode::Kubernetes {
            reader.problem(
                "--leader-election lease is for --mode kubernetes only: give that too, or leave it out, and replicas \
                 elect by --initial-cluster",
            );
        }
        if reader.flags.given("initial-cluster") {
            reader
                .problem("cannot use --initial-cluster with --leader-election lease: leave one of them out");
        }
        if reader.flags.text("id").is_empty() {
            reader.problem("--id is empty: name this replica, by its pod for example");
        }
        return Electing::Lease { kubeconfig };
    }
    if way != "raft" {
        reader.problem(format!("--leader-election {}", unknown(&way, &["raft", "lease"])));
    }
    if kubeconfig.is_some() {
        reader.problem("--kubeconfig is for --leader-election lease only: leave it out");
    }
    Electing::Raft(cluster(reader))
}

/// All replicas.
fn cluster(reader: &mut Reader<'_>) -> Vec<Replica> {
    let id = reader.flags.text("id").to_owned();
    let mut given = reader.flags.list("initial-cluster");
    if given.is_empty() {
        given.push(flags::DEFAULT_CLUSTER.to_owned());
    }
    let mut cluster: Vec<Replica> = Vec::with_capacity(given.len());
    for member in &given {
        match replica(member) {
            Some(replica) if cluster.iter().any(|other| other.id == replica.id) => {
                reader.problem(format!("--initial-cluster names {:?} twice", replica.id));
            }
            Some(replica) => cluster.push(replica),
            None => reader.problem(format!(
                "--initial-cluster: {member:?} is not id=host:port, such as {}",
                flags::DEFAULT_CLUSTER
            )),
        }
    }
    let ids: Vec<&str> = cluster.iter().map(|replica| replica.id.as_str()).collect();
    if !ids.contains(&id.as_str()) {
        let ids = ids.join(", ");
        reader.problem(format!(
            "--id {id:?} is not in --initial-cluster ({ids}): name it there"
        ));
    }
    cluster
}

fn replication_factor(reader: &mut Reader<'_>) -> i64 {
    let factor = reader.flags.int("replicationFactor");
    if !(1..=MAX_FACTOR).contains(&factor) {
        reader.problem(format!(
            "--replicationFactor {factor} is out of range, want 1 to {MAX_FACTOR}"
        ));
    }
    factor
}

fn keepalive(reader: &mut Reader<'_>, flag: &str) -> Duration {
    let duration = reader.duration(flag);
    if !(Duration::from_secs(1)..=Duration::from_secs(10)).contains(&duration) {
        reader.problem(format!(
            "invalid value for {flag}: {}, want 1s to 10s (--{flag})",
            format_go_duration(duration)
        ));
    }
    duration
}

fn disseminate_timeout(reader: &mut Reader<'_>) -> Duration {
    let duration = reader.duration("disseminate-timeout");
    if duration.is_zero() || duration > Duration::from_secs(3600) {
        reader.problem(format!(
            "--disseminate-timeout {} is out of range, want more than 0s and at most 1h",
            format_go_duration(duration)
        ));
    }
    duration
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
    fn defaults_match_dapr() {
        let config = config(&[]).unwrap();
        assert_eq!((config.grpc.port, config.healthz_port), (50005, 8080));
        assert_eq!(config.metrics.unwrap().port, 9090);
        assert_eq!(config.id, "dapr-placement-0");
        let cluster = vec![replica(flags::DEFAULT_CLUSTER).unwrap()];
        assert_eq!(config.electing, Electing::Raft(cluster));
        assert_eq!(config.replication_factor, 100);
        assert_eq!(config.disseminate_timeout, Duration::from_secs(8));
        let keepalive = (config.keepalive_time, config.keepalive_timeout);
        assert_eq!(keepalive, (Duration::from_secs(2), Duration::from_secs(3)));
        assert!(config.tls.is_none() && !config.metadata);
    }

    #[test]
    fn kubernetes_mode_requires_mtls() {
        let tls = config(&["--mode=kubernetes"]).unwrap().tls.unwrap();
        assert_eq!(tls.mode, outrigger_identity::Mode::Kubernetes);
        assert_eq!(tls.sentry_address, "dapr-sentry.ns.svc:443");
    }

    #[test]
    fn parses_replica_list() {
        let config = config(&[
            "--id=b",
            "--initial-cluster=a=h1:1,b=[::1]:2",
            "--initial-cluster=c=h3:3",
        ])
        .unwrap();
        let Electing::Raft(cluster) = config.electing else {
            panic!("{config:?}");
        };
        let ids: Vec<_> = cluster.iter().map(|replica| replica.id.as_str()).collect();
        assert_eq!(ids, ["a", "b", "c"]);
        assert_eq!(
            (cluster[1].listen.host.as_str(), cluster[1].listen.port),
            ("[::1]", 2)
        );
    }

    #[test]
    fn lease_needs_no_replica_list() {
        let args = ["--mode=kubernetes", "--leader-election=lease", "--id=pod-7"];
        let by_lease = config(&args).unwrap();
        assert_eq!(
            (by_lease.id.as_str(), &by_lease.electing),
            ("pod-7", &Electing::Lease { kubeconfig: None })
        );
        let outside = config(&[&args[..], &["--kubeconfig=/k"]].concat()).unwrap();
        let kubeconfig = Some("/k".into());
        assert_eq!(outside.electing, Electing::Lease { kubeconfig });
    }

    #[test]
    fn environment_enables_state() {
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
    fn reports_invalid_flags() {
        for (args, text) in [
            (&["--mode=x"][..], "--mode \"x\" is unknown"),
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
            (
                &["--leader-election=etcd"],
                "--leader-election \"etcd\" is unknown, want raft or lease",
            ),
            (
                &["--leader-election=lease"],
                "--leader-election lease is for --mode kubernetes only",
            ),
            (
                &[
                    "--mode=kubernetes",
                    "--leader-election=lease",
                    "--initial-cluster=a=h:1",
                ],
                "cannot use --initial-cluster with --leader-election lease",
            ),
            (
                &["--mode=kubernetes", "--leader-election=lease", "--id="],
                "--id is empty",
            ),
            (
                &["--kubeconfig=/k"],
                "--kubeconfig is for --leader-election lease only",
            ),
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
