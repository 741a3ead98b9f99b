//! `bindings.cron`: events on a schedule.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::{Timestamp, fmt::strtime};
use outrigger_component::{
    Catalog, Entry, Error, InputBinding, Metadata, Pairs, Result,
    bindings::{Event, EventHandler},
    catalog::Version,
};
use tokio::time::{Instant, sleep_until};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use outrigger_schedule::cron::{Cron as Schedule, Dialect};

const LOG: &str = "dapr.contrib";
/// Maximum events in flight to the app; further ones are dropped.
const MAX_RUNNING: usize = 1024;
/// Longest sleep between checks of the wall clock, which may be set.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

pub(crate) fn add(catalog: &mut Catalog) {
    catalog
        .input_bindings
        .add(Entry::new(&["cron"], Version::Only, |setup| async move {
            let binding = Cron::open(&setup.metadata)?;
            Ok(Arc::new(binding) as Arc<dyn InputBinding>)
        }));
}

struct Cron {
    schedule: Schedule,
    closed: CancellationToken,
    component: Arc<str>,
}

impl Cron {
    fn open(metadata: &Metadata) -> Result<Self> {
        let text = metadata.required(&["schedule"])?;
        let schedule = Schedule::parse(text, Dialect::Binding)
            .map_err(|error| metadata.wrong(&["schedule"], &error.to_string()))?;
        Ok(Self {
            schedule,
            closed: CancellationToken::new(),
            component: metadata.component().clone(),
        })
    }

    /// Sleeps until the next scheduled time; `None` if there is none.
    async fn next(&self, last: &mut Instant) -> Option<()> {
        match &self.schedule {
            Schedule::Every(period) => {
                let now = Instant::now();
                // Times missed while the machine was suspended are skipped.
                *last = (*last + *period).max(now);
                sleep_until(*last).await;
            }
            Schedule::At(times) => {
                let next = times.after(Timestamp::now())?;
                while let Ok(left) = Duration::try_from(Timestamp::now().duration_until(next))
                    && !left.is_zero()
                {
                    tokio::time::sleep(left.min(POLL_INTERVAL)).await;
                }
            }
        }
        Some(())
    }
}

/// Dapr's event: no payload, the time in the metadata.
fn event() -> Event {
    Event {
        metadata: Pairs::from([
            ("timeZone".to_owned(), "Local".to_owned()),
            ("readTimeUTC".to_owned(), shown(Timestamp::now())),
        ]),
        ..Event::default()
    }
}

/// A time as Go prints it: `2026-11-21 15:04:05.123456789 +0000 UTC`.
fn shown(time: Timestamp) -> String {
    let seconds = strtime::format("%Y-%m-%d %H:%M:%S", time).unwrap_or_default();
    let fraction = format!(".{:09}", time.subsec_nanosecond());
    let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
    format!("{seconds}{fraction} +0000 UTC")
}

#[async_trait]
impl InputBinding for Cron {
    async fn read(&self, handler: Arc<dyn EventHandler>, drain: CancellationToken) -> Result<()> {
        if self.closed.is_cancelled() {
            return Err(Error::closed().of(&self.component));
        }
        let running = TaskTracker::new();
        let mut last = Instant::now();
        loop {
            tokio::select! {
                () = drain.cancelled() => break,
                () = self.closed.cancelled() => break,
                next = self.next(&mut last) => {
                    if next.is_none() {
                        tracing::warn!(
                            target: LOG,
                            "cron binding {}: the schedule does not match any time in the next five years: the binding will not fire",
                            self.component
                        );
                        drain.cancelled().await;
                        break;
                    }
                }
            }
            if running.len() >= MAX_RUNNING {
                tracing::warn!(
                    target: LOG,
                    "cron binding {}: {MAX_RUNNING} events are in flight; dropping this one",
                    self.component
                );
                continue;
            }
            let (handler, component) = (handler.clone(), self.component.clone());
            running.spawn(async move {
                if let Err(error) = handler.handle(event()).await {
                    tracing::debug!(target: LOG, "cron binding {component}: {error}");
                }
            });
        }
        running.close();
        running.wait().await;
        Ok(())
    }

    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    async fn close(&self) {
        self.closed.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_times_like_go() {
        let time = |text: &str| shown(text.parse().unwrap());
        assert_eq!(time("2026-01-02T03:04:05Z"), "2026-01-02 03:04:05 +0000 UTC");
        assert_eq!(
            time("2026-01-02T03:04:05.12Z"),
            "2026-01-02 03:04:05.12 +0000 UTC"
        );
    }
}
