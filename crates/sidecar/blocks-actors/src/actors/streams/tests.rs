use futures::FutureExt;
use outrigger_runtime::scheduler::DeliveryStarted;
use outrigger_telemetry::trace::Parent;
use outrigger_wire::runtime::v1::{
    SubscribeActorEventsRequestDeactivateResponseAlpha1, SubscribeActorEventsRequestReminderResponseAlpha1,
};
use tokio::sync::mpsc::Receiver;

use super::super::app::is_cancelled;
use super::super::tests::{OPEN_KIND, actors, names};
use super::*;

type Requests = Receiver<SubscribeActorEventsResponseAlpha1>;

fn open(actors: &Arc<Actors>, kinds: &[&str]) -> (HostStream, Requests) {
    let initial = SubscribeActorEventsRequestInitialAlpha1 {
        entities: kinds.iter().map(|&kind| kind.to_owned()).collect(),
        ..SubscribeActorEventsRequestInitialAlpha1::default()
    };
    actors.open_app_stream(initial).unwrap()
}

fn call(method: &str) -> ActorCall {
    let mut call = ActorCall {
        kind: OPEN_KIND.to_owned(),
        id: "a".to_owned(),
        method: method.to_owned(),
        body: "asked".into(),
        from_grpc: true,
        ..ActorCall::default()
    };
    call.metadata
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    call
}

fn next(requests: &mut Requests) -> Asked {
    requests.try_recv().unwrap().response_type.unwrap()
}

fn id_of(asked: &Asked) -> String {
    match asked {
        Asked::InvokeRequest(asked) => asked.id.clone(),
        Asked::DeactivateRequest(asked) => asked.id.clone(),
        other => panic!("{other:?}"),
    }
}

fn say(stream: &HostStream, said: Said) {
    stream.answered(SubscribeActorEventsRequestAlpha1 {
        request_type: Some(said),
    });
}

fn answer(stream: &HostStream, id: &str, data: &'static str) {
    say(
        stream,
        Said::InvokeResponse(SubscribeActorEventsRequestInvokeResponseAlpha1 {
            id: id.to_owned(),
            data: data.into(),
            metadata: [("content-type".to_owned(), "text/html".to_owned())].into(),
            error: data == "failed",
        }),
    );
}

fn failure(stream: &HostStream, code: Code) {
    say(
        stream,
        Said::RequestFailed(SubscribeActorEventsRequestFailedAlpha1 {
            id: "1".to_owned(),
            code: code as u32,
            message: "why".to_owned(),
        }),
    );
}

#[tokio::test]
async fn stream_carries_calls_and_replies() {
    for data in ["answered", "failed"] {
        let actors = Arc::new(actors());
        let (stream, mut requests) = open(&actors, &[OPEN_KIND]);
        let call = call("m");
        let mut called = Box::pin(actors.invoke(&call));
        assert!(called.as_mut().now_or_never().is_none());
        let Asked::InvokeRequest(asked) = next(&mut requests) else {
            panic!("not a call");
        };
        let head = (
            asked.id.as_str(),
            asked.actor_type.as_str(),
            asked.actor_id.as_str(),
        );
        assert_eq!(head, ("1", OPEN_KIND, "a"));
        assert_eq!((asked.method.as_str(), &asked.data[..]), ("m", &b"asked"[..]));
        assert_eq!(asked.metadata["content-type"], "text/plain");
        assert!(!asked.metadata.contains_key("Dapr-Reentrancy-Id"));
        answer(&stream, "2", "unknown");
        say(&stream, Said::InitialRequest(Default::default()));
        assert!(called.as_mut().now_or_never().is_none());
        answer(&stream, "1", data);
        let reply = called.await.unwrap();
        assert_eq!(reply.content_type.unwrap(), "text/html");
        assert_eq!(reply.headers.contains_key(ERROR_RESPONSE), data == "failed");
        assert!(stream.stream.pending().is_empty());
    }
}

#[tokio::test]
async fn failed_request_is_an_error() {
    for (code, text) in [
        (Code::NotFound, "actor method not found: m"),
        (Code::Internal, "error from actor service: why"),
    ] {
        let actors = Arc::new(actors());
        let (stream, _requests) = open(&actors, &[OPEN_KIND]);
        let call = call("m");
        let mut called = Box::pin(actors.invoke(&call));
        assert!(called.as_mut().now_or_never().is_none());
        failure(&stream, code);
        let error = called.await.map(drop).unwrap_err();
        assert_eq!(error.to_string(), text);
        assert_eq!(error.is_failure(), code != Code::NotFound, "permanent");
    }
}

#[tokio::test]
async fn answer_cancels_timers_and_reminders() {
    for is_timer in [false, true] {
        let actors = Arc::new(actors());
        let (stream, mut requests) = open(&actors, &[OPEN_KIND]);
        let reminder = Reminder {
            actor_type: OPEN_KIND.to_owned(),
            actor_id: "a".to_owned(),
            name: "n".to_owned(),
            callback: "c".to_owned(),
            is_timer,
            ..Reminder::default()
        };
        let (trace, begun) = (Parent::default(), DeliveryStarted::default());
        let due = Message::Due(&reminder, &trace, &begun);
        let mut sent = Box::pin(actors.send(&due));
        assert!(sent.as_mut().now_or_never().is_none());
        let said = SubscribeActorEventsRequestReminderResponseAlpha1 {
            id: "1".to_owned(),
            cancel: true,
        };
        match next(&mut requests) {
            Asked::TimerRequest(asked) if is_timer => {
                assert_eq!((asked.name.as_str(), asked.callback.as_str()), ("n", "c"));
                say(&stream, Said::TimerResponse(said));
            }
            Asked::ReminderRequest(asked) if !is_timer => {
                assert_eq!(asked.name, "n");
                say(&stream, Said::ReminderResponse(said));
            }
            other => panic!("{other:?}"),
        }
        assert!(is_cancelled(&sent.await.unwrap()));
    }
}

#[tokio::test]
async fn ended_stream_fails_its_calls() {
    let actors = Arc::new(actors());
    let (stream, _requests) = open(&actors, &[OPEN_KIND, "dapr.internal.x"]);
    assert_eq!(names(&actors), [OPEN_KIND], "without the reserved type");
    let call = call("m");
    let mut called = Box::pin(actors.invoke(&call));
    assert!(called.as_mut().now_or_never().is_none());
    drop(stream);
    assert_eq!(names(&actors), [""; 0]);
    let error = called.await.map(drop).unwrap_err();
    assert_eq!(error.to_string(), "actor host disconnected before responding");
    actors.streams.tasks.close();
    actors.streams.tasks.wait().await;
    assert_eq!(actors.hosted.load().all().count(), 0, "its actors have ended");
    let absent = actors.deactivate_in_app(OPEN_KIND, "a").await.unwrap_err();
    assert_eq!(absent.to_string(), "actor host is not connected");
}

#[tokio::test]
async fn newest_stream_receives_calls() {
    let actors = Arc::new(actors());
    let (older, mut of_older) = open(&actors, &[OPEN_KIND]);
    let first = call("m");
    let mut called = Box::pin(actors.invoke(&first));
    assert!(called.as_mut().now_or_never().is_none());
    let (newer, mut of_newer) = open(&actors, &[OPEN_KIND, "b"]);
    let (_other, mut of_other) = open(&actors, &[]);
    assert_eq!(names(&actors), ["b", OPEN_KIND]);
    let other = ActorCall {
        id: "b".to_owned(),
        ..call("m")
    };
    let mut second = Box::pin(actors.invoke(&other));
    assert!(second.as_mut().now_or_never().is_none());
    answer(&older, &id_of(&next(&mut of_older)), "");
    assert!(called.await.is_ok(), "the older one finishes its calls");
    answer(&newer, &id_of(&next(&mut of_newer)), "");
    assert!(second.await.is_ok());
    assert!(of_older.try_recv().is_err() && of_other.try_recv().is_err());
    drop(newer);
    assert_eq!(names(&actors), [OPEN_KIND], "another stream has it");
}

#[tokio::test]
async fn unhealthy_app_hosts_no_streamed_types() {
    let actors = Arc::new(actors());
    actors.register(&Settings::none());
    let (stream, mut requests) = open(&actors, &[OPEN_KIND]);
    let call = call("m");
    let mut called = Box::pin(actors.invoke(&call));
    assert!(called.as_mut().now_or_never().is_none());
    answer(&stream, &id_of(&next(&mut requests)), "");
    called.await.unwrap();
    let mut ending = Box::pin(actors.unregister());
    assert!(ending.as_mut().now_or_never().is_none());
    // The app is healthy again before its actor has ended.
    actors.register(&Settings::none());
    assert_eq!(names(&actors), [""; 0]);
    let Asked::DeactivateRequest(asked) = next(&mut requests) else {
        panic!("not a deactivation");
    };
    assert_eq!(asked.actor_id, "a");
    let id = asked.id;
    say(
        &stream,
        Said::DeactivateResponse(SubscribeActorEventsRequestDeactivateResponseAlpha1 { id }),
    );
    ending.await;
    assert_eq!(names(&actors), [OPEN_KIND]);
}

#[test]
fn rejects_negative_durations() {
    let initial = SubscribeActorEventsRequestInitialAlpha1 {
        actor_idle_timeout: Some(prost_types::Duration {
            seconds: -1,
            nanos: 0,
        }),
        ..SubscribeActorEventsRequestInitialAlpha1::default()
    };
    let error = given(initial).unwrap_err().to_string();
    assert!(
        error.contains("actor_idle_timeout") && error.contains("-1"),
        "{error}"
    );
}
