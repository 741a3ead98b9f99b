//! Selection of the token that authenticates a certificate request.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrigger_files::read_text_async;
use outrigger_wire::sentry::v1::sign_certificate_request::TokenValidator;

/// Reads an environment variable. A value instead of the process environment isolates tests and several
/// sidecars in one process.
pub type Env = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Path of the token file.
const TOKEN_FILE_VARIABLE: &str = "DAPR_SENTRY_TOKEN_FILE";
/// Token mounted by the sidecar injector.
const KUBERNETES_TOKEN: &str = "var/run/secrets/dapr.io/sentrytoken/token";
/// Token of every pod. It also grants access to the Kubernetes API, so it is the second choice.
const LEGACY_KUBERNETES_TOKEN: &str = "var/run/secrets/kubernetes.io/serviceaccount/token";

/// Runtime environment of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// On a machine.
    #[default]
    Standalone,
    /// In a pod of a Kubernetes cluster: service account tokens are used.
    Kubernetes,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The variable is set but empty.
    #[error(
        "the environment variable DAPR_SENTRY_TOKEN_FILE is set with an empty value; unset it or name a file"
    )]
    EmptyVariable,
    /// The file cannot be read.
    #[error("failed to read token at path '{}': {cause}", path.display())]
    Read {
        /// Path of the token file.
        path: PathBuf,
        /// The operating system's error.
        cause: std::io::Error,
    },
    /// The file is empty.
    #[error("token at path '{}' is empty", .0.display())]
    Empty(PathBuf),
}

/// A token and the validator to check it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) validator: TokenValidator,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("validator", &self.validator)
            .finish_non_exhaustive()
    }
}

/// Selects the token for each request, since token files rotate: an explicit file, the file named by the
/// environment, or the mounts of Kubernetes below `root`.
pub(crate) async fn select(
    explicit: Option<&Path>,
    mode: Mode,
    env: &Env,
    root: &Path,
) -> Result<Token, TokenError> {
    if let Some(path) = explicit {
        return Ok(Token {
            text: read(path).await?,
            validator: TokenValidator::Jwks,
        });
    }
    if let Some(path) = env(TOKEN_FILE_VARIABLE) {
        if path.is_empty() {
            return Err(TokenError::EmptyVariable);
        }
        let validator = match mode {
            Mode::Kubernetes => TokenValidator::Kubernetes,
            Mode::Standalone => TokenValidator::Jwks,
        };
        return Ok(Token {
            text: read(Path::new(&path)).await?,
            validator,
        });
    }
    match mode {
        Mode::Kubernetes => Ok(kubernetes(root).await),
        Mode::Standalone => Ok(none()),
    }
}

async fn kubernetes(root: &Path) -> Token {
    let path = root.join(KUBERNETES_TOKEN);
    let text = match read_text_async(&path).await {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let legacy = read_text_async(&root.join(LEGACY_KUBERNETES_TOKEN))
                .await
                .unwrap_or_default();
            if !legacy.is_empty() {
                tracing::warn!(
                    "using the service account token, which also grants access to the Kubernetes API, because {} \
                     does not exist; inject this pod again with a current sidecar injector",
                    path.display()
                );
            }
            legacy
        }
        Err(error) => {
            tracing::warn!(
                "cannot read the token {}: {error}; asking for a certificate without one",
                path.display()
            );
            String::new()
        }
    };
    match text.is_empty() {
        true => none(),
        false => Token {
            text,
            validator: TokenValidator::Kubernetes,
        },
    }
}

fn none() -> Token {
    Token {
        text: String::new(),
        validator: TokenValidator::Unknown,
    }
}

async fn read(path: &Path) -> Result<String, TokenError> {
    match read_text_async(path).await {
        Ok(text) if text.is_empty() => Err(TokenError::Empty(path.to_owned())),
        Ok(text) => Ok(text),
        Err(cause) => Err(TokenError::Read {
            path: path.to_owned(),
            cause,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(value: Option<String>) -> Env {
        Arc::new(move |name| value.clone().filter(|_| name == TOKEN_FILE_VARIABLE))
    }

    fn write(root: &Path, name: &str, text: &str) -> PathBuf {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    #[tokio::test]
    async fn prefers_explicit_file() {
        let root = tempfile::tempdir().unwrap();
        let file = write(root.path(), "mine", "abc");
        let other = write(root.path(), "other", "def");
        let env = env(Some(other.display().to_string()));
        let token = select(Some(&file), Mode::Kubernetes, &env, root.path())
            .await
            .unwrap();
        assert_eq!(
            (token.text.as_str(), token.validator),
            ("abc", TokenValidator::Jwks)
        );
    }

    #[tokio::test]
    async fn then_uses_environment() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), KUBERNETES_TOKEN, "mounted");
        let file = write(root.path(), "mine", "abc");
        let env = env(Some(file.display().to_string()));
        for (mode, validator) in [
            (Mode::Standalone, TokenValidator::Jwks),
            (Mode::Kubernetes, TokenValidator::Kubernetes),
        ] {
            let token = select(None, mode, &env, root.path()).await.unwrap();
            assert_eq!((token.text.as_str(), token.validator), ("abc", validator));
        }
    }

    #[tokio::test]
    async fn then_uses_kubernetes_mounts() {
        let root = tempfile::tempdir().unwrap();
        let kubernetes = |mode| {
            let (env, root) = (env(None), root.path().to_owned());
            async move { select(None, mode, &env, &root).await.unwrap() }
        };
        assert_eq!(kubernetes(Mode::Kubernetes).await, none());
        write(root.path(), LEGACY_KUBERNETES_TOKEN, "legacy");
        assert_eq!(kubernetes(Mode::Kubernetes).await.text, "legacy");
        write(root.path(), KUBERNETES_TOKEN, "mounted");
        let token = kubernetes(Mode::Kubernetes).await;
        assert_eq!(
            (token.text.as_str(), token.validator),
            ("mounted", TokenValidator::Kubernetes)
        );
        assert_eq!(kubernetes(Mode::Standalone).await, none());
    }

    #[tokio::test]
    async fn reports_unusable_files() {
        let root = tempfile::tempdir().unwrap();
        let empty = write(root.path(), "empty", "");
        let missing = root.path().join("missing");
        let pick = async |explicit: Option<&Path>, variable: Option<&str>| {
            let env = env(variable.map(str::to_owned));
            select(explicit, Mode::Kubernetes, &env, root.path())
                .await
                .unwrap_err()
        };
        assert!(matches!(pick(Some(&empty), None).await, TokenError::Empty(_)));
        assert!(matches!(
            pick(Some(&missing), None).await,
            TokenError::Read { .. }
        ));
        assert!(matches!(pick(None, Some("")).await, TokenError::EmptyVariable));
        assert!(matches!(
            pick(None, missing.to_str()).await,
            TokenError::Read { .. }
        ));
    }
}
