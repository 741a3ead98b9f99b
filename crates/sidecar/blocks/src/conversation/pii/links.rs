//! Findings inside links: links contain numbers and signs that are not personal, but personal data in them is
//! still removed.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

/// The personal part of a match inside a link.
pub(super) type InLink = fn(&str, Range<usize>) -> Option<Range<usize>>;

static LINKS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?i-u:https?|git|ssh)://[^\s<>]+").expect("a pattern of this file"));

/// The links of a text, in order.
pub(super) fn find(text: &str) -> Vec<Range<usize>> {
    LINKS.find_iter(text).map(|link| link.range()).collect()
}

/// A single pass over links, in text order.
pub(super) struct Passing<'l> {
    left: &'l [Range<usize>],
    #[cfg(test)]
    looks: usize,
}

impl<'l> Passing<'l> {
    pub(super) fn of(links: &'l [Range<usize>]) -> Self {
        Self {
            left: links,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Whether `at` is inside a link; positions must not decrease.
    pub(super) fn are_around(&mut self, at: usize) -> bool {
        while let [first, others @ ..] = self.left {
            #[cfg(test)]
            {
                self.looks += 1;
            }
            if first.end > at {
                return first.start <= at;
            }
            self.left = others;
        }
        false
    }

    #[cfg(test)]
    pub(super) fn looks(&self) -> usize {
        self.looks
    }
}

/// Recognised in a link as anywhere else.
pub(super) fn as_anywhere(_text: &str, found: Range<usize>) -> Option<Range<usize>> {
    Some(found)
}

/// Never personal inside a link, because links are full of such matches.
pub(super) fn never(_text: &str, _found: Range<usize>) -> Option<Range<usize>> {
    None
}

/// The address without the preceding part of the link. Excludes repository accounts.
pub(super) fn mailbox(text: &str, found: Range<usize>) -> Option<Range<usize>> {
    let address = &text[found.clone()];
    let local = &address[..address.find('@')?];
    let before = local
        .rfind(['/', '?', '&', '=', '#', '\''])
        .map_or(0, |at| at + 1);
    let own = &local[before..];
    (!own.is_empty() && own != "git").then_some(found.start + before..found.end)
}

/// A long number counts if its check digit is correct.
pub(super) fn card(text: &str, found: Range<usize>) -> Option<Range<usize>> {
    let digits = text[found.clone()].bytes().rev().filter(u8::is_ascii_digit);
    let sum: u32 = digits
        .zip([1, 2].into_iter().cycle())
        .map(|(digit, weight)| {
            let weighted = u32::from(digit - b'0') * weight;
            weighted / 10 + weighted % 10
        })
        .sum();
    sum.is_multiple_of(10).then_some(found)
}

/// A number counts if it is formatted as a telephone number or is the value of a parameter.
pub(super) fn phone(text: &str, found: Range<usize>) -> Option<Range<usize>> {
    let candidate = &text[found.clone()];
    let before = text[..found.start].chars().next_back();
    let after = text[found.end..].chars().next();
    let alone = [before, after]
        .iter()
        .flatten()
        .all(|c| !c.is_alphanumeric() && *c != '-');
    let written = candidate.starts_with('+') || candidate.contains(['-', '.', '(', ' ']);
    let value = before == Some('=') && candidate.len() >= 10;
    (alone && !candidate.contains('/') && (written || value)).then_some(found)
}
