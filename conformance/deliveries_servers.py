"""The brokers and the stores of the checks of deliveries: what sidecars are told of them, how they are killed and come back."""

import os

import servers
from fleet import HOST

TOPIC, DEAD = "work", "work-dead"
# Seconds: how long a broker can be out of reach, and how long brokers wait for a consumer that says nothing.
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
# An app that is away for a moment is no reason for a dead letter; one that refuses an event again and again is.
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
    """Has the sidecar with these resources give the events to its app; after so many retries (-1: for ever) they are dead."""
    (folder / "resiliency.yaml").write_text(RESILIENCY.format(retries=retries))
    text = SUBSCRIPTION.format(topic=TOPIC, route=route) + f"  deadLetterTopic: {DEAD}\n"
    (folder / "subscription.yaml").write_text(text)


def collect(folder):
    """The same with dead letters."""
    (folder / "subscription.yaml").write_text(SUBSCRIPTION.format(topic=DEAD, route="parked"))


class Server:
    """A component's kind and properties, and how its server is killed and comes back, where there is one. `topics` are those
    beside `TOPIC` and `DEAD` that are used."""

    name, kind, process, env = "", "", None, None

    def __init__(self, fleet, topics=()):
        self.fleet = fleet
        self.properties = {}

    def behind(self, proxy):
        """Whoever is told of the component from now on reaches its server through this proxy."""
        proxy.port = self.port
        self.properties = {name: str(value).replace(f"{HOST}:{self.port}", proxy.address)
                           for name, value in self.properties.items()}

    def kill(self):
        self.command = self.fleet.processes[self.process].args
        self.fleet.kill(self.process)

    def start(self):
        self.fleet.app(self.process, self.command, self.port, self.env, servers.BROKER_SECONDS)


class Redis(Server):
    """A Redis that has on its disk what it confirms."""

    name, kind, process = "redis", "redis", "app-redis"

    def __init__(self, fleet, topics=()):
        super().__init__(fleet, topics)
        redis = servers.Redis(fleet, self.process.removeprefix("app-"))
        self.port = redis.port
        redis.command("CONFIG", "SET", "appendonly", "yes")
        redis.command("CONFIG", "SET", "appendfsync", "always")
        self.properties = {"redisHost": redis.address}

    def start(self):
        # Without a word it would begin with an empty store.
        self.command = [*self.command[:self.command.index("--appendonly")], "--appendonly", "yes", "--appendfsync", "always"]
        super().start()


class Broker(Server):
    """What a broker promises."""

    # Events of one key come in order, whoever of a group takes them.
    keeps_order = False
    # Several sidecars share the events.
    has_groups = True
    # It knows of its groups when it comes back from a kill. Mosquitto keeps sessions on its disk, but not who shares
    # subscriptions: what is published before the first of them is back is for nobody.
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
    """Replicas share; each keeps its session, and what the broker has sent to one waits for it."""

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
        """The broker itself tells its clients where it is."""
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
