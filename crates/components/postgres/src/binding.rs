//! `bindings.postgresql`: runs the caller's statements.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::BytesMut;
use futures::TryStreamExt;
use jiff::Timestamp;
use outrigger_component::{
    Error, Kind, Metadata, OutputBinding, Pairs, Result,
    bindings::{Invoke, Invoked},
};
use outrigger_go_json::{check_values, from_slice};
use outrigger_offload::{INLINE, offload};
use outrigger_resources::value::format_go_duration;
use serde_json::Value;
use tokio_postgres::{
    Row, SimpleQueryMessage,
    types::{Format, IsNull, Kind as TypeKind, ToSql, Type, to_sql_checked},
};

use super::{
    cell,
    pool::{Parameter, Pool, failure, too_large},
    session::OwnedSession,
    settings::Settings,
};

const SQL: &str = "sql";
const PARAMETERS: &str = "params";

pub(super) struct PostgresBinding {
    pool: Pool,
}

pub(super) async fn open(metadata: &Metadata) -> Result<PostgresBinding> {
    let settings = Settings::read(metadata)?;
    let pool = Pool::open(metadata, &settings).await?;
    Ok(PostgresBinding { pool })
}

/// A statement's argument as text; the server knows the type.
#[derive(Debug)]
struct Argument(Value);

impl Argument {
    fn text(value: &Value, in_array: bool) -> String {
        match value {
            Value::Null => "NULL".to_owned(),
            Value::String(text) if in_array => quoted(text),
            Value::String(text) => text.clone(),
            // A whole number may have a fraction of zero.
            Value::Number(number) => match number.as_f64() {
                Some(float) if number.is_f64() && float.fract() == 0.0 => format!("{float:.0}"),
                _ => number.to_string(),
            },
            Value::Array(items) if in_array => array(items),
            Value::Object(_) if in_array => quoted(&value.to_string()),
            other => other.to_string(),
        }
    }
}

fn array(items: &[Value]) -> String {
    let items: Vec<_> = items.iter().map(|item| Argument::text(item, true)).collect();
    format!("{{{}}}", items.join(","))
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

impl ToSql for Argument {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let text = match &self.0 {
            Value::Null => return Ok(IsNull::Yes),
            Value::Array(items) if matches!(kind.kind(), TypeKind::Array(_)) => array(items),
            value => Self::text(value, false),
        };
        out.extend_from_slice(text.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// Decodes the arguments, offloaded if large.
async fn arguments(metadata: &Pairs) -> Result<Vec<Argument>> {
    match metadata.get(PARAMETERS) {
        None => Ok(Vec::new()),
        Some(text) if text.len() <= INLINE => decoded(text),
        Some(text) => {
            let text = text.clone();
            offload(text.len(), move || decoded(&text)).await
        }
    }
}

fn decoded(text: &str) -> Result<Vec<Argument>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let invalid =
        |what: &str| Error::invalid_request(format!("invalid metadata property {PARAMETERS}: {what}"));
    check_values(text.as_bytes()).map_err(|cause| invalid(&cause))?;
    let values: Vec<Value> = from_slice(text.as_bytes())
        .map_err(|error| invalid("failed to unserialize into an array").because(error))?;
    Ok(values.into_iter().map(Argument).collect())
}

fn parameters(arguments: &[Argument]) -> Vec<Parameter<'_>> {
    let parameters = arguments.iter().map(|argument| {
        let value: &(dyn ToSql + Sync) = argument;
        (value, Type::UNKNOWN)
    });
    parameters.collect()
}

fn values<'a>(parameters: &[Parameter<'a>]) -> Vec<&'a (dyn ToSql + Sync)> {
    parameters.iter().map(|(value, _)| *value).collect()
}

/// Whether `sql` may leave a transaction open. False positives from texts and comments cost a connection.
fn may_begin(sql: &str) -> bool {
    let mut words = sql.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let has = |word: &str, wanted: &str| word.eq_ignore_ascii_case(wanted);
    let (mut start, mut transaction) = (false, false);
    let begin = words.any(|word| {
        start |= has(word, "start");
        transaction |= has(word, "transaction");
        has(word, "begin")
    });
    begin || (start && transaction)
}

impl PostgresBinding {
    /// Runs `work` on a connection, and discards it if `sql` may have left a transaction open: other calls
    /// would join that transaction and be lost with it.
    async fn on_session<T, F>(&self, sql: &str, work: impl FnOnce(Arc<OwnedSession>) -> F + Send) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let session = Arc::new(self.pool.session().await?);
        let result = work(session.clone()).await;
        if matches!(&result, Err(error) if error.kind() == Kind::TooLarge) {
            session.leave_unread();
        }
        if !may_begin(sql) {
            session.settle();
        } else if let Some(session) = Arc::into_inner(session) {
            session.discard();
        }
        result
    }

    /// Number of affected rows. Without arguments, `sql` may be several statements; the last one counts.
    async fn exec(&self, sql: &str, arguments: &[Argument]) -> Result<u64> {
        self.on_session(sql, |session| async move {
            let client = session.client()?;
            if !arguments.is_empty() {
                let parameters = parameters(arguments);
                let touched = if self.pool.prepares() {
                    // Not cached, because callers may generate each statement.
                    let statement = client.prepare(sql).await.map_err(failure)?;
                    client.execute(&statement, &values(&parameters)).await
                } else {
                    client.execute_typed(sql, &parameters).await
                };
                return touched.map_err(failure);
            }
            // Rows, as from a SELECT, are discarded.
            let mut messages = pin!(client.simple_query_raw(sql).await.map_err(failure)?);
            let mut last = 0;
            while let Some(message) = messages.try_next().await.map_err(failure)? {
                if let SimpleQueryMessage::CommandComplete(count) = message {
                    last = count;
                }
            }
            Ok(last)
        })
        .await
    }

    /// The rows as a JSON array of arrays.
    async fn query(&self, sql: &str, arguments: &[Argument]) -> Result<String> {
        self.on_session(sql, |session| async move {
            let client = session.client()?;
            let parameters = parameters(arguments);
            let rows = if self.pool.prepares() {
                let statement = client.prepare(sql).await.map_err(failure)?;
                client.query_raw(&statement, values(&parameters)).await
            } else {
                client.query_typed_raw(sql, parameters).await
            };
            let mut rows = pin!(rows.map_err(failure)?);
            let mut out = String::from("[");
            while let Some(row) = rows.try_next().await.map_err(failure)? {
                out = append(row, out, self.pool.max_answer())
                    .await
                    .inspect_err(|_| session.leave_unread())?;
            }
            out.push(']');
            Ok(out)
        })
        .await
    }
}

/// Appends a row as JSON, offloaded if large.
async fn append(row: Row, mut out: String, limit: usize) -> Result<String> {
    let size = row.raw_size_bytes();
    if size > limit.saturating_sub(out.len()) {
        return Err(too_large(limit));
    }
    let write = move || -> Result<String> {
        if out.len() > 1 {
            out.push(',');
        }
        cell::write_row(&row, &mut out)?;
        Ok(out)
    };
    let out = offload(size, write).await?;
    if out.len() > limit {
        return Err(too_large(limit));
    }
    Ok(out)
}

fn context(error: Error) -> Error {
    let text = "error executing query";
    Error::new(error.kind(), text).because(error.to_string())
}

#[async_trait]
impl OutputBinding for PostgresBinding {
    fn operations(&self) -> Vec<&str> {
        vec!["exec", "query", "close"]
    }

    async fn invoke(&self, call: &Invoke) -> Result<Option<Invoked>> {
        let operation = call.operation.as_str();
        if operation == "close" {
            self.pool.close();
            return Ok(None);
        }
        if !self.operations().contains(&operation) {
            let text = format!("invalid operation type: {operation}. Expected exec, query, or close");
            return Err(Error::unsupported(text));
        }
        self.pool.check_open()?;
        let Some(sql) = call.metadata.get(SQL).filter(|sql| !sql.is_empty()) else {
            return Err(Error::invalid_request(format!(
                "required metadata not set: {SQL}"
            )));
        };
        let arguments = arguments(&call.metadata).await?;
        let (began, clock) = (Timestamp::now(), Instant::now());
        let mut metadata = Pairs::from([
            ("operation".to_owned(), operation.to_owned()),
            (SQL.to_owned(), sql.clone()),
            ("start-time".to_owned(), began.to_string()),
        ]);
        let mut data = String::new();
        if operation == "exec" {
            let touched = self
                .pool
                .bound(self.exec(sql, &arguments))
                .await
                .map_err(context)?;
            metadata.insert("rows-affected".to_owned(), touched.to_string());
        } else {
            data = self
                .pool
                .bound(self.query(sql, &arguments))
                .await
                .map_err(context)?;
        }
        metadata.insert("end-time".to_owned(), Timestamp::now().to_string());
        let took = Duration::from_nanos(u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX));
        metadata.insert("duration".to_owned(), format_go_duration(took));
        Ok(Some(Invoked {
            data: data.into(),
            metadata,
            content_type: None,
        }))
    }

    async fn ping(&self) -> Result<()> {
        self.pool.ping().await
    }

    async fn close(&self) {
        self.pool.close();
    }
}

#[cfg(test)]
mod tests {
    use outrigger_go_json::MAX_VALUES;
    use outrigger_offload::done_at_once;

    use super::*;

    #[test]
    fn arguments_are_untyped_text() {
        let text = |json: &str| Argument::text(&serde_json::from_str(json).unwrap(), false);
        assert_eq!(text("1"), "1");
        assert_eq!(text("2.0"), "2");
        assert_eq!(text("2.5"), "2.5");
        assert_eq!(text("true"), "true");
        assert_eq!(text(r#""a\"b""#), "a\"b");
        assert_eq!(text(r#"{"a":[1]}"#), r#"{"a":[1]}"#);
        let Value::Array(items) = serde_json::json!([1, null, "a\"b\\", ["c"], true]) else {
            unreachable!("it is an array");
        };
        assert_eq!(array(&items), r#"{1,NULL,"a\"b\\",{"c"},true}"#);
    }

    #[test]
    fn detects_transaction_keywords() {
        for (sql, may) in [
            ("BEGIN", true),
            ("INSERT INTO a VALUES (1);begin;", true),
            ("start /* soon */ Transaction read only", true),
            ("SELECT begin_at FROM starts", false),
            ("SELECT start FROM a", false),
            ("COMMIT", false),
        ] {
            assert_eq!(may_begin(sql), may, "{sql}");
        }
    }

    #[test]
    fn rejects_non_array_arguments() {
        assert_eq!(decoded("[1, \"x\"]").unwrap().len(), 2);
        assert!(decoded("").unwrap().is_empty());
        let error = decoded("{}").map(drop).unwrap_err().to_string();
        assert!(error.contains(PARAMETERS), "{error}");
    }

    #[test]
    fn bounds_argument_values() {
        let list = |values| format!("[{}]", vec!["0"; values].join(","));
        assert_eq!(decoded(&list(MAX_VALUES - 1)).unwrap().len(), MAX_VALUES - 1);
        let error = decoded(&list(MAX_VALUES)).map(drop).unwrap_err().to_string();
        assert!(error.contains("params: it has more than 65536 values"), "{error}");
    }

    #[tokio::test]
    async fn offloads_large_arguments() {
        for (size, at_once) in [(INLINE, true), (INLINE + 1, false)] {
            let text = format!("[\"{}\"]", "x".repeat(size - 4));
            let metadata = Pairs::from([(PARAMETERS.to_owned(), text)]);
            let (was_at_once, read) = done_at_once(arguments(&metadata)).await;
            assert_eq!(was_at_once, at_once, "{size}");
            assert_eq!(read.unwrap().len(), 1);
        }
    }
}
