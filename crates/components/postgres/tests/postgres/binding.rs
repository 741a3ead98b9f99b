use std::{sync::Arc, time::Duration};

use outrigger_component::{Kind, OutputBinding};
use outrigger_component_conformance as conformance;
use serde_json::{Value, json};

use outrigger_components_testing::{call, server::Postgres, text};

use super::components;

const POSTGRES: &str = "bindings.postgresql";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binding_passes_conformance() {
    let Some(mut server) = Postgres::start() else {
        return;
    };
    let connection = server.text();
    let properties = [("connectionString", connection.as_str())];
    let open = || async { components().output(POSTGRES, "v1", &properties).await.unwrap() };
    let sample = call("query", &[("sql", "SELECT 1")], "");
    conformance::output_binding(&open().await, &sample).await;
    statements(&server, "cache_statement").await;
    statements(&server, "cache_describe").await;
    types(&server).await;
    transaction_ends_with_call(&server).await;
    abandoned_calls_block_no_other(&server).await;
    bounds_answers(&server).await;
    conformance::output_binding_outlives(&open().await, &sample, &mut server).await;
}

async fn statements(server: &Postgres, mode: &str) {
    let connection = server.text();
    let properties = [("url", connection.as_str()), ("queryExecMode", mode)];
    let binding = components()
        .output("bindings.postgres", "", &properties)
        .await
        .unwrap();
    let run = async |operation: &str, sql: &str, parameters: &str| {
        binding
            .invoke(&call(operation, &[("sql", sql), ("params", parameters)], ""))
            .await
    };
    // Several statements without arguments: the count is that of the last one.
    let many = "DROP TABLE IF EXISTS foo; CREATE TABLE foo (id int, c1 text, ts timestamptz, tags text[], doc jsonb); \
                INSERT INTO foo (id) VALUES (1), (2)";
    let made = run("exec", many, "").await.unwrap().unwrap();
    assert_eq!(made.metadata["rows-affected"], "2");
    assert_eq!(made.metadata["operation"], "exec");
    assert_eq!(made.metadata["sql"], many);
    for name in ["start-time", "end-time", "duration"] {
        assert!(!made.metadata[name].is_empty(), "{name}");
    }
    let sql = "INSERT INTO foo (id, c1, ts, doc) VALUES ($1, $2, $3, $4)";
    let arguments = r#"[3.0, "demo", "2020-09-24T11:45:05Z", {"a": 1}]"#;
    let added = run("exec", sql, arguments).await.unwrap().unwrap();
    assert_eq!(added.metadata["rows-affected"], "1");
    let found = run(
        "query",
        "SELECT id, c1, doc FROM foo WHERE id >= $1 ORDER BY id",
        "[2]",
    )
    .await;
    assert_eq!(text(found.unwrap()), r#"[[2,null,null],[3,"demo",{"a":1}]]"#);
    let none = run("query", "SELECT id FROM foo WHERE id > 9", "").await.unwrap();
    assert_eq!(text(none), "[]");
    if mode == "cache_statement" {
        let array = run("query", "SELECT $1::text[]", r#"[["a", "b\"", null]]"#).await;
        assert_eq!(text(array.unwrap()), r#"[[["a","b\"",null]]]"#);
    }
    for (sql, parameters) in [
        ("SELEC", ""),
        ("SELECT nosuch FROM foo", ""),
        ("SELECT $1::int", r#"["x"]"#),
    ] {
        let error = run("query", sql, parameters).await.unwrap_err();
        assert!(error.to_string().contains("error executing query"), "{error}");
    }
    let error = binding.invoke(&call("query", &[], "")).await.unwrap_err();
    assert_eq!(error.to_string(), "required metadata not set: sql");
    assert!(binding.invoke(&call("close", &[], "")).await.unwrap().is_none());
    assert!(binding.invoke(&call("close", &[], "")).await.unwrap().is_none());
    assert_eq!(run("exec", many, "").await.unwrap_err().kind(), Kind::Closed);
}

/// A binding with one connection, and a second one for observation. `timeout` is the property of that name.
async fn one_connection(server: &Postgres, timeout: &str) -> [Arc<dyn OutputBinding>; 2] {
    let text = format!("{} pool_max_conns=1", server.text());
    let properties = [("connectionString", text.as_str()), ("timeout", timeout)];
    let open = || async { components().output(POSTGRES, "v1", &properties).await.unwrap() };
    [open().await, open().await]
}

async fn transaction_ends_with_call(server: &Postgres) {
    let [binding, other] = one_connection(server, "5s").await;
    let run = async |operation: &str, sql: &str| binding.invoke(&call(operation, &[("sql", sql)], "")).await;
    run("exec", "CREATE TABLE later (id int)").await.unwrap();
    for (operation, left_open) in [
        ("exec", "BEGIN"),
        ("query", "start transaction"),
        ("exec", "begin; INSERT INTO later VALUES (1); SELECT nosuch"),
    ] {
        let _failed = run(operation, left_open).await;
        run("exec", "INSERT INTO later VALUES (2)").await.unwrap();
    }
    let whole = "BEGIN; INSERT INTO later VALUES (2); COMMIT";
    run("exec", whole).await.unwrap();
    let seen = other
        .invoke(&call("query", &[("sql", "SELECT id FROM later")], ""))
        .await;
    assert_eq!(text(seen.unwrap()), "[[2],[2],[2],[2]]");
}

async fn abandoned_calls_block_no_other(server: &Postgres) {
    let [binding, other] = one_connection(server, "5s").await;
    let slow = call("exec", &[("sql", "SELECT pg_sleep(60)")], "");
    let quick = call("query", &[("sql", "SELECT 1")], "");
    let error = binding.invoke(&slow).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout, "{error}");
    assert_eq!(text(binding.invoke(&quick).await.unwrap()), "[[1]]");
    let given_up = tokio::time::timeout(Duration::from_millis(100), binding.invoke(&slow)).await;
    assert!(given_up.is_err());
    assert_eq!(text(binding.invoke(&quick).await.unwrap()), "[[1]]");
    // The server was asked to cancel too.
    let sql = "SELECT count(*)::int FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%sleep(60)'";
    let asleep = call("query", &[("sql", sql)], "");
    let all_awake = async {
        while text(other.invoke(&asleep).await.unwrap()) != "[[0]]" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all_awake)
        .await
        .unwrap();
}

/// An oversized answer is not read to its end, and the server cancels it.
async fn bounds_answers(server: &Postgres) {
    // Reading up to the limit takes seconds on a busy machine.
    let [binding, other] = one_connection(server, "60s").await;
    let rows = |count: usize| format!("SELECT repeat('x', 1000000) FROM generate_series(1, {count})");
    let run = async |operation: &str, sql: &str| binding.invoke(&call(operation, &[("sql", sql)], "")).await;
    assert!(text(run("query", &rows(20)).await.unwrap()).len() > 20_000_000);
    let error = run("query", &rows(1_000_000)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::TooLarge, "{error}");
    assert!(error.to_string().contains("67108864 bytes"), "{error}");
    assert_eq!(text(run("query", "SELECT 1").await.unwrap()), "[[1]]");
    // Unused rows of a statement are discarded.
    let touched = run("exec", &rows(20)).await.unwrap().unwrap();
    assert_eq!(touched.metadata["rows-affected"], "20");
    let sql = "SELECT count(*)::int FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%series(1, 1000000)'";
    let active = call("query", &[("sql", sql)], "");
    let none_active = async {
        while text(other.invoke(&active).await.unwrap()) != "[[0]]" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), none_active)
        .await
        .unwrap();
}

async fn types(server: &Postgres) {
    let binding = components()
        .output(POSTGRES, "v1", &[("connectionString", &server.text())])
        .await
        .unwrap();
    let query = async |sql: &str| binding.invoke(&call("query", &[("sql", sql)], "")).await;
    for (sql, expected) in [
        ("true", json!(true)),
        ("1::int2", json!(1)),
        ("-2::int8", json!(-2)),
        ("1.5::float4", json!(1.5)),
        ("2.25::float8", json!(2.25)),
        ("'NaN'::float8", json!("NaN")),
        ("'a<b'::text", json!("a<b")),
        ("'x'::varchar", json!("x")),
        ("'\\x01ff'::bytea", json!("Af8=")),
        ("'{\"b\":1,\"a\":[2]}'::json", json!({"a": [2], "b": 1})),
        ("'[1]'::jsonb", json!([1])),
        ("ARRAY[1,NULL,3]", json!([1, null, 3])),
        ("'2020-02-03'::date", json!("2020-02-03T00:00:00Z")),
        (
            "'2020-02-03 04:05:06.7'::timestamp",
            json!("2020-02-03T04:05:06.7Z"),
        ),
        ("'1960-01-01'::timestamp", json!("1960-01-01T00:00:00Z")),
        ("'infinity'::timestamp", json!("infinity")),
        (
            "'10:00'::time",
            json!({"Microseconds": 36_000_000_000_i64, "Valid": true}),
        ),
        (
            "'1 month 2 days 3 seconds'::interval",
            json!({"Microseconds": 3_000_000, "Days": 2, "Months": 1, "Valid": true}),
        ),
        ("'10.0.0.1'::inet", json!("10.0.0.1/32")),
        (
            "'00000000-0000-0000-0000-0000000000ff'::uuid",
            json!([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255]),
        ),
        ("NULL::int", Value::Null),
    ] {
        let found: Value =
            serde_json::from_str(&text(query(&format!("SELECT {sql}")).await.unwrap())).unwrap();
        assert_eq!(found, json!([[expected]]), "{sql}");
    }
    for number in [
        "0",
        "-1.50",
        "12345678901234567890.0001",
        "0.00012",
        "10000",
        "100000000",
        "-0.1",
        "9999.9999",
        "1234567.80",
    ] {
        let shown = text(query(&format!("SELECT {number}::numeric")).await.unwrap());
        assert_eq!(shown, format!("[[{number}]]"));
    }
    let zone = text(query("SELECT '2020-02-03 00:00Z'::timestamptz").await.unwrap());
    let zone: Value = serde_json::from_str(&zone).unwrap();
    assert!(zone[0][0].as_str().unwrap().starts_with("2020-02-0"), "{zone}");
    let error = query("SELECT '(1,2)'::point AS place")
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("place::text") && error.contains("point"),
        "{error}"
    );
}
