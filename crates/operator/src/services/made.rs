//! Services that are there: who edits or deletes one has it made again.

use outrigger_kube::annotations::APP_ID;
use outrigger_kube::{Kind, Meta, Watched};
use serde_json::{Value, json};

use super::workload::Owner;

/// Those that belong to a workload with sidecars have this label.
pub(super) const SELECTOR: &str = "labelSelector=dapr.io%2Fenabled%3Dtrue";

/// A service of an app.
#[derive(Debug, PartialEq)]
pub(super) struct Made {
    /// Kind and name of the workload that it belongs to.
    kind: Box<str>,
    owner: Box<str>,
    pub(super) app_id: Box<str>,
    /// What the operator writes of a service, as text: that takes a fraction of the memory of a tree.
    fields: Box<str>,
}

impl Made {
    /// Whether it belongs to a workload of this kind.
    pub(super) fn is_of<K: Owner>(&self) -> bool {
        *self.kind == *K::NAME
    }

    /// The workload of this kind that it belongs to.
    pub(super) fn owner<K: Owner>(&self, namespace: &str) -> Option<Meta> {
        self.is_of::<K>().then(|| Meta {
            namespace: namespace.to_owned(),
            name: self.owner.to_string(),
        })
    }

    /// What the operator writes of it, as it is.
    pub(super) fn fields(&self) -> Value {
        serde_json::from_str(&self.fields).unwrap_or_default()
    }
}

impl Watched for Made {
    const KIND: Kind = Kind::SERVICES;

    fn read(_: &Meta, object: Value) -> Result<Option<Self>, String> {
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        let mut owners = metadata["ownerReferences"].as_array().into_iter().flatten();
        let Some(owner) = owners.find(|owner| owner["controller"] == true) else {
            return Ok(None);
        };
        let text = |field: &str| owner[field].as_str().unwrap_or_default().into();
        let fields = json!({
            "metadata": {
                "labels": metadata["labels"],
                "annotations": metadata["annotations"],
                "ownerReferences": metadata["ownerReferences"],
            },
            "spec": {"selector": spec["selector"], "ports": spec["ports"]},
        });
        Ok(Some(Self {
            kind: text("kind"),
            owner: text("name"),
            app_id: metadata["annotations"][APP_ID]
                .as_str()
                .unwrap_or_default()
                .into(),
            fields: fields.to_string().into(),
        }))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.kind.len() + self.owner.len() + self.app_id.len() + self.fields.len()
    }
}
