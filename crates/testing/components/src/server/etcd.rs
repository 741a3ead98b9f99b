//! etcd.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use outrigger_component_conformance::Link;
use tempfile::TempDir;

use super::{Process, find, free_port};
use crate::tls::Certificates;

/// A cluster with one member; `None` if etcd is not installed.
pub struct Etcd {
    process: Process,
    folder: TempDir,
    program: PathBuf,
    port: u16,
    peers: u16,
    /// Additional flags.
    flags: Vec<String>,
}

impl Etcd {
    /// Starts with an empty store.
    pub fn start() -> Option<Self> {
        Self::start_with(Vec::new())
    }

    /// Limits the store to this many bytes, including history.
    pub fn start_with_quota(bytes: u64) -> Option<Self> {
        Self::start_with(vec![format!("--quota-backend-bytes={bytes}")])
    }

    /// Requires client certificates.
    pub fn start_tls(certificates: &Certificates) -> Option<Self> {
        Self::start_with(vec![
            "--client-cert-auth".to_owned(),
            format!("--trusted-ca-file={}", certificates.text("root.pem")),
            format!("--cert-file={}", certificates.text("server.pem")),
            format!("--key-file={}", certificates.text("server.key")),
        ])
    }

    /// Serves TLS without client certificates.
    pub fn start_https(certificates: &Certificates) -> Option<Self> {
        Self::start_with(vec![
            format!("--cert-file={}", certificates.text("server.pem")),
            format!("--key-file={}", certificates.text("server.key")),
        ])
    }

    fn start_with(flags: Vec<String>) -> Option<Self> {
        let program = find("etcd", "etcd-server", &["/usr/bin", "/usr/sbin"])?;
        let folder = tempfile::tempdir().unwrap();
        let (port, peers) = (free_port(), free_port());
        let process = Self::spawn(&program, folder.path(), (port, peers), &flags);
        let mut server = Self {
            process,
            folder,
            program,
            port,
            peers,
            flags,
        };
        assert!(server.process.listens(port), "{}", server.process.log());
        Some(server)
    }

    fn spawn(program: &Path, folder: &Path, (port, peers): (u16, u16), flags: &[String]) -> Process {
        let scheme = match flags.iter().any(|flag| flag.starts_with("--cert-file=")) {
            true => "https",
            false => "http",
        };
        let (clients, members) = (
            format!("{scheme}://127.0.0.1:{port}"),
            format!("http://127.0.0.1:{peers}"),
        );
        let mut command = Command::new(program);
        command
            .args(["--name=test", "--max-request-bytes=33554432"])
            .arg(format!("--data-dir={}", folder.join("data").display()))
            .arg(format!("--listen-client-urls={clients}"))
            .arg(format!("--advertise-client-urls={clients}"))
            .arg(format!("--listen-peer-urls={members}"))
            .arg(format!("--initial-advertise-peer-urls={members}"))
            .arg(format!("--initial-cluster=test={members}"))
            .args(flags);
        Process::start(command, &folder.join("log"))
    }

    /// Address on 127.0.0.1.
    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Link for Etcd {
    fn cut(&mut self) {
        self.process.kill();
    }

    fn restore(&mut self) {
        self.process = Self::spawn(
            &self.program,
            self.folder.path(),
            (self.port, self.peers),
            &self.flags,
        );
        assert!(self.process.listens(self.port), "{}", self.process.log());
    }
}
