//! Parses JSON queries.

use bytes::Bytes;
use outrigger_component::state::{Filter, Order, Query, Sort};
use outrigger_component::{Error, Kind};
use outrigger_go_json::{check_values, from_slice};
use outrigger_offload::offload;
use serde_json::{Map, Value};

use crate::outbound::Cause;

/// Deepest nesting of filters.
const MAX_DEPTH: usize = 64;

/// Like [`parse`], off the serving thread if the text is large; bounds the number of values.
pub(super) async fn read(text: Bytes) -> Result<Query, Cause> {
    let size = text.len();
    let work = move || {
        check_values(&text)
            .map_err(|cause| Error::new(Kind::TooLarge, format!("the query is too large: {cause}")))?;
        parse(&text).map_err(|error| Cause::Own(format!("failed to parse JSON query body: {error}")))
    };
    offload(size, work).await
}

/// Parses `{"filter": …, "sort": […], "page": {"limit", "token"}}`.
fn parse(text: &[u8]) -> Result<Query, String> {
    let query: Value = from_slice(text).map_err(|error| error.to_string())?;
    let Value::Object(query) = query else {
        return Err("the query must be a JSON object".to_owned());
    };
    let mut parsed = Query::default();
    match query.get("filter") {
        None | Some(Value::Null) => {}
        Some(Value::Object(members)) if members.is_empty() => {}
        Some(filter) => parsed.filter = Some(parse_filter(filter, MAX_DEPTH)?),
    }
    match query.get("sort") {
        None | Some(Value::Null) => {}
        Some(Value::Array(items)) => {
            parsed.sort = items.iter().map(parse_sort).collect::<Result<_, _>>()?;
        }
        Some(_) => return Err("sort must be an array".to_owned()),
    }
    match query.get("page") {
        None | Some(Value::Null) => {}
        Some(Value::Object(page)) => {
            parsed.limit = match page.get("limit") {
                None | Some(Value::Null) => 0,
                Some(limit) => limit.as_u64().ok_or("page.limit must be a whole number from 0")?,
            };
            parsed.token = optional_text(page, "token")?.unwrap_or_default().to_owned();
        }
        Some(_) => return Err("page must be an object".to_owned()),
    }
    Ok(parsed)
}

fn optional_text<'m>(members: &'m Map<String, Value>, name: &str) -> Result<Option<&'m str>, String> {
    match members.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{name} must be a text")),
    }
}

fn parse_sort(item: &Value) -> Result<Sort, String> {
    let item = item.as_object().ok_or("sort must hold objects")?;
    let key = optional_text(item, "key")?.unwrap_or_default().to_owned();
    let order = match optional_text(item, "order")?.unwrap_or_default() {
        "" | "ASC" => Order::Ascending,
        "DESC" => Order::Descending,
        other => return Err(format!("sort order {other:?} is neither ASC nor DESC")),
    };
    Ok(Sort { key, order })
}

fn parse_filter(filter: &Value, depth: usize) -> Result<Filter, String> {
    let depth = depth.checked_sub(1).ok_or("the filter is nested too deeply")?;
    let members = filter.as_object().ok_or("a filter must be an object")?;
    let mut members = members.iter();
    let (Some((operator, operand)), None) = (members.next(), members.next()) else {
        return Err("a filter must have exactly one operator".to_owned());
    };
    match operator.as_str() {
        "EQ" => pair(operator, operand).map(|(key, value)| Filter::Eq(key, value)),
        "NEQ" => pair(operator, operand).map(|(key, value)| Filter::Neq(key, value)),
        "GT" => pair(operator, operand).map(|(key, value)| Filter::Gt(key, value)),
        "GTE" => pair(operator, operand).map(|(key, value)| Filter::Gte(key, value)),
        "LT" => pair(operator, operand).map(|(key, value)| Filter::Lt(key, value)),
        "LTE" => pair(operator, operand).map(|(key, value)| Filter::Lte(key, value)),
        "IN" => match pair(operator, operand)? {
            (key, Value::Array(values)) => Ok(Filter::In(key, values)),
            _ => Err("IN takes an array".to_owned()),
        },
        "AND" => several(operator, operand, depth).map(Filter::And),
        "OR" => several(operator, operand, depth).map(Filter::Or),
        other => Err(format!("unsupported filter {other:?}")),
    }
}

fn pair(operator: &str, operand: &Value) -> Result<(String, Value), String> {
    let mut members = operand.as_object().into_iter().flatten();
    match (members.next(), members.next()) {
        (Some((key, value)), None) => Ok((key.clone(), value.clone())),
        _ => Err(format!("{operator} filter must have a single key/value pair")),
    }
}

fn several(operator: &str, operand: &Value, depth: usize) -> Result<Vec<Filter>, String> {
    let filters = operand.as_array().map(Vec::as_slice).unwrap_or_default();
    if filters.len() < 2 {
        return Err(format!(
            "{operator} filter must be an array of at least two filters"
        ));
    }
    filters.iter().map(|filter| parse_filter(filter, depth)).collect()
}

/// Parses `text` as a query.
///
/// # Panics
///
/// If a filter exceeds the depth limit.
#[cfg(feature = "fuzzing")]
pub fn fuzz_query(text: &[u8]) {
    fn depth(filter: &Filter) -> usize {
        match filter {
            Filter::And(filters) | Filter::Or(filters) => 1 + filters.iter().map(depth).max().unwrap_or(0),
            _ => 1,
        }
    }
    if let Ok(query) = parse(text) {
        assert!(query.filter.as_ref().map_or(0, depth) <= MAX_DEPTH);
    }
}

#[cfg(test)]
mod tests {
    use outrigger_go_json::MAX_VALUES;
    use outrigger_offload::{INLINE, done_at_once};
    use serde_json::json;

    use super::*;

    fn in_list(values: usize) -> Bytes {
        format!(
            r#"{{"filter":{{"IN":{{"a":[{}]}}}}}}"#,
            vec!["0"; values].join(",")
        )
        .into()
    }

    #[tokio::test]
    async fn bounds_number_of_values() {
        let around = 7;
        assert!(read(in_list(MAX_VALUES - around)).await.is_ok());
        let error = read(in_list(MAX_VALUES - around + 1)).await.unwrap_err();
        assert_eq!(error.kind(), Some(Kind::TooLarge));
        let expected = "the query is too large: it has more than 65536 values";
        assert!(error.to_string().starts_with(expected), "{error}");
    }

    #[tokio::test]
    async fn parses_large_queries_off_thread() {
        for (size, at_once) in [(INLINE, true), (INLINE + 1, false)] {
            let text = format!("{{}}{}", " ".repeat(size - 2));
            let (was_at_once, read) = done_at_once(read(text.into())).await;
            assert_eq!(was_at_once, at_once, "{size}");
            assert_eq!(read.unwrap(), Query::default());
        }
    }

    #[test]
    fn parses_whole_query() {
        let text = br#"{"filter":{"AND":[{"EQ":{"a.b":"x"}},{"IN":{"c":[1,2]}}]},
            "sort":[{"key":"a","order":"DESC"},{"key":"b"}],"page":{"limit":3,"token":"t"}}"#;
        let query = parse(text).unwrap();
        let filters = vec![
            Filter::Eq("a.b".into(), json!("x")),
            Filter::In("c".into(), vec![json!(1), json!(2)]),
        ];
        assert_eq!(query.filter, Some(Filter::And(filters)));
        assert_eq!(query.sort[0].order, Order::Descending);
        assert_eq!(query.sort[1].order, Order::Ascending);
        assert_eq!((query.limit, query.token.as_str()), (3, "t"));
        assert_eq!(parse(b"{}").unwrap(), Query::default());
    }

    #[test]
    fn refuses_invalid_queries() {
        for text in [
            "",
            "[]",
            r#"{"filter":{"XX":{"a":1}}}"#,
            r#"{"filter":{"EQ":{"a":1,"b":2}}}"#,
            r#"{"filter":{"EQ":{"a":1},"LT":{"a":1}}}"#,
            r#"{"filter":{"AND":[{"EQ":{"a":1}}]}}"#,
            r#"{"filter":{"IN":{"a":1}}}"#,
            r#"{"sort":[{"key":"a","order":"UP"}]}"#,
            r#"{"page":{"limit":-1}}"#,
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn bounds_filter_depth() {
        let mut text = r#"{"EQ":{"a":1}}"#.to_owned();
        for _ in 0..70 {
            text = format!(r#"{{"OR":[{text},{{"EQ":{{"a":1}}}}]}}"#);
        }
        assert!(parse(format!(r#"{{"filter":{text}}}"#).as_bytes()).is_err());
    }
}
