//! Redis, its clusters and its sentinels.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use outrigger_component_conformance::Link;
use tempfile::TempDir;

use super::{Process, START, find, free_port};
use crate::tls::Certificates;

/// Slots of a cluster.
const SLOTS: usize = 16384;
/// Argument for the cluster bus port.
const BUS: &str = "--cluster-port";

/// A Redis server; `None` if it is not installed.
pub struct Redis {
    process: Process,
    folder: TempDir,
    program: PathBuf,
    arguments: Vec<String>,
    /// Port on 127.0.0.1.
    pub port: u16,
}

impl Redis {
    /// Starts with these arguments in addition to those for its port and files.
    pub fn start(arguments: &[&str]) -> Option<Self> {
        let program = find("redis-server", "redis-server", &["/usr/bin"])?;
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let folder = tempfile::tempdir().unwrap();
        // Retries with other ports, because a free port may have been taken.
        for _ in 0..10 {
            let port = free_port();
            let mut arguments = arguments.clone();
            // The default bus port may be an ephemeral port in use.
            if arguments.iter().any(|argument| argument == "--cluster-enabled") {
                arguments.extend([BUS.to_owned(), free_port().to_string()]);
            }
            let mut process = Self::spawn(&program, folder.path(), port, &arguments);
            if process.listens(port) && process.comes_to("Ready to accept connections") {
                return Some(Self {
                    process,
                    folder,
                    program,
                    arguments,
                    port,
                });
            }
        }
        panic!("redis-server does not start");
    }

    fn spawn(program: &Path, folder: &Path, port: u16, arguments: &[String]) -> Process {
        let mut command = Command::new(program);
        let port = port.to_string();
        command.current_dir(folder).args(["--bind", "127.0.0.1"]);
        if arguments.iter().any(|argument| argument == "--tls-cert-file") {
            command.args(["--port", "0", "--tls-port", &port]);
        } else {
            command.args(["--port", &port]);
        }
        // Writes survive a kill.
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""]);
        command.args(arguments);
        Process::start(command, &folder.join("log"))
    }

    /// Requires client certificates.
    pub fn start_tls(certificates: &Certificates, more: &[&str]) -> Option<Self> {
        let settings = tls_settings(certificates);
        let mut arguments = Vec::new();
        for (name, value) in &settings {
            arguments.extend([format!("--{name}"), value.clone()]);
        }
        let arguments: Vec<_> = arguments
            .iter()
            .map(String::as_str)
            .chain(more.iter().copied())
            .collect();
        Self::start(&arguments)
    }

    /// Host and port.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills the server without a shutdown.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Stops or resumes the process; connections stay open.
    pub fn freeze(&self, frozen: bool) {
        let signal = if frozen { "-STOP" } else { "-CONT" };
        let id = self.process.child.id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &id])
                .status()
                .unwrap()
                .success()
        );
    }

    /// Waits until its replication is complete.
    pub async fn is_replica(&self) {
        let joined = async {
            while !self
                .cli(&["INFO", "replication"])
                .contains("master_link_status:up")
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(START, joined).await.unwrap();
    }

    /// The value of a given argument.
    fn argument(&self, name: &str) -> &str {
        let index = self.arguments.iter().position(|argument| argument == name);
        &self.arguments[index.unwrap() + 1]
    }

    /// Assigns slots `first` to `last` to this cluster node.
    fn takes_slots(&self, first: usize, last: usize) {
        let said = self.cli(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        assert_eq!(said, "OK", "{}", self.process.log());
    }

    /// Makes this node a cluster with one member.
    pub async fn is_cluster(&self) {
        self.takes_slots(0, SLOTS - 1);
        let ready = async {
            while !self.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok") {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(START, ready).await.unwrap();
    }

    /// Masters that share the slots of one cluster.
    pub async fn cluster(size: usize) -> Option<Vec<Self>> {
        let nodes = (0..size)
            .map(|_| Self::start(&["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]))
            .collect::<Option<Vec<_>>>()?;
        for (index, node) in nodes.iter().enumerate() {
            let (first, after) = (index * SLOTS / size, (index + 1) * SLOTS / size);
            node.takes_slots(first, after - 1);
        }
        let known = format!("cluster_known_nodes:{size}");
        let is_alone = |node: &&Self| {
            let state = node.cli(&["CLUSTER", "INFO"]);
            !state.contains("cluster_state:ok") || !state.contains(&known)
        };
        let formed = async {
            for turn in 0.. {
                let alone: Vec<_> = nodes.iter().filter(is_alone).collect();
                if alone.is_empty() {
                    break;
                }
                // Repeats the introduction, because nodes forget one that takes longer than their timeout.
                for node in alone.iter().filter(|_| turn % 40 == 0) {
                    let (port, bus) = (nodes[0].port.to_string(), nodes[0].argument(BUS));
                    node.cli(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(START, formed).await.is_err() {
            let states = nodes.iter().map(|node| {
                let said = [["CLUSTER", "INFO"], ["CLUSTER", "NODES"]].map(|asked| node.cli(&asked));
                format!("{}\n{}", said.join("\n"), node.process.log())
            });
            panic!(
                "they do not form a cluster:\n{}",
                states.collect::<Vec<_>>().join("\n")
            );
        }
        Some(nodes)
    }

    /// Restarts with its data on its port.
    pub fn start_again(&mut self) {
        let again = Self::spawn(&self.program, self.folder.path(), self.port, &self.arguments);
        self.process = again;
        assert!(self.process.listens(self.port), "{}", self.process.log());
    }

    /// Runs `redis-cli` against this server.
    pub fn cli(&self, arguments: &[&str]) -> String {
        self.client().run(arguments)
    }

    /// A client that also works after restarts.
    pub fn client(&self) -> Cli {
        let port = self.port.to_string();
        let mut arguments = ["-h", "127.0.0.1", "-p", &port].map(str::to_owned).to_vec();
        // The server accepts its own certificate as a client's.
        for (theirs, ours) in [
            ("--tls-cert-file", "--cert"),
            ("--tls-key-file", "--key"),
            ("--tls-ca-cert-file", "--cacert"),
        ] {
            if let Some(index) = self.arguments.iter().position(|argument| argument == theirs) {
                arguments.extend([
                    "--tls".to_owned(),
                    ours.to_owned(),
                    self.arguments[index + 1].clone(),
                ]);
            }
        }
        Cli { arguments }
    }
}

/// `redis-cli` for one server.
pub struct Cli {
    arguments: Vec<String>,
}

impl Cli {
    /// The output of a command.
    pub fn run(&self, arguments: &[&str]) -> String {
        let program = find("redis-cli", "redis-tools", &["/usr/bin"]).unwrap();
        let output = Command::new(program)
            .args(&self.arguments)
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

fn tls_settings(certificates: &Certificates) -> [(&'static str, String); 4] {
    [
        ("tls-cert-file", certificates.text("server.pem")),
        ("tls-key-file", certificates.text("server.key")),
        ("tls-ca-cert-file", certificates.text("root.pem")),
        ("tls-replication", "yes".to_owned()),
    ]
}

/// A sentinel that watches one server under the name `main`.
pub struct Sentinel {
    _process: Process,
    _folder: TempDir,
    /// Port on 127.0.0.1.
    pub port: u16,
}

impl Sentinel {
    /// Detects the loss of the server within seconds. With certificates, requires client certificates too.
    pub fn watching(redis: &Redis, certificates: Option<&Certificates>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let config = folder.path().join("sentinel.conf");
        let listening = match certificates {
            None => format!("port {port}"),
            Some(certificates) => {
                let settings = tls_settings(certificates).map(|(name, value)| format!("{name} {value}\n"));
                format!("{}port 0\ntls-port {port}", settings.concat())
            }
        };
        let text = format!(
            "bind 127.0.0.1\n{listening}\ndir {}\nsentinel monitor main 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds main 2000\nsentinel failover-timeout main 4000\n",
            folder.path().display(),
            redis.port
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new(&redis.program);
        command.arg(&config).arg("--sentinel");
        let mut process = Process::start(command, &folder.path().join("log"));
        assert!(process.listens(port), "{}", process.log());
        Self {
            _process: process,
            _folder: folder,
            port,
        }
    }
}

impl Link for Redis {
    fn cut(&mut self) {
        self.kill();
    }

    fn restore(&mut self) {
        self.start_again();
    }
}
