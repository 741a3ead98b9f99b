//! Compares the chart's CRD for Configurations with the parsed fields: an API server drops fields that the
//! CRD lacks.

use std::cell::RefCell;
use std::iter::once;

use serde::de::value::{Error, MapDeserializer, SeqDeserializer};
use serde::de::{Deserialize, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

use super::super::raw::Raw;
use crate::yaml::{Kind, Node, parse};

/// Dapr's CRD has no handler version either; all existing handlers have one.
const LEFT_OUT: [&str; 2] = [
    "spec.httpPipeline.handlers.version",
    "spec.appHttpPipeline.handlers.version",
];
const DEFINITION: &str = include_str!("../../../../../../charts/outrigger/crds/configuration.yaml");

/// Collects the fields parsed at a path, through lists.
#[derive(Clone, Copy)]
struct Fields<'a> {
    path: &'a [&'static str],
    found: &'a RefCell<Vec<&'static str>>,
}

impl<'de> Deserializer<'de> for Fields<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("a value"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let Some((first, path)) = self.path.split_first() else {
            self.found.borrow_mut().extend(fields);
            return Err(Error::custom("found"));
        };
        visitor.visit_map(MapDeserializer::new(once((*first, Self { path, ..self }))))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(SeqDeserializer::new(once(self)))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit unit_struct tuple tuple_struct
        map enum identifier ignored_any
    }
}

impl IntoDeserializer<'_, Error> for Fields<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

fn fields(path: &[&'static str]) -> Vec<&'static str> {
    let found = RefCell::default();
    // Deserialization fails once the fields are found, or at a value.
    let _ = Raw::deserialize(Fields { path, found: &found });
    found.into_inner()
}

fn exactly<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    let Kind::Map(entries) = &node.kind else {
        return None;
    };
    let entry = entries.iter().find(|entry| entry.key.text == key)?;
    Some(&entry.value)
}

/// Adds fields parsed below a path that the schema lacks.
fn missing(schema: &Node, path: &mut Vec<&'static str>, all: &mut Vec<String>) {
    let items = exactly(schema, "items").unwrap_or(schema);
    for field in fields(path) {
        path.push(field);
        match exactly(items, "properties").and_then(|properties| exactly(properties, field)) {
            Some(schema) => missing(schema, path, all),
            None if exactly(items, "x-kubernetes-preserve-unknown-fields").is_some() => {}
            None => all.push(path.join(".")),
        }
        path.pop();
    }
}

#[test]
fn crd_has_all_parsed_fields() {
    assert_eq!(
        fields(&["spec", "accessControl", "policies", "operations"]),
        ["name", "httpVerb", "action"]
    );
    let document = parse(DEFINITION, 1).unwrap().unwrap();
    let versions = document
        .get("spec")
        .and_then(|spec| spec.get("versions"))
        .unwrap();
    let Kind::Seq(versions) = &versions.kind else {
        panic!("{versions:?}");
    };
    let schema = versions[0].get("schema").unwrap().get("openAPIV3Schema").unwrap();
    let spec = schema.get("properties").unwrap().get("spec").unwrap();
    let mut all = Vec::new();
    missing(spec, &mut vec!["spec"], &mut all);
    all.retain(|field| !LEFT_OUT.contains(&field.as_str()));
    assert!(
        all.is_empty(),
        "not in charts/outrigger/crds/configuration.yaml: {all:?}"
    );
}
