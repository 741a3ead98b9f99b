use std::collections::HashSet;
use std::future::pending;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard};

use futures::FutureExt;
use futures::future::BoxFuture;
use outrigger_runtime::scheduler::DeliveryStarted;
use outrigger_telemetry::metrics::{MetricsConfig, Registry};
use outrigger_telemetry::trace::Parent;
use outrigger_wire::internals::v1::Reminder;

use super::*;
use crate::actors::host::IdleScan;
use crate::actors::metrics::ActorMetrics;
use crate::actors::type_admission::{SHARDS, TypeAdmission};

/// Actors that never answer and leave work behind.
#[derive(Default)]
struct Slow {
    left: Mutex<HashSet<String>>,
    keeps: bool,
}

struct RunningCall<'a>(&'a Slow, String);

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        self.0.locked().insert(self.1.clone());
    }
}

impl Slow {
    fn locked(&self) -> MutexGuard<'_, HashSet<String>> {
        self.left.lock().unwrap()
    }

    async fn load(&self, id: &str) -> Result<(), Status> {
        let _running = RunningCall(self, id.to_owned());
        pending().await
    }
}

impl InternalActors for Slow {
    fn invoke<'a>(&'a self, call: &'a ActorCall) -> BoxFuture<'a, Result<Bytes, Status>> {
        Box::pin(async move { self.load(&call.id).await.map(|()| Bytes::new()) })
    }

    fn remind<'a>(
        &'a self,
        id: &'a str,
        _: &'a str,
        _: Option<&'a Any>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move { self.load(id).await })
    }

    fn watch<'a>(&'a self, call: &'a ActorCall) -> BoxFuture<'a, Result<Watched, Status>> {
        Box::pin(async move {
            self.load(&call.id).await?;
            Err(Status::internal("it never loads"))
        })
    }

    fn halt<'a>(&'a self, _: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {})
    }

    fn is_kept(&self, id: &str) -> bool {
        if !self.keeps {
            self.locked().remove(id);
        }
        self.keeps
    }
}

/// Actors whose calls are answered in another call's turn, once notified.
#[derive(Default)]
struct Answering(tokio::sync::Notify);

struct Early<'a>(&'a Answering);

impl QueuedCall for Early<'_> {
    fn in_turn(&self) -> BoxFuture<'_, Result<Bytes, Status>> {
        Box::pin(async move { Ok(Bytes::from_static(b"in its own turn")) })
    }

    fn answered(&self) -> BoxFuture<'_, Result<Bytes, Status>> {
        Box::pin(async move {
            self.0.0.notified().await;
            Ok(Bytes::from_static(b"in that of another"))
        })
    }
}

impl InternalActors for Answering {
    fn invoke<'a>(&'a self, _: &'a ActorCall) -> BoxFuture<'a, Result<Bytes, Status>> {
        Box::pin(async move { Err(Status::internal("it arrives")) })
    }

    fn arrive<'a>(&'a self, _: &'a ActorCall) -> Option<Box<dyn QueuedCall + 'a>> {
        Some(Box::new(Early(self)))
    }

    fn remind<'a>(&'a self, _: &'a str, _: &'a str, _: Option<&'a Any>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move { Ok(()) })
    }

    fn halt<'a>(&'a self, _: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {})
    }

    fn is_kept(&self, _: &str) -> bool {
        false
    }
}

fn hosted(internal: Internal) -> HostedType {
    let metrics = ActorMetrics::new(&Registry::new(&MetricsConfig::default()).unwrap());
    let admission = Arc::new(TypeAdmission::new(true, false, Arc::default()));
    let (settings, idle_scan) = (internal.settings(), Arc::<IdleScan>::default());
    let mut hosted = HostedType::new("slow".into(), settings, metrics.of("slow"), admission, &idle_scan);
    hosted.internal = Some(internal);
    hosted
}

#[tokio::test]
async fn answered_call_needs_no_turn() {
    let actors = Arc::new(Answering::default());
    let internal = Internal {
        actors: actors.clone(),
        ended: CancellationToken::new(),
    };
    let kind = hosted(internal);
    let internal = kind.internal.as_ref().unwrap();
    let turn_request = TurnRequest::new(&|| true);
    let call = ActorCall {
        id: "a".into(),
        ..ActorCall::default()
    };
    let send = async || {
        let sent = internal.send(&kind, &Message::Call(&call), &turn_request).await;
        sent.unwrap().unwrap().body.collect_up_to(64).await.unwrap()
    };
    assert_eq!(send().await, "in its own turn");
    assert_eq!(kind.count(), 0);
    let turn = kind.turn("a", None, &turn_request).await.unwrap().unwrap();
    let mut sent = std::pin::pin!(send());
    assert!(sent.as_mut().now_or_never().is_none());
    actors.0.notify_one();
    assert_eq!(sent.await, "in that of another");
    turn.deactivated();
    assert_eq!(kind.count(), 0, "an answered call keeps no actor active");
}

/// Actors that stay while they are needed.
struct Needed(AtomicBool);

impl InternalActors for Needed {
    fn invoke<'a>(&'a self, _: &'a ActorCall) -> BoxFuture<'a, Result<Bytes, Status>> {
        Box::pin(async move { Ok(Bytes::new()) })
    }

    fn remind<'a>(&'a self, _: &'a str, _: &'a str, _: Option<&'a Any>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move { Ok(()) })
    }

    fn halt<'a>(&'a self, _: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {})
    }

    fn is_kept(&self, _: &str) -> bool {
        true
    }

    fn idle_after(&self) -> Duration {
        Duration::from_secs(30)
    }

    fn on_idle(&self, _: &str) -> bool {
        !self.0.load(Ordering::SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn asks_idle_actors_again_after_timeout() {
    let actors = Arc::new(Needed(AtomicBool::new(true)));
    let internal = Internal {
        actors: actors.clone(),
        ended: CancellationToken::new(),
    };
    let kind = hosted(internal);
    let turn_request = TurnRequest::new(&|| true);
    drop(kind.turn("a", None, &turn_request).await.unwrap().unwrap());
    // Number of idle and of active actors after a scan.
    let after = async |seconds| {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let idle: Vec<_> = (0..SHARDS)
            .flat_map(|shard| kind.take_idle(shard, usize::MAX))
            .collect();
        for (id, ticket) in &idle {
            kind.internal
                .as_ref()
                .unwrap()
                .on_idle(id, kind.taken_turn(id, *ticket));
        }
        (idle.len(), kind.count())
    };
    assert_eq!(after(29).await, (0, 1));
    assert_eq!(after(2).await, (1, 1));
    assert_eq!(after(29).await, (0, 1));
    actors.0.store(false, Ordering::SeqCst);
    assert_eq!(after(2).await, (1, 0));
}

#[tokio::test]
async fn cancelled_turn_keeps_needed_actors_only() {
    for keeps in [false, true] {
        let actors = Arc::new(Slow {
            keeps,
            ..Slow::default()
        });
        let internal = Internal {
            actors: actors.clone(),
            ended: CancellationToken::new(),
        };
        let kind = hosted(internal);
        let internal = kind.internal.as_ref().unwrap();
        let turn_request = TurnRequest::new(&|| true);
        let (call, reminder) = (
            ActorCall {
                id: "called".into(),
                ..ActorCall::default()
            },
            Reminder {
                actor_id: "reminded".into(),
                ..Reminder::default()
            },
        );
        let watched = ActorCall {
            id: "watched".into(),
            ..ActorCall::default()
        };
        for message in [
            Message::Call(&call),
            Message::Due(&reminder, &Parent::default(), &DeliveryStarted::default()),
        ] {
            // Polled once, then dropped.
            assert!(
                internal
                    .send(&kind, &message, &turn_request)
                    .now_or_never()
                    .is_none()
            );
        }
        assert!(
            internal
                .watch(&kind, &watched, &turn_request)
                .now_or_never()
                .is_none()
        );
        let left = if keeps { 3 } else { 0 };
        assert_eq!(kind.count(), left);
        assert_eq!(actors.locked().len(), left);
    }
}
