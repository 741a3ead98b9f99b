//! Tables of settings on a page: `| setting | type | default | meaning |`. They are handwritten, and tests
//! compare them with the code.

use std::collections::BTreeMap;

/// A row of a table of settings.
pub struct Row {
    /// The names, or a link to a shared table.
    pub first: String,
    kind: String,
    default: String,
}

/// The documentation of a setting.
#[derive(Clone)]
pub struct Documented {
    /// The type.
    pub kind: String,
    /// The default, with or without backticks.
    pub default: String,
}

/// The sections of a page: headings and the rows of their settings.
///
/// # Panics
/// If a table of settings has other columns, or is before the first heading.
pub fn sections(text: &str) -> Vec<(String, Vec<Row>)> {
    let mut sections: Vec<(String, Vec<Row>)> = Vec::new();
    let mut is_settings = false;
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("### ").or_else(|| line.strip_prefix("## ")) {
            sections.push((heading.to_owned(), Vec::new()));
        }
        let Some(row) = line.strip_prefix("| ") else {
            is_settings = false;
            continue;
        };
        let mut cells = row.split(" |").map(|cell| cell.trim().to_owned());
        let mut cell = || cells.next().unwrap_or_default();
        let row = Row {
            first: cell(),
            kind: cell(),
            default: cell(),
        };
        let section = sections.last_mut();
        if row.first == "setting" {
            let columns = (&*row.kind, &*row.default);
            let heading = section.map(|(heading, _)| heading);
            assert_eq!(columns, ("type", "default"), "the columns of {heading:?}");
            is_settings = true;
        } else if let (true, false, Some((_, rows))) = (is_settings, row.first == "---", section) {
            rows.push(row);
        }
    }
    sections
}

/// The settings of rows, by lower-case name. If there are as many defaults as names, each name has its own.
pub fn documented_by(rows: &[Row]) -> BTreeMap<String, Documented> {
    let mut all = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.first.contains("](")) {
        let names: Vec<_> = in_backticks(&row.first).collect();
        let defaults: Vec<_> = row.default.split(", ").collect();
        for (index, name) in names.iter().enumerate() {
            let default = match defaults.get(index) {
                Some(default) if defaults.len() == names.len() => default,
                _ => &*row.default,
            };
            let documented = Documented {
                kind: row.kind.clone(),
                default: default.to_owned(),
            };
            all.insert(name.to_lowercase(), documented);
        }
    }
    all
}

/// The texts in backticks.
pub fn in_backticks(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_setting_rows_only() {
        let page = "## A\n| category | x |\n| --- | --- |\n| state | y |\n\n### `b`\n\n\
                    | setting | type | default | meaning |\n| --- | --- | --- | --- |\n\
                    | `One`, `two` | text | `1`, `2` | both |\n| [shared](#a) | | | |\n| `three` | switch | off | |\n";
        let sections = sections(page);
        let counts: Vec<_> = sections
            .iter()
            .map(|(heading, rows)| (&**heading, rows.len()))
            .collect();
        assert_eq!(counts, [("A", 0), ("`b`", 3)]);
        let settings = documented_by(&sections[1].1);
        let said: Vec<_> = settings
            .iter()
            .map(|(name, said)| (&**name, &*said.kind, &*said.default))
            .collect();
        assert_eq!(
            said,
            [
                ("one", "text", "`1`"),
                ("three", "switch", "off"),
                ("two", "text", "`2`")
            ]
        );
    }
}
