//! The gRPC methods behind each API group.

/// Methods that start with this are Dapr's own; the rest is proxied.
pub(super) const RUNTIME_PREFIX: &str = "/dapr.proto.runtime.";
/// The service every listed method belongs to.
pub(super) const DAPR_SERVICE: &str = "/dapr.proto.runtime.v1.Dapr/";

/// The methods of a group; none for an unknown one.
pub(super) fn of(group: &str, version: &str) -> &'static [&'static str] {
    match (group, version) {
        ("invoke", "v1") => &["InvokeService"],
        ("state", "v1") => &[
            "GetState",
            "GetBulkState",
            "SaveState",
            "DeleteState",
            "DeleteBulkState",
            "ExecuteStateTransaction",
        ],
        ("state", "v1alpha1") => &["QueryStateAlpha1"],
        ("publish", "v1") => &["PublishEvent", "BulkPublishEvent"],
        ("publish", "v1alpha1") => &["BulkPublishEventAlpha1"],
        ("bindings", "v1") => &["InvokeBinding"],
        ("secrets", "v1") => &["GetSecret", "GetBulkSecret"],
        ("actors", "v1") => &[
            "RegisterActorTimer",
            "UnregisterActorTimer",
            "RegisterActorReminder",
            "GetActorReminder",
            "UnregisterActorReminder",
            "UnregisterActorRemindersByType",
            "ListActorReminders",
            "GetActorState",
            "ExecuteActorStateTransaction",
            "InvokeActor",
        ],
        ("metadata", "v1") => &["GetMetadata", "SetMetadata"],
        ("configuration", "v1alpha1") => &[
            "GetConfigurationAlpha1",
            "SubscribeConfigurationAlpha1",
            "UnsubscribeConfigurationAlpha1",
        ],
        ("configuration", "v1") => &[
            "GetConfiguration",
            "SubscribeConfiguration",
            "UnsubscribeConfiguration",
        ],
        ("lock", "v1alpha1") => &["TryLockAlpha1"],
        ("unlock", "v1alpha1") => &["UnlockAlpha1"],
        ("subtlecrypto", "v1alpha1") => &[
            "SubtleGetKeyAlpha1",
            "SubtleEncryptAlpha1",
            "SubtleDecryptAlpha1",
            "SubtleWrapKeyAlpha1",
            "SubtleUnwrapKeyAlpha1",
            "SubtleSignAlpha1",
            "SubtleVerifyAlpha1",
        ],
        ("crypto", "v1alpha1") => &["EncryptAlpha1", "DecryptAlpha1"],
        ("workflows", "v1alpha1") => &[
            "StartWorkflowAlpha1",
            "GetWorkflowAlpha1",
            "TerminateWorkflowAlpha1",
            "RaiseEventWorkflowAlpha1",
            "PurgeWorkflowAlpha1",
            "PauseWorkflowAlpha1",
            "ResumeWorkflowAlpha1",
        ],
        ("workflows", "v1beta1") => &[
            "StartWorkflowBeta1",
            "GetWorkflowBeta1",
            "TerminateWorkflowBeta1",
            "RaiseEventWorkflowBeta1",
            "PurgeWorkflowBeta1",
            "PauseWorkflowBeta1",
            "ResumeWorkflowBeta1",
        ],
        ("jobs", "v1alpha1") => &[
            "ScheduleJobAlpha1",
            "DeleteJobAlpha1",
            "GetJobAlpha1",
            "DeleteJobsByPrefixAlpha1",
            "ListJobsAlpha1",
        ],
        ("shutdown", "v1") => &["Shutdown"],
        ("subscribe", "v1alpha1") => &["SubscribeTopicEventsAlpha1"],
        ("conversation", "v1alpha1") => &["ConverseAlpha1"],
        ("conversation", "v1alpha2") => &["ConverseAlpha2"],
        _ => &[],
    }
}
