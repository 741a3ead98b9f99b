use std::{io, sync::Arc, time::Duration};

use ::redis::{
    ConnectionAddr, RedisConnectionInfo, RedisResult, TlsMode,
    io::tcp::{
        TcpSettings,
        socket2::{SockRef, TcpKeepalive},
    },
};
use outrigger_component::{GoDuration, Metadata, MetadataError, Result, Unit, answer::Filtered};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::either::Either;

use super::{
    answers::Answers,
    tls::{self, Tls},
};

/// Capacity of a connection's command queue. If it is full, later commands may overtake waiting ones, and
/// bulk entries lose their order. The library's default is 50.
pub(super) const PIPELINE: usize = 4096;

const DEFAULT_PORT: u16 = 6379;
/// Idle time before TCP keepalive probes.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// A connection with or without TLS.
pub(super) type Stream = Either<TcpStream, TlsStream<TcpStream>>;

/// Properties shared by all Redis components.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) hosts: Vec<(String, u16)>,
    pub(super) topology: Topology,
    pub(super) account: Account,
    pub(super) sentinel_account: Account,
    pub(super) database: i64,
    pub(super) tls: Option<Tls>,
    /// Maximum bytes of an answer.
    pub(super) max_answer: usize,
    pub(super) dial_timeout: Duration,
    /// `None` for no timeout.
    pub(super) read_timeout: Option<Duration>,
    /// Retries of a command on a broken connection.
    pub(super) retries: u32,
    pub(super) least_pause: Duration,
    pub(super) most_pause: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Topology {
    Node,
    Cluster,
    /// The name of the master.
    Sentinel(String),
}

#[derive(Clone, Default)]
pub(super) struct Account {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
}

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl Account {
    fn read(metadata: &Metadata, user: &str, password: &str) -> Self {
        Self {
            user: metadata.filled(&[user]).map(str::to_owned),
            password: metadata.filled(&[password]).map(str::to_owned),
        }
    }
}

/// Selects the defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    State,
    Lock,
    Configuration,
    Binding,
    PubSub,
}

impl Settings {
    pub(super) fn read(metadata: &Metadata, role: Role) -> Result<Self> {
        let servers = metadata.required(&["redisHost"])?;
        if metadata.flag(&["useEntraID", "useAzureAD"], false) {
            let wrong = metadata.wrong(
                &["useEntraID", "useAzureAD"],
                "this build cannot sign in with Entra ID; use redisUsername and redisPassword",
            );
            return Err(wrong.into());
        }
        let topology = topology(metadata)?;
        let (retries, least_pause, most_pause) = pauses(metadata, role)?;
        check_pool(metadata)?;
        Ok(Self {
            topology,
            account: Account::read(metadata, "redisUsername", "redisPassword"),
            sentinel_account: Account::read(metadata, "sentinelUsername", "sentinelPassword"),
            database: metadata.number(&["redisDB"])?.unwrap_or(0),
            tls: tls::read(metadata)?,
            max_answer: metadata.max_answer(),
            dial_timeout: milliseconds(metadata, "dialTimeout")?
                .and_then(GoDuration::positive)
                .unwrap_or(Duration::from_secs(5)),
            read_timeout: match milliseconds(metadata, "readTimeout")? {
                Some(given) if given.nanos < 0 => None,
                Some(given) if given.nanos > 0 => given.positive(),
                _ => Some(Duration::from_secs(3)),
            },
            retries,
            least_pause,
            most_pause,
            // Last, because without hosts reading stops, and all errors are reported together.
            hosts: hosts(metadata, servers)?,
        })
    }

    /// The servers for messages.
    pub(super) fn shown(&self) -> String {
        let shown: Vec<_> = self
            .hosts
            .iter()
            .map(|(host, port)| format!("{host}:{port}"))
            .collect();
        shown.join(",")
    }

    /// Account and database of a connection.
    pub(super) fn info(&self, account: &Account, database: i64) -> RedisConnectionInfo {
        let info = RedisConnectionInfo::default().set_db(database);
        let info = match &account.user {
            Some(user) => info.set_username(user),
            None => info,
        };
        match &account.password {
            Some(password) => info.set_password(password),
            None => info,
        }
    }

    /// Connects to a server, with an answer limit.
    pub(super) async fn dial(&self, host: &str, port: u16) -> RedisResult<Filtered<Stream, Answers>> {
        let tcp = TcpStream::connect((host, port)).await?;
        tcp.set_nodelay(true)?;
        let socket = SockRef::from(&tcp);
        socket.set_tcp_keepalive(&keepalive())?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(KEEPALIVE * 2))?;
        let stream = match &self.tls {
            None => Either::Left(tcp),
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
                let connector = TlsConnector::from(Arc::clone(&tls.config));
                Either::Right(connector.connect(name, tcp).await?)
            }
        };
        Ok(Filtered::new(stream, Answers::new(self.max_answer)))
    }

    /// TCP settings of cluster connections: no delay for small commands, and detection of dead peers.
    pub(super) fn tcp(&self) -> TcpSettings {
        let settings = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(keepalive());
        #[cfg(target_os = "linux")]
        let settings = settings.set_user_timeout(KEEPALIVE * 2);
        settings
    }

    pub(super) fn tls_mode(&self) -> Option<TlsMode> {
        self.tls.as_ref().map(|tls| match tls.certificates.root_cert {
            None => TlsMode::Insecure,
            Some(_) => TlsMode::Secure,
        })
    }

    pub(super) fn address(&self, host: &str, port: u16) -> ConnectionAddr {
        match &self.tls {
            None => ConnectionAddr::Tcp(host.to_owned(), port),
            Some(tls) => ConnectionAddr::TcpTls {
                host: host.to_owned(),
                port,
                insecure: tls.certificates.root_cert.is_none(),
                tls_params: None,
            },
        }
    }
}

fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE / 3)
        .with_retries(3)
}

/// Bare numbers are milliseconds, unlike in other components.
fn milliseconds(metadata: &Metadata, name: &str) -> Result<Option<GoDuration>, MetadataError> {
    metadata.duration(&[name], Unit::Milliseconds)
}

fn hosts(metadata: &Metadata, servers: &str) -> Result<Vec<(String, u16)>, MetadataError> {
    let port: Option<u16> = metadata.number(&["redisPort"])?;
    let port = port.filter(|port| *port != 0);
    let mut hosts = Vec::new();
    for address in servers.split(',') {
        let address = address.trim();
        if address.contains('@') || address.contains("://") {
            let expected = "it must be HOST:PORT, without a scheme; a user and a password belong in \
                redisUsername and redisPassword";
            return Err(metadata.wrong(&["redisHost"], expected));
        }
        // IPv6 addresses contain colons; with a port they are in brackets.
        let (host, own) = match address.rsplit_once(':') {
            Some((host, own)) if !host.contains(':') || host.ends_with(']') => (host, Some(own)),
            _ => (address, None),
        };
        let own: Option<u16> = match own {
            None => None,
            Some(text) => Some(
                text.parse()
                    .map_err(|_| metadata.wrong(&["redisHost"], "it must be HOST:PORT"))?,
            ),
        };
        if let (Some(own), Some(port)) = (own, port)
            && own != port
        {
            let expected = format!(
                "it already contains port {own}, but redisPort is set to {port}; \
                 either remove the port from redisHost or remove the redisPort setting"
            );
            return Err(metadata.wrong(&["redisHost"], &expected));
        }
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(metadata.wrong(&["redisHost"], "it must be HOST:PORT"));
        }
        hosts.push((host.to_owned(), own.or(port).unwrap_or(DEFAULT_PORT)));
    }
    Ok(hosts)
}

fn topology(metadata: &Metadata) -> Result<Topology, MetadataError> {
    if metadata.flag(&["failover"], false) {
        if metadata.filled(&["redisType"]) == Some("cluster") {
            tracing::warn!(
                target: "dapr.contrib",
                "component {}: redisType has no effect with failover; all commands go to the master",
                metadata.component()
            );
        }
        return Ok(Topology::Sentinel(
            metadata.required(&["sentinelMasterName"])?.to_owned(),
        ));
    }
    match metadata.filled(&["redisType"]) {
        None | Some("node") => Ok(Topology::Node),
        Some("cluster") => Ok(Topology::Cluster),
        Some(_) => Err(metadata.wrong(&["redisType"], "it must be node or cluster")),
    }
}

/// Validates Dapr's connection pool properties, which have no effect because all calls share a connection.
fn check_pool(metadata: &Metadata) -> Result<(), MetadataError> {
    let durations = [
        "writeTimeout",
        "poolTimeout",
        "maxConnAge",
        "idleTimeout",
        "idleCheckFrequency",
    ];
    for name in durations {
        milliseconds(metadata, name)?;
    }
    let numbers = ["poolSize", "minIdleConns"];
    for name in numbers {
        metadata.number::<i64>(&[name])?;
    }
    let given: Vec<_> = durations
        .into_iter()
        .chain(numbers)
        .filter(|name| metadata.filled(&[name]).is_some())
        .collect();
    if !given.is_empty() {
        tracing::warn!(
            target: "dapr.contrib",
            "component {}: without effect: {}; all calls share one connection, and readTimeout bounds each",
            metadata.component(),
            given.join(", ")
        );
    }
    Ok(())
}

/// Retries and their backoff; the state store also accepts deprecated names.
fn pauses(metadata: &Metadata, role: Role) -> Result<(u32, Duration, Duration), MetadataError> {
    let old = matches!(role, Role::State | Role::Lock);
    let names: &[&str] = if old {
        &["redisMaxRetries", "maxRetries"]
    } else {
        &["redisMaxRetries"]
    };
    let retries: i64 = metadata.number(names)?.unwrap_or(3);
    let default = match role {
        Role::State | Role::Lock => Duration::from_secs(2),
        Role::Configuration | Role::Binding | Role::PubSub => Duration::from_millis(8),
    };
    let mut least = milliseconds(metadata, "redisMinRetryInterval")?;
    if least.is_none() && old {
        let nanos: Option<i64> = metadata.number(&["maxRetryBackoff"])?;
        least = nanos.map(|nanos| GoDuration { nanos });
    }
    let most = milliseconds(metadata, "redisMaxRetryInterval")?;
    let most = most.and_then(GoDuration::positive).unwrap_or(match role {
        Role::Configuration => Duration::from_secs(2),
        _ => Duration::from_millis(512),
    });
    let least = least.map_or(default, |given| given.positive().unwrap_or_default());
    // The maximum wins over a larger minimum.
    Ok((u32::try_from(retries).unwrap_or(0), least.min(most), most))
}

#[cfg(test)]
mod tests {
    use outrigger_components_testing::{Components, named};

    use super::*;

    fn settings(properties: &[(&str, &str)]) -> Result<Settings> {
        let owned = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings::read(&Metadata::new("store", owned).unwrap(), Role::State)
    }

    #[test]
    fn hosts_get_default_port() {
        for (host, port, expected) in [
            ("redis", "", "redis:6379"),
            ("redis", "7000", "redis:7000"),
            ("redis:7001", "7001", "redis:7001"),
            ("a:1, b ,c:3", "", "a:1,b:6379,c:3"),
            ("[::1]:7000", "", "::1:7000"),
            ("::1", "", "::1:6379"),
        ] {
            let read = settings(&[("redisHost", host), ("redisPort", port)]).unwrap();
            assert_eq!(read.shown(), expected, "{host}");
        }
    }

    #[test]
    fn rejects_conflicting_ports() {
        let error = settings(&[("redisHost", "redis:7001"), ("redisPort", "7000")]).unwrap_err();
        assert!(
            error.to_string().contains("remove the redisPort setting"),
            "{error}"
        );
        assert!(settings(&[("redisHost", ":7000")]).is_err());
        assert!(settings(&[("redisHost", "redis:port")]).is_err());
        assert!(settings(&[]).is_err());
    }

    #[test]
    fn rejects_and_hides_address_credentials() {
        for host in [
            "me:hush@redis:6379",
            "redis://:hush@redis:6379/0",
            "a:1,rediss://me:hush@b",
        ] {
            let error = settings(&[("redisHost", host)]).unwrap_err().to_string();
            assert!(
                error.contains("redisPassword") && !error.contains("hush"),
                "{error}"
            );
        }
    }

    #[test]
    fn parses_bare_millisecond_durations() {
        let read = settings(&[
            ("redisHost", "redis"),
            ("dialTimeout", "250"),
            ("readTimeout", "-1"),
            ("maxRetryBackoff", "100000000"),
            ("redisMaxRetries", "-1"),
        ])
        .unwrap();
        assert_eq!(read.dial_timeout, Duration::from_millis(250));
        assert_eq!(read.read_timeout, None);
        assert_eq!(read.least_pause, Duration::from_millis(100));
        assert_eq!(read.retries, 0);
    }

    #[tokio::test]
    async fn sets_nodelay_and_keepalive() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let read = settings(&[("redisHost", "127.0.0.1")]).unwrap();
        let dialled = read.dial("127.0.0.1", port).await.unwrap();
        let Either::Left(tcp) = dialled.get_ref() else {
            panic!("TLS without enableTLS");
        };
        let socket = SockRef::from(tcp);
        assert!(tcp.nodelay().unwrap() && socket.keepalive().unwrap());
        let of_clusters = read.tcp();
        assert!(of_clusters.nodelay() && of_clusters.keepalive().is_some());
    }

    #[test]
    fn validates_pool_properties() {
        let fine = [
            ("redisHost", "redis"),
            ("writeTimeout", "3s"),
            ("poolSize", "20"),
            ("idleTimeout", "-1"),
        ];
        assert!(settings(&fine).is_ok());
        for (name, value) in [
            ("writeTimeout", "soon"),
            ("poolTimeout", "x"),
            ("maxConnAge", "old"),
            ("idleTimeout", "1 day"),
            ("idleCheckFrequency", "often"),
            ("poolSize", "many"),
            ("minIdleConns", "1.5"),
        ] {
            let error = settings(&[("redisHost", "redis"), (name, value)]).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    /// Including a missing or invalid address.
    #[tokio::test]
    async fn reports_all_errors_together() {
        let wrong = [
            ("useEntraID", "true"),
            ("redisType", "ring"),
            ("redisDB", "first"),
            ("enableTLS", "true"),
            ("caCert", "no PEM"),
        ];
        for address in [None, Some(("redisHost", "redis:port"))] {
            let properties: Vec<_> = wrong.into_iter().chain(address).collect();
            let opened = Components::of(crate::add).state("state.redis", "v1", &properties);
            let mut told = named(opened.await);
            told.sort();
            let expected = ["caCert", "redisDB", "redisHost", "redisType", "useEntraID"];
            assert_eq!(told, expected, "{address:?}");
        }
    }

    #[test]
    fn sentinels_need_master_name() {
        let error = settings(&[("redisHost", "redis"), ("failover", "true")]).unwrap_err();
        assert!(
            error.to_string().contains("sentinelMasterName is missing"),
            "{error}"
        );
        let read = settings(&[("redisHost", "redis"), ("redisType", "cluster")]).unwrap();
        assert_eq!(read.topology, Topology::Cluster);
        assert!(settings(&[("redisHost", "redis"), ("redisType", "ring")]).is_err());
    }
}
