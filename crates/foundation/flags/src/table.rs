//! Descriptions of flags, and the usage text generated from them.

use std::fmt::Write;

/// The type of a flag's value.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// `true` or `false`; the flag alone means `true`.
    Bool,
    /// A signed number, with optional `0x`, `0o`, `0b` or `0` prefix.
    Int,
    /// A non-negative number.
    Uint,
    /// Any text.
    Text,
    /// Comma-separated items; repeating the flag appends items.
    List,
    /// Text that is validated during parsing.
    Checked {
        /// The type's name in the usage text.
        name: &'static str,
        /// Completes "give ..." if validation fails.
        expected: &'static str,
        /// Validates the text; the error is the cause.
        check: fn(&str) -> Result<(), String>,
    },
}

impl Kind {
    fn type_name(self) -> &'static str {
        match self {
            Self::Bool => "",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Text => "string",
            Self::List => "strings",
            Self::Checked { name, .. } => name,
        }
    }

    fn is_zero(self, value: &str) -> bool {
        match self {
            Self::Bool => value == "false",
            Self::Int | Self::Uint => value == "0",
            Self::Text | Self::List | Self::Checked { .. } => value.is_empty(),
        }
    }
}

/// One flag of a binary.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// Name without dashes.
    pub name: &'static str,
    /// Type of the value.
    pub kind: Kind,
    /// Value if the flag is absent, in command-line form.
    pub default: &'static str,
    /// One sentence for the usage text.
    pub help: &'static str,
    /// The replacement of a deprecated flag, which is accepted with a notice and omitted from the usage
    /// text.
    pub deprecated: Option<&'static str>,
    /// Omitted from the usage text.
    pub hidden: bool,
}

impl Flag {
    /// A flag of any kind.
    pub const fn new(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Self {
        Self {
            name,
            kind,
            default,
            help,
            deprecated: None,
            hidden: false,
        }
    }

    /// A text flag.
    pub const fn text(name: &'static str, default: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Text, default, help)
    }

    /// A signed number.
    pub const fn int(name: &'static str, default: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Int, default, help)
    }

    /// An unsigned number.
    pub const fn uint(name: &'static str, default: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Uint, default, help)
    }

    /// A boolean.
    pub const fn boolean(name: &'static str, default: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Bool, default, help)
    }

    /// A list of texts, empty by default.
    pub const fn list(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::List, "", help)
    }

    /// Marks the flag as deprecated: `instead` completes "Flag --name has been deprecated, ...".
    pub const fn deprecated(mut self, instead: &'static str) -> Self {
        self.deprecated = Some(instead);
        self
    }

    /// Omits the flag from the usage text.
    pub const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }
}

/// The usage text: a heading with the binary's name and one line per visible flag, by name.
pub fn usage(binary: &str, flags: &[Flag]) -> String {
    let mut shown: Vec<&Flag> = flags
        .iter()
        .filter(|flag| !flag.hidden && flag.deprecated.is_none())
        .collect();
    shown.sort_by_key(|flag| flag.name);

    let heads: Vec<String> = shown
        .iter()
        .map(|flag| format!("      --{} {}", flag.name, flag.kind.type_name()))
        .collect();
    let width = heads.iter().map(String::len).max().unwrap_or(0);

    let mut text = format!("Usage of {binary}:\n");
    for (flag, head) in shown.iter().zip(&heads) {
        // Writing to a String cannot fail.
        let _ = write!(text, "{head:<width$}   {}", flag.help);
        if !flag.kind.is_zero(flag.default) {
            let _ = match flag.kind {
                Kind::Text => write!(text, " (default \"{}\")", flag.default),
                Kind::List => write!(text, " (default [{}])", flag.default),
                _ => write!(text, " (default {})", flag.default),
            };
        }
        text.push('\n');
    }
    text
}

/// The rows of a Markdown table: flag, type, default, meaning. Omits hidden flags; deprecated ones state
/// their replacement.
pub fn reference(flags: &[Flag]) -> String {
    let mut shown: Vec<&Flag> = flags.iter().filter(|flag| !flag.hidden).collect();
    shown.sort_by_key(|flag| flag.name);
    let mut text = "| flag | type | default | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for flag in shown {
        let kind = match flag.kind {
            Kind::Bool => "switch",
            Kind::Int => "number",
            Kind::Uint => "number from 0",
            Kind::Text => "text",
            Kind::List => "list",
            Kind::Checked { name, .. } => name,
        };
        let default = match flag.default {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let meaning = match flag.deprecated {
            Some(instead) => format!("deprecated: {instead}"),
            None => flag.help.to_owned(),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| `--{}` | {kind} | {default} | {} |",
            flag.name,
            meaning.replace('|', "\\|")
        );
    }
    text
}

/// The line printed after errors. The complete usage text would scroll the errors off the screen.
pub fn see_help(binary: &str) -> String {
    format!("all flags: {binary} --help")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_includes_deprecated_flags() {
        let flags = [
            Flag::int("port", "80", "where to listen"),
            Flag::boolean("old", "false", "").deprecated("use --port"),
            Flag::text("host", "", "a|b"),
            Flag::boolean("quiet", "false", "a hidden one").hidden(),
        ];
        assert_eq!(
            reference(&flags),
            "| flag | type | default | meaning |\n| --- | --- | --- | --- |\n\
             | `--host` | text |  | a\\|b |\n\
             | `--old` | switch | `false` | deprecated: use --port |\n\
             | `--port` | number | `80` | where to listen |\n"
        );
    }

    #[test]
    fn usage_lists_visible_flags() {
        let flags = [
            Flag::text("zeta", "z", "the last"),
            Flag::int("port", "80", "where to listen"),
            Flag::boolean("old", "false", "an old one").deprecated("use --port"),
            Flag::boolean("quiet", "false", "a hidden one").hidden(),
            Flag::list("names", "some names"),
        ];
        assert_eq!(
            usage("demo", &flags),
            "Usage of demo:\n\
             \x20     --names strings   some names\n\
             \x20     --port int        where to listen (default 80)\n\
             \x20     --zeta string     the last (default \"z\")\n"
        );
    }
}
