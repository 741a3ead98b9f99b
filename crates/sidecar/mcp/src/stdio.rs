//! A server as a subprocess, with messages on its standard input and output.

use std::process::Stdio as Pipe;

use outrigger_resources::mcp_server::Stdio;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::LOG;
use crate::limits::EXIT_TIMEOUT;

/// Maximum length of a logged line of a subprocess, in bytes.
const MAX_LINE: u64 = 4096;

/// Starts the program. It ends after the guard was dropped and its input closed.
pub(crate) fn spawn(
    name: &str,
    server: &Stdio,
    tasks: &TaskTracker,
) -> Result<((ChildStdout, ChildStdin), DropGuard), String> {
    let command = &server.command;
    let mut child = Command::new(command)
        .args(&server.args)
        .envs(server.env.iter().map(|item| (&item.name, item.text())))
        .stdin(Pipe::piped())
        .stdout(Pipe::piped())
        .stderr(Pipe::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("cannot start {command:?}: {error}"))?;
    let pipes = (child.stdout.take(), child.stdin.take(), child.stderr.take());
    let (Some(output), Some(input), Some(errors)) = pipes else {
        return Err(format!("{command:?} has no standard input and output"));
    };
    let closed = CancellationToken::new();
    tasks.spawn(end(child, closed.clone()));
    tasks.spawn(log(name.to_owned(), errors));
    Ok(((output, input), closed.drop_guard()))
}

/// Waits for the end of the program, for a limited time once it is `closed`.
async fn end(mut child: Child, closed: CancellationToken) {
    let exited = closed.run_until_cancelled(child.wait()).await.is_some();
    if !exited && timeout(EXIT_TIMEOUT, child.wait()).await.is_err() {
        // It is gone if this fails.
        let _killed = child.kill().await;
    }
}

/// Logs what the program writes to its standard error.
async fn log(name: String, errors: ChildStderr) {
    let mut errors = BufReader::new(errors);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut errors).take(MAX_LINE).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let line = String::from_utf8_lossy(&line);
                tracing::info!(target: LOG, "MCPServer {name}: {}", line.trim_end());
            }
        }
    }
}
