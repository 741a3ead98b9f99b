//! Parsing of arguments.

use outrigger_resources::value::go_bool;

use crate::{Flag, FlagError, FlagErrors, Kind, Values, number};

/// A valid command line.
#[derive(Debug, Clone)]
pub enum Parsed {
    /// `--help` or `-h`: print the usage text and exit with status 0.
    Help,
    /// Run with these values.
    Run(Values),
}

/// Parses the arguments (without the program's name). Ignores arguments that are not flags, and everything
/// after `--`. A single leading dash is equivalent to two, except in one-letter flags. `--help` has
/// precedence over errors.
///
/// # Errors
/// All errors, not only the first.
pub fn parse(flags: &'static [Flag], args: impl IntoIterator<Item = String>) -> Result<Parsed, FlagErrors> {
    match parse_every(flags, args) {
        (parsed, wrong) if wrong.is_empty() => Ok(parsed),
        (_, wrong) => Err(FlagErrors(wrong)),
    }
}

/// Like [`parse`], for callers that validate the values too: invalid flags get their defaults.
pub fn parse_every(
    flags: &'static [Flag],
    args: impl IntoIterator<Item = String>,
) -> (Parsed, Vec<FlagError>) {
    let mut values = Values::new(flags);
    let (mut wrong, mut help) = (Vec::new(), false);
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        if arg == "--" {
            break;
        }
        match take(&mut values, flags, &arg, &mut args) {
            Ok(asked) => help |= asked,
            Err(error) => wrong.push(error),
        }
    }
    if help {
        return (Parsed::Help, Vec::new());
    }
    (Parsed::Run(values), wrong)
}

/// Returns whether help was requested.
fn take(
    values: &mut Values,
    flags: &'static [Flag],
    arg: &str,
    rest: &mut impl Iterator<Item = String>,
) -> Result<bool, FlagError> {
    let Some(body) = flag_body(arg)? else {
        return Ok(false);
    };
    let (name, inline) = match body.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (body, None),
    };
    if name.is_empty() || name.starts_with('-') {
        return Err(FlagError::Syntax(arg.to_owned()));
    }
    let Some(flag) = flags.iter().find(|flag| flag.name == name) else {
        if matches!(name, "help" | "h") {
            return Ok(true);
        }
        return Err(FlagError::unknown(flags, name));
    };
    let value = match (inline, flag.kind) {
        (Some(value), _) => value,
        (None, Kind::Bool) => "true".to_owned(),
        (None, _) => rest.next().ok_or(FlagError::NoValue(flag.name))?,
    };
    check(flag, &value)?;
    values.set(flag, value);
    Ok(false)
}

/// The text after the dashes, or `None` for an argument that is not a flag.
fn flag_body(arg: &str) -> Result<Option<&str>, FlagError> {
    if let Some(body) = arg.strip_prefix("--") {
        return Ok(Some(body));
    }
    match arg.strip_prefix('-') {
        None | Some("") => Ok(None),
        Some("h") => Ok(Some("h")),
        Some(body) if arg.len() > 2 => Ok(Some(body)),
        Some(_) => Err(FlagError::Shorthand(arg.to_owned())),
    }
}

fn check(flag: &'static Flag, value: &str) -> Result<(), FlagError> {
    let outcome = match flag.kind {
        Kind::Text | Kind::List => Ok(()),
        Kind::Bool => go_bool(value)
            .map(drop)
            .ok_or_else(|| format!("parsing \"{value}\": invalid syntax")),
        Kind::Int => number::read::<i64>(value).map(drop),
        Kind::Uint => number::read::<u64>(value).map(drop),
        Kind::Checked { check, .. } => check(value),
    };
    outcome.map_err(|cause| FlagError::value(flag, value, cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn even(text: &str) -> Result<(), String> {
        if text.len().is_multiple_of(2) {
            Ok(())
        } else {
            Err("odd length".into())
        }
    }

    const PAIRS: Kind = Kind::Checked {
        name: "pairs",
        expected: "an even number of letters",
        check: even,
    };
    const FLAGS: &[Flag] = &[
        Flag::text("name", "anon", "a name"),
        Flag::int("port", "80", "a port"),
        Flag::uint("streams", "3", "streams"),
        Flag::boolean("json", "false", "JSON"),
        Flag::list("path", "paths"),
        Flag::new("pairs", PAIRS, "", "pairs"),
        Flag::boolean("ssl", "false", "TLS").deprecated("use --name"),
    ];

    fn run(args: &[&str]) -> Values {
        match parse(FLAGS, args.iter().map(|&arg| arg.to_owned())) {
            Ok(Parsed::Run(values)) => values,
            other => panic!("{args:?}: {other:?}"),
        }
    }

    fn fail(args: &[&str]) -> String {
        parse(FLAGS, args.iter().map(|&arg| arg.to_owned()))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn defaults_apply_when_absent() {
        let values = run(&[]);
        assert_eq!(
            (values.text("name"), values.int("port"), values.uint("streams")),
            ("anon", 80, 3)
        );
        assert!(!values.boolean("json") && values.list("path").is_empty() && !values.given("json"));
    }

    #[test]
    fn parses_every_value_form() {
        let values = run(&[
            "-name",
            "x",
            "ignored",
            "--port=-1",
            "-streams=4",
            "--json",
            "false",
            "--path",
            "a,b",
            "-path=c",
            "--pairs=ab",
        ]);
        assert_eq!(
            (values.text("name"), values.int("port"), values.uint("streams")),
            ("x", -1, 4)
        );
        assert!(values.boolean("json"), "a boolean takes no separate value");
        assert_eq!(values.list("path"), ["a", "b", "c"]);
        assert_eq!(values.text("pairs"), "ab");
    }

    #[test]
    fn last_value_wins() {
        let values = run(&[
            "--name", "--json", "--port", "1", "--port", "2", "--json=0", "--name=",
        ]);
        assert_eq!(values.text("name"), "");
        assert_eq!(values.int("port"), 2);
        assert!(values.given("json") && !values.boolean("json"));
    }

    #[test]
    fn double_dash_ends_the_flags() {
        assert_eq!(run(&["--", "--port", "1"]).int("port"), 80);
    }

    #[test]
    fn deprecated_flags_warn_once() {
        let values = run(&["--ssl", "--ssl=false"]);
        assert_eq!(values.notices(), ["Flag --ssl has been deprecated, use --name"]);
    }

    #[test]
    fn errors_name_flag_and_remedy() {
        for (args, text) in [
            (&["--nope"][..], "unknown flag: --nope (did you mean --name?)"),
            (
                &["-nowhere=1"],
                "unknown flag: --nowhere (run with --help for all flags)",
            ),
            (
                &["-x"],
                "unknown shorthand flag: -x (run with --help for all flags)",
            ),
            (&["--port"], "flag needs an argument: --port (add its value)"),
            (&["--=1"], "bad flag syntax: --=1 (run with --help for all flags)"),
            (
                &["--port", "a"],
                "invalid argument \"a\" for \"--port\" flag: parsing \"a\": invalid syntax (give a whole number)",
            ),
            (
                &["--pairs=a"],
                "invalid argument \"a\" for \"--pairs\" flag: odd length (give an even number of letters)",
            ),
            (
                &["--json=maybe"],
                "invalid argument \"maybe\" for \"--json\" flag: parsing \"maybe\": invalid syntax (give true or false)",
            ),
        ] {
            assert_eq!(fail(args), text);
        }
    }

    #[test]
    fn suggests_flag_by_prefix() {
        assert_eq!(
            fail(&["--stream=1"]),
            "unknown flag: --stream (did you mean --streams?)"
        );
        assert_eq!(fail(&["--por=1"]), "unknown flag: --por (did you mean --port?)");
    }

    #[test]
    fn does_not_suggest_deprecated_flags() {
        assert_eq!(
            fail(&["--ssk=1"]),
            "unknown flag: --ssk (run with --help for all flags)"
        );
    }

    #[test]
    fn reports_all_errors() {
        let text = fail(&["--nowhere", "--port=many", "--name=x", "--streams=-1", "--port"]);
        assert_eq!(text.lines().count(), 4, "{text}");
    }

    #[test]
    fn keeps_valid_values_despite_errors() {
        let args = ["--nowhere", "--port=many", "--name=x"];
        let (parsed, wrong) = parse_every(FLAGS, args.map(str::to_owned));
        let Parsed::Run(values) = parsed else {
            panic!("help was not requested")
        };
        assert_eq!(
            (values.text("name"), values.int("port"), wrong.len()),
            ("x", 80, 2)
        );
    }

    #[test]
    fn help_overrides_errors() {
        for args in [
            &["--help"][..],
            &["-h"],
            &["-help"],
            &["--port=1", "--help", "--nope"],
            &["--nope", "--help"],
        ] {
            let parsed = parse(FLAGS, args.iter().map(|&arg| arg.to_owned()));
            assert!(matches!(parsed, Ok(Parsed::Help)), "{args:?}");
        }
    }
}
