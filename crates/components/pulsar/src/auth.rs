//! Authentication to brokers: a token, static or from an OAuth 2.0 issuer (client credentials grant, RFC
//! 6749).

use std::{
    path::Path,
    time::{Duration, Instant},
};

use outrigger_component::{Error, Kind, Metadata, MetadataError, Result};
use outrigger_webclient::{ClientCredentials, Token, causes};
use serde::Deserialize;
use tokio::sync::Mutex;

const ENDPOINT: &[&str] = &["oauth2TokenURL"];
const FILE: &[&str] = &["oauth2CredentialsFile"];
/// A token with less remaining validity is not used.
const EXPIRY_MARGIN: Duration = Duration::from_secs(30);

/// Credentials sent to brokers.
pub(super) enum Credentials {
    None,
    Token(String),
    Issuer(Box<Issuer>),
}

/// A token issuer.
pub(super) struct Issuer {
    grant: ClientCredentials,
    id: String,
    secret: String,
    form: Vec<(&'static str, String)>,
    /// The last token, and the end of its use.
    last: Mutex<Option<(String, Instant)>>,
}

/// The file of `oauth2CredentialsFile`, in the format of Pulsar's clients.
#[derive(Deserialize)]
struct File {
    client_id: String,
    client_secret: String,
    issuer_url: Option<String>,
}

impl Credentials {
    pub(super) fn read(metadata: &Metadata) -> Result<Self> {
        if let Some(token) = metadata.filled(&["token"]) {
            return Ok(Self::Token(token.to_owned()));
        }
        let file = file(metadata)?;
        let endpoint = metadata.filled(ENDPOINT).map(str::to_owned);
        let endpoint = endpoint.or_else(|| file.as_ref().and_then(|file| file.issuer_url.clone()));
        let Some(endpoint) = endpoint else {
            return match &file {
                Some(_) => Err(metadata
                    .wrong(FILE, "it has no issuer_url: set oauth2TokenURL")
                    .into()),
                None => Ok(Self::None),
            };
        };
        let endpoint = ClientCredentials::endpoint_of(&endpoint)
            .ok_or_else(|| metadata.wrong(ENDPOINT, "an http:// or https:// URL is expected"))?;
        let (id, secret) = match file {
            Some(file) => (file.client_id, file.client_secret),
            None => (
                metadata.required(&["oauth2ClientID"])?.to_owned(),
                secret(metadata)?,
            ),
        };
        let mut form = Vec::new();
        for audience in parts(metadata, "oauth2Audiences") {
            form.push(("audience", audience));
        }
        let scopes = parts(metadata, "oauth2Scopes");
        if !scopes.is_empty() {
            form.push(("scope", scopes.join(" ")));
        }
        let root = metadata.filled(&["oauth2TokenCAPEM"]).map(str::as_bytes);
        let tls = outrigger_tls::client_config(root, None)
            .map_err(|error| metadata.wrong(&["oauth2TokenCAPEM"], &error.to_string()))?;
        let grant = ClientCredentials::new(endpoint, tls)
            .map_err(|error| metadata.wrong(ENDPOINT, &causes(&error)))?;
        Ok(Self::Issuer(Box::new(Issuer {
            grant,
            id,
            secret,
            form,
            last: Mutex::new(None),
        })))
    }

    /// Name of the authentication method, and the credentials.
    pub(super) async fn shown(&self) -> Result<(Option<String>, Option<Vec<u8>>)> {
        let token = match self {
            Self::None => return Ok((None, None)),
            Self::Token(token) => token.clone(),
            Self::Issuer(issuer) => issuer.token().await?,
        };
        Ok((Some("token".to_owned()), Some(token.into_bytes())))
    }
}

fn parts(metadata: &Metadata, name: &str) -> Vec<String> {
    let text = metadata.filled(&[name]).unwrap_or_default();
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

fn read(metadata: &Metadata, name: &[&str], path: &str) -> Result<Vec<u8>, MetadataError> {
    outrigger_files::read(Path::new(path))
        .map_err(|error| metadata.wrong(name, &format!("the file cannot be read: {error}")))
}

fn file(metadata: &Metadata) -> Result<Option<File>, MetadataError> {
    let Some(path) = metadata.filled(FILE) else {
        return Ok(None);
    };
    let text = read(metadata, FILE, path)?;
    // serde's error text would show its content.
    serde_json::from_slice(&text).map(Some).map_err(|_| {
        metadata.wrong(
            FILE,
            "a JSON object with client_id and client_secret is expected in it",
        )
    })
}

fn secret(metadata: &Metadata) -> Result<String, MetadataError> {
    const PATH: &[&str] = &["oauth2ClientSecretPath"];
    let Some(path) = metadata.filled(PATH) else {
        return metadata.required(&["oauth2ClientSecret"]).map(str::to_owned);
    };
    let text = String::from_utf8(read(metadata, PATH, path)?);
    let text = text.map_err(|_| metadata.wrong(PATH, "the file is not UTF-8 text"))?;
    Ok(text.trim().to_owned())
}

impl Issuer {
    async fn token(&self) -> Result<String> {
        let mut last = self.last.lock().await;
        if let Some((token, until)) = &*last
            && Instant::now() < *until
        {
            return Ok(token.clone());
        }
        let given = self.ask().await?;
        // Without a validity, the next connection fetches a new token.
        let valid = given.valid.unwrap_or_default();
        let until = Instant::now().checked_add(valid.saturating_sub(EXPIRY_MARGIN));
        *last = until.map(|until| (given.access_token.clone(), until));
        Ok(given.access_token)
    }

    async fn ask(&self) -> Result<Token> {
        let account = (self.id.as_str(), self.secret.as_str());
        let token = self.grant.token(&self.form, Some(account)).await;
        token.map_err(|error| {
            let kind = if error.is_unavailable() {
                Kind::Unavailable
            } else {
                Kind::Denied
            };
            Error::new(kind, error.to_string())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(properties: &[(&str, &str)]) -> Result<Credentials> {
        let owned = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Credentials::read(&Metadata::new("broker", owned).unwrap())
    }

    #[tokio::test]
    async fn token_overrides_oauth2() {
        let token = read(&[("token", "secret"), ("oauth2TokenURL", "https://a")]).unwrap();
        let shown = token.shown().await.unwrap();
        assert_eq!(shown, (Some("token".to_owned()), Some(b"secret".to_vec())));
        assert_eq!(read(&[]).unwrap().shown().await.unwrap(), (None, None));
    }

    #[test]
    fn names_invalid_property_and_hides_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credentials.json");
        std::fs::write(&file, r#"{"client_id":"a","client_secret":"hidden"}"#).unwrap();
        let good = file.to_str().unwrap();
        let damaged = folder.path().join("damaged.json");
        std::fs::write(&damaged, r#"{"client_secret":"hidden"}"#).unwrap();
        for (name, properties) in [
            ("oauth2TokenURL", vec![("oauth2TokenURL", "ftp://a")]),
            ("oauth2ClientID", vec![("oauth2TokenURL", "https://a")]),
            (
                "oauth2ClientSecret",
                vec![("oauth2TokenURL", "https://a"), ("oauth2ClientID", "a")],
            ),
            (
                "oauth2ClientSecretPath",
                vec![
                    ("oauth2TokenURL", "https://a"),
                    ("oauth2ClientID", "a"),
                    ("oauth2ClientSecretPath", "/nowhere/at/all"),
                ],
            ),
            ("oauth2CredentialsFile", vec![("oauth2CredentialsFile", good)]),
            (
                "oauth2CredentialsFile",
                vec![("oauth2CredentialsFile", damaged.to_str().unwrap())],
            ),
            (
                "oauth2TokenCAPEM",
                vec![
                    ("oauth2CredentialsFile", good),
                    ("oauth2TokenURL", "https://a"),
                    ("oauth2TokenCAPEM", "no PEM"),
                ],
            ),
        ] {
            let error = read(&properties).map(drop).unwrap_err().to_string();
            assert!(
                error.contains(name) && !error.contains("hidden"),
                "{name}: {error}"
            );
        }
        read(&[("oauth2CredentialsFile", good), ("oauth2TokenURL", "https://a")]).unwrap();
    }
}
