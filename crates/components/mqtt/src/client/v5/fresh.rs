//! Initial session state of a client: nothing in flight.
//!
//! The library resumes a session kept by the broker only if it has local state. Unconfirmed publishes of
//! an earlier process have failed there, and the broker resends unacknowledged messages, so an empty state is
//! correct.

use std::pin::Pin;

use rumqttc5::{
    PersistedAckMode, PersistedPubRel, PersistedRequest, PersistedSession, QoS, SessionStore,
    SessionStoreError, SessionStoreKey,
};

use crate::settings::Connection;

#[derive(Debug)]
pub(super) struct Fresh(PersistedSession);

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, SessionStoreError>> + Send + 'a>>;

impl Fresh {
    pub(super) fn new(name: &str, connection: &Connection) -> Self {
        // With QoS 2 the broker may know packet identifiers of the earlier process and would mistake new
        // packets for old ones. Complete those first.
        let known = match connection.qos {
            QoS::ExactlyOnce => connection.max_unacked,
            QoS::AtMostOnce | QoS::AtLeastOnce => 0,
        };
        let complete = |pkid| PersistedRequest::PubRel(PersistedPubRel { pkid });
        Self(PersistedSession {
            format_version: 1,
            client_id: name.to_owned(),
            clean_start: false,
            session_expiry_interval: None,
            outgoing_inflight_upper_limit: Some(connection.max_unacked),
            ack_mode: PersistedAckMode::Manual,
            last_pkid: 0,
            last_puback: 0,
            replay: (1..=known).map(complete).collect(),
            incoming_qos2: Vec::new(),
        })
    }
}

impl SessionStore for Fresh {
    fn load<'a>(&'a self, _key: &'a SessionStoreKey) -> Answer<'a, Option<PersistedSession>> {
        Box::pin(async { Ok(Some(self.0.clone())) })
    }

    fn save<'a>(&'a self, _key: &'a SessionStoreKey, _session: &'a PersistedSession) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn clear<'a>(&'a self, _key: &'a SessionStoreKey) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}
