//! Without a broker: the client queues what it should send.

use outrigger_component::{Metadata, Setup};

use super::*;
use crate::{client, settings::PubSubSettings};

/// A session, and values that must outlive it.
fn session() -> (Session, Events) {
    let properties = [("url".to_owned(), "tcp://127.0.0.1:1".to_owned())];
    let setup = Setup {
        metadata: Metadata::new("broker", properties).unwrap(),
        app_id: "app".to_owned(),
    };
    let connection = PubSubSettings::v3(&setup).unwrap().connection;
    let (client, events) = client::open(&connection, &connection.client).unwrap();
    let (link, _) = watch::channel(Link::Down(None));
    let session = Session::new(client, link, CancellationToken::new(), &connection);
    (session, events)
}

fn add(session: &mut Session, id: u64, topic: &str) -> mpsc::UnboundedReceiver<Incoming> {
    let (messages, incoming) = mpsc::unbounded_channel();
    let route = Route {
        id,
        filter: Filter::new(topic),
        options: SubscribeOptions::default(),
        messages,
    };
    let (added, mut taken) = oneshot::channel();
    session.command(Command::Add(route, added));
    assert_eq!(taken.try_recv(), Ok(()), "it is told");
    incoming
}

#[tokio::test]
async fn does_not_unsubscribe_shared_filter() {
    let (mut session, _events) = session();
    let orders = || Command::Forget(Filter::new("orders"));
    let _first = add(&mut session, 1, "orders");
    let second = add(&mut session, 2, "orders");
    let _other = add(&mut session, 3, "orders/+");
    session.command(Command::Remove(1));
    session.command(orders());
    assert_eq!(session.asked, 0, "the second one wants it");
    drop(second);
    session.command(orders());
    assert_eq!(session.asked, 1, "who has gone wants nothing");
    session.event(Event::Unsubscribed);
    assert_eq!(session.asked, 0);
}

#[tokio::test]
async fn ended_routes_are_not_resubscribed() {
    let (mut session, _events) = session();
    let _stays = add(&mut session, 1, "orders");
    drop(add(&mut session, 2, "customers"));
    session.connected(false, Limits::default());
    let routes: Vec<u64> = session.routes.iter().map(|route| route.id).collect();
    assert_eq!(routes, [1]);
}

/// With separate subscriptions at the broker, which never end.
#[tokio::test]
async fn warns_of_unrouted_messages() {
    let received = |topic: &str, packet| Received {
        topic: topic.into(),
        payload: "x".into(),
        qos: QoS::AtLeastOnce,
        retain: false,
        again: false,
        packet,
        expires: None,
        properties: None,
    };
    let (mut session, _events) = session();
    session.connected(false, Limits::default());
    session.take(received("old", 1));
    session.warn_of_unrouted();
    assert!(session.warned.is_empty(), "nobody else starves");
    let mut orders = add(&mut session, 1, "orders");
    assert!(session.look_at.is_some());
    session.take(received("orders", 2));
    let held = orders.try_recv().unwrap();
    session.warn_of_unrouted();
    assert!(session.warned.contains("old") && !session.warned.contains("orders"));
    assert_eq!(session.look_at, None);
    let _others = add(&mut session, 2, "others");
    session.warn_of_unrouted();
    // This ends its subscription.
    session.command(Command::Remove(1));
    drop((orders, held));
    let returned = session.queue.try_recv().unwrap();
    session.command(returned);
    assert!(session.look_at.is_some());
    session.warn_of_unrouted();
    assert!(session.warned.contains("orders"));
}
