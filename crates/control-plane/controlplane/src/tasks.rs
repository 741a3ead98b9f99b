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

/// What is built; nothing where the process was told to stop meanwhile, which is no failure.
///
/// # Errors
/// When it cannot be built.
pub async fn unless_stopped<T, E>(
    stop: &CancellationToken,
    build: impl Future<Output = Result<T, E>>,
) -> Result<Option<T>, E> {
    match stop.run_until_cancelled(build).await {
        None => Ok(None),
        // What is built may watch the token too, and give up first.
        Some(Err(_)) if stop.is_cancelled() => Ok(None),
        Some(built) => built.map(Some),
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
    async fn who_is_told_to_stop_while_starting_has_not_failed() {
        let stop = CancellationToken::new();
        let gives_up = async {
            stop.cancel();
            Err::<(), _>("stopped")
        };
        assert_eq!(unless_stopped(&stop, gives_up).await, Ok(None));
        assert_eq!(
            unless_stopped::<(), ()>(&stop, std::future::pending()).await,
            Ok(None)
        );
        let goes_on = CancellationToken::new();
        assert_eq!(
            unless_stopped(&goes_on, async { Err::<(), _>("wrong") }).await,
            Err("wrong")
        );
        assert_eq!(
            unless_stopped(&goes_on, async { Ok::<_, ()>(1) }).await,
            Ok(Some(1))
        );
    }
}
