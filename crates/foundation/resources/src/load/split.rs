//! Splitting of a file into documents.

/// One document and the line it starts on, 1-based.
pub(super) struct Chunk<'a> {
    pub(super) text: &'a str,
    pub(super) line: usize,
}

/// Splits at lines that start with `---`; the rest of such a line is dropped.
pub(super) fn documents(text: &str) -> impl Iterator<Item = Chunk<'_>> {
    let mut rest = Some((text, 1));
    std::iter::from_fn(move || {
        let (text, line) = rest.take()?;
        let Some(end) = text.find("\n---") else {
            return Some(Chunk { text, line });
        };
        let (document, after) = text.split_at(end);
        if let Some(newline) = after[1..].find('\n') {
            // The document's lines, its last newline, and the separator line.
            let next = line + document.matches('\n').count() + 2;
            let after = &after[newline + 2..];
            rest = (!after.is_empty()).then_some((after, next));
        }
        Some(Chunk { text: document, line })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<(&str, usize)> {
        documents(text).map(|c| (c.text, c.line)).collect()
    }

    #[test]
    fn splits_at_separator_lines() {
        assert_eq!(split("a"), [("a", 1)]);
        assert_eq!(split("a\n---\nb\nc\n---\nd"), [("a", 1), ("b\nc", 3), ("d", 6)]);
        assert_eq!(split("---\na\n"), [("---\na\n", 1)]);
        assert_eq!(split("a\n--- # more\nb"), [("a", 1), ("b", 3)]);
        assert_eq!(split("a\n---"), [("a", 1)]);
        assert_eq!(split("a\n---\n"), [("a", 1)]);
        assert_eq!(split("a: b---c"), [("a: b---c", 1)]);
        assert_eq!(split("a\r\n---\r\nb"), [("a\r", 1), ("b", 3)]);
    }
}
