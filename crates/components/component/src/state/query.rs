/// A condition on the JSON of values; keys are paths with dots.
#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    /// The field equals the value.
    Eq(String, serde_json::Value),
    /// The field differs from the value.
    Neq(String, serde_json::Value),
    /// The field is greater.
    Gt(String, serde_json::Value),
    /// The field is greater or equal.
    Gte(String, serde_json::Value),
    /// The field is less.
    Lt(String, serde_json::Value),
    /// The field is less or equal.
    Lte(String, serde_json::Value),
    /// The field equals one of these.
    In(String, Vec<serde_json::Value>),
    /// All conditions hold; at least two.
    And(Vec<Filter>),
    /// Any condition holds; at least two.
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

/// Separates the store's prefix from the app's key in a stored key.
pub const SEPARATOR: &str = "||";

/// A query: filter, order and page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Query {
    /// Common prefix of all matches, without the [`SEPARATOR`].
    pub prefix: String,
    /// `None` for all values.
    pub filter: Option<Filter>,
    /// Most significant first.
    pub sort: Vec<Sort>,
    /// Page size; 0 for the store's choice.
    pub limit: u64,
    /// Token of the previous page; empty for the first page.
    pub token: String,
}

impl Query {
    /// The app's key in a stored key; `None` if it belongs to another app or component, or to an actor.
    pub fn own_key<'k>(&self, stored: &'k str) -> Option<&'k str> {
        let key = stored.strip_prefix(self.prefix.as_str())?;
        (!key.contains(SEPARATOR)).then_some(key)
    }
}

/// One match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueryItem {
    /// The stored key.
    pub key: String,
    /// The value.
    pub data: bytes::Bytes,
    /// ETag of the value, if the store has ETags.
    pub etag: Option<String>,
    /// Why the value could not be read.
    pub error: Option<String>,
}

/// A page of matches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueryPage {
    /// The matches.
    pub items: Vec<QueryItem>,
    /// Token of the next page; empty on the last page.
    pub token: String,
    /// Response metadata.
    pub metadata: crate::Pairs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_belongs_to_one_prefix() {
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
