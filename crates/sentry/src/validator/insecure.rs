//! Believing the caller: standalone mode without token validators.

use outrigger_identity::SpiffeId;
use outrigger_wire::sentry::v1::SignCertificateRequest;

pub(super) fn validate(request: &SignCertificateRequest) -> Result<SpiffeId, String> {
    super::check_common(request)
}
