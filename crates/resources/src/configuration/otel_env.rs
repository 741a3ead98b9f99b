//! OpenTelemetry's environment variables, for sidecars whose Configuration names no collector.

use std::time::Duration;

use super::Tracing;

impl Tracing {
    /// Fills in what the `OTEL_EXPORTER_OTLP_*` variables say, unless an OTLP endpoint is configured.
    /// Malformed headers and timeouts are errors.
    pub fn apply_env(&mut self, env: impl Fn(&str) -> Option<String>) -> Result<(), String> {
        if !self.otel.endpoint.is_empty() {
            return Ok(());
        }
        let first = |what: &str| -> Option<(String, String)> {
            [
                format!("OTEL_EXPORTER_OTLP_TRACES_{what}"),
                format!("OTEL_EXPORTER_OTLP_{what}"),
            ]
            .into_iter()
            .find_map(|name| {
                env(&name)
                    .filter(|value| !value.is_empty())
                    .map(|value| (name, value))
            })
        };
        if let Some((_, endpoint)) = first("ENDPOINT") {
            let endpoint = endpoint.strip_prefix("http://").unwrap_or(&endpoint);
            let endpoint = endpoint.strip_prefix("https://").unwrap_or(endpoint);
            self.otel.endpoint = endpoint.to_owned();
            if self.sampling_rate.is_empty() {
                self.sampling_rate = "1".to_owned();
            }
            let http = first("PROTOCOL").is_some_and(|(_, protocol)| protocol.starts_with("http"));
            self.otel.protocol = if http { "http" } else { "grpc" }.to_owned();
            if env("OTEL_EXPORTER_OTLP_INSECURE").as_deref() == Some("true") {
                self.otel.secure = false;
            }
        }
        if let Some((name, headers)) = first("HEADERS") {
            for pair in headers.split(',') {
                self.otel
                    .headers
                    .push(header(pair).map_err(|what| format!("{name}: {what}"))?);
            }
        }
        if let Some((name, timeout)) = first("TIMEOUT") {
            let millis: i64 = timeout
                .parse()
                .map_err(|_| format!("{name}: {timeout:?} is not a whole number of milliseconds"))?;
            self.otel.timeout = u64::try_from(millis)
                .ok()
                .filter(|ms| *ms > 0)
                .map(Duration::from_millis);
        }
        Ok(())
    }
}

/// `k=v`, the value percent-decoded, both trimmed.
fn header(pair: &str) -> Result<(String, String), String> {
    let (name, value) = pair
        .split_once('=')
        .ok_or_else(|| format!("{pair:?} is not a header as name=value"))?;
    let name = name.trim();
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(token) {
        return Err(format!("{name:?} is not a header name"));
    }
    let value =
        percent_decoded(value).ok_or_else(|| format!("the value of {name:?} is not percent-encoded text"))?;
    Ok((name.to_owned(), value.trim().to_owned()))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut nibble = || bytes.next().and_then(|b| char::from(b).to_digit(16));
        let (high, low) = (nibble()?, nibble()?);
        out.push((high * 16 + low) as u8);
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(tracing: &mut Tracing, vars: &[(&str, &str)]) -> Result<(), String> {
        tracing.apply_env(|name| {
            vars.iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| (*v).to_owned())
        })
    }

    #[test]
    fn an_endpoint_turns_export_on() {
        let mut t = Tracing::default();
        let vars = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://ignored:1"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://collector:4317"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_INSECURE", "true"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=b%20c, d = e"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
        ];
        apply(&mut t, &vars).unwrap();
        assert_eq!(
            (t.otel.endpoint.as_str(), t.otel.protocol.as_str()),
            ("collector:4317", "http")
        );
        assert_eq!((t.sampling_rate.as_str(), t.otel.secure), ("1", false));
        assert_eq!(
            t.otel.headers,
            [("a".into(), "b c".into()), ("d".into(), "e".into())]
        );
        assert_eq!(t.otel.timeout, Some(Duration::from_millis(2500)));
    }

    #[test]
    fn a_configured_endpoint_wins() {
        let mut t = Tracing::default();
        t.otel.endpoint = "mine:1".into();
        let before = t.clone();
        apply(
            &mut t,
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "other:1"),
                ("OTEL_EXPORTER_OTLP_HEADERS", "bad"),
            ],
        )
        .unwrap();
        assert_eq!(t, before);
    }

    #[test]
    fn malformed_values_are_errors() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_HEADERS", "nothing"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=c"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=%zz"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1s"),
        ] {
            let error = apply(&mut Tracing::default(), &[(name, value)]).unwrap_err();
            assert!(error.starts_with(name), "{error}");
        }
    }
}
