//! Replicas that start, stop, crash, and are partitioned or slowed down at random.

use std::sync::Arc;

use futures::future::select_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::simulated::{Api, Replica};
use super::*;

/// Number of worlds, each with a seed.
const WORLDS: u64 = 100;
/// Events per world.
const EVENTS: usize = 60;

struct World {
    api: Arc<Api>,
    random: StdRng,
    replicas: Vec<Replica>,
    started: u64,
    /// The first leader.
    first: Option<String>,
    begun: Instant,
    seed: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            api: Arc::default(),
            random: StdRng::seed_from_u64(seed),
            replicas: Vec::new(),
            started: 0,
            first: None,
            begun: Instant::now(),
            seed,
        }
    }

    fn start(&mut self) {
        self.started += 1;
        let name = format!("r{}", self.started);
        let seed = self.seed * 1_000 + self.started;
        self.replicas
            .push(Replica::start(&self.api, &name, Pace::FAST, seed));
    }

    /// Applies a random event.
    async fn happens(&mut self) {
        let count = self.replicas.len();
        let event = self.random.random_range(0..10);
        if count < 2 || event == 0 && count < 5 {
            return self.start();
        }
        let chosen = match self.random.random_range(0..2) {
            // Half of the events affect the leader.
            0 => self.replicas.iter().position(|one| one.leads().is_leading()),
            _ => None,
        };
        let chosen = chosen.unwrap_or_else(|| self.random.random_range(0..count));
        match event {
            1 => self.replicas.swap_remove(chosen).kill().await,
            2 => self.replicas[chosen].stop.cancel(),
            3..=5 => self.replicas[chosen]
                .network
                .send_modify(|network| network.is_cut ^= true),
            6..=7 => self.replicas[chosen]
                .network
                .send_modify(|network| network.is_slow ^= true),
            _ => self.replicas[chosen]
                .network
                .send_modify(|network| network.lost += 2),
        }
    }

    /// Advances time, checking that at most one replica leads.
    async fn passes(&mut self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            self.replicas.retain(|replica| !replica.has_ended());
            let leading: Vec<&Replica> = self
                .replicas
                .iter()
                .filter(|replica| replica.leads().is_leading())
                .collect();
            let (seed, at) = (self.seed, self.begun.elapsed());
            assert!(leading.len() <= 1, "world {seed}: two lead after {at:?}");
            if let [leader] = leading[..] {
                let first = self.first.get_or_insert_with(|| leader.name.clone());
                assert!(
                    leader.leads() == Leads::Next || *first == leader.name,
                    "world {seed}: {} leads as the first, after {at:?}",
                    leader.name
                );
            }
            let ended = tokio::time::sleep_until(end);
            if self.replicas.is_empty() {
                return ended.await;
            }
            let changes = self
                .replicas
                .iter_mut()
                .map(|replica| Box::pin(replica.leads.changed()));
            tokio::select! {
                () = ended => return,
                _ = select_all(changes) => {}
            }
        }
    }
}

/// Invariant: of the replicas that share a lease, at most one leads at any time, whatever faults occur; and
/// without faults one leads.
#[tokio::test(start_paused = true)]
async fn at_most_one_leader() {
    for seed in 0..WORLDS {
        let mut world = World::new(seed);
        for _ in 0..EVENTS {
            world.happens().await;
            let pause = world.random.random_range(0..9_000);
            world.passes(Duration::from_millis(pause)).await;
        }
        for replica in &world.replicas {
            replica.network.send_replace(super::simulated::Network::default());
        }
        world.start();
        world.passes(Pace::FAST.lasts * 3).await;
        let leading = world
            .replicas
            .iter()
            .filter(|one| one.leads().is_leading())
            .count();
        assert_eq!(leading, 1, "world {seed}: no leader");
    }
}
