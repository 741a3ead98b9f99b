//! SQL `LIKE` on keys: `%`, `_`, and a backslash before a literal one. Case-sensitive.

use outrigger_component::{Error, Result};

enum Part {
    Exactly(char),
    One,
    Many,
}

pub(super) struct Pattern(Vec<Part>);

impl Pattern {
    pub(super) fn parse(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::invalid_request("keys like pattern cannot be empty"));
        }
        let mut parts = Vec::new();
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            parts.push(match character {
                '%' => Part::Many,
                '_' => Part::One,
                '\\' => Part::Exactly(characters.next().unwrap_or('\\')),
                other => Part::Exactly(other),
            });
        }
        Ok(Self(parts))
    }

    /// At most key length times pattern length: only the last `%` backtracks.
    pub(super) fn matches(&self, key: &str) -> bool {
        let key: Vec<char> = key.chars().collect();
        let (mut at, mut part) = (0, 0);
        let mut retry: Option<(usize, usize)> = None;
        while at < key.len() {
            let fits = match self.0.get(part) {
                Some(Part::Many) => {
                    retry = Some((at, part));
                    part += 1;
                    continue;
                }
                Some(Part::One) => true,
                Some(Part::Exactly(character)) => *character == key[at],
                None => false,
            };
            if fits {
                at += 1;
                part += 1;
            } else if let Some((from, many)) = retry {
                retry = Some((from + 1, many));
                at = from + 1;
                part = many + 1;
            } else {
                return false;
            }
        }
        self.0[part..].iter().all(|part| matches!(part, Part::Many))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_like_sql() {
        for (pattern, key, matches) in [
            ("a%", "abc", true),
            ("a%", "bac", false),
            ("%c", "abcbc", true),
            ("a_c", "abc", true),
            ("a_c", "abbc", false),
            ("a\\_c", "abc", false),
            ("a\\_c", "a_c", true),
            ("%b%d%", "abcd", true),
            ("%", "", true),
            ("_", "", false),
            ("ä_", "äö", true),
            ("a\\", "a\\", true),
        ] {
            let found = Pattern::parse(pattern).unwrap().matches(key);
            assert_eq!(found, matches, "{pattern} {key}");
        }
        assert!(Pattern::parse("").is_err());
    }

    #[test]
    fn bounds_backtracking() {
        let pattern = Pattern::parse(&"%a".repeat(200)).unwrap();
        assert!(!pattern.matches(&format!("{}b", "a".repeat(5000))));
    }
}
