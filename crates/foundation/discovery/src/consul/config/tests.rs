//! Configuration of the Consul resolver.

use super::*;

fn registration() -> Registration {
    Registration {
        app_id: "orders".to_owned(),
        host_address: "10.0.0.1".to_owned(),
        internal_port: 50002,
        http_port: 3500,
        app_port: 8080,
        ..Registration::default()
    }
}

fn read(configuration: Value) -> Config {
    Config::read(&configuration, &registration(), &|_| None).unwrap()
}

#[test]
fn defaults() {
    let config = read(Value::Null);
    assert_eq!(
        (config.client.scheme.as_str(), config.client.address.as_str()),
        ("http", "127.0.0.1:8500")
    );
    assert!(config.registration.is_none() && !config.deregister && !config.use_cache);
    assert!(config.query.use_cache);
    assert_eq!(config.port_key, "DAPR_PORT");
}

#[test]
fn docs_list_all_settings() {
    let configuration = json!({
        "selfRegister": true, "client": {"httpAuth": {"username": "u"}}, "queryOptions": {}
    });
    let settings = Settings::new(&configuration).unwrap();
    Config::of(&settings, &registration(), &|_| None).unwrap();
    crate::settings::tests::check_docs("Consul", &settings);
}

#[test]
fn warns_of_unknown_settings() {
    let warnings = |configuration| crate::settings::tests::warnings(|| drop(read(configuration)));
    let told = warnings(json!({"selfRegister": true, "meta": {"zone": "a"}, "client": {"adress": "h:1"}}));
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].contains("client.adress is not used") && told[0].contains("client.address?"),
        "{told:?}"
    );
    // A complete registration overrides the separate settings.
    let told = warnings(json!({"advancedRegistration": {"name": "x"}, "selfRegister": true, "tags": ["a"]}));
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("the setting tags is not used"), "{told:?}");
}

#[test]
fn self_registration_matches_dapr() {
    let config = read(json!({"SelfRegister": true, "tags": ["a"], "meta": {"Region": "eu"}}));
    assert_eq!(
        config.registration.unwrap(),
        json!({
            "ID": "orders-10.0.0.1-3500", "Name": "orders", "Address": "10.0.0.1", "Port": 8080,
            "Tags": ["a"], "Meta": {"Region": "eu", "DAPR_PORT": "50002"},
            "Checks": [{
                "Name": "Dapr Health Status", "CheckID": "daprHealth:orders-10.0.0.1-3500",
                "Interval": "15s", "HTTP": "http://10.0.0.1:3500/v1.0/healthz?appid=orders"
            }]
        })
    );
}

#[test]
fn advanced_registration_overrides() {
    let config = read(json!({
        "advancedRegistration": {"name": "x", "port": 1}, "tags": ["ignored"], "daprPortMetaKey": "P"
    }));
    assert_eq!(
        config.registration.unwrap(),
        json!({"Name": "x", "Port": 1, "Meta": {"P": "50002"}})
    );
}

#[test]
fn maps_query_options_to_parameters() {
    let query = read(json!({"queryOptions": {
        "Datacenter": "dc1", "allowStale": true, "useCache": true, "maxAge": 5_000_000_000u64,
        "nodeMeta": {"zone": "a"}, "filter": "x == 1", "waitTime": 1_000_000_000
    }}))
    .query;
    assert_eq!(
        query.parameters,
        [
            ("dc", "dc1".to_owned()),
            ("filter", "x == 1".to_owned()),
            ("stale", "true".to_owned()),
            ("node-meta", "zone:a".to_owned())
        ]
    );
    assert_eq!(query.cache_control.as_deref(), Some("max-age=5"));
    assert_eq!(query.wait_time, Some(Duration::from_secs(1)));
}

#[test]
fn environment_provides_defaults() {
    let env = |name: &str| {
        let value = match name {
            "CONSUL_HTTP_ADDR" => "https://agent:8501",
            "CONSUL_HTTP_TOKEN" => "secret",
            "CONSUL_HTTP_AUTH" => "me:pass",
            _ => return None,
        };
        Some(value.to_owned())
    };
    let configuration = json!({"client": {"token": "own"}});
    let client = Config::read(&configuration, &registration(), &env)
        .unwrap()
        .client;
    assert_eq!(
        (client.scheme.as_str(), client.address.as_str()),
        ("https", "agent:8501")
    );
    assert_eq!(client.token.as_deref(), Some("own"));
    assert_eq!(client.basic_auth, Some(("me".to_owned(), "pass".to_owned())));
}

#[test]
fn self_registration_requires_properties() {
    let mut registration = registration();
    registration.app_port = 0;
    let read = |value: Value| Config::read(&value, &registration, &|_| None).unwrap_err();
    assert_eq!(
        read(json!({"selfRegister": true})),
        ConsulConfigError::PropertyMissing("APP_PORT")
    );
    let error = read(json!({"client": {"address": "unix:///run/consul.sock"}}));
    assert!(matches!(error, ConsulConfigError::Address(_)));
    assert!(matches!(
        read(json!({"client": {"waitTime": "5s"}})),
        ConsulConfigError::Settings(_)
    ));
}
