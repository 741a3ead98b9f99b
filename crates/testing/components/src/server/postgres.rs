//! PostgreSQL.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use outrigger_component_conformance::Link;
use tempfile::TempDir;

use super::{Process, START, find, free_port};
use crate::tls::Certificates;

/// A PostgreSQL server without passwords; `None` if it is not installed.
pub struct Postgres {
    process: Process,
    folder: TempDir,
    program: PathBuf,
    arguments: Vec<String>,
    /// Port on 127.0.0.1.
    pub port: u16,
}

/// The server listens before it is ready, and rejects clients until then.
const READY: &str = "ready to accept connections";
const POSTGRES_FOLDERS: &[&str] = &[
    "/usr/lib/postgresql/17/bin",
    "/usr/lib/postgresql/16/bin",
    "/usr/lib/postgresql/15/bin",
];

/// The account of the server's package, for tests that run as root, which the server refuses.
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

/// Requires TLS with client certificates; returns the arguments for that.
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
    /// Statements after which new sessions see a `clock_timestamp()` that `fake.clock` shifts.
    pub const SETTABLE_CLOCK: &str = "
        CREATE SCHEMA fake;
        CREATE TABLE fake.clock AS SELECT interval '0' AS shift;
        CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
            AS 'SELECT pg_catalog.clock_timestamp() + shift FROM fake.clock';
        DO $$BEGIN
            EXECUTE format('ALTER DATABASE %I SET search_path = fake, pg_catalog, public', current_database());
        END$$;";

    /// Starts with an empty store.
    pub fn start() -> Option<Self> {
        Self::start_with(None)
    }

    /// Requires client certificates.
    pub fn start_tls(certificates: &Certificates) -> Option<Self> {
        Self::start_with(Some(certificates))
    }

    fn start_with(certificates: Option<&Certificates>) -> Option<Self> {
        let program = find("postgres", "postgresql", POSTGRES_FOLDERS)?;
        let initdb = find("initdb", "postgresql", POSTGRES_FOLDERS)?;
        let folder = tempfile::tempdir().unwrap();
        // The other account creates the data directory in it.
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

    /// The server's log.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// A connection string.
    pub fn text(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.port)
    }

    /// Crashes the server: nothing more is written, and its children have ended on return.
    pub fn kill(&mut self) {
        let id = self.process.child.id().to_string();
        let sent = Command::new("kill").args(["-QUIT", &id]).status().unwrap();
        assert!(sent.success());
        let _ = self.process.child.wait();
    }

    /// Like [`Self::start_again`], but as a promoted standby: it starts a new timeline.
    pub fn take_over(&mut self) {
        fs::write(self.folder.path().join("data/recovery.signal"), "").unwrap();
        self.arguments
            .extend(["-c".to_owned(), "restore_command=/bin/false".to_owned()]);
        self.start_again();
    }

    /// Restarts with its data on its port.
    pub fn start_again(&mut self) {
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

impl Link for Postgres {
    fn cut(&mut self) {
        self.kill();
    }

    fn restore(&mut self) {
        self.start_again();
    }
}
