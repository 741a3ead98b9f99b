//! Real servers on loopback, for one test each.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Read as _,
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use outrigger_component::conformance::Link;
use tempfile::TempDir;

use super::tls::Certificates;

const START: Duration = Duration::from_secs(60);
/// Of a Redis cluster.
const SLOTS: usize = 16384;

/// A child that does not outlive its owner.
struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(mut command: Command, log: &Path) -> Self {
        let out = File::create(log).unwrap();
        command
            .stdin(Stdio::null())
            .stderr(out.try_clone().unwrap())
            .stdout(out);
        Self {
            child: command.spawn().unwrap(),
            log: log.to_owned(),
        }
    }

    fn log(&self) -> String {
        let mut text = String::new();
        let _ = File::open(&self.log).and_then(|mut file| file.read_to_string(&mut text));
        text
    }

    /// Waits until something listens on `port`; `false` when the process ended before.
    fn listens(&mut self, port: u16) -> bool {
        let deadline = Instant::now() + START;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(
                Instant::now() < deadline,
                "no answer on port {port}:\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Waits until the log has `line`, after something listens.
    fn says(&mut self, line: &str) {
        let deadline = Instant::now() + START;
        while !self.log().contains(line) {
            assert!(Instant::now() < deadline, "no {line:?} in:\n{}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// The program, or `None` with a line that says so; in CI its absence fails the test.
fn find(program: &str, package: &str, folders: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let searched = std::env::split_paths(&path).chain(folders.iter().map(PathBuf::from));
    let found = searched
        .map(|folder| folder.join(program))
        .find(|file| file.is_file());
    if found.is_none() {
        let line = format!("{program} is not installed: apt-get install {package}");
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{line}");
        eprintln!("skipped: {line}");
    }
    found
}

/// A Redis server; `None` when it is not installed.
pub(crate) struct Redis {
    process: Process,
    folder: TempDir,
    program: PathBuf,
    arguments: Vec<String>,
    pub(crate) port: u16,
}

impl Redis {
    pub(crate) fn start(arguments: &[&str]) -> Option<Self> {
        let program = find("redis-server", "redis-server", &["/usr/bin"])?;
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let folder = tempfile::tempdir().unwrap();
        // The port was free a moment ago; if it is not any more, another one is.
        for _ in 0..10 {
            let port = free_port();
            let mut process = Self::spawn(&program, folder.path(), port, &arguments);
            if process.listens(port) {
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
        // What was written survives a kill.
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""]);
        command.args(arguments);
        Process::start(command, &folder.join("log"))
    }

    /// Takes only clients with a certificate.
    pub(crate) fn start_tls(certificates: &Certificates, more: &[&str]) -> Option<Self> {
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

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Makes it deaf until it is woken up; connections stay.
    pub(crate) fn freeze(&self, frozen: bool) {
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

    /// Waits until its copy of its master's data is complete.
    pub(crate) async fn is_replica(&self) {
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

    /// Masters that share the slots of one cluster.
    pub(crate) async fn cluster(size: usize) -> Option<Vec<Self>> {
        let nodes = (0..size)
            .map(|_| Self::start(&["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]))
            .collect::<Option<Vec<_>>>()?;
        for (index, node) in nodes.iter().enumerate() {
            let (first, after) = (index * SLOTS / size, (index + 1) * SLOTS / size);
            let (first, last) = (first.to_string(), (after - 1).to_string());
            node.cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            node.cli(&["CLUSTER", "MEET", "127.0.0.1", &nodes[0].port.to_string()]);
        }
        let known = format!("cluster_known_nodes:{size}");
        let formed = async {
            for node in &nodes {
                loop {
                    let state = node.cli(&["CLUSTER", "INFO"]);
                    if state.contains("cluster_state:ok") && state.contains(&known) {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        tokio::time::timeout(START, formed).await.unwrap();
        Some(nodes)
    }

    pub(crate) fn start_again(&mut self) {
        let again = Self::spawn(&self.program, self.folder.path(), self.port, &self.arguments);
        self.process = again;
        assert!(self.process.listens(self.port), "{}", self.process.log());
    }

    /// `redis-cli` against this server.
    pub(crate) fn cli(&self, arguments: &[&str]) -> String {
        self.client().run(arguments)
    }

    /// Reaches the server over its restarts too.
    pub(crate) fn client(&self) -> Cli {
        let port = self.port.to_string();
        let mut arguments = ["-h", "127.0.0.1", "-p", &port].map(str::to_owned).to_vec();
        // The server takes its own certificate for a client's.
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
pub(crate) struct Cli {
    arguments: Vec<String>,
}

impl Cli {
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
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
pub(crate) struct Sentinel {
    _process: Process,
    _folder: TempDir,
    pub(crate) port: u16,
}

impl Sentinel {
    /// It notices within seconds that the server is gone. With certificates it takes only clients with one too.
    pub(crate) fn watching(redis: &Redis, certificates: Option<&Certificates>) -> Self {
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

/// A PostgreSQL server without password; `None` when it is not installed.
pub(crate) struct Postgres {
    process: Process,
    folder: TempDir,
    program: PathBuf,
    arguments: Vec<String>,
    pub(crate) port: u16,
}

/// It listens before that, and turns everybody away.
const READY: &str = "ready to accept connections";
const POSTGRES_FOLDERS: &[&str] = &[
    "/usr/lib/postgresql/17/bin",
    "/usr/lib/postgresql/16/bin",
    "/usr/lib/postgresql/15/bin",
];

/// The account of the server's package, if the tests run as root: the server refuses to.
fn account() -> Option<(u32, u32)> {
    let root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !root {
        return None;
    }
    let accounts = fs::read_to_string("/etc/passwd").unwrap();
    let account = accounts
        .lines()
        .find(|line| line.starts_with("postgres:"))
        .unwrap();
    let mut numbers = account
        .split(':')
        .skip(2)
        .map(|number| number.parse::<u32>().unwrap());
    Some((numbers.next().unwrap(), numbers.next().unwrap()))
}

fn as_postgres(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    if let Some((user, group)) = account() {
        command.uid(user).gid(group);
    }
    command
}

/// Lets in only who comes over TLS with a certificate; the arguments that say so.
fn require_tls(folder: &Path, certificates: &Certificates) -> Vec<String> {
    let mut arguments = vec!["-c".to_owned(), "ssl=on".to_owned()];
    for (setting, name) in [
        ("ssl_cert_file", "server.pem"),
        ("ssl_key_file", "server.key"),
        ("ssl_ca_file", "root.pem"),
    ] {
        let own = folder.join(name);
        fs::copy(certificates.path(name), &own).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o600)).unwrap();
        if let Some((user, group)) = account() {
            std::os::unix::fs::chown(&own, Some(user), Some(group)).unwrap();
        }
        arguments.extend(["-c".to_owned(), format!("{setting}={}", own.display())]);
    }
    let rule = "hostssl all all 127.0.0.1/32 trust clientcert=verify-ca\n";
    fs::write(folder.join("data/pg_hba.conf"), rule).unwrap();
    arguments
}

impl Postgres {
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(None)
    }

    /// Takes only clients with a certificate.
    pub(crate) fn start_tls(certificates: &Certificates) -> Option<Self> {
        Self::start_with(Some(certificates))
    }

    fn start_with(certificates: Option<&Certificates>) -> Option<Self> {
        let program = find("postgres", "postgresql", POSTGRES_FOLDERS)?;
        let initdb = find("initdb", "postgresql", POSTGRES_FOLDERS)?;
        let folder = tempfile::tempdir().unwrap();
        // The other account makes the data folder in it.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let mut command = as_postgres(initdb);
        command.current_dir(folder.path()).args([
            "-D",
            "data",
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]);
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let arguments =
            certificates.map_or_else(Vec::new, |certificates| require_tls(folder.path(), certificates));
        for _ in 0..10 {
            let port = free_port();
            let mut process = Self::spawn(&program, folder.path(), port, &arguments);
            if process.listens(port) {
                process.says(READY);
                return Some(Self {
                    process,
                    folder,
                    program,
                    arguments,
                    port,
                });
            }
        }
        panic!("postgres does not start");
    }

    fn spawn(program: &Path, folder: &Path, port: u16, arguments: &[String]) -> Process {
        let mut command = as_postgres(program);
        let port = port.to_string();
        command
            .current_dir(folder)
            .args(["-D", "data", "-p", &port, "-h", "127.0.0.1", "-k", ""])
            .args(arguments);
        Process::start(command, &folder.join("log"))
    }

    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    pub(crate) fn text(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.port)
    }

    /// Ends it as a crash would: nothing is written any more, and its children are gone when this returns.
    pub(crate) fn kill(&mut self) {
        let id = self.process.child.id().to_string();
        let told = Command::new("kill").args(["-QUIT", &id]).status().unwrap();
        assert!(told.success());
        let _ = self.process.child.wait();
    }

    pub(crate) fn start_again(&mut self) {
        let deadline = Instant::now() + START;
        loop {
            self.process = Self::spawn(&self.program, self.folder.path(), self.port, &self.arguments);
            if self.process.listens(self.port) {
                self.process.says(READY);
                return;
            }
            assert!(Instant::now() < deadline, "{}", self.process.log());
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// An MQTT broker that anybody may use; `None` when it is not installed.
pub(crate) struct Mosquitto {
    process: Process,
    folder: TempDir,
    program: PathBuf,
    port: u16,
}

impl Mosquitto {
    pub(crate) fn start() -> Option<Self> {
        Self::start_with("")
    }

    /// Takes only clients with a certificate.
    pub(crate) fn start_tls(certificates: &Certificates) -> Option<Self> {
        Self::start_with(&format!(
            "cafile {}\ncertfile {}\nkeyfile {}\nrequire_certificate true\n",
            certificates.text("root.pem"),
            certificates.text("server.pem"),
            certificates.text("server.key")
        ))
    }

    fn start_with(more: &str) -> Option<Self> {
        let program = find("mosquitto", "mosquitto", &["/usr/sbin", "/usr/bin"])?;
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..10 {
            let port = free_port();
            // What was stored survives a kill.
            let text = format!(
                "listener {port} 127.0.0.1\nallow_anonymous true\nuser root\npersistence true\n\
                 persistence_location {}/\nautosave_on_changes true\nautosave_interval 1\n{more}",
                folder.path().display()
            );
            fs::write(folder.path().join("conf"), text).unwrap();
            let mut process = Self::spawn(&program, folder.path());
            if process.listens(port) {
                return Some(Self {
                    process,
                    folder,
                    program,
                    port,
                });
            }
        }
        panic!("mosquitto does not start");
    }

    fn spawn(program: &Path, folder: &Path) -> Process {
        let mut command = Command::new(program);
        command.arg("-c").arg(folder.join("conf"));
        Process::start(command, &folder.join("log"))
    }

    pub(crate) fn url(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    pub(crate) fn tls_url(&self) -> String {
        format!("ssl://127.0.0.1:{}", self.port)
    }
}

impl Link for Mosquitto {
    fn cut(&mut self) {
        self.process.kill();
    }

    fn restore(&mut self) {
        self.process = Self::spawn(&self.program, self.folder.path());
        assert!(self.process.listens(self.port), "{}", self.process.log());
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

impl Link for Postgres {
    fn cut(&mut self) {
        self.kill();
    }

    fn restore(&mut self) {
        self.start_again();
    }
}
