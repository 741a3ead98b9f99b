//! The DNS domain of the cluster.

use std::path::Path;

/// The system's DNS configuration.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The domain of most clusters.
const DEFAULT: &str = "cluster.local";
/// Maximum size of the file in bytes.
const MAX_FILE: u64 = 64 << 10;

/// The domain of the cluster that this process runs in: the part after `svc.` in its search list, or
/// `cluster.local`.
pub fn cluster_domain() -> String {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(Path::new(RESOLV_CONF))
        .and_then(|file| file.take(MAX_FILE).read_to_string(&mut text));
    match read {
        Ok(_) => of(&text).unwrap_or(DEFAULT).to_owned(),
        Err(_) => DEFAULT.to_owned(),
    }
}

/// As for resolvers, the last search list wins.
fn of(resolv_conf: &str) -> Option<&str> {
    let search = resolv_conf
        .lines()
        .filter_map(|line| line.trim().strip_prefix("search"))
        .rfind(|rest| rest.starts_with([' ', '\t']))?;
    search
        .split_whitespace()
        .filter_map(|domain| domain.trim_end_matches('.').strip_prefix("svc."))
        .find(|domain| !domain.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_domain_in_search_list() {
        let pod = "nameserver 10.96.0.10\nsearch ns.svc.corp.example svc.corp.example corp.example\noptions ndots:5\n";
        assert_eq!(of(pod), Some("corp.example"));
        assert_eq!(of("search svc.a.\nsearch\tsvc.b\n"), Some("b"));
        for none in [
            "",
            "nameserver 1.1.1.1",
            "search example.com",
            "searching svc.a",
            "# search svc.a",
        ] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }
}
