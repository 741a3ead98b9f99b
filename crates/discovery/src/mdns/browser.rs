//! What this sidecar knows about other apps, and when to ask again. No I/O: time is an argument.

use std::{
    collections::HashMap,
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

/// How long a first look-up waits for an answer.
pub(super) const FIRST_BROWSE: Duration = Duration::from_secs(1);
/// How long an address is believed without being heard again.
const ADDRESS_LIFE: Duration = Duration::from_secs(60);
/// Pause between two refreshes of a known app.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// Pause between the questions of one refresh, for instances that did not answer yet.
const REFRESH_RETRY: Duration = Duration::from_secs(1);
/// Questions of one refresh: it takes 3 s.
const REFRESH_QUESTIONS: u32 = 3;
/// A second question soon after the first covers a lost packet; then 1 s, and from 4 s doubling.
const SEARCH_PAUSES: [Duration; 3] = [
    Duration::from_millis(250),
    Duration::from_millis(750),
    Duration::from_secs(3),
];
const SEARCH_PAUSE_MAX: Duration = Duration::from_secs(60);
/// An app that nobody watches is refreshed for this long after it was last asked for.
const IDLE: Duration = Duration::from_secs(300);
/// Apps tracked at most, those that are only being looked for included; beyond it the one unused for longest goes.
pub(super) const MAX_APPS: usize = 4096;
/// Addresses kept per app at most.
const MAX_ADDRESSES: usize = 256;

/// All apps this sidecar is interested in.
#[derive(Default)]
pub(super) struct Browser {
    apps: HashMap<String, App>,
}

/// Where a look-up stands.
pub(super) enum Search {
    /// The instances are known.
    Known(Addresses),
    /// A browse is under way until the given time; the receiver will hold its result.
    Waiting(watch::Receiver<Addresses>, Instant),
}

struct App {
    sender: watch::Sender<Addresses>,
    known: Vec<CachedAnswer>,
    /// Questions asked since the search or the refresh began.
    asked: u32,
    next_question: Instant,
    /// When the current refresh began: what was heard before is not confirmed yet.
    round: Instant,
    /// End of the first browse somebody waits for.
    browse_until: Option<Instant>,
    last_used: Instant,
}

struct CachedAnswer {
    instance: Name,
    address: SocketAddr,
    heard: Instant,
}

impl Browser {
    /// Begins or joins a look-up.
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

    /// A look-up of an app found nobody: unless somebody else waits for it, it is forgotten.
    pub(super) fn give_up(&mut self, app_id: &str) {
        let unused = |app: &App| app.known.is_empty() && app.sender.receiver_count() == 0;
        if self.apps.get(app_id).is_some_and(unused) {
            self.apps.remove(app_id);
        }
    }

    /// Keeps an app under observation.
    pub(super) fn watch(&mut self, app_id: &str, now: Instant) -> watch::Receiver<Addresses> {
        match self.app(app_id, now) {
            Ok(app) => app.sender.subscribe(),
            // Nothing will ever arrive; the caller still gets errors from its look-ups.
            Err(_) => watch::channel(Addresses::from([])).1,
        }
    }

    /// Forgets an address and asks again.
    pub(super) fn evict(&mut self, app_id: &str, address: &Address, now: Instant) {
        if let (Some(app), Some(address)) = (self.apps.get_mut(app_id), address.socket_addr()) {
            app.known.retain(|known| known.address != address);
            app.asked = 0;
            app.round = now;
            app.next_question = now;
            app.publish(now);
        }
    }

    /// Takes in a response.
    pub(super) fn observe(&mut self, message: &Message, now: Instant) {
        if !message.response || self.apps.is_empty() {
            return;
        }
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
            let Some(entry) = Entry::of(instance, &app_id, message) else {
                continue;
            };
            if record.ttl == 0 || entry.gone {
                app.forget(instance, &entry.addresses);
            } else {
                app.learn(instance, &entry.addresses, now);
            }
            app.publish(now);
        }
    }

    /// The apps to ask for now. Forgets what expired and apps nobody needs.
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

    /// When [`due`](Self::due) has something to do.
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
    /// Forgets the app unused for longest; false when all are in use.
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
            round: now,
            browse_until: None,
            last_used: now,
        }
    }

    /// Whether a question is to be sent now; schedules the next time in any case.
    fn ask(&mut self, now: Instant) -> bool {
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

    fn learn(&mut self, instance: &Name, addresses: &[SocketAddr], now: Instant) {
        let first = self.known.is_empty();
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
        if first && !self.known.is_empty() {
            // Answers of other instances may have been lost: ask once more soon.
            self.browse_until = None;
            self.asked = 0;
            self.next_question = now + REFRESH_RETRY;
        }
    }

    /// Takes back the given addresses, or all of the instance when none is given.
    fn forget(&mut self, instance: &Name, addresses: &[SocketAddr]) {
        self.known.retain(|known| {
            known.instance != *instance || !(addresses.is_empty() || addresses.contains(&known.address))
        });
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

    /// One address per instance, IPv4 rather than IPv6; IPv4 first, else as they were found.
    fn publish(&mut self, now: Instant) {
        let has_v4 = |one: &CachedAnswer| {
            self.known.iter().any(|other| {
                other.address.is_ipv4()
                    && other.instance == one.instance
                    && other.address.port() == one.address.port()
            })
        };
        let v4 = self.known.iter().filter(|known| known.address.is_ipv4());
        let v6 = self
            .known
            .iter()
            .filter(|known| known.address.is_ipv6() && !has_v4(known));
        let addresses: Addresses = v4.chain(v6).map(|known| Address::from(known.address)).collect();
        let changed = self.sender.send_if_modified(|current| {
            let changed = **current != *addresses;
            *current = Arc::clone(&addresses);
            changed
        });
        if changed && addresses.is_empty() {
            self.asked = 0;
            self.next_question = now;
        }
    }
}

/// What one message says about an instance.
struct Entry {
    /// First IPv4 and first IPv6 address, with the port.
    addresses: Vec<SocketAddr>,
    gone: bool,
}

impl Entry {
    /// `None` unless the message has a TXT record with exactly the app id for the instance.
    fn of(instance: &Name, app_id: &str, message: &Message) -> Option<Self> {
        let own = || message.records().filter(|record| record.name == *instance);
        let is_app = own().any(|record| {
            matches!(&record.data, Data::Txt(strings) if matches!(&strings[..], [text] if text == app_id.as_bytes()))
        });
        if !is_app {
            return None;
        }
        let (port, target, ttl) = own().find_map(|record| match &record.data {
            Data::Srv { port, target, .. } => Some((*port, target, record.ttl)),
            _ => None,
        })?;
        let ips = message
            .records()
            .filter(|record| record.name == *target)
            .filter_map(|record| match record.data {
                Data::A(ip) => Some(IpAddr::V4(ip)),
                Data::Aaaa(ip) => Some(IpAddr::V6(ip)),
                _ => None,
            });
        let (v4, v6): (Vec<_>, Vec<_>) = ips.partition(IpAddr::is_ipv4);
        let first = v4.first().into_iter().chain(v6.first());
        Some(Self {
            addresses: first.map(|ip| SocketAddr::new(*ip, port)).collect(),
            gone: ttl == 0,
        })
    }
}

/// The question for all instances of an app; `None` when the app id is no DNS name.
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
