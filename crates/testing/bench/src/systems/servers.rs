//! Real state servers on loopback, only for the run.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use outrigger_testing::ports::free_ports;
use tempfile::TempDir;
use tokio::process::Command;

use crate::Failure;
use crate::process::Process;

pub(crate) struct Server {
    pub(super) process: Process,
    pub(super) port: u16,
    /// Data directory; removed at the end.
    _data: TempDir,
}

impl Server {
    pub(super) fn redis_missing() -> Option<String> {
        let missing = find("redis-server").is_none();
        missing
            .then(|| "Redis: it is not installed (apt-get update && apt-get install redis-server)".to_owned())
    }

    /// A Redis that does not write to disk, so that the disk is not measured.
    pub(super) async fn redis(dir: &Path) -> Result<Self, Failure> {
        let program = find("redis-server").ok_or("redis-server is not installed")?;
        let data = tempfile::Builder::new()
            .prefix("outrigger-bench-redis-")
            .tempdir()?;
        let [port] = free_ports();
        let mut command = Command::new(program);
        command
            .current_dir(data.path())
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no"]);
        let mut process = Process::start("redis", command, dir)?;
        process.listening(port).await?;
        Ok(Self {
            process,
            port,
            _data: data,
        })
    }

    pub(super) fn postgres_missing() -> Option<String> {
        let missing = find("postgres").is_none() || find("initdb").is_none();
        missing.then(|| {
            "PostgreSQL: it is not installed (apt-get update && apt-get install postgresql)".to_owned()
        })
    }

    /// A fresh PostgreSQL without password and without fsync.
    pub(super) async fn postgres(dir: &Path) -> Result<Self, Failure> {
        let program = find("postgres").ok_or("postgres is not installed")?;
        let initdb = find("initdb").ok_or("initdb is not installed")?;
        let data = tempfile::Builder::new()
            .prefix("outrigger-bench-postgres-")
            .tempdir()?;
        // The server's account creates its directory in it.
        fs::set_permissions(data.path(), fs::Permissions::from_mode(0o777))?;
        let mut command = unprivileged(initdb)?;
        command
            .current_dir(data.path())
            .args(["-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8"])
            .args(["--locale=C", "--no-sync"]);
        let output = command.output().await?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(format!("initdb failed: {}", text.trim()).into());
        }
        let [port] = free_ports();
        let mut command = unprivileged(program)?;
        command
            .current_dir(data.path())
            .args(["-D", "data", "-h", "127.0.0.1", "-k", "", "-p", &port.to_string()])
            .args(["-c", "fsync=off", "-c", "synchronous_commit=off"]);
        let mut process = Process::start("postgres", command, dir)?;
        process.ready(|| answers(port)).await?;
        Ok(Self {
            process,
            port,
            _data: data,
        })
    }
}

/// The server listens before it admits clients.
async fn answers(port: u16) -> Result<(), tokio_postgres::Error> {
    let text = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    let (client, connection) = tokio_postgres::connect(&text, tokio_postgres::NoTls).await?;
    let connection = tokio::spawn(connection);
    let answered = client.simple_query("SELECT 1").await.map(drop);
    connection.abort();
    answered
}

/// A program on the search path, or in Debian's directory for PostgreSQL.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut versions: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .collect();
    versions.sort();
    folders.extend(versions.into_iter().rev());
    folders
        .into_iter()
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// PostgreSQL refuses to run as root: uses the account of its package.
fn unprivileged(program: impl AsRef<OsStr>) -> Result<Command, Failure> {
    let mut command = Command::new(program);
    if rustix::process::geteuid().is_root() {
        let accounts = fs::read_to_string("/etc/passwd")?;
        let (user, group) = account(&accounts, "postgres")
            .ok_or("PostgreSQL does not run as root, and there is no account postgres")?;
        command.uid(user).gid(group);
    }
    Ok(command)
}

fn account(accounts: &str, name: &str) -> Option<(u32, u32)> {
    let line = accounts
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let mut fields = line.split(':').skip(1);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{Server, account};
    use crate::load::{Call, Load, Pace};
    use crate::plan::{Api, StateCall, Store, Verb};
    use crate::procfs::Watched;

    /// Values saved by the driver can be read by it.
    async fn saves_and_gets(store: Store, server: Server) {
        for verb in [Verb::Save, Verb::Get] {
            let call = StateCall {
                store,
                verb,
                api: Api::Http,
            };
            let load = Load {
                call: Call::of_driver(call, server.port, 1024).unwrap(),
                connections: 64,
                pace: Pace::Open {
                    qps: 500.0,
                    requests: 100,
                },
            };
            let (measured, _) = load.run(&Watched::new(Vec::new())).await.unwrap();
            assert_eq!(measured.requests, 100, "{:?}", measured.errors);
            let carried = (measured.payload_sent > 0, measured.payload_received > 0);
            assert_eq!(carried, (verb == Verb::Save, verb == Verb::Get));
        }
        server.process.stop().await.unwrap();
    }

    /// Reports a missing server; in CI that fails the test.
    fn is_there(missing: Option<String>) -> bool {
        let Some(line) = missing else {
            return true;
        };
        outrigger_testing::skip::skip(&line);
        false
    }

    #[tokio::test]
    async fn calls_redis_by_driver() {
        if is_there(Server::redis_missing()) {
            let dir = tempfile::tempdir().unwrap();
            let server = Server::redis(dir.path()).await.unwrap();
            saves_and_gets(Store::Redis, server).await;
        }
    }

    #[tokio::test]
    async fn calls_postgresql_by_driver() {
        if is_there(Server::postgres_missing()) {
            let dir = tempfile::tempdir().unwrap();
            let server = Server::postgres(dir.path()).await.unwrap();
            saves_and_gets(Store::Postgres, server).await;
        }
    }

    #[test]
    fn finds_account_by_full_name() {
        let accounts = "postgresx:x:1:2::/:/bin/sh\npostgres:x:101:104:PostgreSQL:/var/lib:/bin/bash\n";
        assert_eq!(account(accounts, "postgres"), Some((101, 104)));
        assert_eq!(account(accounts, "redis"), None);
    }
}
