//! Number of statements per transaction, and atomicity of single-statement transactions.

use std::{sync::Arc, time::Duration};

use outrigger_component::{
    Kind, StateStore,
    state::{Delete, Get, Operation, Set, Transaction, Value},
};
use outrigger_components_testing::server::Postgres;

use crate::{components, set, sql};

fn write(key: &str, value: &str) -> Operation {
    Operation::Set(set(key, Value::Bytes(value.to_owned().into())))
}

fn guarded(key: &str, value: &str, etag: &str) -> Operation {
    Operation::Set(Set {
        etag: Some(etag.to_owned()),
        ..set(key, Value::Bytes(value.to_owned().into()))
    })
}

fn removal(key: &str) -> Operation {
    Operation::Delete(Delete {
        key: key.to_owned(),
        ..Delete::default()
    })
}

fn of(operations: Vec<Operation>) -> Transaction {
    Transaction {
        operations,
        ..Transaction::default()
    }
}

/// Statements of sidecars executed by the server, which logs each before answering.
fn carried_out(server: &Postgres) -> usize {
    let log = server.log();
    let ours = log.lines().filter(|line| line.starts_with("app=daprd"));
    ours.filter(|line| line.contains("  execute ") || line.contains("  statement: "))
        .count()
}

async fn text(store: &Arc<dyn StateStore>, key: &str) -> Option<String> {
    let item = store.get(&Get::key(key)).await.unwrap();
    item.map(|item| String::from_utf8_lossy(&item.data).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn independent_operations_are_one_statement() {
    let Some(server) = Postgres::start() else { return };
    let client = sql(&server).await;
    for setting in ["log_min_duration_statement = 0", "log_line_prefix = 'app=%a '"] {
        let alter = format!("ALTER SYSTEM SET {setting}");
        client.batch_execute(&alter).await.unwrap();
    }
    client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let connection = server.text();
    for (version, mode, etag_of_new) in [
        ("v1", "cache_statement", false),
        ("v2", "cache_statement", true),
        ("v2", "exec", true),
    ] {
        let name = format!("{version}_{mode}_");
        let properties = [
            ("connectionString", connection.as_str()),
            ("queryExecMode", mode),
            ("tableName", &name),
            ("tablePrefix", &name),
            ("metadataTableName", &format!("{name}metadata")),
        ];
        let store = components()
            .state("state.postgresql", version, &properties)
            .await
            .unwrap();
        let logs = async {
            let before = carried_out(&server);
            while carried_out(&server) == before {
                store.get(&Get::key("none")).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), logs).await.unwrap();

        let statements = async |operations: Vec<Operation>, key: &str| {
            let before = carried_out(&server);
            let etag = store.transact_etag(&of(operations), key).await;
            (carried_out(&server) - before, etag)
        };
        // A new workflow instance, its steps and its purge.
        let mut operations: Vec<_> = (0..20).map(|n| write(&format!("old-{n}"), "1")).collect();
        operations.push(write("metadata", "1"));
        let (count, etag) = statements(operations, "metadata").await;
        assert_eq!(count, 1, "{name}");
        let read = store.get(&Get::key("metadata")).await.unwrap().unwrap().etag;
        assert_eq!(etag.unwrap(), read.clone().filter(|_| etag_of_new), "{name}");
        let mut etag = read.unwrap();
        for round in ["2", "3"] {
            let mut operations: Vec<_> = (0..20).map(|n| write(&format!("new-{n}"), round)).collect();
            operations.push(guarded("metadata", round, &etag));
            operations.extend((0..20).map(|n| removal(&format!("old-{n}"))));
            let (count, returned) = statements(operations, "metadata").await;
            assert_eq!(count, 1, "{name}");
            let read = store.get(&Get::key("metadata")).await.unwrap().unwrap().etag;
            assert_eq!(returned.unwrap(), read, "{name}");
            etag = read.unwrap();
        }
        assert_eq!(text(&store, "new-19").await.as_deref(), Some("3"));
        assert_eq!(text(&store, "old-0").await, None);

        // Another writer came first: nothing is applied.
        store
            .set(&set("metadata", Value::Bytes("theirs".into())))
            .await
            .unwrap();
        let operations = vec![
            write("new-0", "lost"),
            write("newer", "lost"),
            guarded("metadata", "4", &etag),
            removal("new-1"),
        ];
        let (count, refused) = statements(operations, "metadata").await;
        assert_eq!(
            (count, refused.unwrap_err().kind()),
            (1, Kind::EtagMismatch),
            "{name}"
        );
        assert_eq!(text(&store, "new-0").await.as_deref(), Some("3"));
        assert_eq!(text(&store, "new-1").await.as_deref(), Some("3"));
        assert_eq!(text(&store, "newer").await, None);
        assert_eq!(text(&store, "metadata").await.as_deref(), Some("theirs"));

        let (count, done) = statements(vec![write("new-0", "alone")], "new-0").await;
        done.unwrap();
        assert_eq!(count, 1, "{name}");
        let operations = (0..20).map(|n| removal(&format!("new-{n}"))).collect();
        let (count, done) = statements(operations, "").await;
        assert_eq!((count, done.unwrap()), (1, None), "{name}");
        assert_eq!(text(&store, "new-0").await, None);

        // Without an ETag request, rows are locked in order.
        let read = async || {
            let item = store.get(&Get::key("metadata")).await.unwrap();
            item.unwrap().etag.unwrap()
        };
        for (guard_first, expected) in [(true, 1), (false, 5)] {
            let mut operations = vec![write("b", "1"), removal("c")];
            let guard = guarded("metadata", "5", &read().await);
            operations.insert(usize::from(!guard_first), guard);
            let before = carried_out(&server);
            store.transact(&of(operations)).await.unwrap();
            assert_eq!(carried_out(&server) - before, expected, "{name}");
            assert_eq!(text(&store, "b").await.as_deref(), Some("1"));
        }

        // Operations that need their order run in a transaction.
        let operations = vec![write("a", "1"), removal("a"), write("a", "2")];
        let (count, done) = statements(operations, "a").await;
        done.unwrap();
        assert_eq!(count, 5, "{name}");
        assert_eq!(text(&store, "a").await.as_deref(), Some("2"));
    }
}
