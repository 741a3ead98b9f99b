//! The final target of calls: the app, or a store.

use std::path::Path;

use outrigger_testing::ports::free_ports;
use tokio::process::Command;

use super::keeper::Component;
use super::servers::Server;
use crate::Failure;
use crate::app::Ports;
use crate::plan::{Protocol, Store};
use crate::process::Process;
use crate::procfs::Role;

/// The backend shared by all systems.
pub(crate) enum Backend {
    App(App),
    /// The sidecars' memory.
    Memory,
    Redis(Server),
    Postgres(Server),
}

impl Backend {
    /// Why it is unavailable on this machine, if so.
    pub(crate) fn missing(protocol: Protocol) -> Option<String> {
        match protocol.state()?.store {
            Store::Memory => None,
            Store::Redis => Server::redis_missing(),
            Store::Postgres => Server::postgres_missing(),
        }
    }

    pub(crate) async fn start(protocol: Protocol, dir: &Path) -> Result<Self, Failure> {
        Ok(match protocol.state().map(|call| call.store) {
            None => Self::App(App::start(dir).await?),
            Some(Store::Memory) => Self::Memory,
            Some(Store::Redis) => Self::Redis(Server::redis(dir).await?),
            Some(Store::Postgres) => Self::Postgres(Server::postgres(dir).await?),
        })
    }

    /// The port of the backend; 0 if it is in the sidecar.
    pub(super) fn port(&self, protocol: Protocol) -> u16 {
        match self {
            Self::App(app) => app.port(protocol),
            Self::Memory => 0,
            Self::Redis(server) | Self::Postgres(server) => server.port,
        }
    }

    pub(super) fn processes(&self) -> Vec<(Role, u32)> {
        let process = match self {
            Self::App(app) => &app.process,
            Self::Memory => return Vec::new(),
            Self::Redis(server) | Self::Postgres(server) => &server.process,
        };
        vec![(Role::App, process.pid())]
    }

    /// The sidecar's component for the store.
    pub(super) fn component(&self) -> Component {
        let component = |kind, version, metadata, prefix| Component {
            kind,
            version,
            metadata,
            prefix,
        };
        match self {
            Self::App(_) | Self::Memory => component("state.in-memory", "v1", Vec::new(), None),
            Self::Redis(server) => {
                let host = format!("127.0.0.1:{}", server.port);
                let metadata = vec![("redisHost", host), ("redisPassword", String::new())];
                component("state.redis", "v1", metadata, None)
            }
            Self::Postgres(server) => {
                let text = format!(
                    "host=127.0.0.1 port={} user=postgres dbname=postgres sslmode=disable",
                    server.port
                );
                let metadata = vec![("connectionString", text)];
                component("state.postgresql", "v2", metadata, Some("tablePrefix"))
            }
        }
    }

    pub(crate) async fn stop(self) -> Result<(), Failure> {
        match self {
            Self::App(app) => app.process.stop().await,
            Self::Memory => Ok(()),
            Self::Redis(server) | Self::Postgres(server) => server.process.stop().await,
        }
    }
}

/// The app called by all systems.
pub(crate) struct App {
    process: Process,
    ports: Ports,
}

impl App {
    async fn start(dir: &Path) -> Result<Self, Failure> {
        let [http, grpc] = free_ports();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["app", &format!("--http={http}"), &format!("--grpc={grpc}")]);
        let mut process = Process::start("app", command, dir)?;
        process.listening(http).await?;
        process.listening(grpc).await?;
        Ok(Self {
            process,
            ports: Ports { http, grpc },
        })
    }

    fn port(&self, protocol: Protocol) -> u16 {
        match protocol {
            Protocol::Http => self.ports.http,
            _ => self.ports.grpc,
        }
    }
}
