//! Changes as statements with parameters.

use base64::{Engine, prelude::BASE64_STANDARD};
use outrigger_component::{
    Error, Kind, Result,
    state::{Concurrency, Delete, Operation, Set, Value},
};
use outrigger_go_json::Html;
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use super::super::{
    layout::{Generation, Layout},
    pool::{Parameter, Pool},
    session::AsSession,
};

pub(super) type Owned = Box<dyn ToSql + Sync + Send>;

/// A statement with its parameters.
pub(super) struct Call<'a> {
    pub(super) sql: &'a str,
    pub(super) parameters: Vec<(Owned, Type)>,
    /// If no row changed, another writer came first.
    pub(super) guarded: bool,
}

impl Call<'_> {
    pub(super) fn parameters(&self) -> Vec<Parameter<'_>> {
        let all = self.parameters.iter();
        all.map(|(value, kind)| (value.as_ref() as &(dyn ToSql + Sync), kind.clone()))
            .collect()
    }

    /// Runs the statement; returns the row's new ETag if known.
    pub(super) async fn run(&self, pool: &Pool, session: &impl AsSession) -> Result<Option<String>> {
        self.etag_from_rows(&pool.rows(session, self.sql, &self.parameters()).await?)
    }

    /// Interprets the returned rows.
    pub(super) fn etag_from_rows(&self, rows: &[Row]) -> Result<Option<String>> {
        match rows.first() {
            None if self.guarded => Err(Error::etag_mismatch()),
            row => Ok(row.and_then(|row| row.get(0))),
        }
    }
}

pub(super) fn boxed(value: impl ToSql + Sync + Send + 'static, kind: Type) -> (Owned, Type) {
    (Box::new(value), kind)
}

/// A value in the form of its column.
pub(super) enum Stored {
    Text(String),
    Bytes(Vec<u8>),
}

impl Stored {
    /// Size in bytes.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

/// A validated write.
pub(super) struct Write {
    pub(super) value: Stored,
    /// Not expressible in JSON, in the first generation.
    pub(super) binary: bool,
    /// In seconds.
    pub(super) ttl: Option<i32>,
    /// Only if the key is absent.
    pub(super) first: bool,
}

/// A validated change, which only the server can reject.
pub(super) struct Change {
    pub(super) key: String,
    /// `None` deletes.
    pub(super) write: Option<Write>,
    pub(super) etag: Option<String>,
}

impl Change {
    pub(super) fn of(operation: &Operation, generation: Generation) -> Result<Self> {
        match operation {
            Operation::Set(set) => Self::set(set, generation),
            Operation::Delete(delete) => Self::delete(delete, generation),
        }
    }

    pub(super) fn set(set: &Set, generation: Generation) -> Result<Self> {
        let ttl = set.checked_ttl()?.filter(|seconds| *seconds > 0);
        let (value, binary) = value(&set.value, generation)?;
        Ok(Self {
            key: set.key.clone(),
            write: Some(Write {
                value,
                binary,
                ttl,
                first: set.concurrency == Concurrency::FirstWrite,
            }),
            etag: etag(set.etag(), generation)?,
        })
    }

    pub(super) fn delete(delete: &Delete, generation: Generation) -> Result<Self> {
        delete.check()?;
        Ok(Self {
            key: delete.key.clone(),
            write: None,
            etag: etag(delete.etag(), generation)?,
        })
    }

    /// The change as a single statement.
    pub(super) fn call(self, layout: &Layout, generation: Generation) -> Call<'_> {
        let mut parameters = vec![boxed(self.key, Type::TEXT)];
        let has_etag = self.etag.is_some();
        let is_write = self.write.is_some();
        let sql = match &self.write {
            None if has_etag => &layout.delete_version,
            None => &layout.delete,
            Some(_) if has_etag => &layout.update,
            Some(write) if write.first => &layout.first_write,
            Some(_) => &layout.upsert,
        };
        if let Some(write) = self.write {
            parameters.push(match write.value {
                Stored::Text(text) => boxed(text, Type::TEXT),
                Stored::Bytes(bytes) => boxed(bytes, Type::BYTEA),
            });
            parameters.push(boxed(write.ttl, Type::INT4));
            if generation == Generation::V1 {
                parameters.push(boxed(write.binary, Type::BOOL));
            }
        }
        parameters.extend(self.etag.map(|etag| boxed(etag, Type::TEXT)));
        Call {
            sql,
            parameters,
            guarded: is_write || has_etag,
        }
    }
}

/// Validates an ETag.
fn etag(etag: Option<&str>, generation: Generation) -> Result<Option<String>> {
    let Some(etag) = etag else { return Ok(None) };
    let fits = match generation {
        Generation::V1 => etag
            .parse::<u32>()
            .map(drop)
            .map_err(|error| Error::invalid_etag(format!("{etag:?} is not a 32-bit number: {error}"))),
        // An ETag mismatch rather than an invalid ETag, as in Dapr.
        Generation::V2 => uuid::Uuid::parse_str(etag)
            .map(drop)
            .map_err(|error| Error::new(Kind::EtagMismatch, error.to_string())),
    };
    fits.map(|()| Some(etag.to_owned()))
}

fn value(value: &Value, generation: Generation) -> Result<(Stored, bool)> {
    Ok(match (generation, value) {
        (Generation::V2, value) => (Stored::Bytes(value.stored(Html::Escape)?.to_vec()), false),
        (Generation::V1, Value::Bytes(bytes)) => (
            Stored::Text(format!("\"{}\"", BASE64_STANDARD.encode(bytes))),
            true,
        ),
        (Generation::V1, json @ (Value::Json(_) | Value::Canonical(_))) => {
            let text = json.stored(Html::Escape)?;
            (Stored::Text(String::from_utf8_lossy(&text).into_owned()), false)
        }
    })
}
