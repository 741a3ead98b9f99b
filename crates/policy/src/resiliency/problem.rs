//! What is wrong with a document.

use std::fmt::{self, Display, Formatter};

use outrigger_resources::meta::Source;
use outrigger_resources::resiliency as spec;

/// Something in a document that could not be used as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Log as an error, not as a warning.
    pub error: bool,
    /// The reason, for the message.
    pub text: String,
    /// The line of the value that is to be corrected; without a file for a document that came from the operator.
    pub place: Source,
}

impl Problem {
    pub(super) fn warning(doc: &spec::Resiliency, key: &str, text: String) -> Self {
        Self {
            error: false,
            text,
            place: doc.source.of(key),
        }
    }

    pub(super) fn error(doc: &spec::Resiliency, key: &str, what: &str) -> Self {
        Self {
            error: true,
            text: format!("Could not read resiliency policy {}: {what}", doc.name),
            place: doc.source.of(key),
        }
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if !self.place.file.as_os_str().is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.text)
    }
}
