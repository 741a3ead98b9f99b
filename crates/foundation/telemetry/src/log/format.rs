//! Line formats.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::sync::LazyLock;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::Level;

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Style {
    /// logrus text, for log collectors.
    #[default]
    Text,
    /// JSON objects, for log collectors.
    Json,
    /// For people: omits the fields that are equal in every line.
    Terminal,
}

impl Style {
    /// `shown`: the output is a terminal.
    pub(super) const fn of(json: bool, shown: bool) -> Self {
        match (json, shown) {
            (true, _) => Self::Json,
            (false, true) => Self::Terminal,
            (false, false) => Self::Text,
        }
    }
}

/// The style of all lines, and the fields common to every line.
#[derive(Debug, Default)]
pub(super) struct Format {
    pub(super) style: Style,
    pub(super) app_id: String,
    pub(super) version: String,
    pub(super) instance: String,
}

#[derive(Debug)]
pub(super) struct Field<'a> {
    key: &'a str,
    value: Cow<'a, str>,
    /// JSON writes the value without quotes.
    plain: bool,
}

impl<'a> Field<'a> {
    pub(super) fn text(key: &'a str, value: impl Into<Cow<'a, str>>) -> Self {
        Self {
            key,
            value: value.into(),
            plain: false,
        }
    }

    pub(super) fn plain(key: &'a str, value: impl Display) -> Self {
        Self {
            key,
            value: value.to_string().into(),
            plain: true,
        }
    }
}

impl Format {
    /// One line with its newline. Fields of the event override the common fields.
    pub(super) fn line<'a>(
        &'a self,
        level: Level,
        scope: &'a str,
        msg: &'a str,
        mut fields: Vec<Field<'a>>,
    ) -> String {
        let now = Timestamp::now();
        let mut out = String::with_capacity(256 + msg.len());
        if self.style == Style::Terminal {
            write_terminal(&mut out, now, level, scope, msg, fields);
            return out;
        }
        let time = rfc3339_nano(now, zone());
        let common = [
            ("app_id", self.app_id.as_str()),
            ("instance", &self.instance),
            ("scope", scope),
            ("type", "log"),
            ("ver", &self.version),
        ];
        for (key, value) in common {
            let absent = key == "app_id" && value.is_empty();
            if !absent && !fields.iter().any(|f| f.key == key) {
                fields.push(Field::text(key, value));
            }
        }
        if self.style == Style::Json {
            fields.push(Field::text("level", level.as_str()));
            fields.push(Field::text("msg", msg));
            fields.push(Field::text("time", time));
            sort(&mut fields);
            write_json(&mut out, &fields);
        } else {
            sort(&mut fields);
            write_text(&mut out, &time, level, msg, &fields);
        }
        out.push('\n');
        out
    }
}

/// Sorts by key; of equal keys the last recorded is kept.
fn sort(fields: &mut Vec<Field<'_>>) {
    fields.reverse();
    fields.sort_by_key(|field| field.key);
    fields.dedup_by_key(|field| field.key);
}

/// `07:08:09.120 warning message key=value scope=dapr.runtime`.
fn write_terminal(
    out: &mut String,
    now: Timestamp,
    level: Level,
    scope: &str,
    msg: &str,
    mut fields: Vec<Field<'_>>,
) {
    let time = zone().to_datetime(now).time();
    // Writing to a String cannot fail.
    let _ = write!(out, "{time:.3} {:<7} ", level.as_str());
    push_terminal_text(out, msg);
    sort(&mut fields);
    for field in &fields {
        push_field(out, field);
    }
    push_field(out, &Field::text("scope", scope));
    out.push('\n');
}

/// Appends a message for a terminal: indents continuation lines, and escapes control sequences.
fn push_terminal_text(out: &mut String, msg: &str) {
    for c in msg.trim_end().chars() {
        match c {
            '\n' => out.push_str("\n    "),
            '\t' | ' '..='~' => out.push(c),
            _ if printable(c) && !c.is_control() => out.push(c),
            _ => out.extend(c.escape_default()),
        }
    }
}

fn write_text(out: &mut String, time: &str, level: Level, msg: &str, fields: &[Field<'_>]) {
    out.push_str("time=");
    push_text_value(out, time);
    out.push_str(" level=");
    out.push_str(level.as_str());
    if !msg.is_empty() {
        out.push_str(" msg=");
        push_text_value(out, msg);
    }
    for field in fields {
        push_field(out, field);
    }
}

fn push_field(out: &mut String, field: &Field<'_>) {
    out.push(' ');
    out.push_str(field.key);
    out.push('=');
    push_text_value(out, &field.value);
}

/// Unquoted if all characters are letters, digits or `-._/@^+`; otherwise quoted like Go's `%q`.
fn push_text_value(out: &mut String, value: &str) {
    let bare =
        |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'/' | b'@' | b'^' | b'+');
    if value.bytes().all(bare) {
        out.push_str(value);
    } else {
        push_go_quoted(out, value);
    }
}

/// The text as a Go string literal, the quoting of the contract's error texts.
pub(crate) fn go_quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_go_quoted(&mut out, text);
    out
}

/// Appends `value` as a Go string literal.
fn push_go_quoted(out: &mut String, value: &str) {
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            // Writing to a String cannot fail.
            '\0'..='\u{7f}' => drop(write!(out, "\\x{:02x}", c as u32)),
            _ if printable(c) => out.push(c),
            '\u{80}'..='\u{ffff}' => drop(write!(out, "\\u{:04x}", c as u32)),
            _ => drop(write!(out, "\\U{:08x}", c as u32)),
        }
    }
    out.push('"');
}

/// Rust's definition of printable, which nearly matches Go's. The leading letter keeps combining marks
/// unescaped.
fn printable(c: char) -> bool {
    let mut buf = [0u8; 5];
    buf[0] = b'a';
    let len = 1 + c.encode_utf8(&mut buf[1..]).len();
    let pair = std::str::from_utf8(&buf[..len]).unwrap_or_default();
    pair.escape_debug().nth(1) == Some(c)
}

fn write_json(out: &mut String, fields: &[Field<'_>]) {
    for (i, field) in fields.iter().enumerate() {
        out.push(if i == 0 { '{' } else { ',' });
        push_json_string(out, field.key);
        out.push(':');
        if field.plain {
            out.push_str(&field.value);
        } else {
            push_json_string(out, &field.value);
        }
    }
    out.push('}');
}

/// A JSON string that also escapes `<`, `>` and `&`, like Go's encoder.
fn push_json_string(out: &mut String, value: &str) {
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            _ => out.push(c),
        }
    }
    out.push('"');
}

/// The local time zone, read at the first line. Without `TZ` the local zone file is read directly; looking
/// up its name would scan all zones.
fn zone() -> &'static TimeZone {
    static ZONE: LazyLock<TimeZone> = LazyLock::new(|| {
        let local = match std::env::var_os("TZ") {
            None => std::fs::read("/etc/localtime").ok(),
            Some(_) => None,
        };
        let local = local.and_then(|data| TimeZone::tzif("Local", &data).ok());
        local.unwrap_or_else(TimeZone::system)
    });
    &ZONE
}

/// RFC 3339 with up to nine fractional digits, without trailing zeros, `Z` for UTC.
fn rfc3339_nano(now: Timestamp, zone: &TimeZone) -> String {
    let offset = zone.to_offset(now);
    if offset.is_zero() {
        return now.to_string();
    }
    now.display_with_offset(offset).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(style: Style) -> Format {
        Format {
            style,
            app_id: "my-app".into(),
            version: "1.18.3".into(),
            instance: "host1".into(),
        }
    }

    fn after_time(line: &str) -> &str {
        &line[line.find(" level=").unwrap()..]
    }

    #[test]
    fn text_line() {
        let fields = vec![
            Field::text("component", "store (state.redis/v1)"),
            Field::plain("code", 200),
        ];
        let format = format(Style::Text);
        let line = format.line(Level::Warn, "dapr.runtime", "it's \"odd\"\n", fields);
        assert!(line.starts_with("time=\"2"), "{line}");
        assert_eq!(
            after_time(&line),
            " level=warning msg=\"it's \\\"odd\\\"\\n\" app_id=my-app code=200 component=\"store (state.redis/v1)\" \
             instance=host1 scope=dapr.runtime type=log ver=1.18.3\n"
        );
    }

    #[test]
    fn leaves_words_and_empty_values_unquoted() {
        let mut format = format(Style::Text);
        format.version = String::new();
        let line = format.line(Level::Info, "dapr.runtime", "ready", Vec::new());
        assert_eq!(
            after_time(&line),
            " level=info msg=ready app_id=my-app instance=host1 scope=dapr.runtime type=log ver=\n"
        );
    }

    #[test]
    fn sorts_and_escapes_json_line() {
        let fields = vec![Field::plain("size", 7), Field::text("fields.msg", "x")];
        let format = format(Style::Json);
        let line = format.line(Level::Fatal, "dapr", "a<b>\t\"q\"", fields);
        let (head, tail) = line.split_once("\"time\":").unwrap();
        assert_eq!(
            head,
            "{\"app_id\":\"my-app\",\"fields.msg\":\"x\",\"instance\":\"host1\",\"level\":\"fatal\",\
             \"msg\":\"a\\u003cb\\u003e\\t\\\"q\\\"\",\"scope\":\"dapr\",\"size\":7,"
        );
        assert!(
            tail.ends_with(",\"type\":\"log\",\"ver\":\"1.18.3\"}\n"),
            "{tail}"
        );
    }

    #[test]
    fn terminal_line_starts_with_message() {
        let fields = vec![Field::plain("attempt", 2)];
        let msg = "two\nlines \u{1b}[31m\u{202e}\u{9b}";
        let format = format(Style::of(false, true));
        let line = format.line(Level::Warn, "dapr.runtime", msg, fields);
        let (time, rest) = line.split_at(12);
        assert!(time.split([':', '.']).map(str::len).eq([2, 2, 2, 3]), "{line}");
        assert_eq!(
            rest,
            " warning two\n    lines \\u{1b}[31m\\u{202e}\\u{9b} attempt=2 scope=dapr.runtime\n"
        );
        let of = [(true, true), (true, false), (false, false)];
        assert_eq!(
            of.map(|(json, shown)| Style::of(json, shown)),
            [Style::Json, Style::Json, Style::Text]
        );
    }

    #[test]
    fn last_duplicate_field_wins() {
        let fields = vec![Field::text("app_id", "first"), Field::text("app_id", "other")];
        let format = format(Style::Text);
        let line = format.line(Level::Info, "s", "m", fields);
        assert!(
            line.contains(" app_id=other ") && !line.contains("my-app") && !line.contains("first"),
            "{line}"
        );
    }

    #[test]
    fn omits_empty_app_id() {
        let format = Format::default();
        let line = format.line(Level::Info, "s", "m", Vec::new());
        assert!(!line.contains("app_id"), "{line}");
    }

    #[test]
    fn quotes_like_go() {
        assert_eq!(
            go_quoted("é\u{0}\u{7f}\u{200b}日e\u{301}\u{1f600}\u{feff}"),
            "\"é\\x00\\x7f\\u200b日e\u{301}\u{1f600}\\ufeff\""
        );
    }

    #[test]
    fn times() {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        let ts: Timestamp = "2024-05-06T07:08:09.120300000Z".parse().unwrap();
        assert_eq!(rfc3339_nano(ts, &TimeZone::UTC), "2024-05-06T07:08:09.1203Z");
        assert_eq!(rfc3339_nano(ts, &zone), "2024-05-06T09:08:09.1203+02:00");
        let whole: Timestamp = "2024-05-06T07:08:09Z".parse().unwrap();
        assert_eq!(rfc3339_nano(whole, &TimeZone::UTC), "2024-05-06T07:08:09Z");
    }
}
