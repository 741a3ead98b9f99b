//! Supervises the etcd that a scheduler runs as a child process: starts it, restarts it when it exits, and
//! stops it with the scheduler, even if the scheduler is killed.

mod trust;

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc as queue};
use std::thread;
use std::time::{Duration, Instant};

use outrigger_backoff::Backoff;
use outrigger_identity::pem;
use tokio::sync::oneshot;

use crate::config::Cluster;

pub(crate) use trust::{Pace, Trust};

const LOG: &str = "dapr.scheduler.etcd";
const PROGRAM: &str = "etcd";
/// First argument of the process that becomes etcd; the id of its parent process follows.
pub(crate) const GUARD: &str = "--become-etcd";
/// Interval of checks of the child.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time for the child to exit after SIGTERM; then it is killed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(8);
/// A child that exits sooner than this counts as failed to start.
const EARLY_EXIT: Duration = Duration::from_secs(10);
/// Number of early exits in a row after which the scheduler gives up.
const EARLY_EXITS: u32 = 5;
/// Backoff before a restart.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
/// Number of log lines reported when the child exits.
const LAST_LINES: usize = 5;
/// How long to wait for the last log lines after the exit.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum length of a log line; longer lines are cut.
const MAX_LINE: usize = 2000;

/// Why etcd cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The program is not installed.
    #[error(
        "cannot run etcd, as required by the data folder or --etcd-initial-cluster: {0}; install it in PATH (Debian: \
         etcd-server), or use an external one with --etcd-embed=false"
    )]
    Program(io::Error),
    /// The data folder cannot be used.
    #[error("cannot use the data folder {path} (--etcd-data-dir) for etcd: {cause}")]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The data folder was written by a newer version of etcd.
    #[error(
        "the data folder {path} was last used by etcd {written}, and the etcd in PATH is {installed}: install \
         {written} or later (Dapr's scheduler 1.17 embeds etcd 3.5)"
    )]
    Older {
        /// The folder.
        path: PathBuf,
        /// Version of the cluster in the folder.
        written: String,
        /// Version of the installed program.
        installed: String,
    },
    /// The child keeps exiting.
    #[error("etcd ended {EARLY_EXITS} times in a row ({status}); last output: {said}")]
    Ended {
        /// The last exit status.
        status: String,
        /// The last log lines.
        said: String,
    },
}

/// An order to the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Stop,
    /// Stop the child, then start another.
    Restart,
}

/// When and with which certificates the child was started last.
#[derive(Default)]
struct Supervised {
    /// The file of trusted certificates, if the members use mTLS.
    file: Option<PathBuf>,
    /// Number of starts, and the contents of the file at the last start.
    started: Mutex<(u64, Option<Vec<u8>>)>,
}

impl Supervised {
    fn note_start(&self) {
        let read = self.read();
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        *started = (started.0 + 1, read);
    }

    fn starts(&self) -> u64 {
        self.started.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether the file changed since the child was started. An unreadable file counts as unchanged, because
    /// it is being replaced.
    fn is_outdated(&self) -> bool {
        let Some(now) = self.read() else { return false };
        let started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.0 > 0 && started.1.as_ref() != Some(&now)
    }

    fn read(&self) -> Option<Vec<u8>> {
        std::fs::read(self.file.as_ref()?).ok()
    }
}

/// A supervised child process. It stops when this handle and its [`Trust`] are dropped.
pub(crate) struct EtcdChild {
    orders: queue::Sender<Order>,
    /// Restarts the child when the trusted certificates change.
    trust: Option<Trust>,
    ended: Option<oneshot::Receiver<ChildError>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Becomes etcd if this process was started for that. `arguments` are those of the process, its name
/// included. The kernel ends etcd when the parent exits.
pub(crate) fn become_etcd(arguments: &[String]) -> Option<io::Error> {
    let [_, guard, parent, rest @ ..] = arguments else {
        return None;
    };
    if guard != GUARD {
        return None;
    }
    #[cfg(target_os = "linux")]
    {
        let die = Some(rustix::process::Signal::KILL);
        if let Err(error) = rustix::process::set_parent_process_death_signal(die) {
            return Some(error.into());
        }
        // The parent may have exited before the signal was requested; then this process has a new parent.
        let now = rustix::process::getppid().map(|id| id.as_raw_nonzero().get().to_string());
        if now.as_ref() != Some(parent) {
            return Some(io::Error::other("the scheduler has ended"));
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = parent;
    Some(Command::new(PROGRAM).args(rest).exec())
}

impl EtcdChild {
    /// Prepares the data folder and starts etcd. `guard` is a program that calls [`become_etcd`].
    ///
    /// # Errors
    /// [`ChildError`]. A child that fails later is reported by [`EtcdChild::ended`].
    pub(crate) fn start(cluster: &Cluster, guard: PathBuf) -> Result<Self, ChildError> {
        let known = known_flags()?;
        prepare(cluster).map_err(|cause| ChildError::Folder {
            path: cluster.folder.clone(),
            cause,
        })?;
        let names = cluster.identity.as_deref().map(names).unwrap_or_default();
        let arguments = arguments(cluster, &known, &names);
        tracing::info!(target: LOG, "starting etcd {}", arguments.join(" "));
        let (orders, ordered) = queue::channel();
        let (failed, ended) = oneshot::channel();
        // The child ends with the thread that started it, so this thread lives as long as the child.
        let folder = cluster.folder.clone();
        let supervised = Arc::new(Supervised {
            file: cluster.identity.as_ref().map(|folder| folder.join("ca.pem")),
            ..Supervised::default()
        });
        let flag = |wanted: &str| {
            let found = cluster.flags.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| value.as_str()).unwrap_or_default()
        };
        let shows = cluster.identity.is_some() && flag("initial-cluster").contains("https://");
        let trust = shows.then(|| Trust {
            supervised: Arc::clone(&supervised),
            others: trust::others(flag("initial-cluster"), flag("name")),
            orders: orders.clone(),
        });
        let run = move || {
            if let Err(error) = supervise(&guard, &folder, &arguments, &ordered, &supervised) {
                let _ = failed.send(error);
            }
        };
        let thread = thread::Builder::new()
            .name("etcd".to_owned())
            .spawn(run)
            .map_err(ChildError::Program)?;
        Ok(Self {
            orders,
            trust,
            ended: Some(ended),
            thread: Some(thread),
        })
    }

    /// Resolves when the supervisor gives up on the child. Never resolves after an orderly stop.
    pub(crate) fn ended(&mut self) -> impl Future<Output = ChildError> + Send + use<> {
        let ended = self.ended.take();
        async move {
            if let Some(ended) = ended
                && let Ok(error) = ended.await
            {
                return error;
            }
            std::future::pending().await
        }
    }

    /// Takes the handle that restarts the child when trusted certificates change. `None` if the members do
    /// not use mTLS, or if it was taken before.
    pub(crate) fn trust(&mut self) -> Option<Trust> {
        self.trust.take()
    }

    /// Stops the child and waits for its exit.
    pub(crate) fn stop(mut self) {
        let _ = self.orders.send(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The flags that the installed version supports.
fn known_flags() -> Result<String, ChildError> {
    let help = Command::new(PROGRAM)
        .arg("--help")
        .stdin(Stdio::null())
        .output()
        .map_err(ChildError::Program)?;
    Ok(String::from_utf8_lossy(&[help.stdout, help.stderr].concat()).into_owned())
}

fn prepare(cluster: &Cluster) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(&cluster.folder)?;
    if !cluster.marker.exists() {
        std::fs::write(&cluster.marker, [])?;
    }
    Ok(())
}

/// The names in the certificates of all scheduler replicas.
fn names(identity: &Path) -> Vec<String> {
    let read = std::fs::read(identity.join("cert.pem")).ok();
    let chain = read.and_then(|pem| pem::parse_certificates(&pem).ok());
    let leaf = chain.as_ref().and_then(|chain| chain.first());
    leaf.and_then(|leaf| pem::dns_names(leaf).ok())
        .unwrap_or_default()
}

/// Rewrites the member URLs to the host names in the certificates. Certificates of Dapr's sentry have names
/// with a trailing dot only, and etcd accepts `a.b` for `a.b.` only if the certificate has `a.b`.
fn with_certificate_names(urls: &str, names: &[String]) -> String {
    let dotted = names.iter().filter_map(|name| name.strip_suffix('.'));
    dotted
        .filter(|bare| names.iter().all(|name| name != bare))
        .fold(urls.to_owned(), |urls, bare| {
            urls.replace(&format!("://{bare}:"), &format!("://{bare}.:"))
        })
}

fn arguments(cluster: &Cluster, known: &str, names: &[String]) -> Vec<String> {
    let knows = |flag: &str| {
        known
            .split_whitespace()
            .any(|word| word.trim_start_matches('-') == flag)
    };
    let mut arguments: Vec<String> = cluster
        .flags
        .iter()
        .filter(|(flag, _)| knows(flag))
        .map(|(flag, value)| match *flag {
            "initial-cluster" | "initial-advertise-peer-urls" => {
                format!("--{flag}={}", with_certificate_names(value, names))
            }
            _ => format!("--{flag}={value}"),
        })
        .collect();
    arguments.push(format!("--data-dir={}", cluster.folder.display()));
    if let Some(identity) = &cluster.identity {
        let file = |name: &str| identity.join(name).display().to_string();
        let peer = names.first().unwrap_or(&cluster.peer_name).trim_end_matches('.');
        arguments.extend([
            "--peer-client-cert-auth=true".to_owned(),
            format!("--peer-trusted-ca-file={}", file("ca.pem")),
            format!("--peer-cert-file={}", file("cert.pem")),
            format!("--peer-key-file={}", file("key.pem")),
            // Sidecars have certificates of the same CA, so peers must have the name of a scheduler. The dot
            // is optional.
            format!("--peer-cert-allowed-hostname={peer}."),
        ]);
    }
    arguments
}

fn supervise(
    guard: &Path,
    folder: &Path,
    arguments: &[String],
    ordered: &queue::Receiver<Order>,
    supervised: &Supervised,
) -> Result<(), ChildError> {
    let mut ends = 0;
    loop {
        let begun = Instant::now();
        // Before the child reads the file, so that a write in between counts as a change.
        supervised.note_start();
        let mut said = ChildOutput::default();
        let status = match spawn(guard, arguments, &mut said) {
            Ok(mut child) => match wait(&mut child, ordered) {
                Ok(status) => status.to_string(),
                Err(Order::Restart) => continue,
                Err(Order::Stop) => return Ok(()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ChildError::Program(error)),
            // May be temporary, such as a process limit.
            Err(error) => format!("could not be started: {error}"),
        };
        ends = if begun.elapsed() < EARLY_EXIT { ends + 1 } else { 1 };
        let last = said.last(OUTPUT_TIMEOUT);
        if let Some((written, installed)) = versions(&last) {
            return Err(ChildError::Older {
                path: folder.to_owned(),
                written,
                installed,
            });
        }
        tracing::error!(target: LOG, "etcd ended ({status}), restarting it; last output: {last}");
        if ends >= EARLY_EXITS {
            return Err(ChildError::Ended { status, said: last });
        }
        // A restart order changes nothing here: the child is restarted anyway.
        if order(ordered, BACKOFF.after(ends - 1)) == Some(Order::Stop) {
            return Ok(());
        }
    }
}

fn spawn(guard: &Path, arguments: &[String], said: &mut ChildOutput) -> io::Result<Child> {
    let mut child = Command::new(guard)
        .arg(GUARD)
        .arg(std::process::id().to_string())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    said.listen(child.stdout.take());
    said.listen(child.stderr.take());
    Ok(child)
}

/// Waits for an order, up to `time`. A closed channel means stop.
fn order(ordered: &queue::Receiver<Order>, time: Duration) -> Option<Order> {
    match ordered.recv_timeout(time) {
        Ok(order) => Some(order),
        Err(queue::RecvTimeoutError::Timeout) => None,
        Err(queue::RecvTimeoutError::Disconnected) => Some(Order::Stop),
    }
}

/// Finds the versions in etcd's message about a folder of a newer version, in either log format: the
/// cluster's version, then etcd's own.
fn versions(said: &str) -> Option<(String, String)> {
    let complaint = &said[said.find("invalid downgrade")?..];
    let after = |name: &str| {
        let (_, rest) = complaint.split_once(name)?;
        let version = rest
            .trim_start_matches(['"', ':', ' '])
            .split(|letter: char| !letter.is_ascii_digit() && letter != '.')
            .next()?;
        (!version.is_empty()).then(|| version.to_owned())
    };
    Some((
        after("determined-cluster-version")?,
        after("current-server-version")?,
    ))
}

/// Waits for the exit of the child; `Err` is the order that ended it.
fn wait(child: &mut Child, ordered: &queue::Receiver<Order>) -> Result<ExitStatus, Order> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => {}
            Err(error) => tracing::error!(target: LOG, "etcd: cannot query the process: {error}"),
        }
        if let Some(order) = order(ordered, POLL_INTERVAL) {
            end(child);
            return Err(order);
        }
    }
}

fn end(child: &mut Child) {
    let deadline = Instant::now() + EXIT_TIMEOUT;
    if let Some(id) = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    {
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    }
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(POLL_INTERVAL / 10);
    }
    tracing::warn!(target: LOG, "etcd did not exit in time, killing it");
    let _ = child.kill();
    let _ = child.wait();
}

/// The last log lines of a child.
#[derive(Default)]
struct ChildOutput {
    lines: Arc<Mutex<VecDeque<String>>>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl ChildOutput {
    fn listen(&mut self, from: Option<impl Read + Send + 'static>) {
        let Some(from) = from else { return };
        let lines = Arc::clone(&self.lines);
        // The thread ends with the child.
        self.readers.push(thread::spawn(move || {
            let mut reader = BufReader::new(from);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let mut text = String::from_utf8_lossy(&line).trim_end().to_owned();
                text.truncate(text.floor_char_boundary(MAX_LINE));
                tracing::debug!(target: LOG, "{text}");
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.len() == LAST_LINES {
                    lines.pop_front();
                }
                lines.push_back(text);
                line.clear();
            }
        }));
    }

    /// The last lines, once the output is read to its end. `timeout` covers a pipe that another process keeps
    /// open.
    fn last(&self, timeout: Duration) -> String {
        let deadline = Instant::now() + timeout;
        while !self.readers.iter().all(thread::JoinHandle::is_finished) && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL / 20);
        }
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().cloned().collect::<Vec<_>>().join(" | ")
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};
    use std::path::Path;
    use std::sync::mpsc as queue;
    use std::time::Duration;

    use super::{ChildError, ChildOutput, Order, Supervised, supervise, versions, with_certificate_names};

    /// A reader that delivers its text late.
    struct Slow(&'static [u8]);

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            std::thread::sleep(Duration::from_millis(50));
            self.0.read(buffer)
        }
    }

    #[test]
    fn collects_late_output() {
        let mut said = ChildOutput::default();
        said.listen(Some(Slow(b"starts\nlisten: address in use\n")));
        let last = said.last(Duration::from_secs(60));
        assert_eq!(last, "starts | listen: address in use");
    }

    /// Regression: a single failed start, for example at a process limit, ended the scheduler.
    #[test]
    fn retries_failed_start() {
        let folder = tempfile::tempdir().unwrap();
        let (orders, ordered) = queue::channel();
        let supervised = Supervised::default();
        let run = |guard: &Path| supervise(guard, folder.path(), &[], &ordered, &supervised);
        let outcome = run(&folder.path().join("missing"));
        assert!(matches!(outcome, Err(ChildError::Program(_))), "{outcome:?}");
        // During the backoff.
        orders.send(Order::Stop).unwrap();
        // A program that cannot be run at the moment.
        let outcome = run(folder.path());
        assert!(outcome.is_ok(), "{outcome:?}");
        assert_eq!(supervised.starts(), 2);
    }

    #[test]
    fn spells_members_as_in_certificates() {
        let urls = "a=https://a.ns.svc:2380,b=https://b.ns.svc:2380";
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(with_certificate_names(urls, &[]), urls);
        assert_eq!(
            with_certificate_names(urls, &names(&["a.ns.svc", "b.ns.svc"])),
            urls
        );
        assert_eq!(
            with_certificate_names(urls, &names(&["a.ns.svc.", "b.ns.svc."])),
            "a=https://a.ns.svc.:2380,b=https://b.ns.svc.:2380"
        );
        let both = names(&["a.ns.svc", "b.ns.svc", "a.ns.svc.", "b.ns.svc."]);
        assert_eq!(with_certificate_names(urls, &both), urls);
    }

    #[test]
    fn recognizes_folder_of_newer_etcd() {
        let said = r#"{"level":"info","msg":"started"} | {"level":"fatal","msg":"invalid downgrade; server version is lower than determined cluster version","current-server-version":"3.4.23","determined-cluster-version":"3.5","stacktrace":"x"}"#;
        assert_eq!(versions(said), Some(("3.5".to_owned(), "3.4.23".to_owned())));
        assert_eq!(
            versions(r#"{"level":"fatal","msg":"listen tcp: address in use"}"#),
            None
        );
    }
}
