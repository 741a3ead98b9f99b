/// A condition on the JSON of values; keys are paths with dots.
#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    /// Equal.
    Eq(String, serde_json::Value),
    /// The field differs from the value.
    Neq(String, serde_json::Value),
    /// Greater.
    Gt(String, serde_json::Value),
    /// Greater or equal.
    Gte(String, serde_json::Value),
    /// Less.
    Lt(String, serde_json::Value),
    /// Less or equal.
    Lte(String, serde_json::Value),
    /// The value at the path equals one of these.
    In(String, Vec<serde_json::Value>),
    /// All of, at least two.
    And(Vec<Filter>),
    /// Any of, at least two.
    Or(Vec<Filter>),
}

/// Direction of a sort.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// Smallest first.
    #[default]
    Ascending,
    /// Greatest first.
    Descending,
}

/// A sort criterion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sort {
    /// Path with dots.
    pub key: String,
    /// Direction.
    pub order: Order,
}

/// Divides a stored key into the prefix of its store and the app's key, which has none in it.
pub const SEPARATOR: &str = "||";

/// A query: filter, order and page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Query {
    /// What the stored keys of all matches begin with; no [`SEPARATOR`] follows it.
    pub prefix: String,
    /// `None` = everything.
    pub filter: Option<Filter>,
    /// Most significant first.
    pub sort: Vec<Sort>,
    /// At most so many; 0 = the store's choice.
    pub limit: u64,
    /// The token of the previous page; empty for the first page.
    pub token: String,
}

impl Query {
    /// The app's key of a stored one; `None` for a key of another app or component, or of an actor.
    pub fn own_key<'k>(&self, stored: &'k str) -> Option<&'k str> {
        let key = stored.strip_prefix(self.prefix.as_str())?;
        (!key.contains(SEPARATOR)).then_some(key)
    }
}

/// A match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueryItem {
    /// The stored key.
    pub key: String,
    /// The value.
    pub data: bytes::Bytes,
    /// ETag of the value, if the store has them.
    pub etag: Option<String>,
    /// Why this one could not be read.
    pub error: Option<String>,
}

/// Some matches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueryPage {
    /// The matches.
    pub items: Vec<QueryItem>,
    /// For the next page; empty = no more.
    pub token: String,
    /// Response metadata.
    pub metadata: crate::Pairs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_belongs_to_one_prefix() {
        let own = |prefix: &str, stored: &str| {
            let query = Query {
                prefix: prefix.to_owned(),
                ..Query::default()
            };
            query.own_key(stored).map(str::to_owned)
        };
        for (prefix, stored, expected) in [
            ("app||", "app||k", Some("k")),
            ("app||", "app||type||id||k", None),
            ("app||", "app2||k", None),
            ("app||", "k", None),
            ("", "k", Some("k")),
            ("", "app||k", None),
        ] {
            assert_eq!(own(prefix, stored).as_deref(), expected, "{prefix} {stored}");
        }
    }
}
