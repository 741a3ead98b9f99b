//! The values of a parsed command line.

use std::collections::HashMap;

use outrigger_resources::value::go_bool;

use crate::{Flag, Kind, number};

/// Values by flag name, with the table's defaults.
///
/// The typed getters panic if the name is not in the table or has another type. That is a bug in the
/// program, not in the command line, and any test that reads the flag reveals it.
#[derive(Debug, Clone)]
pub struct Values {
    flags: &'static [Flag],
    given: HashMap<&'static str, Vec<String>>,
    notices: Vec<String>,
}

impl Values {
    pub(crate) fn new(flags: &'static [Flag]) -> Self {
        Self {
            flags,
            given: HashMap::new(),
            notices: Vec::new(),
        }
    }

    pub(crate) fn set(&mut self, flag: &'static Flag, value: String) {
        if let Some(instead) = flag.deprecated
            && !self.given.contains_key(flag.name)
        {
            self.notices
                .push(format!("Flag --{} has been deprecated, {instead}", flag.name));
        }
        let values = self.given.entry(flag.name).or_default();
        if !matches!(flag.kind, Kind::List) {
            values.clear();
        }
        values.push(value);
    }

    /// Whether the flag was on the command line.
    pub fn given(&self, name: &str) -> bool {
        self.flag(name);
        self.given.contains_key(name)
    }

    /// One line per deprecated flag used, to print on standard error.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// The value of a [`Kind::Text`] or [`Kind::Checked`] flag.
    pub fn text(&self, name: &str) -> &str {
        let flag = self.flag(name);
        assert!(
            matches!(flag.kind, Kind::Text | Kind::Checked { .. }),
            "--{name} is not text"
        );
        self.raw(flag)
    }

    /// The value of a [`Kind::Bool`] flag.
    pub fn boolean(&self, name: &str) -> bool {
        let flag = self.flag(name);
        match go_bool(self.raw(flag)) {
            Some(value) if matches!(flag.kind, Kind::Bool) => value,
            _ => panic!("--{name} is not a boolean"),
        }
    }

    /// The value of a [`Kind::Int`] flag.
    pub fn int(&self, name: &str) -> i64 {
        let flag = self.flag(name);
        match number::read(self.raw(flag)) {
            Ok(value) if matches!(flag.kind, Kind::Int) => value,
            _ => panic!("--{name} is not a number"),
        }
    }

    /// The value of a [`Kind::Uint`] flag.
    pub fn uint(&self, name: &str) -> u64 {
        let flag = self.flag(name);
        match number::read(self.raw(flag)) {
            Ok(value) if matches!(flag.kind, Kind::Uint) => value,
            _ => panic!("--{name} is not an unsigned number"),
        }
    }

    /// The items of a [`Kind::List`] flag.
    pub fn list(&self, name: &str) -> Vec<String> {
        let flag = self.flag(name);
        assert!(matches!(flag.kind, Kind::List), "--{name} is not a list");
        match self.given.get(name) {
            Some(given) => given.iter().flat_map(|value| split_list(value)).collect(),
            None => split_list(flag.default),
        }
    }

    fn raw(&self, flag: &'static Flag) -> &str {
        self.given
            .get(flag.name)
            .and_then(|given| given.last())
            .map_or(flag.default, String::as_str)
    }

    fn flag(&self, name: &str) -> &'static Flag {
        match self.flags.iter().find(|flag| flag.name == name) {
            Some(flag) => flag,
            None => panic!("--{name} is not in the table of flags"),
        }
    }
}

/// Splits at commas outside double quotes; a doubled quote inside quotes is one quote.
fn split_list(text: &str) -> Vec<String> {
    if text.is_empty() {
        return Vec::new();
    }
    let mut items = Vec::new();
    let mut item = String::new();
    let mut quoted = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, quoted) {
            ('"', true) if chars.peek() == Some(&'"') => {
                chars.next();
                item.push('"');
            }
            ('"', _) => quoted = !quoted,
            (',', false) => items.push(std::mem::take(&mut item)),
            (c, _) => item.push(c),
        }
    }
    items.push(item);
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_lists_outside_quotes() {
        assert_eq!(split_list("a,b"), ["a", "b"]);
        assert_eq!(split_list("\"a,b\",c"), ["a,b", "c"]);
        assert_eq!(split_list("\"say \"\"hi\"\"\""), ["say \"hi\""]);
        assert_eq!(split_list("a,"), ["a", ""]);
        assert!(split_list("").is_empty());
    }
}
