//! Invalid values.

use super::*;

#[test]
fn reports_validator_errors_with_lines() {
    let text = spec(
        r#"
  tracing:
    zipkin: {endpointAddress: xz}
    otel:
      endpointAddress: xo
      protocol: GRPC
      headers:
      - a=b
      - xsecret
  metric: {latencyDistributionBuckets: [1, 2]}
  metrics:
    latencyDistributionBuckets: [5, -1, 5, 4]
    http: {pathMatching: [/a, x/b]}
    rules:
    - labels:
      - regex:
          one: .*
          two: x(
  nameResolution: {component: mdsn}
"#,
    );
    let mistakes = Files::with(&[&text]).load().unwrap().mistakes;
    let told: Vec<_> = mistakes
        .iter()
        .map(|p| format!("{}: {} ({})", p.line, p.what, p.remedy))
        .collect();
    let url = "write a URL, as http://HOST:9411/api/v2/spans";
    let order = "write milliseconds, in ascending order";
    let metrics = "spec.metrics";
    assert_eq!(
        told,
        [
            format!("7: spec.tracing.zipkin.endpointAddress \"xz\" cannot be used: it is an x ({url})"),
            "9: spec.tracing.otel.endpointAddress \"xo\" cannot be used: it is an x (write HOST:PORT)".to_owned(),
            "10: spec.tracing.otel.protocol \"GRPC\" is not a protocol of OTLP: no spans can be sent with it \
             (did you mean grpc? write http or grpc)"
                .to_owned(),
            "13: spec.tracing.otel.headers[1]: it is an x (write name=value)".to_owned(),
            format!("16: {metrics}.latencyDistributionBuckets[1] -1 is less than 0: it is left out ({order})"),
            format!(
                "16: {metrics}.latencyDistributionBuckets[2] 5 comes after 5: there can be no metrics with it ({order})"
            ),
            format!(
                "16: {metrics}.latencyDistributionBuckets[3] 4 comes after 5: there can be no metrics with it ({order})"
            ),
            format!(
                "17: {metrics}.http.pathMatching[1] \"x/b\" cannot be used: it is an x (write a path, as /orders/{{id}})"
            ),
            format!(
                "22: {metrics}.rules[0].labels[0].regex.two \"x(\" cannot be used: it is an x \
                 (correct the regular expression)"
            ),
            "23: spec.nameResolution.component \"mdsn\" is not a name resolver: other apps cannot be called \
             (did you mean mdns? write mdns or sqlite)"
                .to_owned(),
        ]
    );
}

#[test]
fn warns_of_unknown_features() {
    let text =
        spec("  features:\n  - {name: HotReload, enabled: true}\n  - {name: HotReloading, enabled: true}\n");
    let loaded = Files::with(&[&text]).load().unwrap();
    let [warning] = &loaded.warnings[..] else {
        panic!("{:?}", loaded.warnings);
    };
    assert_eq!(warning.line, 7);
    assert_eq!(
        warning.what,
        "spec.features[1].name \"HotReloading\" is not a feature: it has no effect"
    );
    assert!(
        warning.remedy.starts_with("did you mean HotReload? write "),
        "{warning}"
    );
    let json = br#"{"spec":{"features":[{"name":"hotreload","enabled":true}]}}"#;
    let warnings = Configuration::mistakes_in(json, "c", &known()).warnings;
    assert!(
        warnings[0].remedy.starts_with("did you mean HotReload? "),
        "{warnings:?}"
    );
}

#[test]
fn reports_invalid_values_with_remedy() {
    let text = spec(
        "  tracing: {samplingRate: two}\n  accessControl:\n    defaultAction: alow\n    policies:\n    \
         - appId: a\n      trustDomain: t\n      namespace: n\n      defaultAction: Deny\n      operations:\n      \
         - {name: /x, httpVerb: [PSOT, GET, get], action: dney}\n      - {name: /y}\n    - {appId: b}\n  api:\n    \
         allowed:\n    - {name: stat, version: v1, protocol: HTTP}\n    denied:\n    \
         - {name: state/x, version: v1.0, protocol: htp}\n    - {name: unlock, version: v1alpha1}\n",
    );
    let loaded = Files::with(&[&text]).load().unwrap();
    assert_eq!(loaded.configuration.access_control.default_action, "alow");
    let shown: Vec<_> = loaded
        .mistakes
        .iter()
        .map(|p| format!("{}: {} ({})", p.line, p.what, p.remedy))
        .collect();
    let verbs = "GET, HEAD, POST, PUT, DELETE, CONNECT, OPTIONS, TRACE, PATCH or *";
    let policy = "spec.accessControl.policies";
    let needs = "a policy needs appId, trustDomain and namespace";
    let unbuilt = "is missing: accessControl cannot be used without it";
    let mut expected = vec![
        "5: spec.tracing.samplingRate \"two\" is not a number: it counts as 0.0001 (write a number from \"0\" to \"1\")"
            .to_owned(),
        "7: spec.accessControl.defaultAction \"alow\" is not an action: it counts as deny (did you mean allow? write allow or deny)"
            .to_owned(),
    ];
    for (index, (wrong, right)) in [("PSOT", "POST"), ("get", "GET")].into_iter().enumerate() {
        let index = index * 2;
        expected.push(format!(
            "14: {policy}[0].operations[0].httpVerb[{index}] {wrong:?} is not an HTTP verb: it matches no call \
             (did you mean {right}? write {verbs})"
        ));
    }
    expected.insert(
        2,
        format!(
            "14: {policy}[0].operations[0].action \"dney\" is not an action: it counts as deny \
             (did you mean deny? write allow or deny)"
        ),
    );
    expected.push(format!(
        "15: {policy}[0].operations[1].action is missing: the operation is denied (write allow or deny)"
    ));
    for key in ["trustDomain", "namespace"] {
        expected.push(format!("16: {policy}[1].{key} {unbuilt} (set {key}; {needs})"));
    }
    assert_eq!(shown[..expected.len()], expected);
    let [name, protocol, missing] = &shown[expected.len()..] else {
        panic!("{shown:#?}");
    };
    assert!(
        name.starts_with(
            "19: spec.api.allowed[0].name \"stat\" is not a part of the API (did you mean state?"
        ),
        "{name}"
    );
    assert_eq!(
        protocol,
        "21: spec.api.denied[0].protocol \"htp\" is not a protocol: the rule has no effect \
         (did you mean http? write http or grpc)"
    );
    assert_eq!(
        missing,
        "22: spec.api.denied[1].protocol is missing: the rule has no effect (write http or grpc)"
    );
}

#[test]
fn reports_effective_sampling_rate() {
    for (rate, shown) in [
        ("'7'", Some("it counts as 1")),
        ("\"-1\"", Some("it counts as 0")),
        ("NaN", Some("it counts as 0.0001")),
        ("\"\"", None),
        ("1e-3", None),
    ] {
        let text = spec(&format!("  tracing: {{samplingRate: {rate}}}\n"));
        let mistakes = Files::with(&[&text]).load().unwrap().mistakes;
        let ends = mistakes.first().map(|problem| problem.what.as_str());
        assert_eq!(ends.is_some(), shown.is_some(), "{rate}: {ends:?}");
        assert!(ends.is_none_or(|what| what.ends_with(shown.unwrap())), "{ends:?}");
    }
}

#[test]
fn validates_known_api_names() {
    let json = br#"{"spec":{"api":{"denied":[{"name":"stat","protocol":"http"},{"name":"state/x","protocol":"http"}]}}}"#;
    let [mistake] = &Configuration::mistakes_in(json, "c", &known()).mistakes[..] else {
        panic!("one is wrong");
    };
    assert_eq!(
        mistake.remedy,
        "did you mean state? write one of secrets, state, unlock"
    );
    assert_eq!(
        Configuration::mistakes_in(json, "c", &ValueChecks::default()),
        Found::default()
    );
}

#[test]
fn validates_operator_json() {
    let json = br#"{"spec":{"accessControl":{"defaultAction":"alow"}}}"#;
    let mistakes = Configuration::mistakes_in(json, "Configuration c", &known()).mistakes;
    let shown = mistakes[0].to_string();
    assert!(
        shown.starts_with(r#"Configuration c: spec.accessControl.defaultAction "alow" is not an action"#),
        "{shown}"
    );
    assert_eq!(Configuration::mistakes_in(b"{", "c", &known()), Found::default());
}
