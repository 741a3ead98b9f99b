//! The bindings, on real servers.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../support/mod.rs"]
mod support;

mod cron;
mod http;
mod local_storage;
mod mqtt;
mod postgres;
mod redis;
mod web;

use outrigger_component::{
    Pairs,
    bindings::{Invoke, Invoked},
};

fn call(operation: &str, metadata: &[(&str, &str)], data: &str) -> Invoke {
    let metadata: Pairs = metadata
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Invoke {
        operation: operation.to_owned(),
        data: data.to_owned().into(),
        metadata,
    }
}

fn text(answer: Option<Invoked>) -> String {
    String::from_utf8(answer.unwrap().data.to_vec()).unwrap()
}
