//! Connections to the server, and the meaning of its errors.

use std::error::Error as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::{
    ClientWrapper, Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime,
};
use outrigger_postgres::Connection;
use tokio::sync::OnceCell;
use tokio_postgres::Config;
use tokio_postgres::error::SqlState;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::schema;
use crate::storage::{Full, StorageError};

/// Timeout of a call.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Size of the pool, without the listening connection.
const CONNECTIONS: usize = 8;

/// A pool of connections to the server; the first one creates the tables.
pub(super) struct Sessions {
    pool: Pool,
    pub(super) config: Config,
    pub(super) tls: MakeRustlsConnect,
    /// Set once the tables exist.
    prepared: OnceCell<()>,
    server: Arc<Mutex<Server>>,
}

/// The server behind the connections. A server that replaces another may lack the latest changes and reuse
/// their revisions.
#[derive(Default)]
struct Server {
    identity: Option<String>,
    /// Number of replacements so far.
    history: u64,
    /// Connections older than this lead to a previous server.
    since: Option<Instant>,
}

impl Server {
    /// Records the server that a connection made at this time leads to.
    fn found(&mut self, identity: String, made: Instant) {
        if self.identity.as_ref() == Some(&identity) {
            return;
        }
        if self.identity.replace(identity).is_some() {
            self.history += 1;
            self.since = Some(made);
        }
    }
}

/// A pooled connection. Closed on drop, unless [`Session::keep`] declares it idle.
pub(super) struct Session(Option<Object>);

/// Parses a connection string.
pub(super) fn read(connection: &str) -> Result<(Config, MakeRustlsConnect), String> {
    let text = |why| {
        format!("component PostgreSQL: invalid value for the metadata property connectionString: {why}")
    };
    let read = || {
        let mut pairs = outrigger_postgres::parse(connection.trim())?;
        if pairs.is_empty() {
            return Err("it is empty".to_owned());
        }
        // Statements are prepared once per connection, in every mode.
        outrigger_postgres::prepares(pairs.remove("default_query_exec_mode").as_deref())?;
        outrigger_postgres::Connection::new(pairs, CALL_TIMEOUT)
    };
    let Connection { mut config, tls } = read().map_err(text)?;
    config.application_name("scheduler").connect_timeout(CALL_TIMEOUT);
    let tls = tls.connector().map_err(|error| error.to_string())?;
    Ok((config, tls))
}

impl Sessions {
    pub(super) fn new(connection: &str) -> Result<Self, String> {
        let (config, tls) = read(connection)?;
        let manager = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        let manager = Manager::from_config(config.clone(), tls.clone(), manager);
        let server = Arc::<Mutex<Server>>::default();
        let pool = Pool::builder(manager)
            .max_size(CONNECTIONS)
            .post_create(connected(Arc::clone(&server)))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            pool,
            config,
            tls,
            prepared: OnceCell::new(),
            server,
        })
    }

    /// A connection to a server that has the tables.
    pub(super) async fn get(&self) -> Result<Session, StorageError> {
        let mut session = loop {
            let session = Session(Some(self.pool.get().await.map_err(pool_failure)?));
            let made = Object::metrics(session.client()).created;
            if self.server().since.is_none_or(|since| made >= since) {
                break session;
            }
        };
        self.prepared
            .get_or_try_init(|| schema::prepare(session.client_mut()))
            .await?;
        Ok(session)
    }

    /// Changes when another server has replaced the previous one. Detected as soon as a connection leads to
    /// the new server.
    pub(super) fn history(&self) -> u64 {
        self.server().history
    }

    fn server(&self) -> std::sync::MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets the server abort a transaction that is idle for longer than a call may take. Otherwise a partitioned
/// scheduler would block all writers until the server's kernel drops its connection. Also records the
/// server's identity.
fn connected(server: Arc<Mutex<Server>>) -> Hook {
    let sql = format!(
        "SET idle_in_transaction_session_timeout = {}",
        CALL_TIMEOUT.as_millis()
    );
    Hook::async_fn(move |client, metrics| {
        let (sql, server, made) = (sql.clone(), Arc::clone(&server), metrics.created);
        Box::pin(async move {
            client.batch_execute(&sql).await.map_err(HookError::Backend)?;
            if let Some(identity) = identity(client).await.map_err(HookError::Backend)? {
                let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
                server.found(identity, made);
            }
            Ok(())
        })
    })
}

/// A value that changes if the server may lack changes: a promoted standby and a point-in-time recovery begin
/// a new timeline, and another database system has another identifier. For a server that reveals neither, the
/// start time is used. `None` if that is not available either.
async fn identity(client: &ClientWrapper) -> Result<Option<String>, tokio_postgres::Error> {
    let timeline = "SELECT system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8)
                    FROM pg_control_system()";
    let started = "SELECT extract(epoch FROM pg_postmaster_start_time())::text";
    for sql in [timeline, started] {
        match client.query_one(sql, &[]).await {
            Ok(row) => return row.try_get(0).map(Some),
            Err(error) if error.as_db_error().is_some() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

impl Session {
    pub(super) fn client(&self) -> &Object {
        // Only the end of the session takes it.
        self.0.as_ref().expect("a session has a connection")
    }

    pub(super) fn client_mut(&mut self) -> &mut Object {
        // Only the end of the session takes it.
        self.0.as_mut().expect("a session has a connection")
    }

    /// Returns the connection to the pool.
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            drop(Object::take(object));
        }
    }
}

/// The error for a timeout.
pub(super) fn timed_out() -> StorageError {
    StorageError::Unanswered(format!(
        "PostgreSQL: no answer within {} s",
        CALL_TIMEOUT.as_secs()
    ))
}

fn pool_failure(error: PoolError) -> StorageError {
    match error {
        PoolError::Backend(error) => error.into(),
        other => StorageError::Unavailable(format!("PostgreSQL: {other}")),
    }
}

impl From<tokio_postgres::Error> for StorageError {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(answer) = error.as_db_error() else {
            let mut text = format!("PostgreSQL: {error}");
            if let Some(cause) = error.source() {
                text.push_str(&format!(": {cause}"));
            }
            return Self::Unavailable(text);
        };
        let code = answer.code();
        let text = format!("PostgreSQL: {} ({})", answer.message(), code.code());
        match code.code().get(..2) {
            _ if *code == SqlState::DISK_FULL => Self::Full(Full::Postgres),
            // The server has become a standby.
            _ if *code == SqlState::READ_ONLY_SQL_TRANSACTION => Self::Unavailable(text),
            _ if *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => Self::Unavailable(text),
            // Error classes for connection, resources, operator intervention and rollback.
            Some("08" | "53" | "57" | "40") => Self::Unavailable(text),
            Some("54") => Self::TooLarge(text),
            _ => Self::Failed(text),
        }
    }
}
