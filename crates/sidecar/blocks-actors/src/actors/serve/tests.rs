//! The caller of a peer's message, and what access policies admit of it.

use std::sync::Mutex;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::HeaderName;
use outrigger_identity::TrustDomain;
use outrigger_resources::load;
use outrigger_runtime::scheduler::{Outcome, Receiver as _, Trigger};
use outrigger_wire::common::v1::InvokeRequest;
use outrigger_wire::internals::v1::{Actor as WireActor, ListStringValue};
use outrigger_wire::scheduler::v1::TargetActorReminder;
use prost_types::Any;

use super::super::tests::{KIND, OPEN_KIND, actors};
use super::*;
use crate::actors::InternalActors;
use crate::actors::reminders::ReminderReceiver;

const RETENTIONER: &str = "dapr.internal.default.shop.retentioner";
const DENIED: &str = "access denied by workflow access policy";

/// Records the callers of its calls.
#[derive(Default)]
struct Seen(Mutex<Vec<Caller>>);

impl InternalActors for Seen {
    fn invoke<'a>(&'a self, call: &'a ActorCall) -> BoxFuture<'a, Result<Bytes, Status>> {
        self.0.lock().unwrap().push(call.caller.clone());
        Box::pin(async { Ok(Bytes::new()) })
    }

    fn remind<'a>(&'a self, _: &'a str, _: &'a str, _: Option<&'a Any>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async { Ok(()) })
    }

    fn halt<'a>(&'a self, _: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    fn is_kept(&self, _: &str) -> bool {
        false
    }
}

struct Peer {
    actors: Actors,
    seen: std::sync::Arc<Seen>,
}

impl Peer {
    fn new(has_policy: bool) -> Self {
        let actors = actors();
        let seen = std::sync::Arc::<Seen>::default();
        let hosted = [KIND, RETENTIONER].map(|kind| {
            (
                kind.to_owned(),
                seen.clone() as std::sync::Arc<dyn InternalActors>,
            )
        });
        actors.host_internal(hosted);
        if has_policy {
            let policy = "apiVersion: dapr.io/v1alpha1\nkind: WorkflowAccessPolicy\nmetadata: {name: p}\n";
            let loaded = load::text(policy, "shop").unwrap();
            actors
                .with
                .workflow_access
                .apply(&loaded.workflow_access_policies);
        }
        Self { actors, seen }
    }

    /// Calls an actor as `peer`, `NAMESPACE/APP` or none; returns the caller that the actor saw.
    async fn call(&self, peer: &str, kind: &str, headers: &[(&'static str, &str)]) -> Result<Caller, Status> {
        let mut grpc = HeaderMap::new();
        let mut metadata = std::collections::HashMap::new();
        for (name, value) in headers {
            if *name == HANDED.as_str() {
                grpc.insert(
                    HeaderName::from_static(name),
                    HeaderValue::from_str(value).unwrap(),
                );
            }
            let values = vec![(*value).to_owned()];
            metadata.insert((*name).to_owned(), ListStringValue { values });
        }
        let request = InternalInvokeRequest {
            ver: 1,
            metadata,
            message: Some(InvokeRequest {
                method: "PurgeWorkflowState".to_owned(),
                ..InvokeRequest::default()
            }),
            actor: Some(WireActor {
                actor_type: kind.to_owned(),
                actor_id: "a".to_owned(),
            }),
        };
        let id = id(peer);
        let served = self.served(id.as_ref(), &grpc, request.encode_to_vec());
        self.actors.serve_call(served).await?;
        Ok(self.seen.0.lock().unwrap().pop().unwrap())
    }

    async fn remind(&self, peer: &str, kind: &str) -> Result<(), Status> {
        let reminder = Reminder {
            actor_type: kind.to_owned(),
            actor_id: "a".to_owned(),
            name: "activity-result-x".to_owned(),
            ..Reminder::default()
        };
        let (id, headers) = (id(peer), HeaderMap::new());
        let served = self.served(id.as_ref(), &headers, reminder.encode_to_vec());
        self.actors.serve_reminder(served).await
    }

    fn served<'a>(
        &'a self,
        peer: Option<&'a SpiffeId>,
        headers: &'a HeaderMap,
        message: Vec<u8>,
    ) -> Served<'a> {
        Served {
            peer,
            headers,
            tracer: &self.actors.with.tracer,
            message: message.into(),
        }
    }
}

fn id(peer: &str) -> Option<SpiffeId> {
    let (namespace, app) = peer.split_once('/')?;
    let domain = "public".parse::<TrustDomain>().unwrap();
    Some(SpiffeId::new(&domain, namespace, app).unwrap())
}

fn app(name: &str) -> Caller {
    Caller::App(name.to_owned())
}

/// Headers that a peer may forge.
const FORGED: [(&str, &str); 2] = [
    ("dapr-caller-app-id", "shop"),
    ("dapr-caller-namespace", "default"),
];

#[tokio::test]
async fn caller_is_that_of_certificate() {
    const HANDED: &str = "outrigger-handed-over";
    let forwarded = |app| [("dapr-caller-app-id", app), (HANDED, "1-1")];
    for has_policy in [false, true] {
        let peer = Peer::new(has_policy);
        let caller = async |from: &str, headers: &[_]| peer.call(from, KIND, headers).await.unwrap();
        assert_eq!(caller("default/shop", &[]).await, Caller::Own);
        assert_eq!(caller("default/desk", &[]).await, app("desk"));
        assert_eq!(caller("default/desk", &FORGED).await, app("desk"));
        assert_eq!(caller("default/desk", &forwarded("shop")).await, app("desk"));
        // A sidecar of the app forwards the call of another app.
        assert_eq!(caller("default/shop", &forwarded("desk")).await, app("desk"));
        assert_eq!(caller("default/shop", &FORGED).await, Caller::Own);
    }
}

#[tokio::test]
async fn handed_result_has_its_sender() {
    let peer = Peer::new(false);
    for (from, expected) in [("default/shop", "desk"), ("default/fleet", "fleet")] {
        let caller = peer.call(from, KIND, &[("outrigger-handed-by", "desk")]).await;
        assert_eq!(caller.unwrap(), app(expected));
    }
}

#[tokio::test]
async fn reminder_of_other_app_becomes_its_call() {
    let Peer { actors, seen } = Peer::new(false);
    let actors = std::sync::Arc::new(actors);
    let receiver = ReminderReceiver(std::sync::Arc::downgrade(&actors));
    let receive = async |creator: &str, name: &str| {
        let trigger = Trigger {
            name: name.to_owned(),
            data: None,
            creator: creator.to_owned(),
            actor: Some(TargetActorReminder {
                r#type: KIND.to_owned(),
                id: "a".to_owned(),
            }),
            begun: DeliveryStarted::default(),
        };
        assert_eq!(receiver.receive(trigger).await, Outcome::Success);
        seen.0.lock().unwrap().pop()
    };
    // Reminders of this app are no calls.
    assert_eq!(receive("shop", "activity-result-x").await, None);
    assert_eq!(receive("", "activity-result-x").await, None);
    assert_eq!(receive("desk", "activity-result-x").await, Some(app("desk")));
    assert_eq!(receive("desk", "new-event-x").await, None);
}

#[tokio::test]
async fn policy_needs_certificate_of_namespace() {
    let open = Peer::new(false);
    assert_eq!(open.call("", KIND, &FORGED).await.unwrap(), Caller::Unknown);
    assert!(open.call("other/shop", KIND, &[]).await.is_err());
    let closed = Peer::new(true);
    for peer in ["", "other/shop", "other/desk"] {
        let denied = closed.call(peer, KIND, &FORGED).await.unwrap_err();
        assert_eq!(
            (denied.code(), denied.message()),
            (Code::PermissionDenied, DENIED),
            "{peer}"
        );
    }
    // Actors of the app are no workflows.
    // Actors of the app are no workflows: the call waits for the app.
    assert!(closed.call("", OPEN_KIND, &[]).now_or_never().is_none());
}

#[tokio::test]
async fn other_apps_reach_workflows_and_activities_only() {
    let peer = Peer::new(true);
    let denied = peer.call("default/desk", RETENTIONER, &[]).await.unwrap_err();
    let text = format!("{DENIED}: app 'desk' cannot invoke method 'PurgeWorkflowState'");
    assert_eq!(
        (denied.code(), denied.message()),
        (Code::PermissionDenied, &*text)
    );
    // Admitted, without a host in the table.
    for (peer, from) in [(peer, "default/shop"), (Peer::new(false), "default/desk")] {
        let admitted = peer.call(from, RETENTIONER, &[]).await.unwrap_err();
        assert_eq!(admitted.code(), Code::Internal, "{admitted}");
    }
}

#[tokio::test]
async fn api_calls_of_other_apps_need_policy() {
    let by_api = [("dapr-api-call", "true")];
    let open = Peer::new(false);
    let refused = open.call("default/desk", KIND, &by_api).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("is reserved"), "{refused}");
    assert!(open.call("default/shop", KIND, &by_api).await.is_ok());
    assert!(Peer::new(true).call("default/desk", KIND, &by_api).await.is_ok());
}

#[tokio::test]
async fn policy_denies_reminders_of_other_apps() {
    let closed = Peer::new(true);
    assert!(closed.remind("default/shop", KIND).await.is_ok());
    for peer in ["", "default/desk", "other/shop"] {
        let denied = closed.remind(peer, KIND).await.unwrap_err();
        assert_eq!(
            (denied.code(), denied.message()),
            (Code::PermissionDenied, DENIED),
            "{peer}"
        );
    }
    assert!(closed.remind("", OPEN_KIND).now_or_never().is_none());
    assert!(Peer::new(false).remind("default/desk", KIND).await.is_ok());
}
