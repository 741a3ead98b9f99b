use std::future::{pending, ready};

use outrigger_accept::budget;

use super::*;
use crate::workflow::worker::stream::WorkStream;
use futures::FutureExt;

fn of_bytes(bytes: usize) -> StepRequest {
    StepRequest {
        whole: vec![vec![0; bytes].into()],
        ..StepRequest::default()
    }
}

fn stepped(instance: &str, token: &str) -> WorkflowResponse {
    WorkflowResponse {
        instance_id: instance.to_owned(),
        completion_token: token.to_owned(),
        ..WorkflowResponse::default()
    }
}

fn acted(instance: &str, task: i32) -> ActivityResponse {
    ActivityResponse {
        instance_id: instance.to_owned(),
        task_id: task,
        ..ActivityResponse::default()
    }
}

#[tokio::test]
async fn routes_work_and_answer() {
    let queue = WorkQueue::new(Limits::default());
    let (one, two) = (WorkStream::open(&queue, false), WorkStream::open(&queue, false));
    assert_eq!(queue.streams(), 2);
    let mut first = std::pin::pin!(queue.run_step("a", StepRequest::default(), 0, pending()));
    let mut second = std::pin::pin!(queue.run_activity("a", 3, Bytes::new(), pending()));
    assert!(first.as_mut().now_or_never().is_none());
    assert!(second.as_mut().now_or_never().is_none());
    assert!(queue.step_done(stepped("a", "")).is_some(), "it was not sent yet");
    let (a, b) = (one.next().await, two.next().await);
    assert!(matches!(a.task, Task::Step(_)));
    assert!(matches!(b.task, Task::Activity(_)));
    assert!(one.next().now_or_never().is_none());
    assert!(queue.activity_done(acted("a", 4)).is_some(), "another task");
    assert!(queue.activity_done(acted("a", 3)).is_none());
    assert!(queue.step_done(stepped("a", &a.token)).is_none());
    assert!(queue.step_done(stepped("a", "")).is_some(), "once");
    assert!(first.await.is_ok());
    assert_eq!(second.await.unwrap().task_id, 3);
    assert!(queue.locked().items.is_empty());
}

#[tokio::test]
async fn closed_stream_cancels_sent_items_only() {
    let queue = WorkQueue::new(Limits::default());
    let stream = WorkStream::open(&queue, false);
    let mut sent = std::pin::pin!(queue.run_step("a", StepRequest::default(), 0, pending()));
    assert!(sent.as_mut().now_or_never().is_none());
    stream.next().await;
    let mut unsent = std::pin::pin!(queue.run_step("b", StepRequest::default(), 0, pending()));
    assert!(unsent.as_mut().now_or_never().is_none());
    drop(stream);
    assert_eq!(sent.await.unwrap_err(), Cancelled::Disconnected);
    assert!(unsent.as_mut().now_or_never().is_none());
    let stream = WorkStream::open(&queue, false);
    stream.next().await;
    assert!(queue.step_done(stepped("b", "")).is_none());
    assert!(unsent.await.is_ok());
}

#[tokio::test]
async fn blames_suspect_step_not_activity() {
    let queue = WorkQueue::new(Limits::default());
    for losses in [0, 2] {
        let stream = WorkStream::open(&queue, false);
        let mut step = std::pin::pin!(queue.run_step("a", StepRequest::default(), losses, pending()));
        let mut activity = std::pin::pin!(queue.run_activity("b", 1, Bytes::new(), pending()));
        assert!(step.as_mut().now_or_never().is_none());
        assert!(activity.as_mut().now_or_never().is_none());
        for _ in 0..2 {
            stream.next().await;
        }
        drop(stream);
        assert_eq!(step.await.unwrap_err(), Cancelled::Disconnected);
        let expected = match losses {
            0 => Cancelled::Disconnected,
            losses => Cancelled::DisconnectedWithSuspect { losses },
        };
        assert_eq!(activity.await.unwrap_err(), expected);
    }
}

#[tokio::test]
async fn old_answer_does_not_match_new_item() {
    let queue = WorkQueue::new(Limits::default());
    let stream = WorkStream::open(&queue, false);
    let mut earlier = Box::pin(queue.run_step("a", StepRequest::default(), 0, pending()));
    assert!(earlier.as_mut().now_or_never().is_none());
    let old = stream.next().await;
    drop(earlier);
    let mut later = std::pin::pin!(queue.run_step("a", StepRequest::default(), 0, pending()));
    assert!(later.as_mut().now_or_never().is_none());
    let new = stream.next().await;
    assert!(queue.step_done(stepped("a", &old.token)).is_some());
    assert!(queue.step_done(stepped("a", &new.token)).is_none());
    assert!(later.await.is_ok());
}

/// A repeated step requests its activities again while workers still run the first ones.
#[tokio::test]
async fn items_of_one_key_get_own_answers() {
    let queue = WorkQueue::new(Limits::default());
    let stream = WorkStream::open(&queue, false);
    let mut first = std::pin::pin!(queue.run_step("a", StepRequest::default(), 0, pending()));
    assert!(first.as_mut().now_or_never().is_none());
    let first_item = stream.next().await;
    let mut second = std::pin::pin!(queue.run_step("a", StepRequest::default(), 0, pending()));
    assert!(second.as_mut().now_or_never().is_none());
    let second_item = stream.next().await;
    assert!(queue.step_done(stepped("a", &first_item.token)).is_none());
    assert!(first.now_or_never().is_some_and(|answer| answer.is_ok()));
    assert!(second.as_mut().now_or_never().is_none());
    assert!(queue.step_done(stepped("a", &second_item.token)).is_none());
    assert!(second.now_or_never().is_some_and(|answer| answer.is_ok()));
}

/// A worker without tokens answers the latest item of a key, and no earlier one afterwards.
#[tokio::test]
async fn answer_without_token_matches_latest_item() {
    let queue = WorkQueue::new(Limits::default());
    let stream = WorkStream::open(&queue, false);
    let mut earlier = std::pin::pin!(queue.run_step("a", StepRequest::default(), 0, pending()));
    let mut latest = std::pin::pin!(queue.run_step("a", StepRequest::default(), 0, pending()));
    for wanted in [&mut earlier, &mut latest] {
        assert!(wanted.as_mut().now_or_never().is_none());
        stream.next().await;
    }
    assert!(queue.step_done(stepped("a", "")).is_none());
    assert!(latest.await.is_ok());
    assert!(queue.step_done(stepped("a", "")).is_some());
    assert!(earlier.now_or_never().is_none());
}

#[tokio::test]
async fn tokens_belong_to_one_queue() {
    let (here, there) = (
        WorkQueue::new(Limits::default()),
        WorkQueue::new(Limits::default()),
    );
    let (one, two) = (WorkStream::open(&here, false), WorkStream::open(&there, false));
    let mut wanted = std::pin::pin!(here.run_step("a", StepRequest::default(), 0, pending()));
    let mut other = std::pin::pin!(there.run_step("a", StepRequest::default(), 0, pending()));
    assert!(wanted.as_mut().now_or_never().is_none());
    assert!(other.as_mut().now_or_never().is_none());
    let (item, foreign) = (one.next().await, two.next().await);
    assert!(here.is_own(&item.token) && !here.is_own(&foreign.token) && !here.is_own(""));
    let back = here.step_done(stepped("a", &foreign.token));
    assert_eq!(back, Some(stepped("a", &foreign.token)), "for another sidecar");
    assert!(here.step_done(stepped("a", &item.token)).is_none());
    assert!(wanted.await.is_ok());
}

#[tokio::test]
async fn remote_answer_completes_item() {
    let queue = WorkQueue::new(Limits {
        steps: Some(1),
        activities: None,
    });
    let stream = WorkStream::open(&queue, false);
    let brought = {
        let remote = async {
            let item = stream.next().await;
            assert!(queue.step_done(stepped("a", &item.token)).is_none());
            pending().await
        };
        queue.run_step("a", StepRequest::default(), 0, remote).await
    };
    assert!(brought.is_ok());
    let lost = queue
        .run_step("a", StepRequest::default(), 0, ready(Cancelled::Lost))
        .await;
    assert_eq!(lost.unwrap_err(), Cancelled::Lost);
    assert!(queue.locked().items.is_empty());
    let mut held = std::pin::pin!(queue.run_step("b", StepRequest::default(), 0, pending()));
    assert!(held.as_mut().now_or_never().is_none());
    let waiting = queue.run_step("a", StepRequest::default(), 0, ready(Cancelled::Lost));
    assert!(waiting.now_or_never().is_none(), "it is not with a worker yet");
}

#[tokio::test]
async fn rejected_answer_ends_wait() {
    let queue = WorkQueue::new(Limits::default());
    let why = Cancelled::TooLarge { size: 9, limit: 8 };
    let stream = WorkStream::open(&queue, false);
    let mut wanted = std::pin::pin!(queue.run_step("a", StepRequest::default(), 0, pending()));
    assert!(wanted.as_mut().now_or_never().is_none());
    assert!(!queue.reject_step("a", "", why), "it was not sent yet");
    let item = stream.next().await;
    assert!(!queue.reject_step("b", &item.token, why), "another instance");
    assert!(queue.reject_step("a", &item.token, why));
    assert_eq!(wanted.await.unwrap_err(), why);
    assert!(!queue.reject_step("a", &item.token, why), "once");
}

#[tokio::test]
async fn limits_hold_back_work() {
    let queue = WorkQueue::new(Limits {
        steps: None,
        activities: Some(1),
    });
    let stream = WorkStream::open(&queue, false);
    let mut one = std::pin::pin!(queue.run_activity("a", 1, Bytes::new(), pending()));
    let mut two = std::pin::pin!(queue.run_activity("a", 2, Bytes::new(), pending()));
    assert!(one.as_mut().now_or_never().is_none());
    assert!(two.as_mut().now_or_never().is_none());
    let progress = || {
        [1, 2, 3].map(|task| match queue.activity_progress("a", task) {
            Some(Progress::Sent(_)) => "sent",
            Some(Progress::Untaken) => "untaken",
            Some(Progress::Limit(1)) => "held",
            Some(Progress::Limit(_)) => "held otherwise",
            None => "",
        })
    };
    assert_eq!((progress(), queue.waiting()), (["untaken", "held", ""], 2));
    stream.next().await;
    assert!(stream.next().now_or_never().is_none());
    assert_eq!((progress(), queue.waiting()), (["sent", "held", ""], 1));
    assert!(queue.activity_done(acted("a", 1)).is_none());
    assert!(one.await.is_ok());
    assert!(two.as_mut().now_or_never().is_none());
    assert_eq!((progress(), queue.waiting()), (["", "untaken", ""], 1));
    stream.next().await;
    assert_eq!((progress(), queue.waiting()), (["", "sent", ""], 0));
    assert!(queue.activity_done(acted("a", 2)).is_none());
    assert!(two.await.is_ok());
}

#[tokio::test]
async fn held_back_work_counts_as_waiting() {
    let queue = WorkQueue::new(Limits {
        steps: None,
        activities: Some(1),
    });
    let want = |task| {
        let queue = Arc::clone(&queue);
        let mut wanted =
            Box::pin(async move { queue.run_activity("a", task, Bytes::new(), pending()).await });
        wanted.as_mut().now_or_never().is_none().then_some(wanted)
    };
    let mut held: Vec<_> = (0..MAX_WORK)
        .map(|task| want(i32::try_from(task).unwrap()).unwrap())
        .collect();
    assert_eq!(queue.waiting(), MAX_WORK);
    let beyond = queue.run_activity("b", 1, Bytes::new(), pending()).now_or_never();
    assert_eq!(beyond.unwrap().unwrap_err(), Cancelled::TooMuch);
    held.pop();
    held.push(want(-1).unwrap());
    drop(held);
    assert_eq!(queue.locked().wanted, 0);
    assert_eq!(queue.waiting(), 0);
}

/// Invariant: the bytes of all steps are bounded, sent or not; one step of any size is admitted while there
/// is room. Activities have their own budget, so that no step waits for one.
#[tokio::test]
async fn rejects_work_beyond_memory_limit() {
    let queue = WorkQueue::within(Limits::default(), || Payloads::up_to(100));
    let step = |bytes| {
        let mut wanted = Box::pin(queue.run_step("a", of_bytes(bytes), 0, pending()));
        match wanted.as_mut().now_or_never() {
            None => Ok(wanted),
            Some(ended) => Err(ended.unwrap_err()),
        }
    };
    let large = |task| queue.run_activity("b", task, vec![0; 500].into(), pending());
    let mut running = Box::pin(large(1));
    assert!(running.as_mut().now_or_never().is_none());
    let beyond = large(2).now_or_never();
    assert_eq!(beyond.unwrap().unwrap_err(), Cancelled::TooLargeTogether(100));
    let (small, large) = (step(25).unwrap(), step(500).unwrap());
    assert!(
        WorkStream::open(&queue, false).next().now_or_never().is_some(),
        "a worker has it"
    );
    assert_eq!(step(1).err(), Some(Cancelled::TooLargeTogether(100)));
    let refused = queue.has_memory().unwrap_err().to_string();
    assert!(refused.contains(budget::VARIABLE), "{refused}");
    drop((small, large));
    queue.has_memory().unwrap();
}

#[tokio::test]
async fn withdrawn_work_is_not_sent() {
    let queue = WorkQueue::new(Limits::default());
    let mut dropped = Box::pin(queue.run_step("a", StepRequest::default(), 0, pending()));
    assert!(dropped.as_mut().now_or_never().is_none());
    assert_eq!(queue.waiting(), 1);
    drop(dropped);
    assert_eq!(queue.waiting(), 0);
    let stream = WorkStream::open(&queue, false);
    assert!(stream.next().now_or_never().is_none());
}

#[tokio::test]
async fn withdrawn_items_do_not_accumulate() {
    let queue = WorkQueue::new(Limits::default());
    let want = |task: i32| {
        let queue = Arc::clone(&queue);
        let request = Bytes::from(task.to_string());
        let mut wanted = Box::pin(async move { queue.run_activity("a", task, request, pending()).await });
        assert!(wanted.as_mut().now_or_never().is_none());
        wanted
    };
    let mut held: VecDeque<_> = (0..10).map(want).collect();
    drop(held.pop_front());
    assert_eq!(queue.waiting(), 9);
    assert_eq!(queue.locked().order.len(), 10, "it is not looked for");
    for task in 10..1000 {
        drop(want(task));
        assert!(queue.locked().order.len() <= 2 * 10 + SLACK);
    }
    assert_eq!(queue.waiting(), 9);
    let stream = WorkStream::open(&queue, false);
    for task in 1..10 {
        let item = stream.next().now_or_never().unwrap();
        assert!(matches!(item.task, Task::Activity(sent) if sent == task.to_string()));
    }
    assert_eq!(queue.waiting(), 0);
    assert!(stream.next().now_or_never().is_none());
    drop(held);
    assert_eq!(queue.waiting(), 0);
    let again = want(1);
    assert_eq!(queue.waiting(), 1);
    queue.end();
    drop(again);
    assert_eq!(queue.waiting(), 0);
}

#[tokio::test]
async fn end_cancels_all_work() {
    let queue = WorkQueue::new(Limits::default());
    let mut waiting = std::pin::pin!(queue.run_step("a", StepRequest::default(), 0, pending()));
    assert!(waiting.as_mut().now_or_never().is_none());
    queue.end();
    assert_eq!(waiting.await.unwrap_err(), Cancelled::Ended);
    assert_eq!(
        queue
            .run_step("a", StepRequest::default(), 0, pending())
            .await
            .unwrap_err(),
        Cancelled::Ended
    );
}

#[tokio::test]
async fn owner_gets_rest_of_history() {
    let queue = WorkQueue::new(Limits::default());
    let (plain, owner) = (WorkStream::open(&queue, false), WorkStream::open(&queue, true));
    let known = |events| KnownHistory { execution: 1, events };
    let step = |events, rest: Option<usize>| StepRequest {
        whole: vec![Bytes::from_static(b"whole")],
        history: Some(known(events)),
        rest: rest.map(|rest| (vec![Bytes::from_static(b"rest")], known(rest))),
    };
    let sent = |item: Item| match item.task {
        Task::Step(pieces) => pieces.concat(),
        Task::Activity(_) => panic!("a step"),
    };
    assert_eq!(queue.known("a"), None);
    for (events, rest, expected) in [(3, None, &b"whole"[..]), (5, Some(3), b"rest")] {
        let mut asked = std::pin::pin!(queue.run_step("a", step(events, rest), 0, pending()));
        assert!(asked.as_mut().now_or_never().is_none());
        assert!(plain.next().now_or_never().is_none(), "it is the owner's");
        assert_eq!(sent(owner.next().await), expected);
        assert!(queue.step_done(stepped("a", "")).is_none());
        assert!(asked.await.is_ok());
        assert_eq!(queue.known("a"), Some(known(events)));
    }
    // Its stream ends before it takes the step: another worker gets the whole history.
    let mut asked = std::pin::pin!(queue.run_step("a", step(6, Some(5)), 0, pending()));
    assert!(asked.as_mut().now_or_never().is_none());
    drop(owner);
    assert_eq!(sent(plain.next().await), b"whole");
    assert_eq!(queue.known("a"), None);
    assert!(queue.step_done(stepped("a", "")).is_none());
    assert!(asked.await.is_ok());
}
