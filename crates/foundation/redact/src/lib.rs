//! Redaction of secrets in texts such as logs: servers repeat credentials in their errors, and clients the
//! address they could not reach.

use std::ops::Range;

use percent_encoding::percent_decode_str;

/// Minimum length of a secret in bytes: shorter ones would match parts of ordinary words.
const SHORTEST: usize = 4;
const REPLACEMENT: &str = "***";

/// The user part of each address in `text`: a URL, or a list of addresses with or without a scheme.
fn user_parts(text: &str) -> Vec<Range<usize>> {
    let is_break = |c: char| c == ',' || c.is_whitespace();
    let (mut parts, mut from) = (Vec::new(), 0);
    while let Some(found) = text[from..].find('@') {
        let mut at = from + found;
        let before = &text[from..at];
        let scheme = before.rfind("://").map(|scheme| scheme + 3);
        let start = scheme.or_else(|| before.rfind(is_break).map(|end| end + 1));
        // A password may contain an @.
        let host_end = text[at..].find(|c| is_break(c) || "/?#".contains(c));
        let host_end = host_end.map_or(text.len(), |end| at + end);
        at += text[at..host_end].rfind('@').unwrap_or(0);
        parts.push(from + start.unwrap_or(0)..at);
        from = at + 1;
    }
    parts
}

/// Replaces the user part of each address in `text` by `***`.
///
/// ```
/// let list = "etcd://me:hush@a:2379,b:2379";
/// assert_eq!(outrigger_redact::addresses(list), "etcd://***@a:2379,b:2379");
/// ```
pub fn addresses(text: &str) -> String {
    let mut shown = text.to_owned();
    for part in user_parts(text).into_iter().rev() {
        shown.replace_range(part, REPLACEMENT);
    }
    shown
}

/// The passwords in the user parts of the addresses in `text`, both as written and decoded.
pub fn passwords(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for part in user_parts(text) {
        let Some((_, password)) = text[part].split_once(':') else {
            continue;
        };
        if password.is_empty() || password.contains(char::is_whitespace) {
            continue;
        }
        if password.len() < SHORTEST {
            // Too short to be replaced without its delimiters.
            found.push(format!(":{password}@"));
            continue;
        }
        let decoded = percent_decode_str(password).decode_utf8_lossy();
        if decoded != password {
            found.push(decoded.into_owned());
        }
        found.push(password.to_owned());
    }
    found
}

/// Texts to redact: what a server received and may repeat in its errors, or a property from a secret store.
#[derive(Clone, Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// Redacts these texts, except those shorter than four bytes.
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut texts: Vec<String> = texts
            .into_iter()
            .filter(|text| text.len() >= SHORTEST)
            .map(str::to_owned)
            .collect();
        // Longest first: replacing a part of a longer secret would leave the rest of it.
        texts.sort_unstable_by_key(|text| std::cmp::Reverse(text.len()));
        Self(texts)
    }

    /// Replaces each secret in `text` by `***`.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        let start = text.to_owned();
        self.0.iter().fold(start, |text, secret| {
            if text.contains(secret.as_str()) {
                text.replace(secret.as_str(), REPLACEMENT)
            } else {
                text
            }
        })
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacts_user_parts() {
        for (text, expected, hidden) in [
            ("redis://me:hush@h:1", "redis://***@h:1", &["hush"][..]),
            ("me:hush@h:1,you:quiet@i:2", "***@h:1,***@i:2", &["hush", "quiet"]),
            ("http://me:hush@h:1,i:2", "http://***@h:1,i:2", &["hush"]),
            ("h:1,me:hush@i:2", "h:1,***@i:2", &["hush"]),
            (
                "postgres://me:a,b,c@h/x?y=@",
                "postgres://***@h/x?y=@",
                &["a,b,c"],
            ),
            ("me:p@ssword@h:1", "***@h:1", &["p@ssword"]),
            ("http://me:p%40ss@h", "http://***@h", &["p@ss", "p%40ss"]),
            ("http://me:pw@h", "http://***@h", &[":pw@"]),
            ("nats://token@h", "nats://***@h", &[]),
            ("http://h/path", "http://h/path", &[]),
            ("h:1,i:2", "h:1,i:2", &[]),
            ("from: me@h", "from: ***@h", &[]),
        ] {
            if !text.ends_with('@') {
                assert_eq!(addresses(text), expected);
            }
            let found = passwords(text);
            assert_eq!(&found[..hidden.len()], hidden, "{text}: {found:?}");
        }
    }

    #[test]
    fn redacts_secrets_only() {
        let secrets = Secrets::new(["sk-1234", "sk-1234-long", "", "abc"]);
        for (text, expected) in [
            ("key sk-1234-long, sk-1234!", "key ***, ***!"),
            ("abc", "abc"),
            ("", ""),
        ] {
            assert_eq!(secrets.redact(text), expected);
        }
        assert_eq!(format!("{secrets:?}"), "Secrets(2)");
    }
}
