//! Single faults: when the next replica leads, and that it never overlaps with the previous leader.

use std::sync::Arc;

use super::simulated::{Api, Replica};
use super::*;

/// The earliest and the latest time at which a silent holder is replaced, after its last renewal.
fn followed(pace: Pace) -> [Duration; 2] {
    let longest = (pace.lasts + pace.retry / 10).mul_f64(1.1) + Duration::from_millis(500);
    [pace.lasts, longest]
}

/// Two replicas, of which the first leads.
async fn two(pace: Pace, seed: u64) -> (Arc<Api>, Replica, Replica) {
    let api = Arc::new(Api::default());
    let mut one = Replica::start(&api, "one", pace, seed);
    assert_eq!(one.until(true).await, Leads::First);
    let two = Replica::start(&api, "two", pace, seed + 1);
    // A random time between two renewals.
    tokio::time::sleep(pace.renew * 3 + Duration::from_millis(seed * 997 % 5_000)).await;
    (api, one, two)
}

#[tokio::test(start_paused = true)]
async fn replaces_crashed_leader_in_time() {
    for seed in 0..100 {
        for pace in [Pace::FAST, Pace::SLOW] {
            let (_, one, mut two) = two(pace, seed).await;
            one.kill().await;
            let died = Instant::now();
            assert_eq!(two.until(true).await, Leads::Next);
            assert!(
                died.elapsed() <= followed(pace)[1],
                "{seed}: {:?}",
                died.elapsed()
            );
        }
    }
    assert!(followed(Pace::FAST)[1] < Duration::from_secs(14));
}

#[tokio::test(start_paused = true)]
async fn replaces_released_leader_at_once() {
    for seed in 0..100 {
        let (_, mut one, mut two) = two(Pace::FAST, seed).await;
        let stopped = Instant::now();
        one.stop.cancel();
        one.until(false).await;
        assert_eq!(
            stopped.elapsed(),
            Duration::ZERO,
            "it ends before it gives the lease back"
        );
        assert_eq!(two.until(true).await, Leads::Next);
        assert!(
            stopped.elapsed() < Duration::from_millis(500),
            "{seed}: {:?}",
            stopped.elapsed()
        );
    }
}

/// Regression: a replica whose watch was refused once looked again after 36 s.
#[tokio::test(start_paused = true)]
async fn refused_watch_does_not_delay_takeover() {
    for seed in 0..100 {
        let api = Arc::new(Api::default());
        let mut one = Replica::start(&api, "one", Pace::SLOW, seed);
        assert_eq!(one.until(true).await, Leads::First);
        let mut two = Replica::start(&api, "two", Pace::SLOW, seed + 1);
        two.network.send_modify(|network| network.refused = 1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        one.stop.cancel();
        one.until(false).await;
        let stopped = Instant::now();
        assert_eq!(two.until(true).await, Leads::Next);
        assert!(
            stopped.elapsed() < Duration::from_secs(7),
            "{seed}: {:?}",
            stopped.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn partitioned_leader_steps_down_first() {
    for seed in 0..100 {
        for pace in [Pace::FAST, Pace::SLOW] {
            let (_, mut one, mut two) = two(pace, seed).await;
            one.network.send_modify(|network| network.is_cut = true);
            let cut = Instant::now();
            one.until(false).await;
            assert!(
                cut.elapsed() <= pace.give_up && two.leads() == Leads::No,
                "{seed}"
            );
            let fenced = Instant::now();
            assert_eq!(two.until(true).await, Leads::Next);
            assert!(
                fenced.elapsed() >= pace.lasts - pace.give_up,
                "{seed}: {:?}",
                fenced.elapsed()
            );
            assert!(cut.elapsed() <= followed(pace)[1], "{seed}: {:?}", cut.elapsed());
            // The partition heals, and it follows.
            one.network.send_modify(|network| network.is_cut = false);
            tokio::time::sleep(pace.lasts).await;
            assert!(one.leads() == Leads::No && two.leads() == Leads::Next);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn retries_hanging_request() {
    for seed in 0..20 {
        for pace in [Pace::FAST, Pace::SLOW] {
            let (_, one, two) = two(pace, seed).await;
            one.network.send_modify(|network| network.lost = 1);
            tokio::time::sleep(pace.lasts * 2).await;
            assert_eq!(one.network.borrow().lost, 0);
            assert!(one.leads() == Leads::First && two.leads() == Leads::No, "{seed}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn late_response_does_not_lead() {
    for seed in 0..20 {
        let (api, one, two) = two(Pace::FAST, seed).await;
        // It acquires the lease, and receives the response when a third one holds it.
        two.network
            .send_modify(|network| network.late = Duration::from_secs(20));
        one.kill().await;
        while api.holder() != "two" {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        two.network.send_modify(|network| network.is_cut = true);
        let mut three = Replica::start(&api, "three", Pace::FAST, seed + 2);
        three.until(true).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(three.leads() == Leads::Next, "{seed}");
        assert!(!two.leads.has_changed().unwrap(), "{seed}: it never led");
    }
}

/// Invariant: deleting the lease makes no other replica lead while its holder may still lead.
#[tokio::test(start_paused = true)]
async fn deleted_lease_is_valid_until_expiry() {
    for seed in 0..100 {
        let (api, mut one, mut two) = two(Pace::FAST, seed).await;
        api.delete();
        tokio::time::sleep(Pace::FAST.lasts * 3).await;
        assert!(
            one.leads() == Leads::First && two.leads() == Leads::No,
            "{seed}: made anew"
        );
        one.network.send_modify(|network| network.is_cut = true);
        api.delete();
        one.until(false).await;
        assert_eq!(two.leads(), Leads::No, "{seed}");
        assert_eq!(
            two.until(true).await,
            Leads::Next,
            "{seed}: made by who knew of it"
        );
    }
}

/// Invariant: without the namespace no replica leads, and the API is queried with the backoff of an outage.
#[tokio::test(start_paused = true)]
async fn missing_namespace_backs_off() {
    let api = Arc::new(Api::default());
    api.remove_namespace();
    let one = Replica::start(&api, "one", Pace::FAST, 1);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(one.leads(), Leads::No);
    // Each attempt reads and creates the lease.
    let times = api.asked() / 2;
    assert!((5..=15).contains(&times), "{times}");
}
