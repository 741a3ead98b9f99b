//! Arguments to flags and values, the GNU way with Go's spellings.

use std::collections::HashMap;
use std::time::Duration;

use outrigger_resources::value::go_nanos;

use super::flags::{FLAGS, Flag, Takes, find};
use super::invalid::Invalid;

/// The flags of a command line, each value checked for its type.
#[derive(Debug, Default)]
pub(super) struct Given {
    values: HashMap<&'static str, Vec<String>>,
    pub(super) help: bool,
    /// A line per deprecated flag.
    pub(super) deprecations: Vec<String>,
}

impl Given {
    /// Reads arguments (without the program's name). Positional ones are ignored.
    pub(super) fn parse(args: impl IntoIterator<Item = String>) -> Result<Given, Vec<Invalid>> {
        let (mut given, mut wrong) = (Given::default(), Vec::new());
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            if arg == "--" {
                break;
            }
            // `-name` means `--name`; only `-h` stays short.
            let Some(flag) = arg.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
                continue;
            };
            let flag = flag.strip_prefix('-').unwrap_or(flag);
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            match find(name) {
                Some(known) => {
                    if let Err(invalid) = given.take(known, value, &mut args) {
                        wrong.push(invalid);
                    }
                }
                None if matches!(name, "help" | "h") => given.help = true,
                None => wrong.push(unknown(name)),
            }
        }
        if wrong.is_empty() || given.help {
            Ok(given)
        } else {
            Err(wrong)
        }
    }

    fn take(
        &mut self,
        flag: &'static Flag,
        value: Option<String>,
        rest: &mut impl Iterator<Item = String>,
    ) -> Result<(), Invalid> {
        let value = match value {
            Some(value) => value,
            None if flag.takes == Takes::Bool => "true".to_owned(),
            None => rest.next().ok_or_else(|| {
                Invalid::flag(
                    flag.name,
                    format!("flag needs an argument: --{}", flag.name),
                    "add its value",
                )
            })?,
        };
        let values = parse_value(flag.takes, &value).map_err(|expected| {
            let what = format!("invalid argument {value:?} for \"--{}\" flag", flag.name);
            Invalid::flag(flag.name, what, format!("give {expected}"))
        })?;
        if let Some(instead) = flag.deprecated {
            self.deprecations
                .push(format!("Flag --{} has been deprecated, {instead}", flag.name));
        }
        let slot = self.values.entry(flag.name).or_default();
        if flag.takes != Takes::List {
            slot.clear();
        }
        slot.extend(values);
        Ok(())
    }

    /// Whether a flag was on the command line.
    pub(super) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// The text of a flag, or its default.
    pub(super) fn text(&self, name: &'static str) -> &str {
        match self.values.get(name) {
            Some(values) => values.last().map_or("", String::as_str),
            None => find(name).map_or("", |flag| flag.default),
        }
    }

    /// The items of a list flag.
    pub(super) fn list(&self, name: &'static str) -> Vec<String> {
        self.values.get(name).cloned().unwrap_or_default()
    }

    pub(super) fn bool(&self, name: &'static str) -> bool {
        go_bool(self.text(name)).unwrap_or(false)
    }

    /// A signed or unsigned number; the type was checked when it was read.
    pub(super) fn int(&self, name: &'static str) -> i64 {
        go_int(self.text(name)).unwrap_or(0)
    }

    /// A duration; negative ones are zero.
    pub(super) fn duration(&self, name: &'static str) -> Duration {
        Duration::from_nanos(go_nanos(self.text(name)).unwrap_or(0).max(0).unsigned_abs())
    }
}

/// The values a text stands for, or what was expected.
fn parse_value(takes: Takes, text: &str) -> Result<Vec<String>, &'static str> {
    let valid = match takes {
        Takes::Text => true,
        Takes::List => return Ok(csv(text)),
        Takes::Bool => go_bool(text).is_some(),
        Takes::Int => go_int(text).is_some(),
        Takes::Uint => go_int(text).is_some_and(|n| n >= 0),
        Takes::Duration => go_nanos(text).is_ok(),
    };
    let expected = match takes {
        Takes::Bool => "true or false",
        Takes::Int => "a whole number",
        Takes::Uint => "a whole number of 0 or more",
        Takes::Duration => "a duration such as 5s or 1m30s",
        Takes::Text | Takes::List => "a text",
    };
    if valid {
        Ok(vec![text.to_owned()])
    } else {
        Err(expected)
    }
}

fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Decimal, or with `0x`, `0o`, `0b`.
fn go_int(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, &digits[2..]),
        Some("0o" | "0O") => (8, &digits[2..]),
        Some("0b" | "0B") => (2, &digits[2..]),
        _ => (10, digits),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    i64::from_str_radix(digits, radix).ok().map(|n| sign * n)
}

/// One line of comma-separated values; `"..."` protects commas.
fn csv(text: &str) -> Vec<String> {
    let mut items = Vec::new();
    if text.is_empty() {
        return items;
    }
    let (mut item, mut quoted) = (String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                item.push('"');
            }
            '"' if quoted || item.is_empty() => quoted = !quoted,
            ',' if !quoted => items.push(std::mem::take(&mut item)),
            _ => item.push(c),
        }
    }
    items.push(item);
    items
}

fn unknown(name: &str) -> Invalid {
    let near = FLAGS
        .iter()
        .filter(|f| f.deprecated.is_none())
        .min_by_key(|f| distance(f.name, name));
    let remedy = match near {
        Some(flag) if distance(flag.name, name) <= 3 => format!("did you mean --{}?", flag.name),
        _ => "run with --help for all flags".to_owned(),
    };
    Invalid::flag(name, format!("unknown flag: --{name}"), remedy)
}

/// How many letters must change to turn one name into the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(args: &[&str]) -> Given {
        Given::parse(args.iter().map(|a| (*a).to_owned())).expect("parses")
    }

    fn wrong(args: &[&str]) -> Vec<String> {
        let invalid = Given::parse(args.iter().map(|a| (*a).to_owned())).expect_err("is refused");
        invalid.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn values_come_in_every_spelling() {
        for args in [
            &["--app-id", "x"][..],
            &["--app-id=x"],
            &["-app-id", "x"],
            &["-app-id=x"],
            &["--app-id=y", "--app-id=x"],
        ] {
            assert_eq!(given(args).text("app-id"), "x", "{args:?}");
        }
        assert_eq!(given(&["--app-id="]).text("app-id"), "");
        assert!(given(&["--enable-mtls"]).bool("enable-mtls"));
        assert!(!given(&["--enable-mtls=false"]).bool("enable-mtls"));
        assert!(
            given(&["--enable-mtls", "false"]).bool("enable-mtls"),
            "a value must follow the equals sign"
        );
        assert_eq!(given(&[]).text("dapr-http-port"), "3500");
        assert_eq!(
            given(&["--app-max-concurrency", "-1"]).int("app-max-concurrency"),
            -1
        );
        assert_eq!(
            given(&["--app-max-concurrency=0x10"]).int("app-max-concurrency"),
            16
        );
    }

    #[test]
    fn lists_add_up() {
        let g = given(&["--config", "a,b", "--config=c", "--config", "\"d,e\",\"f\"\"g\""]);
        assert_eq!(g.list("config"), ["a", "b", "c", "d,e", "f\"g"]);
        assert!(given(&["--config="]).list("config").is_empty());
        assert!(given(&[]).list("config").is_empty());
    }

    #[test]
    fn positional_arguments_and_what_follows_two_dashes_are_ignored() {
        let g = given(&["run", "--app-id", "x", "-", "more", "--", "--nonsense"]);
        assert_eq!(g.text("app-id"), "x");
    }

    #[test]
    fn everything_wrong_is_reported_at_once() {
        let all = wrong(&[
            "--ap-id=x",
            "--app-max-concurrency=many",
            "--wait=maybe",
            "--zzzzzzzzzzzz",
            "--app-port",
        ]);
        assert_eq!(
            all,
            [
                "unknown flag: --ap-id (--ap-id: did you mean --app-id?)",
                "invalid argument \"many\" for \"--app-max-concurrency\" flag (--app-max-concurrency: give a whole number)",
                "invalid argument \"maybe\" for \"--wait\" flag (--wait: give true or false)",
                "unknown flag: --zzzzzzzzzzzz (--zzzzzzzzzzzz: run with --help for all flags)",
                "flag needs an argument: --app-port (--app-port: add its value)",
            ]
        );
        assert_eq!(
            wrong(&["--scheduler-job-streams=-1", "--app-binding-options-timeout=3"]).len(),
            2
        );
    }

    #[test]
    fn help_wins_and_deprecated_flags_are_noted() {
        assert!(given(&["--help", "--nonsense"]).help);
        assert!(given(&["-h"]).help);
        let g = given(&["--components-path", "x", "--app-ssl"]);
        assert_eq!(
            g.deprecations,
            [
                "Flag --components-path has been deprecated, use --resources-path",
                "Flag --app-ssl has been deprecated, use '--app-protocol https|grpcs'",
            ]
        );
    }
}
