//! Compares our proto files with the descriptors in Dapr's published packages.
//!
//! `conformance/descriptors/` has the facts (names, numbers, types) from those packages, and the list of
//! intended differences.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use outrigger_wire::FILE_DESCRIPTOR_SET;
use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet, ServiceDescriptorProto,
};
use serde_json::Value;

/// Declarations by kind and full name, with their members (field number, enum name, method).
type Declarations = BTreeMap<String, BTreeMap<String, String>>;

fn conformance(file: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../../conformance/descriptors")
        .join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

fn theirs() -> Declarations {
    let facts: Value = serde_json::from_str(&conformance("dapr.json")).unwrap();
    let mut all = Declarations::new();
    for kind in ["services", "messages", "enums"] {
        for (name, members) in facts[kind].as_object().unwrap() {
            let members = members.as_object().unwrap().iter();
            let members =
                members.map(|(k, v)| (k.clone(), v.as_str().map_or_else(|| v.to_string(), str::to_owned)));
            all.insert(format!("{kind} {name}"), members.collect());
        }
    }
    all
}

fn ours() -> Declarations {
    let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
    let mut all = Declarations::new();
    for file in set.file.iter().filter(|f| f.package() != "google.protobuf") {
        let prefix = if file.package().is_empty() {
            String::new()
        } else {
            format!("{}.", file.package())
        };
        for service in &file.service {
            all.insert(format!("services {prefix}{}", service.name()), methods(service));
        }
        for message in &file.message_type {
            add_message(&mut all, &prefix, message);
        }
        for declared in &file.enum_type {
            add_enum(&mut all, &prefix, declared);
        }
    }
    all
}

fn methods(service: &ServiceDescriptorProto) -> BTreeMap<String, String> {
    let side = |streaming, name: &str| format!("{}{}", if streaming { "stream " } else { "" }, &name[1..]);
    let method = |m: &prost_types::MethodDescriptorProto| {
        let request = side(m.client_streaming(), m.input_type());
        (
            m.name().to_owned(),
            format!("{request} -> {}", side(m.server_streaming(), m.output_type())),
        )
    };
    service.method.iter().map(method).collect()
}

fn add_enum(all: &mut Declarations, prefix: &str, declared: &EnumDescriptorProto) {
    let values = declared
        .value
        .iter()
        .map(|v| (v.name().to_owned(), v.number().to_string()));
    all.insert(format!("enums {prefix}{}", declared.name()), values.collect());
}

fn add_message(all: &mut Declarations, prefix: &str, message: &DescriptorProto) {
    let name = format!("{prefix}{}", message.name());
    let fields = message
        .field
        .iter()
        .map(|f| (f.number().to_string(), describe(f, message, &name)));
    all.insert(format!("messages {name}"), fields.collect());
    for declared in &message.enum_type {
        add_enum(all, &format!("{name}."), declared);
    }
    for nested in message.nested_type.iter().filter(|n| !is_map_entry(n)) {
        add_message(all, &format!("{name}."), nested);
    }
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(|o| o.map_entry())
}

fn type_of(field: &FieldDescriptorProto) -> String {
    match field.r#type() {
        Type::Message | Type::Enum => field.type_name()[1..].to_owned(),
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    }
}

/// One line in the format of `conformance/descriptors/dump.py`.
fn describe(field: &FieldDescriptorProto, message: &DescriptorProto, message_name: &str) -> String {
    let entry = message
        .nested_type
        .iter()
        .find(|n| is_map_entry(n) && field.type_name() == format!(".{message_name}.{}", n.name()));
    let kind = match (entry, field.oneof_index) {
        (Some(entry), _) => format!("map<{}, {}>", type_of(&entry.field[0]), type_of(&entry.field[1])),
        _ if field.label() == Label::Repeated => format!("repeated {}", type_of(field)),
        _ if field.proto3_optional() => format!("optional {}", type_of(field)),
        (_, Some(index)) => format!(
            "oneof {} {}",
            message.oneof_decl[index as usize].name(),
            type_of(field)
        ),
        _ => type_of(field),
    };
    let json = match field.json_name() {
        usual if usual == camel(field.name()) => String::new(),
        json => format!(" json={json}"),
    };
    let deprecated = field.options.as_ref().is_some_and(|o| o.deprecated());
    format!(
        "{kind} {}{json}{}",
        field.name(),
        if deprecated { " deprecated" } else { "" }
    )
}

fn camel(name: &str) -> String {
    let mut parts = name.split('_');
    let head = parts.next().unwrap_or_default().to_owned();
    parts.fold(head, |camel, part| {
        let mut letters = part.chars();
        let first = letters.next().map(|c| c.to_ascii_uppercase());
        camel + &first.into_iter().chain(letters).collect::<String>()
    })
}

/// Differences: `-` for theirs only, `+` for ours only. A whole declaration takes one line.
fn differences(theirs: &Declarations, ours: &Declarations) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for (sign, these, others) in [('-', theirs, ours), ('+', ours, theirs)] {
        for (name, members) in these {
            let Some(known) = others.get(name) else {
                lines.insert(format!("{sign} {name}"));
                continue;
            };
            let differing = members
                .iter()
                .filter(|(member, what)| known.get(*member) != Some(what));
            lines.extend(differing.map(|(member, what)| format!("{sign} {name} {member}: {what}")));
        }
    }
    lines
}

fn intended() -> BTreeSet<String> {
    let lines = conformance("differences.txt");
    lines
        .lines()
        .filter(|l| l.starts_with(['-', '+']))
        .map(str::to_owned)
        .collect()
}

#[test]
fn contract_matches_published_packages() {
    let (theirs, ours) = (theirs(), ours());
    assert!(theirs.len() > 400, "the facts are complete");
    let (found, intended) = (differences(&theirs, &ours), intended());
    let unexpected: Vec<_> = found.difference(&intended).collect();
    let gone: Vec<_> = intended.difference(&found).collect();
    assert!(unexpected.is_empty(), "not in differences.txt:\n{unexpected:#?}");
    assert!(
        gone.is_empty(),
        "in differences.txt, but no longer so:\n{gone:#?}"
    );
}
