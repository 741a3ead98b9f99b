//! Compares the rows of `docs/reference/errors.md` with the errors in the code.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_actors::turns::TooDeep;
use outrigger_blocks::bindings::BindingError;
use outrigger_blocks::configuration::ConfigurationError;
use outrigger_blocks::conversation::ConversationError;
use outrigger_blocks::crypto::CryptoError;
use outrigger_blocks::invoke::InvokeError;
use outrigger_blocks::jobs::{self, JobsError};
use outrigger_blocks::lock::LockError;
use outrigger_blocks::outbound::Cause;
use outrigger_blocks::pubsub::PublishError;
use outrigger_blocks::secrets::SecretError;
use outrigger_blocks::state::{IllegalKey, StateError};
use outrigger_blocks_actors::actors::{ActorError, ReminderError};
use outrigger_blocks_actors::workflow::{Action, WorkflowError};
use outrigger_component::{Error, Kind};
use outrigger_runtime::scheduler::SchedulerError;
use outrigger_testing::pages::Page;

use super::*;

/// An error, and its gRPC code if it occurs over gRPC.
type Made = (ApiError, Option<Code>);
/// Statuses over HTTP and over gRPC.
type Statuses = (BTreeSet<u16>, BTreeSet<String>);

fn both(error: impl Into<ApiError>) -> Made {
    let error = error.into();
    let grpc = error.grpc;
    (error, Some(grpc))
}

fn over_http(error: ApiError) -> Made {
    (error, None)
}

fn x() -> String {
    "x".to_owned()
}

fn cause(kind: Kind) -> Cause {
    Error::new(kind, "").into()
}

fn any_call() -> Vec<Made> {
    vec![
        both(ApiError::malformed("")),
        both(ApiError::bad_request("")),
        both(ApiError::metadata(&MetadataError::TooMany)),
        both(ApiError::metadata(&MetadataError::Key)),
        both(ApiError::body_read("")),
        both(ApiError::too_much_unfinished(TooMuchUnfinished::InProcess(1))),
        both(ApiError::malformed_response("")),
        both(ApiError::method_not_implemented("BREW")),
        both(ApiError::not_ready(&[])),
        both(ApiError::outbound_not_ready(None)),
        both(ApiError::app_id_mismatch()),
    ]
}

fn invocation() -> Vec<Made> {
    let refused = InvokeError::Peer(Status::permission_denied(""));
    let http = [
        refused.http_status(),
        InvokeError::NotText.http_status(),
        InvokeError::Timeout.http_status(),
        // The header of the call, including what the sidecar adds, exceeds the app's limit.
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    ];
    let mut made = vec![over_http(ApiError::no_app_id())];
    made.extend(http.map(|http| both(ApiError::invoke("b", http, ""))));
    made
}

fn state() -> Vec<Made> {
    let mut errors = vec![
        StateError::NotConfigured { store: x() },
        StateError::NotFound { store: x() },
        StateError::IllegalKey {
            store: x(),
            key: IllegalKey(x()),
        },
        StateError::NoTransactions { store: x() },
        StateError::TooManyOperations {
            store: x(),
            count: 2,
            most: 1,
        },
        StateError::NoQueries { store: x() },
        StateError::UnknownOperation(x()),
        StateError::Outbox {
            app_id: x(),
            cause: x(),
        },
    ];
    for kind in [
        Kind::TooLarge,
        Kind::EtagMismatch,
        Kind::InvalidEtag,
        Kind::Unavailable,
    ] {
        let (store, key) = (x(), x());
        errors.extend([
            StateError::Query {
                store: store.clone(),
                cause: cause(kind),
            },
            StateError::Get {
                store: store.clone(),
                key: key.clone(),
                cause: cause(kind),
            },
            StateError::BulkGet(cause(kind)),
            StateError::Save {
                store: store.clone(),
                cause: cause(kind),
            },
            StateError::Delete {
                key,
                cause: cause(kind),
            },
            StateError::BulkDelete {
                store,
                cause: cause(kind),
            },
            StateError::Transaction(cause(kind)),
        ]);
    }
    let made = errors.into_iter();
    made.map(|error| both(ApiError::state(error, Some("app"))))
        .chain([both(ApiError::state_key_missing())])
        .collect()
}

fn publishing() -> Vec<Made> {
    let (pubsub, topic, app_id) = (x(), x(), x());
    vec![
        both(PublishError::NoName),
        both(PublishError::NotFound {
            pubsub: x(),
            metadata: outrigger_component::Pairs::new(),
        }),
        both(PublishError::NoTopic { pubsub: x() }),
        both(PublishError::RawPayload {
            pubsub: x(),
            value: x(),
        }),
        both(PublishError::Malformed {
            pubsub: x(),
            app_id: x(),
            cause: x(),
        }),
        both(PublishError::Forbidden {
            pubsub: x(),
            topic: x(),
            app_id: x(),
        }),
        both(PublishError::EntryIds {
            pubsub,
            topic,
            app_id,
        }),
        both(PublishError::Metadata {
            pubsub: x(),
            cause: x(),
        }),
        both(PublishError::Publish {
            pubsub: x(),
            topic: x(),
            cause: cause(Kind::Unavailable),
            failed: Vec::new(),
        }),
        both(ApiError::unread_bulk("", "", "", "")),
        both(ApiError::bulk_event("", "", "", "")),
        both(ApiError::unread_event("", "", x())),
    ]
}

fn secrets_and_configuration() -> Vec<Made> {
    let keys = Vec::new;
    vec![
        both(SecretError::NotConfigured),
        both(SecretError::NotFound { store: x() }),
        both(SecretError::Denied { store: x(), key: x() }),
        both(SecretError::Get {
            store: x(),
            key: None,
            cause: Cause::Timeout,
        }),
        both(ConfigurationError::NotConfigured),
        both(ConfigurationError::NotFound { store: x() }),
        both(ConfigurationError::NoApp),
        both(ConfigurationError::Get {
            store: x(),
            keys: keys(),
            cause: Cause::Timeout,
        }),
        both(ConfigurationError::Subscribe {
            store: x(),
            keys: keys(),
            cause: Cause::Timeout,
        }),
        both(ConfigurationError::Unsubscribe {
            id: x(),
            cause: Cause::Timeout,
        }),
    ]
}

fn locks_and_jobs() -> Vec<Made> {
    let job = |cause| {
        both(JobsError {
            cause,
            app_id: x(),
            namespace: x(),
        })
    };
    vec![
        both(LockError::NoOwner { store: x() }),
        both(LockError::NotConfigured),
        both(LockError::NotFound { store: x() }),
        both(LockError::TryLock(Cause::Timeout)),
        both(LockError::Unlock(Cause::Timeout)),
        job(jobs::Cause::Empty("Job")),
        job(jobs::Cause::Empty("Name")),
        job(jobs::Cause::Empty("Schedule")),
        job(jobs::Cause::NameTwice),
        job(jobs::Cause::Data(x(), x())),
        job(jobs::Cause::Schedule(SchedulerError::Disabled)),
        job(jobs::Cause::Get(SchedulerError::Disabled)),
        job(jobs::Cause::List(SchedulerError::Disabled)),
        job(jobs::Cause::Delete(SchedulerError::Disabled)),
    ]
}

fn bindings_cryptography_and_conversation() -> Vec<Made> {
    vec![
        both(ApiError::output_binding("b", &BindingError::NoOperation)),
        both(CryptoError::NotConfigured),
        both(CryptoError::BadRequest(x())),
        both(CryptoError::NotFound(x())),
        both(CryptoError::Key {
            name: x(),
            cause: x(),
        }),
        both(CryptoError::Operation(x())),
        both(CryptoError::Stream(x())),
        both(CryptoError::Unimplemented),
        over_http(ApiError::broken_document(CryptoError::Stream(x()))),
        both(ConversationError::NotFound(x())),
        both(ConversationError::MissingInputs(x())),
        both(ConversationError::InvalidParameters {
            component: x(),
            what: x(),
        }),
        both(ConversationError::Invoke {
            component: x(),
            cause: x(),
        }),
    ]
}

fn actors() -> Vec<Made> {
    let errors = [
        ActorError::NoPlacement,
        ActorError::NoNamespace,
        ActorError::Ended,
        ActorError::Illegal(x()),
        ActorError::Reserved(x()),
        ActorError::TooDeep(TooDeep),
        ActorError::NotActive,
        ActorError::NoStore,
        ActorError::StateGet(x()),
        ActorError::StateSave(x()),
        ActorError::StateChanged(x()),
        ActorError::Timer(x()),
        ActorError::Reminder(ReminderError::NotHosted),
        ActorError::Reminder(ReminderError::Exists(x())),
        ActorError::Reminder(ReminderError::NotFound(x())),
        ActorError::Reminder(ReminderError::Create(SchedulerError::Disabled.into())),
        ActorError::Reminder(ReminderError::Get(SchedulerError::Disabled.into())),
        ActorError::Reminder(ReminderError::Delete(SchedulerError::Disabled.into())),
        ActorError::NoAddress { kind: x(), id: x() },
        ActorError::Moved,
        ActorError::Invoke(x()),
        ActorError::Cut(Status::unavailable("")),
    ];
    let made = errors.into_iter().map(|error| {
        let own = actor_status(&error).map(|status| status.code());
        let error = ApiError::from(error);
        let grpc = own.unwrap_or(error.grpc);
        (error, Some(grpc))
    });
    made.collect()
}

fn workflows() -> Vec<Made> {
    let actions = [
        Action::Start,
        Action::Rerun,
        Action::Get,
        Action::List,
        Action::Pause,
        Action::Resume,
        Action::Terminate,
        Action::Purge,
        Action::RaiseEvent,
    ];
    let mut errors = vec![
        WorkflowError::NoName,
        WorkflowError::NoEventName,
        WorkflowError::NoId,
        WorkflowError::InvalidId(x()),
        WorkflowError::InvalidApp(x()),
        WorkflowError::LongId,
        WorkflowError::NotFound(x()),
    ];
    errors.extend(actions.map(|action| WorkflowError::Failed(action, x(), x())));
    errors.into_iter().map(both).collect()
}

/// The statuses of each code on the page. The code of pluggable components has no fixed statuses.
fn rows(page: &str) -> BTreeMap<String, Statuses> {
    let names: Vec<String> = (1..=16)
        .map(|code| format!("{:?}", Code::from_i32(code)))
        .collect();
    let mut rows = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').collect();
        let http: BTreeSet<u16> = cells[2]
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|word| word.parse().ok())
            .collect();
        let grpc: BTreeSet<String> = cells[3]
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| names.iter().any(|name| name == word))
            .map(str::to_owned)
            .collect();
        for code in cells[1].split('`').skip(1).step_by(2) {
            let said = (http.clone(), grpc.clone());
            assert!(
                rows.insert(code.to_owned(), said).is_none(),
                "two rows for {code}"
            );
        }
    }
    rows.remove("ERR_PLUGGABLE_COMPONENT");
    rows
}

#[test]
fn docs_list_statuses_of_each_code() {
    let all = [
        any_call(),
        invocation(),
        state(),
        publishing(),
        secrets_and_configuration(),
        locks_and_jobs(),
        bindings_cryptography_and_conversation(),
        actors(),
        workflows(),
    ];
    let mut made: BTreeMap<String, Statuses> = BTreeMap::new();
    for (error, grpc) in all.into_iter().flatten() {
        let (http, codes) = made.entry(error.code.into_owned()).or_default();
        http.insert(error.http.as_u16());
        codes.extend(grpc.map(|code| format!("{code:?}")));
    }
    let said = rows(Page::read("reference/errors.md").text());
    let codes: BTreeSet<&String> = made.keys().chain(said.keys()).collect();
    let differ = codes
        .into_iter()
        .filter(|code| made.get(*code) != said.get(*code));
    let differ: Vec<String> = differ
        .map(|code| {
            format!(
                "{code}: made {:?}, docs/reference/errors.md {:?}",
                made.get(code),
                said.get(code)
            )
        })
        .collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}
