//! The authority as a whole: loads it from its files, or generates it.

use std::{path::PathBuf, time::Duration};

use outrigger_identity::SpiffeId;
use time::OffsetDateTime;

use crate::{
    config::{Config, JwtConfig},
    contents::Contents,
    jwt::{self, Algorithm, JwtAuthority, JwtFiles, TokenError},
    material::{self, File, MaterialError, MaterialStore, Paths},
    rotation::{self, Advanced, Rotation, RotationStep, Status, Terms},
    settings::Settings,
    x509::{self, GenerateError, X509Authority},
};

const LOG: &str = "dapr.sentry.ca";
/// Location of the rotation's record, for the log.
const RECORD: &str = "ca-rotation.json (in Kubernetes that key of the Secret dapr-trust-bundle)";

/// All signing material. Replaced as a whole when the files change.
#[derive(Debug)]
pub(crate) struct Authority {
    pub x509: X509Authority,
    /// `None` if no tokens are issued.
    pub jwt: Option<JwtAuthority>,
    /// Contents of the files it was loaded from.
    pub files: Contents,
    /// The previous CA, while its root is trusted. Sentry presents certificates of it, so that peers with the
    /// old roots can connect.
    pub previous: Option<X509Authority>,
    /// State of the rotation.
    pub rotation: Status,
    /// Timing of the rotation.
    pub terms: Terms,
}

impl Authority {
    /// The CA that signs sentry's own certificates.
    pub(crate) fn presented(&self, now: OffsetDateTime) -> &X509Authority {
        let is_shown = |before: &&X509Authority| self.terms.shows_previous(before.not_after(), now);
        self.previous.as_ref().filter(is_shown).unwrap_or(&self.x509)
    }
}

/// Why the authority cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The files cannot be used.
    #[error(transparent)]
    Material(#[from] MaterialError),
    /// Certificates cannot be generated.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// A JWT key cannot be generated.
    #[error("cannot generate a JWT signing key")]
    GenerateJwt,
}

/// Source and settings of an authority.
#[derive(Debug, Clone)]
pub(crate) struct AuthoritySource {
    pub paths: Paths,
    pub sentry: SpiffeId,
    pub skew: Duration,
    pub jwt: Option<JwtConfig>,
    pub rotation: Rotation,
}

impl AuthoritySource {
    pub(crate) fn new(config: &Config, sentry: SpiffeId, settings: &Settings) -> Self {
        Self {
            paths: config.paths.clone(),
            rotation: Rotation {
                mode: config.rotation,
                terms: Terms::new(settings.workload_ttl, settings.skew),
                sentry: sentry.clone(),
                skew: span(settings.skew),
            },
            sentry,
            skew: settings.skew,
            jwt: config.jwt.clone(),
        }
    }

    /// Loads the authority at start. If no files exist, it is generated and written. If only some exist, it
    /// is not: their signatures would not match a new authority. The flag tells whether anything was
    /// generated. Blocking.
    pub(crate) fn load_or_generate(&self) -> Result<(Authority, bool), AuthorityError> {
        self.paths.recover()?;
        self.load_or_generate_on(&self.paths)
    }

    /// Like [`Self::load_or_generate`], on a given store.
    pub(crate) fn load_or_generate_on(
        &self,
        store: &dyn MaterialStore,
    ) -> Result<(Authority, bool), AuthorityError> {
        let new = match self.read_x509(store)? {
            FileSet::All(_) => false,
            FileSet::None(_) => {
                self.generate_x509(store)?;
                true
            }
            FileSet::Partial(incomplete) => return Err(incomplete.into()),
        };
        let (authority, written) = self.settle(store, false)?;
        if !new && !written {
            tracing::info!(target: LOG, "Root and issuer certs found: using credentials from store");
        }
        Ok((authority, new || written))
    }

    /// Reloads the authority, after a change or to check whether its rotation is due. Never generates another
    /// one: files are usually replaced one by one, and peers would not trust a new authority. The flag tells
    /// whether anything was written. Blocking.
    pub(crate) fn reload(&self, in_use: &Authority) -> Result<(Authority, bool), AuthorityError> {
        let settled = Contents::read(&self.paths)? == in_use.files;
        self.reload_on(&self.paths, settled)
    }

    /// Like [`Self::reload`], on a given store. `settled` means that the files are in use and published
    /// unchanged.
    pub(crate) fn reload_on(
        &self,
        store: &dyn MaterialStore,
        settled: bool,
    ) -> Result<(Authority, bool), AuthorityError> {
        self.read_x509(store)?.refuse_incomplete()?;
        if self.jwt.is_some() {
            self.read_jwt(store)?.refuse_incomplete()?;
        }
        self.settle(store, settled)
    }

    /// Takes the due step of the rotation, loads the result and stores it. Only files that load are written.
    fn settle(&self, store: &dyn MaterialStore, settled: bool) -> Result<(Authority, bool), AuthorityError> {
        let (jwt, new_jwt) = match &self.jwt {
            None => (None, false),
            Some(config) => {
                let (authority, new) = self.load_or_generate_jwt(store, config)?;
                (Some(authority), new)
            }
        };
        let mut files = Contents::read(store)?;
        let advanced = self
            .rotation
            .advance(&mut files, OffsetDateTime::now_utc(), settled)?;
        let pem = |file| files.get(file).unwrap_or_default().to_vec();
        let x509 = x509::load(&x509::Pem {
            root: pem(File::Root),
            issuer: pem(File::Issuer),
            key: pem(File::IssuerKey),
        });
        let x509 = x509.map_err(|fault| fault.at(&self.paths))?;
        for file in &advanced.changed {
            store.replace(*file, files.get(*file).unwrap_or_default())?;
        }
        log_advance(&advanced, settled);
        let previous = rotation::previous(&files).and_then(|previous| x509::load(&previous).ok());
        let authority = Authority {
            x509,
            jwt,
            previous,
            rotation: advanced.status,
            terms: self.rotation.terms,
            files,
        };
        Ok((authority, new_jwt || !advanced.changed.is_empty()))
    }

    fn generate_x509(&self, store: &dyn MaterialStore) -> Result<(), AuthorityError> {
        tracing::info!(
            target: LOG,
            "Root and issuer certs not found: generating self signed CA and writing it to {}",
            material::folder(&self.paths.root).display()
        );
        let pem = x509::generate(&self.sentry, span(self.skew), OffsetDateTime::now_utc())?;
        // The root comes last: a reader that sees it finds the other files.
        store.create(&[
            (File::IssuerKey, &pem.key),
            (File::Issuer, &pem.issuer),
            (File::Rotation, &Rotation::begin(&pem.issuer)),
            (File::Root, &pem.root),
        ])?;
        Ok(())
    }

    fn load_or_generate_jwt(
        &self,
        store: &dyn MaterialStore,
        config: &JwtConfig,
    ) -> Result<(JwtAuthority, bool), AuthorityError> {
        let (files, config, new) = match self.read_jwt(store)? {
            FileSet::All([key, jwks]) => (JwtFiles { key, jwks }, config.clone(), false),
            FileSet::Partial(incomplete) => return Err(incomplete.into()),
            FileSet::None(_) => {
                if config.algorithm != Algorithm::Rs256 {
                    tracing::warn!(
                        target: LOG,
                        "the generated JWT key is for RS256, not {}: provide your own key or drop \
                         --jwt-signing-algorithm; otherwise the next start fails",
                        config.algorithm
                    );
                }
                let key_id = config.key_id.as_deref();
                let config = JwtConfig {
                    algorithm: Algorithm::Rs256,
                    ..config.clone()
                };
                (self.generate_jwt(store, key_id)?, config, true)
            }
        };
        let authority =
            JwtAuthority::load(&files, &config, self.skew).map_err(|fault| fault.at(&self.paths))?;
        tracing::info!(target: LOG, "JWT issuing enabled");
        Ok((authority, new))
    }

    fn generate_jwt(
        &self,
        store: &dyn MaterialStore,
        key_id: Option<&str>,
    ) -> Result<JwtFiles, AuthorityError> {
        tracing::info!(target: LOG, "Generating JWT signing key and persisting to store");
        let files = jwt::generate(key_id).map_err(|_: TokenError| AuthorityError::GenerateJwt)?;
        store.create(&[(File::JwtKey, &files.key), (File::Jwks, &files.jwks)])?;
        Ok(files)
    }

    fn read_x509(&self, store: &dyn MaterialStore) -> Result<FileSet<3>, MaterialError> {
        FileSet::read(store, &self.paths, [File::Root, File::Issuer, File::IssuerKey])
    }

    fn read_jwt(&self, store: &dyn MaterialStore) -> Result<FileSet<2>, MaterialError> {
        FileSet::read(store, &self.paths, [File::JwtKey, File::Jwks])
    }
}

fn log_advance(advanced: &Advanced, settled: bool) {
    let status = advanced.status;
    if advanced.step == Some(RotationStep::Renew) {
        tracing::warn!(
            target: LOG,
            "the CA has expired and peers reject its certificates: a new CA signs from now on. Restart, with the new \
             ca.crt, every process that does not have its root yet. The old key is kept in {RECORD} in case this \
             machine's clock is wrong. {status}"
        );
    } else if advanced.step.is_some() {
        tracing::info!(target: LOG, "rotation of the CA: {status}");
    } else if !advanced.changed.is_empty() {
        tracing::warn!(target: LOG, "repaired the files of the CA, which did not match its rotation. {status}");
    } else if advanced.mismatched && !settled {
        tracing::warn!(
            target: LOG,
            "the files of the CA do not match its rotation and are used unchanged because of --ca-rotation=off: \
             another mode would restore the next CA. To end this rotation, write {{}} into {RECORD}"
        );
    }
}

fn span(duration: Duration) -> time::Duration {
    time::Duration::try_from(duration).unwrap_or(time::Duration::MAX)
}

/// A set of files that belong together.
enum FileSet<const N: usize> {
    All([Vec<u8>; N]),
    /// No file exists.
    None([PathBuf; N]),
    /// Some files are missing.
    Partial(MaterialError),
}

impl<const N: usize> FileSet<N> {
    fn read(store: &dyn MaterialStore, paths: &Paths, files: [File; N]) -> Result<Self, MaterialError> {
        let mut contents = Vec::with_capacity(N);
        let (mut found, mut missing) = (Vec::new(), None);
        for file in files {
            let path = paths.of(file).to_owned();
            match store.read(file)? {
                Some(read) => {
                    contents.push(read);
                    found.push(path);
                }
                None => missing = Some(path),
            }
        }
        Ok(match (<[Vec<u8>; N]>::try_from(contents), missing) {
            (Ok(all), _) => Self::All(all),
            (Err(_), Some(missing)) if !found.is_empty() => {
                Self::Partial(MaterialError::Incomplete { missing, found })
            }
            _ => Self::None(files.map(|file| paths.of(file).to_owned())),
        })
    }

    fn refuse_incomplete(self) -> Result<(), MaterialError> {
        match self {
            Self::Partial(incomplete) => Err(incomplete),
            Self::None(missing) => Err(MaterialError::Gone {
                missing: missing.into(),
            }),
            Self::All(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
