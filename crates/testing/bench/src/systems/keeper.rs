//! One sidecar with a state store, and no app.

use std::path::Path;

use super::attempt;
use super::launch::{Launch, Prepared, Sidecar, check};
use crate::Failure;
use crate::load::{Call, STORE};
use crate::plan::{Api, StateCall, System};
use crate::procfs::Role;

pub(crate) struct StateSystem {
    launch: Launch,
    /// Prefix of its keys, so that the systems do not share any.
    app_id: &'static str,
    api: Api,
    sidecar: Sidecar,
}

impl StateSystem {
    /// Starts a sidecar of a build; `component` is the type of the store and its metadata.
    pub(crate) async fn start(
        binaries: &Path,
        system: System,
        call: StateCall,
        component: &Component,
        dir: &Path,
    ) -> Result<Self, Failure> {
        check(binaries, &["daprd"])?;
        let app_id = system.name();
        let mut launch = Launch::new(binaries, dir, None, "", Some(&component.yaml(system)))?;
        let mut sidecar = launch.prepare(app_id, None).start()?;
        let health = Call::get(sidecar.http, "/v1.0/healthz")?;
        sidecar.process.ready(|| attempt(&health)).await?;
        Ok(Self {
            launch,
            app_id,
            api: call.api,
            sidecar,
        })
    }

    /// Prepares one more sidecar.
    pub(super) fn prepare(&mut self) -> Prepared {
        self.launch.prepare(self.app_id, None)
    }

    pub(super) fn sidecar(&mut self) -> &mut Sidecar {
        &mut self.sidecar
    }

    pub(super) fn port(&self) -> u16 {
        match self.api {
            Api::Http => self.sidecar.http,
            Api::Grpc => self.sidecar.grpc,
        }
    }

    pub(crate) fn processes(&self) -> Vec<(Role, u32)> {
        vec![(Role::Caller, self.sidecar.process.pid())]
    }

    pub(crate) async fn stop(self) -> Result<(), Failure> {
        self.sidecar.process.stop().await
    }
}

/// A state store component.
pub(super) struct Component {
    pub(super) kind: &'static str,
    pub(super) version: &'static str,
    pub(super) metadata: Vec<(&'static str, String)>,
    /// Metadata that gives each system its own tables.
    pub(super) prefix: Option<&'static str>,
}

impl Component {
    fn yaml(&self, system: System) -> String {
        let mut metadata = self.metadata.clone();
        if let Some(prefix) = self.prefix {
            metadata.push((prefix, format!("{}_", system.name())));
        }
        let entries: String = metadata
            .iter()
            .map(|(name, value)| format!("    - name: {name}\n      value: \"{value}\"\n"))
            .collect();
        let Self { kind, version, .. } = self;
        let metadata = if entries.is_empty() { " []\n" } else { "\n" };
        format!(
            "apiVersion: dapr.io/v1alpha1
kind: Component
metadata:
  name: {STORE}
spec:
  type: {kind}
  version: {version}
  metadata:{metadata}{entries}"
        )
    }
}
