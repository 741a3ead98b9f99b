//! `tracing`, `metric` and `metrics`.

use super::{Search, filled, items};
use crate::configuration::tracing::DEFAULT_SAMPLING;
use crate::yaml::Node;

const OTLP_PROTOCOLS: [&str; 2] = ["http", "grpc"];

impl Search<'_> {
    pub(super) fn tracing(&mut self, spec: &Node) {
        let Some(tracing) = spec.get("tracing") else {
            return;
        };
        self.sampling(tracing);
        let zipkin = tracing
            .get("zipkin")
            .and_then(|zipkin| zipkin.get("endpointAddress"));
        self.check(
            zipkin,
            "spec.tracing.zipkin.endpointAddress",
            self.known.zipkin_url,
            "write a URL, as http://HOST:9411/api/v2/spans",
        );
        let Some(otel) = tracing.get("otel") else {
            return;
        };
        self.check(
            otel.get("endpointAddress"),
            "spec.tracing.otel.endpointAddress",
            self.known.otlp_endpoint,
            "write HOST:PORT",
        );
        self.name(
            otel.get("protocol"),
            "spec.tracing.otel.protocol",
            &OTLP_PROTOCOLS,
            "is not a protocol of OTLP: no spans can be sent with it",
        );
        for (index, header) in items(otel.get("headers")) {
            // The value may be a secret.
            if let Some((text, line)) = filled(header)
                && let Some(reason) = (self.known.otlp_header)(text)
            {
                let what = format!("spec.tracing.otel.headers[{index}]: {reason}");
                self.add(line, what, "write name=value".to_owned());
            }
        }
    }

    fn sampling(&mut self, tracing: &Node) {
        let Some((text, line)) = tracing.get("samplingRate").and_then(filled) else {
            return;
        };
        let effect = match text.parse::<f64>() {
            Ok(rate) if (0.0..=1.0).contains(&rate) => return,
            Ok(rate) if rate > 1.0 => "is more than 1: it counts as 1".to_owned(),
            Ok(rate) if rate < 0.0 => "is less than 0: it counts as 0".to_owned(),
            _ => format!("is not a number: it counts as {DEFAULT_SAMPLING}"),
        };
        let what = format!("spec.tracing.samplingRate {text:?} {effect}");
        self.add(line, what, "write a number from \"0\" to \"1\"".to_owned());
    }

    pub(super) fn metrics(&mut self, spec: &Node) {
        for section in ["metric", "metrics"] {
            let Some(metrics) = spec.get(section) else {
                continue;
            };
            let path = format!("spec.{section}");
            self.buckets(metrics, &path);
            let patterns = metrics.get("http").and_then(|http| http.get("pathMatching"));
            for (index, pattern) in items(patterns) {
                self.check(
                    Some(pattern),
                    &format!("{path}.http.pathMatching[{index}]"),
                    self.known.path_pattern,
                    "write a path, as /orders/{id}",
                );
            }
            for (rule, labels) in items(metrics.get("rules")) {
                for (label, rewrite) in items(labels.get("labels")) {
                    for (replacement, regex) in rewrite.get("regex").map(Node::entries).unwrap_or_default() {
                        self.check(
                            Some(regex),
                            &format!("{path}.rules[{rule}].labels[{label}].regex.{replacement}"),
                            self.known.regex,
                            "correct the regular expression",
                        );
                    }
                }
            }
        }
    }

    fn buckets(&mut self, metrics: &Node, path: &str) {
        let mut last: Option<i64> = None;
        for (index, bucket) in items(metrics.get("latencyDistributionBuckets")) {
            let Some((text, line)) = filled(bucket) else {
                continue;
            };
            // Decoding reports a non-number.
            let Ok(bound) = text.parse() else {
                continue;
            };
            let path = format!("{path}.latencyDistributionBuckets[{index}]");
            let remedy = "write milliseconds, in ascending order".to_owned();
            if bound < 0 {
                self.add(
                    line,
                    format!("{path} {bound} is less than 0: it is left out"),
                    remedy,
                );
                continue;
            }
            if let Some(last) = last.filter(|last| *last >= bound) {
                let what = format!("{path} {bound} comes after {last}: there can be no metrics with it");
                self.add(line, what, remedy);
            }
            last = Some(bound);
        }
    }
}
