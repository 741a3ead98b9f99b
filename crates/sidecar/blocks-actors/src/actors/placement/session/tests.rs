//! Streams during a handover and during shutdown.

use std::pin::pin;

use futures::future::{join, join_all};
use outrigger_actors::dissemination;
use outrigger_actors::routes::Origin;
use outrigger_actors::settings::Settings;
use outrigger_runtime::life::Readiness;
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

use super::super::super::ActorCall;
use super::super::super::call::Message;
use super::super::super::tests::{HERE, KIND, Lasting, THERE, actors, lasting, names};
use super::super::super::type_admission::TypeAdmission;
use super::*;

type Orders = UnboundedSender<Result<wire::PlacementOrder, Status>>;

/// A term with handover; without a term all actors stop.
const TERM: u64 = 7;

fn order(operation: &str, version: u64) -> Result<wire::PlacementOrder, Status> {
    order_of(TERM, operation, version)
}

fn order_of(handover: u64, operation: &str, version: u64) -> Result<wire::PlacementOrder, Status> {
    order_placing(THERE, handover, operation, version)
}

fn order_placing(
    host: &str,
    handover: u64,
    operation: &str,
    version: u64,
) -> Result<wire::PlacementOrder, Status> {
    order_with(&[(KIND, &[host])], handover, operation, version)
}

fn order_with(
    types: &[(&str, &[&str])],
    handover: u64,
    operation: &str,
    version: u64,
) -> Result<wire::PlacementOrder, Status> {
    let placed = |&name: &&str| {
        let host = wire::Host {
            name: name.to_owned(),
            id: "shop".to_owned(),
            ..wire::Host::default()
        };
        (name.to_owned(), host)
    };
    let entries = types.iter().map(|(kind, hosts)| {
        let table = wire::PlacementTable {
            load_map: hosts.iter().map(placed).collect(),
            ..wire::PlacementTable::default()
        };
        ((*kind).to_owned(), table)
    });
    Ok(wire::PlacementOrder {
        operation: operation.to_owned(),
        version,
        handover,
        tables: Some(wire::PlacementTables {
            entries: entries.collect(),
            replication_factor: 10,
            ..wire::PlacementTables::default()
        }),
        ..wire::PlacementOrder::default()
    })
}

/// A sidecar with one active actor, which ends when allowed.
async fn hosting() -> (Actors, Arc<Lasting>, Condition, CancellationToken) {
    let (actors, lasting) = (actors(), lasting());
    actors.host_internal([(KIND.to_owned(), lasting.clone() as Arc<_>)]);
    let call = ActorCall {
        kind: KIND.to_owned(),
        id: "a".to_owned(),
        ..ActorCall::default()
    };
    assert!(actors.received(&Message::Call(&call), Origin::Own).await.is_ok());
    let ready = Readiness::default().condition("placement");
    (actors, lasting, ready, CancellationToken::new())
}

fn admission(actors: &Actors) -> Arc<TypeAdmission> {
    Arc::clone(&actors.hosted.load().with_actors(KIND).unwrap().admission)
}

fn count(actors: &Actors) -> usize {
    actors.hosted.load().all().map(|kind| kind.count()).sum()
}

/// A stream that has received `lock` and `update`, and the answers to it.
fn stream<'s, 'a>(
    actors: &'a Actors,
    ready: &'s Condition,
    handing: &'s mut PendingHandover<'a>,
) -> TestSession<'s, 'a, impl Stream<Item = Result<wire::PlacementOrder, Status>> + Unpin> {
    let told = quiet_stream(actors, ready, handing);
    for operation in ["lock", "update"] {
        told.1.send(order(operation, 1)).unwrap();
    }
    told
}

type TestSession<'s, 'a, O> = (Session<'s, 'a>, Orders, O, Receiver<wire::Host>);

/// A stream without orders so far.
fn quiet_stream<'s, 'a>(
    actors: &'a Actors,
    ready: &'s Condition,
    handing: &'s mut PendingHandover<'a>,
) -> (
    Session<'s, 'a>,
    Orders,
    impl Stream<Item = Result<wire::PlacementOrder, Status>> + Unpin,
    Receiver<wire::Host>,
) {
    let (reports, answers) = mpsc::channel(8);
    let (said, orders) = unbounded_channel();
    let session = Session::new(actors, ready, (reports, names(actors).into()), None, handing);
    (session, said, read_all(orders), answers)
}

fn read_all<T: Send>(orders: UnboundedReceiver<T>) -> impl Stream<Item = T> + Unpin {
    Box::pin(futures::stream::unfold(orders, |mut orders| async move {
        let order = orders.recv().await?;
        Some((order, orders))
    }))
}

fn answered(answers: &mut Receiver<wire::Host>) -> Vec<(wire::HostOperation, Option<u64>)> {
    let answers = std::iter::from_fn(|| answers.try_recv().ok());
    answers
        .map(|answer| (answer.operation(), answer.version))
        .collect()
}

/// Other hosts may have all actors by then, and admission is open.
#[tokio::test(start_paused = true)]
async fn sees_stream_end_during_handover() {
    let cut_off = Some(Err(Status::deadline_exceeded("dissemination timeout")));
    for last in [cut_off, Some(order("lock", 2)), Some(order("unlock", 1)), None] {
        let (actors, lasting, ready, stop) = hosting().await;
        let mut handing = None;
        {
            let (mut session, said, orders, mut answers) = stream(&actors, &ready, &mut handing);
            let mut running = pin!(session.run(orders, &stop));
            assert!(running.as_mut().now_or_never().is_none());
            assert_eq!(
                answered(&mut answers),
                [(wire::HostOperation::Lock, Some(1))],
                "the table is not answered before the actor has ended"
            );
            if let Some(last) = last {
                said.send(last).unwrap();
            }
            drop(said);
            let ended = running.now_or_never().expect("it is seen");
            assert!(ended.is_err());
        }
        // As when the stream is lost.
        let mut closing = pin!(join(actors.close(), finish_handover(&mut handing)));
        assert!(closing.as_mut().now_or_never().is_none());
        assert!(!actors.admission.is_open());
        assert_eq!(count(&actors), 1, "it continues to end");
        lasting.may_end.add_permits(1);
        closing.await;
        assert_eq!(count(&actors), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn finishes_handover_before_shutdown() {
    let (actors, lasting, ready, stop) = hosting().await;
    let mut handing = None;
    let (mut session, said, orders, mut answers) = stream(&actors, &ready, &mut handing);
    let mut running = pin!(session.run(orders, &stop));
    assert!(running.as_mut().now_or_never().is_none());
    stop.cancel();
    assert!(running.as_mut().now_or_never().is_none());
    assert_eq!(
        answered(&mut answers),
        [
            (wire::HostOperation::Lock, Some(1)),
            (wire::HostOperation::Report, None)
        ],
        "placement is informed at once"
    );
    let early = timeout(LEAVE_TIMEOUT + Duration::from_secs(1), running.as_mut()).await;
    assert!(early.is_err(), "its actor still ends");
    lasting.may_end.add_permits(1);
    let told = timeout(LEAVE_TIMEOUT / 2, running.as_mut()).await;
    assert!(told.is_err(), "the others are to know");
    assert_eq!(answered(&mut answers), [(wire::HostOperation::Update, Some(1))]);
    assert!(!actors.routes.load().tables().name(HERE));
    said.send(order("unlock", 1)).unwrap();
    let ended = timeout(FORWARD_TIME + Duration::from_millis(1), running)
        .await
        .unwrap();
    assert!(ended.is_ok());
}

/// Other hosts may have the actors as soon as the stream has ended, even if the app is slow to deactivate
/// moving ones.
#[tokio::test(start_paused = true)]
async fn sees_stream_end_while_actors_move() {
    for last in [
        Some(Err(Status::deadline_exceeded("dissemination timeout"))),
        None,
    ] {
        let (actors, lasting, ready, stop) = hosting().await;
        let mut handing = None;
        {
            let (mut session, said, orders, mut answers) = quiet_stream(&actors, &ready, &mut handing);
            for (operation, version) in [("lock", 1), ("update", 1), ("lock", 2)] {
                said.send(order_of(0, operation, version)).unwrap();
            }
            let mut running = pin!(session.run(orders, &stop));
            assert!(running.as_mut().now_or_never().is_none());
            assert_eq!(answered(&mut answers), [(wire::HostOperation::Lock, Some(1))]);
            if let Some(last) = last {
                said.send(last).unwrap();
            }
            drop(said);
            assert!(running.now_or_never().expect("it is seen").is_err());
        }
        let admission = admission(&actors);
        let write = admission.admit_nested(0);
        let mut closing = pin!(join(actors.close(), finish_handover(&mut handing)));
        assert!(timeout(Duration::from_secs(1), closing.as_mut()).await.is_err());
        assert!(
            write.cancelled().now_or_never().is_some(),
            "its writes are rejected"
        );
        assert!(admission.admit_nested(0).cancelled().now_or_never().is_some());
        drop(write);
        lasting.may_end.add_permits(1);
        closing.await;
        assert_eq!(count(&actors), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn answers_dissemination_after_actors_ended() {
    let (actors, lasting, ready, stop) = hosting().await;
    let mut handing = None;
    let (mut session, said, orders, mut answers) = quiet_stream(&actors, &ready, &mut handing);
    for (operation, version) in [("lock", 1), ("update", 1), ("lock", 2)] {
        said.send(order_of(0, operation, version)).unwrap();
    }
    let mut running = pin!(session.run(orders, &stop));
    assert!(running.as_mut().now_or_never().is_none());
    assert_eq!(answered(&mut answers), [(wire::HostOperation::Lock, Some(1))]);
    lasting.may_end.add_permits(1);
    assert!(running.as_mut().now_or_never().is_none());
    assert_eq!(
        answered(&mut answers),
        [
            (wire::HostOperation::Update, Some(1)),
            (wire::HostOperation::Lock, Some(2))
        ]
    );
    for operation in ["update", "unlock"] {
        said.send(order_of(0, operation, 2)).unwrap();
    }
    assert!(running.as_mut().now_or_never().is_none());
    assert_eq!(
        answered(&mut answers),
        [
            (wire::HostOperation::Update, Some(2)),
            (wire::HostOperation::Unlock, Some(2))
        ]
    );
    assert!(actors.admission.is_open());
}

/// The stream keeps other hosts from getting the actors.
#[tokio::test(start_paused = true)]
async fn shutdown_keeps_stream_until_calls_drained() {
    // Disseminations use real time, so that case comes first: skipped time would expire it.
    for (round, ends_by_itself) in [(true, true), (false, true), (false, false)] {
        let (actors, _lasting, ready, stop) = hosting().await;
        let drain = Duration::from_secs(20);
        actors.change_types(|known| known.drain = drain);
        let runs = admission(&actors).admit(0).await;
        let mut handing = None;
        let (mut session, said, orders, _answers) = quiet_stream(&actors, &ready, &mut handing);
        stop.cancel();
        if round {
            said.send(order_of(0, "lock", 1)).unwrap();
        }
        let mut running = pin!(session.run(orders, &stop));
        assert!(
            timeout(LEAVE_TIMEOUT + drain / 2, running.as_mut())
                .await
                .is_err()
        );
        assert!(!actors.admission.is_open(), "no other call begins");
        assert!(runs.cancelled().now_or_never().is_none());
        if !ends_by_itself {
            sleep(drain / 2 + Duration::from_millis(10)).await;
            assert!(running.as_mut().now_or_never().is_none());
            assert!(runs.cancelled().now_or_never().is_some(), "its time is over");
        }
        drop(runs);
        assert!(running.now_or_never().expect("no call runs").is_ok());
    }
}

/// Regression: with handover, a dissemination before the shutdown was mistaken for the one that moves the
/// actors away.
#[tokio::test(start_paused = true)]
async fn shutdown_drains_calls_without_dissemination() {
    let (actors, _lasting, ready, stop) = hosting().await;
    let drain = Duration::from_secs(60);
    actors.change_types(|known| known.drain = drain);
    let mut handing = None;
    let (mut session, said, orders, _answers) = quiet_stream(&actors, &ready, &mut handing);
    for operation in ["lock", "update", "unlock"] {
        said.send(order_placing(HERE, TERM, operation, 1)).unwrap();
    }
    let mut running = pin!(session.run(orders, &stop));
    assert!(running.as_mut().now_or_never().is_none());
    let runs = admission(&actors).admit(0).await;
    stop.cancel();
    assert!(
        timeout(LEAVE_TIMEOUT + drain / 2, running.as_mut())
            .await
            .is_err()
    );
    assert!(runs.cancelled().now_or_never().is_none());
    drop(runs);
    assert!(running.now_or_never().expect("no call runs").is_ok());
}

/// A sidecar that hosts two types of an app. Calls of the first may drain for 3 s, and of others for 1 s.
fn hosting_two() -> (Actors, Condition, CancellationToken) {
    let actors = actors();
    let config = br#"{"entities": ["a", "b"], "drainOngoingCallTimeout": "1s",
        "entitiesConfig": [{"entities": ["a"], "drainOngoingCallTimeout": "3s"}]}"#;
    actors.register(&Settings::parse(config, dissemination::TIMEOUT).unwrap());
    let ready = Readiness::default().condition("placement");
    (actors, ready, CancellationToken::new())
}

fn admissions(actors: &Actors) -> [Arc<TypeAdmission>; 2] {
    let hosted = actors.hosted.load();
    ["a", "b"].map(|kind| Arc::clone(&hosted.get(kind).unwrap().admission))
}

/// Handles orders of one dissemination without handover, up to `last`.
fn disseminate(said: &Orders, types: &[(&str, &[&str])], version: u64, last: &str) {
    for operation in ["lock", "update", "unlock"] {
        said.send(order_with(types, 0, operation, version)).unwrap();
        if operation == last {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn table_blocks_only_changed_types() {
    let (actors, ready, stop) = hosting_two();
    let mut handing = None;
    let (mut session, said, orders, mut answers) = quiet_stream(&actors, &ready, &mut handing);
    let mut running = pin!(session.run(orders, &stop));
    disseminate(&said, &[("a", &[HERE]), ("b", &[HERE])], 1, "unlock");
    assert!(running.as_mut().now_or_never().is_none());
    answered(&mut answers);
    let admissions = admissions(&actors);
    let runs = [admissions[0].admit(0).await, admissions[1].admit(0).await];
    disseminate(&said, &[], 2, "lock");
    assert!(running.as_mut().now_or_never().is_none());
    let lock = (wire::HostOperation::Lock, Some(2));
    assert_eq!(answered(&mut answers), [lock], "no call delays the answer");
    assert!(admissions.iter().all(|admission| admission.is_open()));
    let order = order_with(&[("a", &[HERE]), ("b", &[HERE, THERE])], 0, "update", 2);
    said.send(order).unwrap();
    let before = timeout(Duration::from_millis(999), running.as_mut()).await;
    assert!(before.is_err() && !runs[1].is_cancelled());
    assert_eq!(
        admissions.each_ref().map(|admission| admission.is_open()),
        [true, false]
    );
    let drained = timeout(Duration::from_millis(2), running.as_mut()).await;
    assert!(drained.is_err() && runs[1].is_cancelled());
    assert!(!runs[0].is_cancelled(), "its type does not change");
    assert_eq!(answered(&mut answers), [], "the call has not ended");
    let [stays, ends] = runs;
    drop(ends);
    assert!(running.as_mut().now_or_never().is_none());
    let update = (wire::HostOperation::Update, Some(2));
    assert_eq!(answered(&mut answers), [update]);
    assert!(!admissions[1].is_open(), "other hosts may still have its actors");
    said.send(order_with(&[], 0, "unlock", 2)).unwrap();
    assert!(running.as_mut().now_or_never().is_none());
    assert!(admissions.iter().all(|admission| admission.is_open()));
    assert!(!stays.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn changed_types_drain_in_parallel() {
    let (actors, ready, stop) = hosting_two();
    let mut handing = None;
    let (mut session, said, orders, mut answers) = quiet_stream(&actors, &ready, &mut handing);
    let mut running = pin!(session.run(orders, &stop));
    disseminate(&said, &[("a", &[HERE]), ("b", &[HERE])], 1, "unlock");
    assert!(running.as_mut().now_or_never().is_none());
    answered(&mut answers);
    let admissions = admissions(&actors);
    let began = Instant::now();
    let runs = join_all(admissions.each_ref().map(|admission| admission.admit(0))).await;
    disseminate(&said, &[], 2, "update");
    let ended = join_all(runs.iter().map(async |runs| {
        runs.cancelled().await;
        began.elapsed()
    }));
    let ended = tokio::select! {
        ended = ended => ended,
        _ = running.as_mut() => panic!("the stream is open"),
    };
    assert_eq!(ended, [3, 1].map(Duration::from_secs));
}

/// Invariant: after a lost stream, other hosts may have the actors until the unlock, also if the table is the
/// same.
#[tokio::test(start_paused = true)]
async fn new_stream_opens_at_unlock() {
    let (actors, ready, stop) = hosting_two();
    actors.close().await;
    let mut handing = None;
    let (mut session, said, orders, mut answers) = quiet_stream(&actors, &ready, &mut handing);
    let mut running = pin!(session.run(orders, &stop));
    let types: [(&str, &[&str]); 2] = [("a", &[HERE]), ("b", &[HERE])];
    disseminate(&said, &types, 1, "update");
    assert!(running.as_mut().now_or_never().is_none());
    assert_eq!(answered(&mut answers).len(), 2);
    let admissions = admissions(&actors);
    assert!(!admissions.iter().any(|admission| admission.is_open()));
    said.send(order_with(&types, 0, "unlock", 1)).unwrap();
    assert!(running.as_mut().now_or_never().is_none());
    assert!(admissions.iter().all(|admission| admission.is_open()));
}

#[tokio::test(start_paused = true)]
async fn missing_table_reopens_stream() {
    let (mut actors, ready, stop) = hosting_two();
    actors.with.disseminate_timeout = Duration::from_millis(1);
    let mut handing = None;
    let (mut session, said, orders, _answers) = quiet_stream(&actors, &ready, &mut handing);
    disseminate(&said, &[], 7, "lock");
    let Err(lost) = session.run(orders, &stop).await else {
        panic!("no table came");
    };
    let text = "Dissemination timeout for version 7: no table arrived within 1ms";
    assert!(lost.cause.starts_with(text), "{}", lost.cause);
}
