//! One segment of an operation rule.

/// The pattern of a rule segment; it also matches its literal spelling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Only itself.
    Literal,
    /// `*`: any one segment, but only the last of the request.
    Any,
    /// `**`: this segment and everything below.
    AnyBelow,
    /// A `*` among other characters: any characters within the segment.
    Glob,
}

impl Pattern {
    pub(super) fn of(segment: &str) -> Self {
        match segment {
            "*" => Self::Any,
            "**" => Self::AnyBelow,
            glob if glob.contains('*') => Self::Glob,
            _ => Self::Literal,
        }
    }

    /// Whether a rule segment spelled `rule` with this pattern matches `segment`.
    pub(super) fn matches(&self, rule: &str, segment: &str, last: bool) -> bool {
        rule == segment
            || match self {
                Self::Literal => false,
                Self::Any => last,
                Self::AnyBelow => true,
                Self::Glob => glob(rule.as_bytes(), segment.as_bytes()),
            }
    }
}

/// Matches with `*` as zero or more bytes. Constant memory; linear time for rules with one `*`.
pub(super) fn glob(rule: &[u8], text: &[u8]) -> bool {
    let (mut at_rule, mut at_text) = (0, 0);
    let mut resume: Option<(usize, usize)> = None;
    while at_text < text.len() {
        match rule.get(at_rule) {
            Some(b'*') => {
                resume = Some((at_rule + 1, at_text));
                at_rule += 1;
            }
            Some(byte) if *byte == text[at_text] => {
                at_rule += 1;
                at_text += 1;
            }
            _ => match resume {
                Some((after_star, taken)) => {
                    (at_rule, at_text) = (after_star, taken + 1);
                    resume = Some((after_star, taken + 1));
                }
                None => return false,
            },
        }
    }
    rule[at_rule..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn naive(rule: &[u8], text: &[u8]) -> bool {
        match rule.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|taken| naive(rest, &text[taken..])),
            Some((byte, rest)) => text.first() == Some(byte) && naive(rest, &text[1..]),
        }
    }

    #[test]
    fn globs() {
        assert!(glob(b"A*", b"ABC.a"));
        assert!(glob(b"*C", b"ABC"));
        assert!(glob(b"AB*.a", b"ABC.a"));
        assert!(glob(b"b*", b"b"));
        assert!(!glob(b"b*", b"ab"));
    }

    proptest! {
        #[test]
        fn glob_agrees_with_definition(rule in "[ab*]{0,8}", text in "[ab]{0,8}") {
            prop_assert_eq!(glob(rule.as_bytes(), text.as_bytes()), naive(rule.as_bytes(), text.as_bytes()));
        }
    }
}
