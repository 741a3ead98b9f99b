//! The Kubernetes resolver against a DNS server on the loopback interface.

use std::net::SocketAddr;

use hickory_resolver::{
    config::{ConnectionConfig, NameServerConfig, ResolverConfig},
    net::runtime::TokioRuntimeProvider,
};
use serde_json::json;
use tokio::net::UdpSocket;

use super::*;

/// Answers A queries for `orders-dapr.prod.svc.example` with two addresses, and all others with NXDOMAIN.
async fn serve(socket: UdpSocket) {
    let known = b"\x0borders-dapr\x04prod\x03svc\x07example\0";
    let mut buffer = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
        let query = &buffer[..length];
        let end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
        let (name, kind) = (&query[12..end - 4], query[end - 3]);
        let is_known = name.eq_ignore_ascii_case(known);
        let ips: &[[u8; 4]] = if is_known && kind == 1 {
            &[[10, 0, 0, 9], [10, 0, 0, 2]]
        } else {
            &[]
        };
        let mut reply = query[..2].to_vec();
        reply.extend([
            0x85,
            if is_known { 0x80 } else { 0x83 },
            0,
            1,
            0,
            ips.len() as u8,
            0,
            0,
            0,
            0,
        ]);
        reply.extend(&query[12..end]);
        for ip in ips {
            reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
            reply.extend(ip);
        }
        socket.send_to(&reply, from).await.unwrap();
    }
}

async fn resolver(configuration: Value) -> Kubernetes {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server: SocketAddr = socket.local_addr().unwrap();
    tokio::spawn(serve(socket));
    let mut connection = ConnectionConfig::udp();
    connection.port = server.port();
    let servers = vec![NameServerConfig::new(server.ip(), true, vec![connection])];
    let config = ResolverConfig::from_parts(None, Vec::new(), servers);
    let dns = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    let registration = Registration {
        internal_port: 50002,
        ..Registration::default()
    };
    Kubernetes::with_dns(&configuration, &registration, dns.build().unwrap()).unwrap()
}

fn unused_resolver() -> TokioResolver {
    let dns = TokioResolver::builder_with_config(ResolverConfig::default(), TokioRuntimeProvider::default());
    dns.build().unwrap()
}

#[test]
fn docs_list_all_settings() {
    let settings = Settings::new(&Value::Null).unwrap();
    Kubernetes::of(&settings, &Registration::default(), unused_resolver()).unwrap();
    crate::settings::tests::check_docs("Kubernetes DNS", &settings);
}

#[test]
fn warns_of_unknown_settings() {
    let told = crate::settings::tests::warnings(|| {
        let configuration = json!({"clusterdomain": "example", "templat": "{{.ID}}:1"});
        drop(Kubernetes::with_dns(&configuration, &Registration::default(), unused_resolver()).unwrap());
    });
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("did you mean template?"), "{told:?}");
}

#[tokio::test]
async fn finds_all_service_addresses() {
    let resolver = resolver(json!({"clusterDomain": "example"})).await;
    let found = resolver.look_up("orders", "prod").await.unwrap();
    let found: Vec<String> = found.iter().map(Address::to_string).collect();
    assert_eq!(found, ["10.0.0.2:50002", "10.0.0.9:50002"]);
}

#[tokio::test]
async fn error_names_missing_service() {
    let resolver = resolver(Value::Null).await;
    let error = resolver.look_up("orders", "prod").await.unwrap_err();
    assert!(error.is_not_found(), "{error:?}");
    let text = error.to_string();
    let start = "failed to resolve address for 'orders-dapr.prod.svc.cluster.local': ";
    assert!(text.starts_with(start), "{text}");
}

#[tokio::test]
async fn template_sets_name_and_port() {
    let template = json!({"template": "{{.ID}}-dapr.prod.svc.example.:7{{/* fixed */}}"});
    let found = resolver(template).await.look_up("orders", "other").await.unwrap();
    assert_eq!(found[0].to_string(), "10.0.0.2:7");
    let literal = json!({"template": "10.1.1.1:{{.Port}}"});
    let found = resolver(literal).await.look_up("orders", "other").await.unwrap();
    assert_eq!(found[0].to_string(), "10.1.1.1:50002");
}
