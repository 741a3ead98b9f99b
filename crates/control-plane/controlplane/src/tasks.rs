//! The tasks of a process, and their common end.

use std::error::Error;
use std::future::Future;
use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// A part of the process ended in a panic.
#[derive(Debug, thiserror::Error)]
#[error("internal error, please report it: a background task failed: {0}")]
pub struct TaskFailed(#[from] JoinError);

/// Waits for all tasks; the end of one is the end of all. The first error is the outcome.
///
/// # Errors
/// That of a task.
pub async fn supervise<E>(mut tasks: JoinSet<Result<(), E>>, stop: &CancellationToken) -> Result<(), E>
where
    E: From<TaskFailed> + 'static,
{
    let mut outcome = Ok(());
    while let Some(ended) = tasks.join_next().await {
        stop.cancel();
        let ended = ended.unwrap_or_else(|error| Err(TaskFailed(error).into()));
        if outcome.is_ok() {
            outcome = ended;
        }
    }
    outcome
}

/// A task that cannot fail.
///
/// # Errors
/// None.
pub async fn fine<E>(task: impl Future<Output = ()>) -> Result<(), E> {
    task.await;
    Ok(())
}

/// Runs what `build` makes. A process that is stopped while it starts has not failed.
///
/// # Errors
/// That of `build`, or of `run`.
pub async fn serve_unless_stopped<S, E>(
    stop: &CancellationToken,
    build: impl Future<Output = Result<S, E>>,
    run: impl AsyncFnOnce(S) -> Result<(), E>,
) -> Result<(), E> {
    match stop.run_until_cancelled(build).await {
        None => Ok(()),
        // What is built may watch the token too, and give up first.
        Some(Err(_)) if stop.is_cancelled() => Ok(()),
        Some(built) => run(built?).await,
    }
}

/// Cancels the token on the first SIGINT or SIGTERM, and logs that.
///
/// # Errors
/// When signals cannot be had.
pub(crate) fn stop_on_signal(drain: &CancellationToken, log: fn(&str)) -> io::Result<JoinHandle<()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let drain = drain.clone();
    Ok(tokio::spawn(async move {
        let name = tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        };
        log(&format!("received {name}, shutting down"));
        drain.cancel();
    }))
}

/// An error with its causes, on one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stop_during_the_start_is_no_failure() {
        let run = async |built: i32| Err::<(), _>(if built == 1 { "ran" } else { "other" });
        let stop = CancellationToken::new();
        assert_eq!(
            serve_unless_stopped(&stop, async { Err("wrong") }, run).await,
            Err("wrong")
        );
        assert_eq!(
            serve_unless_stopped(&stop, async { Ok(1) }, run).await,
            Err("ran")
        );
        let gives_up = async {
            stop.cancel();
            Err("stopped")
        };
        assert_eq!(serve_unless_stopped(&stop, gives_up, run).await, Ok(()));
        assert_eq!(
            serve_unless_stopped(&stop, std::future::pending(), run).await,
            Ok(())
        );
    }
}
