//! Queries in the first generation.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v1_answers_queries() {
    let Some(server) = Postgres::start() else { return };
    let text = server.text();
    let properties = [("connectionString", text.as_str())];
    let store = components()
        .state("state.postgresql", "v1", &properties)
        .await
        .unwrap();
    assert!(store.features().contains(&Feature::Query));
    let people = [
        (
            "1",
            r#"{"person":{"org":"Dev Ops","id":9},"city":"Seattle","ok":true}"#,
        ),
        (
            "2",
            r#"{"person":{"org":"Hardware","id":10},"city":"Portland","ok":false}"#,
        ),
        (
            "3",
            r#"{"person":{"org":"Finance","id":1000000},"city":"Seattle","ok":null}"#,
        ),
        ("4", r#"{"person":{"org":"Finance","id":"10"}}"#),
    ];
    for (key, value) in people {
        let set = set(&format!("app||{key}"), Value::Json(value.into()));
        store.set(&set).await.unwrap();
    }
    let mut past = set("app||5", Value::Json(r#"{"city":"Seattle"}"#.into()));
    past.metadata.insert(TTL.to_owned(), "1".to_owned());
    store.set(&past).await.unwrap();
    store
        .set(&set("app||bytes", Value::Bytes("Seattle".into())))
        .await
        .unwrap();
    // Keys of other apps, of an actor of this app, and of a component without a prefix.
    for key in ["app2||1", "my-app||1", "APP||1", "app||type||id||key", "1"] {
        let value = Value::Json(r#"{"city":"Seattle"}"#.into());
        store.set(&set(key, value)).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(1100)).await;

    for (filter, sort, expected) in queries() {
        let query = Query {
            filter: Some(filter.clone()),
            sort,
            ..of_app()
        };
        let page = store
            .query(&query, &Pairs::new(), Bounds::default())
            .await
            .unwrap();
        let keys: Vec<_> = page.items.iter().map(|item| item.key.as_str()).collect();
        let expected: Vec<_> = expected.iter().map(|key| format!("app||{key}")).collect();
        assert_eq!(keys, expected, "{filter:?}");
        assert_eq!(page.token, "");
    }
    let mut query = Query { limit: 3, ..of_app() };
    let mut seen = Vec::new();
    for (count, token) in [(3, "3"), (2, "5"), (0, "5")] {
        let page = store
            .query(&query, &Pairs::new(), Bounds::default())
            .await
            .unwrap();
        assert_eq!((page.items.len(), page.token.as_str()), (count, token));
        seen.extend(page.items.into_iter().map(|item| item.key));
        query.token = page.token;
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 5);
    let first = Query {
        limit: 1,
        filter: Some(Filter::Eq("city".to_owned(), json!("Portland"))),
        ..of_app()
    };
    let page = store
        .query(&first, &Pairs::new(), Bounds::default())
        .await
        .unwrap();
    let item = store.get(&Get::key("app||2")).await.unwrap().unwrap();
    assert_eq!(
        (&page.items[0].data, &page.items[0].etag),
        (&item.data, &item.etag)
    );
    // Two of five fit; later ones are not read.
    let bounds = Bounds {
        bytes: 2 * size_of::<QueryItem>() + 2 * item.data.len(),
        ..Bounds::default()
    };
    let all = of_app();
    let error = store.query(&all, &Pairs::new(), bounds).await.unwrap_err();
    assert_eq!(error.kind(), Kind::TooLarge, "{error}");
    assert!(error.to_string().contains("page.limit"), "{error}");
    let some = store.query(&first, &Pairs::new(), bounds).await.unwrap();
    assert_eq!(some.items.len(), 1);

    let unprefixed = store
        .query(&Query::default(), &Pairs::new(), Bounds::default())
        .await
        .unwrap();
    let keys: Vec<_> = unprefixed.items.iter().map(|item| item.key.as_str()).collect();
    assert_eq!(keys, ["1"]);

    let properties = [("connectionString", text.as_str()), ("tablePrefix", "second_")];
    let v2 = components()
        .state("state.postgresql", "v2", &properties)
        .await
        .unwrap();
    assert!(!v2.features().contains(&Feature::Query));
}

fn of_app() -> Query {
    Query {
        prefix: "app||".to_owned(),
        ..Query::default()
    }
}

/// Filter, sort order, and the matching keys in order.
fn queries() -> Vec<(Filter, Vec<Sort>, &'static [&'static str])> {
    let org = || "person.org".to_owned();
    let id = || "person.id".to_owned();
    let city = || "city".to_owned();
    let by = |key: &str, order| Sort {
        key: key.to_owned(),
        order,
    };
    vec![
        (Filter::Eq(city(), json!("Seattle")), vec![], &["1", "3"]),
        (Filter::Neq(city(), json!("Seattle")), vec![], &["2"]),
        (Filter::Eq(city(), json!(null)), vec![], &["4", "bytes"]),
        (Filter::Eq("ok".to_owned(), json!(true)), vec![], &["1"]),
        (Filter::Eq(id(), json!(10)), vec![], &["2", "4"]),
        (Filter::Eq(id(), json!("10")), vec![], &["2", "4"]),
        (Filter::Eq(id(), json!(1e6)), vec![], &["3"]),
        (
            Filter::Eq("person".to_owned(), json!({"id": 9, "org": "Dev Ops"})),
            vec![],
            &["1"],
        ),
        (Filter::Gt(id(), json!(9)), vec![], &["2", "3"]),
        (
            Filter::Lte(id(), json!(10.0)),
            vec![by("person.id", Order::Descending)],
            &["2", "1", "4"],
        ),
        (
            Filter::In(org(), vec![json!("Finance"), json!("Hardware")]),
            vec![
                by("person.org", Order::Descending),
                by("person.id", Order::Ascending),
            ],
            &["2", "4", "3"],
        ),
        (
            Filter::Or(vec![
                Filter::And(vec![
                    Filter::Eq(city(), json!("Seattle")),
                    Filter::Gte(id(), json!(1_000_000)),
                ]),
                Filter::Eq(org(), json!("Hardware")),
            ]),
            vec![by("person.id", Order::Ascending)],
            &["2", "3"],
        ),
    ]
}
