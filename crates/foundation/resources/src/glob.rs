//! Glob patterns of names, as Go's `path.Match` defines them.

use std::fmt;
use std::str::{Chars, FromStr};

/// A pattern: `*` is any text without `/`, `?` one character but `/`, `[a-z]` and `[^a-z]` one character of a
/// class or outside of it, and `\` takes the next character literally.
#[derive(Clone, PartialEq, Eq)]
pub struct Glob {
    text: String,
    tokens: Vec<Token>,
}

/// A pattern that is not well-formed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no valid pattern: close each '[', and write '\\' before a character that is meant literally"
)]
pub struct BadGlob(String);

#[derive(Clone, PartialEq, Eq)]
enum Token {
    /// Any text without `/`.
    Star,
    /// One character but `/`.
    Any,
    Literal(char),
    /// One character that is in a range, or in none.
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

impl Token {
    fn accepts(&self, c: char) -> bool {
        match self {
            Self::Star => false,
            Self::Any => c != '/',
            Self::Literal(literal) => *literal == c,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated
            }
        }
    }
}

impl FromStr for Glob {
    type Err = BadGlob;

    fn from_str(text: &str) -> Result<Self, BadGlob> {
        let mut rest = text.chars();
        let mut tokens = Vec::new();
        let bad = || BadGlob(text.to_owned());
        while let Some(c) = rest.next() {
            tokens.push(match c {
                '*' => Token::Star,
                '?' => Token::Any,
                '[' => class(&mut rest).ok_or_else(bad)?,
                '\\' => Token::Literal(rest.next().ok_or_else(bad)?),
                literal => Token::Literal(literal),
            });
        }
        Ok(Self {
            text: text.to_owned(),
            tokens,
        })
    }
}

/// The class whose `[` was read.
fn class(rest: &mut Chars<'_>) -> Option<Token> {
    let mut ranges = Vec::new();
    let negated = rest.as_str().starts_with('^');
    if negated {
        rest.next();
    }
    loop {
        if !ranges.is_empty() && rest.as_str().starts_with(']') {
            rest.next();
            return Some(Token::Class { negated, ranges });
        }
        let low = bound(rest)?;
        let high = match rest.as_str().starts_with('-') {
            true => {
                rest.next();
                bound(rest)?
            }
            false => low,
        };
        ranges.push((low, high));
    }
}

/// A bound of a range.
fn bound(rest: &mut Chars<'_>) -> Option<char> {
    match rest.next()? {
        '-' | ']' => None,
        '\\' => rest.next(),
        c => Some(c),
    }
}

impl Glob {
    /// Whether the pattern covers the whole name.
    pub fn matches(&self, name: &str) -> bool {
        let mut tokens = self.tokens.as_slice();
        let mut rest = name.chars();
        // Where to continue if the rest does not match: behind the last star, which then takes one character more.
        let mut retry: Option<(&[Token], Chars<'_>)> = None;
        loop {
            let next = match tokens.split_first() {
                Some((Token::Star, after)) => {
                    retry = Some((after, rest.clone()));
                    Some(after)
                }
                None if rest.as_str().is_empty() => return true,
                None => None,
                Some((token, after)) => rest.next().filter(|c| token.accepts(*c)).map(|_| after),
            };
            if let Some(after) = next {
                tokens = after;
                continue;
            }
            let Some((after, from)) = &mut retry else {
                return false;
            };
            if from.next().is_none_or(|c| c == '/') {
                return false;
            }
            (tokens, rest) = (*after, from.clone());
        }
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of Go's `path.Match`.
    #[test]
    fn matches_as_path_match_of_go() {
        for (pattern, name, expected) in [
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "abc", true),
            ("*", "a/b", false),
            ("*c", "abc", true),
            ("a*", "a", true),
            ("a*", "ab/c", false),
            ("a*/b", "abc/b", true),
            ("a*/b", "a/c/b", false),
            ("a*b*c*d*e*/f", "axbxcxdxe/f", true),
            ("a*b*c*d*e*/f", "axbxcxdxexxx/f", true),
            ("a*b*c*d*e*/f", "axbxcxdxe/xxx/f", false),
            ("a*b?c*x", "abxbbxdbxebxczzx", true),
            ("a*b?c*x", "abxbbxdbxebxczzy", false),
            ("a?b", "a☺b", true),
            ("a?b", "a/b", false),
            ("a???b", "a☺b", false),
            ("a[^a]b", "a☺b", true),
            ("a[^a][^a][^a]b", "a☺b", false),
            ("ab[c]", "abc", true),
            ("ab[b-d]", "abc", true),
            ("ab[e-g]", "abc", false),
            ("ab[^c]", "abc", false),
            ("ab[^e-g]", "abc", true),
            ("[z-a]", "m", false),
            ("a[/]b", "a/b", true),
            ("[\\]a]", "]", true),
            ("[\\-]", "-", true),
            ("[x\\-]", "z", false),
            ("[\\-x]", "x", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("*x", "xxx", true),
            ("**", "abc", true),
            ("Order*", "order1", false),
        ] {
            let glob: Glob = pattern.parse().unwrap();
            assert_eq!(glob.matches(name), expected, "{pattern} on {name}");
        }
    }

    #[test]
    fn refuses_malformed_patterns() {
        for pattern in [
            "[", "[a", "[]a]", "[^", "[^]", "[-]", "[x-]", "[-x]", "[a-b-c]", "a\\", "[\\", "a[", "*[",
        ] {
            assert!(pattern.parse::<Glob>().is_err(), "{pattern}");
        }
    }

    #[test]
    fn matches_long_name_without_blowup() {
        let glob: Glob = "*a".repeat(50).parse().unwrap();
        assert!(!glob.matches(&format!("{}b", "a".repeat(100_000))));
    }
}
