//! Path patterns in the syntax of Go's ServeMux (1.22): `{var}`, `{var...}`, `{$}`, a trailing `/` for a
//! subtree.

/// A malformed pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?}: {reason}")]
pub struct PatternError {
    pattern: String,
    reason: &'static str,
}

/// The error in a pattern, if any.
pub fn wrong_pattern(pattern: &str) -> Option<String> {
    let error = Patterns::new([pattern]).err()?;
    Some(error.reason.to_owned())
}

/// A set of patterns; the most specific match wins.
#[derive(Clone, Debug, Default)]
pub struct Patterns {
    patterns: Vec<(String, Vec<Segment>)>,
}

/// Ordered from specific to general.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    Literal(String),
    /// `{$}`: the path ends with the slash before it.
    End,
    Single,
    Rest,
}

impl Segment {
    fn rank(&self) -> u8 {
        match self {
            Self::Literal(_) | Self::End => 0,
            Self::Single => 1,
            Self::Rest => 2,
        }
    }
}

impl Patterns {
    /// Compiles the patterns. Merges double slashes and adds a missing leading slash first.
    ///
    /// # Errors
    /// On a malformed wildcard.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, PatternError> {
        let mut out = Self::default();
        for pattern in patterns {
            let text = normalize(pattern);
            if !out.patterns.iter().any(|(known, _)| *known == text) {
                let segments = compile(&text)?;
                out.patterns.push((text, segments));
            }
        }
        Ok(out)
    }

    /// True if there are no patterns.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// The text of the most specific pattern that matches a path. A path without its trailing slash matches
    /// the subtree, unless another pattern matches exactly.
    pub fn find(&self, path: &str) -> Option<&str> {
        let path = clean(path);
        self.best(&path).or_else(|| {
            if path.ends_with('/') {
                None
            } else {
                self.best(&(path + "/"))
            }
        })
    }

    fn best(&self, path: &str) -> Option<&str> {
        // A path starts with a slash, so the first part is empty.
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        self.patterns
            .iter()
            .filter(|(_, segments)| matches(segments, &parts))
            .min_by(|(_, a), (_, b)| a.iter().map(Segment::rank).cmp(b.iter().map(Segment::rank)))
            .map(|(text, _)| text.as_str())
    }
}

fn matches(segments: &[Segment], parts: &[&str]) -> bool {
    for (i, segment) in segments.iter().enumerate() {
        match (segment, parts.get(i)) {
            (Segment::Rest, Some(_)) => return true,
            (Segment::End, Some(part)) if part.is_empty() && i + 1 == parts.len() => {}
            (Segment::Literal(text), Some(part)) if text == part => {}
            (Segment::Single, Some(part)) if !part.is_empty() => {}
            _ => return false,
        }
    }
    segments.len() == parts.len()
}

fn compile(text: &str) -> Result<Vec<Segment>, PatternError> {
    let fail = |reason| {
        Err(PatternError {
            pattern: text.to_owned(),
            reason,
        })
    };
    let parts: Vec<&str> = text.split('/').skip(1).collect();
    let last = parts.len() - 1;
    let mut names = Vec::new();
    let mut segments = Vec::with_capacity(parts.len());
    for (i, part) in parts.iter().enumerate() {
        if part.is_empty() && i == last {
            segments.push(Segment::Rest);
            continue;
        }
        let Some(inner) = part.strip_prefix('{').and_then(|p| p.strip_suffix('}')) else {
            if part.contains(['{', '}']) {
                return fail("a wildcard must be a whole path segment");
            }
            segments.push(Segment::Literal((*part).to_owned()));
            continue;
        };
        if inner == "$" {
            if i != last {
                return fail("{$} is only allowed at the end");
            }
            segments.push(Segment::End);
            continue;
        }
        let (name, rest) = inner
            .strip_suffix("...")
            .map_or((inner, false), |name| (name, true));
        if rest && i != last {
            return fail("{...} is only allowed at the end");
        }
        let first_ok = name.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_');
        if !first_ok || !name.chars().all(|c| c.is_alphanumeric() || c == '_') {
            return fail("a wildcard needs a name made of letters, digits and underscores");
        }
        if names.contains(&name) {
            return fail("a wildcard name is used twice");
        }
        names.push(name);
        segments.push(if rest { Segment::Rest } else { Segment::Single });
    }
    Ok(segments)
}

/// Merges double slashes and adds a leading slash.
pub(super) fn normalize(path: &str) -> String {
    let mut out = String::with_capacity(path.len() + 1);
    out.push('/');
    for c in path.chars() {
        if c != '/' || !out.ends_with('/') {
            out.push(c);
        }
    }
    out
}

/// Like [`normalize`], and resolves `.` and `..` segments.
fn clean(path: &str) -> String {
    let path = normalize(path);
    if !path.contains("/.") {
        return path;
    }
    let mut kept: Vec<&str> = Vec::new();
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => drop(kept.pop()),
            _ => kept.push(part),
        }
    }
    if path.ends_with("/.") || path.ends_with("/..") {
        kept.push("");
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_specific_wins() {
        let patterns = [
            "/orders/{id}",
            "/orders/1234",
            "orders",
            "/files/{path...}",
            "/tree/",
            "/exact/{$}",
            "/a/{x}/c",
            "/a/b/{y}",
            "/",
        ];
        let set = Patterns::new(patterns).unwrap();
        for (path, pattern) in [
            ("/orders/77", "/orders/{id}"),
            ("//orders//77", "/orders/{id}"),
            ("/orders/1234", "/orders/1234"),
            ("/orders", "/orders"),
            ("/orders/", "/"),
            ("/files/a/b/c", "/files/{path...}"),
            ("/tree/x", "/tree/"),
            ("/tree", "/"),
            ("/exact/", "/exact/{$}"),
            ("/exact/more", "/"),
            ("/a/b/c", "/a/b/{y}"),
            ("/a/z/c", "/a/{x}/c"),
            ("/a/./q/../z/c", "/a/{x}/c"),
        ] {
            assert_eq!(set.find(path), Some(pattern), "{path}");
        }
    }

    #[test]
    fn without_a_root_pattern() {
        let set = Patterns::new(["/tree/", "/x/{y}"]).unwrap();
        assert_eq!(set.find("/tree"), Some("/tree/"));
        assert_eq!(set.find("/x"), None);
        assert_eq!(set.find("/x/y/z"), None);
        assert_eq!(set.find("/x/"), None);
    }

    #[test]
    fn malformed() {
        for pattern in [
            "/a/x{b}",
            "/{a...}/b",
            "/{$}/b",
            "/{}",
            "/{a}/{a}",
            "/{1a}",
            "/{a-b}",
        ] {
            assert!(Patterns::new([pattern]).is_err(), "{pattern}");
        }
    }
}
