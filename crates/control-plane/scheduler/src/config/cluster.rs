//! Settings of the etcd that a scheduler runs itself, from the flags and the data folder.

use std::path::{Path, PathBuf};

use outrigger_accept::{Listen, address::is_localhost};
use outrigger_flags::Values;
use outrigger_resources::value::quantity;

/// Folder of etcd below a scheduler's data folder, as in Dapr.
const FOLDER: &str = "dapr-0.1";
/// Dapr's scheduler deletes the folder's contents unless this file is next to it.
const MARKER: &str = "dapr-scheduler-existing-cluster";
/// Maximum request size, as in Dapr's scheduler.
const REQUEST_BYTES: &str = "2147483647";

/// One etcd member, run as a child process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Data folder.
    pub(crate) folder: PathBuf,
    /// Marker file that makes Dapr's scheduler keep the data.
    pub(crate) marker: PathBuf,
    /// Client address, for this scheduler and for tools.
    pub(crate) client: Listen,
    /// Flags of etcd without dashes. Flags that the installed version does not support are left out.
    pub(crate) flags: Vec<(&'static str, String)>,
    /// First name in the certificates of schedulers, for mTLS between members.
    pub(crate) peer_name: String,
    /// Folder for the certificate files, for mTLS between members.
    pub(crate) identity: Option<PathBuf>,
}

/// The settings that identify a cluster.
pub(super) struct Named<'a> {
    pub(super) flags: &'a Values,
    pub(super) id: &'a str,
    /// The members, each as `id=url`.
    pub(super) members: &'a [String],
    /// Data folder of the scheduler.
    pub(super) data: &'a Path,
    pub(super) namespace: &'a str,
    pub(super) client: &'a Listen,
}

/// Whether a scheduler's data folder has files of an etcd.
pub(crate) fn holds_etcd(data: &Path) -> bool {
    data.join(FOLDER).join("member").is_dir()
}

/// Quota that etcd uses for the value 0.
const USUAL_QUOTA: u64 = 2 << 30;

impl Cluster {
    /// Quota of the database file in bytes, as etcd parses its flag.
    pub(crate) fn quota(&self) -> u64 {
        let given = self.flags.iter().find(|(flag, _)| *flag == "quota-backend-bytes");
        match given.and_then(|(_, value)| value.parse::<i64>().ok()) {
            Some(0) => USUAL_QUOTA,
            given => given
                .and_then(|given| u64::try_from(given).ok())
                .unwrap_or(u64::MAX),
        }
    }

    /// `None` if the id has no URL; that problem was reported before.
    pub(super) fn read(named: &Named<'_>) -> Option<Self> {
        let Named {
            flags, id, namespace, ..
        } = *named;
        let own = named.members.iter().find_map(|member| {
            let (name, url) = member.split_once('=')?;
            (name == id).then_some(url)
        })?;
        let root = PathBuf::from(flags.text("etcd-data-dir"));
        let client = Listen {
            host: named.client.host.clone(),
            port: named.client.port,
        };
        let client_url = format!("http://{}:{}", client.host, client.port);
        let mut given = vec![
            ("name", id.to_owned()),
            ("initial-cluster", named.members.join(",")),
            ("initial-advertise-peer-urls", own.to_owned()),
            ("listen-peer-urls", listen_url(own)),
            ("listen-client-urls", client_url.clone()),
            ("advertise-client-urls", client_url),
            ("max-request-bytes", REQUEST_BYTES.to_owned()),
            (
                "quota-backend-bytes",
                quantity(flags.text("etcd-space-quota"))
                    .unwrap_or(i64::MAX)
                    .to_string(),
            ),
            ("logger", "zap".to_owned()),
        ];
        for (name, flag) in [
            ("auto-compaction-mode", "etcd-compaction-mode"),
            ("auto-compaction-retention", "etcd-compaction-retention"),
            ("backend-batch-interval", "etcd-backend-batch-interval"),
            ("metrics", "etcd-metrics"),
        ] {
            given.push((name, flags.text(flag).to_owned()));
        }
        const DEFRAG: &str = "etcd-experimental-bootstrap-defrag-threshold-megabytes";
        for (name, flag) in [
            ("snapshot-count", "etcd-snapshot-count"),
            ("max-snapshots", "etcd-max-snapshots"),
            ("max-wals", "etcd-max-wals"),
            ("max-txn-ops", "etcd-max-txn-ops"),
            // The name of the flag changed between versions of etcd; each version knows one of the two.
            ("experimental-bootstrap-defrag-threshold-megabytes", DEFRAG),
            ("bootstrap-defrag-threshold-megabytes", DEFRAG),
        ] {
            given.push((name, flags.uint(flag).to_string()));
        }
        given.push((
            "backend-batch-limit",
            flags.int("etcd-backend-batch-limit").to_string(),
        ));
        let advance = "etcd-initial-election-tick-advance";
        given.push((
            "initial-election-tick-advance",
            flags.boolean(advance).to_string(),
        ));
        Some(Self {
            folder: named.data.join(FOLDER),
            marker: root.join(MARKER),
            client,
            flags: given,
            peer_name: format!(
                "dapr-scheduler-server-0.dapr-scheduler-server.{namespace}.svc.{}",
                flags.text("trust-domain")
            ),
            identity: flags.boolean("tls-enabled").then(|| identity(flags)),
        })
    }
}

fn identity(flags: &Values) -> PathBuf {
    match flags.text("identity-directory-write") {
        "" => std::env::temp_dir().join("secrets/dapr.io/tls"),
        given => given.into(),
    }
}

/// The address on which a member listens for peers. A host name means all addresses.
fn listen_url(own: &str) -> String {
    let Some((scheme, rest)) = own.split_once("://") else {
        return own.to_owned();
    };
    let authority = rest.split('/').next().unwrap_or(rest);
    match authority.rsplit_once(':') {
        Some((host, port))
            if !is_localhost(host) && host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_err() =>
        {
            format!("{scheme}://0.0.0.0:{port}")
        }
        // etcd listens on addresses, not on names.
        Some(("localhost", port)) => format!("{scheme}://127.0.0.1:{port}"),
        _ => own.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listens_on_addresses() {
        for (own, listens) in [
            ("http://127.0.0.1:2380", "http://127.0.0.1:2380"),
            ("http://localhost:2380", "http://127.0.0.1:2380"),
            ("https://host.example:2380", "https://0.0.0.0:2380"),
            ("http://[::1]:2380", "http://[::1]:2380"),
        ] {
            assert_eq!(listen_url(own), listens);
        }
    }
}
