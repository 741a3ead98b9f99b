//! Queries on the JSON values of the first generation.

use outrigger_component::{
    Error, Result,
    state::{Filter, Order, Query, SEPARATOR},
};
use serde_json::Value;
use tokio_postgres::types::{ToSql, Type};

/// Maximum parameters of a statement.
const MAX_PARAMETERS: usize = 10_000;

type Owned = Box<dyn ToSql + Sync + Send>;

/// A statement that selects key, value and ETag as text.
pub(super) struct Select {
    pub(super) sql: String,
    pub(super) parameters: Vec<(Owned, Type)>,
    /// Number of matches on the previous pages.
    pub(super) offset: i64,
}

impl Select {
    /// The statement that selects the matches of `query` in `table`. All input is passed as parameters, never
    /// as SQL text.
    pub(super) fn build(query: &Query, table: &str) -> Result<Self> {
        let mut select = Self {
            sql: String::new(),
            parameters: Vec::new(),
            offset: offset(&query.token)?,
        };
        let prefix = select.text(query.prefix.as_str())?;
        let separator = select.text(SEPARATOR)?;
        let mut sql = format!(
            "SELECT key, value::text, xmin::text FROM {table}
             WHERE (expiredate IS NULL OR expiredate >= CURRENT_TIMESTAMP)
                AND starts_with(key, {prefix}) AND strpos(substr(key, length({prefix}) + 1), {separator}) = 0"
        );
        if let Some(filter) = &query.filter {
            sql.push_str(" AND ");
            sql.push_str(&select.condition(filter)?);
        }
        sql.push_str(" ORDER BY ");
        for sort in &query.sort {
            let path = select.path(&sort.key)?;
            let direction = match sort.order {
                Order::Ascending => "",
                Order::Descending => " DESC",
            };
            // Numbers sort by value, texts by the database's collation; null counts as absent.
            sql.push_str(&format!("NULLIF(value #> {path}, 'null'){direction}, "));
        }
        // Pages need a stable order.
        sql.push_str("row_id");
        if query.limit > 0 {
            let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
            let limit = select.parameter(limit, Type::INT8, "int8")?;
            sql.push_str(&format!(" LIMIT {limit}"));
        }
        if select.offset > 0 {
            let offset = select.parameter(select.offset, Type::INT8, "int8")?;
            sql.push_str(&format!(" OFFSET {offset}"));
        }
        select.sql = sql;
        Ok(select)
    }

    fn parameter(
        &mut self,
        value: impl ToSql + Sync + Send + 'static,
        kind: Type,
        name: &str,
    ) -> Result<String> {
        if self.parameters.len() >= MAX_PARAMETERS {
            let text = format!("the query has more than {MAX_PARAMETERS} keys and values; split it");
            return Err(Error::invalid_request(text));
        }
        self.parameters.push((Box::new(value), kind));
        Ok(format!("${}::{name}", self.parameters.len()))
    }

    fn text(&mut self, text: impl Into<String>) -> Result<String> {
        self.parameter(text.into(), Type::TEXT, "text")
    }

    /// `a.b` as a path.
    fn path(&mut self, key: &str) -> Result<String> {
        let path: Vec<String> = key.split('.').map(str::to_owned).collect();
        self.parameter(path, Type::TEXT_ARRAY, "text[]")
    }

    fn condition(&mut self, filter: &Filter) -> Result<String> {
        match filter {
            Filter::Eq(key, value) => self.equality(key, "=", value),
            Filter::Neq(key, value) => self.equality(key, "!=", value),
            Filter::Gt(key, value) => self.range(key, ">", value),
            Filter::Gte(key, value) => self.range(key, ">=", value),
            Filter::Lt(key, value) => self.range(key, "<", value),
            Filter::Lte(key, value) => self.range(key, "<=", value),
            Filter::In(key, values) if values.is_empty() => Err(Error::invalid_request(format!(
                "empty IN operator for key {key:?}"
            ))),
            Filter::In(key, values) => {
                let each = values.iter().map(|value| self.equality(key, "=", value));
                each.collect::<Result<Vec<_>>>()
                    .map(|all| format!("({})", all.join(" OR ")))
            }
            Filter::And(filters) => self.joined(filters, " AND "),
            Filter::Or(filters) => self.joined(filters, " OR "),
        }
    }

    fn joined(&mut self, filters: &[Filter], by: &str) -> Result<String> {
        let each = filters.iter().map(|filter| self.condition(filter));
        each.collect::<Result<Vec<_>>>()
            .map(|all| format!("({})", all.join(by)))
    }

    fn equality(&mut self, key: &str, operator: &str, value: &Value) -> Result<String> {
        match value {
            Value::Null => {
                let path = self.path(key)?;
                let not = if operator == "=" { "" } else { "NOT " };
                Ok(format!("(value #>> {path}) IS {not}NULL"))
            }
            Value::Object(_) | Value::Array(_) => {
                let path = self.path(key)?;
                let json = self.text(value.to_string())?;
                Ok(format!("(value #> {path}) {operator} {json}::jsonb"))
            }
            simple => self.comparison(key, operator, simple),
        }
    }

    fn range(&mut self, key: &str, operator: &str, value: &Value) -> Result<String> {
        match value {
            Value::String(text) => {
                let text = format!("unsupported type of value {text}; string type not permitted");
                Err(Error::invalid_request(text))
            }
            Value::Number(_) | Value::Bool(_) => self.comparison(key, operator, value),
            Value::Null | Value::Array(_) | Value::Object(_) => {
                let text =
                    format!("unsupported type of value {value}; {key:?} can be compared with a number");
                Err(Error::invalid_request(text))
            }
        }
    }

    /// Numbers compare as numbers, other values as text.
    fn comparison(&mut self, key: &str, operator: &str, value: &Value) -> Result<String> {
        let path = self.path(key)?;
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let operand = self.text(text)?;
        let by_text = format!("(value #>> {path}) {operator} {operand}");
        if !value.is_number() {
            return Ok(by_text);
        }
        Ok(format!(
            "CASE jsonb_typeof(value #> {path})
             WHEN 'number' THEN (value #>> {path})::numeric {operator} {operand}::numeric ELSE {by_text} END"
        ))
    }
}

fn offset(token: &str) -> Result<i64> {
    if token.is_empty() {
        return Ok(0);
    }
    let number: Option<u32> = token.parse().ok();
    number.map(i64::from).ok_or_else(|| {
        let text = format!("page.token {token:?} is invalid: use the token of the previous page");
        Error::invalid_request(text)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn build(filter: Filter) -> Result<Select> {
        let query = Query {
            filter: Some(filter),
            ..Query::default()
        };
        Select::build(&query, "t")
    }

    #[test]
    fn query_input_is_never_sql() {
        let filter = Filter::And(vec![
            Filter::Eq("a'b.c".to_owned(), json!("x'; DROP TABLE t")),
            Filter::In(
                "d".to_owned(),
                vec![json!(1), json!(true), json!(null), json!([1])],
            ),
        ]);
        let select = build(filter).unwrap();
        assert!(
            !select.sql.contains("DROP") && !select.sql.contains("a'b"),
            "{}",
            select.sql
        );
        assert_eq!(select.parameters.len(), 11);
    }

    #[test]
    fn rejects_invalid_queries() {
        let key = || "a".to_owned();
        for (filter, expected) in [
            (
                Filter::Gt(key(), json!("x")),
                "unsupported type of value x; string type not permitted",
            ),
            (Filter::In(key(), vec![]), "empty IN operator for key \"a\""),
            (Filter::Lte(key(), json!(null)), "unsupported type of value null"),
            (
                Filter::In(key(), vec![json!(1); MAX_PARAMETERS]),
                "more than 10000",
            ),
        ] {
            let error = build(filter).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
        for token in ["x", "-1", "1 "] {
            assert!(offset(token).is_err(), "{token}");
        }
        assert_eq!(offset("20").unwrap(), 20);
    }
}
