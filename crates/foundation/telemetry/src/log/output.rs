//! The writer thread and its bounded buffer.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Buffered bytes above which API log lines are dropped.
const LOSSY_LIMIT: usize = 1 << 20;
/// Buffered bytes above which other lines block, each for at most [`PUSH_LIMIT`].
const BUFFER_LIMIT: usize = 4 << 20;
const PUSH_LIMIT: Duration = Duration::from_secs(1);

/// A buffered output to a file or pipe. Dropping it ends the thread after everything is written.
#[derive(Debug)]
pub(super) struct Output {
    shared: Arc<OutputInner>,
}

#[derive(Debug, Default)]
struct OutputInner {
    state: Mutex<State>,
    /// Signals the writer that lines are available.
    filled: Condvar,
    /// Signals producers and flushers that the writer has progressed.
    written: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pending: Vec<u8>,
    /// Total bytes accepted, and total bytes passed to the operating system.
    accepted: u64,
    done: u64,
    /// API lines dropped since the last report.
    dropped: u64,
    writer_waits: bool,
    closed: bool,
}

impl OutputInner {
    /// Poisoning is harmless: the state is plain counters and bytes.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, state: &mut State, line: &str) {
        state.pending.extend_from_slice(line.as_bytes());
        state.accepted += line.len() as u64;
        if state.writer_waits {
            state.writer_waits = false;
            self.filled.notify_one();
        }
    }

    fn write_loop(&self, mut out: Box<dyn Write + Send>) {
        let mut batch = Vec::new();
        loop {
            let mut state = self.lock();
            while state.pending.is_empty() {
                if state.closed {
                    return;
                }
                state.writer_waits = true;
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::swap(&mut batch, &mut state.pending);
            drop(state);
            // A closed pipe or a full disk must not stop the process.
            let _ = out.write_all(&batch).and_then(|()| out.flush());
            let mut state = self.lock();
            state.done += batch.len() as u64;
            drop(state);
            batch.clear();
            batch.shrink_to(LOSSY_LIMIT);
            self.written.notify_all();
        }
    }
}

impl Output {
    pub(super) fn spawn(out: Box<dyn Write + Send>) -> io::Result<Self> {
        let shared = Arc::new(OutputInner::default());
        let writer = shared.clone();
        std::thread::Builder::new()
            .name("log".into())
            .spawn(move || writer.write_loop(out))?;
        Ok(Self { shared })
    }

    /// Queues the line. If the buffer is full, waits at most [`PUSH_LIMIT`], then drops the line.
    pub(super) fn push(&self, line: &str) {
        let mut state = self.shared.lock();
        if state.pending.len() > BUFFER_LIMIT {
            let full = |s: &mut State| s.pending.len() > BUFFER_LIMIT;
            let waited = self.shared.written.wait_timeout_while(state, PUSH_LIMIT, full);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.pending.len() > BUFFER_LIMIT {
                return;
            }
        }
        self.shared.append(&mut state, line);
    }

    /// Queues the line, or counts it as dropped if the writer lags. Returns the number dropped since the
    /// last report once lines are accepted again.
    pub(super) fn push_lossy(&self, line: &str) -> Option<u64> {
        let mut state = self.shared.lock();
        if state.pending.len() > LOSSY_LIMIT {
            state.dropped += 1;
            return None;
        }
        self.shared.append(&mut state, line);
        Some(std::mem::take(&mut state.dropped)).filter(|lost| *lost > 0)
    }

    /// Waits until everything queued before the call is written; false on timeout.
    pub(super) fn flush(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.shared.lock();
        let goal = state.accepted;
        while state.done < goal {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return false;
            };
            let waited = self.shared.written.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.filled.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct Gate {
        open: mpsc::Receiver<()>,
        seen: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Gate {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            // An error means that the test has dropped its end.
            let _ = self.open.recv();
            self.seen.lock().unwrap().extend_from_slice(buf);
            Ok(buf.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn slow_output_drops_only_api_lines() {
        let (open, gate) = mpsc::channel();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let out = Output::spawn(Box::new(Gate {
            open: gate,
            seen: seen.clone(),
        }))
        .unwrap();
        let big = "x".repeat(LOSSY_LIMIT / 2) + "\n";
        out.push("first\n");
        assert!(!out.flush(Duration::ZERO));
        for _ in 0..8 {
            out.push_lossy(&big);
        }
        out.push("kept\n");
        drop(open);
        assert!(out.flush(Duration::from_secs(30)));
        assert!(out.push_lossy("again\n").unwrap() >= 4);
        assert_eq!(out.push_lossy("last\n"), None);
        assert!(out.flush(Duration::from_secs(30)));
        let seen = String::from_utf8(seen.lock().unwrap().clone()).unwrap();
        assert!(seen.starts_with("first\n") && seen.contains("\nkept\n") && seen.ends_with("again\nlast\n"));
    }
}
