//! Converts requests of the trait to messages of the contract, and answers back.

use std::collections::HashMap;

use bytes::Bytes;
use outrigger_component::{
    Error, Pairs, Result,
    state::{
        Bounds, BulkItem, Concurrency, Consistency, Delete, Filter, Get, Item, Operation, Order, Query,
        QueryItem, QueryPage, Set, Value,
    },
};
use outrigger_go_json::Html;
use outrigger_wire::components::v1::{
    self as wire, BulkStateItem, DeleteRequest, Etag, GetRequest, Pagination, QueryResponse, SetRequest,
    Sorting, StateOptions, TransactionalStateOperation, sorting,
    state_options::{StateConcurrency, StateConsistency},
    transactional_state_operation::Request,
};
use serde_json::{Value as Json, json};

pub(super) fn get(request: &Get) -> GetRequest {
    GetRequest {
        key: request.key.clone(),
        metadata: request.metadata.clone(),
        consistency: consistency(request.consistency),
    }
}

/// # Errors
/// Invalid JSON, and `null`, which Dapr does not pass to these stores.
pub(super) fn set(request: &Set) -> Result<SetRequest> {
    let value = request.value.stored(Html::Escape)?.into_owned();
    if !matches!(request.value, Value::Bytes(_)) && value.as_ref() == b"null" {
        return Err(Error::invalid_request(
            "an attempt to set a nil value was received, try to use Delete instead",
        ));
    }
    // Stores may reject a first write without an ETag, so `only_new` is not passed on.
    let concurrency = match request.only_new {
        true => Concurrency::Unspecified,
        false => request.concurrency,
    };
    Ok(SetRequest {
        key: request.key.clone(),
        value,
        etag: etag(request.etag.as_deref()),
        metadata: request.metadata.clone(),
        options: options(concurrency, request.consistency),
        content_type: request.content_type.clone().unwrap_or_default(),
    })
}

pub(super) fn delete(request: &Delete) -> DeleteRequest {
    DeleteRequest {
        key: request.key.clone(),
        etag: etag(request.etag.as_deref()),
        metadata: request.metadata.clone(),
        options: options(request.concurrency, request.consistency),
    }
}

pub(super) fn operation(operation: &Operation) -> Result<TransactionalStateOperation> {
    let request = match operation {
        Operation::Set(request) => Request::Set(set(request)?),
        Operation::Delete(request) => Request::Delete(delete(request)),
    };
    Ok(TransactionalStateOperation {
        request: Some(request),
    })
}

fn etag(given: Option<&str>) -> Option<Etag> {
    let value = given?.to_owned();
    Some(Etag { value })
}

fn options(concurrency: Concurrency, consistency_wanted: Consistency) -> Option<StateOptions> {
    let concurrency = match concurrency {
        Concurrency::Unspecified => StateConcurrency::ConcurrencyUnspecified,
        Concurrency::FirstWrite => StateConcurrency::ConcurrencyFirstWrite,
        Concurrency::LastWrite => StateConcurrency::ConcurrencyLastWrite,
    };
    Some(StateOptions {
        concurrency: concurrency.into(),
        consistency: consistency(consistency_wanted),
    })
}

fn consistency(wanted: Consistency) -> i32 {
    let consistency = match wanted {
        Consistency::Unspecified => StateConsistency::ConsistencyUnspecified,
        Consistency::Eventual => StateConsistency::ConsistencyEventual,
        Consistency::Strong => StateConsistency::ConsistencyStrong,
    };
    consistency.into()
}

/// A value; in the contract, an empty item means absent.
pub(super) fn item(data: Bytes, etag: Option<Etag>, metadata: Pairs, content_type: String) -> Option<Item> {
    if data.is_empty() && etag.is_none() {
        return None;
    }
    Some(Item {
        data,
        etag: etag.map(|etag| etag.value),
        metadata,
        content_type: Some(content_type).filter(|kind| !kind.is_empty()),
    })
}

/// One answer per request, whatever order the component used and whatever it omitted or added.
pub(super) fn in_order(requests: &[Get], items: Vec<BulkStateItem>, bounds: Bounds) -> Result<Vec<BulkItem>> {
    let tally = bounds.tally();
    let mut found: HashMap<String, BulkStateItem> =
        items.into_iter().map(|item| (item.key.clone(), item)).collect();
    let mut last_use: HashMap<&str, usize> = HashMap::new();
    for (index, request) in requests.iter().enumerate() {
        last_use.insert(&request.key, index);
    }
    let answer = |(index, request): (usize, &Get)| {
        let item = if last_use.get(request.key.as_str()) == Some(&index) {
            found.remove(&request.key)
        } else {
            found.get(&request.key).cloned()
        };
        tally.answer(request.key.as_str(), item.map_or(Ok(None), bulk_item))
    };
    requests.iter().enumerate().map(answer).collect()
}

fn bulk_item(found: BulkStateItem) -> Result<Option<Item>> {
    if !found.error.is_empty() {
        return Err(Error::new(outrigger_component::Kind::Internal, found.error));
    }
    Ok(item(found.data, found.etag, found.metadata, found.content_type))
}

pub(super) fn query(query: &Query) -> wire::Query {
    let sort = query.sort.iter().map(|sort| Sorting {
        key: sort.key.clone(),
        order: match sort.order {
            Order::Ascending => sorting::Order::Asc.into(),
            Order::Descending => sorting::Order::Desc.into(),
        },
    });
    let filter = query.filter.as_ref().map(filter);
    let filter = filter.into_iter().map(|(name, value)| {
        let value = value.to_string().into_bytes();
        let type_url = String::new();
        (name.to_owned(), prost_types::Any { type_url, value })
    });
    wire::Query {
        filter: filter.collect(),
        sort: sort.collect(),
        pagination: Some(Pagination {
            limit: i64::try_from(query.limit).unwrap_or(i64::MAX),
            token: query.token.clone(),
        }),
    }
}

/// Operator and operand of a filter in query notation.
fn filter(given: &Filter) -> (&'static str, Json) {
    let all = |filters: &[Filter]| {
        let whole = filters.iter().map(|given| {
            let (name, value) = filter(given);
            json!({ name: value })
        });
        Json::Array(whole.collect())
    };
    match given {
        Filter::Eq(key, value) => ("EQ", json!({ key.as_str(): value })),
        Filter::Neq(key, value) => ("NEQ", json!({ key.as_str(): value })),
        Filter::Gt(key, value) => ("GT", json!({ key.as_str(): value })),
        Filter::Gte(key, value) => ("GTE", json!({ key.as_str(): value })),
        Filter::Lt(key, value) => ("LT", json!({ key.as_str(): value })),
        Filter::Lte(key, value) => ("LTE", json!({ key.as_str(): value })),
        Filter::In(key, values) => ("IN", json!({ key.as_str(): values })),
        Filter::And(filters) => ("AND", all(filters)),
        Filter::Or(filters) => ("OR", all(filters)),
    }
}

pub(super) fn page(answer: QueryResponse) -> QueryPage {
    let items = answer.items.into_iter().map(|item| QueryItem {
        key: item.key,
        data: item.data,
        etag: item.etag.map(|etag| etag.value),
        error: Some(item.error).filter(|error| !error.is_empty()),
    });
    QueryPage {
        items: items.collect(),
        token: answer.token,
        metadata: answer.metadata,
    }
}

#[cfg(test)]
mod tests {
    use outrigger_component::state::Sort;

    use super::*;

    fn found(key: &str, data: &'static str) -> BulkStateItem {
        BulkStateItem {
            key: key.to_owned(),
            data: Bytes::from_static(data.as_bytes()),
            ..BulkStateItem::default()
        }
    }

    #[test]
    fn answers_follow_request_order() {
        let requests = ["a", "b", "a", "c", "d"].map(Get::key);
        let failed = BulkStateItem {
            error: "broken".to_owned(),
            ..found("c", "")
        };
        let items = vec![failed, found("alien", "x"), found("a", "1"), found("d", "2")];
        let answers = in_order(&requests, items, Bounds::default()).unwrap();
        let texts: Vec<_> = answers
            .iter()
            .map(|answer| match &answer.item {
                Ok(Some(item)) => String::from_utf8_lossy(&item.data).into_owned(),
                Ok(None) => "none".to_owned(),
                Err(error) => error.to_string(),
            })
            .collect();
        assert_eq!(texts, ["1", "none", "1", "broken", "2"]);
        let keys: Vec<_> = answers.iter().map(|answer| answer.key.as_str()).collect();
        assert_eq!(keys, ["a", "b", "a", "c", "d"]);
    }

    #[test]
    fn sends_queries_unchanged() {
        let given = Query {
            filter: Some(Filter::Or(vec![
                Filter::Eq("a.b".to_owned(), json!("x")),
                Filter::And(vec![
                    Filter::In("c".to_owned(), vec![json!(1), json!(2)]),
                    Filter::Gte("d".to_owned(), json!(1.5)),
                ]),
            ])),
            sort: vec![Sort {
                key: "a".to_owned(),
                order: Order::Descending,
            }],
            limit: 3,
            token: "t".to_owned(),
            ..Query::default()
        };
        let sent = query(&given);
        let operand: Json = serde_json::from_slice(&sent.filter["OR"].value).unwrap();
        let expected = json!([{"EQ": {"a.b": "x"}}, {"AND": [{"IN": {"c": [1, 2]}}, {"GTE": {"d": 1.5}}]}]);
        assert_eq!(operand, expected);
        assert_eq!((sent.filter.len(), sent.filter["OR"].type_url.as_str()), (1, ""));
        assert_eq!((sent.sort[0].key.as_str(), sent.sort[0].order), ("a", 1));
        assert_eq!(sent.pagination.unwrap().limit, 3);
        assert!(query(&Query::default()).filter.is_empty());
    }

    #[test]
    fn rejects_null() {
        let null = Set {
            key: "k".to_owned(),
            value: Value::Json(Bytes::from_static(b" null ")),
            ..Set::default()
        };
        assert!(set(&null).unwrap_err().to_string().contains("use Delete"));
        let bytes = Set {
            value: Value::Bytes(Bytes::from_static(b"null")),
            ..null
        };
        assert_eq!(set(&bytes).unwrap().value.as_ref(), b"null");
    }
}
