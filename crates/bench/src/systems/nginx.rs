//! The floor: two nginx processes with mTLS between them. No tracing, no policy, no discovery, no metrics.
//!
//! One worker each, the fastest setting on a machine with few cores: a second event loop per hop only competes with
//! the other hop, the app and the load generator. Connections are kept open on every leg.

use std::path::{Path, PathBuf};

use outrigger_ports::free_ports;
use tokio::process::Command;

use super::certificates::{CALLEE, Certificates};
use crate::Failure;
use crate::plan::Protocol;
use crate::process::Process;
use crate::procfs::Role;

/// One hop.
pub(super) struct Proxy {
    pub(super) process: Process,
    pub(super) port: u16,
    pub(super) health: u16,
}

/// Both hops.
pub(super) struct Proxies {
    caller: Proxy,
    callee: Proxy,
    certificates: Certificates,
    protocol: Protocol,
    workers: usize,
    dir: PathBuf,
    started: usize,
}

/// A hop whose files are written.
pub(super) struct Prepared {
    name: String,
    dir: PathBuf,
    port: u16,
    health: u16,
}

impl Proxies {
    pub(super) async fn start(
        protocol: Protocol,
        app: u16,
        workers: usize,
        dir: &Path,
    ) -> Result<Self, Failure> {
        let certificates = Certificates::issue(dir)?;
        let [port, health] = free_ports();
        let callee_config = Config {
            protocol,
            workers,
            port,
            health,
        }
        .callee(&certificates, app);
        let mut callee = Prepared::write("callee", dir, port, health, &callee_config)?.start()?;
        callee.process.listening(port).await?;
        let [port, health] = free_ports();
        let caller_config = Config {
            protocol,
            workers,
            port,
            health,
        }
        .caller(&certificates, callee.port);
        let mut caller = Prepared::write("caller", dir, port, health, &caller_config)?.start()?;
        caller.process.listening(port).await?;
        Ok(Self {
            caller,
            callee,
            certificates,
            protocol,
            workers,
            dir: dir.to_owned(),
            started: 0,
        })
    }

    /// One more first hop, ready to start.
    pub(super) fn prepare_caller(&mut self) -> Result<Prepared, Failure> {
        let [port, health] = free_ports();
        self.started += 1;
        let config = Config {
            protocol: self.protocol,
            workers: self.workers,
            port,
            health,
        }
        .caller(&self.certificates, self.callee.port);
        Prepared::write(
            &format!("caller-{}", self.started),
            &self.dir,
            port,
            health,
            &config,
        )
    }

    pub(super) fn caller(&mut self) -> &mut Proxy {
        &mut self.caller
    }

    pub(super) fn port(&self) -> u16 {
        self.caller.port
    }

    pub(super) fn processes(&self) -> Vec<(Role, u32)> {
        vec![
            (Role::Caller, self.caller.process.pid()),
            (Role::Callee, self.callee.process.pid()),
        ]
    }

    pub(super) async fn stop(self) -> Result<(), Failure> {
        self.caller.process.stop().await?;
        self.callee.process.stop().await
    }
}

impl Prepared {
    fn write(name: &str, dir: &Path, port: u16, health: u16, config: &str) -> Result<Self, Failure> {
        let dir = dir.join(name);
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join("nginx.conf"), config)?;
        Ok(Self {
            name: name.to_owned(),
            dir,
            port,
            health,
        })
    }

    pub(super) fn start(self) -> Result<Proxy, Failure> {
        let mut command = Command::new("nginx");
        command
            .arg("-p")
            .arg(&self.dir)
            .arg("-e")
            .arg("stderr")
            .arg("-c")
            .arg(self.dir.join("nginx.conf"));
        let process = Process::start(&format!("nginx-{}", self.name), command, &self.dir)?;
        Ok(Proxy {
            process,
            port: self.port,
            health: self.health,
        })
    }
}

struct Config {
    protocol: Protocol,
    workers: usize,
    port: u16,
    health: u16,
}

impl Config {
    fn caller(&self, certificates: &Certificates, callee: u16) -> String {
        let (certificate, key) = certificates.caller();
        let (http, tls) = match self.protocol {
            Protocol::Http => ("proxy", format!("{PLAIN_HTTP}proxy_pass https://next;")),
            _ => ("grpc", "grpc_pass grpcs://next;".to_owned()),
        };
        let location = format!(
            "{tls}
      {http}_ssl_certificate {};
      {http}_ssl_certificate_key {};
      {http}_ssl_trusted_certificate {};
      {http}_ssl_verify on;
      {http}_ssl_name {CALLEE};
      {http}_ssl_server_name on;
      {http}_ssl_protocols TLSv1.3;",
            certificate.display(),
            key.display(),
            certificates.authority().display(),
        );
        self.file(callee, "", &location)
    }

    fn callee(&self, certificates: &Certificates, app: u16) -> String {
        let (certificate, key) = certificates.callee();
        let tls = format!(
            "ssl_certificate {};
    ssl_certificate_key {};
    ssl_client_certificate {};
    ssl_verify_client on;
    ssl_protocols TLSv1.3;",
            certificate.display(),
            key.display(),
            certificates.authority().display(),
        );
        let location = match self.protocol {
            Protocol::Http => format!("{PLAIN_HTTP}proxy_pass http://next;"),
            _ => "grpc_pass grpc://next;".to_owned(),
        };
        self.file(app, &tls, &location)
    }

    fn file(&self, next: u16, tls: &str, location: &str) -> String {
        let Self {
            workers,
            port,
            health,
            ..
        } = self;
        let flags = match (tls.is_empty(), self.protocol) {
            (true, Protocol::Http) => "",
            (false, Protocol::Http) => " ssl",
            (true, _) => " http2",
            (false, _) => " ssl http2",
        };
        // Started as root, workers would become another user, who cannot enter a private temporary folder.
        let user = if rustix::process::geteuid().is_root() {
            "user root;"
        } else {
            ""
        };
        format!(
            "{user}
worker_processes {workers};
daemon off;
pid nginx.pid;
error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  client_max_body_size 0;
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  tcp_nodelay on;
  upstream next {{
    server 127.0.0.1:{next};
    keepalive 512;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
  }}
  server {{
    listen 127.0.0.1:{port}{flags};
    {tls}
    location / {{
      {location}
    }}
  }}
  server {{
    listen 127.0.0.1:{health};
    location / {{ return 204; }}
  }}
}}
"
        )
    }
}

/// Kept connections, and bodies that are passed on as they come and never touch the disk.
const PLAIN_HTTP: &str = "proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_request_buffering off;
      proxy_max_temp_file_size 0;
      ";

/// The version line of the nginx that is installed, if one is.
pub(crate) fn version() -> Option<String> {
    let output = std::process::Command::new("nginx").arg("-v").output().ok()?;
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Some(text.rsplit('/').next().unwrap_or(&text).to_owned())
}
