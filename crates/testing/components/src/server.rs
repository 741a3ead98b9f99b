//! Real servers on loopback, each for one test.

mod etcd;
pub mod kafka;
mod mosquitto;
mod nats;
mod postgres;
pub mod pulsar;
mod rabbitmq;
mod redis;

use std::{
    fs::File,
    io::Read as _,
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

pub use outrigger_testing::ports::free_port;

pub use self::{
    etcd::Etcd,
    kafka::Kafka,
    mosquitto::Mosquitto,
    nats::Nats,
    postgres::Postgres,
    pulsar::Pulsar,
    rabbitmq::RabbitMq,
    redis::{Cli, Redis, Sentinel},
};

/// Startup timeout; some servers start slowly on a busy machine.
const START: Duration = Duration::from_secs(240);

/// A child process that is killed on drop.
struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(mut command: Command, log: &Path) -> Self {
        let out = File::create(log).unwrap();
        command
            .stdin(Stdio::null())
            .stderr(out.try_clone().unwrap())
            .stdout(out);
        Self {
            child: command.spawn().unwrap(),
            log: log.to_owned(),
        }
    }

    fn log(&self) -> String {
        let mut text = String::new();
        let _ = File::open(&self.log).and_then(|mut file| file.read_to_string(&mut text));
        text
    }

    /// Waits for a listener on `port`; `false` if the process ended before.
    fn listens(&mut self, port: u16) -> bool {
        let deadline = Instant::now() + START;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(
                Instant::now() < deadline,
                "no answer on port {port}:\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Waits until the log has `line`, after the server listens.
    fn says(&mut self, line: &str) {
        assert!(self.comes_to(line), "it ended without {line:?}:\n{}", self.log());
    }

    /// Like [`Self::says`], but returns `false` if the process ended before.
    fn comes_to(&mut self, line: &str) -> bool {
        let deadline = Instant::now() + START;
        while !self.log().contains(line) {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(Instant::now() < deadline, "no {line:?} in:\n{}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
        true
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The program, or `None` with a reported skip; in CI its absence fails the test.
fn find(program: &str, package: &str, folders: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let searched = std::env::split_paths(&path).chain(folders.iter().map(PathBuf::from));
    let found = searched
        .map(|folder| folder.join(program))
        .find(|file| file.is_file());
    if found.is_none() {
        outrigger_testing::skip::skip(&format!("{program} is not installed: apt-get install {package}"));
    }
    found
}
