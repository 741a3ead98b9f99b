use std::{net::IpAddr, time::Duration};

use outrigger_component::{Metadata, Result};
use outrigger_webclient::{MAX_REDIRECTS, builder, within};
use reqwest::{Client, Url, redirect::Policy};

use outrigger_tls::client_config;

/// Timeout of connecting, including the TLS handshake.
pub(super) const CONNECT: Duration = Duration::from_secs(15);
/// Idle connections close after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// Maximum header fields of a response.
const MAX_FIELDS: usize = 1000;

/// A client with the component's TLS settings. It honours proxy variables.
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
    let mut builder = builder(tls).redirect(redirects_below(url.clone()));
    if is_local(url) {
        builder = builder.no_proxy();
    }
    let client = builder
        .connect_timeout(CONNECT)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .http1_max_headers(MAX_FIELDS)
        .tcp_nodelay(true)
        .build();
    client.map_err(|error| metadata.wrong(&["url"], &error.to_string()).into())
}

/// Follows redirects to URLs below the component's URL. Other redirects are returned to the caller.
fn redirects_below(base: Url) -> Policy {
    Policy::custom(move |attempt| {
        if within(&base, attempt.url()) && attempt.previous().len() <= MAX_REDIRECTS {
            attempt.follow()
        } else {
            attempt.stop()
        }
    })
}

/// Whether the host is local; local hosts bypass the proxy.
fn is_local(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// A property with PEM text, or the path of a PEM file.
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
            let expected = format!("neither PEM nor the path of a readable file: {error}");
            Err(metadata.wrong(&[name], &expected).into())
        }
    }
}

/// rustls never renegotiates: renegotiation has allowed session mix-ups.
fn renegotiation(metadata: &Metadata) -> Result<()> {
    const NAME: &[&str] = &["MTLSRenegotiation"];
    match metadata.filled(NAME) {
        None | Some("RenegotiateNever") => Ok(()),
        Some("RenegotiateOnceAsClient" | "RenegotiateFreelyAsClient") => {
            tracing::warn!(
                target: super::LOG,
                "http binding {}: MTLSRenegotiation is ignored; renegotiation is always refused",
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
