//! What a sidecar tells the registry about itself.

/// This sidecar, as other sidecars shall find it.
#[derive(Debug, Clone, Default)]
pub struct Registration {
    /// App id that others look the sidecar up by.
    pub app_id: String,
    /// Namespace of the app; only the Kubernetes resolver separates namespaces.
    pub namespace: String,
    /// Address other sidecars reach this host at.
    pub host_address: String,
    /// Port of the internal gRPC server.
    pub internal_port: u16,
    /// Port of the public HTTP API; 0 when there is none.
    pub http_port: u16,
    /// Port of the app; 0 when there is none.
    pub app_port: u16,
    /// Name that tells instances of one app apart in mDNS; default `HOSTNAME:PID`. Needed when
    /// one process runs several sidecars of the same app.
    pub instance: Option<String>,
}
