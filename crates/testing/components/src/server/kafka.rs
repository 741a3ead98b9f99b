//! Apache Kafka. It starts slowly, so the tests of a binary share one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use outrigger_component_conformance::Link;
use tempfile::TempDir;

use super::{Process, find, free_port};
use crate::tls::Certificates;

/// The SASL user, for PLAIN and SCRAM.
pub const USER: &str = "app";
/// Its password.
pub const PASSWORD: &str = "secret";
/// Any 16 bytes in base64.
const CLUSTER: &str = "b3V0cmlnZ2VyLXRlc3RzIQ";

/// A broker that is also the controller; `None` if Kafka is not installed. Topics are created on first use,
/// with one partition.
pub struct Kafka {
    process: Process,
    folder: TempDir,
    java: PathBuf,
    jars: String,
    ports: Ports,
}

struct Ports {
    plain: u16,
    proxied: u16,
    sasl: u16,
    tls: u16,
    controller: u16,
}

impl Kafka {
    /// Starts with an empty store. Clients that connect to [`Kafka::proxied_port`] get `proxy` as the
    /// broker's address.
    pub fn start(certificates: &Certificates, proxy: u16) -> Option<Self> {
        let java = find("java", "default-jre-headless", &["/usr/bin"])?;
        let jars = jars()?;
        let folder = tempfile::tempdir().unwrap();
        let ports = Ports {
            plain: free_port(),
            proxied: free_port(),
            sasl: free_port(),
            tls: free_port(),
            controller: free_port(),
        };
        let settings = settings(&ports, proxy, certificates, folder.path());
        fs::write(folder.path().join("server.properties"), settings).unwrap();
        let formatted = virtual_machine(&java, &jars)
            .args(["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c"])
            .arg(folder.path().join("server.properties"))
            .args(["256", "512"].iter().flat_map(|bits| {
                let user = format!("SCRAM-SHA-{bits}=[name={USER},password={PASSWORD}]");
                ["--add-scram".to_owned(), user]
            }))
            .output()
            .unwrap();
        assert!(
            formatted.status.success(),
            "{}{}",
            String::from_utf8_lossy(&formatted.stdout),
            String::from_utf8_lossy(&formatted.stderr)
        );
        let process = Self::spawn(&java, &jars, folder.path());
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

    fn spawn(java: &Path, jars: &str, folder: &Path) -> Process {
        let mut command = virtual_machine(java, jars);
        command.arg("kafka.Kafka").arg(folder.join("server.properties"));
        Process::start(command, &folder.join("log"))
    }

    fn wait(&mut self) {
        for port in [
            self.ports.plain,
            self.ports.proxied,
            self.ports.sasl,
            self.ports.tls,
        ] {
            assert!(self.process.listens(port), "{}", self.process.log());
        }
    }

    /// Host and port without TLS and passwords.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.plain)
    }

    /// Host and port for [`USER`] with PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512, and for any unsigned token
    /// with OAUTHBEARER.
    pub fn sasl_address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.sasl)
    }

    /// Host and port with TLS and client certificates.
    pub fn tls_address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.tls)
    }

    /// The port that a proxy must forward to.
    pub fn proxied_port(&self) -> u16 {
        self.ports.proxied
    }
}

impl Link for Kafka {
    fn cut(&mut self) {
        self.process.kill();
    }

    fn restore(&mut self) {
        self.process = Self::spawn(&self.java, &self.jars, self.folder.path());
        self.wait();
    }
}

/// The class path of the broker.
fn jars() -> Option<String> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../conformance/cache");
    let printed = Command::new(scripts).arg("kafka").output().unwrap();
    let folder = PathBuf::from(String::from_utf8(printed.stdout).unwrap().trim());
    let is_there = fs::read_dir(&folder).is_ok_and(|files| {
        files
            .flatten()
            .any(|file| file.file_name().to_string_lossy().starts_with("kafka_"))
    });
    if !is_there {
        outrigger_testing::skip::skip("the jars of Kafka are not there: scripts/need kafka");
        return None;
    }
    Some(format!("{}/*", folder.display()))
}

/// A JVM tuned for small size and fast startup.
fn virtual_machine(java: &Path, jars: &str) -> Command {
    let mut command = Command::new(java);
    command
        .args([
            "-Xms64m",
            "-Xmx384m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
        ])
        .args(["-XX:-UsePerfData", "-cp", jars]);
    command
}

fn settings(ports: &Ports, proxy: u16, certificates: &Certificates, folder: &Path) -> String {
    let Ports {
        plain,
        proxied,
        sasl,
        tls,
        controller,
    } = ports;
    // Kafka reads PEM from one file with key and certificate.
    let pair = [certificates.path("server.key"), certificates.path("server.pem")]
        .map(|file| fs::read_to_string(file).unwrap());
    let store = folder.join("server-store.pem");
    fs::write(&store, pair.concat()).unwrap();
    let modules = "org.apache.kafka.common.security";
    format!(
        "process.roles=broker,controller\n\
         node.id=1\n\
         controller.quorum.voters=1@127.0.0.1:{controller}\n\
         controller.listener.names=CONTROLLER\n\
         inter.broker.listener.name=PLAIN\n\
         listeners=PLAIN://127.0.0.1:{plain},PROXIED://127.0.0.1:{proxied},SASL://127.0.0.1:{sasl},\
         TLS://127.0.0.1:{tls},CONTROLLER://127.0.0.1:{controller}\n\
         advertised.listeners=PLAIN://127.0.0.1:{plain},PROXIED://127.0.0.1:{proxy},SASL://127.0.0.1:{sasl},\
         TLS://127.0.0.1:{tls}\n\
         listener.security.protocol.map=PLAIN:PLAINTEXT,PROXIED:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,\
         CONTROLLER:PLAINTEXT\n\
         listener.name.sasl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER\n\
         listener.name.sasl.plain.sasl.jaas.config={modules}.plain.PlainLoginModule required \
         user_{USER}=\"{PASSWORD}\";\n\
         listener.name.sasl.scram-sha-256.sasl.jaas.config={modules}.scram.ScramLoginModule required;\n\
         listener.name.sasl.scram-sha-512.sasl.jaas.config={modules}.scram.ScramLoginModule required;\n\
         listener.name.sasl.oauthbearer.sasl.jaas.config={modules}.oauthbearer.OAuthBearerLoginModule required \
         unsecuredLoginStringClaim_sub=\"broker\";\n\
         listener.name.tls.ssl.keystore.type=PEM\n\
         listener.name.tls.ssl.keystore.location={store}\n\
         listener.name.tls.ssl.truststore.type=PEM\n\
         listener.name.tls.ssl.truststore.location={root}\n\
         listener.name.tls.ssl.client.auth=required\n\
         log.dirs={logs}\n\
         num.partitions=1\n\
         offsets.topic.num.partitions=1\n\
         offsets.topic.replication.factor=1\n\
         transaction.state.log.num.partitions=1\n\
         transaction.state.log.replication.factor=1\n\
         transaction.state.log.min.isr=1\n\
         group.initial.rebalance.delay.ms=0\n\
         group.min.session.timeout.ms=1000\n\
         broker.session.timeout.ms=1000\n\
         broker.heartbeat.interval.ms=200\n\
         log.cleaner.enable=false\n",
        store = store.display(),
        root = certificates.text("root.pem"),
        logs = folder.join("logs").display(),
    )
}
