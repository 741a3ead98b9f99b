//! The authority as a whole: loaded from its files, or generated into them.

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
/// Where the record of the rotation is, for the log.
const RECORD: &str = "ca-rotation.json (in Kubernetes that key of the Secret dapr-trust-bundle)";

/// Everything that signs. Replaced as a whole when the files change.
#[derive(Debug)]
pub(crate) struct Authority {
    pub x509: X509Authority,
    /// Absent when no tokens are issued.
    pub jwt: Option<JwtAuthority>,
    /// The contents of the files that it was loaded from.
    pub files: Contents,
    /// The CA before, while its root is trusted: sentry shows certificates of it, so that those find it who were
    /// started with the roots of that time.
    pub previous: Option<X509Authority>,
    /// Where its rotation stands.
    pub rotation: Status,
    /// How long its rotation takes.
    pub terms: Terms,
}

impl Authority {
    /// The CA that signs the certificates of sentry itself.
    pub(crate) fn shown(&self, now: OffsetDateTime) -> &X509Authority {
        let is_shown = |before: &&X509Authority| self.terms.shows_previous(before.not_after(), now);
        self.previous.as_ref().filter(is_shown).unwrap_or(&self.x509)
    }
}

/// The authority cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The files cannot be used.
    #[error(transparent)]
    Material(#[from] MaterialError),
    /// New certificates cannot be made.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// A new JWT key cannot be made.
    #[error("cannot generate a JWT signing key")]
    GenerateJwt,
}

/// Where an authority comes from and what it is for.
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

    /// Loads the authority at start. Where there is nothing yet it is generated and written; where only some of the
    /// files exist it is not, because what they signed would be worth nothing. The flag tells whether anything was
    /// generated. Blocking.
    pub(crate) fn load_or_generate(&self) -> Result<(Authority, bool), AuthorityError> {
        self.paths.recover()?;
        self.load_or_generate_on(&self.paths)
    }

    /// The same, with the files of a store.
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

    /// Loads the authority again, after a change or to see whether its rotation is due. No other is generated: files
    /// are usually replaced one after the other, and whoever trusts the authority in use trusts no new one. The flag
    /// tells whether anything was written. Blocking.
    pub(crate) fn reload(&self, in_use: &Authority) -> Result<(Authority, bool), AuthorityError> {
        let settled = Contents::read(&self.paths)? == in_use.files;
        self.reload_on(&self.paths, settled)
    }

    /// The same, with the files of a store; `settled`: they are in use and published as they are.
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

    /// Takes the step of the rotation that is due, loads what comes of it, and keeps it. Nothing is written that cannot
    /// be loaded.
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
        // The root last: whoever waits for it finds the rest.
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
                        "the generated JWT key is for RS256, not {}: provide a key of your own or drop \
                         --jwt-signing-algorithm, the next start fails otherwise",
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
            "the CA has expired, peers do not trust its certificates: another one signs from now on. Restart, with \
             the new ca.crt, every process that did not get its root before; the old key is kept in \
             {RECORD} for now, in case the clock of this machine is wrong. {status}"
        );
    } else if advanced.step.is_some() {
        tracing::info!(target: LOG, "rotation of the CA: {status}");
    } else if !advanced.changed.is_empty() {
        tracing::warn!(target: LOG, "repaired the files of the CA, which did not match its rotation. {status}");
    } else if advanced.left && !settled {
        tracing::warn!(
            target: LOG,
            "the files of the CA do not match its rotation, and are used unchanged because of --ca-rotation=off: \
             another mode would restore the next CA. To end this rotation for good, write {{}} into {RECORD}"
        );
    }
}

fn span(duration: Duration) -> time::Duration {
    time::Duration::try_from(duration).unwrap_or(time::Duration::MAX)
}

/// Files that belong together.
enum FileSet<const N: usize> {
    All([Vec<u8>; N]),
    /// None exists.
    None([PathBuf; N]),
    /// Some exist, others do not.
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
