//! Server answers over the limit.

use outrigger_component::{
    answer::MAX_ANSWER,
    bindings::{Invoke, Invoked},
};

use super::*;

const LARGE: usize = MAX_ANSWER + 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bounds_answers() {
    let Some(server) = Postgres::start() else { return };
    let text = server.text();
    let properties = [("connectionString", text.as_str()), ("maxConns", "2")];
    let open = |version| components().state("state.postgresql", version, &properties);
    let client = sql(&server).await;
    for (version, table, value) in [
        ("v2", "state", format!("repeat('x', {LARGE})::bytea")),
        ("v1", "state", format!("to_jsonb(repeat('x', {LARGE}))")),
    ] {
        client
            .batch_execute("DROP TABLE IF EXISTS state, dapr_metadata")
            .await
            .unwrap();
        let store = open(version).await.unwrap();
        store.set(&set("small", Value::Bytes("v".into()))).await.unwrap();
        let columns = if version == "v1" { ", isbinary" } else { "" };
        let values = if version == "v1" { ", false" } else { "" };
        let insert = format!("INSERT INTO {table} (key, value{columns}) VALUES ('large', {value}{values})");
        client.batch_execute(&insert).await.unwrap();
        let (small, large) = (Get::key("small"), Get::key("large"));
        for _ in 0..3 {
            let error = store.get(&large).await.unwrap_err();
            assert_eq!(error.kind(), Kind::TooLarge, "{error}");
            assert!(error.to_string().contains("--max-body-size"), "{error}");
            assert_eq!(store.get(&small).await.unwrap().unwrap().data, "v");
        }
        let both = store.bulk_get(&[small, large], Bounds::default()).await;
        assert_eq!(both.unwrap_err().kind(), Kind::TooLarge);
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bounds_binding_answers() {
    let Some(server) = Postgres::start() else { return };
    let text = server.text();
    let properties = [("connectionString", text.as_str()), ("maxConns", "2")];
    let binding = components()
        .output("bindings.postgresql", "v1", &properties)
        .await
        .unwrap();
    let run = async |operation: &str, sql: String| -> outrigger_component::Result<Option<Invoked>> {
        let call = Invoke {
            operation: operation.to_owned(),
            metadata: Pairs::from([("sql".to_owned(), sql)]),
            ..Invoke::default()
        };
        binding.invoke(&call).await
    };
    let half = MAX_ANSWER / 2 + 1024;
    for (operation, sql) in [
        ("query", format!("SELECT repeat('x', {LARGE})")),
        (
            "query",
            format!("SELECT repeat('x', {half}) FROM generate_series(1, 20)"),
        ),
        (
            "exec",
            format!("SELECT repeat('x', {LARGE}) FROM generate_series(1, 20)"),
        ),
    ] {
        let error = run(operation, sql.clone()).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::TooLarge, "{sql}: {error}");
        let answer = run("query", "SELECT 1".to_owned()).await.unwrap().unwrap();
        assert_eq!(answer.data, "[[1]]");
    }
}
