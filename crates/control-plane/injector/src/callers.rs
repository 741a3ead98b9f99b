//! The callers that may create pods with sidecars: the cluster's controllers and configured service accounts.

use std::collections::HashSet;
use std::str::FromStr;

use outrigger_kube::{ApiError, Client, Kind};
use serde::Deserialize;
use serde_json::Value;

/// The group of administrators.
const MASTERS: &str = "system:masters";
/// Prefix of service account names.
const ACCOUNT: &str = "system:serviceaccount:";
/// Controllers that create pods for others: namespace and name.
const CONTROLLERS: &[(&str, &str)] = &[
    ("kube-system", "replicaset-controller"),
    ("kube-system", "replication-controller"),
    ("kube-system", "deployment-controller"),
    ("kube-system", "cronjob-controller"),
    ("kube-system", "job-controller"),
    ("kube-system", "statefulset-controller"),
    ("kube-system", "daemon-set-controller"),
    (
        "openshift-operator-lifecycle-manager",
        "olm-operator-serviceaccount",
    ),
    ("tekton-pipelines", "tekton-pipelines-controller"),
    ("mirrord", "mirrord-operator"),
];

/// The sender of a request, according to the API server.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct User {
    #[serde(default)]
    pub(crate) username: String,
    #[serde(default)]
    pub(crate) uid: String,
    #[serde(default)]
    pub(crate) groups: Option<Vec<String>>,
}

/// Service accounts by namespace and name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Accounts(HashSet<(String, String)>);

impl Accounts {
    /// The controllers, plus those of a list `namespace:name,...`. Other entries are ignored.
    pub(crate) fn new(list: &str) -> Self {
        let pair = |(namespace, name): (&str, &str)| (namespace.trim().to_owned(), name.trim().to_owned());
        let given = list.split(',').filter_map(|part| part.split_once(':'));
        Self(CONTROLLERS.iter().copied().chain(given).map(pair).collect())
    }

    /// The UIDs of the existing accounts.
    ///
    /// # Errors
    /// [`ApiError`].
    pub(crate) async fn uids(&self, client: &Client) -> Result<HashSet<String>, ApiError> {
        let accounts = client.all(Kind::SERVICE_ACCOUNTS, None, "").await?;
        let text =
            |account: &Value, field: &str| account["metadata"][field].as_str().unwrap_or_default().to_owned();
        let wanted = |account: &&Value| {
            self.0
                .contains(&(text(account, "namespace"), text(account, "name")))
        };
        let uids = accounts.iter().filter(wanted).map(|account| text(account, "uid"));
        Ok(uids.filter(|uid| !uid.is_empty()).collect())
    }
}

/// Prefixes of namespaces and names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Prefixes(Vec<(Part, Part)>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Is(String),
    Begins(String),
}

impl Part {
    fn parse(text: &str) -> Result<Self, String> {
        let part = match text.strip_suffix('*') {
            Some(begin) => Self::Begins(begin.to_owned()),
            None => Self::Is(text.to_owned()),
        };
        let (Self::Is(inner) | Self::Begins(inner)) = &part;
        match inner.contains('*') || text.is_empty() {
            true => Err(format!("{text:?}: only the end may be *")),
            false => Ok(part),
        }
    }

    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Is(whole) => text == whole,
            Self::Begins(begin) => text.starts_with(begin.as_str()),
        }
    }
}

impl FromStr for Prefixes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Vec::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (namespace, name) = pair
                .split_once(':')
                .ok_or_else(|| format!("{pair:?} is not namespace:name"))?;
            let (namespace, name) = (Part::parse(namespace.trim())?, Part::parse(name.trim())?);
            if matches!((&namespace, &name), (Part::Begins(one), Part::Begins(two)) if one.is_empty() && two.is_empty())
            {
                return Err(
                    "*:* would let every account create pods with sidecars: name a namespace or an account"
                        .to_owned(),
                );
            }
            all.push((namespace, name));
        }
        Ok(Self(all))
    }
}

impl Prefixes {
    fn matches(&self, username: &str) -> bool {
        let account = username
            .strip_prefix(ACCOUNT)
            .and_then(|account| account.split_once(':'));
        account.is_some_and(|(namespace, name)| {
            self.0
                .iter()
                .any(|(begin, rest)| begin.matches(namespace) && rest.matches(name))
        })
    }
}

/// The callers that may create pods with sidecars.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    pub(crate) uids: HashSet<String>,
    pub(crate) prefixes: Prefixes,
}

impl Callers {
    /// Whether a user may create pods with sidecars.
    pub(crate) fn may(&self, user: &User) -> bool {
        let groups = user.groups.as_deref().unwrap_or_default();
        self.uids.contains(&user.uid)
            || groups.iter().any(|group| group == MASTERS)
            || self.prefixes.matches(&user.username)
    }
}

#[cfg(test)]
mod tests {
    use outrigger_kube::testing::Server;
    use serde_json::json;

    use super::*;

    fn user(username: &str, uid: &str, groups: &[&str]) -> User {
        User {
            username: username.to_owned(),
            uid: uid.to_owned(),
            groups: Some(groups.iter().map(|&group| group.to_owned()).collect()),
        }
    }

    #[test]
    fn authorizes_by_uid_group_and_name() {
        let callers = Callers {
            uids: HashSet::from(["u1".to_owned()]),
            prefixes: "ci:*, team-*:deploy-*,exact:one".parse().unwrap(),
        };
        for (name, uid, groups, expected) in [
            ("anybody", "u1", &[][..], true),
            ("anybody", "u2", &["system:masters"], true),
            ("anybody", "u2", &["others"], false),
            ("system:serviceaccount:ci:runner", "", &[], true),
            ("system:serviceaccount:cix:runner", "", &[], false),
            ("system:serviceaccount:team-a:deploy-x", "", &[], true),
            ("system:serviceaccount:team-a:x", "", &[], false),
            ("system:serviceaccount:exact:one", "", &[], true),
            ("system:serviceaccount:exact:oneone", "", &[], false),
            ("ci:runner", "", &[], false),
        ] {
            assert_eq!(callers.may(&user(name, uid, groups)), expected, "{name} {uid}");
        }
    }

    #[test]
    fn refuses_invalid_patterns() {
        for bad in ["*:*", "a", "a*b:c", ":x", "a:"] {
            assert!(bad.parse::<Prefixes>().is_err(), "{bad}");
        }
        assert_eq!("".parse(), Ok(Prefixes::default()));
    }

    #[tokio::test]
    async fn finds_uids_of_accounts() {
        let server = Server::start().await;
        for (namespace, name, uid) in [
            ("kube-system", "replicaset-controller", "u1"),
            ("mine", "account", "u2"),
            ("mine", "other", "u3"),
        ] {
            let object = json!({"metadata": {"namespace": namespace, "name": name, "uid": uid}});
            server.put(
                &format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}"),
                object,
            );
        }
        let uids = Accounts::new("mine:account, broken")
            .uids(&server.client())
            .await
            .unwrap();
        assert_eq!(uids, HashSet::from(["u1".to_owned(), "u2".to_owned()]));
    }
}
