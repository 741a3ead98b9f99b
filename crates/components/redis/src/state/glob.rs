use outrigger_component::{Error, Result};

/// Converts a SQL `LIKE` pattern to a `SCAN` glob.
pub(super) fn from_like(pattern: &str) -> Result<String> {
    if pattern.is_empty() {
        return Err(Error::invalid_request("keys like pattern cannot be empty"));
    }
    let mut glob = String::with_capacity(pattern.len() + 8);
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        match character {
            '%' => glob.push('*'),
            '_' => glob.push('?'),
            '\\' => literal(characters.next().unwrap_or('\\'), &mut glob),
            other => literal(other, &mut glob),
        }
    }
    Ok(glob)
}

fn literal(character: char, glob: &mut String) {
    if matches!(character, '*' | '?' | '[' | ']' | '\\') {
        glob.push('\\');
    }
    glob.push(character);
}

#[cfg(test)]
mod tests {
    use super::from_like;

    #[test]
    fn converts_wildcards_and_escapes_rest() {
        for (like, glob) in [
            ("a%b_", "a*b?"),
            ("100\\%", "100%"),
            ("a*b?[c]", "a\\*b\\?\\[c\\]"),
            ("\\\\x\\_", "\\\\x_"),
            ("end\\", "end\\\\"),
        ] {
            assert_eq!(from_like(like).unwrap(), glob);
        }
        assert!(from_like("").is_err());
    }
}
