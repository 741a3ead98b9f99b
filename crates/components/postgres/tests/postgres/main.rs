//! The PostgreSQL components on a real server.
#![allow(clippy::unwrap_used, reason = "tests")]

mod answers;
mod binding;
mod queries;
mod transactions;

use std::time::Duration;

use async_trait::async_trait;
use outrigger_component::{
    Kind, Pairs, StateStore,
    configuration::{Item, Request},
    state::{Bounds, Feature, Filter, Get, Order, Query, QueryItem, Set, Sort, TTL, Value},
};
use outrigger_component_conformance::{self as conformance, StateRules, Writer};
use outrigger_components_testing::{Components, proxy::Proxy, server::Postgres, tls::Certificates};
use serde_json::json;
use tokio_postgres::{Client, NoTls, types::ToSql};

fn components() -> Components {
    Components::of(outrigger_components_postgres::add)
}

const V1: StateRules = StateRules {
    alien_etag: Kind::InvalidEtag,
    reports_expiry: true,
    takes_null: true,
    bulk_fails_whole: false,
    rejects_existing_key: true,
};

fn set(key: &str, value: Value) -> Set {
    Set {
        key: key.to_owned(),
        value,
        ..Set::default()
    }
}

async fn sql(server: &Postgres) -> Client {
    connect(&server.text()).await
}

async fn connect(text: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(text, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn cell(client: &Client, query: &str) -> Option<String> {
    client.query_one(query, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_versions_pass_conformance() {
    let Some(server) = Postgres::start() else { return };
    let text = server.text();
    let v1 = [("connectionString", text.as_str()), ("tableName", "first")];
    let v2 = [("connectionString", text.as_str()), ("tablePrefix", "second_")];
    for (version, properties, rules) in [("v1", &v1[..], V1), ("v2", &v2[..], StateRules::default())] {
        let store = components()
            .state("state.postgresql", version, properties)
            .await
            .unwrap();
        conformance::state(&store, rules).await;
        conformance::state_after_close(&store).await;
    }
    // Without prepared statements, as poolers require, and by URL with a working second host.
    let url = format!(
        "postgres://postgres@127.0.0.1:1,127.0.0.1:{}/postgres\
         ?sslmode=disable&target_session_attrs=read-write&krbsrvname=postgres",
        server.port
    );
    let simple = [
        ("url", url.as_str()),
        ("queryExecMode", "exec"),
        ("maxConns", "2"),
        // The first generation stores its level under one name for all tables.
        ("metadataTableName", "third_metadata"),
    ];
    let store = components().state("state.postgres", "", &simple).await.unwrap();
    conformance::state(&store, V1).await;
    sweeping(&server).await;
    configuration(&server).await;
}

#[tokio::test]
async fn names_unreachable_server() {
    let text = "postgres://postgres:hush@127.0.0.1:1/postgres?sslmode=disable";
    let properties = [("connectionString", text)];
    let opened = components().state("state.postgresql", "v2", &properties).await;
    let error = opened.map(drop).unwrap_err().to_string();
    assert!(
        error.contains("PostgreSQL at 127.0.0.1:1") && !error.contains("hush"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connects_over_tls() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let Some(server) = Postgres::start_tls(&certificates) else {
        return;
    };
    let identity = format!(
        "sslcert={} sslkey={}",
        certificates.text("client.pem"),
        certificates.text("client.key")
    );
    let (root, other) = (certificates.text("root.pem"), others.text("root.pem"));
    let (full, ca) = ("sslmode=verify-full", "sslmode=verify-ca");
    for (host, rest, refusal) in [
        ("127.0.0.1", format!("{full} sslrootcert={root} {identity}"), None),
        (
            "localhost",
            format!("{full} sslrootcert={root} {identity}"),
            Some("not valid for name"),
        ),
        ("localhost", format!("{ca} sslrootcert={root} {identity}"), None),
        (
            "127.0.0.1",
            format!("{ca} sslrootcert={other} {identity}"),
            Some("invalid peer certificate"),
        ),
        ("127.0.0.1", format!("sslmode=require {identity}"), None),
        // As in libpq, a given root certificate is used.
        (
            "127.0.0.1",
            format!("sslmode=require sslrootcert={other} {identity}"),
            Some("invalid peer certificate"),
        ),
        (
            "127.0.0.1",
            "sslmode=require".to_owned(),
            Some("connection requires a valid client certificate"),
        ),
        (
            "127.0.0.1",
            format!("sslmode=disable {identity}"),
            Some("no encryption"),
        ),
    ] {
        let text = format!(
            "host={host} port={} user=postgres dbname=postgres {rest}",
            server.port
        );
        let properties = [("connectionString", text.as_str())];
        let opening = components().state("state.postgresql", "v2", &properties);
        let opened = tokio::time::timeout(Duration::from_secs(10), opening).await;
        match (opened.unwrap(), refusal) {
            (Ok(store), None) => store.set(&set("k", Value::default())).await.unwrap(),
            (Ok(_), Some(_)) => panic!("{text} works"),
            (Err(error), refusal) => {
                let named = refusal.is_some_and(|refusal| error.to_string().contains(refusal));
                assert!(named, "{text}: {error}");
                assert_eq!(error.kind(), Kind::Denied, "{error}");
            }
        }
    }
}

/// Tables are created, used and swept without a named statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepares_nothing_when_forbidden() {
    let Some(server) = Postgres::start() else { return };
    let text = server.text();
    let client = sql(&server).await;
    for setting in ["log_min_duration_statement = 0", "log_line_prefix = 'app=%a '"] {
        let alter = format!("ALTER SYSTEM SET {setting}");
        client.batch_execute(&alter).await.unwrap();
    }
    client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    for version in ["v1", "v2"] {
        let name = format!("my_{version}_");
        let bookkeeping = format!("{name}metadata");
        let properties = [
            ("connectionString", text.as_str()),
            ("queryExecMode", "cache_describe"),
            ("cleanupInterval", "1s"),
            ("tableName", &name),
            ("tablePrefix", &name),
            ("metadataTableName", &bookkeeping),
        ];
        let store = components()
            .state("state.postgresql", version, &properties)
            .await
            .unwrap();
        store.set(&set("k", Value::default())).await.unwrap();
        store.get(&Get::key("k")).await.unwrap().unwrap();
        let swept = async {
            let delete = format!("DELETE FROM {name}");
            while !server.log().contains(&delete) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), swept)
            .await
            .unwrap();
    }
    let log = server.log();
    let ours: Vec<_> = log.lines().filter(|line| line.starts_with("app=daprd")).collect();
    assert!(
        ours.iter().any(|line| line.contains("execute <unnamed>")),
        "{log}"
    );
    let named = ours.iter().find(|line| {
        let mut words = line.split_whitespace();
        words.any(|word| matches!(word, "parse" | "bind" | "execute")) && words.next() != Some("<unnamed>:")
    });
    assert_eq!(named, None);
}

async fn sweeping(server: &Postgres) {
    let text = server.text();
    let properties = [
        ("connectionString", text.as_str()),
        ("cleanupInterval", "1s"),
        ("tablePrefix", "swept_"),
    ];
    let store = components()
        .state("state.postgresql", "v2", &properties)
        .await
        .unwrap();
    let mut short = set("short", Value::default());
    short.metadata.insert(TTL.to_owned(), "1".to_owned());
    store.set(&short).await.unwrap();
    store.set(&set("long", Value::default())).await.unwrap();
    let client = sql(server).await;
    let swept = async {
        while cell(&client, "SELECT count(*)::text FROM swept_state")
            .await
            .as_deref()
            != Some("1")
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), swept)
        .await
        .unwrap();
    let key = "SELECT key FROM dapr_metadata WHERE key LIKE 'last-cleanup%'";
    assert_eq!(
        cell(&client, key).await.as_deref(),
        Some("last-cleanup-state-v2-swept_")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layouts_match_dapr() {
    let Some(server) = Postgres::start() else { return };
    let text = server.text();
    let client = sql(&server).await;
    // A table of a release before the paging column, with its bookkeeping.
    client
        .batch_execute(
            "CREATE TABLE state (key text NOT NULL PRIMARY KEY, value jsonb NOT NULL, isbinary boolean NOT NULL,
                 insertdate timestamptz NOT NULL DEFAULT now(), updatedate timestamptz, expiredate timestamptz);
             INSERT INTO state (key, value, isbinary) VALUES ('old', '{\"a\": 1}', false), ('bin', '\"AP8=\"', true);
             CREATE TABLE dapr_metadata (key text NOT NULL PRIMARY KEY, value text NOT NULL);
             INSERT INTO dapr_metadata VALUES ('migrations', '2')",
        )
        .await
        .unwrap();
    let properties = [("connectionString", text.as_str()), ("tablePrefix", "new_")];
    // Concurrent migrations serialise.
    let open = |version| components().state("state.postgresql", version, &properties);
    let (a, b, c, d) = tokio::join!(open("v1"), open("v2"), open("v1"), open("v2"));
    for opened in [a, b, c, d] {
        opened.unwrap();
    }
    let levels = "SELECT string_agg(key || '=' || value, ' ' ORDER BY key) FROM dapr_metadata";
    assert_eq!(
        cell(&client, levels).await.as_deref(),
        Some("lock=lock migrations=3 migrations-state-v2-new_=2 migrations:state=3")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_share_bookkeeping() {
    let Some(server) = Postgres::start() else { return };
    let text = server.text();
    let client = sql(&server).await;
    // Dapr's state: the level of its only table.
    let first = [("connectionString", text.as_str())];
    let dapr = components().state("state.postgresql", "v1", &first).await;
    drop(dapr.unwrap());
    let forget = "DELETE FROM dapr_metadata WHERE key = 'migrations:state'";
    client.batch_execute(forget).await.unwrap();
    for table in ["orders", "invoices", "state", "orders"] {
        let properties = [
            ("connectionString", text.as_str()),
            ("tableName", table),
            ("cleanupInterval", "50ms"),
        ];
        let store = components()
            .state("state.postgresql", "v1", &properties)
            .await
            .unwrap();
        let key = format!("{table}-key");
        store.set(&set(&key, Value::Bytes("v".into()))).await.unwrap();
        assert!(store.get(&Get::key(key)).await.unwrap().is_some());
        // Tables are swept independently.
        let expired = format!("UPDATE {table} SET expiredate = now() - interval '1 hour' RETURNING key");
        client.batch_execute(&expired).await.unwrap();
        let left = format!("SELECT max(key) FROM {table}");
        let swept = async {
            while cell(&client, &left).await.is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), swept)
            .await
            .unwrap();
    }
    let levels = "SELECT string_agg(key || '=' || value, ' ' ORDER BY key) FROM dapr_metadata
        WHERE key LIKE 'migrations%'";
    assert_eq!(
        cell(&client, levels).await.as_deref(),
        Some("migrations=3 migrations:invoices=3 migrations:orders=3 migrations:state=3")
    );
    // A table with a lower level than the others catches up.
    let older = "ALTER TABLE orders DROP COLUMN row_id;
        UPDATE dapr_metadata SET value = '2' WHERE key = 'migrations:orders'";
    client.batch_execute(older).await.unwrap();
    let properties = [("connectionString", text.as_str()), ("tableName", "orders")];
    let store = components().state("state.postgresql", "v1", &properties);
    store.await.unwrap();
    let column = "SELECT count(*)::text FROM information_schema.columns
        WHERE table_name = 'orders' AND column_name = 'row_id'";
    assert_eq!(cell(&client, column).await.as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_values_match_dapr() {
    let Some(server) = Postgres::start() else { return };
    let text = server.text();
    let client = sql(&server).await;
    client
        .batch_execute(
            "CREATE SCHEMA mine;
             CREATE TABLE mine.old (key text NOT NULL PRIMARY KEY, value jsonb NOT NULL, isbinary boolean NOT NULL,
                 insertdate timestamptz NOT NULL DEFAULT now(), updatedate timestamptz);
             INSERT INTO mine.old (key, value, isbinary) VALUES ('k', '{\"a\": 1}', false), ('b', '\"AP8=\"', true)",
        )
        .await
        .unwrap();
    let properties = [("connectionString", text.as_str()), ("tableName", "mine.old")];
    let v1 = components()
        .state("state.postgresql", "v1", &properties)
        .await
        .unwrap();
    let read =
        async |store: &dyn StateStore, key: &str| store.get(&Get::key(key)).await.unwrap().unwrap().data;
    assert_eq!(read(&*v1, "k").await, r#"{"a": 1}"#);
    assert_eq!(read(&*v1, "b").await, &[0, 255][..]);
    v1.set(&set("json", Value::Json(r#"{"b":1.0}"#.into())))
        .await
        .unwrap();
    v1.set(&set("bytes", Value::Bytes(vec![0, 255].into())))
        .await
        .unwrap();
    let rows =
        "SELECT string_agg(key || ':' || value::text || ':' || isbinary, ' ' ORDER BY key) FROM mine.old";
    assert_eq!(
        cell(&client, rows).await.as_deref(),
        Some(r#"b:"AP8=":true bytes:"AP8=":true json:{"b": 1}:false k:{"a": 1}:false"#)
    );
    let etag = v1.get(&Get::key("json")).await.unwrap().unwrap().etag;
    assert_eq!(
        cell(&client, "SELECT xmin::text FROM mine.old WHERE key = 'json'").await,
        etag
    );
    let index = "SELECT indexname FROM pg_indexes WHERE schemaname = 'mine' AND indexname LIKE '%uidx'";
    assert_eq!(cell(&client, index).await.as_deref(), Some("old_row_id_uidx"));

    let v2 = components()
        .state("state.postgresql", "v2", &[("connectionString", &text)])
        .await
        .unwrap();
    v2.set(&set("json", Value::Json(r#"{ "b": "<" }"#.into())))
        .await
        .unwrap();
    let stored = "SELECT convert_from(value, 'UTF8') FROM state WHERE key = 'json'";
    assert_eq!(cell(&client, stored).await.as_deref(), Some(r#"{"b":"\u003c"}"#));
    let etag = v2.get(&Get::key("json")).await.unwrap().unwrap().etag;
    assert_eq!(
        cell(&client, "SELECT etag::text FROM state WHERE key = 'json'").await,
        etag
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_server_restart() {
    let Some(mut server) = Postgres::start() else {
        return;
    };
    let text = server.text();
    let properties = [("connectionString", text.as_str()), ("timeout", "5s")];
    let store = components()
        .state("state.postgresql", "v2", &properties)
        .await
        .unwrap();
    store.set(&set("k", Value::Bytes("before".into()))).await.unwrap();

    // Connections that break between two calls are not noticed.
    let client = sql(&server).await;
    client
        .batch_execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
        )
        .await
        .unwrap();
    store.set(&set("k", Value::Bytes("again".into()))).await.unwrap();

    conformance::state_outlives(&store, &mut server).await;
    let first = [properties[0], properties[1], ("tableName", "first")];
    let v1 = components()
        .state("state.postgresql", "v1", &first)
        .await
        .unwrap();
    conformance::state_outlives(&v1, &mut server).await;
    let other = components().state(
        "state.postgresql",
        "v2",
        &[("connectionString", "host=127.0.0.1 port=1 user=x")],
    );
    let error = other.await.map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");

    configuration_outlives(&mut server).await;
    reports_missed_changes(&server).await;
}

/// Changes missed while the watcher is disconnected are reported, and no others.
async fn reports_missed_changes(server: &Postgres) {
    let proxy = Proxy::start(server.port).await;
    let rows = Rows(server.text());
    for key in ["changed", "removed", "same"] {
        rows.put(key, "old", "1").await;
    }
    let text = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", proxy.port);
    let properties = [
        ("connectionString", text.as_str()),
        ("table", "configtable"),
        ("timeout", "5s"),
    ];
    let store = components()
        .configuration("configuration.postgresql", "v1", &properties)
        .await
        .unwrap();
    let request = Request {
        keys: ["changed", "removed", "same", "no-such"]
            .map(str::to_owned)
            .to_vec(),
        metadata: rows.metadata(),
    };
    let mut subscription = store.subscribe(&request).await.unwrap();
    proxy.lose();
    rows.put("changed", "new", "2").await;
    rows.remove("removed").await;
    let update = tokio::time::timeout(Duration::from_secs(20), subscription.updates.recv());
    let update = update.await.unwrap().unwrap();
    assert_eq!(update.len(), 2, "{update:?}");
    assert_eq!(update["changed"].value, "new");
    assert_eq!(update["removed"], Item::default());
}

const CONFIGURATION: &str = "
    CREATE TABLE configtable (key varchar NOT NULL, value varchar NOT NULL, version varchar NOT NULL, metadata json);
    CREATE FUNCTION tell() RETURNS trigger AS $$
    BEGIN
        PERFORM pg_notify('config', json_build_object('table', TG_TABLE_NAME, 'action', TG_OP,
            'data', CASE TG_OP WHEN 'DELETE' THEN row_to_json(OLD) ELSE row_to_json(NEW) END)::text);
        RETURN NULL;
    END $$ LANGUAGE plpgsql;
    CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON configtable FOR EACH ROW EXECUTE FUNCTION tell()";

/// Rows of the server at this URL, across restarts.
struct Rows(String);

impl Rows {
    async fn run(&self, statements: &[(&str, &[&(dyn ToSql + Sync)])]) {
        let mut client = connect(&self.0).await;
        // The key is never seen as absent.
        let transaction = client.transaction().await.unwrap();
        for (statement, parameters) in statements {
            transaction.execute(*statement, parameters).await.unwrap();
        }
        transaction.commit().await.unwrap();
    }
}

#[async_trait]
impl Writer for Rows {
    async fn put(&self, key: &str, value: &str, version: &str) {
        let delete = "DELETE FROM configtable WHERE key = $1";
        let insert = "INSERT INTO configtable VALUES ($1, $2, $3, '{\"owner\": \"me\"}')";
        self.run(&[(delete, &[&key]), (insert, &[&key, &value, &version])])
            .await;
    }

    async fn remove(&self, key: &str) {
        let delete = "DELETE FROM configtable WHERE key = $1";
        self.run(&[(delete, &[&key])]).await;
    }

    fn metadata(&self) -> Pairs {
        Pairs::from([("pgNotifyChannel".to_owned(), "Config".to_owned())])
    }
}

async fn configuration(server: &Postgres) {
    let text = server.text();
    let properties = [("connectionString", text.as_str()), ("table", "configtable")];
    let missing = components()
        .configuration("configuration.postgresql", "v1", &properties)
        .await;
    let missing = missing.map(drop).unwrap_err().to_string();
    assert!(missing.contains("create it with the columns"), "{missing}");
    let (client, rows) = (sql(server).await, Rows(server.text()));
    client.batch_execute(CONFIGURATION).await.unwrap();
    for version in ["9", "10", "x"] {
        let insert = "INSERT INTO configtable VALUES ('many', $1, $1, '{\"owner\": \"me\"}')";
        client.execute(insert, &[&version]).await.unwrap();
    }
    let store = components()
        .configuration("configuration.postgres", "v1", &properties)
        .await
        .unwrap();
    let items = store.get(&Request::default()).await.unwrap();
    assert_eq!(items["many"].value, "10");
    assert_eq!(items["many"].metadata["owner"], "me");
    let without_channel = store.subscribe(&Request::default()).await.unwrap_err();
    assert!(
        without_channel.to_string().contains("pgNotifyChannel"),
        "{without_channel}"
    );
    conformance::configuration(&store, &rows).await;
}

async fn configuration_outlives(server: &mut Postgres) {
    sql(server).await.batch_execute(CONFIGURATION).await.unwrap();
    let rows = Rows(server.text());
    let mut proxy = Proxy::start(server.port).await;
    let text = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", proxy.port);
    let properties = [("connectionString", text.as_str()), ("table", "configtable")];
    let store = components()
        .configuration("configuration.postgresql", "v1", &properties)
        .await
        .unwrap();
    conformance::configuration_outlives(&store, &rows, &mut proxy).await;
    conformance::configuration_outlives(&store, &rows, server).await;
    let store = components()
        .state("state.postgresql", "v2", &properties[..1])
        .await
        .unwrap();
    conformance::state_outlives(&store, &mut proxy).await;
}
