//! `pubsub.sqlite`: pub/sub between the sidecars of one machine, without a server. Dapr has no such
//! component; `docs/reference/components/pubsub/sqlite.md` describes the layout.
//!
//! A message is stored once, with a row for each consumer group of the topic. A consumer leases rows for the
//! visibility timeout, renews the leases it holds, and deletes acknowledged rows. Rows of a vanished consumer
//! become visible when its lease expires.

mod consumer;
mod settings;
mod tables;

use std::sync::Arc;

use async_trait::async_trait;
use outrigger_component::{
    Error, PubSub, Result, Setup,
    pubsub::{BulkPublish, Failed, Features, Publish, Subscribe, Subscription},
};
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    consumer::Consumer,
    settings::Options,
    tables::{Outgoing, Tables},
};
use super::{
    migration::{Record, migrate},
    pool::{Pool, failure},
    settings::{Settings, both},
};

/// State shared by publishers and consumers of a component.
struct BrokerInner {
    pool: Pool,
    tables: Tables,
    options: Options,
    /// Signals a local publish, so that consumers need not wait for the next poll.
    published: Notify,
    closed: CancellationToken,
    consumers: TaskTracker,
    component: Arc<str>,
}

pub(super) struct SqliteBroker(Arc<BrokerInner>);

pub(super) async fn open(setup: &Setup) -> Result<SqliteBroker> {
    let (settings, options) = both(Settings::read(&setup.metadata), Options::read(setup))?;
    let tables = Tables::new(&options.table);
    let create = tables.create();
    let record = Record {
        bookkeeping: options.metadata_table.clone(),
        common: "migrations-pubsub",
        table: tables.messages(),
    };
    let component = setup.metadata.component();
    let pool = Pool::open(settings, 1, component, move |connection| {
        migrate(connection, &record, &create)
    });
    let shared = BrokerInner {
        pool: pool.await?,
        tables,
        options,
        published: Notify::new(),
        closed: CancellationToken::new(),
        consumers: TaskTracker::new(),
        component: component.clone(),
    };
    Ok(SqliteBroker(Arc::new(shared)))
}

impl SqliteBroker {
    /// Stores messages in one transaction.
    async fn store(&self, messages: Vec<Outgoing>) -> Result<()> {
        let shared = &self.0;
        if shared.closed.is_cancelled() {
            return Err(Error::closed().of(&shared.component));
        }
        let tables = shared.tables.clone();
        let storing = shared.pool.write(move |connection| {
            for message in &messages {
                tables.publish(connection, message).map_err(failure)?;
            }
            Ok(())
        });
        storing.await?;
        shared.published.notify_waiters();
        Ok(())
    }
}

#[async_trait]
impl PubSub for SqliteBroker {
    fn features(&self) -> Features {
        Features {
            ttl: true,
            bulk_publish: true,
            wildcards: false,
            at_least_once: true,
        }
    }

    async fn publish(&self, message: &Publish) -> Result<()> {
        let message = Outgoing::new(message).map_err(|error| error.of(&self.0.component))?;
        self.store(vec![message]).await
    }

    async fn publish_bulk(&self, bulk: &BulkPublish) -> Result<Vec<Failed>> {
        let (mut messages, mut failed) = (Vec::with_capacity(bulk.entries.len()), Vec::new());
        for entry in &bulk.entries {
            match Outgoing::new(&bulk.message(entry)) {
                Ok(message) => messages.push(message),
                Err(error) => failed.push(Failed {
                    id: entry.id.clone(),
                    error: error.of(&self.0.component),
                }),
            }
        }
        self.store(messages).await?;
        Ok(failed)
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        if self.0.closed.is_cancelled() {
            return Err(Error::closed().of(&self.0.component));
        }
        let consumer = Consumer::join(Arc::clone(&self.0), &request.topic).await?;
        let under_way = self.0.consumers.token();
        Ok(Subscription::start_in_order(&request, |feed| async move {
            let _under_way = under_way;
            consumer.run(feed).await
        }))
    }

    async fn ping(&self) -> Result<()> {
        let reading = self.0.pool.read(|connection| {
            let one = connection.query_row("SELECT 1", [], |row| row.get::<_, i64>(0));
            one.map(drop).map_err(failure)
        });
        reading.await
    }

    async fn close(&self) {
        self.0.closed.cancel();
        // Consumers return their messages before the database closes.
        self.0.consumers.close();
        self.0.consumers.wait().await;
        self.0.pool.close().await;
    }
}

#[cfg(test)]
mod tests;
