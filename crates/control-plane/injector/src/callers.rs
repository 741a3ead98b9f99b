//! The callers that may create pods with sidecars: the cluster's controllers and configured service accounts.

use outrigger_resources::glob::Glob;
use serde::Deserialize;

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
    pub(crate) groups: Option<Vec<String>>,
}

/// The callers that may create pods with sidecars.
#[derive(Debug, Clone, Default)]
pub(crate) struct Callers {
    /// Patterns of namespaces and names of service accounts, in addition to the controllers.
    accounts: Vec<(Glob, Glob)>,
}

impl Callers {
    /// Adds a list `namespace:name,...` of patterns.
    ///
    /// # Errors
    /// A text that names the wrong entry.
    pub(crate) fn add(&mut self, list: &str) -> Result<(), String> {
        for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (namespace, name) = entry
                .split_once(':')
                .filter(|(_, name)| !name.contains(':'))
                .ok_or_else(|| format!("{entry:?} is not namespace:name"))?;
            let (namespace, name) = (namespace.trim(), name.trim());
            if namespace.is_empty() && name.is_empty() {
                return Err(format!("{entry:?} has neither a namespace nor a name"));
            }
            let pattern = |text: &str| text.parse::<Glob>().map_err(|error| error.to_string());
            self.accounts.push((pattern(namespace)?, pattern(name)?));
        }
        Ok(())
    }

    /// Whether a user may create pods with sidecars.
    pub(crate) fn may(&self, user: &User) -> bool {
        let groups = user.groups.as_deref().unwrap_or_default();
        let account = user
            .username
            .strip_prefix(ACCOUNT)
            .and_then(|account| account.split_once(':'));
        groups.iter().any(|group| group == MASTERS) || account.is_some_and(|account| self.allows(account))
    }

    fn allows(&self, account @ (namespace, name): (&str, &str)) -> bool {
        let matches =
            |(of_namespace, of_name): &(Glob, Glob)| of_namespace.matches(namespace) && of_name.matches(name);
        CONTROLLERS.contains(&account) || self.accounts.iter().any(matches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn callers(list: &str) -> Result<Callers, String> {
        let mut callers = Callers::default();
        callers.add(list).map(|()| callers)
    }

    #[test]
    fn authorizes_by_group_and_account() {
        let callers = callers("ci:*, team-*:deploy-?,exact:one, a[bc] : *x").unwrap();
        for (username, groups, expected) in [
            ("anybody", &["system:masters"][..], true),
            ("anybody", &["others"], false),
            ("system:serviceaccount:kube-system:job-controller", &[], true),
            ("system:serviceaccount:shop:job-controller", &[], false),
            ("system:serviceaccount:ci:runner", &[], true),
            ("system:serviceaccount:cix:runner", &[], false),
            ("system:serviceaccount:team-a:deploy-x", &[], true),
            ("system:serviceaccount:team-a:deploy-xy", &[], false),
            ("system:serviceaccount:exact:one", &[], true),
            ("system:serviceaccount:exact:oneone", &[], false),
            ("system:serviceaccount:ac:x", &[], true),
            ("system:serviceaccount:ad:x", &[], false),
            ("system:serviceaccount:ci", &[], false),
            ("ci:runner", &[], false),
        ] {
            let user = User {
                username: username.to_owned(),
                groups: Some(groups.iter().map(|&group| group.to_owned()).collect()),
            };
            assert_eq!(callers.may(&user), expected, "{username} {groups:?}");
        }
    }

    #[test]
    fn wildcard_allows_every_account() {
        let user = User {
            username: "system:serviceaccount:any:one".to_owned(),
            groups: None,
        };
        assert!(callers("*:*").unwrap().may(&user));
        assert!(!callers(" , ").unwrap().may(&user));
    }

    #[test]
    fn refuses_invalid_patterns() {
        for bad in ["a", "a:b:c", ":", "ci:*,a[:b", "a:[b"] {
            assert!(callers(bad).is_err(), "{bad}");
        }
    }
}
