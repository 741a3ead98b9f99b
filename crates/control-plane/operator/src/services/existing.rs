//! Existing services. An edited or deleted one is reconciled again.

use outrigger_kube::annotations::APP_ID;
use outrigger_kube::{Kind, Meta, Watched};
use serde_json::{Value, json};

use super::workload::Owner;

/// Label of services that belong to a workload with sidecars.
pub(super) const SELECTOR: &str = "labelSelector=dapr.io%2Fenabled%3Dtrue";

/// The workload that owns a service: its kind and name.
#[derive(Debug, PartialEq)]
pub(super) struct Controller {
    kind: Box<str>,
    name: Box<str>,
}

impl Controller {
    /// The controller of an object, if it has one.
    pub(super) fn of(object: &Value) -> Option<Self> {
        let mut owners = object["metadata"]["ownerReferences"]
            .as_array()
            .into_iter()
            .flatten();
        let owner = owners.find(|owner| owner["controller"] == true)?;
        let text = |field: &str| owner[field].as_str().unwrap_or_default().into();
        Some(Self {
            kind: text("kind"),
            name: text("name"),
        })
    }

    fn is_a<K: Owner>(&self) -> bool {
        *self.kind == *K::NAME
    }

    /// Namespace and name of the controller, if it is of this kind.
    pub(super) fn meta<K: Owner>(&self, namespace: &str) -> Option<Meta> {
        self.is_a::<K>().then(|| Meta {
            namespace: namespace.to_owned(),
            name: self.name.to_string(),
        })
    }
}

/// The service of an app.
#[derive(Debug, PartialEq)]
pub(super) struct ExistingService {
    pub(super) controller: Controller,
    pub(super) app_id: Box<str>,
    /// The fields that the operator sets, as text, which takes a fraction of a tree's memory.
    fields: Box<str>,
}

impl ExistingService {
    /// Whether its owner is a workload of this kind.
    pub(super) fn is_of<K: Owner>(&self) -> bool {
        self.controller.is_a::<K>()
    }

    /// The owning workload, if it is of this kind.
    pub(super) fn owner<K: Owner>(&self, namespace: &str) -> Option<Meta> {
        self.controller.meta::<K>(namespace)
    }

    /// The fields that the operator sets.
    pub(super) fn fields(&self) -> Value {
        serde_json::from_str(&self.fields).unwrap_or_default()
    }
}

impl Watched for ExistingService {
    const KIND: Kind = Kind::SERVICES;

    fn read(_: &Meta, object: Value) -> Result<Option<Self>, String> {
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        let Some(controller) = Controller::of(&object) else {
            return Ok(None);
        };
        let fields = json!({
            "metadata": {
                "labels": metadata["labels"],
                "annotations": metadata["annotations"],
                "ownerReferences": metadata["ownerReferences"],
            },
            "spec": {"selector": spec["selector"], "ports": spec["ports"]},
        });
        Ok(Some(Self {
            controller,
            app_id: metadata["annotations"][APP_ID]
                .as_str()
                .unwrap_or_default()
                .into(),
            fields: fields.to_string().into(),
        }))
    }

    fn size(&self) -> usize {
        let Controller { kind, name } = &self.controller;
        size_of_val(self) + kind.len() + name.len() + self.app_id.len() + self.fields.len()
    }
}
