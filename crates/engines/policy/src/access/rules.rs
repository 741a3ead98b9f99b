//! The operation rules of one caller, as a tree of path segments.

use super::pattern::Pattern;

/// A tree of rule segments, with values where a rule ends.
#[derive(Debug)]
pub(super) struct Rules<T> {
    children: Vec<Node<T>>,
}

#[derive(Debug)]
struct Node<T> {
    segment: Box<str>,
    pattern: Pattern,
    value: Option<T>,
    children: Vec<Node<T>>,
}

impl<T> Rules<T> {
    pub(super) fn new() -> Self {
        Self { children: Vec::new() }
    }

    /// Adds a rule; the first of two rules with the same path wins. `path` starts with `/`.
    pub(super) fn add(&mut self, path: &str, value: T) {
        let mut level = &mut self.children;
        let mut segments = segments(path).peekable();
        while let Some(segment) = segments.next() {
            let index = level
                .iter()
                .position(|node| &*node.segment == segment)
                .unwrap_or_else(|| {
                    level.push(Node {
                        segment: segment.into(),
                        pattern: Pattern::of(segment),
                        value: None,
                        children: Vec::new(),
                    });
                    level.len() - 1
                });
            let node = &mut level[index];
            if segments.peek().is_none() {
                node.value.get_or_insert(value);
                return;
            }
            level = &mut node.children;
        }
    }

    /// The rule for `path`. At each level, follows only the first child in declaration order that matches
    /// the segment, without backtracking. A rule also covers everything below its path, unless it ends in
    /// `*`. A path that ends where no rule does is decided by a wildcard directly below.
    pub(super) fn find(&self, path: &str) -> Option<&T> {
        let mut level = &self.children;
        let mut segments = segments(path).peekable();
        while let Some(segment) = segments.next() {
            let last = segments.peek().is_none();
            let node = pick(level, segment, last)?;
            match &node.value {
                Some(value) if last || node.pattern != Pattern::Any => return Some(value),
                Some(_) => {}
                None if last => return pick(&node.children, "*", true)?.value.as_ref(),
                None => {}
            }
            level = &node.children;
        }
        None
    }
}

fn segments(path: &str) -> std::str::Split<'_, char> {
    path.strip_prefix('/').unwrap_or(path).split('/')
}

fn pick<'a, T>(level: &'a [Node<T>], segment: &str, last: bool) -> Option<&'a Node<T>> {
    level
        .iter()
        .find(|node| node.pattern.matches(&node.segment, segment, last))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(paths: &[&str]) -> Rules<usize> {
        let mut rules = Rules::new();
        for (index, path) in paths.iter().enumerate() {
            rules.add(path, index);
        }
        rules
    }

    #[test]
    fn prefixes_and_wildcards() {
        let rules = rules(&[
            "/op1",
            "/op3/a/*",
            "/op7/a/b/*",
            "/op7/a/b/c/f",
            "/op7/a/b*",
            "/op7/c/**",
            "/d/*",
        ]);
        for (path, expected) in [
            ("/op1", Some(0)),
            ("/op1/below", Some(0)),
            ("/op11", None),
            ("/op3", None),
            ("/op3/a", Some(1)),
            ("/op3/a/b", Some(1)),
            ("/op3/a/b/c", None),
            ("/op3/b/b", None),
            ("/op7/a/b/c", Some(2)),
            ("/op7/a/b/c/d", None),
            ("/op7/a/b/c/f", Some(3)),
            ("/op7/a/bc", Some(4)),
            ("/op7/c", Some(5)),
            ("/op7/c/d/e", Some(5)),
            ("/d", Some(6)),
            ("/d/", Some(6)),
            ("/", None),
        ] {
            assert_eq!(rules.find(path).copied(), expected, "{path}");
        }
    }

    #[test]
    fn first_match_wins_without_backtracking() {
        assert_eq!(rules(&["/a", "/a"]).find("/a"), Some(&0));
        assert_eq!(rules(&["/a*/x", "/ab"]).find("/ab"), None);
        assert_eq!(rules(&["/ab", "/a*/x"]).find("/ab"), Some(&0));
        assert_eq!(rules(&["/**", "/ab"]).find("/ab"), Some(&0));
    }

    /// A reference implementation with a flat list of rules.
    fn naive(paths: &[String], request: &str) -> Option<usize> {
        let rules: Vec<Vec<&str>> = paths.iter().map(|path| path[1..].split('/').collect()).collect();
        let request: Vec<&str> = request[1..].split('/').collect();
        let step = |chosen: &[&str], segment: &str, last: bool| -> Option<String> {
            rules
                .iter()
                .filter(|rule| rule.len() > chosen.len() && rule.starts_with(chosen))
                .map(|rule| rule[chosen.len()])
                .find(|rule| Pattern::of(rule).matches(rule, segment, last))
                .map(str::to_owned)
        };
        let ending = |chosen: &[&str]| rules.iter().position(|rule| rule == chosen);
        let mut chosen: Vec<String> = Vec::new();
        for (index, segment) in request.iter().enumerate() {
            let last = index + 1 == request.len();
            let so_far: Vec<&str> = chosen.iter().map(String::as_str).collect();
            chosen.push(step(&so_far, segment, last)?);
            let mut so_far: Vec<&str> = chosen.iter().map(String::as_str).collect();
            match ending(&so_far) {
                Some(rule) if last || so_far.last() != Some(&"*") => return Some(rule),
                None if last => {
                    let below = step(&so_far, "*", true)?;
                    so_far.push(&below);
                    return ending(&so_far);
                }
                _ => {}
            }
        }
        None
    }

    proptest! {
        #[test]
        fn agrees_with_flat_list(
            paths in proptest::collection::vec("(/(a|b|c|\\*|\\*\\*|a\\*|\\*b)){1,4}", 0..8),
            request in "(/(a|b|c|ab|\\*|)){1,5}",
        ) {
            let borrowed: Vec<&str> = paths.iter().map(String::as_str).collect();
            prop_assert_eq!(rules(&borrowed).find(&request).copied(), naive(&paths, &request));
        }
    }
}
