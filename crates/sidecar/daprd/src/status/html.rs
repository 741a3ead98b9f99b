//! The status as a self-contained HTML page.

use std::fmt::Write as _;

use serde_json::Value;

/// The lists: heading, key in the status, and columns.
const LISTS: &[(&str, &str, &[&str])] = &[
    (
        "Components",
        "components",
        &["name", "type", "version", "state", "error", "place"],
    ),
    ("Findings in resources", "findings", &["level", "place", "text"]),
    ("HTTP endpoints", "httpEndpoints", &["name"]),
    (
        "Subscriptions",
        "subscriptions",
        &[
            "pubsubName",
            "topic",
            "name",
            "type",
            "deadLetterTopic",
            "state",
            "error",
        ],
    ),
    (
        "Peers",
        "peers",
        &["appID", "namespace", "address", "connections"],
    ),
    ("Active actors", "actors", &["type", "count"]),
    ("Work for workers", "work", &["instanceID", "kind", "id", "why"]),
    (
        "Pending workflow work",
        "workflowWaits",
        &[
            "instanceID",
            "runtimeStatus",
            "kind",
            "id",
            "name",
            "child",
            "appID",
            "host",
            "since",
            "due",
            "until",
            "why",
        ],
    ),
    (
        "Workflows that fail",
        "failingWorkflows",
        &["instanceID", "failures", "lastFailure", "why"],
    ),
];

const HEAD: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Sidecar</title><style>\
    body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}\
    th,td{border:1px solid #ccc;padding:2px 8px;text-align:left;vertical-align:top}\
    .failed,.error{color:#b00}.skipped,.waiting,.warning{color:#850}</style></head><body>";

/// Renders the page of a status.
pub(super) fn page(status: &Value) -> String {
    let mut out = String::with_capacity(16 << 10);
    out.push_str(HEAD);
    let sidecar = &status["sidecar"];
    out.push_str("<h1>Sidecar of ");
    push(&mut out, &shown(&sidecar["appID"]));
    out.push_str("</h1><table>");
    for (name, value) in sidecar.as_object().into_iter().flatten() {
        out.push_str("<tr><th>");
        push(&mut out, name);
        out.push_str("</th><td>");
        push(&mut out, &shown(value));
        out.push_str("</td></tr>");
    }
    out.push_str("</table>");
    for (heading, name, columns) in LISTS {
        let rows = status[*name].as_array().map_or(&[][..], Vec::as_slice);
        list(&mut out, heading, rows, columns);
    }
    out.push_str("<p>The same as JSON: <a href=\"/status.json\">/status.json</a></p></body></html>");
    out
}

fn list(out: &mut String, heading: &str, rows: &[Value], columns: &[&str]) {
    let _ = write!(out, "<h2>{heading} ({})</h2>", rows.len());
    if rows.is_empty() {
        return;
    }
    out.push_str("<table><tr>");
    for column in columns {
        let _ = write!(out, "<th>{column}</th>");
    }
    out.push_str("</tr>");
    for row in rows {
        let state = ["state", "level"].iter().find_map(|name| row[*name].as_str());
        out.push_str("<tr class=\"");
        push(out, state.unwrap_or_default());
        out.push_str("\">");
        for column in columns {
            out.push_str("<td>");
            push(out, &shown(&row[*column]));
            out.push_str("</td>");
        }
        out.push_str("</tr>");
    }
    out.push_str("</table>");
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(shown).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// Appends escaped text.
fn push(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn escapes_markup() {
        let status = json!({
            "sidecar": {"appID": "<b>"},
            "components": [{"name": "\"><script>x</script>", "state": "failed", "error": "a & b"}],
            "subscriptions": [{"topic": "t'", "state": "active"}],
        });
        let page = page(&status);
        assert!(!page.contains("<script>") && !page.contains("<b>"), "{page}");
        for part in [
            "<tr class=\"failed\"><td>&quot;&gt;&lt;script&gt;x&lt;/script&gt;</td>",
            "<td>a &amp; b</td>",
            "<td>t&#39;</td>",
            "<h2>Peers (0)</h2>",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
}
