//! `docs/components.md` against the components: they are built with the settings below, and what they looked up is what
//! the page lists.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outrigger_component::{Catalog, Metadata, Setup};
use outrigger_components::builtin;
use outrigger_pages::Page;

/// Nothing listens there: what is read before connecting is all that counts here.
const NOWHERE: &str = "127.0.0.1:1";
const POSTGRES: Given = &[("connectionString", "host=127.0.0.1 port=1 user=x")];
const KEY: Given = &[("key", "k")];

type Given = &'static [(&'static str, &'static str)];

/// Settings with which a component reads what else there is; several where one excludes another. Types that are not
/// here read everything without any setting.
fn settings(kind: &str) -> &'static [Given] {
    match kind {
        "state.redis" | "lock.redis" | "configuration.redis" | "bindings.redis" => &[
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
        "state.sqlite" | "state.sqlite3" | "lock.sqlite" | "configuration.sqlite" => {
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
        "bindings.kafka" => &[
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

/// What the component of a type looks up in all of its versions, in lower case.
async fn looked_up(catalog: &Catalog, kind: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
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
            // Most fail, as there is no server; none is waited for.
            macro_rules! build {
                ($($section:ident)+) => {
                    $(if let Ok(entry) = catalog.$section.find(kind, version) {
                        let _failed = tokio::time::timeout(Duration::from_secs(1), entry.build(setup())).await;
                    })+
                };
            }
            build!(state secrets configuration lock output_bindings input_bindings middleware crypto conversation);
            names.extend(metadata.looked_up().iter().map(|name| name.to_lowercase()));
        }
    }
    names
}

/// The sections of the page: what their headings name in backticks, or themselves, and the first cells of their rows.
fn sections(text: &str) -> Vec<(String, Vec<String>)> {
    let mut sections: Vec<(String, Vec<String>)> = Vec::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("### ").or_else(|| line.strip_prefix("## ")) {
            sections.push((heading.to_owned(), Vec::new()));
        } else if let (Some(row), Some((_, rows))) = (line.strip_prefix("| "), sections.last_mut()) {
            let cell = row.split(" |").next().unwrap_or_default();
            if !["setting", "---", "category"].contains(&cell) {
                rows.push(cell.to_owned());
            }
        }
    }
    sections
}

fn in_backticks(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The settings of each type on the page, in lower case.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let page = Page::read("components.md");
    let sections = sections(page.text());
    let mut all = BTreeMap::new();
    for (heading, rows) in &sections {
        let mut names = BTreeSet::new();
        for row in rows {
            if let Some((_, anchor)) = row.split_once("](#") {
                let anchor = anchor.trim_end_matches(')');
                let shared = sections
                    .iter()
                    .find(|(heading, _)| heading.to_lowercase().replace(' ', "-") == anchor);
                let (_, rows) = shared.unwrap_or_else(|| panic!("{heading}: there is no #{anchor}"));
                names.extend(
                    rows.iter()
                        .flat_map(|row| in_backticks(row))
                        .map(str::to_lowercase),
                );
            }
            names.extend(in_backticks(row).map(str::to_lowercase));
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_lists_the_settings_that_components_read() {
    let catalog = builtin();
    let mut documented = documented();
    let mut wrong = Vec::new();
    // Brokers stand in docs/pubsub.md.
    for kind in catalog.known().iter().filter(|kind| !kind.starts_with("pubsub.")) {
        let Some(listed) = documented.remove(kind) else {
            wrong.push(format!("{kind} is not there"));
            continue;
        };
        let read = looked_up(&catalog, kind).await;
        for name in read.difference(&listed) {
            wrong.push(format!("{kind}: {name} is not there"));
        }
        for name in listed.difference(&read) {
            wrong.push(format!("{kind}: {name} is listed, and not read"));
        }
    }
    wrong.extend(
        documented
            .keys()
            .map(|kind| format!("{kind} is listed, and not in this build")),
    );
    assert!(wrong.is_empty(), "docs/components.md:\n{}", wrong.join("\n"));
}
