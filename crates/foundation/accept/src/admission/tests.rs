use super::*;

fn from(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn admission(connections: usize, per_source: usize) -> Admission {
    let limits = Limits {
        connections,
        per_source,
    };
    Admission::with(limits, Duration::ZERO)
}

fn admit(admission: &Admission, address: IpAddr) -> Permit {
    admission.admit(Some(address)).unwrap()
}

/// Admits `count` connections of this address one after the other, and proves each.
fn proven(admission: &Admission, address: IpAddr, count: usize) -> Vec<Permit> {
    let one = |_| {
        let permit = admit(admission, address);
        permit.prove();
        permit
    };
    (0..count).map(one).collect()
}

fn is_evicted(permit: &Permit) -> bool {
    permit.state.evicted.is_cancelled()
}

#[test]
fn evicts_oldest_unproven() {
    let admission = admission(3, 3);
    let permits = [1, 2, 3].map(|last| admit(&admission, from(last)));
    permits[0].prove();
    let _fourth = admit(&admission, from(4));
    assert_eq!(permits.each_ref().map(is_evicted), [false, true, false]);
    let _fifth = admit(&admission, from(5));
    assert_eq!(permits.each_ref().map(is_evicted), [false, true, true]);
    assert_eq!(admission.len(), 3);
    drop(permits);
    assert_eq!(admission.len(), 2, "a permit is given back once");
}

#[test]
fn evicts_when_out_of_descriptors() {
    let admission = admission(100, 100);
    let permits = [1, 2].map(|last| admit(&admission, from(last)));
    permits[0].prove();
    admission.make_room();
    assert_eq!(permits.each_ref().map(is_evicted), [false, true]);
    admission.make_room();
    assert_eq!(permits.each_ref().map(is_evicted), [true, true]);
    admission.make_room();
    assert_eq!(admission.len(), 0);
}

#[test]
fn evicts_least_recently_used() {
    let admission = admission(2, 2);
    let permits = [1, 2].map(|last| admit(&admission, from(last)));
    permits[0].prove();
    permits[1].prove();
    permits[0].prove();
    let _third = admit(&admission, from(3));
    assert_eq!(permits.each_ref().map(is_evicted), [false, true]);
    permits[1].prove();
    assert_eq!(admission.len(), 2, "an evicted connection does not come back");
}

/// A newcomer that has completed its handshake sends a request next; earlier connections have already sent
/// theirs.
#[test]
fn proven_newcomer_outlives_idle_peers() {
    let admission = admission(100, 100);
    let crowd = proven(&admission, from(1), 99);
    crowd.iter().for_each(Permit::prove);
    let honest = admit(&admission, from(2));
    honest.prove();
    let _more: Vec<_> = (0..90).map(|_| admit(&admission, from(1))).collect();
    assert!(!is_evicted(&honest));
    assert!(is_evicted(&crowd[0]));
}

#[test]
fn busy_connections_stay() {
    let admission = admission(3, 3);
    let busy = Arc::new(AtomicBool::new(true));
    let permits = [1, 2, 3].map(|last| {
        let (permit, busy) = (admit(&admission, from(last)), Arc::clone(&busy));
        permit.keep_while(move || busy.load(Ordering::Relaxed));
        permit.prove();
        permit
    });
    assert_eq!(admission.admit(Some(from(4))).unwrap_err(), Full::Busy);
    admission.make_room();
    assert_eq!(permits.each_ref().map(is_evicted), [false; 3]);
    busy.store(false, Ordering::Relaxed);
    let _fourth = admit(&admission, from(4));
    assert_eq!(permits.iter().filter(|permit| is_evicted(permit)).count(), 1);
}

#[test]
fn finds_idle_behind_busy() {
    let admission = admission(3, 3);
    let permits = [1, 2, 3].map(|last| {
        let permit = admit(&admission, from(last));
        permit.keep_while(move || last != 3);
        permit
    });
    for permit in &permits {
        permit.prove();
    }
    let _fourth = admit(&admission, from(4));
    assert_eq!(permits.each_ref().map(is_evicted), [false, false, true]);
}

#[test]
fn one_request_crowd_leaves_newcomers_time() {
    let admission = admission(100, 100);
    let crowd = proven(&admission, from(1), 100);
    let honest = admit(&admission, from(2));
    let more = proven(&admission, from(1), 40);
    assert!(!is_evicted(&honest));
    assert_eq!(crowd.iter().filter(|permit| is_evicted(permit)).count(), 41);
    assert!(crowd[..41].iter().all(is_evicted), "the oldest first");
    assert!(!more.iter().any(is_evicted));
}

#[tokio::test(start_paused = true)]
async fn grace_time_excludes_own_address() {
    let limits = Limits {
        connections: 4,
        per_source: 2,
    };
    let admission = Admission::new(limits);
    let first = admit(&admission, from(1));
    tokio::time::advance(FIRST_BYTE_TIMEOUT / 2).await;
    let others = [1, 2, 2].map(|last| admit(&admission, from(last)));
    let left = admission.admit(Some(from(3))).unwrap_err();
    assert_eq!(left, Full::Young(FIRST_BYTE_TIMEOUT / 2));
    let _again = admit(&admission, from(2));
    assert_eq!(others.each_ref().map(is_evicted), [false, true, false]);
    tokio::time::advance(FIRST_BYTE_TIMEOUT / 2).await;
    let _late = admit(&admission, from(3));
    assert!(is_evicted(&first));
}

#[test]
fn silent_crowd_takes_no_places() {
    let admission = admission(100, 100);
    let used = proven(&admission, from(1), 50);
    let crowd: Vec<_> = (0..500).map(|_| admission.admit(None)).collect();
    assert!(!used.iter().any(is_evicted));
    assert_eq!(
        crowd
            .iter()
            .flatten()
            .filter(|permit| !is_evicted(permit))
            .count(),
        50
    );
}

#[test]
fn source_cannot_crowd_out_others() {
    let admission = admission(100, 2);
    let other = admit(&admission, from(1));
    let many: Vec<_> = (0..50).map(|_| admit(&admission, from(2))).collect();
    assert!(!is_evicted(&other));
    assert_eq!(many.iter().filter(|permit| !is_evicted(permit)).count(), 2);
    let networks =
        ["fd00::1", "fd00::2", "fd00::3", "fd00:0:0:1::1"].map(|ip| admit(&admission, ip.parse().unwrap()));
    assert_eq!(networks.each_ref().map(is_evicted), [true, false, false, false]);
    let mapped = ["10.0.0.9", "::ffff:10.0.0.9", "10.0.0.9"].map(|ip| admit(&admission, ip.parse().unwrap()));
    assert_eq!(mapped.each_ref().map(is_evicted), [true, false, false]);
}

#[test]
fn limits_fit_descriptors() {
    let limits = Limits {
        connections: 4096,
        per_source: 512,
    };
    assert_eq!(limits.within(5000), limits);
    let fit = |most| {
        let fit = limits.within(most);
        (fit.connections, fit.per_source)
    };
    assert_eq!([fit(2000), fit(100), fit(0)], [(2000, 512), (100, 50), (1, 1)]);
}
