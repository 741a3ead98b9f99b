//! Compares the pages in `docs/reference/components/` with the components. Each component is built with the settings below;
//! the pages must list exactly the properties it looks up, with their types and defaults.
use std::collections::BTreeMap;
use std::time::Duration;

use outrigger_component::catalog::all_only_of_dapr;
use outrigger_component::{Catalog, Metadata, PropertyType, Setup};
use outrigger_components::builtin;
use outrigger_resources::value::go_nanos;
use outrigger_testing::pages::Page;
use outrigger_testing::pages::settings::{Documented, documented_by, in_backticks, sections};

/// Nothing listens here: only properties read before connecting count.
const NOWHERE: &str = "127.0.0.1:1";
const POSTGRES: Given = &[("connectionString", "host=127.0.0.1 port=1 user=x")];
const KEY: Given = &[("key", "k")];

type Given = &'static [(&'static str, &'static str)];

/// Settings that make a component read its other properties; several if they exclude each other. Types not
/// listed need none.
fn settings(kind: &str) -> &'static [Given] {
    match kind {
        "state.redis" | "lock.redis" | "configuration.redis" | "bindings.redis" | "pubsub.redis" => &[
            &[("redisHost", NOWHERE), ("enableTLS", "true")],
            &[
                ("redisHost", NOWHERE),
                ("failover", "true"),
                ("sentinelMasterName", "m"),
            ],
            &[("redisHost", NOWHERE), ("useEntraID", "true")],
        ],
        "state.postgresql" | "state.postgres" | "bindings.postgresql" | "bindings.postgres" => &[POSTGRES],
        "configuration.postgresql" | "configuration.postgres" => &[&[
            ("connectionString", "host=127.0.0.1 port=1 user=x"),
            ("table", "t"),
        ]],
        "state.sqlite" | "state.sqlite3" | "lock.sqlite" | "configuration.sqlite" | "pubsub.sqlite" => {
            &[&[("connectionString", ":memory:")]]
        }
        "state.etcd" => &[
            &[("endpoints", NOWHERE)],
            &[
                ("endpoints", NOWHERE),
                ("tlsEnable", "true"),
                ("ca", "-----BEGIN "),
                ("cert", "-----BEGIN "),
                ("key", "-----BEGIN "),
            ],
        ],
        "secretstores.local.file" => &[&[("secretsFile", "/nowhere")]],
        "bindings.cron" => &[&[("schedule", "@daily")]],
        "bindings.http" => &[&[("url", "http://127.0.0.1:1")]],
        "bindings.localstorage" => &[&[("rootPath", "/nowhere")]],
        "bindings.mqtt3" | "bindings.mqtt" => &[&[
            ("url", "mqtts://127.0.0.1:1"),
            ("topic", "t"),
            ("consumerID", "c"),
        ]],
        "pubsub.mqtt3" | "pubsub.mqtt" => &[&[("url", "mqtts://127.0.0.1:1")]],
        "pubsub.mqtt5" => &[
            &[("url", "mqtts://127.0.0.1:1")],
            &[("url", "mqtts://127.0.0.1:1"), ("sharedSubscriptions", "true")],
        ],
        "pubsub.rabbitmq" => &[
            &[("connectionString", "amqps://127.0.0.1:1")],
            &[("hostname", "127.0.0.1"), ("protocol", "amqps")],
        ],
        "pubsub.jetstream" => &[
            &[("natsURL", "nats://127.0.0.1:1")],
            &[("natsURL", "nats://127.0.0.1:1"), ("jwt", "j"), ("seedKey", "s")],
            &[
                ("natsURL", "nats://127.0.0.1:1"),
                ("deliverPolicy", "sequence"),
                ("startSequence", "1"),
            ],
            &[
                ("natsURL", "nats://127.0.0.1:1"),
                ("deliverPolicy", "time"),
                ("startTime", "1"),
            ],
        ],
        "bindings.kafka" | "pubsub.kafka" => &[
            &[
                ("brokers", NOWHERE),
                ("authType", "password"),
                ("saslUsername", "u"),
                ("saslPassword", "p"),
            ],
            &[
                ("brokers", NOWHERE),
                ("authRequired", "true"),
                ("saslPassword", "p"),
            ],
            &[("brokers", NOWHERE), ("authType", "mtls")],
            &[
                ("brokers", NOWHERE),
                ("authType", "oidc"),
                ("oidcTokenEndpoint", "http://127.0.0.1:1"),
                ("oidcClientID", "i"),
                ("oidcClientSecret", "s"),
            ],
            &[
                ("brokers", NOWHERE),
                ("authType", "oidc_private_key_jwt"),
                ("oidcTokenEndpoint", "http://127.0.0.1:1"),
                ("oidcClientID", "i"),
                ("oidcClientAssertionCert", "c"),
                ("oidcClientAssertionKey", "no key"),
            ],
        ],
        "crypto.dapr.jwks" => &[&[("jwks", "https://127.0.0.1:1")]],
        "crypto.dapr.localstorage" => &[&[("path", "/nowhere")]],
        "middleware.http.bearer" => &[&[("issuer", "http://127.0.0.1:1"), ("audience", "a")]],
        "conversation.openai" => &[
            KEY,
            &[
                ("key", "k"),
                ("apiType", "azure"),
                ("endpoint", "https://h/"),
                ("apiVersion", "1"),
            ],
        ],
        "conversation.anthropic"
        | "conversation.deepseek"
        | "conversation.googleai"
        | "conversation.huggingface"
        | "conversation.mistral"
        | "conversation.ollama" => &[KEY],
        _ => &[&[]],
    }
}

/// All lookups of a type across its versions, in lower case, with the property types.
async fn looked_up(catalog: &Catalog, kind: &str) -> BTreeMap<String, PropertyType> {
    let mut names = BTreeMap::new();
    for given in settings(kind) {
        for version in ["v1", "v2"] {
            let owned = given
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let metadata = Metadata::new("probe", owned).unwrap();
            let setup = || Setup {
                metadata: metadata.clone(),
                app_id: "app".to_owned(),
            };
            // Most builds fail without a server; none waits for one.
            macro_rules! build {
                ($($section:ident)+) => {
                    $(if let Ok(entry) = catalog.$section.find(kind, version) {
                        let _failed = tokio::time::timeout(Duration::from_secs(1), entry.build(setup())).await;
                    })+
                };
            }
            build!(
                state secrets configuration lock output_bindings input_bindings middleware crypto conversation pubsub
            );
            for (name, reading) in metadata.looked_up() {
                let known = names.entry(name.to_lowercase()).or_insert(reading);
                if reading != PropertyType::Text {
                    *known = reading;
                }
            }
        }
    }
    names
}

/// The settings of each type on all pages of components.
fn documented() -> BTreeMap<String, BTreeMap<String, Documented>> {
    let pages = Page::read_folder("reference/components");
    let components: Vec<_> = pages.iter().flat_map(|page| sections(page.text())).collect();
    let mut all = BTreeMap::new();
    for (heading, rows) in &components {
        let mut names = documented_by(rows);
        for row in rows {
            if let Some((_, link)) = row.first.split_once("](") {
                let (_, anchor) = link.trim_end_matches(')').split_once('#').unwrap();
                let shared = components
                    .iter()
                    .find(|(heading, _)| heading.to_lowercase().replace(' ', "-") == anchor);
                let (_, rows) = shared.unwrap_or_else(|| panic!("{heading}: there is no #{anchor}"));
                for (name, documented) in documented_by(rows) {
                    names.entry(name).or_insert(documented);
                }
            }
        }
        for kind in in_backticks(heading) {
            assert!(
                all.insert(kind.to_owned(), names.clone()).is_none(),
                "{kind} is there twice"
            );
        }
    }
    all
}

/// The mistake in a row, if any, for a setting read as `reading`.
fn problem(row: &Documented, reading: PropertyType) -> Option<String> {
    let is_of = |kinds: &[&str]| kinds.iter().any(|kind| row.kind.starts_with(kind));
    let default = row.default.trim_matches('`');
    match reading {
        PropertyType::Text => None,
        PropertyType::Required => (!row.default.starts_with("required")).then(|| "it is required".to_owned()),
        PropertyType::Flag(on) => {
            let right = if on { ["on", "true"] } else { ["off", "false"] };
            let is_right = is_of(&["switch", "bool"]) && right.contains(&default);
            (!is_right).then(|| format!("it is a switch, by default {}", right[0]))
        }
        PropertyType::Number => {
            let is_right = is_of(&["number"]) || row.kind.starts_with(|first: char| first.is_ascii_digit());
            (!is_right).then(|| "it is a number".to_owned())
        }
        PropertyType::Duration(_) => (!is_of(&["duration"])).then(|| "it is a duration".to_owned()),
        PropertyType::Span(span) => {
            let said = go_nanos(default).ok().and_then(|nanos| u64::try_from(nanos).ok());
            let is_right = is_of(&["duration"]) && said.map(Duration::from_nanos) == Some(span);
            (!is_right).then(|| format!("it is a duration, by default {span:?}"))
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_list_component_settings() {
    let catalog = builtin();
    let mut documented = documented();
    let mut wrong = Vec::new();
    for kind in catalog.known() {
        let Some(listed) = documented.remove(&kind) else {
            wrong.push(format!("{kind} is not there"));
            continue;
        };
        let read = looked_up(&catalog, &kind).await;
        for (name, reading) in &read {
            let problem = match listed.get(name) {
                None => Some("it is not there".to_owned()),
                Some(row) => problem(row, *reading),
            };
            wrong.extend(problem.map(|problem| format!("{kind}: {name}: {problem}")));
        }
        for name in listed.keys().filter(|name| !read.contains_key(*name)) {
            wrong.push(format!("{kind}: {name} is listed, and not read"));
        }
    }
    // Another build has it and names it.
    let is_elsewhere = |kind: &str| {
        let found = catalog.pubsub.find(kind, "v1").map(drop);
        found.is_err_and(|error| error.to_string().contains("this build lacks it"))
    };
    wrong.extend(
        documented
            .keys()
            .filter(|kind| !is_elsewhere(kind))
            .map(|kind| format!("{kind} is listed, and not in this build")),
    );
    assert!(
        wrong.is_empty(),
        "docs/reference/components:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn lists_of_types_are_disjoint() {
    let known = builtin().known();
    let both: Vec<String> = all_only_of_dapr().filter(|kind| known.contains(kind)).collect();
    assert!(both.is_empty(), "component/src/catalog/dapr.rs lists {both:?}");
}

#[test]
fn detects_wrong_type_or_default() {
    let row = |kind: &str, default: &str| Documented {
        kind: kind.to_owned(),
        default: default.to_owned(),
    };
    let second = PropertyType::Span(Duration::from_secs(1));
    assert_eq!(problem(&row("duration", "`1s`"), second), None);
    assert!(problem(&row("duration", "`2s`"), second).is_some());
    assert!(problem(&row("number", "`1s`"), second).is_some());
    assert_eq!(problem(&row("switch", "off"), PropertyType::Flag(false)), None);
    assert!(problem(&row("switch", "on"), PropertyType::Flag(false)).is_some());
    assert!(problem(&row("text", "none"), PropertyType::Required).is_some());
    assert!(problem(&row("text", "none"), PropertyType::Number).is_some());
}
