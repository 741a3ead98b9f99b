use outrigger_identity::SpiffeId;
use outrigger_kube::testing::Server;

use super::*;
use crate::config::JwtConfig;
use crate::jwt::Algorithm;

const SECRET: &str = "/api/v1/namespaces/dapr-system/secrets/dapr-trust-bundle";
const MAP: &str = "/api/v1/namespaces/dapr-system/configmaps/dapr-trust-bundle";

fn source(server: &Server, jwt: bool) -> Source {
    let folder = Path::new("/var/run/secrets/dapr.io/credentials");
    let sentry: SpiffeId = "spiffe://cp.example/ns/dapr-system/dapr-sentry".parse().unwrap();
    let source = AuthoritySource {
        paths: Paths {
            root: folder.join("ca.crt"),
            issuer: folder.join("issuer.crt"),
            issuer_key: folder.join("issuer.key"),
            jwt_key: folder.join("jwt.key"),
            jwks: folder.join("jwks.json"),
        },
        sentry,
        skew: Duration::from_secs(900),
        jwt: jwt.then(|| JwtConfig {
            issuer: None,
            algorithm: Algorithm::Rs256,
            key_id: None,
            ttl: Duration::from_secs(60),
        }),
    };
    Source::cluster(server.client(), "dapr-system", source)
}

async fn server() -> Server {
    let server = Server::start().await;
    server.put(SECRET, empty());
    server.put(MAP, empty());
    server
}

fn decoded(server: &Server, key: &str) -> String {
    let secret = server.object(SECRET).unwrap();
    String::from_utf8(STANDARD.decode(secret["data"][key].as_str().unwrap()).unwrap()).unwrap()
}

#[tokio::test]
async fn an_empty_bundle_is_filled_and_then_used() {
    let server = server().await;
    let (authority, new) = source(&server, false).load_or_generate().await.unwrap();
    assert!(new);
    let root = decoded(&server, "ca.crt");
    assert_eq!(authority.x509.trust_anchors(), root);
    assert_eq!(
        server.object(MAP).unwrap()["data"],
        json!({"ca.crt": root}),
        "the map has what is public"
    );
    assert!(decoded(&server, "issuer.key").contains("PRIVATE KEY"));
    let (again, new) = source(&server, false).load_or_generate().await.unwrap();
    assert!(!new);
    assert_eq!(again.x509.trust_anchors(), root);
    assert_eq!(
        server.requests("PUT", "dapr-trust-bundle").len(),
        2,
        "nothing is written twice"
    );
}

#[tokio::test]
async fn keys_of_tokens_are_kept_too() {
    let server = server().await;
    assert!(
        source(&server, true)
            .load_or_generate()
            .await
            .unwrap()
            .0
            .jwt
            .is_some()
    );
    let map = server.object(MAP).unwrap();
    assert_eq!(map["data"]["jwks.json"], decoded(&server, "jwks.json"));
    assert!(!source(&server, true).load_or_generate().await.unwrap().1);
}

#[tokio::test]
async fn a_map_that_lacks_the_root_gets_it_and_the_authority_stays() {
    let server = server().await;
    source(&server, false).load_or_generate().await.unwrap();
    let root = decoded(&server, "ca.crt");
    let wrong = json!({"metadata": {"name": BUNDLE}, "data": {"ca.crt": "other", "mine": "x"}});
    server.put(MAP, wrong);
    assert!(!source(&server, false).load_or_generate().await.unwrap().1);
    assert_eq!(
        server.object(MAP).unwrap()["data"],
        json!({"ca.crt": root, "mine": "x"})
    );
}

#[tokio::test]
async fn a_part_of_a_bundle_is_not_replaced() {
    let server = server().await;
    source(&server, false).load_or_generate().await.unwrap();
    let mut secret = server.object(SECRET).unwrap();
    secret["data"].as_object_mut().unwrap().remove("issuer.key");
    server.put(SECRET, secret);
    let error = source(&server, false).load_or_generate().await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("Secret/dapr-system/dapr-trust-bundle/issuer.key is missing"),
        "{text}"
    );
}

#[tokio::test]
async fn sentries_that_start_together_agree_on_one_authority() {
    let server = server().await;
    let sources: Vec<_> = (0..4).map(|_| source(&server, false)).collect();
    let [one, two, three, four] = &sources[..] else {
        unreachable!("there are four");
    };
    let loaded = tokio::join!(
        anchors_of(one),
        anchors_of(two),
        anchors_of(three),
        anchors_of(four)
    );
    let loaded: [String; 4] = loaded.into();
    let root = decoded(&server, "ca.crt");
    assert!(loaded.iter().all(|anchors| *anchors == root), "{loaded:?}");
}

async fn anchors_of(source: &Source) -> String {
    let (authority, _) = source.load_or_generate().await.unwrap();
    authority.x509.trust_anchors().to_owned()
}

#[tokio::test]
async fn a_missing_secret_is_named() {
    let server = Server::start().await;
    let error = source(&server, false)
        .load_or_generate()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("cannot read the Secret dapr-system/dapr-trust-bundle"),
        "{error}"
    );
}

fn empty() -> Value {
    json!({"metadata": {"name": BUNDLE, "namespace": "dapr-system"}})
}

/// What the Secret holds.
fn data(server: &Server) -> Value {
    server.object(SECRET).unwrap()["data"].clone()
}

#[tokio::test]
async fn a_bundle_that_becomes_empty_gets_the_authority_in_use_back() {
    for jwt in [false, true] {
        let server = server().await;
        let source = source(&server, jwt);
        let (in_use, _) = source.load_or_generate().await.unwrap();
        let (before, map) = (data(&server), server.object(MAP).unwrap()["data"].clone());
        // As the chart makes both, in the place of those that there are.
        server.put(SECRET, empty());
        server.put(MAP, empty());
        let again = source.reload(&in_use).await.unwrap();
        assert_eq!(again.files, in_use.files);
        assert_eq!(
            (data(&server), server.object(MAP).unwrap()["data"].clone()),
            (before, map)
        );
        assert!(
            !source.load_or_generate().await.unwrap().1,
            "whoever starts takes it"
        );
    }
}

#[tokio::test]
async fn a_bundle_that_loses_a_part_gets_it_back() {
    let server = server().await;
    let source = source(&server, true);
    let (in_use, _) = source.load_or_generate().await.unwrap();
    let before = data(&server);
    for key in ["ca.crt", "issuer.crt", "issuer.key", "jwt.key", "jwks.json"] {
        let mut secret = server.object(SECRET).unwrap();
        // An empty value is none.
        secret["data"][key] = "".into();
        server.put(SECRET, secret);
        assert_eq!(source.reload(&in_use).await.unwrap().files, in_use.files);
        assert_eq!(data(&server), before, "{key}");
    }
}

#[tokio::test]
async fn a_part_of_another_authority_is_left_to_whoever_writes_it() {
    let server = server().await;
    let source = source(&server, false);
    let (in_use, _) = source.load_or_generate().await.unwrap();
    let mut secret = empty();
    secret["data"] = json!({"ca.crt": STANDARD.encode("another")});
    server.put(SECRET, secret.clone());
    let error = source.reload(&in_use).await.unwrap_err().to_string();
    assert!(error.contains("is missing"), "{error}");
    assert_eq!(data(&server), secret["data"]);
}

#[tokio::test]
async fn another_bundle_that_is_whole_replaces_the_authority_in_use() {
    let (server, other) = (server().await, self::server().await);
    let source = source(&server, false);
    let (in_use, _) = source.load_or_generate().await.unwrap();
    let (wanted, _) = self::source(&other, false).load_or_generate().await.unwrap();
    let mut secret = server.object(SECRET).unwrap();
    secret["data"] = data(&other);
    server.put(SECRET, secret);
    let loaded = source.reload(&in_use).await.unwrap();
    assert_eq!(loaded.files, wanted.files);
    assert_ne!(loaded.files, in_use.files);
    let map = server.object(MAP).unwrap();
    assert_eq!(map["data"]["ca.crt"], loaded.x509.trust_anchors());
    assert_eq!(data(&server), data(&other), "it is not written again");
}

#[tokio::test]
async fn replicas_that_put_the_authority_back_together_agree() {
    let server = server().await;
    let (one, two) = (source(&server, false), source(&server, false));
    let (in_use, _) = one.load_or_generate().await.unwrap();
    server.put(SECRET, empty());
    let (one, two) = tokio::join!(one.reload(&in_use), two.reload(&in_use));
    assert_eq!(
        (one.unwrap().files, two.unwrap().files),
        (in_use.files.clone(), in_use.files)
    );
}
