use outrigger_identity::SpiffeId;
use outrigger_kube::testing::Server;

use super::*;
use crate::config::JwtConfig;
use crate::jwt::Algorithm;
use crate::rotation::{Rotation, RotationMode, Terms};

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
            rotation: folder.join("ca-rotation.json"),
        },
        rotation: Rotation {
            mode: RotationMode::Own,
            terms: Terms::new(Duration::from_secs(24 * 3600), Duration::from_secs(900)),
            sentry: sentry.clone(),
            skew: time::Duration::minutes(15),
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
async fn fills_empty_bundle() {
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
async fn stores_token_keys() {
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
async fn restores_root_in_config_map() {
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
async fn never_replaces_partial_bundle() {
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
async fn concurrent_starts_agree_on_authority() {
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
async fn names_missing_secret() {
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

async fn loaded(source: &Source) -> Arc<Authority> {
    Arc::new(source.load_or_generate().await.unwrap().0)
}

/// The data of the Secret.
fn data(server: &Server) -> Value {
    server.object(SECRET).unwrap()["data"].clone()
}

#[tokio::test]
async fn restores_emptied_bundle() {
    for jwt in [false, true] {
        let server = server().await;
        let source = source(&server, jwt);
        let in_use = loaded(&source).await;
        let (before, map) = (data(&server), server.object(MAP).unwrap()["data"].clone());
        // The chart's empty objects replace the existing ones.
        server.put(SECRET, empty());
        server.put(MAP, empty());
        let again = source.reload(&in_use).await.unwrap().0;
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
async fn restores_lost_part_of_bundle() {
    let server = server().await;
    let source = source(&server, true);
    let in_use = loaded(&source).await;
    let before = data(&server);
    for key in ["ca.crt", "issuer.crt", "issuer.key", "jwt.key", "jwks.json"] {
        let mut secret = server.object(SECRET).unwrap();
        // An empty value counts as missing.
        secret["data"][key] = "".into();
        server.put(SECRET, secret);
        assert_eq!(source.reload(&in_use).await.unwrap().0.files, in_use.files);
        assert_eq!(data(&server), before, "{key}");
    }
}

#[tokio::test]
async fn leaves_partial_foreign_bundle() {
    let server = server().await;
    let source = source(&server, false);
    let in_use = loaded(&source).await;
    let mut secret = empty();
    secret["data"] = json!({"ca.crt": STANDARD.encode("another")});
    server.put(SECRET, secret.clone());
    let error = source.reload(&in_use).await.unwrap_err().to_string();
    assert!(error.contains("is missing"), "{error}");
    assert_eq!(data(&server), secret["data"]);
}

#[tokio::test]
async fn loads_complete_foreign_bundle() {
    let (server, other) = (server().await, self::server().await);
    let source = source(&server, false);
    let in_use = loaded(&source).await;
    let (wanted, _) = self::source(&other, false).load_or_generate().await.unwrap();
    let mut secret = server.object(SECRET).unwrap();
    secret["data"] = data(&other);
    server.put(SECRET, secret);
    let loaded = source.reload(&in_use).await.unwrap().0;
    assert_eq!(loaded.files, wanted.files);
    assert_ne!(loaded.files, in_use.files);
    let map = server.object(MAP).unwrap();
    assert_eq!(map["data"]["ca.crt"], loaded.x509.trust_anchors());
    assert_eq!(data(&server), data(&other), "it is not written again");
}

#[tokio::test]
async fn concurrent_restores_agree() {
    let server = server().await;
    let (one, two) = (source(&server, false), source(&server, false));
    let in_use = loaded(&one).await;
    server.put(SECRET, empty());
    let (one, two) = tokio::join!(one.reload(&in_use), two.reload(&in_use));
    assert_eq!(
        (&one.unwrap().0.files, &two.unwrap().0.files),
        (&in_use.files, &in_use.files)
    );
}

/// Puts a 300 days old CA and its record into the cluster.
async fn aged() -> Server {
    let server = server().await;
    let sentry: SpiffeId = "spiffe://cp.example/ns/dapr-system/dapr-sentry".parse().unwrap();
    let then = time::OffsetDateTime::now_utc() - time::Duration::days(300);
    let made = crate::x509::generate(&sentry, time::Duration::ZERO, then).unwrap();
    let mut secret = empty();
    secret["data"] = json!({
        "ca.crt": STANDARD.encode(&made.root),
        "issuer.crt": STANDARD.encode(&made.issuer),
        "issuer.key": STANDARD.encode(&made.key),
        "ca-rotation.json": STANDARD.encode(Rotation::begin(&made.issuer)),
        "mine": "eA==",
    });
    server.put(SECRET, secret);
    server
}

/// Number of roots in the Secret and in the ConfigMap.
fn roots(server: &Server) -> (usize, usize) {
    let count = |text: &str| text.matches("BEGIN CERTIFICATE").count();
    let map = server.object(MAP).unwrap();
    (
        count(&decoded(server, "ca.crt")),
        count(map["data"]["ca.crt"].as_str().unwrap()),
    )
}

/// Moves the start of the phase back by `days`.
fn age(server: &Server, days: i64) {
    let mut record: Value = serde_json::from_str(&decoded(server, "ca-rotation.json")).unwrap();
    record["since"] = (record["since"].as_i64().unwrap() - days * 86_400).into();
    let mut secret = server.object(SECRET).unwrap();
    secret["data"]["ca-rotation.json"] = STANDARD.encode(record.to_string()).into();
    server.put(SECRET, secret);
}

fn annotation(server: &Server) -> String {
    let secret = server.object(SECRET).unwrap();
    secret["metadata"]["annotations"][ANNOTATION]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Reloads until nothing more is written.
async fn look(source: &Source, mut in_use: Arc<Authority>) -> Arc<Authority> {
    for _ in 0..5 {
        let (authority, written) = source.reload(&in_use).await.unwrap();
        in_use = Arc::new(authority);
        if !written {
            return in_use;
        }
    }
    panic!("it does not come to rest");
}

#[tokio::test]
async fn replicas_share_rotation() {
    let server = aged().await;
    let (one, two) = (source(&server, false), source(&server, false));
    let issuer = decoded(&server, "issuer.crt");
    let (first, second) = tokio::join!(loaded(&one), loaded(&two));
    let (first, second) = tokio::join!(look(&one, first), look(&two, second));
    assert_eq!(roots(&server), (2, 2), "one new root, in both places");
    assert_eq!(decoded(&server, "issuer.crt"), issuer);
    assert_eq!(first.files, look(&one, second).await.files);
    assert!(annotation(&server).starts_with("announced: both roots are trusted"));

    // The other replica reloads later; until then it signs with the old CA.
    age(&server, 70);
    let first = look(&one, first).await;
    assert_ne!(decoded(&server, "issuer.crt"), issuer);
    assert_eq!(roots(&server), (2, 2));
    assert!(annotation(&server).starts_with("switched: the new issuer signs"));
    let before = first.previous.as_ref().unwrap();
    assert_ne!(before.not_after(), first.x509.not_after());

    // A restarted replica loads the current state; the old root is removed when due.
    let second = loaded(&two).await;
    assert_eq!(second.files, first.files);
    assert_eq!(data(&server)["mine"], "eA==");
}

#[tokio::test]
async fn waits_for_root_in_config_map() {
    let server = aged().await;
    let source = source(&server, false);
    let in_use = loaded(&source).await;
    // As after a crash between the two writes.
    let mut map = server.object(MAP).unwrap();
    map["data"] = json!({});
    server.put(MAP, map);
    let (in_use, written) = source.reload(&in_use).await.unwrap();
    assert!(!written);
    assert_eq!(roots(&server), (2, 2));
    assert!(annotation(&server).starts_with("announced: the new root is being distributed"));
    look(&source, Arc::new(in_use)).await;
    assert!(annotation(&server).starts_with("announced: both roots are trusted"));
}
