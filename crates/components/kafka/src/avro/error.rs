use std::fmt;

/// Maximum length of a name in errors, characters: names may come from untrusted data.
const MAX_NAME: usize = 64;

/// An invalid value, with the path to it.
#[derive(Debug)]
pub(crate) struct ValueError {
    /// Innermost step first.
    path: Vec<Step>,
    text: String,
    /// No other union type can help.
    is_final: bool,
}

#[derive(Debug)]
enum Step {
    Name(String),
    Item(usize),
}

impl ValueError {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self {
            path: Vec::new(),
            text: text.into(),
            is_final: false,
        }
    }

    /// An error that applies to every type.
    pub(super) fn fatal(text: impl Into<String>) -> Self {
        Self {
            is_final: true,
            ..Self::new(text)
        }
    }

    pub(super) fn is_final(&self) -> bool {
        self.is_final
    }

    /// Prepends a field or map key to the path.
    pub(super) fn of(mut self, name: &str) -> Self {
        self.path.push(Step::Name(shortened(name)));
        self
    }

    /// Prepends an array index to the path.
    pub(super) fn of_item(mut self, number: usize) -> Self {
        self.path.push(Step::Item(number));
        self
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            f.write_str("field \"")?;
            for (number, step) in self.path.iter().rev().enumerate() {
                match step {
                    Step::Name(name) if number == 0 => f.write_str(name)?,
                    Step::Name(name) => write!(f, ".{name}")?,
                    Step::Item(item) => write!(f, "[{item}]")?,
                }
            }
            f.write_str("\": ")?;
        }
        f.write_str(&self.text)
    }
}

/// A name shortened for errors.
pub(super) fn shortened(name: &str) -> String {
    cut(name, MAX_NAME)
}

/// The first `most` characters of a text.
pub(super) fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
    }
}
