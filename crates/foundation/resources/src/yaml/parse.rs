//! Parsing of text to a tree, with limits.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, Span, Tag};

use super::{Entry, Error, Kind, Node, Scalar};

/// Maximum nesting of lists and mappings.
const MAX_DEPTH: usize = 64;
/// Maximum values in a document, counting expanded aliases.
const MAX_NODES: usize = 200_000;

/// Maximum lines whose indentation is corrected in a document.
const MAX_RELAXED: usize = 200;
/// Indentation deeper than any valid block, see [`MAX_DEPTH`].
const DEEP: usize = 4 * MAX_DEPTH;

/// Parses the first document of `text`; `None` if there is none. `first_line` is the line of its start.
///
/// Quoted texts may continue at any indentation, including tabs: Go's readers accept that, YAML 1.2 does
/// not.
pub(crate) fn parse(text: &str, first_line: usize) -> Result<Option<Node>, Error> {
    let offset = first_line.saturating_sub(1);
    let mut text = Cow::Borrowed(text);
    let mut relaxed = BTreeSet::new();
    loop {
        match events(&text, offset) {
            Ok(root) => return Ok(root),
            Err(Failure::Continuation(line)) if relaxed.len() < MAX_RELAXED && relaxed.insert(line) => {
                text = Cow::Owned(indented(&text, line));
            }
            Err(Failure::Continuation(line)) => {
                return Err(Error::at(
                    line + offset,
                    "not YAML: invalid indentation in a quoted text",
                ));
            }
            Err(Failure::Other(error)) => return Err(error),
        }
    }
}

enum Failure {
    /// The continuation of a quoted text on this line (1-based) is indented less than YAML 1.2 requires.
    Continuation(usize),
    Other(Error),
}

fn events(text: &str, offset: usize) -> Result<Option<Node>, Failure> {
    let mut parser = Parser::new_from_str(text);
    let mut tree = Tree {
        offset,
        ..Tree::default()
    };
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|e| match e.kind() {
            ErrorKind::TabInIndentation | ErrorKind::InvalidQuotedScalarIndent => {
                Failure::Continuation(e.marker().line())
            }
            kind => Failure::Other(Error::at(e.marker().line() + offset, format!("not YAML: {kind}"))),
        })?;
        if matches!(event, Event::DocumentEnd | Event::StreamEnd) {
            break;
        }
        tree.take(event, span).map_err(Failure::Other)?;
    }
    Ok(tree.root)
}

/// The text with one line moved far to the right; leading blanks have no meaning inside quotes.
fn indented(text: &str, line: usize) -> String {
    let mut out = String::with_capacity(text.len() + DEEP);
    for (index, content) in text.split_inclusive('\n').enumerate() {
        if index + 1 == line {
            out.extend(std::iter::repeat_n(' ', DEEP));
            out.push_str(content.trim_start_matches([' ', '\t']));
        } else {
            out.push_str(content);
        }
    }
    out
}

/// Builds a tree from the operator's JSON.
pub(crate) fn from_json(json: &[u8]) -> Result<Node, Error> {
    let value: serde_json::Value =
        serde_json::from_slice(json).map_err(|e| Error::at(e.line(), format!("not JSON: {e}")))?;
    Ok(convert(value))
}

fn convert(value: serde_json::Value) -> Node {
    use serde_json::Value;
    let kind = match value {
        Value::Null => return Node::null(0),
        Value::Bool(b) => Kind::Scalar(Scalar::plain(b.to_string())),
        Value::Number(n) => Kind::Scalar(Scalar::plain(n.to_string())),
        Value::String(s) => Kind::Scalar(Scalar::quoted(s)),
        Value::Array(items) => Kind::Seq(items.into_iter().map(convert).collect()),
        Value::Object(map) => Kind::Map(
            map.into_iter()
                .map(|(key, v)| Entry {
                    key: Scalar::quoted(key),
                    line: 0,
                    value: convert(v),
                })
                .collect(),
        ),
    };
    Node { line: 0, kind }
}

#[derive(Default)]
struct Tree {
    offset: usize,
    nodes: usize,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    root: Option<Node>,
}

/// A list or mapping that is still open.
struct Open {
    node: Node,
    anchor: usize,
    /// The key waiting for its value.
    key: Option<(Scalar, usize)>,
    /// Entries from `<<`, which the mapping's own keys override.
    merged: Vec<Entry>,
}

impl Tree {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Error> {
        let line = span.start.line() + self.offset;
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && !tag.as_deref().is_some_and(is_text);
                let node = Node {
                    line,
                    kind: Kind::Scalar(Scalar {
                        text: text.into_owned(),
                        plain,
                    }),
                };
                self.count(1, line)?;
                self.close(node, anchor)
            }
            Event::SequenceStart(_, anchor, _) => self.open(Kind::Seq(Vec::new()), anchor, line),
            Event::MappingStart(_, anchor, _) => self.open(Kind::Map(Vec::new()), anchor, line),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(open) => {
                    let anchor = open.anchor;
                    self.close(open.finish(), anchor)
                }
                None => Ok(()),
            },
            Event::Alias(id) => {
                let Some(target) = self.anchors.get(&id) else {
                    return Err(Error::at(line, "an alias refers to the value that contains it"));
                };
                let mut node = target.clone();
                node.line = line;
                self.count(size(&node), line)?;
                self.close(node, 0)
            }
            _ => Ok(()),
        }
    }

    fn count(&mut self, more: usize, line: usize) -> Result<(), Error> {
        self.nodes += more;
        if self.nodes > MAX_NODES {
            return Err(Error::at(
                line,
                format!("more than {MAX_NODES} values in one document"),
            ));
        }
        Ok(())
    }

    fn open(&mut self, kind: Kind, anchor: usize, line: usize) -> Result<(), Error> {
        if self.open.len() == MAX_DEPTH {
            return Err(Error::at(line, format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.count(1, line)?;
        self.open.push(Open {
            node: Node { line, kind },
            anchor,
            key: None,
            merged: Vec::new(),
        });
        Ok(())
    }

    /// Attaches a complete value to its parent.
    fn close(&mut self, node: Node, anchor: usize) -> Result<(), Error> {
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(open) = self.open.last_mut() else {
            self.root.get_or_insert(node);
            return Ok(());
        };
        match &mut open.node.kind {
            Kind::Seq(items) => items.push(node),
            Kind::Map(entries) => match open.key.take() {
                None => match node.kind {
                    Kind::Scalar(key) => open.key = Some((key, node.line)),
                    _ => return Err(Error::at(node.line, "a key of a mapping must be a single value")),
                },
                Some((key, line)) if key.plain && key.text == "<<" => open.merged.extend(merged(node, line)?),
                Some((key, line)) => entries.push(Entry {
                    key,
                    line,
                    value: node,
                }),
            },
            Kind::Scalar(_) => {}
        }
        Ok(())
    }
}

impl Open {
    fn finish(mut self) -> Node {
        if let Kind::Map(entries) = &mut self.node.kind {
            for entry in self.merged {
                if !entries.iter().any(|e| e.key.text == entry.key.text) {
                    entries.push(entry);
                }
            }
        }
        self.node
    }
}

/// The entries of a `<<`: one mapping, or several of which the first wins.
fn merged(node: Node, line: usize) -> Result<Vec<Entry>, Error> {
    let refuse = || Error::at(line, "`<<` takes a mapping or a list of mappings");
    match node.kind {
        Kind::Map(entries) => Ok(entries),
        Kind::Seq(items) => {
            let mut all: Vec<Entry> = Vec::new();
            for item in items {
                let Kind::Map(entries) = item.kind else {
                    return Err(refuse());
                };
                all.extend(entries);
            }
            Ok(all)
        }
        Kind::Scalar(_) => Err(refuse()),
    }
}

fn size(node: &Node) -> usize {
    1 + match &node.kind {
        Kind::Scalar(_) => 0,
        Kind::Seq(items) => items.iter().map(size).sum::<usize>(),
        Kind::Map(entries) => entries.iter().map(|e| 1 + size(&e.value)).sum::<usize>(),
    }
}

/// True for `!!str` and the bare `!`.
fn is_text(tag: &Tag) -> bool {
    tag.is_yaml_core_schema_tag("str")
        || (tag.handle().is_empty() && tag.suffix() == "!")
        || tag.original() == "!"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml::{Flavour, Resolved};

    fn root(text: &str) -> Node {
        parse(text, 1).expect("parses").expect("has a document")
    }

    #[test]
    fn nodes_have_lines() {
        let node = parse("a: 1\nb:\n- x\n- y: 2\n", 10).unwrap().unwrap();
        assert_eq!(node.get("a").unwrap().line, 10);
        let Kind::Seq(items) = &node.get("b").unwrap().kind else {
            panic!("b is a list")
        };
        assert_eq!((items[0].line, items[1].get("y").unwrap().line), (12, 13));
    }

    #[test]
    fn empty_text_has_no_document() {
        assert_eq!(parse("", 1).unwrap(), None);
        assert_eq!(parse("# only a comment\n", 1).unwrap(), None);
    }

    #[test]
    fn tags_and_quotes_mean_text() {
        let node = root("a: !!str 5\nb: '5'\nc: 5\nd: ! 5\n");
        for (key, text) in [("a", true), ("b", true), ("c", false), ("d", true)] {
            let Kind::Scalar(s) = &node.get(key).unwrap().kind else {
                panic!("scalar")
            };
            assert_eq!(s.resolve(Flavour::Json) == Resolved::Str, text, "{key}");
        }
    }

    #[test]
    fn expands_aliases_and_merge_keys() {
        let node = root("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\ncopy: *b\n");
        assert_eq!(node.get("use").unwrap().text("x"), Some("1"));
        assert_eq!(node.get("use").unwrap().text("y"), Some("3"));
        assert_eq!(node.get("copy").unwrap().text("y"), Some("2"));
        assert!(parse("a: &x [*x]", 1).is_err());
        assert!(parse("a: {<<: 5}", 1).is_err());
    }

    #[test]
    fn syntax_errors_have_lines() {
        let error = parse("a: 1\nb: [1\nc: 2\n", 5).unwrap_err();
        assert!(error.line >= 6, "{error:?}");
        assert!(error.what.starts_with("not YAML"), "{error}");
    }

    #[test]
    fn accepts_any_continuation_indent() {
        let node = root("a:\n- b: '{\n\t \"x\": 1,\n \"y\": 2\n\n\t}'\n  c: \"one\ntwo\"\n");
        let Kind::Seq(items) = &node.get("a").unwrap().kind else {
            panic!("a is a list")
        };
        assert_eq!(items[0].text("b"), Some("{ \"x\": 1, \"y\": 2\n}"));
        assert_eq!(items[0].text("c"), Some("one two"));
        assert!(parse("a:\n\tb: 1\n", 1).is_err(), "tabs never indent blocks");
        let long = format!("a: '\n{}'", "\tx\n".repeat(MAX_RELAXED + 1));
        assert_eq!(parse(&long, 1).unwrap_err().line, MAX_RELAXED + 2);
    }

    #[test]
    fn parses_long_texts() {
        let long = "x".repeat(100_000);
        for text in [
            format!("a: \"{long}\""),
            format!("{{\"a\": \"{long}\"}}"),
            format!("a: {long}"),
            format!("a: [ '{long}' ]"),
        ] {
            let node = root(&text);
            assert!(node.text("a").is_none_or(|a| a.len() == long.len()));
        }
    }

    #[test]
    fn enforces_limits() {
        let deep = "[".repeat(70) + &"]".repeat(70);
        assert!(parse(&deep, 1).unwrap_err().what.contains("nested deeper"));
        let mut bomb = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n".to_owned();
        for n in 1..9 {
            let aliases = vec![format!("*a{}", n - 1); 10].join(",");
            bomb += &format!("a{n}: &a{n} [{aliases}]\n");
        }
        assert!(
            parse(&bomb, 1)
                .unwrap_err()
                .what
                .contains("values in one document")
        );
    }

    #[test]
    fn parses_json() {
        let node = from_json(br#"{"a":"5","b":5,"c":[null,true]}"#).unwrap();
        assert_eq!(node.text("a"), Some("5"));
        assert!(from_json(b"{").is_err());
    }

    proptest::proptest! {
        /// Loading any file ends with a value or an error.
        #[test]
        fn arbitrary_text_does_not_panic(text in "([a-c*&<!|>'\"{}\\[\\]:,# \n-]|\\PC){0,80}") {
            if let Ok(Some(node)) = parse(&text, 1) {
                let _ = crate::yaml::decode::<crate::component::Raw>(&node, Flavour::Json);
            }
        }
    }
}
