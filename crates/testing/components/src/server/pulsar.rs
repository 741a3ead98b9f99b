//! Apache Pulsar with its own ZooKeeper and BookKeeper. It starts slowly, so the tests of a binary share
//! one.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use outrigger_component_conformance::Link;
use tempfile::TempDir;

use super::{Process, START, find, free_port};
use crate::tls::Certificates;

/// The broker's token key, in base64.
const KEY: &str = "b3V0cmlnZ2VyLXRlc3RzLW91dHJpZ2dlci10ZXN0cyE=";
/// A valid token.
pub const TOKEN: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhcHAifQ.LfajuHL1lzjj1dBk8w8uibY9uZdMjumRN8ZOB_9-Oa4";

/// A broker that accepts clients without credentials, and those with [`TOKEN`]; `None` if Pulsar is not
/// installed. Topics are created on first use, without partitions.
pub struct Pulsar {
    process: Process,
    folder: TempDir,
    java: PathBuf,
    jars: String,
    ports: Ports,
}

struct Ports {
    plain: u16,
    proxied: u16,
    tls: u16,
    web: u16,
    zookeeper: u16,
    bookkeeper: u16,
}

impl Pulsar {
    /// Starts with an empty store. Clients that connect to [`Pulsar::proxied_port`] get `proxy` as the
    /// broker's address.
    pub fn start(certificates: &Certificates, proxy: u16) -> Option<Self> {
        let java = find("java", "default-jre-headless", &["/usr/bin"])?;
        let jars = jars()?;
        let folder = tempfile::tempdir().unwrap();
        let ports = Ports {
            plain: free_port(),
            proxied: free_port(),
            tls: free_port(),
            web: free_port(),
            zookeeper: free_port(),
            bookkeeper: free_port(),
        };
        let settings = settings(&ports, proxy, certificates);
        fs::write(folder.path().join("standalone.conf"), settings).unwrap();
        let process = spawn(&java, &jars, folder.path(), &ports);
        let mut server = Self {
            process,
            folder,
            java,
            jars,
            ports,
        };
        server.wait();
        Some(server)
    }

    fn wait(&mut self) {
        for port in [
            self.ports.plain,
            self.ports.proxied,
            self.ports.tls,
            self.ports.web,
        ] {
            assert!(self.process.listens(port), "{}", self.process.log());
        }
        // The broker listens before its namespace exists.
        let deadline = Instant::now() + START;
        while !has_namespace(self.ports.web) {
            assert!(Instant::now() < deadline, "{}", self.process.log());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Host and port without TLS.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.plain)
    }

    /// URL with TLS.
    pub fn tls_url(&self) -> String {
        format!("pulsar+ssl://127.0.0.1:{}", self.ports.tls)
    }

    /// Host and port of the administration API.
    pub fn admin_address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.web)
    }

    /// The port that a proxy must forward to.
    pub fn proxied_port(&self) -> u16 {
        self.ports.proxied
    }
}

impl Link for Pulsar {
    fn cut(&mut self) {
        self.process.kill();
    }

    fn restore(&mut self) {
        self.process = spawn(&self.java, &self.jars, self.folder.path(), &self.ports);
        self.wait();
    }
}

fn spawn(java: &Path, jars: &str, folder: &Path, ports: &Ports) -> Process {
    let mut command = Command::new(java);
    // Tuned for small size and fast startup.
    command
        .args([
            "-Xms64m",
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
        ])
        .args(["-XX:-UsePerfData", "-cp", jars])
        .args(["--add-opens", "java.base/jdk.internal.platform=ALL-UNNAMED"])
        .args(["--add-opens", "java.base/java.lang=ALL-UNNAMED"])
        .args([
            "org.apache.pulsar.PulsarStandaloneStarter",
            "-nss",
            "-nfw",
            "--config",
        ])
        .arg(folder.join("standalone.conf"))
        .arg("--zookeeper-dir")
        .arg(folder.join("zookeeper"))
        .arg("--bookkeeper-dir")
        .arg(folder.join("bookkeeper"))
        .args(["--zookeeper-port", &ports.zookeeper.to_string()])
        .args(["--bookkeeper-port", &ports.bookkeeper.to_string()])
        .env("PULSAR_STANDALONE_USE_ZOOKEEPER", "1")
        .current_dir(folder);
    Process::start(command, &folder.join("log"))
}

fn has_namespace(port: u16) -> bool {
    let mut answer = String::new();
    let asked = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).and_then(|mut stream| {
        stream.write_all(b"GET /admin/v2/namespaces/public/default HTTP/1.0\r\n\r\n")?;
        stream.read_to_string(&mut answer)
    });
    asked.is_ok() && answer.starts_with("HTTP/1.1 200")
}

/// The class path of the broker.
fn jars() -> Option<String> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../conformance/cache");
    let printed = Command::new(scripts).arg("pulsar").output().unwrap();
    let folder = PathBuf::from(String::from_utf8(printed.stdout).unwrap().trim());
    if !folder.join("complete.xml").is_file() {
        outrigger_testing::skip::skip("the jars of Pulsar are not there: scripts/need pulsar");
        return None;
    }
    Some(format!("{}/lib/*", folder.display()))
}

fn settings(ports: &Ports, proxy: u16, certificates: &Certificates) -> String {
    let Ports {
        plain,
        proxied,
        tls,
        web,
        ..
    } = ports;
    format!(
        "clusterName=standalone\n\
         bindAddress=127.0.0.1\n\
         bindAddresses=proxied:pulsar://127.0.0.1:{proxied}\n\
         advertisedListeners=plain:pulsar://127.0.0.1:{plain},plain:pulsar+ssl://127.0.0.1:{tls},\
         proxied:pulsar://127.0.0.1:{proxy}\n\
         internalListenerName=plain\n\
         brokerServicePort={plain}\n\
         brokerServicePortTls={tls}\n\
         webServicePort={web}\n\
         tlsCertificateFilePath={certificate}\n\
         tlsKeyFilePath={key}\n\
         authenticationEnabled=true\n\
         authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken\n\
         tokenSecretKey=data:;base64,{KEY}\n\
         anonymousUserRole=anybody\n\
         metadataStoreSessionTimeoutMillis=4000\n\
         keepAliveIntervalSeconds=3\n\
         managedLedgerDefaultEnsembleSize=1\n\
         managedLedgerDefaultWriteQuorum=1\n\
         managedLedgerDefaultAckQuorum=1\n\
         loadBalancerEnabled=false\n\
         functionsWorkerEnabled=false\n\
         transactionCoordinatorEnabled=false\n\
         systemTopicEnabled=false\n\
         topicLevelPoliciesEnabled=false\n\
         allowAutoTopicCreation=true\n\
         numHttpServerThreads=4\n\
         numIOThreads=2\n\
         delayedDeliveryTickTimeMillis=100\n\
         brokerDeleteInactiveTopicsEnabled=false\n",
        certificate = certificates.text("server.pem"),
        key = certificates.text("server.key"),
    )
}
