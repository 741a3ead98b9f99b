//! The plan of a run: two profiles, whose settings flags can override.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

mod state;

pub(crate) use state::{Api, StateCall, Store, Verb};

/// The kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) enum Protocol {
    /// HTTP/1.1 to an HTTP app.
    Http,
    /// `InvokeService` of the gRPC API to `OnInvoke` of a gRPC app.
    Grpc,
    /// A method of the app's service, selected by metadata and proxied.
    Proxy,
    /// A call of the state API.
    State(StateCall),
}

impl Protocol {
    /// The protocols of service invocation.
    pub(crate) const INVOCATION: [Self; 3] = [Self::Http, Self::Grpc, Self::Proxy];

    /// Name in flags, JSON and file names.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Http => "http".to_owned(),
            Self::Grpc => "grpc".to_owned(),
            Self::Proxy => "proxy".to_owned(),
            Self::State(call) => call.name(),
        }
    }

    /// Name in titles.
    pub(crate) fn title(self) -> String {
        match self {
            Self::Http => "HTTP invocation".to_owned(),
            Self::Grpc => "gRPC invocation".to_owned(),
            Self::Proxy => "proxied gRPC".to_owned(),
            Self::State(call) => call.title(),
        }
    }

    pub(crate) fn state(self) -> Option<StateCall> {
        match self {
            Self::State(call) => Some(call),
            Self::Http | Self::Grpc | Self::Proxy => None,
        }
    }

    /// Whether a system supports the call: proxies keep no state, and only a sidecar can access its memory.
    pub(crate) fn is_made_by(self, system: System) -> bool {
        match (self, system) {
            (Self::State(_), System::Envoy | System::Nginx) => false,
            (Self::State(call), System::Direct) => call.store != Store::Memory,
            _ => true,
        }
    }
}

impl From<Protocol> for String {
    fn from(protocol: Protocol) -> Self {
        protocol.name()
    }
}

impl TryFrom<String> for Protocol {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::INVOCATION
            .into_iter()
            .chain(StateCall::all().map(Self::State))
            .find(|protocol| protocol.name() == name)
            .ok_or_else(|| format!("unknown protocol {name:?}"))
    }
}

/// The system that carries the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum System {
    /// None: the load generator calls the app, or the store through its driver.
    Direct,
    /// This project's sidecars: two for an invocation, one for state.
    Outrigger,
    /// The same number of Dapr's sidecars.
    Reference,
    /// Two Envoy processes with mTLS between them, and an access rule.
    Envoy,
    /// Two nginx processes with mTLS between them.
    Nginx,
}

impl System {
    pub(crate) const ALL: [Self; 5] = [
        Self::Direct,
        Self::Outrigger,
        Self::Reference,
        Self::Envoy,
        Self::Nginx,
    ];
    /// The systems to compare with.
    pub(crate) const PEERS: [Self; 3] = [Self::Reference, Self::Envoy, Self::Nginx];

    /// Name in flags and JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Outrigger => "outrigger",
            Self::Reference => "reference",
            Self::Envoy => "envoy",
            Self::Nginx => "nginx",
        }
    }

    /// Name in tables and legends.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Outrigger => "Outrigger",
            Self::Reference => "Dapr",
            Self::Envoy => "Envoy",
            Self::Nginx => "nginx",
        }
    }
}

/// The load generator for fixed rates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Driver {
    /// This program's load generator.
    Own,
    /// Fortio, at this path.
    Fortio(PathBuf),
}

/// Name resolution of the sidecars.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Resolver {
    /// Multicast DNS, the default of self-hosted sidecars.
    Mdns,
    /// A table in a file, for machines without multicast.
    Sqlite,
}

/// A run. Times are in seconds, sizes in bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) profile: String,
    pub(crate) protocols: Vec<Protocol>,
    pub(crate) systems: Vec<System>,
    pub(crate) driver: Driver,
    pub(crate) resolver: Resolver,
    pub(crate) rounds: usize,
    pub(crate) requests: u64,
    pub(crate) qps: f64,
    pub(crate) connections: usize,
    pub(crate) payload: usize,
    pub(crate) warmup: f64,
    pub(crate) saturation: f64,
    /// Rates of the saturation curve, as fractions of each system's throughput.
    pub(crate) curve: Vec<f64>,
    pub(crate) curve_point: f64,
    pub(crate) payloads: Vec<usize>,
    pub(crate) connection_counts: Vec<usize>,
    pub(crate) sweep_point: f64,
    /// Sidecars started to measure the time to the first call.
    pub(crate) starts: usize,
    pub(crate) idle_connections: usize,
    /// Wait after saturation before memory is read again.
    pub(crate) settle: f64,
    pub(crate) nginx_workers: usize,
    /// Absent in results from before Envoy was added.
    #[serde(default)]
    pub(crate) envoy_workers: usize,
    #[serde(skip)]
    pub(crate) bin_dir: PathBuf,
    /// Path of the Envoy binary.
    #[serde(skip)]
    pub(crate) envoy: PathBuf,
    #[serde(skip)]
    pub(crate) reference: Option<PathBuf>,
    #[serde(skip)]
    pub(crate) output: PathBuf,
}

impl Plan {
    /// The load of Dapr's published report, five times; about two hours.
    pub(crate) fn full() -> Self {
        Self {
            profile: "full".to_owned(),
            protocols: Protocol::INVOCATION.to_vec(),
            systems: System::ALL.to_vec(),
            driver: Driver::Own,
            resolver: Resolver::Mdns,
            rounds: 5,
            requests: 60_000,
            qps: 1_000.0,
            connections: 16,
            payload: 1024,
            warmup: 5.0,
            saturation: 10.0,
            curve: vec![0.2, 0.4, 0.6, 0.8, 0.9],
            curve_point: 5.0,
            payloads: vec![0, 1024, 64 << 10, 1 << 20],
            connection_counts: vec![1, 4, 16, 64, 256],
            sweep_point: 5.0,
            starts: 5,
            idle_connections: 1_000,
            settle: 300.0,
            nginx_workers: 1,
            envoy_workers: 1,
            bin_dir: PathBuf::new(),
            envoy: PathBuf::new(),
            reference: None,
            output: PathBuf::new(),
        }
    }

    /// The same steps in about three minutes, as a functional check only.
    pub(crate) fn quick() -> Self {
        Self {
            profile: "quick".to_owned(),
            rounds: 2,
            requests: 1_500,
            warmup: 0.5,
            saturation: 1.0,
            curve: vec![0.4, 0.8],
            curve_point: 0.5,
            sweep_point: 0.4,
            starts: 1,
            idle_connections: 200,
            settle: 1.0,
            ..Self::full()
        }
    }

    /// State: every call, API and store; about 45 minutes.
    pub(crate) fn state() -> Self {
        Self {
            protocols: StateCall::all().map(Protocol::State).collect(),
            systems: vec![System::Direct, System::Outrigger, System::Reference],
            rounds: 4,
            requests: 15_000,
            saturation: 5.0,
            curve: vec![0.4, 0.8],
            curve_point: 3.0,
            // Payload sizes depend on the transport, which an invocation measures.
            sweep_point: 0.0,
            starts: 0,
            idle_connections: 0,
            settle: 2.0,
            ..Self::full()
        }
    }

    /// The same calls in about two minutes.
    pub(crate) fn state_quick() -> Self {
        Self {
            profile: "quick".to_owned(),
            rounds: 1,
            requests: 1_000,
            warmup: 0.3,
            saturation: 0.7,
            curve_point: 0.0,
            settle: 0.0,
            ..Self::state()
        }
    }

    /// Whether it measures state instead of invocations.
    pub(crate) fn is_of_state(&self) -> bool {
        self.protocols.iter().all(|protocol| protocol.state().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::{Protocol, StateCall};

    #[test]
    fn parses_protocol_names() {
        let all = Protocol::INVOCATION
            .into_iter()
            .chain(StateCall::all().map(Protocol::State));
        for protocol in all {
            assert_eq!(Protocol::try_from(protocol.name()), Ok(protocol));
        }
        assert!(Protocol::try_from("smtp".to_owned()).is_err());
    }
}
