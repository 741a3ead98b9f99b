//! A schedule with microsecond resolution.
//!
//! tokio's timers have millisecond resolution, a whole period at 1,000 calls per second. Kernel timer
//! descriptors are precise, and one thread can wait for them and for responses.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// Yields the calls that are due.
pub(crate) struct Pacer {
    timer: AsyncFd<OwnedFd>,
    next: Instant,
    period: Duration,
}

impl Pacer {
    /// Starts the clock; the first call is due after one period.
    pub(crate) fn start(qps: f64) -> io::Result<Self> {
        let period = Duration::from_secs_f64(1.0 / qps).max(Duration::from_nanos(1));
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        let every = Timespec::try_from(period).map_err(|_| io::Error::other("the period is too long"))?;
        let next = Instant::now() + period;
        timerfd_settime(
            &timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec {
                it_interval: every,
                it_value: every,
            },
        )?;
        #[expect(
            deprecated,
            reason = "the replacement is unsafe for descriptors that may be closed early, unlike an OwnedFd"
        )]
        let timer = AsyncFd::new(timer)?;
        Ok(Self { timer, next, period })
    }

    /// Waits until at least one call is due; returns their due times.
    pub(crate) async fn due(&mut self) -> io::Result<impl Iterator<Item = Instant> + use<>> {
        let count = loop {
            let mut ready = self.timer.readable().await?;
            let mut expirations = [0; 8];
            match ready.try_io(|timer| Ok(rustix::io::read(timer, &mut expirations)?)) {
                Ok(read) => {
                    read?;
                    break u64::from_ne_bytes(expirations);
                }
                Err(_not_yet) => {}
            }
        };
        let (first, period) = (self.next, self.period);
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.next = first + period * count;
        Ok((0..count).map(move |index| first + period * index))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::Pacer;

    #[tokio::test]
    async fn calls_are_due_in_order_not_early() {
        let started = Instant::now();
        let mut pacer = Pacer::start(5_000.0).unwrap();
        let mut due = Vec::new();
        while due.len() < 50 {
            let batch = pacer.due().await.unwrap();
            let now = Instant::now();
            due.extend(batch.inspect(|at| assert!(*at <= now)));
        }
        assert!(due[0] >= started);
        assert!(
            due.windows(2)
                .all(|pair| pair[1] - pair[0] == std::time::Duration::from_micros(200))
        );
    }
}
