//! A subscription: a member of the consumer group for one topic.

use std::{sync::Arc, time::Duration};

use outrigger_component::{
    Result,
    pubsub::{Feed, Subscribe},
};
use tokio::time::{sleep, timeout};

use super::{
    BrokerInner, LOG,
    session::{Session, Tracked},
    values::Values,
};

/// How long the engine may take to record revoked partitions.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Member {
    place: Membership,
    session: Option<Session>,
}

/// Parameters of a group member.
struct Membership {
    shared: Arc<BrokerInner>,
    topic: Arc<str>,
    in_flight: usize,
    values: Values,
}

impl Membership {
    async fn join(&self, before: Option<usize>) -> Result<Session> {
        Session::open(&self.shared, &self.topic, self.in_flight, &self.values, before).await
    }
}

impl Member {
    /// Joins the group. On return, the group has its positions in this member's partitions.
    pub(super) async fn join(shared: &Arc<BrokerInner>, request: &Subscribe, values: Values) -> Result<Self> {
        let place = Membership {
            shared: Arc::clone(shared),
            topic: request.topic.as_str().into(),
            in_flight: request.in_flight.get(),
            values,
        };
        let session = Some(place.join(None).await?);
        Ok(Self { place, session })
    }

    pub(super) async fn run(self, mut feed: Feed<Tracked>) -> Result<()> {
        let Self { place, mut session } = self;
        let before = session.as_ref().map(Session::first_partitions);
        let (drain, closed) = (feed.drain_token(), place.shared.closed.clone());
        loop {
            let joined = match session.take() {
                Some(session) => Ok(session),
                None => tokio::select! {
                    () = drain.cancelled() => return Ok(()),
                    () = closed.cancelled() => return Ok(()),
                    session = place.join(before) => session,
                },
            };
            let cause = match joined {
                Ok(mut session) => match session.run(&mut feed).await {
                    Ok(()) => return session.end(true).await,
                    Err(error) => {
                        // Commits settled records if still possible.
                        let _lost = session.end(false).await;
                        forget_all(&mut feed, session.assigned()).await;
                        error
                    }
                },
                Err(error) => error,
            };
            tracing::warn!(
                target: LOG,
                "component {}: topic {}: {cause}; rejoining the consumer group",
                place.shared.component,
                place.topic
            );
            tokio::select! {
                () = drain.cancelled() => return Ok(()),
                () = closed.cancelled() => return Ok(()),
                () = sleep(place.shared.settings.consumer.rejoin) => {}
            }
        }
    }
}

/// The next session redelivers records of an ended session.
async fn forget_all(feed: &mut Feed<Tracked>, partitions: Vec<u32>) {
    if !feed.is_settled() {
        let _late = timeout(REVOKE_TIMEOUT, feed.revoked(partitions)).await;
    }
    feed.forget(|_| true);
}
