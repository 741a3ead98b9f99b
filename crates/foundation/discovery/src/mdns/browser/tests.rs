//! The browser under simulated time.

use super::*;
use crate::mdns::service::Service;

fn instance(app_id: &str, pid: u16, ip: &str) -> Service {
    Service::new(app_id, &format!("box:{pid}"), "box", ip.parse().unwrap(), pid).unwrap()
}

fn waiting(browser: &mut Browser, now: Instant) -> (watch::Receiver<Addresses>, Instant) {
    match browser.search("orders", now).unwrap() {
        Search::Waiting(receiver, until) => (receiver, until),
        Search::Known(addresses) => panic!("already known: {addresses:?}"),
    }
}

fn known(browser: &mut Browser, now: Instant) -> Vec<String> {
    match browser.search("orders", now).unwrap() {
        Search::Known(addresses) => addresses.iter().map(Address::to_string).collect(),
        Search::Waiting(..) => Vec::new(),
    }
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Runs the browser until `end`; returns the times of its queries in milliseconds.
fn questions(browser: &mut Browser, start: Instant, end: Duration) -> Vec<u128> {
    let mut asked = Vec::new();
    let mut now = start;
    while now <= start + end {
        for _ in browser.due(now) {
            asked.push((now - start).as_millis());
        }
        match browser.next_deadline() {
            Some(next) => now = next.max(now + ms(1)),
            None => break,
        }
    }
    asked
}

#[test]
fn waiters_share_one_browse() {
    let start = Instant::now();
    let mut browser = Browser::default();
    let (_first, until) = waiting(&mut browser, start);
    assert_eq!(until, start + FIRST_BROWSE);
    assert_eq!(browser.due(start), ["orders"]);
    let (_second, joined) = waiting(&mut browser, start + ms(300));
    assert_eq!(joined, until);
    let (_third, later) = waiting(&mut browser, start + ms(1000));
    assert_eq!(later, start + ms(2000));
}

#[test]
fn watched_search_backs_off() {
    let start = Instant::now();
    let mut browser = Browser::default();
    let _watcher = browser.watch("orders", start);
    let asked = questions(&mut browser, start, Duration::from_secs(200));
    assert_eq!(
        asked,
        [0, 250, 1000, 4000, 8000, 16_000, 32_000, 64_000, 124_000, 184_000]
    );
}

#[test]
fn forgets_failed_search() {
    let start = Instant::now();
    let mut browser = Browser::default();
    drop(waiting(&mut browser, start));
    assert_eq!(questions(&mut browser, start, Duration::from_secs(60)), [0, 250]);
    assert!(browser.apps.is_empty());
}

#[test]
fn refreshes_and_retries_silent_apps() {
    let start = Instant::now();
    let mut browser = Browser::default();
    let _watcher = browser.watch("orders", start);
    browser.observe(&instance("orders", 1, "10.0.0.1").announcement(), start);
    // All instances are silent: one query soon after the first answer with its repetitions, a refresh with
    // repetitions, then the address expires and the search restarts.
    let asked = questions(&mut browser, start, Duration::from_secs(61));
    assert_eq!(
        asked,
        [1000, 2000, 3000, 31_000, 32_000, 33_000, 60_000, 60_250, 61_000]
    );
    assert!(known(&mut browser, start + Duration::from_secs(61)).is_empty());
}

#[test]
fn confirmed_refresh_sends_one_query() {
    let start = Instant::now();
    let mut browser = Browser::default();
    let _watcher = browser.watch("orders", start);
    let peer = instance("orders", 1, "10.0.0.1");
    browser.observe(&peer.announcement(), start);
    let mut asked = Vec::new();
    let mut now = start;
    while now < start + Duration::from_secs(100) {
        if !browser.due(now).is_empty() {
            asked.push((now - start).as_secs());
            browser.observe(&peer.announcement(), now);
        }
        now = browser.next_deadline().unwrap().max(now + ms(1));
    }
    assert_eq!(asked, [1, 31, 61, 91]);
    assert_eq!(known(&mut browser, now), ["10.0.0.1:1"]);
}

#[test]
fn keeps_instances_in_stable_order() {
    let start = Instant::now();
    let mut browser = Browser::default();
    let mut watcher = browser.watch("orders", start);
    let peers = [
        instance("orders", 3, "10.0.0.3"),
        instance("orders", 1, "fd00::1"),
        instance("orders", 2, "10.0.0.2"),
    ];
    for peer in &peers {
        browser.observe(&peer.announcement(), start);
    }
    assert_eq!(
        known(&mut browser, start),
        ["10.0.0.3:3", "10.0.0.2:2", "[fd00::1]:1"]
    );
    watcher.mark_unchanged();
    browser.observe(&peers[2].announcement(), start + ms(5));
    assert!(!watcher.has_changed().unwrap(), "the same again is no change");
    browser.observe(&peers[0].goodbye(), start + ms(10));
    assert!(watcher.has_changed().unwrap());
    assert_eq!(known(&mut browser, start), ["10.0.0.2:2", "[fd00::1]:1"]);
}

#[test]
fn goodbye_keeps_instance_with_same_name() {
    // Two containers on the host's network: both are PID 1 on the same host.
    let start = Instant::now();
    let mut browser = Browser::default();
    let ip = "10.0.0.1".parse().unwrap();
    let one = Service::new("orders", "box:1", "box", ip, 1000).unwrap();
    let two = Service::new("orders", "box:1", "box", ip, 2000).unwrap();
    let _watcher = browser.watch("orders", start);
    browser.observe(&one.announcement(), start);
    browser.observe(&two.announcement(), start);
    browser.observe(&one.goodbye(), start);
    assert_eq!(known(&mut browser, start), ["10.0.0.1:2000"]);
}

#[test]
fn ignores_unrelated_records() {
    let start = Instant::now();
    let mut browser = Browser::default();
    let _watcher = browser.watch("orders", start);
    browser.observe(&instance("payments", 1, "10.0.0.1").announcement(), start);
    let mut wrong_text = instance("orders", 1, "10.0.0.1").announcement();
    for record in &mut wrong_text.answers {
        if let Data::Txt(strings) = &mut record.data {
            *strings = vec![b"Orders".to_vec()];
        }
    }
    browser.observe(&wrong_text, start);
    let mut no_address = instance("orders", 1, "10.0.0.1").announcement();
    no_address.answers.pop();
    browser.observe(&no_address, start);
    assert!(known(&mut browser, start).is_empty());
}

#[test]
fn queries_evicted_address_at_once() {
    let start = Instant::now();
    let mut browser = Browser::default();
    let watcher = browser.watch("orders", start);
    let peers = [
        instance("orders", 1, "10.0.0.1"),
        instance("orders", 2, "10.0.0.2"),
    ];
    for peer in &peers {
        browser.observe(&peer.announcement(), start);
    }
    let _ = questions(&mut browser, start, ms(5000));
    let now = start + ms(6000);
    browser.evict("orders", &Address::new("10.0.0.1", 1), now);
    assert_eq!(watcher.borrow().len(), 1);
    assert_eq!(browser.due(now), ["orders"]);
    browser.observe(&peers[0].announcement(), now);
    assert_eq!(watcher.borrow().len(), 2);
}

#[test]
fn bounds_apps_and_addresses() {
    let start = Instant::now();
    let mut browser = Browser::default();
    let watcher = browser.watch("orders", start);
    for pid in 0..=MAX_ADDRESSES as u16 {
        browser.observe(&instance("orders", pid + 1, "10.0.0.1").announcement(), start);
    }
    assert_eq!(watcher.borrow().len(), MAX_ADDRESSES);
    let watched: Vec<_> = (1..MAX_APPS)
        .map(|number| browser.watch(&format!("app{number}"), start))
        .collect();
    assert!(matches!(
        browser.search("one-more", start),
        Err(ResolveError::Busy { .. })
    ));
    drop(watched);
    assert!(browser.search("one-more", start).is_ok());
    assert_eq!(browser.apps.len(), MAX_APPS);
}

#[test]
fn failed_lookups_do_not_fill_table() {
    let start = Instant::now();
    let mut browser = Browser::default();
    let _watcher = browser.watch("orders", start);
    browser.observe(&instance("orders", 1, "10.0.0.1").announcement(), start);
    for number in 0..2 * MAX_APPS {
        let name = format!("app{number}");
        let search = browser.search(&name, start + ms(number as u64)).unwrap();
        let Search::Waiting(receiver, _) = search else {
            panic!("known")
        };
        browser.give_up(&name);
        assert_eq!(browser.apps.len(), 2, "a lookup is still waiting");
        drop(receiver);
        browser.give_up(&name);
        assert_eq!(browser.apps.len(), 1, "what failed is not kept");
    }
    assert_eq!(known(&mut browser, start), ["10.0.0.1:1"]);
}

#[test]
fn evicts_least_recently_used_app() {
    let start = Instant::now();
    let mut browser = Browser::default();
    for number in 0..MAX_APPS {
        let name = format!("app{number}");
        browser.search(&name, start + ms(number as u64)).ok().unwrap();
    }
    let later = start + ms(MAX_APPS as u64);
    browser.search("app0", later).ok().unwrap();
    browser.search("one-more", later).ok().unwrap();
    assert!(browser.apps.contains_key("app0") && !browser.apps.contains_key("app1"));
    assert_eq!(browser.apps.len(), MAX_APPS);
}

#[test]
fn drops_unused_app_after_five_minutes() {
    let start = Instant::now();
    let mut browser = Browser::default();
    drop(waiting(&mut browser, start));
    let peer = instance("orders", 1, "10.0.0.1");
    for second in (0..310).step_by(10) {
        let now = start + Duration::from_secs(second);
        browser.observe(&peer.announcement(), now);
        browser.due(now);
    }
    assert!(browser.apps.is_empty());
}

/// Packets with as many records as fit, repeated or all different. The hostile suite bounds their cost.
#[test]
fn bounds_memory_for_forged_answers() {
    let start = Instant::now();
    let mut browser = Browser::default();
    let watcher = browser.watch("orders", start);
    let mut forged = Message {
        response: true,
        ..Message::default()
    };
    // The size of the largest packet, with names that are only pointers.
    for number in 0..700_u16 {
        let peer = instance("orders", number % 7 + 1, "10.0.0.1").announcement();
        forged.answers.extend(peer.answers);
    }
    browser.observe(&forged, start);
    assert_eq!(browser.apps.get("orders").unwrap().known.len(), 7);
    for number in 0..2_000_u32 {
        let (pid, [_, a, b, c]) = (number as u16 + 1, number.to_be_bytes());
        let app = if number % 2 == 0 {
            "orders"
        } else {
            "nobody-asked-for-it"
        };
        let peer = instance(app, pid, &format!("10.{a}.{b}.{c}"));
        browser.observe(&peer.announcement(), start);
    }
    assert_eq!(browser.apps.len(), 1, "only what was asked for is kept");
    assert_eq!(watcher.borrow().len(), MAX_ADDRESSES);
    assert_eq!(browser.apps.get("orders").unwrap().known.len(), MAX_ADDRESSES);
}

#[test]
fn uses_first_of_duplicate_records() {
    let start = Instant::now();
    let mut browser = Browser::default();
    let _watcher = browser.watch("orders", start);
    let mut message = instance("orders", 1, "10.0.0.1").announcement();
    message
        .answers
        .extend(instance("orders", 1, "fd00::1").announcement().answers);
    message
        .answers
        .extend(instance("orders", 1, "10.0.0.2").announcement().answers);
    browser.observe(&message, start);
    assert_eq!(known(&mut browser, start), ["10.0.0.1:1"]);
}

#[test]
fn repeated_goodbyes_cause_few_queries() {
    let start = Instant::now();
    let mut browser = Browser::default();
    let _watcher = browser.watch("orders", start);
    let peer = instance("orders", 1, "10.0.0.1");
    let (mut asked, mut due) = (0, 0);
    for millis in (0..10_000).step_by(5) {
        let now = start + ms(millis);
        for message in [peer.announcement(), peer.goodbye()] {
            if browser.observe(&message, now) {
                due += 1;
            }
            asked += browser.due(now).len();
        }
    }
    assert!((2..=41).contains(&asked), "{asked} questions in 10 s");
    // Repeating it makes nothing due: the socket's task continues with the next packet.
    browser.observe(&peer.announcement(), start + ms(10_000));
    assert!(due > 0 && !browser.observe(&peer.announcement(), start + ms(10_001)));
}
