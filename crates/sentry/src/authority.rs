//! The authority as a whole: loaded from its files, or generated into them.

use std::{path::PathBuf, time::Duration};

use outrigger_identity::SpiffeId;

use crate::{
    config::{Config, JwtConfig},
    contents::Contents,
    jwt::{self, Algorithm, JwtAuthority, JwtFiles, TokenError},
    material::{self, File, MaterialError, MaterialStore, Paths},
    x509::{self, GenerateError, X509Authority},
};

const LOG: &str = "dapr.sentry.ca";

/// Everything that signs. Replaced as a whole when the files change.
#[derive(Debug)]
pub(crate) struct Authority {
    pub x509: X509Authority,
    /// Absent when no tokens are issued.
    pub jwt: Option<JwtAuthority>,
    /// What it was loaded from.
    pub files: Contents,
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
}

impl AuthoritySource {
    pub(crate) fn new(config: &Config, sentry: SpiffeId, skew: Duration) -> Self {
        Self {
            paths: config.paths.clone(),
            sentry,
            skew,
            jwt: config.jwt.clone(),
        }
    }

    /// Loads the authority at start. Where there is nothing yet it is generated and written; where only some of the
    /// files exist it is not, because what they signed would be worth nothing. The flag tells whether anything was
    /// generated. Blocking.
    pub(crate) fn load_or_generate(&self) -> Result<(Authority, bool), AuthorityError> {
        self.load_or_generate_on(&self.paths)
    }

    /// The same, with the files of a shelf.
    pub(crate) fn load_or_generate_on(
        &self,
        shelf: &dyn MaterialStore,
    ) -> Result<(Authority, bool), AuthorityError> {
        let (pem, new_pem) = match self.read_x509(shelf)? {
            FileSet::All([root, issuer, key]) => (x509::Pem { root, issuer, key }, false),
            FileSet::None(_) => (self.generate_x509(shelf)?, true),
            FileSet::Partial(incomplete) => return Err(incomplete.into()),
        };
        let x509 = x509::load(&pem).map_err(|fault| fault.at(&self.paths))?;
        let (jwt, new_jwt) = match &self.jwt {
            None => (None, false),
            Some(config) => {
                let (authority, new) = self.load_or_generate_jwt(shelf, config)?;
                (Some(authority), new)
            }
        };
        if !new_pem && !new_jwt {
            tracing::info!(target: LOG, "Root and issuer certs found: using credentials from store");
        }
        let files = Contents::read(shelf)?;
        Ok((Authority { x509, jwt, files }, new_pem || new_jwt))
    }

    /// Loads the authority again after a change. Nothing is generated: files are usually replaced one after the other,
    /// and whoever trusts the authority in use trusts no new one. Blocking.
    pub(crate) fn reload(&self) -> Result<Authority, AuthorityError> {
        self.reload_on(&self.paths)
    }

    /// The same, with the files of a shelf.
    pub(crate) fn reload_on(&self, shelf: &dyn MaterialStore) -> Result<Authority, AuthorityError> {
        self.read_x509(shelf)?.refuse_incomplete()?;
        if self.jwt.is_some() {
            self.read_jwt(shelf)?.refuse_incomplete()?;
        }
        Ok(self.load_or_generate_on(shelf)?.0)
    }

    fn generate_x509(&self, shelf: &dyn MaterialStore) -> Result<x509::Pem, AuthorityError> {
        tracing::info!(
            target: LOG,
            "Root and issuer certs not found: generating self signed CA and writing it to {}",
            material::folder(&self.paths.root).display()
        );
        let skew = time::Duration::try_from(self.skew).unwrap_or(time::Duration::MAX);
        let pem = x509::generate(&self.sentry, skew)?;
        shelf.create(File::IssuerKey, &pem.key)?;
        shelf.create(File::Issuer, &pem.issuer)?;
        shelf.create(File::Root, &pem.root)?;
        Ok(pem)
    }

    fn load_or_generate_jwt(
        &self,
        shelf: &dyn MaterialStore,
        config: &JwtConfig,
    ) -> Result<(JwtAuthority, bool), AuthorityError> {
        let (files, config, new) = match self.read_jwt(shelf)? {
            FileSet::All([key, jwks]) => (JwtFiles { key, jwks }, config.clone(), false),
            FileSet::Partial(incomplete) => return Err(incomplete.into()),
            FileSet::None(_) => {
                if config.algorithm != Algorithm::Rs256 {
                    tracing::warn!(
                        target: LOG,
                        "The generated JWT key is for RS256, not {}: provide a key of your own or drop \
                         --jwt-signing-algorithm, the next start will insist on it",
                        config.algorithm
                    );
                }
                let key_id = config.key_id.as_deref();
                let config = JwtConfig {
                    algorithm: Algorithm::Rs256,
                    ..config.clone()
                };
                (self.generate_jwt(shelf, key_id)?, config, true)
            }
        };
        let authority =
            JwtAuthority::load(&files, &config, self.skew).map_err(|fault| fault.at(&self.paths))?;
        tracing::info!(target: LOG, "JWT issuing enabled");
        Ok((authority, new))
    }

    fn generate_jwt(
        &self,
        shelf: &dyn MaterialStore,
        key_id: Option<&str>,
    ) -> Result<JwtFiles, AuthorityError> {
        tracing::info!(target: LOG, "Generating JWT signing key and persisting to store");
        let files = jwt::generate(key_id).map_err(|_: TokenError| AuthorityError::GenerateJwt)?;
        shelf.create(File::JwtKey, &files.key)?;
        shelf.create(File::Jwks, &files.jwks)?;
        Ok(files)
    }

    fn read_x509(&self, shelf: &dyn MaterialStore) -> Result<FileSet<3>, MaterialError> {
        FileSet::read(shelf, &self.paths, [File::Root, File::Issuer, File::IssuerKey])
    }

    fn read_jwt(&self, shelf: &dyn MaterialStore) -> Result<FileSet<2>, MaterialError> {
        FileSet::read(shelf, &self.paths, [File::JwtKey, File::Jwks])
    }
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
    fn read(shelf: &dyn MaterialStore, paths: &Paths, files: [File; N]) -> Result<Self, MaterialError> {
        let mut contents = Vec::with_capacity(N);
        let (mut found, mut missing) = (Vec::new(), None);
        for file in files {
            let path = paths.of(file).to_owned();
            match shelf.read(file)? {
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
