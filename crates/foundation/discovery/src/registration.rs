//! Registration data of a sidecar.

/// This sidecar's registration.
#[derive(Debug, Clone, Default)]
pub struct Registration {
    /// App ID for lookups.
    pub app_id: String,
    /// Namespace of the app; only the Kubernetes resolver separates namespaces.
    pub namespace: String,
    /// Address at which other sidecars reach this host.
    pub host_address: String,
    /// Port of the internal gRPC server.
    pub internal_port: u16,
    /// Port of the public HTTP API, or 0.
    pub http_port: u16,
    /// Port of the app, or 0.
    pub app_port: u16,
    /// Distinguishes instances of one app in mDNS; default `HOSTNAME:PID`. Required if one process runs
    /// several sidecars of the same app.
    pub instance: Option<String>,
}
