//! The etcd that a scheduler runs itself: what its flags and its data folder say of it.

use std::path::{Path, PathBuf};

use outrigger_accept::{Listen, address::is_localhost};
use outrigger_flags::Values;
use outrigger_resources::value::quantity;

/// Folder of an etcd below a scheduler's data folder, as Dapr names it.
const FOLDER: &str = "dapr-0.1";
/// Without this file beside it, Dapr's scheduler deletes what is in the folder.
const MARKER: &str = "dapr-scheduler-existing-cluster";
/// Largest request, as Dapr's scheduler allows it.
const REQUEST_BYTES: &str = "2147483647";

/// A child process: one member of a cluster of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Its data.
    pub(crate) folder: PathBuf,
    /// Tells Dapr's scheduler to keep them.
    pub(crate) marker: PathBuf,
    /// Where it answers this scheduler, and tools.
    pub(crate) client: Listen,
    /// Flags of etcd, without the dashes; those it does not know are left out.
    pub(crate) flags: Vec<(&'static str, String)>,
    /// The first name that certificates of schedulers have, for mTLS between members.
    pub(crate) peer_name: String,
    /// Where the certificate is written for it, for mTLS between members.
    pub(crate) identity: Option<PathBuf>,
}

/// What of the configuration names a cluster.
pub(super) struct Named<'a> {
    pub(super) flags: &'a Values,
    pub(super) id: &'a str,
    /// `id=url` of each member.
    pub(super) members: &'a [String],
    /// Where the scheduler keeps jobs.
    pub(super) data: &'a Path,
    pub(super) namespace: &'a str,
    pub(super) client: &'a Listen,
}

/// Whether the data folder of a scheduler holds an etcd's files.
pub(crate) fn holds_etcd(data: &Path) -> bool {
    data.join(FOLDER).join("member").is_dir()
}

/// What etcd keeps where it is told 0.
const USUAL_QUOTA: u64 = 2 << 30;

impl Cluster {
    /// The bytes that its file may have, as etcd reads its flag.
    pub(crate) fn quota(&self) -> u64 {
        let given = self.flags.iter().find(|(flag, _)| *flag == "quota-backend-bytes");
        match given.and_then(|(_, value)| value.parse::<i64>().ok()) {
            Some(0) => USUAL_QUOTA,
            given => given
                .and_then(|given| u64::try_from(given).ok())
                .unwrap_or(u64::MAX),
        }
    }

    /// `None` where the id has no URL, which was told before.
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
            // The name changed with etcd's versions; each knows one of them.
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

/// Where a member listens for the others: names are those of this machine on whatever address it has.
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
    fn members_listen_on_addresses() {
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
