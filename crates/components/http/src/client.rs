use std::{net::IpAddr, time::Duration};

use outrigger_component::{Metadata, Result};
use outrigger_webclient::{MAX_REDIRECTS, builder, within};
use reqwest::{Client, Url, redirect::Policy};

use outrigger_tls::client_config;

/// Time to reach the server and to agree on keys.
pub(super) const CONNECT: Duration = Duration::from_secs(15);
/// A connection nobody uses ends after this.
const IDLE: Duration = Duration::from_secs(90);

/// Fields of the head of a response.
const MAX_FIELDS: usize = 1000;

/// A client with the TLS settings of the component. Proxies of the environment are used.
pub(super) fn build(metadata: &Metadata, url: &Url) -> Result<Client> {
    let roots = pem(metadata, "MTLSRootCA")?;
    let certificate = pem(metadata, "MTLSClientCert")?;
    let key = pem(metadata, "MTLSClientKey")?;
    let identity = match (&certificate, &key) {
        (Some(certificate), Some(key)) => Some((certificate.as_slice(), key.as_slice())),
        (None, None) => None,
        (Some(_), None) => {
            return Err(metadata
                .wrong(&["MTLSClientKey"], "MTLSClientCert needs it")
                .into());
        }
        (None, Some(_)) => {
            return Err(metadata
                .wrong(&["MTLSClientCert"], "MTLSClientKey needs it")
                .into());
        }
    };
    renegotiation(metadata)?;
    let tls = client_config(roots.as_deref(), identity).map_err(|error| {
        let property = error.among("MTLSRootCA", "MTLSClientCert", "MTLSClientKey");
        metadata.wrong(&[property], &error.to_string())
    })?;
    let mut builder = builder(tls).redirect(below(url.clone()));
    if is_local(url) {
        builder = builder.no_proxy();
    }
    let client = builder
        .connect_timeout(CONNECT)
        .pool_idle_timeout(IDLE)
        .http1_max_headers(MAX_FIELDS)
        .tcp_nodelay(true)
        .build();
    client.map_err(|error| metadata.wrong(&["url"], &error.to_string()).into())
}

/// Follows redirects that stay below the component's URL, like all of its requests. Others are the answer: the caller
/// may know what to do with it.
fn below(base: Url) -> Policy {
    Policy::custom(move |attempt| {
        if within(&base, attempt.url()) && attempt.previous().len() <= MAX_REDIRECTS {
            attempt.follow()
        } else {
            attempt.stop()
        }
    })
}

/// What is on this machine is reached without proxy.
fn is_local(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// A property that is PEM text, or the path of a file with it.
fn pem(metadata: &Metadata, name: &str) -> Result<Option<Vec<u8>>> {
    let Some(value) = metadata.filled(&[name]) else {
        return Ok(None);
    };
    if value.contains("-----BEGIN ") {
        return Ok(Some(value.as_bytes().to_vec()));
    }
    match outrigger_files::read(value.as_ref()) {
        Ok(text) => Ok(Some(text)),
        Err(error) => {
            let expected = format!("neither PEM nor the path of a file that can be read: {error}");
            Err(metadata.wrong(&[name], &expected).into())
        }
    }
}

/// Our TLS never renegotiates: it was how sessions got mixed up.
fn renegotiation(metadata: &Metadata) -> Result<()> {
    const NAME: &[&str] = &["MTLSRenegotiation"];
    match metadata.filled(NAME) {
        None | Some("RenegotiateNever") => Ok(()),
        Some("RenegotiateOnceAsClient" | "RenegotiateFreelyAsClient") => {
            tracing::warn!(
                target: super::LOG,
                "http binding {}: MTLSRenegotiation is ignored; a server that asks for renegotiation is refused",
                metadata.component()
            );
            Ok(())
        }
        Some(_) => {
            let expected =
                "RenegotiateNever, RenegotiateOnceAsClient or RenegotiateFreelyAsClient is expected";
            Err(metadata.wrong(NAME, expected).into())
        }
    }
}
