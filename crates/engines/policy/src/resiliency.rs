//! Timeouts, retries and circuit breakers: the policies of a target, and running an operation under them.

mod breaker;
mod builtin;
mod execution;
mod lru;
mod named;
mod policy;
mod problem;
mod retry;
mod targets;
mod trip;
mod undefined;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use outrigger_resources::meta::in_scope;
use outrigger_resources::resiliency as spec;

pub use breaker::{Breaker, BreakerError, BreakerSpec, BreakerState, Permit, StateChange};
pub use builtin::Builtin;
pub use execution::{Event, Execution, Outcome};
pub use policy::{Direction, Key, Labels, Policy, PolicyRef, Resource};
pub use problem::Problem;
pub use retry::{Backoff, CodeListError, CodeMatch, RetrySpec, RetryState};
pub use targets::{ActorPolicy, AppPolicy, ComponentKind};
pub use trip::{Counts, Trip, TripError};
pub use undefined::undefined;

use lru::Lru;
use named::{Named, Rules};
use policy::{Breakers, Seed, Subject};
use problem::Problems;
use targets::{MAX_BREAKERS, Scope, add_targets, cache_size};

/// Default number of cached breakers per app.
const APP_BREAKERS: usize = 100;
/// Default number of cached breakers per actor type.
const ACTOR_BREAKERS: usize = 5000;
/// Maximum number of targets without an entry whose default policies are cached.
const DEFAULT_TARGETS: usize = 1024;

/// All policies of a sidecar.
#[derive(Debug)]
pub struct Resiliency {
    loaded: Vec<Resource>,
    resource: Arc<Resource>,
    named: Named,
    apps: HashMap<String, Option<Arc<Policy>>>,
    actors: HashMap<String, ActorPolicy>,
    components: HashMap<String, spec::ComponentTarget>,
    app_default: Rules,
    actor_default: Rules,
    default_apps: Mutex<Lru<Arc<Policy>>>,
    default_actors: Mutex<Lru<ActorPolicy>>,
    component_breakers: Mutex<Lru<Arc<Breaker>>>,
    /// Breakers of components under earlier documents.
    earlier_breakers: HashMap<Arc<str>, Arc<Breaker>>,
    builtin: [Arc<Policy>; 5],
}

impl Resiliency {
    /// Merges the documents in scope for an app, in order. An invalid policy is reported and skipped; the
    /// rest of its document applies.
    pub fn build<'d>(
        docs: impl IntoIterator<Item = &'d spec::Resiliency>,
        app_id: &str,
    ) -> (Self, Vec<Problem>) {
        Self::build_after(None, docs, app_id)
    }

    /// Like [`Self::build`], as a replacement for these policies: breakers with unchanged rules keep their
    /// state.
    pub fn rebuild<'d>(
        &self,
        docs: impl IntoIterator<Item = &'d spec::Resiliency>,
        app_id: &str,
    ) -> (Self, Vec<Problem>) {
        Self::build_after(Some(self), docs, app_id)
    }

    fn build_after<'d>(
        before: Option<&Self>,
        docs: impl IntoIterator<Item = &'d spec::Resiliency>,
        app_id: &str,
    ) -> (Self, Vec<Problem>) {
        let mut problems = Problems::default();
        let mut named = Named::builtin();
        let mut targets = spec::Targets::default();
        let mut loaded = Vec::new();
        let mut resource = Arc::default();
        for doc in docs.into_iter().filter(|doc| in_scope(&doc.scopes, app_id)) {
            let this = Resource {
                name: doc.name.clone(),
                namespace: doc.namespace.clone(),
            };
            resource = Arc::new(this.clone());
            let known = problems.len();
            named.add(doc, &mut problems);
            add_targets(&mut targets, doc, &mut problems);
            if !problems.has_error_after(known) {
                loaded.push(this);
            }
        }
        let problems = problems.finish(&named, &targets);
        (Self::new(named, targets, resource, loaded, before), problems)
    }

    /// Only the built-in policies.
    pub fn none() -> Self {
        Self::new(
            Named::builtin(),
            spec::Targets::default(),
            Arc::default(),
            Vec::new(),
            None,
        )
    }

    fn new(
        named: Named,
        targets: spec::Targets,
        resource: Arc<Resource>,
        loaded: Vec<Resource>,
        before: Option<&Self>,
    ) -> Self {
        let builtin = Builtin::ALL.map(|builtin| {
            Arc::new(Policy {
                subject: Subject::Builtin(builtin.name()),
                target: String::new(),
                resource: Arc::clone(&resource),
                timeout: None,
                retry: named.retry(builtin.name()),
                breakers: Breakers::None,
                seed: Seed::random(),
            })
        });
        let mut this = Self {
            loaded,
            app_default: named.defaults(&["App".to_owned()]),
            actor_default: named.defaults(&["Actor".to_owned()]),
            named,
            apps: HashMap::new(),
            actors: HashMap::new(),
            components: targets.components.into_iter().collect(),
            default_apps: Mutex::new(Lru::new(DEFAULT_TARGETS)),
            default_actors: Mutex::new(Lru::new(DEFAULT_TARGETS)),
            component_breakers: Mutex::new(Lru::new(MAX_BREAKERS)),
            earlier_breakers: before.map(Self::breakers_of_components).unwrap_or_default(),
            builtin,
            resource,
        };
        for (id, target) in targets.apps {
            let rules = this
                .named
                .rules(&target.timeout, &target.retry, &target.circuit_breaker);
            let size = cache_size(target.circuit_breaker_cache_size, APP_BREAKERS);
            let known = before.map(|before| before.known_app(&id)).unwrap_or_default();
            let policy = (!rules.is_empty()).then(|| this.app_policy(&id, rules, size, known.as_deref()));
            this.apps.insert(id, policy);
        }
        for (kind, target) in targets.actors {
            let known = before.map(|before| before.known_actor(&kind)).unwrap_or_default();
            let policy = this.actor_target(&kind, &target, &known);
            this.actors.insert(kind, policy);
        }
        if let Some(before) = before {
            this.take_defaults(before);
        }
        this
    }

    /// Keeps called targets without an entry, and so their breakers.
    fn take_defaults(&self, before: &Self) {
        if !self.app_default.is_empty() {
            let mut apps = lock(&self.default_apps);
            for (id, known) in lock(&before.default_apps).oldest_first() {
                apps.get_or_insert_with(id, || {
                    self.app_policy(id, self.app_default.clone(), APP_BREAKERS, Some(known))
                });
            }
        }
        if !self.actor_default.is_empty() {
            let mut actors = lock(&self.default_actors);
            for (kind, known) in lock(&before.default_actors).oldest_first() {
                actors.get_or_insert_with(kind, || {
                    self.actor_policy(kind, self.actor_default.clone(), Scope::Type, false, known)
                });
            }
        }
    }

    /// The policy of an app that was called or has an entry.
    fn known_app(&self, id: &str) -> Option<Arc<Policy>> {
        match self.apps.get(id) {
            Some(policy) => policy.clone(),
            None => lock(&self.default_apps).peek(id).cloned(),
        }
    }

    fn known_actor(&self, kind: &str) -> ActorPolicy {
        let own = self.actors.get(kind).cloned();
        own.unwrap_or_else(|| lock(&self.default_actors).peek(kind).cloned().unwrap_or_default())
    }

    fn breakers_of_components(&self) -> HashMap<Arc<str>, Arc<Breaker>> {
        let breakers = lock(&self.component_breakers);
        let entries = breakers.oldest_first();
        entries
            .map(|(name, breaker)| (Arc::clone(name), Arc::clone(breaker)))
            .collect()
    }

    /// The documents loaded without error, each counted as one `resiliency_loaded`.
    pub fn loaded(&self) -> &[Resource] {
        &self.loaded
    }

    /// The policy for an app ID (with the namespace, if the caller gave one), an HTTPEndpoint name, or a
    /// URL.
    pub fn app(&self, id: &str) -> AppPolicy {
        if let Some(policy) = self.apps.get(id) {
            return AppPolicy {
                policy: policy.clone(),
                has_target: true,
            };
        }
        if self.app_default.is_empty() {
            return AppPolicy::default();
        }
        let mut cache = lock(&self.default_apps);
        let make = || self.app_policy(id, self.app_default.clone(), APP_BREAKERS, None);
        AppPolicy {
            policy: Some(Arc::clone(cache.get_or_insert_with(id, make))),
            has_target: false,
        }
    }

    /// The policy for an actor type.
    pub fn actor(&self, kind: &str) -> ActorPolicy {
        if let Some(policy) = self.actors.get(kind) {
            return policy.clone();
        }
        if self.actor_default.is_empty() {
            return ActorPolicy::default();
        }
        let mut cache = lock(&self.default_actors);
        let make = || {
            let rules = self.actor_default.clone();
            self.actor_policy(kind, rules, Scope::Type, false, &ActorPolicy::default())
        };
        cache.get_or_insert_with(kind, make).clone()
    }

    /// The policy for a component in one direction. Look it up when the component is loaded, and cache it.
    pub fn component(&self, name: &str, kind: ComponentKind, direction: Direction) -> Option<Arc<Policy>> {
        let rules = match self.components.get(name) {
            Some(target) => {
                let names = match direction {
                    Direction::Inbound => &target.inbound,
                    Direction::Outbound => &target.outbound,
                };
                self.named
                    .rules(&names.timeout, &names.retry, &names.circuit_breaker)
            }
            None => {
                let way = match direction {
                    Direction::Inbound => "Inbound",
                    Direction::Outbound => "Outbound",
                };
                let levels = [
                    format!("{}Component{way}", kind.as_str()),
                    format!("Component{way}"),
                    "Component".to_owned(),
                ];
                self.named.defaults(&levels)
            }
        };
        if rules.is_empty() {
            return None;
        }
        let breakers = rules.breaker.map_or(Breakers::None, |spec| {
            let mut all = lock(&self.component_breakers);
            let make = || {
                let earlier = self.earlier_breakers.get(name);
                match earlier.filter(|breaker| *breaker.spec() == spec) {
                    Some(breaker) => Arc::clone(breaker),
                    None => {
                        let log_name = format!("{}-{name}", spec.name);
                        Arc::new(Breaker::new(log_name, spec.clone(), Instant::now()))
                    }
                }
            };
            Breakers::One(Arc::clone(all.get_or_insert_with(name, make)))
        });
        Some(Arc::new(Policy {
            subject: Subject::Component {
                name: name.to_owned(),
                direction,
            },
            target: format!("{}_{name}", kind.as_str()),
            resource: Arc::clone(&self.resource),
            timeout: rules.timeout,
            retry: rules.retry,
            breakers,
            seed: Seed::random(),
        }))
    }

    /// A built-in policy: retries only, possibly overridden by the user.
    pub fn builtin(&self, builtin: Builtin) -> &Arc<Policy> {
        &self.builtin[builtin as usize]
    }

    /// `known` is the previous policy of the app.
    fn app_policy(&self, id: &str, rules: Rules, breakers: usize, known: Option<&Policy>) -> Arc<Policy> {
        Arc::new(Policy {
            subject: Subject::App(id.to_owned()),
            target: format!("app_{id}"),
            resource: Arc::clone(&self.resource),
            timeout: rules.timeout,
            retry: rules.retry,
            breakers: rules.breaker.map_or(Breakers::None, |spec| {
                Breakers::per_key(spec, String::new(), breakers, known.map(|known| &known.breakers))
            }),
            seed: Seed::random(),
        })
    }

    fn actor_target(&self, kind: &str, target: &spec::ActorTarget, known: &ActorPolicy) -> ActorPolicy {
        let rules = self
            .named
            .rules(&target.timeout, &target.retry, &target.circuit_breaker);
        let size = cache_size(target.circuit_breaker_cache_size, ACTOR_BREAKERS);
        let scope = if target.circuit_breaker_scope == "type" {
            Scope::Type
        } else {
            Scope::Id { size }
        };
        self.actor_policy(kind, rules, scope, true, known)
    }

    fn actor_policy(
        &self,
        kind: &str,
        rules: Rules,
        scope: Scope,
        has_target: bool,
        known: &ActorPolicy,
    ) -> ActorPolicy {
        let policy = |timeout, retry, breakers| {
            Arc::new(Policy {
                subject: Subject::Actor(kind.to_owned()),
                target: format!("actor_{kind}"),
                resource: Arc::clone(&self.resource),
                timeout,
                retry,
                breakers,
                seed: Seed::random(),
            })
        };
        let known = known.before_lock.as_ref().map(|policy| &policy.breakers);
        let breakers = rules.breaker.map_or(Breakers::None, |spec| match scope {
            Scope::Type => Breakers::one(kind.to_owned(), spec, known),
            Scope::Id { size } => Breakers::per_key(spec, format!("{kind}-"), size, known),
        });
        let guarded = rules.retry.is_some() || !matches!(breakers, Breakers::None);
        ActorPolicy {
            before_lock: guarded.then(|| policy(None, rules.retry, breakers)),
            after_lock: rules
                .timeout
                .map(|timeout| policy(Some(timeout), None, Breakers::None)),
            has_target,
        }
    }
}

fn lock<T>(lru: &Mutex<Lru<T>>) -> MutexGuard<'_, Lru<T>> {
    // Entries are complete before insertion, so poisoning is harmless.
    lru.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
