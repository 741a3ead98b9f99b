use std::borrow::Cow;

/// A text in which equivalent characters are normalised, for the search only: full-width forms, typographic
/// dashes and dots, wide and narrow spaces, other digits, URL escapes. Invisible characters are dropped.
pub(super) struct Folded<'t> {
    pub(super) text: Cow<'t, str>,
    /// Positions in `text` and in the original after each character whose length changed; ascending.
    steps: Vec<(usize, usize)>,
}

impl<'t> Folded<'t> {
    pub(super) fn of(text: &'t str) -> Self {
        if text.bytes().all(|byte| byte.is_ascii() && byte != b'%') {
            return Self {
                text: text.into(),
                steps: Vec::new(),
            };
        }
        let mut folded = String::with_capacity(text.len());
        let mut steps = Vec::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let (instead, length) = match escaped(rest) {
                Some(escape) => (Some(escape), 3),
                None => (plain(first), first.len_utf8()),
            };
            folded.extend(instead);
            rest = &rest[length..];
            if instead.map_or(0, char::len_utf8) != length {
                steps.push((folded.len(), text.len() - rest.len()));
            }
        }
        Self {
            text: folded.into(),
            steps,
        }
    }

    /// The position in the original.
    pub(super) fn original(&self, at: usize) -> usize {
        let passed = self.steps.partition_point(|(folded, _)| *folded <= at);
        let step = passed.checked_sub(1).and_then(|last| self.steps.get(last));
        step.map_or(at, |(folded, original)| original + (at - folded))
    }
}

/// The URL-escaped character that a text starts with, if it can be part of a finding.
fn escaped(text: &str) -> Option<char> {
    let escape = text.strip_prefix('%')?.get(..2)?;
    let character = char::from(u8::from_str_radix(escape, 16).ok()?);
    ['@', '+', '.', '-', ' ']
        .contains(&character)
        .then_some(character)
}

/// The normal form of a character; `None` if it is invisible.
fn plain(character: char) -> Option<char> {
    const FULL_WIDTH: u32 = 0xff00 - 0x20;
    let code = u32::from(character);
    let digit = |zero: u32| char::from_digit((code - zero) % 10, 10);
    match character {
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}' => None,
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(code - FULL_WIDTH),
        '﹫' => Some('@'),
        '\u{2010}'..='\u{2015}' | '\u{2043}' | '\u{2212}' | '\u{fe58}' | '\u{fe63}' => Some('-'),
        '·' | '•' | '․' | '‧' | '∙' | '⋅' | '。' | '｡' | '\u{fe52}' => Some('.'),
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => Some(' '),
        '\u{660}'..='\u{669}' => digit(0x660),
        '\u{6f0}'..='\u{6f9}' => digit(0x6f0),
        '\u{966}'..='\u{96f}' => digit(0x966),
        '\u{1d7ce}'..='\u{1d7ff}' => digit(0x1d7ce),
        other => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_map_to_original() {
        let folded = Folded::of("é＠\u{200b}x%40y");
        assert_eq!(folded.text, "é@x@y");
        let places: Vec<_> = (0..=folded.text.len()).map(|at| folded.original(at)).collect();
        assert_eq!(places, [0, 1, 2, 8, 9, 12, 13]);
        assert!(matches!(Folded::of("plain").text, Cow::Borrowed("plain")));
    }

    #[test]
    fn positions_stay_inside_original() {
        let parts = ["a", "é", "＠", "\u{200b}", "４", "%20", "%", "\u{1d7ce}"];
        for number in 0..parts.len().pow(4) {
            let part = |place: u32| parts[number / parts.len().pow(place) % parts.len()];
            let text: String = (0..4).map(part).collect();
            let folded = Folded::of(&text);
            let mut last = 0;
            for (at, _) in folded.text.char_indices().chain([(folded.text.len(), ' ')]) {
                let original = folded.original(at);
                assert!(text.is_char_boundary(original) && original >= last, "{text:?}");
                last = original;
            }
            assert!(last <= text.len(), "{text:?}");
        }
    }
}
