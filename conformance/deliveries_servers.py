"""The brokers and stores of the delivery checks: their components, and how to kill and restart them."""

import os

import servers
from fleet import HOST

TOPIC, DEAD = "work", "work-dead"
# Seconds: how long a broker may be unreachable, and how long brokers wait for a silent consumer.
OUTAGE = float(os.environ.get("OUTAGE_SECONDS", 30))
LEASE = 3
SUBSCRIPTION = """apiVersion: dapr.io/v2alpha1
kind: Subscription
metadata: {{name: {route}}}
spec:
  pubsubname: broker
  topic: {topic}
  routes: {{default: /{route}}}
"""
# An app that is briefly unavailable must not cause a dead letter; one that refuses an event repeatedly must.
RESILIENCY = """apiVersion: dapr.io/v1alpha1
kind: Resiliency
metadata: {{name: patient}}
spec:
  policies:
    retries:
      patient: {{policy: constant, duration: 100ms, maxRetries: {retries}}}
  targets:
    components:
      broker:
        inbound: {{retry: patient}}
"""


def subscribe(folder, route, retries):
    """Makes the sidecar with these resources deliver events to its app; after this many retries (-1: forever) they are dead letters."""
    (folder / "resiliency.yaml").write_text(RESILIENCY.format(retries=retries))
    text = SUBSCRIPTION.format(topic=TOPIC, route=route) + f"  deadLetterTopic: {DEAD}\n"
    (folder / "subscription.yaml").write_text(text)


def collect(folder):
    """The same with dead letters."""
    (folder / "subscription.yaml").write_text(SUBSCRIPTION.format(topic=DEAD, route="parked"))


class Server:
    """A component's type and properties, and how its server is killed and restarted, if there is one. `topics` are those used
    in addition to `TOPIC` and `DEAD`."""

    name, kind, process, env = "", "", None, None

    def __init__(self, fleet, topics=()):
        self.fleet = fleet
        self.properties = {}

    def behind(self, proxy):
        """Components created from now on use this proxy to reach the server."""
        proxy.port = self.port
        self.properties = {name: str(value).replace(f"{HOST}:{self.port}", proxy.address)
                           for name, value in self.properties.items()}

    def kill(self):
        self.command = self.fleet.processes[self.process].args
        self.fleet.kill(self.process)

    def start(self):
        self.fleet.app(self.process, self.command, self.port, self.env, servers.BROKER_SECONDS)


class Redis(Server):
    """A Redis that persists what it confirms."""

    name, kind, process = "redis", "redis", "app-redis"

    def __init__(self, fleet, topics=()):
        super().__init__(fleet, topics)
        redis = servers.Redis(fleet, self.process.removeprefix("app-"))
        self.port = redis.port
        redis.command("CONFIG", "SET", "appendonly", "yes")
        redis.command("CONFIG", "SET", "appendfsync", "always")
        self.properties = {"redisHost": redis.address}

    def start(self):
        # Abruptly, otherwise it would start with an empty store.
        self.command = [*self.command[:self.command.index("--appendonly")], "--appendonly", "yes", "--appendfsync", "always"]
        super().start()


class Broker(Server):
    """The guarantees of a broker."""

    # Events of one key arrive in order, whichever member gets them.
    keeps_order = False
    # Several sidecars share the events.
    has_groups = True
    # It remembers its groups after a kill. Mosquitto persists sessions but not shared subscriptions, so messages published
    # before the first member is back are lost.
    keeps_groups = True


class SqliteBroker(Broker):
    name, kind, keeps_order = "sqlite", "sqlite", True

    def __init__(self, fleet, topics=()):
        super().__init__(fleet, topics)
        self.properties = {"connectionString": fleet.dir / "broker.db", "visibilityTimeout": f"{LEASE}s"}


class RedisBroker(Redis, Broker):
    def __init__(self, fleet, topics=()):
        super().__init__(fleet, topics)
        self.properties |= {"processingTimeout": f"{LEASE}s", "redeliverInterval": "1s"}


class RabbitMq(Broker):
    name, kind, process = "rabbitmq", "rabbitmq", "app-rabbitmq"

    def __init__(self, fleet, topics=()):
        super().__init__(fleet, topics)
        server = servers.RabbitMq(fleet)
        self.port, self.env = server.port, server.env
        self.properties = {
            "connectionString": server.url, "durable": "true", "deletedWhenUnused": "false", "deliveryMode": "2",
            "prefetchCount": "10", "requeueInFailure": "true", "publisherConfirm": "true", "concurrencyMode": "parallel"}


class JetStream(Broker):
    name, kind, process = "jetstream", "jetstream", "app-nats"

    def __init__(self, fleet, topics=()):
        super().__init__(fleet, topics)
        server = servers.Nats(fleet)
        self.port = server.port
        server.stream("deliveries", [TOPIC, DEAD, *topics])
        self.properties = {"natsURL": server.url, "streamName": "deliveries", "durableName": "{group}",
                           "queueGroupName": "{group}", "ackWait": f"{LEASE}s", "concurrencyMode": "parallel"}


class Mqtt(Broker):
    name, kind, process, has_groups = "mqtt3", "mqtt3", "app-mosquitto", False

    def __init__(self, fleet, topics=()):
        super().__init__(fleet, topics)
        server = servers.Mosquitto(fleet)
        self.port = server.port
        self.properties = {"url": server.url, "qos": "1", "cleanSession": "false", "consumerID": "deliveries-{member}"}


class Mqtt5(Broker):
    name, kind, process, has_groups = "mqtt5", "mqtt5", "app-mosquitto", False

    def __init__(self, fleet, topics=()):
        super().__init__(fleet, topics)
        server = servers.Mosquitto(fleet)
        self.port = server.port
        self.properties = {"url": server.url, "qos": "1", "consumerID": "{group}", "clientID": "deliveries-{member}"}


class Mqtt5Shared(Mqtt5):
    """Replicas share events; each keeps its session, and events sent to one wait for it."""

    name, has_groups, keeps_groups = "mqtt5 shared", True, False

    def __init__(self, fleet, topics=()):
        super().__init__(fleet, topics)
        self.properties["sharedSubscriptions"] = "true"


class Kafka(Broker):
    name, kind, process, keeps_order = "kafka", "kafka", "app-kafka", True

    def __init__(self, fleet, topics=()):
        super().__init__(fleet, topics)
        self.server = servers.Kafka(fleet, partitions=6)
        self.port = int(self.server.address.rpartition(":")[2])
        self.properties = {"brokers": self.server.address, "authType": "none", "initialOffset": "oldest",
                           "sessionTimeout": f"{LEASE}s", "heartbeatInterval": "500ms", "backOffDuration": "500ms"}

    def behind(self, proxy):
        """The broker advertises its address to clients."""
        super().behind(proxy)
        self.server.advertise(proxy.address)


class SqliteStore(Server):
    name, kind = "sqlite", "sqlite"

    def __init__(self, fleet, topics=()):
        super().__init__(fleet, topics)
        self.properties = {"connectionString": fleet.dir / "store.db"}


class RedisStore(Redis):
    process = "app-redis-store"


class Postgres(Server):
    name, kind, process = "postgresql", "postgresql", "app-postgres"

    def __init__(self, fleet, topics=()):
        super().__init__(fleet, topics)
        self.server = servers.Postgres(fleet)
        self.properties = {"connectionString": self.server.text}

    def kill(self):
        self.server.kill()

    def start(self):
        self.server.start()


class Etcd(Server):
    name, kind, process = "etcd", "etcd", "app-etcd"

    def __init__(self, fleet, topics=()):
        super().__init__(fleet, topics)
        server = servers.Etcd(fleet)
        self.port = server.port
        self.properties = {"endpoints": server.address}


BROKERS = [SqliteBroker, RedisBroker, RabbitMq, JetStream, Mqtt, Mqtt5, Mqtt5Shared, Kafka]
