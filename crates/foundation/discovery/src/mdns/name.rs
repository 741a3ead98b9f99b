//! Domain names in wire form.

use std::fmt;

/// Maximum label length (RFC 1035, 2.3.4).
const MAX_LABEL: usize = 63;
/// Maximum name length, including length bytes and the root label.
const MAX_NAME: usize = 255;

/// A domain name: labels preceded by their length, uncompressed, ending with the root label. Equality
/// ignores ASCII case; length bytes are below `A`, so a bytewise comparison suffices.
#[derive(Clone)]
pub(super) struct Name(Vec<u8>);

/// An invalid DNS name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a DNS name: labels are 1 to 63 bytes, names at most 255")]
pub struct NameError(String);

impl Name {
    /// Parses dotted text. A trailing dot is optional; escapes are not supported.
    pub(super) fn parse(text: &str) -> Result<Self, NameError> {
        let mut name = Self::builder();
        for label in text.strip_suffix('.').unwrap_or(text).split('.') {
            if !name.push(label.as_bytes()) {
                return Err(NameError(text.to_owned()));
            }
        }
        Ok(name.finish())
    }

    pub(super) fn builder() -> NameBuilder {
        NameBuilder(Vec::with_capacity(32))
    }

    /// Wire bytes including the root label.
    pub(super) fn wire(&self) -> &[u8] {
        &self.0
    }

    /// A key that is equal exactly for equal names.
    pub(super) fn key(&self) -> Vec<u8> {
        self.0.to_ascii_lowercase()
    }

    /// The labels without the root.
    pub(super) fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            let (&len, tail) = rest.split_first()?;
            if len == 0 {
                return None;
            }
            let (label, tail) = tail.split_at_checked(usize::from(len))?;
            rest = tail;
            Some(label)
        })
    }

    /// Returns `a.b` for `a.b.local.`; `None` if the name is not below `local`.
    pub(super) fn below_local(&self) -> Option<String> {
        let text = self.to_string();
        let cut = text.len().checked_sub(".local.".len())?;
        let (head, tail) = text.split_at_checked(cut)?;
        (tail.eq_ignore_ascii_case(".local.") && !head.is_empty()).then(|| head.to_owned())
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.0.eq_ignore_ascii_case(&other.0)
    }
}

impl Eq for Name {}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for label in self.labels() {
            write!(f, "{}.", String::from_utf8_lossy(label))?;
        }
        if self.0.len() <= 1 {
            f.write_str(".")
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Collects labels and enforces the limits.
pub(super) struct NameBuilder(Vec<u8>);

impl NameBuilder {
    /// False if the label or the name would be too long.
    pub(super) fn push(&mut self, label: &[u8]) -> bool {
        // One byte for the length of this label, one for the root.
        if label.is_empty() || label.len() > MAX_LABEL || self.0.len() + label.len() + 2 > MAX_NAME {
            return false;
        }
        self.0.push(label.len() as u8);
        self.0.extend_from_slice(label);
        true
    }

    pub(super) fn finish(mut self) -> Name {
        self.0.push(0);
        Name(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enforces_length_limits() {
        assert!(Name::parse(&"a".repeat(63)).is_ok());
        assert!(Name::parse(&"a".repeat(64)).is_err());
        assert!(Name::parse("a..b").is_err());
        assert!(Name::parse("").is_err());
        // 127 one-byte labels: 254 bytes and the root.
        assert!(Name::parse(&vec!["a"; 127].join(".")).is_ok());
        assert!(Name::parse(&vec!["a"; 128].join(".")).is_err());
    }

    #[test]
    fn ignores_case_and_prints_dotted() {
        let name = Name::parse("Host:1.App.local.").unwrap();
        assert_eq!(name, Name::parse("host:1.app.LOCAL").unwrap());
        assert_ne!(name, Name::parse("host:1.app2.local").unwrap());
        assert_eq!(name.to_string(), "Host:1.App.local.");
    }

    #[test]
    fn extracts_service_below_local() {
        assert_eq!(
            Name::parse("orders.local.").unwrap().below_local().as_deref(),
            Some("orders")
        );
        assert_eq!(
            Name::parse("a.b.LOCAL").unwrap().below_local().as_deref(),
            Some("a.b")
        );
        assert_eq!(Name::parse("local").unwrap().below_local(), None);
        assert_eq!(Name::parse("orders.example").unwrap().below_local(), None);
    }
}
