//! Tasks on the control threads that run until the process ends: exports and certificates.

use outrigger_identity::Renewal;
use outrigger_runtime::life::{Lifecycle, Stage, Tasks};
use outrigger_telemetry::export::Pipeline;
use tokio::runtime::Handle;

use super::expiry::CertificateWatch;

pub(super) struct Background {
    pub(super) pipeline: Pipeline,
    pub(super) renewal: Option<Renewal>,
    pub(super) certificate: Option<CertificateWatch>,
}

impl Background {
    pub(super) fn start(self, control: &Handle, lifecycle: &mut Lifecycle) {
        let Tasks { tasks, stop } = &lifecycle.tasks(Stage::Background, "exports and certificates");
        tasks.spawn_on(self.pipeline.run(stop.clone()), control);
        if let Some(renewal) = self.renewal {
            tasks.spawn_on(renewal.run(stop.clone()), control);
        }
        if let Some(certificate) = self.certificate {
            tasks.spawn_on(certificate.run(stop.clone()), control);
        }
    }
}
