use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use deadpool_postgres::{Manager, ManagerConfig, PoolError, RecyclingMethod, Runtime};
use futures::TryStreamExt;
use outrigger_component::{Error, Kind, Metadata, Result};
use tokio_postgres::{
    Config, Row, RowStream,
    config::Host,
    error::SqlState,
    types::{ToSql, Type},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    connector::Connector,
    session::{AsSession, OwnedSession, Session},
    settings::Settings,
};
use outrigger_component::deadline::within;

/// A parameter with its type, which unprepared statements must name.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A connection pool that connects on demand.
pub(super) struct Pool {
    pool: deadpool_postgres::Pool,
    prepare: bool,
    timeout: Duration,
    tls: Connector,
    /// Maximum bytes of all rows of a statement.
    max_answer: usize,
    component: Arc<str>,
    /// Server address for connection errors.
    at: String,
    _reaper: AbortOnDropHandle<()>,
}

/// Converts a driver error.
pub(super) fn failure(error: tokio_postgres::Error) -> Error {
    failure_of("PostgreSQL", error)
}

fn failure_of(what: &str, error: tokio_postgres::Error) -> Error {
    let kind = match error.code() {
        Some(code) => kind(code),
        None if outrigger_tls::refused(&error) => Kind::Denied,
        None if error.is_closed() || is_io(&error) => Kind::Unavailable,
        None => Kind::Internal,
    };
    // The driver's own text for server errors is "db error".
    match error.as_db_error() {
        Some(answer) => {
            let text = format!("{what}: {} ({})", answer.message(), answer.code().code());
            Error::new(kind, text)
        }
        None if kind == Kind::Denied => {
            let text = format!("{what} over TLS (check sslmode, sslrootcert, sslcert and sslkey)");
            Error::new(kind, text).because(chain(&error))
        }
        None => Error::new(kind, what).because(chain(&error)),
    }
}

/// The servers of a configuration as `host:port`, for connection errors.
fn servers(config: &Config) -> String {
    let ports = config.get_ports();
    let server = |(number, host): (usize, &Host)| {
        let port = ports
            .get(number)
            .or_else(|| ports.first())
            .copied()
            .unwrap_or(5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(folder) => format!("{}, port {port}", folder.display()),
        }
    };
    let hosts = config.get_hosts().iter().enumerate();
    hosts.map(server).collect::<Vec<_>>().join(" or ")
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
}

/// The error's text with those of its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}

fn kind(code: &SqlState) -> Kind {
    // Classes of the SQL standard: 08 connection, 53 resources, 57 operator, 28 authorization, 40 rollback.
    match code.code().get(..2) {
        Some("08" | "53" | "57" | "40") => Kind::Unavailable,
        Some("28") => Kind::Denied,
        Some("3D" | "3F") => Kind::Configuration,
        Some("22") => Kind::InvalidRequest,
        _ if *code == SqlState::INSUFFICIENT_PRIVILEGE => Kind::Denied,
        _ if *code == SqlState::PROGRAM_LIMIT_EXCEEDED => Kind::TooLarge,
        _ => Kind::Internal,
    }
}

/// The rows of a statement exceed the limit.
pub(super) fn too_large(limit: usize) -> Error {
    let text = format!("the rows exceed the limit of {limit} bytes: select fewer");
    Error::new(Kind::TooLarge, text)
}

fn pool_failure(at: &str, error: PoolError) -> Error {
    match error {
        PoolError::Backend(error) => failure_of(at, error),
        PoolError::Closed => Error::closed(),
        PoolError::Timeout(_) => Error::new(Kind::Timeout, "PostgreSQL: no connection became free in time"),
        other => Error::new(Kind::Internal, "PostgreSQL").because(other),
    }
}

impl Pool {
    /// Connects once, so that invalid settings fail early.
    pub(super) async fn open(metadata: &Metadata, settings: &Settings) -> Result<Self> {
        let config = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        let max_answer = metadata.max_answer();
        let (tls, server) = settings.connector(max_answer)?;
        let manager = Manager::from_config(server, tls.clone(), config);
        let pool = deadpool_postgres::Pool::builder(manager)
            .max_size(settings.most_connections)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| Error::new(Kind::Internal, "PostgreSQL").because(error))?;
        let (idle, reaped) = (settings.idle, pool.clone());
        let reaper = tokio::spawn(async move {
            loop {
                tokio::time::sleep(idle.min(Duration::from_secs(60))).await;
                reaped.retain(|_, metrics| metrics.last_used() < idle);
            }
        });
        let pool = Self {
            pool,
            prepare: settings.prepare,
            timeout: settings.timeout,
            tls,
            max_answer,
            component: metadata.component().clone(),
            at: format!("PostgreSQL at {}", servers(&settings.config)),
            _reaper: AbortOnDropHandle::new(reaper),
        };
        pool.ping().await?;
        Ok(pool)
    }

    /// Applies the timeout to `work` and names the component in its error.
    pub(super) async fn bound<T>(&self, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let result = within(self.timeout, "PostgreSQL", work).await;
        if result
            .as_ref()
            .is_err_and(|error| error.kind() == Kind::Unavailable)
        {
            self.forget();
        }
        result.map_err(|error| error.of(&self.component))
    }

    /// Drops idle connections: if one broke, the others probably did too.
    fn forget(&self) {
        self.pool.retain(|_, _| false);
    }

    pub(super) async fn session(&self) -> Result<OwnedSession> {
        let object = self
            .pool
            .get()
            .await
            .map_err(|error| pool_failure(&self.at, error))?;
        Ok(OwnedSession::new(object, self.tls.clone()))
    }

    pub(super) async fn ping(&self) -> Result<()> {
        let work = async {
            let session = self.session().await?;
            let alive = session.client()?.check_connection().await;
            session.settle();
            alive.map_err(failure)
        };
        self.bound(work).await
    }

    /// Rows of a read-only statement; retries once on a broken connection.
    pub(super) async fn read(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        self.repeated(|session| async move { self.rows(&*session, sql, parameters).await })
            .await
    }

    /// Like [`Pool::read`], for an idempotent write.
    pub(super) async fn repeated<T, F>(
        &self,
        work: impl Fn(Arc<OwnedSession>) -> F + Send + Sync,
    ) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
    {
        let once = || async {
            let session = Arc::new(self.session().await?);
            let result = work(session.clone()).await;
            // An oversized answer was not read to its end, so the server must cancel it.
            if !matches!(&result, Err(error) if error.kind() == Kind::TooLarge) {
                session.settle();
            }
            result
        };
        let twice = async {
            match once().await {
                Err(error) if error.kind() == Kind::Unavailable => {
                    self.forget();
                    once().await
                }
                other => other,
            }
        };
        self.bound(twice).await
    }

    /// Maximum bytes of all rows of a statement.
    pub(super) fn max_answer(&self) -> usize {
        self.max_answer
    }

    /// Rows of a statement.
    pub(super) async fn rows(
        &self,
        session: &impl AsSession,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>> {
        let mut rows = pin!(self.stream(session, sql, parameters).await?);
        let (mut all, mut left) = (Vec::new(), self.max_answer);
        while let Some(row) = rows.try_next().await.map_err(failure)? {
            let rest = left.checked_sub(row.raw_size_bytes());
            left = rest.ok_or_else(|| too_large(self.max_answer))?;
            all.push(row);
        }
        Ok(all)
    }

    /// Rows of a statement as a stream. A caller that does not read it to the end must not settle the
    /// session.
    pub(super) async fn stream(
        &self,
        session: &impl AsSession,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<RowStream> {
        let values = || parameters.iter().map(|(value, _)| *value);
        let rows = match (session.as_session()?, self.prepare) {
            (Session::Connection(connection), true) => {
                let statement = connection.prepare_cached(sql).await.map_err(failure)?;
                connection.query_raw(&statement, values()).await
            }
            (Session::Transaction(transaction), true) => {
                let statement = transaction.prepare_cached(sql).await.map_err(failure)?;
                transaction.query_raw(&statement, values()).await
            }
            (Session::Connection(connection), false) => {
                connection.query_typed_raw(sql, parameters.to_vec()).await
            }
            (Session::Transaction(transaction), false) => {
                transaction.query_typed_raw(sql, parameters.to_vec()).await
            }
        };
        rows.map_err(failure)
    }

    /// Prepares a statement ahead of its use, if statements may be prepared.
    pub(super) async fn prepared(&self, session: &impl AsSession, sql: &str) -> Result<()> {
        if !self.prepare {
            return Ok(());
        }
        let prepared = match session.as_session()? {
            Session::Connection(connection) => connection.prepare_cached(sql).await,
            Session::Transaction(transaction) => transaction.prepare_cached(sql).await,
        };
        prepared.map(drop).map_err(failure)
    }

    /// Whether statements may be prepared.
    pub(super) fn prepares(&self) -> bool {
        self.prepare
    }

    /// # Errors
    /// After [`Pool::close`].
    pub(super) fn check_open(&self) -> Result<()> {
        if self.pool.is_closed() {
            return Err(Error::closed().of(&self.component));
        }
        Ok(())
    }

    /// Connections in use close when they are returned.
    pub(super) fn close(&self) {
        self.pool.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_servers_with_ports() {
        let named = |text: &str| servers(&text.parse().unwrap());
        assert_eq!(named("host=a,b port=1,2"), "a:1 or b:2");
        assert_eq!(named("host=a,b port=7"), "a:7 or b:7");
        assert_eq!(named("host=/run/pg"), "/run/pg, port 5432");
        assert_eq!(named("postgres://user:hush@db/x"), "db:5432");
    }
}
