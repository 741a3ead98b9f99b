//! Lock methods.

use outrigger_component::lock::Unlocked;
use outrigger_wire::runtime::v1::unlock_response::Status as Unlock;
use outrigger_wire::runtime::v1::{TryLockRequest, TryLockResponse, UnlockRequest, UnlockResponse};
use tonic::{Response, Status};

use super::DaprService;
use crate::grpc::groups::Group;

/// Method groups, as API lists name them.
pub(super) const GROUPS: &[Group] = &[
    Group::of("lock", "v1alpha1", &["TryLockAlpha1"]),
    Group::of("unlock", "v1alpha1", &["UnlockAlpha1"]),
];

impl DaprService {
    pub(super) async fn lock_try(
        &self,
        request: &TryLockRequest,
    ) -> Result<Response<TryLockResponse>, Status> {
        let TryLockRequest {
            store_name,
            resource_id,
            lock_owner,
            expiry_in_seconds,
        } = request;
        let taken = self
            .blocks
            .locks
            .try_lock(store_name, resource_id, lock_owner, *expiry_in_seconds);
        let success = taken.await.map_err(|error| self.fail(&error.into()))?;
        Ok(Response::new(TryLockResponse { success }))
    }

    pub(super) async fn lock_unlock(
        &self,
        request: &UnlockRequest,
    ) -> Result<Response<UnlockResponse>, Status> {
        let UnlockRequest {
            store_name,
            resource_id,
            lock_owner,
        } = request;
        let unlocked = self
            .blocks
            .locks
            .unlock(store_name, resource_id, lock_owner)
            .await;
        let status = match unlocked.map_err(|error| self.fail(&error.into()))? {
            Unlocked::Success => Unlock::Success,
            Unlocked::NoSuchLock => Unlock::LockDoesNotExist,
            Unlocked::OthersLock => Unlock::LockBelongsToOthers,
            Unlocked::InternalError => Unlock::InternalError,
        };
        Ok(Response::new(UnlockResponse {
            status: status.into(),
        }))
    }
}
