//! The lock API over both protocols: exclusive owners, expiry and errors.

use outrigger_wire::runtime::v1::unlock_response::Status as Unlock;
use outrigger_wire::runtime::v1::{TryLockRequest, TryLockResponse, UnlockRequest, UnlockResponse};
use prost::Message;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::Code;

use crate::common::grpc::{self, Outcome};
use crate::common::{Net, Node, eventually, post};

const DAPR: &str = "/dapr.proto.runtime.v1.Dapr";

fn resource(name: &str, folder: &TempDir, prefix: &str) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  type: lock.sqlite\n  \
         version: v1\n  metadata:\n  - name: connectionString\n    value: {}\n  - name: keyPrefix\n    \
         value: '{prefix}'\n",
        folder.path().join("locks.db").display()
    )
}

async fn with_locks() -> (Node, TempDir) {
    let (net, folder) = (Net::plain(), tempfile::tempdir().unwrap());
    let plan = net.sidecar("me").resource(&resource("locks", &folder, "appid"));
    let plan = plan.resource(&resource("shared", &folder, "none"));
    (plan.start().await, folder)
}

async fn http(node: &Node, path: &str, body: &Value) -> Value {
    let answer = node
        .ask(post(&format!("/v1.0-alpha1/{path}"), body.to_string()))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

async fn call(node: &Node, method: &str, message: &impl Message) -> Outcome {
    grpc::unary(node.ports.grpc, &format!("{DAPR}/{method}"), &[], message).await
}

fn lease(store: &str, resource: &str, owner: &str, seconds: i32) -> TryLockRequest {
    TryLockRequest {
        store_name: store.to_owned(),
        resource_id: resource.to_owned(),
        lock_owner: owner.to_owned(),
        expiry_in_seconds: seconds,
    }
}

async fn try_lock(node: &Node, store: &str, owner: &str) -> bool {
    let answer = call(node, "TryLockAlpha1", &lease(store, "r", owner, 60)).await;
    answer.message::<TryLockResponse>().success
}

async fn unlock(node: &Node, store: &str, owner: &str) -> Unlock {
    let request = UnlockRequest {
        store_name: store.to_owned(),
        resource_id: "r".to_owned(),
        lock_owner: owner.to_owned(),
    };
    let answer = call(node, "UnlockAlpha1", &request).await;
    answer.message::<UnlockResponse>().status()
}

#[tokio::test]
async fn lock_has_one_owner_over_both_apis() {
    let (node, folder) = with_locks().await;
    let ann = json!({"resourceId": "r", "lockOwner": "ann", "expiryInSeconds": 60});
    let bob = json!({"resource_id": "r", "lock_owner": "bob", "expiry_in_seconds": "60"});
    assert_eq!(http(&node, "lock/locks", &ann).await, json!({"success": true}));
    assert_eq!(http(&node, "lock/locks", &bob).await, json!({"success": false}));
    assert!(!try_lock(&node, "locks", "bob").await);
    assert_eq!(http(&node, "unlock/locks", &bob).await, json!({"status": 2}));
    assert_eq!(unlock(&node, "locks", "bob").await, Unlock::LockBelongsToOthers);
    assert_eq!(http(&node, "unlock/locks", &ann).await, json!({"status": 0}));
    assert_eq!(http(&node, "unlock/locks", &ann).await, json!({"status": 1}));
    assert_eq!(unlock(&node, "locks", "ann").await, Unlock::LockDoesNotExist);
    assert!(try_lock(&node, "locks", "bob").await);
    assert!(try_lock(&node, "shared", "ann").await, "keys of another prefix");
    let database = rusqlite::Connection::open(folder.path().join("locks.db")).unwrap();
    let mut keys = database.prepare("SELECT key FROM lock ORDER BY key").unwrap();
    let keys = keys.query_map([], |row| row.get(0)).unwrap();
    let keys = keys.collect::<Result<Vec<String>, _>>().unwrap();
    assert_eq!(keys, ["lock||me||r", "lock||r"]);
    assert_eq!(unlock(&node, "locks", "bob").await, Unlock::Success);
}

#[tokio::test]
async fn locks_expire() {
    let (node, _folder) = with_locks().await;
    let answer = call(&node, "TryLockAlpha1", &lease("locks", "r", "ann", 1)).await;
    assert!(answer.message::<TryLockResponse>().success);
    assert!(!try_lock(&node, "locks", "bob").await);
    eventually(async || try_lock(&node, "locks", "bob").await).await;
    assert_eq!(unlock(&node, "locks", "ann").await, Unlock::LockBelongsToOthers);
    assert_eq!(unlock(&node, "locks", "bob").await, Unlock::Success);
    assert_eq!(unlock(&node, "locks", "ann").await, Unlock::LockDoesNotExist);
}

#[tokio::test]
async fn invalid_calls_have_contract_codes() {
    let (node, _folder) = with_locks().await;
    let bare = Net::plain().sidecar("bare").start().await;
    let whole = json!({"resourceId": "r", "lockOwner": "o", "expiryInSeconds": 1});
    for (node, path, body, status, code, message) in [
        // The expiry is validated first, even without a store.
        (
            &bare,
            "lock/s",
            json!({}),
            400,
            "ERR_MALFORMED_REQUEST",
            "ExpiryInSeconds is not positive in lock store s",
        ),
        (
            &bare,
            "lock/s",
            whole.clone(),
            500,
            "ERR_LOCK_STORE_NOT_CONFIGURED",
            "lock store is not configured",
        ),
        (
            &node,
            "lock/locks",
            json!({"expiryInSeconds": 1}),
            400,
            "ERR_MALFORMED_REQUEST",
            "ResourceId is empty in lock store locks",
        ),
        (
            &node,
            "unlock/other",
            json!({"resourceId": "r"}),
            400,
            "ERR_MALFORMED_REQUEST",
            "LockOwner is empty in lock store other",
        ),
        (
            &node,
            "unlock/other",
            whole,
            400,
            "ERR_LOCK_STORE_NOT_FOUND",
            "lock store other not found",
        ),
        (
            &node,
            "lock/locks",
            json!({"resourceId": "a||b", "lockOwner": "o", "expiryInSeconds": 1}),
            500,
            "ERR_TRY_LOCK",
            "failed to try acquiring lock: input key/keyPrefix 'a||b' can't contain '||'",
        ),
        (
            &node,
            "unlock/locks",
            json!({"resourceId": "a||b", "lockOwner": "o"}),
            500,
            "ERR_UNLOCK",
            "failed to release lock: input key/keyPrefix 'a||b' can't contain '||'",
        ),
    ] {
        let answer = node
            .ask(post(&format!("/v1.0-alpha1/{path}"), body.to_string()))
            .await;
        assert_eq!(answer.error(status, code), message, "{path} {body}");
    }
    let answer = node.ask(post("/v1.0-alpha1/lock/locks", "{]")).await;
    let message = answer.error(400, "ERR_MALFORMED_REQUEST");
    assert!(
        message.starts_with("failed deserializing HTTP body: "),
        "{message}"
    );

    for (node, request, code) in [
        (&node, lease("locks", "r", "o", 0), Code::InvalidArgument),
        (&node, lease("locks", "", "o", 1), Code::InvalidArgument),
        (&node, lease("other", "r", "o", 1), Code::InvalidArgument),
        (&bare, lease("locks", "r", "o", 1), Code::FailedPrecondition),
        (&node, lease("locks", "a||b", "o", 1), Code::Internal),
    ] {
        let outcome = call(node, "TryLockAlpha1", &request).await;
        assert_eq!(outcome.status.code(), code, "{request:?}");
        assert!(outcome.details().is_empty(), "{:?}", outcome.status);
    }
}

#[tokio::test]
async fn refuses_key_prefix_with_separator() {
    let folder = tempfile::tempdir().unwrap();
    let net = Net::plain();
    let plan = net.sidecar("me").resource(&resource("locks", &folder, "a||b"));
    let error = plan.try_launch().await.err().unwrap().to_string();
    assert!(error.starts_with("component locks (lock.sqlite/v1)"), "{error}");
}
