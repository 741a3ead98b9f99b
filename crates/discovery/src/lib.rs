//! Name resolution: mDNS, SQLite, Consul, Kubernetes DNS.
