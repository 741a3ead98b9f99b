//! Process log in Dapr's format: logrus text lines or JSON objects. On a terminal, lines are formatted for
//! people: time, level and message first.
//!
//! Events arrive through `tracing` macros: the event's `target` becomes `scope`, its message `msg`, and
//! every other field a field of the line. The calling thread formats a line and a dedicated thread writes
//! it.

mod format;
mod output;
mod subscriber;

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;

pub(crate) use format::go_quoted;
use format::{Field, Format, Style};
use output::Output;
use subscriber::LogSubscriber;

/// Maximum wait of [`flush`], [`fatal`] and the drop of a [`Guard`] for a stuck output.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// Targets that are logged at info level regardless of the configured level (API logging).
const API_TARGETS: [&str; 2] = [crate::apilog::HTTP_TARGET, crate::apilog::GRPC_TARGET];

/// Severity of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Details for debugging.
    Debug,
    /// The default.
    #[default]
    Info,
    /// Written as `warning`.
    Warn,
    /// Failures that do not end the process.
    Error,
    /// Failures that end the process.
    Fatal,
}

impl Level {
    /// The name in the `level` field.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warning",
            Self::Error => "error",
            Self::Fatal => "fatal",
        }
    }
}

impl FromStr for Level {
    type Err = LogError;

    fn from_str(text: &str) -> Result<Self, LogError> {
        match text.to_ascii_lowercase().as_str() {
            "debug" => Ok(Self::Debug),
            "info" => Ok(Self::Info),
            "warn" | "warning" => Ok(Self::Warn),
            "error" => Ok(Self::Error),
            "fatal" => Ok(Self::Fatal),
            _ => Err(LogError::Level(text.to_owned())),
        }
    }
}

/// Errors of a log configuration.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Unknown level name.
    #[error("undefined log output level: {0} (use debug, info, warn, error or fatal)")]
    Level(String),
    /// The log file cannot be opened for appending.
    #[error("cannot open log file {}: {source} (check the path and its permissions)", path.display())]
    File {
        /// The configured path.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The writer thread did not start.
    #[error("cannot start the log writer thread: {0}")]
    Thread(std::io::Error),
}

/// Configuration of the process log.
#[derive(Clone, Debug, Default)]
pub struct LogConfig {
    /// Lowest severity to log.
    pub level: Level,
    /// Log JSON objects instead of text lines, also on a terminal.
    pub json: bool,
    /// File to append to instead of standard output.
    pub file: Option<PathBuf>,
    /// `app_id` field; omitted if empty.
    pub app_id: String,
    /// `ver` field.
    pub version: String,
    /// `instance` field: the host name.
    pub instance: String,
}

/// A destination of the process log, one per [`init`]. The newest receives the lines.
#[derive(Debug)]
struct Sink {
    level: Level,
    format: Format,
    output: Output,
}

impl Sink {
    /// Queues an API log line, or counts it as dropped if the output lags.
    fn push_api_line(&self, line: &str) {
        if let Some(lost) = self.output.push_lossy(line) {
            let msg =
                format!("{lost} API log lines were dropped: the log output is slower than the API traffic");
            let fields = vec![Field::plain("dropped", lost)];
            self.output
                .push(&self.format.line(Level::Warn, "dapr.runtime", &msg, fields));
        }
    }
}

/// The process-wide sink, shared with the installed `tracing` subscriber.
static SINK: OnceLock<Arc<ArcSwap<Sink>>> = OnceLock::new();

/// Keeps the log open. Dropping it writes all queued lines.
#[derive(Debug)]
#[must_use = "lines still queued are written when this is dropped"]
pub struct Guard {
    sink: Arc<Sink>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.sink.output.flush(FLUSH_LIMIT);
    }
}

/// Installs the process log. A second call in the same process (tests) redirects it.
///
/// # Errors
/// If the log file cannot be opened or the writer thread cannot start.
pub fn init(config: LogConfig) -> Result<Guard, LogError> {
    let out: Box<dyn Write + Send> = match &config.file {
        None => Box::new(std::io::stdout()),
        Some(path) if is_pipe(path) => Box::new(NamedPipe {
            path: path.clone(),
            file: None,
        }),
        Some(path) => Box::new(open(path)?),
    };
    let shown = config.file.is_none() && io::stdout().is_terminal();
    let output = Output::spawn(out).map_err(LogError::Thread)?;
    let sink = Arc::new(Sink {
        level: config.level,
        format: Format {
            style: Style::of(config.json, shown),
            app_id: config.app_id,
            version: config.version,
            instance: config.instance,
        },
        output,
    });
    let shared = SINK.get_or_init(|| Arc::new(ArcSwap::from(sink.clone())));
    shared.store(sink.clone());
    // Fails if a subscriber is already installed: ours, which uses the new sink, or the embedding
    // program's, which keeps precedence.
    let _ = tracing::subscriber::set_global_default(LogSubscriber { sink: shared.clone() });
    tracing::callsite::rebuild_interest_cache();
    Ok(Guard { sink })
}

/// Checks that a process could log to this file, and creates it.
///
/// # Errors
/// [`LogError::File`].
pub fn check_file(path: &Path) -> Result<(), LogError> {
    if is_pipe(path) {
        Ok(())
    } else {
        open(path).map(drop)
    }
}

fn open(path: &Path) -> Result<File, LogError> {
    appending(path).map_err(|source| LogError::File {
        path: path.to_owned(),
        source,
    })
}

fn appending(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn is_pipe(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo())
}

/// A named pipe, opened at the first write: opening blocks until a reader exists, which must not block the
/// start or end of the process.
struct NamedPipe {
    path: PathBuf,
    file: Option<File>,
}

impl Write for NamedPipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(file) = &mut self.file {
            return file.write(bytes);
        }
        self.file.insert(appending(&self.path)?).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs a line at `fatal` level and waits until it is written. The caller ends the process.
pub fn fatal(scope: &str, msg: &str) {
    match SINK.get() {
        Some(sink) => {
            let sink = sink.load_full();
            sink.output
                .push(&sink.format.line(Level::Fatal, scope, msg, Vec::new()));
            sink.output.flush(FLUSH_LIMIT);
        }
        // Not configured yet (bad flags): same format, standard output.
        None => {
            let mut out = std::io::stdout();
            let format = Format {
                style: Style::of(false, out.is_terminal()),
                ..Format::default()
            };
            let line = format.line(Level::Fatal, scope, msg, Vec::new());
            let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
        }
    }
}

/// Waits (at most two seconds) until all lines logged so far are written.
pub fn flush() {
    if let Some(sink) = SINK.get() {
        sink.load_full().output.flush(FLUSH_LIMIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_levels_like_flag() {
        assert_eq!("WARN".parse::<Level>().unwrap(), Level::Warn);
        assert_eq!(Level::Warn.as_str(), "warning");
        assert!("loud".parse::<Level>().unwrap_err().to_string().contains("loud"));
    }
}
