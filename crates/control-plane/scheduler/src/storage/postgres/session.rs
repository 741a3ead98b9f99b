//! Connections to the server, and what its errors mean.

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

/// Time for a call.
pub(super) const CALL: Duration = Duration::from_secs(5);
/// Connections besides the one that listens.
const CONNECTIONS: usize = 8;

/// A pool of connections to the server; the first one creates the tables.
pub(super) struct Sessions {
    pool: Pool,
    pub(super) config: Config,
    pub(super) tls: MakeRustlsConnect,
    /// The tables are there.
    prepared: OnceCell<()>,
    server: Arc<Mutex<Server>>,
}

/// The server that connections lead to. One that takes the place of another may lack what that was told last, and gives its
/// revisions to other changes.
#[derive(Default)]
struct Server {
    identity: Option<String>,
    /// How many have taken the place of another.
    history: u64,
    /// Connections that were made before lead to another one.
    since: Option<Instant>,
}

impl Server {
    /// A connection that was made at this moment leads to this server.
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

/// A connection on loan. It is closed, unless [`Session::keep`] says that nothing is under way on it.
pub(super) struct Session(Option<Object>);

/// The configuration that a connection string means.
pub(super) fn read(connection: &str) -> Result<(Config, MakeRustlsConnect), String> {
    let text = |why| {
        format!("component PostgreSQL: invalid value for the metadata property connectionString: {why}")
    };
    let read = || {
        let mut pairs = outrigger_postgres::parse(connection.trim())?;
        if pairs.is_empty() {
            return Err("it is empty".to_owned());
        }
        // Statements are prepared once per connection, whatever the mode is.
        outrigger_postgres::prepares(pairs.remove("default_query_exec_mode").as_deref())?;
        outrigger_postgres::Connection::new(pairs, CALL)
    };
    let Connection { mut config, tls } = read().map_err(text)?;
    config.application_name("scheduler").connect_timeout(CALL);
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

    /// Another number: another server has taken the place of the one before. It is known as soon as one of these connections
    /// leads there.
    pub(super) fn history(&self) -> u64 {
        self.server().history
    }

    fn server(&self) -> std::sync::MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has the server end a transaction in which it hears nothing for as long as a call may take: that of a scheduler that is cut
/// off would hold up the writes of all others until the server's kernel gives its connection up. Notes which server it is.
fn connected(server: Arc<Mutex<Server>>) -> Hook {
    let sql = format!("SET idle_in_transaction_session_timeout = {}", CALL.as_millis());
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

/// What is different where the server may not have all that the one before had: a standby that takes over begins a new
/// timeline, and so does one that was restored to a point in time; another database system has another identifier. A server
/// that tells none of that is another one whenever it was started. `None`: it does not even tell that.
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
        // Taken when the session ends.
        self.0.as_ref().expect("a session has a connection")
    }

    pub(super) fn client_mut(&mut self) -> &mut Object {
        // Taken when the session ends.
        self.0.as_mut().expect("a session has a connection")
    }

    /// The connection may be used again.
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

/// No answer in time.
pub(super) fn slow() -> StorageError {
    StorageError::Unanswered(format!("PostgreSQL: no answer within {} s", CALL.as_secs()))
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
            // A server that has become the second one of a pair.
            _ if *code == SqlState::READ_ONLY_SQL_TRANSACTION => Self::Unavailable(text),
            _ if *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => Self::Unavailable(text),
            // Connection, resources, operator, rollback.
            Some("08" | "53" | "57" | "40") => Self::Unavailable(text),
            Some("54") => Self::TooLarge(text),
            _ => Self::Failed(text),
        }
    }
}
