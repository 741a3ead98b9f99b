//! `$VAR` and `${VAR}` in a text, by the rules of Go's `os.Expand`.

/// Replaces `$NAME` and `${NAME}` by their value in `env`, and unset names by nothing. A dollar that starts
/// no name is kept; `${}` and an unclosed `${` are removed, as are the shell's special names (`$$`, `$1`,
/// `$*`).
pub fn expand(text: &str, env: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        out.push_str(&rest[..dollar]);
        rest = &rest[dollar + 1..];
        let (name, width) = name(rest);
        match name {
            "" if width == 0 => out.push('$'),
            "" => {}
            name => out.push_str(&env(name).unwrap_or_default()),
        }
        rest = &rest[width..];
    }
    out.push_str(rest);
    out
}

/// The name at the start of `text` and its length in bytes, including braces.
fn name(text: &str) -> (&str, usize) {
    let Some(first) = text.bytes().next() else {
        return ("", 0);
    };
    if first != b'{' {
        if special(first) {
            return (&text[..1], 1);
        }
        let end = text
            .bytes()
            .take_while(|b| b.is_ascii_alphanumeric() || *b == b'_')
            .count();
        return (&text[..end], end);
    }
    let inner = &text[1..];
    match inner.bytes().next() {
        Some(b) if special(b) && inner.as_bytes().get(1) == Some(&b'}') => (&inner[..1], 3),
        _ => match inner.find('}') {
            Some(0) => ("", 2),
            Some(end) => (&inner[..end], end + 2),
            None => ("", 1),
        },
    }
}

fn special(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'*' | b'#' | b'$' | b'@' | b'!' | b'?' | b'-')
}

#[cfg(test)]
mod tests {
    use super::expand;

    #[test]
    fn expands_variables_only() {
        let env = |name: &str| (name == "HOME" || name == "A_1").then(|| format!("<{name}>"));
        for (text, expanded) in [
            ("plain", "plain"),
            ("$HOME/x", "<HOME>/x"),
            ("${HOME}x", "<HOME>x"),
            ("$A_1.b", "<A_1>.b"),
            ("[$UNSET]", "[]"),
            ("a $ b $", "a $ b $"),
            ("$(x)", "$(x)"),
            ("${}x", "x"),
            ("${HOME", "HOME"),
            ("$$HOME", "HOME"),
            ("${1}2$3x", "2x"),
            ("é$HOMEé", "é<HOME>é"),
        ] {
            assert_eq!(expand(text, env), expanded, "{text}");
        }
    }
}
