//! The etcd that a scheduler runs itself, as a child process: started, started again when it ends, ended with the
//! scheduler, also when that is killed.

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
/// First argument of the process that becomes etcd; the id of its parent follows.
pub(crate) const GUARD: &str = "--become-etcd";
/// Between two checks of the child.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long it has to end when told to; then it is killed.
const END: Duration = Duration::from_secs(8);
/// An etcd that ends this soon could not work.
const EARLY_EXIT: Duration = Duration::from_secs(10);
/// Such ends in a row, after which the scheduler gives up.
const EARLY_EXITS: u32 = 5;
/// Pauses before it is started again.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
/// Last lines of its log that are told when it ends.
const LINES: usize = 5;
/// How long its last lines are waited for once it has ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Longest line that is kept.
const LINE: usize = 2000;

/// Why there is no etcd.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// There is no such program.
    #[error(
        "cannot run etcd, which the data folder or --etcd-initial-cluster asks for: {0}; install it (Debian: \
         etcd-server) so that it is found in PATH, or use one of yours with --etcd-embed=false"
    )]
    Program(io::Error),
    /// The data folder cannot be used.
    #[error("cannot use the data folder {path} (--etcd-data-dir) for etcd: {cause}")]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system answered.
        cause: io::Error,
    },
    /// The folder is not for it.
    #[error(
        "the data folder {path} was last used by etcd {written}, and the etcd in PATH is {installed}: install {written} or \
         later; Dapr's scheduler 1.17 has etcd 3.5 in itself"
    )]
    Older {
        /// The folder.
        path: PathBuf,
        /// The version of the cluster in it.
        written: String,
        /// The version of the program.
        installed: String,
    },
    /// It ends again and again.
    #[error("etcd ended {EARLY_EXITS} times in a row ({status}); its last output: {said}")]
    Ended {
        /// The last exit status.
        status: String,
        /// Last lines of its log.
        said: String,
    },
}

/// What its supervisor is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// End it.
    Stop,
    /// End it, and start another.
    Restart,
}

/// How the child was started last.
#[derive(Default)]
struct Supervised {
    /// The file with the certificates that it trusts, where members show each other some.
    file: Option<PathBuf>,
    /// How often it was started, and what the file had then.
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

    /// Whether the file has something else than when the child was started. One that cannot be read is being replaced.
    fn is_outdated(&self) -> bool {
        let Some(now) = self.read() else { return false };
        let started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.0 > 0 && started.1.as_ref() != Some(&now)
    }

    fn read(&self) -> Option<Vec<u8>> {
        std::fs::read(self.file.as_ref()?).ok()
    }
}

/// A child process under supervision; it ends when this, and its [`Trust`], are dropped.
pub(crate) struct EtcdChild {
    orders: queue::Sender<Order>,
    /// What is needed to follow whom it trusts.
    trust: Option<Trust>,
    ended: Option<oneshot::Receiver<ChildError>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// What becomes etcd, if the process was started for that: `arguments` are those of the process, its name included.
/// It ends when its parent does.
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
        // It may have ended before the signal was asked for: then this process has another parent.
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
    /// Prepares its folder, and starts it. `guard` is a program that calls [`become_etcd`].
    ///
    /// # Errors
    /// [`ChildError`]; whether it works shows later.
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
        // The thread starts the child, and lasts as long: the child ends with the thread that started it.
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
                // The scheduler may have ended.
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

    /// Tells why it ended for good; never, if that is because it was told to.
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

    /// What restarts it when those change whom it trusts; `None` where its members show no certificates, and the second
    /// time.
    pub(crate) fn trust(&mut self) -> Option<Trust> {
        self.trust.take()
    }

    /// Ends it, and waits for that.
    pub(crate) fn stop(mut self) {
        // It may have ended.
        let _ = self.orders.send(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The flags of the installed version.
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

/// The names of schedulers, as their certificates have them: those of all replicas.
fn names(identity: &Path) -> Vec<String> {
    let read = std::fs::read(identity.join("cert.pem")).ok();
    let chain = read.and_then(|pem| pem::parse_certificates(&pem).ok());
    let leaf = chain.as_ref().and_then(|chain| chain.first());
    leaf.and_then(|leaf| pem::dns_names(leaf).ok())
        .unwrap_or_default()
}

/// URLs of members with the names that their certificates have. Dapr's sentry gives them with a dot at the end alone, and
/// etcd takes `a.b.` and `a.b` for the same only where the certificate has the latter.
fn spelled(urls: &str, names: &[String]) -> String {
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
                format!("--{flag}={}", spelled(value, names))
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
            // Sidecars have certificates of the same authority; those of schedulers have this name, with the dot or without.
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
        // Before the child reads it: what is written in between counts as new.
        supervised.note_start();
        let mut said = ChildOutput::default();
        let status = match spawn(guard, arguments, &mut said) {
            Ok(mut child) => match wait(&mut child, ordered) {
                Ok(status) => status.to_string(),
                Err(Order::Restart) => continue,
                Err(Order::Stop) => return Ok(()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ChildError::Program(error)),
            // It may pass: there may be too many processes.
            Err(error) => format!("could not be started: {error}"),
        };
        ends = if begun.elapsed() < EARLY_EXIT { ends + 1 } else { 1 };
        let last = said.last(LAST_WORDS);
        if let Some((written, installed)) = versions(&last) {
            return Err(ChildError::Older {
                path: folder.to_owned(),
                written,
                installed,
            });
        }
        tracing::error!(target: LOG, "etcd ended ({status}) and is started again; its last output: {last}");
        if ends >= EARLY_EXITS {
            return Err(ChildError::Ended { status, said: last });
        }
        // It is about to be started again in any case.
        if order(ordered, PAUSES.after(ends - 1)) == Some(Order::Stop) {
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

/// What is ordered within that time. A supervisor that nobody can reach any more stops.
fn order(ordered: &queue::Receiver<Order>, time: Duration) -> Option<Order> {
    match ordered.recv_timeout(time) {
        Ok(order) => Some(order),
        Err(queue::RecvTimeoutError::Timeout) => None,
        Err(queue::RecvTimeoutError::Disconnected) => Some(Order::Stop),
    }
}

/// What an etcd says, in either form of its log, of a folder that a newer one used: the version of that, and its own.
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

/// How the child ended, or the order by which it was ended.
fn wait(child: &mut Child, ordered: &queue::Receiver<Order>) -> Result<ExitStatus, Order> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => {}
            Err(error) => tracing::error!(target: LOG, "cannot find out whether etcd runs: {error}"),
        }
        if let Some(order) = order(ordered, POLL_INTERVAL) {
            end(child);
            return Err(order);
        }
    }
}

fn end(child: &mut Child) {
    let deadline = Instant::now() + END;
    if let Some(id) = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    {
        // It may have ended.
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    }
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(POLL_INTERVAL / 10);
    }
    tracing::warn!(target: LOG, "etcd did not end in time and is killed");
    let _ = child.kill();
    let _ = child.wait();
}

/// The last lines that a child wrote.
#[derive(Default)]
struct ChildOutput {
    lines: Arc<Mutex<VecDeque<String>>>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl ChildOutput {
    fn listen(&mut self, from: Option<impl Read + Send + 'static>) {
        let Some(from) = from else { return };
        let lines = Arc::clone(&self.lines);
        // It ends with the child.
        self.readers.push(thread::spawn(move || {
            let mut reader = BufReader::new(from);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let mut text = String::from_utf8_lossy(&line).trim_end().to_owned();
                text.truncate(text.floor_char_boundary(LINE));
                tracing::debug!(target: LOG, "{text}");
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.len() == LINES {
                    lines.pop_front();
                }
                lines.push_back(text);
                line.clear();
            }
        }));
    }

    /// What it said last, once all of it is read; `timeout` is for a pipe that something else keeps open.
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

    use super::{ChildError, ChildOutput, Order, Supervised, spelled, supervise, versions};

    /// A pipe whose text takes a while.
    struct Slow(&'static [u8]);

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            std::thread::sleep(Duration::from_millis(50));
            self.0.read(buffer)
        }
    }

    #[test]
    fn the_last_lines_are_those_that_were_still_under_way() {
        let mut said = ChildOutput::default();
        said.listen(Some(Slow(b"starts\nlisten: address in use\n")));
        let last = said.last(Duration::from_secs(60));
        assert_eq!(last, "starts | listen: address in use");
    }

    /// Regression: one attempt to start it that failed, where there were too many processes, ended the scheduler.
    #[test]
    fn a_start_that_fails_is_tried_again_unless_there_is_no_program() {
        let folder = tempfile::tempdir().unwrap();
        let (orders, ordered) = queue::channel();
        let supervised = Supervised::default();
        let run = |guard: &Path| supervise(guard, folder.path(), &[], &ordered, &supervised);
        let outcome = run(&folder.path().join("missing"));
        assert!(matches!(outcome, Err(ChildError::Program(_))), "{outcome:?}");
        // While it waits for the next attempt.
        orders.send(Order::Stop).unwrap();
        // What cannot be run now.
        let outcome = run(folder.path());
        assert!(outcome.is_ok(), "{outcome:?}");
        assert_eq!(supervised.starts(), 2);
    }

    #[test]
    fn members_are_named_as_their_certificates_have_it() {
        let urls = "a=https://a.ns.svc:2380,b=https://b.ns.svc:2380";
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(spelled(urls, &[]), urls);
        assert_eq!(spelled(urls, &names(&["a.ns.svc", "b.ns.svc"])), urls);
        assert_eq!(
            spelled(urls, &names(&["a.ns.svc.", "b.ns.svc."])),
            "a=https://a.ns.svc.:2380,b=https://b.ns.svc.:2380"
        );
        let both = names(&["a.ns.svc", "b.ns.svc", "a.ns.svc.", "b.ns.svc."]);
        assert_eq!(spelled(urls, &both), urls);
    }

    #[test]
    fn a_folder_of_a_newer_etcd_is_told_from_other_trouble() {
        let said = r#"{"level":"info","msg":"started"} | {"level":"fatal","msg":"invalid downgrade; server version is lower than determined cluster version","current-server-version":"3.4.23","determined-cluster-version":"3.5","stacktrace":"x"}"#;
        assert_eq!(versions(said), Some(("3.5".to_owned(), "3.4.23".to_owned())));
        assert_eq!(
            versions(r#"{"level":"fatal","msg":"listen tcp: address in use"}"#),
            None
        );
    }
}
