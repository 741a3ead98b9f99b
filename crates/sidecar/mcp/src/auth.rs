//! Headers that authenticate a request: OAuth 2.0 client credentials, or a JWT of this sidecar.

use http::{HeaderName, HeaderValue, header};
use outrigger_identity::Identity;
use outrigger_resources::mcp_server::{Auth, OAuth2};
use outrigger_webclient::{ClientCredentials, Token, TokenError};
use rustls::RootCertStore;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::Surroundings;
use crate::limits::TOKEN_MARGIN;

/// How requests to a server are authenticated.
pub(crate) enum Authentication {
    None,
    OAuth2(Box<Tokens>),
    Jwt {
        identity: Identity,
        header: HeaderName,
        prefix: String,
        audience: String,
    },
}

impl Authentication {
    /// As `auth` of a server says. Reads the client's secret.
    pub(crate) async fn new(auth: &Auth, with: &Surroundings, namespace: &str) -> Result<Self, String> {
        if let Some(oauth2) = &auth.oauth2 {
            let tokens = Tokens::new(oauth2, &auth.secret_store, with, namespace).await?;
            return Ok(Self::OAuth2(Box::new(tokens)));
        }
        let Some(jwt) = &auth.spiffe else {
            return Ok(Self::None);
        };
        let identity = with
            .identity
            .clone()
            .ok_or("auth.spiffe needs mTLS: enable mTLS, or remove it")?;
        Ok(Self::Jwt {
            identity,
            header: jwt
                .header
                .parse()
                .map_err(|_| format!("the header name {:?} is not valid", jwt.header))?,
            prefix: jwt.header_value_prefix.clone(),
            audience: jwt.audience.clone(),
        })
    }

    /// The header of a request.
    pub(crate) async fn header(&self) -> Result<Option<(HeaderName, HeaderValue)>, String> {
        let (name, value) = match self {
            Self::None => return Ok(None),
            Self::OAuth2(tokens) => (
                header::AUTHORIZATION,
                format!("Bearer {}", tokens.current().await?),
            ),
            Self::Jwt {
                identity,
                header,
                prefix,
                audience,
            } => (header.clone(), format!("{prefix}{}", jwt(identity, audience)?)),
        };
        let mut value = HeaderValue::try_from(value).map_err(|_| "the token is no value of a header")?;
        value.set_sensitive(true);
        Ok(Some((name, value)))
    }
}

/// The JWT of this sidecar for `audience`.
fn jwt(identity: &Identity, audience: &str) -> Result<String, String> {
    let svid = identity.svid();
    match (svid.jwt_for(audience), svid.jwt()) {
        (Some(jwt), _) => Ok(jwt.token().to_owned()),
        (None, None) => Err(format!(
            "SPIFFE JWT fetch failed: the CA issued no JWT for {audience}: enable JWTs in sentry"
        )),
        (None, Some(other)) => Err(format!(
            "SPIFFE JWT fetch failed: the CA issued JWTs for {}, not for {audience}: add it to \
             --sentry-request-jwt-audiences",
            other.audiences().join(", ")
        )),
    }
}

/// The tokens of an issuer.
pub(crate) struct Tokens {
    issuer: ClientCredentials,
    form: Vec<(&'static str, String)>,
    id: String,
    secret: String,
    /// The last token, and when another is requested.
    last: Mutex<Option<(String, Option<Instant>)>>,
}

impl Tokens {
    async fn new(oauth2: &OAuth2, store: &str, with: &Surroundings, namespace: &str) -> Result<Self, String> {
        let endpoint = ClientCredentials::endpoint_of(&oauth2.issuer)
            .ok_or_else(|| format!("auth.oauth2.issuer {:?} is not an HTTP URL", oauth2.issuer))?;
        let secret = oauth2
            .secret
            .as_ref()
            .ok_or("auth.oauth2.secretKeyRef is required for OAuth2 client credentials")?;
        let secret = (with.secret)(store.to_owned(), namespace.to_owned(), secret.clone()).await;
        let secret = secret.map_err(|why| format!("OAuth2 credential retrieval failed: {why}"))?;
        let roots = match endpoint.scheme() {
            "https" => outrigger_tls::system_roots(),
            _ => RootCertStore::empty(),
        };
        let tls = outrigger_tls::verifying(roots, None).map_err(|error| error.to_string())?;
        let issuer =
            ClientCredentials::new(endpoint, tls).map_err(|error| outrigger_webclient::causes(&error))?;
        let mut form = Vec::new();
        if !oauth2.scopes.is_empty() {
            form.push(("scope", oauth2.scopes.join(" ")));
        }
        if !oauth2.audience.is_empty() {
            form.push(("audience", oauth2.audience.clone()));
        }
        Ok(Self {
            issuer,
            form,
            id: oauth2.client_id.clone(),
            secret,
            last: Mutex::default(),
        })
    }

    /// A valid token. Concurrent calls wait for the same request.
    async fn current(&self) -> Result<String, String> {
        let mut last = self.last.lock().await;
        if let Some((token, until)) = &*last
            && until.is_none_or(|until| Instant::now() < until)
        {
            return Ok(token.clone());
        }
        let Token { access_token, valid } = self.request().await.map_err(|error| error.to_string())?;
        let until = valid.map(|valid| Instant::now() + valid.saturating_sub(TOKEN_MARGIN));
        *last = Some((access_token.clone(), until));
        Ok(access_token)
    }

    /// Requests a token with the secret in a header, and if the issuer rejects that, in the form.
    async fn request(&self) -> Result<Token, TokenError> {
        let account = Some((self.id.as_str(), self.secret.as_str()));
        match self.issuer.token(&self.form, account).await {
            Err(error) if !error.is_unavailable() => {
                let mut form = self.form.clone();
                form.push(("client_id", self.id.clone()));
                form.push(("client_secret", self.secret.clone()));
                self.issuer.token(&form, None).await
            }
            answered => answered,
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use jiff::{Timestamp, ToSpan};
    use outrigger_identity::testing::{Algorithm, Authority};
    use outrigger_identity::{JwtSvid, TrustAnchors};
    use serde_json::json;

    use super::*;

    fn token(audiences: &[&str]) -> String {
        let claims = json!({"aud": audiences, "exp": (Timestamp::now() + 1.hour()).as_second()});
        let encode = |part: String| URL_SAFE_NO_PAD.encode(part);
        format!("{}.{}.c2ln", encode("{}".to_owned()), encode(claims.to_string()))
    }

    fn parse(token: &str) -> JwtSvid {
        JwtSvid::parse(token, Timestamp::now()).unwrap()
    }

    #[test]
    fn presents_jwt_of_audience() {
        let authority = Authority::new("td", Algorithm::Ed25519);
        let identity = || authority.workload("ns", "app").into_svid();
        let anchors = || TrustAnchors::new(authority.bundle());
        let none = Identity::new(identity(), anchors());
        assert!(jwt(&none, "shop").unwrap_err().contains("enable JWTs in sentry"));

        let (common, shop) = (token(&["td", "bank", "shop"]), token(&["shop"]));
        let each = [("shop".to_owned(), parse(&shop))].into();
        let svid = identity().with_jwt(parse(&common)).with_audience_jwts(each);
        let both = Identity::new(svid, anchors());
        assert_eq!(jwt(&both, "shop"), Ok(shop));
        assert_eq!(jwt(&both, "bank"), Ok(common));
        let refused = jwt(&both, "elsewhere").unwrap_err();
        assert!(
            refused.contains("for td, bank, shop, not for elsewhere"),
            "{refused}"
        );
    }
}
