//! Workload identity: SPIFFE ids, trust bundles, TLS configurations, the CA client.
