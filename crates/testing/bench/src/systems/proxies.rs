//! Two processes of any proxy with mTLS between them.
//!
//! One worker each, which is fastest on a machine with few cores: a second event loop per hop would compete
//! with the other hop, the app and the load generator. All connections are persistent.

use std::path::{Path, PathBuf};

use outrigger_testing::ports::free_ports;
use tokio::process::Command;

use super::certificates::{CALLEE, CALLER, Certificates};
use crate::Failure;
use crate::plan::Protocol;
use crate::process::Process;
use crate::procfs::Role;

/// A proxy that can be both hops.
pub(super) trait Product {
    /// Name in log files.
    fn name(&self) -> &'static str;

    /// The name and content of a hop's configuration file.
    fn config(&self, hop: &Hop<'_>) -> (&'static str, String);

    /// The command for a hop whose file is in a directory.
    fn command(&self, dir: &Path) -> Command;
}

/// Configuration of a hop.
pub(super) struct Hop<'a> {
    pub(super) side: Side,
    pub(super) protocol: Protocol,
    /// The name in its certificate.
    pub(super) identity: &'a str,
    /// Port for calls.
    pub(super) port: u16,
    /// Port where it answers any HTTP/1.1 call itself, with 204.
    pub(super) health: u16,
    /// Port of the next hop: the callee, or the app.
    pub(super) next: u16,
    pub(super) certificates: &'a Certificates,
}

/// Position of a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Receives plaintext calls and forwards them by mTLS.
    Caller,
    /// The reverse.
    Callee,
}

/// A running hop.
pub(super) struct Proxy {
    pub(super) process: Process,
    pub(super) port: u16,
    pub(super) health: u16,
}

/// Both hops.
pub(super) struct Proxies {
    maker: Maker,
    caller: Proxy,
    callee: Proxy,
}

/// A hop whose files are written.
pub(super) struct Prepared {
    name: String,
    command: Command,
    dir: PathBuf,
    port: u16,
    health: u16,
}

/// Creates hops.
struct Maker {
    product: Box<dyn Product>,
    protocol: Protocol,
    certificates: Certificates,
    dir: PathBuf,
    made: usize,
}

impl Proxies {
    /// Starts a callee in front of the app's port, and a caller in front of the callee.
    pub(super) async fn start(
        product: Box<dyn Product>,
        protocol: Protocol,
        app: u16,
        dir: &Path,
    ) -> Result<Self, Failure> {
        let mut maker = Maker {
            product,
            protocol,
            certificates: Certificates::issue(dir)?,
            dir: dir.to_owned(),
            made: 0,
        };
        let mut callee = maker.prepare(Side::Callee, CALLEE, app)?.start()?;
        callee.process.listening(callee.port).await?;
        let mut caller = maker.prepare(Side::Caller, CALLER, callee.port)?.start()?;
        caller.process.listening(caller.port).await?;
        Ok(Self {
            maker,
            caller,
            callee,
        })
    }

    /// Prepares one more first hop.
    pub(super) fn prepare_caller(&mut self) -> Result<Prepared, Failure> {
        self.maker.prepare(Side::Caller, CALLER, self.callee.port)
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

impl Maker {
    fn prepare(&mut self, side: Side, identity: &str, next: u16) -> Result<Prepared, Failure> {
        self.made += 1;
        let name = format!("{}-{}-{identity}", self.product.name(), self.made);
        let dir = self.dir.join(&name);
        std::fs::create_dir_all(&dir)?;
        let [port, health] = free_ports();
        let (file, config) = self.product.config(&Hop {
            side,
            protocol: self.protocol,
            identity,
            port,
            health,
            next,
            certificates: &self.certificates,
        });
        std::fs::write(dir.join(file), config)?;
        Ok(Prepared {
            name,
            command: self.product.command(&dir),
            dir,
            port,
            health,
        })
    }
}

impl Prepared {
    pub(super) fn start(self) -> Result<Proxy, Failure> {
        Ok(Proxy {
            process: Process::start(&self.name, self.command, &self.dir)?,
            port: self.port,
            health: self.health,
        })
    }
}

#[cfg(test)]
mod tests;
