//! The ports and sockets of a sidecar, claimed early and together, so that all failures are reported at once
//! with their flags.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use outrigger_backoff::Backoff;
use outrigger_transport::listen::{self, BindError, Bound, Listener};

use tokio::time::Instant;

use crate::config::Config;

/// How long ports are bound again on a restart, and the bounds of the pauses.
const RETRIED: Duration = Duration::from_secs(10);
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));
const ADDRESSES: &str = "dapr-listen-addresses";
const SOCKETS: &str = "unix-domain-socket";

/// The sockets of all servers.
pub(super) struct Sockets {
    pub(super) http: Claimed,
    pub(super) grpc: Claimed,
    pub(super) public: Claimed,
    pub(super) profiling: Claimed,
    pub(super) metrics: Claimed,
    pub(super) internal: Claimed,
}

/// The sockets of one server.
#[derive(Default)]
pub(super) struct Claimed {
    by: Flags,
    bound: Vec<Bound>,
}

/// The flags for a server's port and address.
#[derive(Clone, Copy, Default)]
struct Flags {
    port: &'static str,
    address: &'static str,
}

/// Why a sidecar cannot listen, one text per flag.
#[derive(Debug, thiserror::Error)]
// The prefix is the contract's.
#[error("could not listen on any endpoint: {}", .0.join("\n"))]
pub struct PortsError(Vec<String>);

impl Sockets {
    /// Binds all configured ports and sockets; retries for a while on a restart, because connections of the
    /// last sidecar may hold them.
    pub(super) async fn bind(config: &Config, is_restart: bool) -> Result<Self, PortsError> {
        let end = Instant::now() + RETRIED;
        let mut pauses = Backoff::new(RETRY_PAUSES.0, RETRY_PAUSES.1);
        loop {
            match Self::bind_now(config) {
                Err(_) if is_restart && Instant::now() < end => tokio::time::sleep(pauses.pause()).await,
                bound => return bound,
            }
        }
    }

    fn bind_now(config: &Config) -> Result<Self, PortsError> {
        let mut claims = Claims::default();
        let api = &config.api;
        let (http, grpc) = match (api.http_socket(&config.app_id), api.grpc_socket(&config.app_id)) {
            (Some(http), Some(grpc)) => (claims.socket(&http), claims.socket(&grpc)),
            _ => (
                claims.ports("dapr-http-port", ADDRESSES, &api.listen_addresses, api.http_port),
                claims.ports("dapr-grpc-port", ADDRESSES, &api.listen_addresses, api.grpc_port),
            ),
        };
        let public = config.public.as_ref().map(|public| {
            let address = std::slice::from_ref(&public.listen_address);
            claims.ports(
                "dapr-public-port",
                "dapr-public-listen-address",
                address,
                public.port,
            )
        });
        let profiling = config.profiling.enabled.then(|| {
            let port = config.profiling.port;
            claims.ports("profile-port", ADDRESSES, &api.listen_addresses, port)
        });
        let metrics = config.metrics.enabled.then(|| {
            let address = std::slice::from_ref(&config.metrics.listen_address);
            claims.ports(
                "metrics-port",
                "metrics-listen-address",
                address,
                config.metrics.port,
            )
        });
        let internal = claims.ports(
            "dapr-internal-grpc-port",
            "dapr-internal-grpc-listen-address",
            std::slice::from_ref(&config.internal.listen_address),
            config
                .internal
                .choose_port(&config.app_id, config.app.port)
                .unwrap_or(0),
        );
        claims.check(
            [&http, &grpc]
                .into_iter()
                .chain(&public)
                .chain(&profiling)
                .chain(&metrics)
                .chain([&internal]),
        );
        if !claims.failed.is_empty() {
            return Err(PortsError(claims.failed));
        }
        Ok(Self {
            http,
            grpc,
            public: public.unwrap_or_default(),
            profiling: profiling.unwrap_or_default(),
            metrics: metrics.unwrap_or_default(),
            internal,
        })
    }

    /// The port for calls of other sidecars.
    pub(super) fn internal_port(&self) -> u16 {
        self.internal.bound.first().and_then(Bound::port).unwrap_or(0)
    }
}

impl Claimed {
    /// Starts listening.
    ///
    /// # Errors
    /// [`PortsError`] if another process was faster.
    pub(super) fn listen(self) -> Result<Vec<Listener>, PortsError> {
        let by = self.by;
        let listening = self
            .bound
            .into_iter()
            .map(Bound::listen)
            .collect::<Result<_, _>>();
        listening.map_err(|error| PortsError(vec![by.refused(&error)]))
    }
}

impl Flags {
    fn refused(self, error: &BindError) -> String {
        let (flag, remedy) = match error.kind() {
            ErrorKind::AlreadyExists => (self.port, "give another folder, or move the file away"),
            _ if self.port == SOCKETS => (
                SOCKETS,
                "give another folder, or stop the process that has the socket",
            ),
            ErrorKind::AddrInUse => (self.port, "give another port, or stop the process that has it"),
            ErrorKind::PermissionDenied => (self.port, "give a port from 1024 on"),
            _ => (self.address, "give an address of this machine"),
        };
        format!("--{flag}: {error} ({remedy})")
    }
}

/// The claimed ports and the failures so far.
#[derive(Default)]
struct Claims {
    failed: Vec<String>,
}

impl Claims {
    fn ports(
        &mut self,
        port: &'static str,
        address: &'static str,
        addresses: &[String],
        number: u16,
    ) -> Claimed {
        let by = Flags { port, address };
        let bound = listen::bind(addresses, number);
        self.keep(by, bound)
    }

    fn socket(&mut self, path: &Path) -> Claimed {
        let by = Flags {
            port: SOCKETS,
            address: SOCKETS,
        };
        let bound = listen::bind_unix(path).map(|bound| vec![bound]);
        self.keep(by, bound)
    }

    fn keep(&mut self, by: Flags, bound: Result<Vec<Bound>, BindError>) -> Claimed {
        let bound = bound.unwrap_or_else(|error| {
            self.failed.push(by.refused(&error));
            Vec::new()
        });
        Claimed { by, bound }
    }

    /// Reports flags that name the same port.
    fn check<'a>(&mut self, all: impl Iterator<Item = &'a Claimed>) {
        let mut before: Vec<&Claimed> = Vec::new();
        for claimed in all {
            let taken = |other: &&&Claimed| {
                let overlaps = |one: &Bound| other.bound.iter().any(|two| one.overlaps(two));
                claimed.bound.iter().any(overlaps)
            };
            if let (Some(other), Some(port)) = (
                before.iter().find(taken),
                claimed.bound.iter().find_map(Bound::port),
            ) {
                self.failed.push(format!(
                    "--{}: {port} is also the port of --{} (give them different ports)",
                    claimed.by.port, other.by.port
                ));
            }
            before.push(claimed);
        }
    }
}
