//! `bindings.redis`: single keys as plain strings.

use ::redis::{Cmd, Value, cmd};
use async_trait::async_trait;
use bytes::Bytes;
use outrigger_component::{
    Error, Metadata, OutputBinding, Pairs, Result,
    bindings::{Invoke, Invoked},
};

use outrigger_resources::value::go_nanos;

use super::{
    link::{Link, Repeat},
    settings::Role,
};

pub(super) struct RedisBinding {
    link: Link,
}

pub(super) async fn open(metadata: &Metadata) -> Result<RedisBinding> {
    let link = Link::open(metadata, Role::Binding).await?;
    Ok(RedisBinding { link })
}

/// Time to live in milliseconds; `None` for no expiry. A Go duration or a number of seconds.
fn ttl(metadata: &Pairs) -> Result<Option<i64>> {
    let given = ["ttl", "ttlInSeconds"].iter().find_map(|name| {
        let found = metadata.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found
            .map(|(_, text)| text.as_str())
            .filter(|text| !text.is_empty())
    });
    let Some(text) = given else { return Ok(None) };
    let millis = match text.parse::<i64>() {
        Ok(seconds) => Some(seconds.saturating_mul(1000)),
        Err(_) => go_nanos(text).ok().map(|nanos| nanos / 1_000_000),
    };
    match millis.filter(|millis| *millis > 0) {
        // The server rejects values that overflow when its clock is added.
        Some(millis) => Ok(Some(millis.min(i64::MAX / 4))),
        None => Err(Error::invalid_request(format!(
            "ttlInSeconds value must be higher than zero: actual is {text:?}; write seconds, or 1m30s"
        ))),
    }
}

impl RedisBinding {
    async fn run(&self, command: &Cmd, repeat: Repeat) -> Result<Value> {
        self.link.call(command, repeat).await
    }

    async fn get(&self, key: &str, and_delete: bool) -> Result<Option<Invoked>> {
        let mut get = cmd(if and_delete { "GETDEL" } else { "GET" });
        get.arg(key);
        let repeat = if and_delete { Repeat::No } else { Repeat::Yes };
        let found: Option<Vec<u8>> = self.link.call(&get, repeat).await?;
        Ok(Some(Invoked {
            data: Bytes::from(found.unwrap_or_default()),
            ..Invoked::default()
        }))
    }

    async fn create(&self, key: &str, data: &[u8], ttl: Option<i64>) -> Result<()> {
        let mut set = cmd("SET");
        set.arg(key).arg(data);
        if let Some(millis) = ttl {
            set.arg("PX").arg(millis);
        }
        self.run(&set, Repeat::Yes).await.map(drop)
    }

    async fn increment(&self, key: &str, ttl: Option<i64>) -> Result<()> {
        let mut increment = cmd("INCR");
        increment.arg(key);
        self.run(&increment, Repeat::No).await?;
        if let Some(millis) = ttl {
            let mut expire = cmd("PEXPIRE");
            expire.arg(key).arg(millis);
            self.run(&expire, Repeat::Yes).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl OutputBinding for RedisBinding {
    fn operations(&self) -> Vec<&str> {
        vec!["create", "delete", "get", "increment"]
    }

    async fn invoke(&self, call: &Invoke) -> Result<Option<Invoked>> {
        self.link.check_open()?;
        let operation = call.operation.as_str();
        if !self.operations().contains(&operation) {
            return Err(Error::unsupported(format!("invalid operation type: {operation}")));
        }
        let Some(key) = call.metadata.get("key").filter(|key| !key.is_empty()) else {
            return Err(Error::invalid_request(
                "redis binding: missing key in request metadata",
            ));
        };
        match operation {
            "get" => {
                let and_delete = call.metadata.get("delete").is_some_and(|text| text == "true");
                return self.get(key, and_delete).await;
            }
            "create" => self.create(key, &call.data, ttl(&call.metadata)?).await?,
            "increment" => self.increment(key, ttl(&call.metadata)?).await?,
            _ => {
                let mut delete = cmd("DEL");
                delete.arg(key);
                self.run(&delete, Repeat::Yes).await?;
            }
        }
        Ok(None)
    }

    async fn ping(&self) -> Result<()> {
        self.run(&cmd("PING"), Repeat::Yes).await.map(drop)
    }

    async fn close(&self) {
        self.link.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_time_to_live() {
        let read = |name: &str, text: &str| ttl(&Pairs::from([(name.to_owned(), text.to_owned())]));
        assert_eq!(read("ttlInSeconds", "100").unwrap(), Some(100_000));
        assert_eq!(read("TTL", "1m30s").unwrap(), Some(90_000));
        assert_eq!(read("ttl", "").unwrap(), None);
        assert_eq!(read("other", "x").unwrap(), None);
        for wrong in ["0", "-1", "soon", "0s"] {
            assert!(read("ttlInSeconds", wrong).is_err(), "{wrong}");
        }
    }
}
