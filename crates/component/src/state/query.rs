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

/// A query: filter, order and page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Query {
    /// `None` = everything.
    pub filter: Option<Filter>,
    /// Most significant first.
    pub sort: Vec<Sort>,
    /// At most so many; 0 = the store's choice.
    pub limit: u64,
    /// The token of the previous page; empty for the first page.
    pub token: String,
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
