use async_trait::async_trait;
use outrigger_component_conformance::Source;
use outrigger_components_testing::call;

use super::*;

/// Publishes the events of the input binding.
struct Publisher(Arc<dyn PubSub>);

#[async_trait]
impl Source for Publisher {
    async fn cause(&self, text: &str) {
        let message = message("binding", text, &[("partitionKey", text)]);
        self.0.publish(&message).await.unwrap();
    }
}

pub(super) async fn pass_conformance(address: &str) {
    let properties = [
        ("brokers", address),
        ("authType", "none"),
        ("consumerGroup", "binding"),
        ("topics", "binding,other"),
        ("publishTopic", "written"),
        ("consumeRetryEnabled", "true"),
        ("backOffDuration", "100ms"),
        ("heartbeatInterval", "200ms"),
        ("sessionTimeout", "3s"),
    ];
    let components = || Components::of(outrigger_components_kafka::add);
    let publisher = Publisher(open(address, "publisher", &[]).await.unwrap());
    let input = components()
        .input("bindings.kafka", "v1", &properties)
        .await
        .unwrap();
    conformance::input_binding(&input, &publisher).await;
    let output = components()
        .output("bindings.kafka", "v1", &properties)
        .await
        .unwrap();
    let mut subscription = subscribe(&publisher.0, "written", 8).await;
    let written = call("create", &[("partitionKey", "k"), ("colour", "red")], "payload");
    assert!(output.invoke(&written).await.unwrap().is_none());
    let delivery = next(&mut subscription).await;
    assert_eq!(text(&delivery), "payload");
    let metadata = &delivery.message.metadata;
    assert_eq!(
        (metadata["__key"].as_str(), metadata["colour"].as_str()),
        ("k", "red")
    );
    delivery.receipt.acknowledge();
    subscription.ended().await.unwrap();
    conformance::output_binding(&output, &written).await;
    let nowhere = [("brokers", address), ("authType", "none")];
    let output = components()
        .output("bindings.kafka", "v1", &nowhere)
        .await
        .unwrap();
    let error = output.invoke(&written).await.unwrap_err();
    assert!(error.to_string().contains("publishTopic"), "{error}");
    output.close().await;
    publisher.0.close().await;
}
