//! The tasks of a process, which end together.

use std::error::Error;
use std::future::Future;
use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// A background task panicked.
#[derive(Debug, thiserror::Error)]
#[error("internal error (please report): a background task failed: {0}")]
pub struct TaskFailed(#[from] JoinError);

/// Waits for all tasks. When one ends, all are stopped; the first error is the result.
///
/// # Errors
/// The error of a task.
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

/// Wraps a task that cannot fail.
///
/// # Errors
/// None.
pub async fn fine<E>(task: impl Future<Output = ()>) -> Result<(), E> {
    task.await;
    Ok(())
}

/// Builds a service and runs it. A process stopped during its start has not failed.
///
/// # Errors
/// That of `build` or `run`.
pub async fn serve_unless_stopped<S, E>(
    stop: &CancellationToken,
    build: impl Future<Output = Result<S, E>>,
    run: impl AsyncFnOnce(S) -> Result<(), E>,
) -> Result<(), E> {
    match stop.run_until_cancelled(build).await {
        None => Ok(()),
        // `build` may also watch the token, and fail first.
        Some(Err(_)) if stop.is_cancelled() => Ok(()),
        Some(built) => run(built?).await,
    }
}

/// Cancels the token on the first SIGINT or SIGTERM, and logs the signal.
///
/// # Errors
/// If signals cannot be handled.
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

/// An error with its causes on one line.
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
    async fn stop_during_start_succeeds() {
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
