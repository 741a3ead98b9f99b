//! Secrets that are cut out of texts before somebody reads them: servers repeat in their errors what they were shown,
//! and clients repeat the address that they could not reach.

/// The shortest text that is taken for a secret, bytes: shorter ones would tear holes into ordinary words.
const SHORTEST: usize = 4;
const REPLACEMENT: &str = "***";

/// Texts that nobody may read: what a server was shown and may show again in its errors, or a property from a secret
/// store.
#[derive(Clone, Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// Of these texts; what is shorter than four bytes is none.
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut texts: Vec<String> = texts
            .into_iter()
            .filter(|text| text.len() >= SHORTEST)
            .map(str::to_owned)
            .collect();
        // One that is part of another must not leave the rest of it.
        texts.sort_unstable_by_key(|text| std::cmp::Reverse(text.len()));
        Self(texts)
    }

    /// `text` with `***` in place of each secret.
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
    fn secrets_go_and_the_rest_stays() {
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
