//! RabbitMQ. It starts slowly, so the tests of a binary share one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use outrigger_component_conformance::Link;
use tempfile::TempDir;

use super::{Process, find, free_port};
use crate::tls::Certificates;

/// A broker with the account `guest`; `None` if it is not installed.
pub struct RabbitMq {
    node: Process,
    /// The Erlang port mapper. The node would start one that outlives it.
    _names: Process,
    folder: TempDir,
    program: PathBuf,
    names_port: u16,
    port: u16,
    tls_port: u16,
}

impl RabbitMq {
    /// Maximum message size in bytes.
    pub const MAX_MESSAGE: usize = 16 << 20;

    /// Starts with an empty store, and TLS with client certificates.
    pub fn start(certificates: &Certificates) -> Option<Self> {
        let script = "rabbitmq-server";
        // The script in /usr/sbin switches to another user first.
        let folders: Vec<String> = fs::read_dir("/usr/lib/rabbitmq/lib")
            .into_iter()
            .flatten()
            .filter_map(|folder| Some(folder.ok()?.path().join("sbin").to_str()?.to_owned()))
            .collect();
        let folders: Vec<&str> = folders.iter().map(String::as_str).collect();
        let program = folders
            .iter()
            .map(|folder| Path::new(folder).join(script))
            .find(|program| program.is_file());
        let program = match program {
            Some(program) => program,
            None => find(script, "rabbitmq-server", &folders)?,
        };
        let epmd = find("epmd", "erlang-base", &["/usr/bin"])?;
        let folder = tempfile::tempdir().unwrap();
        let (names_port, port, tls_port) = (free_port(), free_port(), free_port());
        let mut command = Command::new(epmd);
        command
            .args(["-port", &names_port.to_string()])
            .env("ERL_EPMD_ADDRESS", "127.0.0.1");
        let mut names = Process::start(command, &folder.path().join("names.log"));
        assert!(names.listens(names_port), "{}", names.log());
        let conf = format!(
            "listeners.tcp.local = 127.0.0.1:{port}\nlisteners.ssl.local = 127.0.0.1:{tls_port}\n\
             ssl_options.cacertfile = {}\nssl_options.certfile = {}\nssl_options.keyfile = {}\n\
             ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true\n\
             max_message_size = {}\n",
            certificates.text("root.pem"),
            certificates.text("server.pem"),
            certificates.text("server.key"),
            Self::MAX_MESSAGE
        );
        fs::write(folder.path().join("rabbit.conf"), conf).unwrap();
        fs::write(folder.path().join("plugins"), "[].").unwrap();
        let node = Self::spawn(&program, folder.path(), names_port);
        let mut server = Self {
            node,
            _names: names,
            folder,
            program,
            names_port,
            port,
            tls_port,
        };
        assert!(server.node.listens(port), "{}", server.node.log());
        assert!(server.node.listens(tls_port), "{}", server.node.log());
        Some(server)
    }

    fn spawn(program: &Path, folder: &Path, names_port: u16) -> Process {
        let mut command = Command::new(program);
        command
            .env("HOME", folder)
            .env("ERL_EPMD_PORT", names_port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            // Makes the script `exec` the node, so that killing it kills the node.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_NODENAME", "test@localhost")
            .env("RABBITMQ_DIST_PORT", free_port().to_string())
            .env("RABBITMQ_MNESIA_BASE", folder)
            .env("RABBITMQ_LOG_BASE", folder)
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_CONFIG_FILE", folder.join("rabbit.conf"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("plugins"));
        Process::start(command, &folder.join("log"))
    }

    /// AMQP port without TLS, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The broker's log.
    pub fn log(&self) -> String {
        self.node.log()
    }

    /// URL without TLS.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}", self.port)
    }

    /// URL with TLS.
    pub fn tls_url(&self) -> String {
        format!("amqps://guest:guest@127.0.0.1:{}", self.tls_port)
    }
}

impl Link for RabbitMq {
    fn cut(&mut self) {
        self.node.kill();
    }

    fn restore(&mut self) {
        self.node = Self::spawn(&self.program, self.folder.path(), self.names_port);
        assert!(self.node.listens(self.port), "{}", self.node.log());
    }
}
