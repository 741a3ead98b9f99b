use ::redis::{ErrorKind, FromRedisValue, ServerErrorKind, cmd};
use outrigger_component::Result;

use super::link::{Link, Repeat};

/// A Lua script, sent by hash, and in full if the server does not have it.
pub(super) struct Script {
    code: &'static str,
    hash: String,
}

impl Script {
    pub(super) fn new(code: &'static str) -> Self {
        Self {
            code,
            hash: ::redis::Script::new(code).get_hash().to_owned(),
        }
    }

    /// Runs the script on `keys`, which must be on one node of a cluster.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        link: &Link,
        keys: &[&str],
        arguments: &[&[u8]],
        repeat: Repeat,
    ) -> Result<T> {
        let command = |name: &str, script: &str| {
            let mut command = cmd(name);
            command.arg(script).arg(keys.len()).arg(keys);
            for argument in arguments {
                command.arg(*argument);
            }
            command
        };
        let by_hash = link.attempt(&command("EVALSHA", &self.hash), repeat).await?;
        match by_hash {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                link.call(&command("EVAL", self.code), repeat).await
            }
            result => result
                .and_then(|value| Ok(T::from_redis_value(value)?))
                .map_err(|error| link.failure(error)),
        }
    }
}
