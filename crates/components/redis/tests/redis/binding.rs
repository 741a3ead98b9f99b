use outrigger_component::Kind;
use outrigger_component_conformance as conformance;

use outrigger_components_testing::{call, server::Redis, text};

use super::components;

const REDIS: &str = "bindings.redis";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binding_passes_conformance() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let properties = [("redisHost", redis.host())];
    let properties = properties.each_ref().map(|(name, value)| (*name, value.as_str()));
    let open = || async { components().output(REDIS, "v1", &properties).await.unwrap() };
    let sample = call("create", &[("key", "sample")], "value");
    conformance::output_binding(&open().await, &sample).await;
    conformance::output_binding_outlives(&open().await, &sample, &mut redis).await;
}

#[tokio::test]
async fn keys_are_plain_strings() {
    let Some(redis) = Redis::start(&[]) else { return };
    let binding = components()
        .output(REDIS, "v1", &[("redisHost", &redis.host())])
        .await
        .unwrap();
    let key = ("key", "k");
    assert!(
        binding
            .invoke(&call("create", &[key], "v"))
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(redis.cli(&["GET", "k"]), "v");
    assert_eq!(redis.cli(&["TTL", "k"]), "-1");
    assert_eq!(text(binding.invoke(&call("get", &[key], "")).await.unwrap()), "v");
    let once = [key, ("delete", "true")];
    assert_eq!(text(binding.invoke(&call("get", &once, "")).await.unwrap()), "v");
    assert_eq!(text(binding.invoke(&call("get", &[key], "")).await.unwrap()), "");
    for _ in 0..2 {
        let short = [key, ("ttlInSeconds", "100")];
        assert!(
            binding
                .invoke(&call("increment", &short, ""))
                .await
                .unwrap()
                .is_none()
        );
    }
    assert_eq!(redis.cli(&["GET", "k"]), "2");
    assert_ne!(redis.cli(&["TTL", "k"]), "-1");
    binding
        .invoke(&call("create", &[key, ("ttl", "1m")], "x"))
        .await
        .unwrap();
    assert_ne!(redis.cli(&["TTL", "k"]), "-1");
    binding.invoke(&call("delete", &[key], "")).await.unwrap();
    assert_eq!(redis.cli(&["EXISTS", "k"]), "0");
    for wrong in [
        call("get", &[], ""),
        call("create", &[key, ("ttlInSeconds", "soon")], ""),
    ] {
        let error = binding.invoke(&wrong).await.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidRequest, "{error}");
    }
}
