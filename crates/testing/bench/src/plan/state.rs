//! Calls of the state API, by store, verb and API.

/// The state store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Store {
    /// The sidecar itself.
    Memory,
    Redis,
    /// The second version of the component.
    Postgres,
}

impl Store {
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Redis, Self::Postgres];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Memory => "in memory",
            Self::Redis => "in Redis",
            Self::Postgres => "in PostgreSQL",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    Get,
    Save,
}

impl Verb {
    pub(crate) const ALL: [Self; 2] = [Self::Get, Self::Save];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Save => "save",
        }
    }
}

/// The sidecar's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Api {
    Http,
    Grpc,
}

impl Api {
    pub(crate) const ALL: [Self; 2] = [Self::Http, Self::Grpc];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Grpc => "gRPC",
        }
    }
}

/// A call for one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StateCall {
    pub(crate) store: Store,
    pub(crate) verb: Verb,
    pub(crate) api: Api,
}

impl StateCall {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::product(&Store::ALL, &Verb::ALL, &Api::ALL)
    }

    /// Every combination, by store.
    pub(crate) fn product(stores: &[Store], verbs: &[Verb], apis: &[Api]) -> impl Iterator<Item = Self> {
        stores.iter().flat_map(move |&store| {
            verbs
                .iter()
                .flat_map(move |&verb| apis.iter().map(move |&api| Self { store, verb, api }))
        })
    }

    pub(super) fn name(self) -> String {
        let Self { store, verb, api } = self;
        format!("state-{}-{}-{}", store.name(), verb.name(), api.name())
    }

    pub(super) fn title(self) -> String {
        let Self { store, verb, api } = self;
        format!("state {}, {} over {}", store.title(), verb.name(), api.title())
    }
}
