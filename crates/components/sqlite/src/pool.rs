use std::{
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use outrigger_component::{Error, Kind, Result};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::sync::{mpsc, oneshot};

use super::settings::Settings;
use outrigger_component::deadline::within;

/// Queue capacity; further callers wait for a place.
const QUEUE: usize = 256;
/// Maximum writes per commit.
const BATCH: usize = 64;
/// Prepared statements cached per connection.
const STATEMENTS: usize = 32;

type Read = Box<dyn FnOnce(&Connection) + Send>;
/// Does the work, unless no transaction could begin; the result is then called with the outcome of the
/// commit.
type Write = Box<dyn FnOnce(Result<&Connection>) -> Finish + Send>;

struct Finish {
    failed: bool,
    tell: Box<dyn FnOnce(Result<()>) + Send>,
}

#[derive(Clone)]
struct Queues {
    writes: mpsc::Sender<Write>,
    /// `None` if the writer also reads.
    reads: Option<mpsc::Sender<Read>>,
}

/// The threads of a database, each with a connection.
pub(super) struct Pool {
    queues: Mutex<Option<Queues>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    timeout: Duration,
    component: Arc<str>,
}

/// Converts a SQLite error.
pub(super) fn failure(error: rusqlite::Error) -> Error {
    let (kind, message) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (Kind::Unavailable, "SQLite: another process holds the database")
        }
        Some(ErrorCode::CannotOpen | ErrorCode::NotADatabase | ErrorCode::ReadOnly) => {
            (Kind::Configuration, "SQLite: the database cannot be used")
        }
        Some(ErrorCode::PermissionDenied) => (Kind::Denied, "SQLite: the database cannot be used"),
        Some(ErrorCode::DiskFull) => (Kind::Unavailable, "SQLite: the disk is full"),
        _ => (Kind::Internal, "SQLite"),
    };
    Error::new(kind, message).because(error)
}

impl Pool {
    /// Opens the database, runs `prepare` on it, and starts a writer thread and `readers` reader threads.
    pub(super) async fn open(
        settings: Settings,
        readers: usize,
        component: &Arc<str>,
        prepare: impl FnOnce(&mut Connection) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let (timeout, property) = (settings.timeout, settings.property);
        // A metadata check ends here, because a started thread cannot be cancelled.
        tokio::task::yield_now().await;
        let opened = tokio::task::spawn_blocking(move || Self::start(&settings, readers, prepare));
        let (queues, threads) = opened
            .await
            .map_err(|error| Error::new(Kind::Internal, "SQLite").because(error))?
            .map_err(|error| match error.kind() {
                Kind::Configuration | Kind::Denied => error.of(component).about(property),
                _ => error.of(component),
            })?;
        Ok(Self {
            queues: Mutex::new(Some(queues)),
            threads: Mutex::new(threads),
            timeout,
            component: component.clone(),
        })
    }

    fn start(
        settings: &Settings,
        readers: usize,
        prepare: impl FnOnce(&mut Connection) -> Result<()>,
    ) -> Result<(Queues, Vec<JoinHandle<()>>)> {
        if let Some(path) = &settings.creates {
            // New files are readable only by the owner; existing permissions are kept, and SQLite copies them
            // to its WAL files. SQLite reports creation errors better.
            let _ = outrigger_files::create_private(path);
        }
        let mut writer = connect(settings)?;
        prepare(&mut writer)?;
        let (writes, queue) = mpsc::channel(QUEUE);
        let mut threads = vec![spawn("sqlite-write", move || write_loop(&writer, queue))?];
        if settings.memory || readers == 0 {
            return Ok((Queues { writes, reads: None }, threads));
        }
        let (reads, queue) = mpsc::channel(QUEUE);
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..readers {
            let (reader, queue) = (connect(settings)?, queue.clone());
            reader
                .execute_batch("PRAGMA query_only = true")
                .map_err(failure)?;
            threads.push(spawn("sqlite-read", move || read_loop(&reader, &queue))?);
        }
        let reads = Some(reads);
        Ok((Queues { writes, reads }, threads))
    }

    fn queues(&self) -> Result<Queues> {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.clone().ok_or_else(|| Error::closed().of(&self.component))
    }

    /// Runs `work` on a reader connection, outside a transaction.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let queues = self.queues()?;
        let Some(reads) = queues.reads else {
            return self.write(work).await;
        };
        let (reply, answer) = oneshot::channel();
        let job: Read = Box::new(move |connection| drop(reply.send(work(connection))));
        self.answer(async move {
            reads.send(job).await.map_err(|_| Error::closed())?;
            answer.await.map_err(|_| Error::closed())?
        })
        .await
    }

    /// Runs `work` in a transaction, which commits on success and rolls back on failure. Answers after the
    /// commit. Skips work whose caller has given up: an actor may have moved by then.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let writes = self.queues()?.writes;
        let (reply, answer) = oneshot::channel();
        let job: Write = Box::new(move |connection| {
            let result = match reply.is_closed() {
                true => Err(Error::closed()),
                false => connection.and_then(work),
            };
            Finish {
                failed: result.is_err() || reply.is_closed(),
                tell: Box::new(move |commit| drop(reply.send(commit.and(result)))),
            }
        });
        self.answer(async move {
            writes.send(job).await.map_err(|_| Error::closed())?;
            answer.await.map_err(|_| Error::closed())?
        })
        .await
    }

    async fn answer<T>(&self, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        within(self.timeout, "SQLite", work)
            .await
            .map_err(|error| error.of(&self.component))
    }

    /// Finishes queued work and stops the threads.
    pub(super) async fn close(&self) {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(queues);
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let ended = tokio::task::spawn_blocking(move || {
            for thread in threads {
                // A panic was reported by the thread.
                let _ = thread.join();
            }
        });
        let _ = ended.await;
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|error| Error::new(Kind::Internal, "SQLite: no thread").because(error))
}

fn connect(settings: &Settings) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let refused = |error| {
        let shown = settings.uri.split('?').next().unwrap_or_default();
        Error::new(
            Kind::Configuration,
            format!("SQLite: cannot open {shown}; does the folder exist, and may the sidecar write there?"),
        )
        .because(error)
    };
    let connection = Connection::open_with_flags(&settings.uri, flags).map_err(refused)?;
    connection.busy_timeout(settings.busy_timeout).map_err(failure)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    set_journal(&connection, settings).map_err(failure)?;
    for pragma in &settings.pragmas {
        connection.execute_batch(pragma).map_err(failure)?;
    }
    Ok(connection)
}

/// Retries, because changing the journal mode ignores the busy timeout, and sidecars on one file start
/// together.
fn set_journal(connection: &Connection, settings: &Settings) -> rusqlite::Result<()> {
    let deadline = Instant::now() + settings.busy_timeout.max(Duration::from_secs(1));
    loop {
        match connection.pragma_update(None, "journal_mode", settings.journal_mode) {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && Instant::now() < deadline =>
            {
                thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
}

fn read_loop(connection: &Connection, queue: &Mutex<mpsc::Receiver<Read>>) {
    loop {
        let job = queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .blocking_recv();
        let Some(job) = job else { return };
        job(connection);
    }
}

fn write_loop(connection: &Connection, mut queue: mpsc::Receiver<Write>) {
    while let Some(first) = queue.blocking_recv() {
        if let Err(error) = connection.execute_batch("BEGIN IMMEDIATE") {
            (first(Err(failure(error))).tell)(Ok(()));
            continue;
        }
        let mut finished = vec![run(connection, first)];
        while finished.len() < BATCH {
            let Ok(next) = queue.try_recv() else { break };
            finished.push(run(connection, next));
        }
        let commit = connection.execute_batch("COMMIT");
        if commit.is_err() && !connection.is_autocommit() {
            // Otherwise the next transaction could not begin.
            let _ = connection.execute_batch("ROLLBACK");
        }
        let failed = commit.err().map(|error| error.to_string());
        for finish in finished {
            (finish.tell)(match &failed {
                None => Ok(()),
                Some(text) => Err(Error::new(
                    Kind::Unavailable,
                    format!("SQLite: the commit failed: {text}"),
                )),
            });
        }
    }
}

/// Uses a savepoint per job, so that a failure affects only its own job.
fn run(connection: &Connection, job: Write) -> Finish {
    let begun = connection.execute_batch("SAVEPOINT job");
    let finish = job(Ok(connection));
    let end = if finish.failed {
        "ROLLBACK TO job; RELEASE job"
    } else {
        "RELEASE job"
    };
    let ended = begun.and_then(|()| connection.execute_batch(end));
    let Err(error) = ended else { return finish };
    Finish {
        failed: true,
        tell: Box::new(move |_| (finish.tell)(Err(failure(error)))),
    }
}
