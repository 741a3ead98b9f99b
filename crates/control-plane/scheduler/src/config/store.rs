//! The stores that flags can name.

use super::Cluster;
use crate::storage::{etcd, postgres};

/// The store for jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    /// A file in the data folder, for a single scheduler.
    Embedded,
    /// An external etcd, which several schedulers may share.
    Etcd(EtcdAccess),
    /// An etcd that this scheduler runs, alone or in a cluster with those of other schedulers.
    Cluster(Box<Cluster>),
    /// PostgreSQL, which several schedulers may share.
    Postgres(PostgresAccess),
}

/// A connection string of PostgreSQL: `postgres://` or `key=value` pairs.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresAccess(pub String);

impl std::fmt::Debug for PostgresAccess {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The string may contain a password.
        formatter.write_str("PostgresAccess(..)")
    }
}

/// Endpoints and credentials of an etcd.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct EtcdAccess {
    /// `host:port` of each member, with or without scheme.
    pub endpoints: Vec<String>,
    /// User name; empty means no authentication.
    pub username: String,
    /// Password of the user.
    pub password: String,
}

impl std::fmt::Debug for EtcdAccess {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omits the password.
        formatter
            .debug_struct("EtcdAccess")
            .field("endpoints", &self.shown())
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

impl EtcdAccess {
    /// The endpoints, for messages.
    pub(crate) fn shown(&self) -> String {
        outrigger_redact::addresses(&self.endpoints.join(","))
    }
}

/// Source or target of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The embedded store in the data folder of this scheduler.
    Embedded,
    /// A running etcd.
    Etcd(EtcdAccess),
    /// PostgreSQL.
    Postgres(PostgresAccess),
}

impl End {
    /// Parses `embedded`, `etcd://[user:password@]host:port[,host:port]` (`etcds` with TLS), or a connection
    /// string of PostgreSQL.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        if text == "embedded" {
            return Ok(Self::Embedded);
        }
        let scheme = match text.split_once("://") {
            Some(("etcd", rest)) => Some(("http", rest)),
            Some(("etcds", rest)) => Some(("https", rest)),
            _ => None,
        };
        let Some((scheme, rest)) = scheme else {
            postgres::check(text).map_err(|why| {
                format!("it is not `embedded`, etcd://host:port or a connection string of PostgreSQL: {why}")
            })?;
            return Ok(Self::Postgres(PostgresAccess(text.to_owned())));
        };
        let (account, hosts) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (username, password) = account.split_once(':').unwrap_or((account, ""));
        let access = EtcdAccess {
            endpoints: hosts
                .split(',')
                .map(|host| format!("{scheme}://{host}"))
                .collect(),
            username: username.to_owned(),
            password: password.to_owned(),
        };
        etcd::check(&access).map_err(|error| error.to_string())?;
        Ok(Self::Etcd(access))
    }
}
