//! The subset of Go's text templates that is useful for an address: text and four fields.

use std::fmt::Write as _;

/// A template of the Kubernetes resolver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Id,
    Namespace,
    Port,
    /// Request data: an empty or absent map.
    Data(&'static str),
}

/// An invalid template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// `{{` without `}}`.
    #[error("Kubernetes name resolver: unclosed action in the template: {0}")]
    Unclosed(String),
    /// An action other than a field.
    #[error(
        "Kubernetes name resolver: the template action `{0}` is not supported; use .ID, .Namespace, \
         .Port or .Data"
    )]
    Unsupported(String),
}

impl Template {
    pub(crate) fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            let (action, after) = after
                .split_once("}}")
                .ok_or_else(|| TemplateError::Unclosed(after.to_owned()))?;
            let trims_before = action.starts_with("- ");
            let trims_after = action.ends_with(" -");
            let before = if trims_before { before.trim_end() } else { before };
            rest = if trims_after { after.trim_start() } else { after };
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            let action = action.trim_start_matches("- ").trim_end_matches(" -").trim();
            pieces.extend(Piece::parse(action)?);
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        Ok(Self(pieces))
    }

    pub(crate) fn render(&self, id: &str, namespace: &str, port: u16) -> String {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(part) => text.push_str(part),
                Piece::Id => text.push_str(id),
                Piece::Namespace => text.push_str(namespace),
                Piece::Port => {
                    // Writing to a String cannot fail.
                    let _ = write!(text, "{port}");
                }
                Piece::Data(part) => text.push_str(part),
            }
        }
        text
    }
}

impl Piece {
    fn parse(action: &str) -> Result<Option<Self>, TemplateError> {
        Ok(Some(match action {
            ".ID" => Self::Id,
            ".Namespace" => Self::Namespace,
            ".Port" => Self::Port,
            ".Data" => Self::Data("map[]"),
            _ if action.strip_prefix(".Data.").is_some_and(is_identifier) => Self::Data("<no value>"),
            _ if action.starts_with("/*") && action.ends_with("*/") => return Ok(None),
            _ => return Err(TemplateError::Unsupported(action.to_owned())),
        }))
    }
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str) -> String {
        Template::parse(template).unwrap().render("orders", "prod", 50002)
    }

    #[test]
    fn expands_fields() {
        assert_eq!(
            render("{{.ID}}-{{ .Namespace }}.internal:{{.Port}}"),
            "orders-prod.internal:50002"
        );
        assert_eq!(render("a {{- .ID -}} b{{/* note */}}"), "aordersb");
        assert_eq!(render("{{.Data.region}}{{.Data}}"), "<no value>map[]");
        assert_eq!(render("fixed:1"), "fixed:1");
    }

    #[test]
    fn rejects_other_actions() {
        assert!(matches!(
            Template::parse("{{.ID"),
            Err(TemplateError::Unclosed(_))
        ));
        for action in ["{{if .ID}}", "{{.Nothing}}", "{{printf \"%s\" .ID}}"] {
            assert!(
                matches!(Template::parse(action), Err(TemplateError::Unsupported(_))),
                "{action}"
            );
        }
    }
}
