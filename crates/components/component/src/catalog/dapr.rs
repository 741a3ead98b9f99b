//! Component types that exist in Dapr but in no build of Outrigger.

/// By category, without the category prefix, sorted.
const TYPES: &[(&str, &[&str])] = &[
    (
        "bindings",
        &[
            "alicloud.dingtalk.webhook",
            "alicloud.dubbo",
            "alicloud.oss",
            "alicloud.sls",
            "alicloud.tablestore",
            "apns",
            "aws.dynamodb",
            "aws.kinesis",
            "aws.s3",
            "aws.ses",
            "aws.sns",
            "aws.sqs",
            "azure.blobstorage",
            "azure.cosmosdb",
            "azure.cosmosdb.gremlinapi",
            "azure.eventgrid",
            "azure.eventhubs",
            "azure.openai",
            "azure.servicebus.queues",
            "azure.servicebusqueues",
            "azure.signalr",
            "azure.storagequeues",
            "cloudflare.queues",
            "commercetools",
            "dingtalk.webhook",
            "dubbo",
            "gcp.bucket",
            "gcp.pubsub",
            "graphql",
            "huawei.obs",
            "influx",
            "kubemq",
            "kubernetes",
            "mysql",
            "postmark",
            "rabbitmq",
            "rethinkdb.statechange",
            "rocketmq",
            "sftp",
            "smtp",
            "twilio.sendgrid",
            "twilio.sms",
            "wasm",
            "zeebe.command",
            "zeebe.jobworker",
        ],
    ),
    ("configuration", &["azure.appconfig"]),
    ("conversation", &["aws.bedrock"]),
    ("crypto", &["azure.keyvault", "dapr.kubernetes.secrets"]),
    (
        "middleware.http",
        &["oauth2", "oauth2clientcredentials", "opa", "sentinel", "wasm"],
    ),
    (
        "pubsub",
        &[
            "aws.snssqs",
            "azure.eventhubs",
            "azure.servicebus",
            "azure.servicebus.queues",
            "azure.servicebus.topics",
            "azure.servicebusqueues",
            "gcp.pubsub",
            "kubemq",
            "rocketmq",
            "snssqs",
            "solace.amqp",
        ],
    ),
    (
        "secretstores",
        &[
            "alicloud.parameterstore",
            "aws.parameterstore",
            "aws.secretmanager",
            "azure.keyvault",
            "gcp.secretmanager",
            "hashicorp.vault",
            "huaweicloud.csms",
            "tencentcloud.ssm",
        ],
    ),
    (
        "state",
        &[
            "aerospike",
            "alicloud.tablestore",
            "aws.dynamodb",
            "azure.blobstorage",
            "azure.cosmosdb",
            "azure.tablestorage",
            "cassandra",
            "cloudflare.workerskv",
            "cockroachdb",
            "coherence",
            "consul",
            "couchbase",
            "gcp.firestore",
            "hashicorp.consul",
            "hazelcast",
            "jetstream",
            "memcached",
            "mongodb",
            "mysql",
            "oci.objectstorage",
            "oracledatabase",
            "ravendb",
            "rethinkdb",
            "sqlserver",
            "yugabyte",
            "yugabytedb",
            "zookeeper",
        ],
    ),
];

/// Categories that pluggable components support.
const PLUGGABLE: &[&str] = &["bindings", "pubsub", "secretstores", "state"];

/// For a type that only Dapr has: the start of the error's hint.
pub fn only_of_dapr(kind: &str) -> Option<String> {
    let kind = kind.to_lowercase();
    let (category, name) = TYPES.iter().find_map(|(category, names)| {
        let name = kind.strip_prefix(category)?.strip_prefix('.')?;
        names.binary_search(&name).is_ok().then_some((category, name))
    })?;
    let remedy = match PLUGGABLE.contains(category) {
        true => format!(
            ": provide it as a pluggable component with the socket {name}.sock \
             (docs/reference/components/pluggable.md)"
        ),
        false => String::new(),
    };
    Some(format!(
        "{kind} is available in Dapr but not in this build{remedy}. "
    ))
}

/// All such types, with category.
pub fn all_only_of_dapr() -> impl Iterator<Item = String> {
    let of = |(category, names): &(&'static str, &'static [&'static str])| {
        let category = *category;
        names.iter().map(move |name| format!("{category}.{name}"))
    };
    TYPES.iter().flat_map(of)
}
