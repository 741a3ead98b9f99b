//! Reads and validates the `mtls` settings of the Configuration file.

use std::{path::Path, time::Duration};

use outrigger_resources::{
    Configuration,
    configuration::{self, Mtls, TokenValidator, ValueChecks},
    value::go_duration,
};

/// Default lifetime of workload certificates.
const DEFAULT_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Default tolerance for slow clocks.
const DEFAULT_SKEW: Duration = Duration::from_secs(15 * 60);

/// Settings of the Configuration.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Lifetime of workload certificates.
    pub workload_ttl: Duration,
    /// How far certificates and tokens are backdated.
    pub skew: Duration,
    /// Options of the JWKS validator; `None` if callers need no token.
    pub jwks: Option<JwksOptions>,
}

/// Options of the JWKS validator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JwksOptions {
    /// URL, file, or the set itself, optionally in base64.
    pub source: String,
    /// CA for HTTPS sources, path or PEM; empty means the system's.
    pub ca_certificate: String,
    /// Minimum time between two fetches of a URL.
    pub min_refresh: Duration,
    /// Timeout of a fetch.
    pub request_timeout: Duration,
}

/// Why the Configuration file cannot be used, one line per problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct SettingsError(pub Vec<String>);

impl Settings {
    /// Loads the Configuration file.
    pub(crate) fn load(file: &Path, env: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let loaded = configuration::load(&[file], &ValueChecks::default(), env)
            .map_err(|problems| SettingsError(problems.iter().map(ToString::to_string).collect()))?;
        for warning in &loaded.warnings {
            tracing::warn!(target: "dapr.sentry.config", "{warning}");
        }
        let in_file = |problem: String| format!("{}: spec.mtls: {problem}", file.display());
        Self::new(&loaded.configuration.mtls)
            .map_err(|problems| SettingsError(problems.into_iter().map(in_file).collect()))
    }

    /// Parses the JSON of a Configuration in a cluster; `name` is for errors.
    pub(crate) fn from_json(name: &str, json: &[u8]) -> Result<Self, SettingsError> {
        let configuration = Configuration::from_json(json)
            .map_err(|problem| SettingsError(vec![format!("Configuration {name}: {problem}")]))?;
        let in_it = |problem: String| format!("Configuration {name}: spec.mtls: {problem}");
        Self::new(&configuration.mtls)
            .map_err(|problems| SettingsError(problems.into_iter().map(in_it).collect()))
    }

    fn new(mtls: &Mtls) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let mut duration = |key: &str, text: &str, default: Duration| {
            if text.is_empty() {
                return default;
            }
            go_duration(text).unwrap_or_else(|error| {
                problems.push(format!("{key}: {error}; want a duration like 24h or 15m"));
                default
            })
        };
        let workload_ttl = duration("workloadCertTTL", &mtls.workload_cert_ttl, DEFAULT_TTL);
        let skew = duration("allowedClockSkew", &mtls.allowed_clock_skew, DEFAULT_SKEW);
        let mut jwks = None;
        for (index, validator) in mtls.token_validators.iter().enumerate() {
            match JwksOptions::new(validator) {
                Ok(options) => jwks = Some(options),
                Err(problem) => problems.push(format!("tokenValidators[{index}]: {problem}")),
            }
        }
        if problems.is_empty() {
            Ok(Self {
                workload_ttl,
                skew,
                jwks,
            })
        } else {
            Err(problems)
        }
    }
}

impl JwksOptions {
    fn new(validator: &TokenValidator) -> Result<Self, String> {
        let name = validator.name.to_lowercase();
        match name.as_str() {
            "jwks" => {}
            "kubernetes" | "insecure" => {
                return Err(format!(
                    "validator \"{name}\" is built-in and cannot be configured manually"
                ));
            }
            _ => {
                return Err(format!(
                    "invalid validator name \"{}\"; supported values: 'jwks'",
                    validator.name
                ));
            }
        }
        let text = |key: &str| validator.options.get(key).map(String::as_str).unwrap_or_default();
        // Tiny values count as mistakes and are ignored, as in Dapr.
        let duration = |key: &str, default: Duration, floor: Duration| {
            let value = loose_duration(text(key)).map_err(|error| format!("option {key}: {error}"))?;
            Ok::<_, String>(if value > floor { value } else { default })
        };
        if text("source").is_empty() {
            return Err("option source is required: a URL, a file, or a JWK set".to_owned());
        }
        Ok(Self {
            source: text("source").to_owned(),
            ca_certificate: text("caCertificate").to_owned(),
            min_refresh: duration(
                "minRefreshInterval",
                Duration::from_secs(600),
                Duration::from_secs(1),
            )?,
            request_timeout: duration(
                "requestTimeout",
                Duration::from_secs(30),
                Duration::from_millis(1),
            )?,
        })
    }
}

/// Parses a Go duration, or a plain number of nanoseconds; empty means zero.
fn loose_duration(text: &str) -> Result<Duration, String> {
    if text.is_empty() {
        return Ok(Duration::ZERO);
    }
    if let Ok(nanos) = text.parse() {
        return Ok(Duration::from_nanos(nanos));
    }
    go_duration(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mtls(validators: &[(&str, &[(&str, &str)])]) -> Mtls {
        let validator = |(name, options): &(&str, &[(&str, &str)])| TokenValidator {
            name: (*name).to_owned(),
            options: options
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        };
        Mtls {
            token_validators: validators.iter().map(validator).collect(),
            ..Mtls::default()
        }
    }

    #[test]
    fn empty_file_has_defaults() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let settings = Settings::load(file.path(), |_| None).unwrap();
        assert_eq!(
            (settings.workload_ttl, settings.skew),
            (DEFAULT_TTL, DEFAULT_SKEW)
        );
        assert_eq!(settings.jwks, None);
    }

    #[test]
    fn names_missing_file() {
        let error = Settings::load(Path::new("/no/such/file.yaml"), |_| None).unwrap_err();
        assert!(error.to_string().contains("/no/such/file.yaml"), "{error}");
    }

    #[test]
    fn jwks_options_have_defaults_and_minimums() {
        let options: &[_] = &[
            ("source", "https://x/"),
            ("minRefreshInterval", "1s"),
            ("requestTimeout", "2000000"),
        ];
        let jwks = Settings::new(&mtls(&[("JWKS", options)])).unwrap().jwks.unwrap();
        assert_eq!(
            jwks.min_refresh,
            Duration::from_secs(600),
            "values up to a second are ignored"
        );
        assert_eq!(jwks.request_timeout, Duration::from_millis(2));
        let options: &[_] = &[("source", "x"), ("minRefreshInterval", "2m")];
        let jwks = Settings::new(&mtls(&[("jwks", options)])).unwrap().jwks.unwrap();
        assert_eq!(jwks.min_refresh, Duration::from_secs(120));
    }

    #[test]
    fn reports_every_error() {
        let mut mtls = mtls(&[
            ("kubernetes", &[]),
            ("Insecure", &[]),
            ("mine", &[]),
            ("jwks", &[]),
        ]);
        mtls.workload_cert_ttl = "long".to_owned();
        mtls.allowed_clock_skew = "-1s".to_owned();
        let problems = Settings::new(&mtls).unwrap_err();
        let wanted = [
            "workloadCertTTL",
            "allowedClockSkew",
            "\"kubernetes\" is built-in and cannot be configured manually",
            "\"insecure\" is built-in",
            "supported values: 'jwks'",
            "option source is required",
        ];
        for (problem, wanted) in problems.iter().zip(wanted) {
            assert!(problem.contains(wanted), "{problem}");
        }
        assert_eq!(problems.len(), wanted.len());
    }
}
