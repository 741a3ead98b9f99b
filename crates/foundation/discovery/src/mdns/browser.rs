//! Known apps and the schedule of queries for them. Does no I/O; time is an argument.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::{
    message::{Data, Message, Question, TYPE_PTR},
    name::Name,
};
use crate::{Address, Addresses, ResolveError};

/// Wait for answers in a first lookup.
pub(super) const FIRST_BROWSE: Duration = Duration::from_secs(1);
/// Lifetime of an address that is not confirmed.
const ADDRESS_LIFE: Duration = Duration::from_secs(60);
/// Interval between refreshes of a known app.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// Pause between the queries of one refresh while instances have not answered.
const REFRESH_RETRY: Duration = Duration::from_secs(1);
/// Queries per refresh, which takes 3 s.
const REFRESH_QUESTIONS: u32 = 3;
/// A second query soon after the first covers packet loss; then 1 s, and doubling from 4 s.
const SEARCH_PAUSES: [Duration; 3] = [
    Duration::from_millis(250),
    Duration::from_millis(750),
    Duration::from_secs(3),
];
const SEARCH_PAUSE_MAX: Duration = Duration::from_secs(60);
/// How long an unwatched app is refreshed after its last lookup.
const IDLE: Duration = Duration::from_secs(300);
/// Maximum number of apps, including pending lookups. The least recently used one is evicted.
pub(super) const MAX_APPS: usize = 4096;
/// Maximum addresses per app.
const MAX_ADDRESSES: usize = 256;

/// All apps that this sidecar looks up.
#[derive(Default)]
pub(super) struct Browser {
    apps: HashMap<String, App>,
}

/// State of a lookup.
pub(super) enum Search {
    /// Instances are known.
    Known(Addresses),
    /// A browse is running until the given time; the receiver will get its result.
    Waiting(watch::Receiver<Addresses>, Instant),
}

struct App {
    sender: watch::Sender<Addresses>,
    known: Vec<CachedAnswer>,
    /// Queries sent in this search or refresh.
    asked: u32,
    next_question: Instant,
    last_question: Option<Instant>,
    /// Start of the current refresh: older answers are not confirmed yet.
    round: Instant,
    /// End of the first browse that has a waiter.
    browse_until: Option<Instant>,
    last_used: Instant,
}

struct CachedAnswer {
    instance: Name,
    address: SocketAddr,
    heard: Instant,
}

impl Browser {
    /// Starts or joins a lookup.
    pub(super) fn search(&mut self, app_id: &str, now: Instant) -> Result<Search, ResolveError> {
        let app = self.app(app_id, now)?;
        app.last_used = now;
        let current = app.sender.borrow().clone();
        if !current.is_empty() {
            return Ok(Search::Known(current));
        }
        let until = match app.browse_until {
            Some(until) if until > now => until,
            _ => {
                app.asked = 0;
                app.next_question = now;
                *app.browse_until.insert(now + FIRST_BROWSE)
            }
        };
        Ok(Search::Waiting(app.sender.subscribe(), until))
    }

    /// A lookup found no instance: forgets the app unless another lookup is waiting.
    pub(super) fn give_up(&mut self, app_id: &str) {
        let unused = |app: &App| app.known.is_empty() && app.sender.receiver_count() == 0;
        if self.apps.get(app_id).is_some_and(unused) {
            self.apps.remove(app_id);
        }
    }

    /// Watches an app.
    pub(super) fn watch(&mut self, app_id: &str, now: Instant) -> watch::Receiver<Addresses> {
        match self.app(app_id, now) {
            Ok(app) => app.sender.subscribe(),
            // The receiver stays empty; lookups report the error.
            Err(_) => watch::channel(Addresses::from([])).1,
        }
    }

    /// Removes an address and queries again.
    pub(super) fn evict(&mut self, app_id: &str, address: &Address, now: Instant) {
        if let (Some(app), Some(address)) = (self.apps.get_mut(app_id), address.socket_addr()) {
            app.known.retain(|known| known.address != address);
            app.asked = 0;
            app.round = now;
            app.next_question = now;
            app.publish(now);
        }
    }

    /// Processes a response; true if something is due earlier than before. Work per record is constant,
    /// whatever its content.
    pub(super) fn observe(&mut self, message: &Message, now: Instant) -> bool {
        if !message.response || self.apps.is_empty() {
            return false;
        }
        let records = Records::of(message);
        let (mut seen, mut changed) = (HashSet::new(), HashMap::new());
        for record in message.records() {
            let Data::Ptr(instance) = &record.data else {
                continue;
            };
            let Some(app_id) = record.name.below_local() else {
                continue;
            };
            let Some(app) = self.apps.get_mut(&app_id) else {
                continue;
            };
            if !seen.insert((app_id.clone(), instance.key(), record.ttl == 0)) {
                continue;
            }
            let Some(entry) = records.entry(instance, &app_id) else {
                continue;
            };
            let planned = app.next_question;
            let news = if record.ttl == 0 || entry.gone {
                app.forget(instance, &entry.addresses)
            } else {
                app.learn(instance, &entry.addresses, now)
            };
            if news {
                changed.entry(app_id).or_insert(planned);
            }
        }
        let mut earlier = false;
        for (app_id, planned) in changed {
            if let Some(app) = self.apps.get_mut(&app_id) {
                app.publish(now);
                earlier |= app.next_question < planned;
            }
        }
        earlier
    }

    /// The apps to query now. Removes expired addresses and unused apps.
    pub(super) fn due(&mut self, now: Instant) -> Vec<String> {
        let mut questions = Vec::new();
        self.apps.retain(|app_id, app| {
            if app.expire(now) {
                app.publish(now);
            }
            if !app.is_needed(now) {
                return false;
            }
            if app.next_question <= now && app.ask(now) {
                questions.push(app_id.clone());
            }
            true
        });
        questions
    }

    /// When [`due`](Self::due) has work next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.apps.values().map(App::next_deadline).min()
    }

    fn app(&mut self, app_id: &str, now: Instant) -> Result<&mut App, ResolveError> {
        if !self.apps.contains_key(app_id) {
            if self.apps.len() >= MAX_APPS && !self.forget_unused() {
                return Err(ResolveError::Busy { limit: MAX_APPS });
            }
            self.apps.insert(app_id.to_owned(), App::new(now));
        }
        self.apps
            .get_mut(app_id)
            .ok_or(ResolveError::Busy { limit: MAX_APPS })
    }
}

impl Browser {
    /// Evicts the least recently used app; false if all are in use.
    fn forget_unused(&mut self) -> bool {
        let unused = self
            .apps
            .iter()
            .filter(|(_, app)| app.sender.receiver_count() == 0);
        let oldest = unused
            .min_by_key(|(_, app)| app.last_used)
            .map(|(app_id, _)| app_id.clone());
        oldest.is_some_and(|app_id| self.apps.remove(&app_id).is_some())
    }
}

impl App {
    fn new(now: Instant) -> Self {
        Self {
            sender: watch::Sender::new(Addresses::from([])),
            known: Vec::new(),
            asked: 0,
            next_question: now,
            last_question: None,
            round: now,
            browse_until: None,
            last_used: now,
        }
    }

    /// Whether to send a query now. Schedules the next one in any case.
    fn ask(&mut self, now: Instant) -> bool {
        let asks = self.plan(now);
        if asks {
            self.last_question = Some(now);
        }
        asks
    }

    fn plan(&mut self, now: Instant) -> bool {
        if self.known.is_empty() {
            let pause = usize::try_from(self.asked)
                .ok()
                .and_then(|at| SEARCH_PAUSES.get(at));
            let doubled = || Duration::from_secs(4 << (self.asked - 3).min(4)).min(SEARCH_PAUSE_MAX);
            self.next_question = now + pause.copied().unwrap_or_else(doubled);
            self.asked = self.asked.saturating_add(1);
            return true;
        }
        if self.asked >= REFRESH_QUESTIONS {
            self.asked = 0;
        }
        if self.asked == 0 {
            self.round = now;
        }
        let confirmed = self.asked > 0 && self.known.iter().all(|known| known.heard >= self.round);
        self.asked += 1;
        if confirmed || self.asked == REFRESH_QUESTIONS {
            self.asked = 0;
            self.next_question = self.round + REFRESH_EVERY;
        } else {
            self.next_question = now + REFRESH_RETRY;
        }
        !confirmed
    }

    /// Adds addresses; true if one is new.
    fn learn(&mut self, instance: &Name, addresses: &[SocketAddr], now: Instant) -> bool {
        let before = self.known.len();
        for &address in addresses {
            let same = |known: &&mut CachedAnswer| known.address == address && known.instance == *instance;
            if let Some(known) = self.known.iter_mut().find(same) {
                known.heard = now;
            } else if self.known.len() < MAX_ADDRESSES {
                self.known.push(CachedAnswer {
                    instance: instance.clone(),
                    address,
                    heard: now,
                });
            }
        }
        if before == 0 && !self.known.is_empty() {
            // Answers of other instances may have been lost: query again soon.
            self.browse_until = None;
            self.asked = 0;
            self.next_question = now + REFRESH_RETRY;
        }
        self.known.len() > before
    }

    /// Removes the given addresses of an instance, or all of them if none is given. True if one was
    /// removed.
    fn forget(&mut self, instance: &Name, addresses: &[SocketAddr]) -> bool {
        let before = self.known.len();
        self.known.retain(|known| {
            known.instance != *instance || !(addresses.is_empty() || addresses.contains(&known.address))
        });
        self.known.len() < before
    }

    fn expire(&mut self, now: Instant) -> bool {
        let before = self.known.len();
        self.known.retain(|known| known.heard + ADDRESS_LIFE > now);
        self.known.len() < before
    }

    fn is_needed(&self, now: Instant) -> bool {
        self.sender.receiver_count() > 0
            || self.browse_until.is_some_and(|until| until > now)
            || (!self.known.is_empty() && self.last_used + IDLE > now)
    }

    fn next_deadline(&self) -> Instant {
        let expiry = self.known.iter().map(|known| known.heard + ADDRESS_LIFE).min();
        let browse = self.browse_until.filter(|_| self.sender.receiver_count() == 0);
        [expiry, browse]
            .into_iter()
            .flatten()
            .fold(self.next_question, Instant::min)
    }

    /// Publishes one address per instance, IPv4 preferred; IPv4 first, otherwise in order of discovery.
    fn publish(&mut self, now: Instant) {
        let v4 = self.known.iter().filter(|known| known.address.is_ipv4());
        let of = |known: &CachedAnswer| (known.instance.key(), known.address.port());
        let have_v4: HashSet<_> = v4.clone().map(of).collect();
        let v6 = self.known.iter().filter(|known| known.address.is_ipv6());
        let v6 = v6.filter(|known| !have_v4.contains(&of(known)));
        let addresses: Addresses = v4.chain(v6).map(|known| Address::from(known.address)).collect();
        let changed = self.sender.send_if_modified(|current| {
            let changed = **current != *addresses;
            *current = Arc::clone(&addresses);
            changed
        });
        if changed && addresses.is_empty() {
            self.asked = 0;
            // Repeated goodbyes must not cause more queries than a search does.
            let pause = SEARCH_PAUSES[0];
            self.next_question = self.last_question.map_or(now, |last| now.max(last + pause));
        }
    }
}

/// The records of one message, by owner name.
#[derive(Default)]
struct Records<'a> {
    /// TXT strings that are alone in their record.
    texts: HashSet<(Vec<u8>, &'a [u8])>,
    /// Port, host and TTL of the first SRV record.
    servers: HashMap<Vec<u8>, (u16, &'a Name, u32)>,
    /// First IPv4 and first IPv6 address of a host.
    hosts: HashMap<Vec<u8>, [Option<IpAddr>; 2]>,
}

/// The data of one message about an instance.
struct Entry {
    /// First IPv4 and first IPv6 address, with the port.
    addresses: Vec<SocketAddr>,
    gone: bool,
}

impl<'a> Records<'a> {
    fn of(message: &'a Message) -> Self {
        let mut records = Self::default();
        for record in message.records() {
            let mut host = |family: usize, ip: IpAddr| {
                let known = records.hosts.entry(record.name.key()).or_default();
                known[family].get_or_insert(ip);
            };
            match &record.data {
                Data::A(ip) => host(0, IpAddr::V4(*ip)),
                Data::Aaaa(ip) => host(1, IpAddr::V6(*ip)),
                Data::Txt(strings) => {
                    if let [text] = &strings[..] {
                        records.texts.insert((record.name.key(), text));
                    }
                }
                Data::Srv { port, target, .. } => {
                    records
                        .servers
                        .entry(record.name.key())
                        .or_insert((*port, target, record.ttl));
                }
                Data::Ptr(_) | Data::Other(_) => {}
            }
        }
        records
    }

    /// `None` unless the message has a TXT record for the instance with exactly the app ID.
    fn entry(&self, instance: &Name, app_id: &str) -> Option<Entry> {
        let key = instance.key();
        let (port, target, ttl) = self.servers.get(&key)?;
        if !self.texts.contains(&(key, app_id.as_bytes())) {
            return None;
        }
        let ips = self.hosts.get(&target.key()).into_iter().flatten().flatten();
        Some(Entry {
            addresses: ips.map(|ip| SocketAddr::new(*ip, *port)).collect(),
            gone: *ttl == 0,
        })
    }
}

/// The query for all instances of an app; `None` if the app ID is not a DNS name.
pub(super) fn question(app_id: &str) -> Option<Message> {
    Some(Message {
        questions: vec![Question {
            name: Name::parse(&format!("{app_id}.local")).ok()?,
            kind: TYPE_PTR,
            unicast: false,
        }],
        ..Message::default()
    })
}

#[cfg(test)]
mod tests;
