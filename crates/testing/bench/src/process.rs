//! A child process with its log, killed at the end of the benchmark.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::Failure;

/// Startup timeout, on a busy machine.
const READY: Duration = Duration::from_secs(60);
/// Shutdown timeout.
const END: Duration = Duration::from_secs(20);
/// Polling interval.
const PAUSE: Duration = Duration::from_millis(1);
/// Log lines to show for a failed process.
const SHOWN: usize = 15;

pub(crate) struct Process {
    name: String,
    child: Child,
    pid: u32,
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
        let pid = child.id().ok_or_else(|| format!("{name} ended at once"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            pid,
            log,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until a loopback port accepts connections.
    pub(crate) async fn listening(&mut self, port: u16) -> Result<(), Failure> {
        let deadline = Instant::now() + READY;
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            self.still_starting(&format!("port {port}"), deadline).await?;
        }
        Ok(())
    }

    /// Retries `attempt` until it succeeds; on timeout, returns the last error.
    pub(crate) async fn ready<F, E>(&mut self, mut attempt: impl FnMut() -> F) -> Result<(), Failure>
    where
        F: Future<Output = Result<(), E>>,
        E: std::fmt::Display,
    {
        let deadline = Instant::now() + READY;
        while let Err(error) = attempt().await {
            self.still_starting(&error.to_string(), deadline).await?;
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

    /// Sends a termination signal and waits; kills the process on timeout.
    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        if let Some(status) = self.child.try_wait()? {
            return Err(self.complaint(&format!("ended ({status}) before it was asked to")));
        }
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            kill_process(pid, Signal::TERM)?;
        }
        match timeout(END, self.child.wait()).await {
            Ok(ended) => {
                ended?;
            }
            // The shutdown is not measured.
            Err(_) => self.child.kill().await?,
        }
        Ok(())
    }

    fn complaint(&self, what: &str) -> Failure {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(SHOWN)..].join("\n  ");
        format!("{} {what}; the end of its log:\n  {tail}", self.name).into()
    }
}
