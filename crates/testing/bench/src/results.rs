//! The results of a run, stored in `results.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::load::Latencies;
use crate::plan::{Plan, Protocol, System};
use crate::procfs::{Cpu, Machine, Resident, Role};

/// Version of the format of `results.json`.
pub(crate) const SCHEMA: u32 = 1;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) schema: u32,
    pub(crate) started: String,
    pub(crate) finished: String,
    pub(crate) machine: Machine,
    pub(crate) plan: Plan,
    pub(crate) versions: BTreeMap<System, String>,
    pub(crate) protocols: Vec<ProtocolResults>,
    /// Skipped measurements, with reasons.
    pub(crate) skipped: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ProtocolResults {
    pub(crate) protocol: Protocol,
    pub(crate) systems: Vec<SystemResults>,
}

impl ProtocolResults {
    pub(crate) fn of(&self, system: System) -> Option<&SystemResults> {
        self.systems.iter().find(|results| results.system == system)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SystemResults {
    pub(crate) system: System,
    /// All rounds at the fixed rate together.
    pub(crate) total: Measurement,
    pub(crate) rounds: Vec<Measurement>,
    /// Microseconds and calls, over all rounds.
    pub(crate) histogram: Vec<(f64, u64)>,
    /// Milliseconds from the start of the process to the first successful call.
    pub(crate) first_call: Vec<f64>,
    pub(crate) memory: Memory,
    pub(crate) saturation: Option<Measurement>,
    pub(crate) curve: Vec<Measurement>,
    pub(crate) payloads: Vec<Measurement>,
    pub(crate) connections: Vec<Measurement>,
}

impl SystemResults {
    pub(crate) fn new(system: System) -> Self {
        Self {
            system,
            total: Measurement::default(),
            rounds: Vec::new(),
            histogram: Vec::new(),
            first_call: Vec::new(),
            memory: Memory::default(),
            saturation: None,
            curve: Vec::new(),
            payloads: Vec::new(),
            connections: Vec::new(),
        }
    }
}

/// Resident memory at the stages of a run, in bytes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// After the first calls, before any load.
    pub(crate) idle: Resident,
    /// At the end of the last round at the fixed rate.
    pub(crate) loaded: Resident,
    /// At the end of full load.
    pub(crate) saturated: Resident,
    /// Some time after all load has ended.
    pub(crate) settled: Resident,
    /// Per idle connection, of the caller.
    pub(crate) per_connection: Option<f64>,
}

/// One load and its cost.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Measurement {
    pub(crate) driver: String,
    /// Requested calls per second; `None` at full load.
    pub(crate) requested_qps: Option<f64>,
    pub(crate) connections: usize,
    pub(crate) payload: usize,
    pub(crate) planned: u64,
    /// Successful calls.
    pub(crate) requests: u64,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) requested_seconds: f64,
    pub(crate) seconds: f64,
    /// Microseconds since the due time.
    pub(crate) latency: Latencies,
    /// Microseconds from the due time to sending.
    pub(crate) lag: Latencies,
    pub(crate) breakdown: Breakdown,
    pub(crate) connect: Spread,
    /// Bytes on the load generator's connections.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) payload_sent: u64,
    pub(crate) payload_received: u64,
    pub(crate) cpu: BTreeMap<Role, Cpu>,
    pub(crate) resident: Resident,
}

impl Measurement {
    /// Successful calls per second.
    pub(crate) fn qps(&self) -> f64 {
        if self.seconds > 0.0 {
            self.requests as f64 / self.seconds
        } else {
            0.0
        }
    }

    pub(crate) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// CPU time per call of the selected processes, in microseconds.
    pub(crate) fn cpu_per_call(&self, selected: impl Fn(Role) -> bool) -> f64 {
        let seconds: f64 = self
            .cpu
            .iter()
            .filter(|(role, _)| selected(**role))
            .map(|(_, cpu)| cpu.total())
            // The sum of an empty iterator is negative zero, which prints badly.
            .fold(0.0, |sum, seconds| sum + seconds);
        if self.requests == 0 {
            0.0
        } else {
            seconds * 1e6 / self.requests as f64
        }
    }

    /// Calls per second per core used by the two hops; `None` without hops.
    pub(crate) fn qps_per_core(&self) -> Option<f64> {
        let per_call = self.cpu_per_call(Role::is_hop);
        (per_call > 0.0).then(|| 1e6 / per_call)
    }

    /// Adds a round; the owner of the histograms merges latencies.
    pub(crate) fn add(&mut self, round: &Self) {
        self.driver.clone_from(&round.driver);
        self.requested_qps = round.requested_qps;
        self.connections = round.connections;
        self.payload = round.payload;
        self.planned += round.planned;
        self.requests += round.requests;
        for (kind, count) in &round.errors {
            *self.errors.entry(kind.clone()).or_default() += count;
        }
        self.requested_seconds += round.requested_seconds;
        self.seconds += round.seconds;
        self.sent += round.sent;
        self.received += round.received;
        self.payload_sent += round.payload_sent;
        self.payload_received += round.payload_received;
        for (role, cpu) in &round.cpu {
            let sum = self.cpu.entry(*role).or_default();
            *sum = sum.plus(*cpu);
        }
        for (role, bytes) in &round.resident {
            let most = self.resident.entry(*role).or_default();
            *most = (*most).max(*bytes);
        }
    }
}

/// Breakdown of the mean latency, in microseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Breakdown {
    /// Until the call was sent.
    pub(crate) waited: f64,
    /// Until the response head arrived.
    pub(crate) head: f64,
    /// Until the response was complete.
    pub(crate) body: f64,
}

/// Statistics in microseconds of `count` measurements.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) count: u64,
    pub(crate) min: f64,
    pub(crate) mean: f64,
    pub(crate) max: f64,
}
