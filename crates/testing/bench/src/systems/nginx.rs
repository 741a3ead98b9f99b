//! The lower bound: two nginx processes with mTLS between them. No tracing, policy, discovery or metrics.

use std::path::Path;

use tokio::process::Command;

use super::certificates::CALLEE;
use super::proxies::{Hop, Product, Side};
use crate::plan::Protocol;

const FILE: &str = "nginx.conf";

/// The installed nginx.
pub(super) struct Nginx {
    /// Worker processes of a hop.
    pub(super) workers: usize,
}

impl Product for Nginx {
    fn name(&self) -> &'static str {
        "nginx"
    }

    fn config(&self, hop: &Hop<'_>) -> (&'static str, String) {
        let (tls, location) = match hop.side {
            Side::Caller => (String::new(), to_callee(hop)),
            Side::Callee => (from_caller(hop), to_app(hop.protocol)),
        };
        (FILE, self.file(hop, &tls, &location))
    }

    fn command(&self, dir: &Path) -> Command {
        let mut command = Command::new("nginx");
        command
            .arg("-p")
            .arg(dir)
            .args(["-e", "stderr", "-c"])
            .arg(dir.join(FILE));
        command
    }
}

fn to_callee(hop: &Hop<'_>) -> String {
    let (http, pass) = match hop.protocol {
        Protocol::Http => ("proxy", format!("{PLAIN_HTTP}proxy_pass https://next;")),
        _ => ("grpc", "grpc_pass grpcs://next;".to_owned()),
    };
    format!(
        "{pass}
      {http}_ssl_certificate {};
      {http}_ssl_certificate_key {};
      {http}_ssl_trusted_certificate {};
      {http}_ssl_verify on;
      {http}_ssl_name {CALLEE};
      {http}_ssl_server_name on;
      {http}_ssl_protocols TLSv1.3;",
        hop.certificates.certificate(hop.identity).display(),
        hop.certificates.key(hop.identity).display(),
        hop.certificates.authority().display(),
    )
}

fn from_caller(hop: &Hop<'_>) -> String {
    format!(
        "ssl_certificate {};
    ssl_certificate_key {};
    ssl_client_certificate {};
    ssl_verify_client on;
    ssl_protocols TLSv1.3;",
        hop.certificates.certificate(hop.identity).display(),
        hop.certificates.key(hop.identity).display(),
        hop.certificates.authority().display(),
    )
}

fn to_app(protocol: Protocol) -> String {
    match protocol {
        Protocol::Http => format!("{PLAIN_HTTP}proxy_pass http://next;"),
        _ => "grpc_pass grpc://next;".to_owned(),
    }
}

impl Nginx {
    fn file(&self, hop: &Hop<'_>, tls: &str, location: &str) -> String {
        let workers = self.workers;
        let Hop {
            port, health, next, ..
        } = hop;
        let flags = match (hop.side, hop.protocol) {
            (Side::Caller, Protocol::Http) => "",
            (Side::Callee, Protocol::Http) => " ssl",
            (Side::Caller, _) => " http2",
            (Side::Callee, _) => " ssl http2",
        };
        // Started as root, workers would switch to a user that cannot access a private temporary directory.
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

/// Persistent connections, and unbuffered bodies that never touch the disk.
const PLAIN_HTTP: &str = "proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_request_buffering off;
      proxy_max_temp_file_size 0;
      ";

/// The version line of the installed nginx, if any.
pub(crate) fn version() -> Option<String> {
    let output = std::process::Command::new("nginx").arg("-v").output().ok()?;
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Some(text.rsplit('/').next().unwrap_or(&text).to_owned())
}
