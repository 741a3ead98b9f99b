//! NATS with JetStream.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use outrigger_component_conformance::Link;
use tempfile::TempDir;

use super::{Process, find, free_port};

/// A server with JetStream; `None` if it is not installed.
pub struct Nats {
    process: Process,
    folder: TempDir,
    program: PathBuf,
    port: u16,
}

impl Nats {
    /// Starts with an empty store, for clients with `token`; for any client if that is empty.
    pub fn start(token: &str) -> Option<Self> {
        let access = match token {
            "" => String::new(),
            token => format!("authorization {{ token: \"{token}\" }}\n"),
        };
        Self::configured("", &access)
    }

    /// Starts with an empty store, for any client, in a JetStream domain.
    pub fn in_domain(domain: &str) -> Option<Self> {
        Self::configured(&format!(", domain: {domain}"), "")
    }

    /// `jetstream` and `more` are settings of JetStream and of the server.
    fn configured(jetstream: &str, more: &str) -> Option<Self> {
        let program = find("nats-server", "nats-server", &["/usr/sbin", "/usr/bin"])?;
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let text = format!(
            "listen: 127.0.0.1:{port}\njetstream {{ store_dir: \"{}\"{jetstream} }}\n{more}",
            folder.path().display()
        );
        fs::write(folder.path().join("conf"), text).unwrap();
        let mut process = Self::spawn(&program, folder.path());
        assert!(process.listens(port), "{}", process.log());
        Some(Self {
            process,
            folder,
            program,
            port,
        })
    }

    fn spawn(program: &Path, folder: &Path) -> Process {
        let mut command = Command::new(program);
        command.arg("-c").arg(folder.join("conf"));
        Process::start(command, &folder.join("log"))
    }

    /// Port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// URL of the server.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }
}

impl Link for Nats {
    fn cut(&mut self) {
        self.process.kill();
    }

    fn restore(&mut self) {
        self.process = Self::spawn(&self.program, self.folder.path());
        assert!(self.process.listens(self.port), "{}", self.process.log());
    }
}
