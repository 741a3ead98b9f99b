//! The listeners of all servers, which are attacked.

use std::collections::BTreeSet;

use crate::fleet::Fleet;
use crate::run::PROCESSES;

/// The process of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Process {
    /// A sidecar without mTLS.
    Sidecar,
    /// A sidecar with mTLS.
    SecureSidecar,
    /// A sidecar whose APIs are Unix sockets.
    SocketSidecar,
    /// The certificate authority.
    Sentry,
    /// The placement service, with mTLS.
    Placement,
    /// The scheduler, with mTLS.
    Scheduler,
    /// The placement service in plaintext.
    PlainPlacement,
    /// The scheduler in plaintext.
    PlainScheduler,
    Operator,
    Injector,
}

/// Transport security of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// None.
    Clear,
    /// TLS with a client certificate of the authority.
    Mutual,
    /// TLS with anonymous clients and sentry as the server.
    Anonymous,
    /// TLS with the certificate of the OIDC server.
    Web,
    /// TLS as used by the Kubernetes API for webhooks: without a client certificate and without HTTP/2.
    Webhook,
}

/// The protocol of a listener, or the one that an attack needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Tls,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// gRPC only.
    Grpc,
    /// The HTTP API of a sidecar with a state store.
    State,
    /// A webhook of the Kubernetes API.
    Webhook,
}

/// An honest request.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// `GET` of this path.
    Get(&'static str),
    /// `POST` to this path, of this JSON.
    Post(&'static str, &'static str),
    /// A gRPC call with an empty message, and the acceptable `grpc-status` values: many methods reject an
    /// empty message, or the attacker's certificate.
    Call(&'static str, &'static [u16]),
    /// A certificate request, which must succeed.
    Sign,
}

#[derive(Debug)]
pub struct Listener {
    pub name: &'static str,
    pub process: Process,
    /// The flag that sets its port.
    pub flag: &'static str,
    /// The API, for a Unix socket.
    pub socket: Option<&'static str>,
    pub security: Security,
    pub protocols: &'static [Protocol],
    /// The request of honest clients.
    pub honest: Request,
}

use Protocol::{Http1, Http2};

const OK: &[u16] = &[0];
const INVALID_ARGUMENT: &[u16] = &[3];
const PERMISSION_DENIED: &[u16] = &[7];

const METADATA: Request = Request::Call("/dapr.proto.runtime.v1.Dapr/GetMetadata", OK);
// A call without the message for the app.
const CALL_LOCAL: Request = Request::Call(
    "/dapr.proto.internals.v1.ServiceInvocation/CallLocal",
    INVALID_ARGUMENT,
);
// A host without a name. While no replica leads, the status differs.
const REPORT: Request = Request::Call(
    "/dapr.proto.placement.v1.Placement/ReportDaprStatus",
    INVALID_ARGUMENT,
);
// Jobs without an owner.
const LIST_JOBS: Request = Request::Call("/dapr.proto.scheduler.v1.Scheduler/ListJobs", INVALID_ARGUMENT);

/// Requests of the Kubernetes API to webhooks.
const CONVERSION: &str = r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview",
    "request":{"uid":"u","desiredAPIVersion":"dapr.io/v2alpha1","objects":[]}}"#;
const REVIEW: &str = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",
    "request":{"uid":"u","kind":{"kind":"Pod"},"userInfo":{"groups":["system:masters"]},
    "object":{"metadata":{"annotations":{"dapr.io/enabled":"true","dapr.io/app-id":"a"}},"spec":{}}}}"#;

/// Every attacked listener. A listener missing here and in [`TWINS`] fails the suite.
pub const LISTENERS: &[Listener] = &[
    Listener {
        name: "sidecar HTTP API",
        process: Process::Sidecar,
        flag: "dapr-http-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http1, Http2],
        honest: Request::Get("/v1.0/invoke/hostile/method/honest"),
    },
    Listener {
        name: "sidecar gRPC API",
        process: Process::Sidecar,
        flag: "dapr-grpc-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http2],
        honest: METADATA,
    },
    Listener {
        name: "sidecar public HTTP",
        process: Process::Sidecar,
        flag: "dapr-public-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http1, Http2],
        honest: Request::Get("/v1.0/metadata"),
    },
    Listener {
        name: "sidecar internal gRPC",
        process: Process::Sidecar,
        flag: "dapr-internal-grpc-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http2],
        honest: CALL_LOCAL,
    },
    Listener {
        name: "sidecar metrics",
        process: Process::Sidecar,
        flag: "metrics-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http1],
        honest: Request::Get("/metrics"),
    },
    Listener {
        name: "sidecar profiling",
        process: Process::Sidecar,
        flag: "profile-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http1],
        honest: Request::Get("/debug/pprof/"),
    },
    Listener {
        name: "sidecar internal gRPC with mTLS",
        process: Process::SecureSidecar,
        flag: "dapr-internal-grpc-port",
        socket: None,
        security: Security::Mutual,
        protocols: &[Http2],
        honest: CALL_LOCAL,
    },
    Listener {
        name: "sidecar HTTP API on a Unix socket",
        process: Process::SocketSidecar,
        flag: "dapr-http-port",
        socket: Some("http"),
        security: Security::Clear,
        protocols: &[Http1, Http2],
        honest: Request::Get("/v1.0/invoke/hostile/method/honest"),
    },
    Listener {
        name: "sidecar gRPC API on a Unix socket",
        process: Process::SocketSidecar,
        flag: "dapr-grpc-port",
        socket: Some("grpc"),
        security: Security::Clear,
        protocols: &[Http2],
        honest: METADATA,
    },
    Listener {
        name: "sentry gRPC",
        process: Process::Sentry,
        flag: "port",
        socket: None,
        security: Security::Anonymous,
        protocols: &[Http2],
        honest: Request::Sign,
    },
    Listener {
        name: "sentry health",
        process: Process::Sentry,
        flag: "healthz-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http1],
        honest: Request::Get("/healthz"),
    },
    Listener {
        name: "sentry metrics",
        process: Process::Sentry,
        flag: "metrics-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http1],
        honest: Request::Get("/metrics"),
    },
    Listener {
        name: "sentry OIDC",
        process: Process::Sentry,
        flag: "oidc-server-listen-port",
        socket: None,
        security: Security::Web,
        protocols: &[Http1],
        honest: Request::Get("/.well-known/openid-configuration"),
    },
    Listener {
        name: "placement gRPC",
        process: Process::Placement,
        flag: "port",
        socket: None,
        security: Security::Mutual,
        protocols: &[Http2],
        honest: REPORT,
    },
    Listener {
        name: "placement raft",
        process: Process::Placement,
        flag: "initial-cluster",
        socket: None,
        security: Security::Mutual,
        protocols: &[Http2],
        honest: Request::Call("/outrigger.placement.Raft/Ask", PERMISSION_DENIED),
    },
    Listener {
        name: "placement health",
        process: Process::Placement,
        flag: "healthz-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http1],
        honest: Request::Get("/healthz"),
    },
    Listener {
        name: "placement metrics",
        process: Process::Placement,
        flag: "metrics-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http1],
        honest: Request::Get("/metrics"),
    },
    Listener {
        name: "scheduler gRPC",
        process: Process::Scheduler,
        flag: "port",
        socket: None,
        security: Security::Mutual,
        protocols: &[Http2],
        honest: LIST_JOBS,
    },
    Listener {
        name: "scheduler etcd API",
        process: Process::Scheduler,
        flag: "etcd-client-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http2],
        honest: Request::Call("/etcdserverpb.KV/Range", OK),
    },
    Listener {
        name: "scheduler health",
        process: Process::Scheduler,
        flag: "healthz-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http1],
        honest: Request::Get("/healthz"),
    },
    Listener {
        name: "scheduler metrics",
        process: Process::Scheduler,
        flag: "metrics-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http1],
        honest: Request::Get("/metrics"),
    },
    Listener {
        name: "placement gRPC in plaintext",
        process: Process::PlainPlacement,
        flag: "port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http2],
        honest: REPORT,
    },
    Listener {
        name: "scheduler gRPC in plaintext",
        process: Process::PlainScheduler,
        flag: "port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http2],
        honest: LIST_JOBS,
    },
    Listener {
        name: "operator gRPC",
        process: Process::Operator,
        flag: "port",
        socket: None,
        security: Security::Mutual,
        protocols: &[Http2],
        honest: Request::Call(
            "/dapr.proto.operator.v1.Operator/ListComponents",
            PERMISSION_DENIED,
        ),
    },
    Listener {
        name: "operator webhook",
        process: Process::Operator,
        flag: "webhook-server-port",
        socket: None,
        security: Security::Webhook,
        protocols: &[Http1],
        honest: Request::Post("/convert", CONVERSION),
    },
    Listener {
        name: "operator health",
        process: Process::Operator,
        flag: "healthz-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http1],
        honest: Request::Get("/healthz"),
    },
    Listener {
        name: "operator metrics",
        process: Process::Operator,
        flag: "metrics-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http1],
        honest: Request::Get("/metrics"),
    },
    Listener {
        name: "injector webhook",
        process: Process::Injector,
        flag: "port",
        socket: None,
        security: Security::Webhook,
        protocols: &[Http1],
        honest: Request::Post("/mutate", REVIEW),
    },
    Listener {
        name: "injector health",
        process: Process::Injector,
        flag: "healthz-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http1],
        honest: Request::Get("/healthz"),
    },
    Listener {
        name: "injector metrics",
        process: Process::Injector,
        flag: "metrics-port",
        socket: None,
        security: Security::Clear,
        protocols: &[Http1],
        honest: Request::Get("/metrics"),
    },
];

/// A listener that is not attacked, because its code is that of a row of [`LISTENERS`].
#[derive(Debug)]
pub struct Twin {
    pub process: Process,
    /// The flag that sets its port.
    pub flag: &'static str,
    /// The name of the row.
    pub of: &'static str,
}

const fn twin(process: Process, flag: &'static str, of: &'static str) -> Twin {
    Twin { process, flag, of }
}

/// All twins. The listeners of a sidecar with mTLS, and those besides its sockets, are equal to their
/// counterparts. Plaintext services share the code of those with mTLS, except their gRPC server, which has
/// a row.
pub const TWINS: &[Twin] = &[
    twin(Process::SecureSidecar, "dapr-http-port", "sidecar HTTP API"),
    twin(Process::SecureSidecar, "dapr-grpc-port", "sidecar gRPC API"),
    twin(Process::SecureSidecar, "metrics-port", "sidecar metrics"),
    twin(
        Process::SocketSidecar,
        "dapr-internal-grpc-port",
        "sidecar internal gRPC",
    ),
    twin(Process::SocketSidecar, "metrics-port", "sidecar metrics"),
    // Its server is that of the plaintext gRPC port, with another service.
    twin(Process::PlainPlacement, "initial-cluster", "placement raft"),
    twin(Process::PlainPlacement, "healthz-port", "placement health"),
    twin(Process::PlainPlacement, "metrics-port", "placement metrics"),
    twin(Process::PlainScheduler, "etcd-client-port", "scheduler etcd API"),
    twin(Process::PlainScheduler, "healthz-port", "scheduler health"),
    twin(Process::PlainScheduler, "metrics-port", "scheduler metrics"),
];

impl Listener {
    /// Whether an attack with this requirement applies.
    pub fn offers(&self, protocol: Protocol) -> bool {
        match protocol {
            Protocol::Tcp => true,
            Protocol::Tls => self.security != Security::Clear,
            Protocol::Grpc => matches!(self.honest, Request::Call(..) | Request::Sign),
            Protocol::State => self.process == Process::Sidecar && self.flag == "dapr-http-port",
            Protocol::Webhook => self.security == Security::Webhook,
            protocol => self.protocols.contains(&protocol),
        }
    }
}

/// TCP ports on which a process listens.
fn listening(id: u32) -> BTreeSet<u16> {
    let sockets: BTreeSet<String> = std::fs::read_dir(format!("/proc/{id}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| {
            Some(
                link.to_str()?
                    .strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .to_owned(),
            )
        })
        .collect();
    let mut ports = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        let table = std::fs::read_to_string(format!("/proc/{id}/net/{table}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // Local address, state (0A: listening), inode.
            let (local, state, inode) = (fields[1], fields[3], fields[9]);
            if state == "0A" && sockets.contains(inode) {
                let (_, port) = local.rsplit_once(':').unwrap();
                ports.insert(u16::from_str_radix(port, 16).unwrap());
            }
        }
    }
    ports
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn table_has_every_listener() {
    let fleet = Fleet::start().await;
    for process in PROCESSES {
        let attacked = LISTENERS
            .iter()
            .filter(|listener| listener.process == process && listener.socket.is_none());
        let twins = TWINS.iter().filter(|twin| twin.process == process);
        let named: BTreeSet<u16> = attacked
            .map(|listener| fleet.port(listener))
            .chain(twins.map(|twin| fleet.port_of(process, twin.flag)))
            .collect();
        let found = listening(fleet.server(process).id());
        assert_eq!(
            found, named,
            "{process:?} listens on ports that the tables of listeners lack, or the other way round"
        );
    }
}

#[test]
fn every_twin_has_listener() {
    for twin in TWINS {
        let original = LISTENERS.iter().find(|listener| listener.name == twin.of);
        assert_eq!(
            original.map(|listener| listener.flag),
            Some(twin.flag),
            "{twin:?}"
        );
        let both = LISTENERS
            .iter()
            .any(|listener| listener.process == twin.process && listener.flag == twin.flag);
        assert!(!both, "{twin:?} is attacked");
    }
}
