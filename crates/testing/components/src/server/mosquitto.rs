//! Mosquitto, an MQTT broker.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use outrigger_component_conformance::Link;
use tempfile::TempDir;

use super::{Process, find, free_port};
use crate::tls::Certificates;

/// An MQTT broker without authentication; `None` if it is not installed.
pub struct Mosquitto {
    process: Process,
    folder: TempDir,
    program: PathBuf,
    port: u16,
}

impl Mosquitto {
    /// Starts with an empty store.
    pub fn start() -> Option<Self> {
        Self::start_with("")
    }

    /// Requires client certificates.
    pub fn start_tls(certificates: &Certificates) -> Option<Self> {
        Self::start_with(&format!(
            "cafile {}\ncertfile {}\nkeyfile {}\nrequire_certificate true\n",
            certificates.text("root.pem"),
            certificates.text("server.pem"),
            certificates.text("server.key")
        ))
    }

    /// Starts with additional lines of configuration.
    pub fn start_with(more: &str) -> Option<Self> {
        let program = find("mosquitto", "mosquitto", &["/usr/sbin", "/usr/bin"])?;
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..10 {
            let port = free_port();
            // Persists data, so that it survives a kill.
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

    /// Port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// URL without TLS.
    pub fn url(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    /// URL with TLS.
    pub fn tls_url(&self) -> String {
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
