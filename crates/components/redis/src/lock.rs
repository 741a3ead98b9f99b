//! `lock.redis`: a string key that contains the owner, in Dapr's layout.

use std::time::Duration;

use ::redis::{Value, cmd};
use async_trait::async_trait;
use outrigger_component::{Error, Kind, LockStore, Metadata, Result, lock::Unlocked};

use super::{
    link::{Link, Repeat},
    script::Script,
    settings::{Role, Topology},
};

const UNLOCK: &str = r#"
local owner = redis.call("GET", KEYS[1])
if not owner then return -1 end
if owner ~= ARGV[1] then return -2 end
return redis.call("DEL", KEYS[1])
"#;

pub(super) struct RedisLock {
    link: Link,
    unlock: Script,
}

pub(super) async fn open(metadata: &Metadata) -> Result<RedisLock> {
    let link = Link::open(metadata, Role::Lock).await?;
    let refused = |text: &str| Err(Error::new(Kind::Configuration, text).of(metadata.component()));
    if link.settings.topology == Topology::Cluster {
        return refused("this component does not support connecting to Redis Cluster");
    }
    // After an unplanned failover, two owners could hold the same lock.
    if link.settings.topology == Topology::Node && link.replicas().await.unwrap_or(0) > 0 {
        return refused("replication is not supported; set failover and sentinelMasterName");
    }
    Ok(RedisLock {
        link,
        unlock: Script::new(UNLOCK),
    })
}

#[async_trait]
impl LockStore for RedisLock {
    async fn try_lock(&self, resource: &str, owner: &str, expiry: Duration) -> Result<bool> {
        let seconds = expiry.as_secs().max(1);
        let mut take = cmd("SET");
        take.arg(resource).arg(owner).arg("EX").arg(seconds).arg("NX");
        let answer: Value = self.link.call(&take, Repeat::No).await?;
        Ok(answer != Value::Nil)
    }

    async fn unlock(&self, resource: &str, owner: &str) -> Result<Unlocked> {
        let answer: i64 = self
            .unlock
            .run(&self.link, &[resource], &[owner.as_bytes()], Repeat::No)
            .await?;
        Ok(match answer {
            0.. => Unlocked::Success,
            -1 => Unlocked::NoSuchLock,
            -2 => Unlocked::OthersLock,
            _ => Unlocked::InternalError,
        })
    }

    async fn ping(&self) -> Result<()> {
        self.link
            .call::<String>(&cmd("PING"), Repeat::Yes)
            .await
            .map(drop)
    }

    async fn close(&self) {
        self.link.close();
    }
}
