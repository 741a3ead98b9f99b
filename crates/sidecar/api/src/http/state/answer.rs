//! Response bodies with several state values. Values are JSON already and are copied verbatim.

use bytes::{BufMut, Bytes, BytesMut};
use outrigger_blocks::state::Found;
use outrigger_component::Pairs;
use outrigger_component::state::QueryPage;
use outrigger_offload::offload;
use serde_json::value::RawValue;

/// Total size of the values, bytes.
fn size(items: &[Found]) -> usize {
    let found = |found: &Found| match &found.item {
        Ok(Some(item)) => item.data.len(),
        Ok(None) | Err(_) => 0,
    };
    items.iter().map(found).sum()
}

/// `[{"key","data","etag","metadata","error"}]` without empty members; written off the serving thread if it
/// is large.
pub(super) async fn bulk(items: Vec<Found>) -> Bytes {
    offload(size(&items), move || written_bulk(items)).await
}

/// `{"results":[{"key","data","etag","error"}],"token","metadata"}` without empty members; written off the
/// serving thread if it is large.
pub(super) async fn page(page: QueryPage) -> Bytes {
    let size = page.items.iter().map(|item| item.data.len()).sum();
    offload(size, move || written_page(page)).await
}

fn written_bulk(items: Vec<Found>) -> Bytes {
    // Preallocated: growing a large buffer would double its memory.
    let mut out = BytesMut::with_capacity(64 * (items.len() + 1) + size(&items));
    list(&mut out, items, |out, found| {
        text(out, "key", &found.key);
        match found.item {
            Ok(None) => {}
            Ok(Some(item)) => {
                data(out, &item.data);
                optional(out, "etag", item.etag.as_deref());
                pairs(out, &item.metadata);
            }
            Err(error) => optional(out, "error", Some(&error)),
        }
    });
    out.freeze()
}

fn written_page(page: QueryPage) -> Bytes {
    let mut out = BytesMut::with_capacity(64 * (page.items.len() + 1));
    out.put_slice(b"{\"results\":");
    list(&mut out, page.items, |out, item| {
        text(out, "key", &item.key);
        data(out, &item.data);
        optional(out, "etag", item.etag.as_deref());
        optional(out, "error", item.error.as_deref());
    });
    optional(&mut out, "token", Some(&page.token));
    pairs(&mut out, &page.metadata);
    out.put_u8(b'}');
    out.freeze()
}

fn list<T>(out: &mut BytesMut, items: Vec<T>, write: impl Fn(&mut BytesMut, T)) {
    out.put_u8(b'[');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.put_u8(b',');
        }
        out.put_u8(b'{');
        write(out, item);
        out.put_u8(b'}');
    }
    out.put_u8(b']');
}

/// Writes the first member of an object.
fn text(out: &mut BytesMut, name: &str, value: &str) {
    out.put_u8(b'"');
    out.put_slice(name.as_bytes());
    out.put_slice(b"\":");
    out.put_slice(quoted(value).as_bytes());
}

fn optional(out: &mut BytesMut, name: &str, value: Option<&str>) {
    if let Some(value) = value.filter(|value| !value.is_empty()) {
        out.put_u8(b',');
        text(out, name, value);
    }
}

fn pairs(out: &mut BytesMut, pairs: &Pairs) {
    if !pairs.is_empty() {
        out.put_slice(b",\"metadata\":");
        out.put_slice(serde_json::json!(pairs).to_string().as_bytes());
    }
}

/// Writes a value. One that is not JSON is replaced by an error.
fn data(out: &mut BytesMut, data: &Bytes) {
    if data.is_empty() {
        return;
    }
    if serde_json::from_slice::<&RawValue>(data).is_ok() {
        out.put_slice(b",\"data\":");
        out.put_slice(data);
    } else {
        optional(
            out,
            "error",
            Some("the stored value is not JSON; read it with a single get or over gRPC"),
        );
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use outrigger_component::state::{Item, QueryItem};
    use outrigger_offload::{INLINE, done_at_once};

    use super::*;

    #[tokio::test]
    async fn writes_large_bodies_off_thread() {
        for (length, at_once) in [(INLINE, true), (INLINE + 1, false)] {
            let data = Bytes::from(format!("\"{}\"", "x".repeat(length - 2)));
            let found = Found {
                key: "k".to_owned(),
                item: Ok(Some(Item {
                    data: data.clone(),
                    ..Item::default()
                })),
            };
            let (was_at_once, answer) = done_at_once(bulk(vec![found])).await;
            assert_eq!(was_at_once, at_once, "a bulk of {length} bytes");
            assert!(answer.len() > length);
            let item = QueryItem {
                key: "k".to_owned(),
                data,
                ..QueryItem::default()
            };
            let matches = QueryPage {
                items: vec![item],
                ..QueryPage::default()
            };
            let (was_at_once, answer) = done_at_once(page(matches)).await;
            assert_eq!(was_at_once, at_once, "a page of {length} bytes");
            assert!(answer.len() > length);
        }
    }

    #[test]
    fn bulk_omits_empty_members() {
        let found = |key: &str, item| Found {
            key: key.to_owned(),
            item,
        };
        let item = |data: &'static [u8], etag: Option<&str>| {
            Ok(Some(Item {
                data: Bytes::from_static(data),
                etag: etag.map(str::to_owned),
                ..Item::default()
            }))
        };
        let answer = written_bulk(vec![
            found("a\"", item(b"{ \"x\": 1 }", Some("7"))),
            found("b", Ok(None)),
            found("c", Err("broken".to_owned())),
            found("d", item(b"no json", None)),
        ]);
        let parsed: serde_json::Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(
            parsed[0],
            serde_json::json!({"key": "a\"", "data": {"x": 1}, "etag": "7"})
        );
        assert_eq!(parsed[1], serde_json::json!({"key": "b"}));
        assert_eq!(parsed[2], serde_json::json!({"key": "c", "error": "broken"}));
        assert!(parsed[3]["error"].as_str().unwrap().contains("not JSON"));
        assert_eq!(written_bulk(Vec::new()), "[]");
    }
}
