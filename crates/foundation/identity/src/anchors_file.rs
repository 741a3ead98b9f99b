//! Trust anchors in a file that is replaced on root rotation.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outrigger_files::read_async;
use tokio_util::sync::CancellationToken;

use crate::bundle::{BundleError, TrustAnchors, TrustBundle};

/// Polling interval while the file does not exist.
const APPEARANCE: Duration = Duration::from_secs(1);
/// Polling interval for changes. Comparing the contents, instead of using file events, also works through
/// the symbolic links that Kubernetes swaps.
const CHANGE: Duration = Duration::from_millis(500);
/// Pause after a read timed out.
const RETRY_PAUSE: Duration = Duration::from_secs(60);

/// Why the anchors of a file are unusable.
#[derive(Debug, thiserror::Error)]
pub enum AnchorsFileError {
    /// The file cannot be read.
    #[error("failed to read trust anchors file '{}': {cause}", path.display())]
    Read {
        /// Path of the trust anchors file.
        path: PathBuf,
        /// The operating system's error.
        cause: std::io::Error,
    },
    /// The content is not a trust bundle.
    #[error("trust anchors file '{}': {cause}", path.display())]
    Bundle {
        /// Path of the trust anchors file.
        path: PathBuf,
        /// The error in its certificates.
        cause: BundleError,
    },
    /// Cancelled while waiting for the file.
    #[error("failed to find trust anchors file '{}' before being stopped", .0.display())]
    Cancelled(PathBuf),
}

/// Watches a file of trust anchors.
#[derive(Debug)]
pub struct AnchorsFile {
    path: PathBuf,
    seen: Vec<u8>,
    anchors: TrustAnchors,
}

impl AnchorsFile {
    /// Waits until `path` exists and reads it.
    ///
    /// # Errors
    /// If it cannot be read, is not a trust bundle, or `cancel` comes first.
    pub async fn open(path: &Path, cancel: &CancellationToken) -> Result<Self, AnchorsFileError> {
        let read_error = |cause| AnchorsFileError::Read {
            path: path.to_owned(),
            cause,
        };
        while !tokio::fs::try_exists(path).await.map_err(read_error)? {
            tracing::warn!("Trust anchors file '{}' not found, waiting...", path.display());
            if cancel
                .run_until_cancelled(tokio::time::sleep(APPEARANCE))
                .await
                .is_none()
            {
                return Err(AnchorsFileError::Cancelled(path.to_owned()));
            }
        }
        let seen = read_async(path).await.map_err(read_error)?;
        let bundle = TrustBundle::from_pem(&seen).map_err(|cause| AnchorsFileError::Bundle {
            path: path.to_owned(),
            cause,
        })?;
        tracing::info!("Trust anchors file '{}' found", path.display());
        Ok(Self {
            path: path.to_owned(),
            seen,
            anchors: TrustAnchors::new(bundle),
        })
    }

    /// The anchors, kept current while [`AnchorsFile::run`] runs.
    pub fn anchors(&self) -> TrustAnchors {
        self.anchors.clone()
    }

    /// Watches the file until `cancel`. An unusable file is logged, and the last valid anchors stay in
    /// force.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut failing = false;
        while cancel
            .run_until_cancelled(tokio::time::sleep(CHANGE))
            .await
            .is_some()
        {
            let contents = read_async(&self.path).await;
            if matches!(&contents, Err(error) if error.kind() == ErrorKind::TimedOut) {
                // Each read of a hanging file system occupies a thread.
                let _stopped = cancel.run_until_cancelled(tokio::time::sleep(RETRY_PAUSE)).await;
            }
            match contents.map_err(|cause| AnchorsFileError::Read {
                path: self.path.clone(),
                cause,
            }) {
                Ok(contents) if contents == self.seen => failing = false,
                Ok(contents) => {
                    failing = false;
                    self.take(contents);
                }
                Err(error) if !failing => {
                    failing = true;
                    tracing::error!("{error}; the previous trust anchors stay in force, restore the file");
                }
                Err(_) => {}
            }
        }
    }

    fn take(&mut self, contents: Vec<u8>) {
        match TrustBundle::from_pem(&contents) {
            Ok(bundle) => {
                tracing::info!(
                    anchors = bundle.len(),
                    "Trust anchors file '{}' changed, reloaded",
                    self.path.display()
                );
                self.anchors.replace(bundle);
            }
            Err(error) => tracing::error!(
                "trust anchors file '{}': {error}; the previous trust anchors stay in force, correct the file",
                self.path.display()
            ),
        }
        self.seen = contents;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Algorithm, Authority};

    #[tokio::test(start_paused = true)]
    async fn waits_for_file_then_watches() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.crt");
        let cancel = CancellationToken::new();
        let (one, two) = (
            Authority::new("one", Algorithm::P256),
            Authority::new("two", Algorithm::P256),
        );

        let opening = tokio::spawn({
            let (path, cancel) = (path.clone(), cancel.clone());
            async move { AnchorsFile::open(&path, &cancel).await }
        });
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert!(!opening.is_finished());
        replace(&path, &one.root_pem());
        let file = opening.await.unwrap().unwrap();
        let anchors = file.anchors();
        assert_eq!(anchors.current().pem(), one.root_pem());

        let mut follower = anchors.subscribe();
        let running = tokio::spawn(file.run(cancel.clone()));
        replace(&path, "broken");
        tokio::time::sleep(Duration::from_secs(3)).await;
        std::fs::remove_file(&path).unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(anchors.current().pem(), one.root_pem());
        let both = format!("{}{}", one.root_pem(), two.root_pem());
        replace(&path, &both);
        follower.changed().await.unwrap();
        assert_eq!(anchors.current().pem(), both);

        cancel.cancel();
        running.await.unwrap();
    }

    #[tokio::test]
    async fn cancel_ends_wait() {
        let directory = tempfile::tempdir().unwrap();
        let cancel = CancellationToken::new();
        cancel.cancel();
        let error = AnchorsFile::open(&directory.path().join("none"), &cancel)
            .await
            .unwrap_err();
        assert!(matches!(error, AnchorsFileError::Cancelled(_)));
    }

    fn replace(path: &Path, text: &str) {
        let next = path.with_extension("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, path).unwrap();
    }
}
