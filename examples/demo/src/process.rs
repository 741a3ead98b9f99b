//! A child process with a log file, killed when the demo ends.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::Failure;
use crate::calls::get;

/// Limit for a process to become ready on a busy machine.
const READY: Duration = Duration::from_secs(60);
/// Limit for a process to end after SIGTERM.
const END: Duration = Duration::from_secs(20);
/// Polling interval.
const PAUSE: Duration = Duration::from_millis(20);
/// Log lines shown of a failed process.
const SHOWN: usize = 15;

pub(crate) struct Process {
    name: String,
    command: Command,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its output in `DIR/NAME.log`.
    pub(crate) fn start(name: &str, mut command: Command, dir: &Path) -> Result<Self, Failure> {
        let log = dir.join(format!("{name}.log"));
        let file = File::create(&log)?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true);
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        let child = command
            .spawn()
            .map_err(|error| format!("cannot start {name} ({program}): {error}"))?;
        Ok(Self {
            name: name.to_owned(),
            command,
            child,
            log,
        })
    }

    /// Kills the process with SIGKILL.
    pub(crate) async fn kill(&mut self) -> Result<(), Failure> {
        Ok(self.child.kill().await?)
    }

    /// Kills the process and starts it again.
    pub(crate) async fn kill_and_start(&mut self) -> Result<(), Failure> {
        self.kill().await?;
        self.child = self.command.spawn()?;
        Ok(())
    }

    /// Waits until `GET url` returns 2xx.
    pub(crate) async fn healthy(&mut self, url: &str) -> Result<(), Failure> {
        let deadline = Instant::now() + READY;
        while !get(url)
            .await
            .is_ok_and(|(status, _)| (200..300).contains(&status))
        {
            self.still_starting(url, deadline).await?;
        }
        Ok(())
    }

    /// Waits until a port on loopback accepts connections.
    pub(crate) async fn listening(&mut self, port: u16) -> Result<(), Failure> {
        let deadline = Instant::now() + READY;
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            self.still_starting(&format!("port {port}"), deadline).await?;
        }
        Ok(())
    }

    async fn still_starting(&mut self, what: &str, deadline: Instant) -> Result<(), Failure> {
        if let Some(status) = self.child.try_wait()? {
            return Err(self.complaint(&format!("ended ({status}) before it was ready")));
        }
        if Instant::now() > deadline {
            return Err(self.complaint(&format!("not ready after {} s: {what}", READY.as_secs())));
        }
        sleep(PAUSE).await;
        Ok(())
    }

    /// Sends SIGTERM and waits for the process. An exit status other than 0 is an error.
    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        let Some(id) = self.child.id() else {
            return Err(self.complaint("ended before it was asked to"));
        };
        Command::new("kill")
            .args(["-TERM", &id.to_string()])
            .status()
            .await?;
        match timeout(END, self.child.wait()).await {
            Ok(status) => match status? {
                status if ExitStatus::success(&status) => Ok(()),
                status => Err(self.complaint(&format!("did not end cleanly ({status})"))),
            },
            Err(_) => Err(self.complaint(&format!("still running {} s after SIGTERM", END.as_secs()))),
        }
    }

    fn complaint(&self, what: &str) -> Failure {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(SHOWN)..].join("\n  ");
        format!(
            "{} {what}; the end of {}:\n  {tail}",
            self.name,
            self.log.display()
        )
        .into()
    }
}

/// Returns free ports. None is returned twice, as the first owner may not listen yet.
pub(crate) async fn free_ports<const N: usize>() -> [u16; N] {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut ports = [0; N];
    for port in &mut ports {
        // Below the ephemeral range: a connection could take a port of that range before the process listens.
        *port = loop {
            let wanted = rand::random_range(10_000_u16..32_000);
            // Another process may use it.
            if TcpListener::bind(("0.0.0.0", wanted)).await.is_ok()
                && GIVEN
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(wanted)
            {
                break wanted;
            }
        };
    }
    ports
}
