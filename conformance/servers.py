"""Redis, PostgreSQL, etcd, RabbitMQ, NATS, Mosquitto and Kafka as processes of a fleet, on loopback, without passwords and with empty data."""

import functools
import glob
import json
import os
import pathlib
import pwd
import shutil
import socket
import subprocess
import time

from fleet import HOST, free_ports

# A JVM or Erlang VM on a busy machine starts slowly.
BROKER_SECONDS = 300


class Missing(Exception):
    """A server is not installed; the text is the remedy."""


class Redis:
    """A Redis server."""

    def __init__(self, fleet, name="redis"):
        program = shutil.which("redis-server")
        if not program:
            raise Missing("redis-server is not installed: apt-get install redis-server")
        (self.port,) = free_ports(1)
        folder = fleet.dir / name
        folder.mkdir()
        fleet.app(f"app-{name}", [program, "--bind", HOST, "--port", str(self.port), "--dir", str(folder),
                                  "--save", "", "--appendonly", "no"], self.port)
        self.address = f"{HOST}:{self.port}"

    def command(self, *words, database=0):
        """Sends one command; returns its answer, not taken apart."""
        with socket.create_connection((HOST, self.port), 10) as connection:
            for line in (("SELECT", str(database)), words):
                parts = b"".join(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in line)
                connection.sendall(b"*%d\r\n%s" % (len(line), parts))
                answer = connection.recv(65536)
                if answer.startswith(b"-"):
                    raise RuntimeError(f"redis: {line}: {answer.decode()}")
        return answer


class Postgres:
    """A PostgreSQL server. It refuses to run as root; then it runs as its package's account."""

    def __init__(self, fleet, name="postgres"):
        folder = fleet.dir / name
        folder.mkdir()
        account = {}
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(folder, owner.pw_uid, owner.pw_gid)
            fleet.dir.chmod(0o755)
            account = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        # The user for restarts.
        self.account = account
        self.psql = self._program("psql")
        subprocess.run(
            [self._program("initdb"), "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8",
             "--locale=C", "--no-sync"], check=True, capture_output=True, cwd=folder, **account)
        (self.port,) = free_ports(1)
        self.text = f"host={HOST} port={self.port} user=postgres dbname=postgres sslmode=disable"
        self.fleet, self.process, self.account = fleet, f"app-{name}", account
        self.command = [self._program("postgres"), "-D", str(folder / "data"), "-p", str(self.port), "-h", HOST, "-k", ""]
        self.start()

    def kill(self):
        server = self.fleet.processes[self.process]
        children = pathlib.Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        self.fleet.kill(self.process)
        # Its processes notice this and end; until then, no other server starts on their data.
        deadline = time.monotonic() + BROKER_SECONDS
        while any(pathlib.Path(f"/proc/{child}").exists() for child in children):
            if time.monotonic() > deadline:
                raise AssertionError("processes of a killed PostgreSQL server did not end")
            time.sleep(0.01)

    def start(self):
        """Starts or restarts it; it responds once recovery is done."""
        self.fleet.app(self.process, self.command, self.port, **self.account)
        self.fleet.until(self.process, lambda: self.sql("SELECT 1") == "1", "SELECT 1")

    @staticmethod
    @functools.cache
    def _program(name):
        found = shutil.which(name) or next(iter(sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))), None)
        if not found:
            raise Missing(f"{name} is not installed: apt-get install postgresql")
        return found

    def sql(self, text):
        """Runs statements; returns their output."""
        run = subprocess.run([self.psql, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", self.text, "-c", text],
                             capture_output=True, text=True)
        if run.returncode != 0:
            raise OSError(f"psql: {run.stderr}")
        return run.stdout.strip()


class Etcd:
    """An etcd with one member."""

    def __init__(self, fleet, name="etcd"):
        program = shutil.which("etcd")
        if not program:
            raise Missing("etcd is not installed: apt-get install etcd-server")
        self.port, peers = free_ports(2)
        self.address = f"{HOST}:{self.port}"
        clients, others = f"http://{self.address}", f"http://{HOST}:{peers}"
        fleet.app(f"app-{name}", [
            program, "--data-dir", str(fleet.dir / name), "--listen-client-urls", clients, "--advertise-client-urls", clients,
            "--listen-peer-urls", others, "--initial-advertise-peer-urls", others, "--initial-cluster", f"default={others}"],
            self.port)


class RabbitMq:
    """A RabbitMQ broker with the account `guest`, and a separate node name service (epmd)."""

    def __init__(self, fleet, name="rabbitmq"):
        # The script in /usr/sbin switches to another user.
        program = next(iter(sorted(glob.glob("/usr/lib/rabbitmq/lib/*/sbin/rabbitmq-server"))), None)
        if not program:
            raise Missing("rabbitmq-server is not installed: apt-get install rabbitmq-server")
        folder = fleet.dir / name
        folder.mkdir()
        names, self.port, between = free_ports(3)
        env = {"HOME": str(folder), "ERL_EPMD_PORT": str(names), "ERL_EPMD_ADDRESS": HOST}
        # Otherwise the node would start one that outlives it.
        fleet.app(f"app-{name}-names", [shutil.which("epmd"), "-port", str(names)], names, env)
        (folder / "rabbit.conf").write_text(f"listeners.tcp.local = {HOST}:{self.port}\n")
        (folder / "plugins").write_text("[].")
        env |= {
            # The script execs the node, so ending it ends the node.
            "RUNNING_UNDER_SYSTEMD": "true",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null", "RABBITMQ_NODENAME": "check@localhost",
            "RABBITMQ_DIST_PORT": str(between), "RABBITMQ_MNESIA_BASE": str(folder), "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_LOGS": "-", "RABBITMQ_CONFIG_FILE": str(folder / "rabbit.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins")}
        self.env = env
        fleet.app(f"app-{name}", [program], self.port, env, BROKER_SECONDS)
        self.url = f"amqp://guest:guest@{HOST}:{self.port}"


class Nats:
    """A NATS server with JetStream, with file storage."""

    def __init__(self, fleet, name="nats"):
        program = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
        if not program:
            raise Missing("nats-server is not installed: apt-get install nats-server")
        (self.port,) = free_ports(1)
        folder = fleet.dir / name
        folder.mkdir()
        (folder / "conf").write_text(f'jetstream {{ store_dir: "{folder}" }}\n')
        fleet.app(f"app-{name}", [program, "-a", HOST, "-p", str(self.port), "-c", str(folder / "conf")], self.port)
        self.url = f"nats://{HOST}:{self.port}"

    def stream(self, name, subjects):
        """Creates a stream of these subjects with a request of its API."""
        request = json.dumps({"name": name, "subjects": subjects, "storage": "file", "retention": "limits"}).encode()
        with socket.create_connection((HOST, self.port), 10) as connection:
            connection.sendall(b'CONNECT {"verbose":false}\r\nSUB answer 1\r\nPUB $JS.API.STREAM.CREATE.%b answer %d\r\n%b\r\n'
                               % (name.encode(), len(request), request))
            answer = b""
            while b"stream_create_response" not in answer:
                answer += connection.recv(65536)
        if b'"error"' in answer:
            raise RuntimeError(f"nats: {answer.decode()}")


class Mosquitto:
    """An MQTT broker with persistence."""

    def __init__(self, fleet, name="mosquitto"):
        program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
        if not program:
            raise Missing("mosquitto is not installed: apt-get install mosquitto")
        (self.port,) = free_ports(1)
        folder = fleet.dir / name
        folder.mkdir()
        (folder / "conf").write_text(
            f"listener {self.port} {HOST}\nallow_anonymous true\nuser root\npersistence true\n"
            f"persistence_location {folder}/\nautosave_on_changes true\nautosave_interval 1\n")
        fleet.app(f"app-{name}", [program, "-c", str(folder / "conf")], self.port)
        self.url = f"mqtt://{HOST}:{self.port}"


class Kafka:
    """A Kafka broker with combined controller. Topics are created on first use, with this number of partitions."""

    def __init__(self, fleet, name="kafka", partitions=1):
        java = shutil.which("java")
        cache = pathlib.Path(__file__).resolve().parent / "cache"
        jars = subprocess.run([cache, "kafka"], check=True, capture_output=True, text=True).stdout.strip()
        if not java or not glob.glob(f"{jars}/kafka_*"):
            raise Missing("Java or the jars of Kafka are missing: scripts/need kafka")
        folder = fleet.dir / name
        folder.mkdir()
        port, controller = free_ports(2)
        self.address = f"{HOST}:{port}"
        self.fleet, self.name, self.settings = fleet, f"app-{name}", folder / "server.properties"
        self.settings.write_text("\n".join((
            "process.roles=broker,controller", "node.id=1", f"controller.quorum.voters=1@{HOST}:{controller}",
            "controller.listener.names=CONTROLLER", f"listeners=PLAINTEXT://{self.address},CONTROLLER://{HOST}:{controller}",
            f"advertised.listeners=PLAINTEXT://{self.address}",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT", f"log.dirs={folder / 'logs'}",
            f"num.partitions={partitions}", "offsets.topic.num.partitions=1", "offsets.topic.replication.factor=1",
            "group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=1000", "log.cleaner.enable=false", "")))
        self.machine = [java, "-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
                        "-cp", f"{jars}/*"]
        subprocess.run([*self.machine, "kafka.tools.StorageTool", "format", "-t", "b3V0cmlnZ2VyLXRlc3RzIQ", "-c", self.settings],
                       check=True, capture_output=True)
        self._start()

    def _start(self):
        port = int(self.address.rpartition(":")[2])
        self.fleet.app(self.name, [*self.machine, "kafka.Kafka", self.settings], port, timeout=BROKER_SECONDS)

    def advertise(self, address):
        """Restarts the broker with another advertised address."""
        self.fleet.end(self.name)
        text = self.settings.read_text()
        self.settings.write_text(text.replace(f"advertised.listeners=PLAINTEXT://{self.address}",
                                              f"advertised.listeners=PLAINTEXT://{address}"))
        self._start()
