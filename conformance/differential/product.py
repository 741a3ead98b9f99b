"""One of the two products: its sidecars, apps and resources, equal for both."""

import json
import re
import time

import grpc

import fleet as fleets
from differential import apps, wire, worker
from sdk.world import component

TOKEN = "of-the-api"
APP_TOKEN = "of-the-app"
SECRET = "sea-green"
BODY_LIMIT = 65536
# The trace context of requests that carry one.
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
# Placeholders for ports; nothing listens there.
FIRST_PORT = 20000
# Time for a crashing sidecar to end.
END_SECONDS = 2
SIDECARS = ("http", "grpc", "bare", "strict", "hub", "grpc-hub")
# Subscriptions and settings reported by the app of `hub`.
JSON = (("content-type", "application/json"),)
TOPICS = [
    {"pubsubname": "broker", "topic": "plain", "route": "/on-plain"},
    {"pubsubname": "broker", "topic": "raw", "route": "/on-raw", "metadata": {"rawPayload": "true"}},
    {"pubsubname": "broker", "topic": "routed", "routes": {"default": "/on-other", "rules": [
        {"match": 'event.type == "red"', "path": "/on-red"},
        {"match": "event.data.size > 10", "path": "/on-large"}]}},
    {"pubsubname": "broker", "topic": "failing", "route": "/on-failing", "deadLetterTopic": "dead"},
    {"pubsubname": "broker", "topic": "dead", "route": "/on-dead"},
    {"pubsubname": "broker", "topic": "many", "route": "/on-many",
     "bulkSubscribe": {"enabled": True, "maxMessagesCount": 3, "maxAwaitDurationMs": 200}},
]
ACTORS = {"entities": ["Boat"], "actorIdleTimeout": "1h"}
FIXED = {"/dapr/subscribe": apps.Reply(headers=JSON, body=json.dumps(TOPICS).encode()),
         "/dapr/config": apps.Reply(headers=JSON, body=json.dumps(ACTORS).encode())}
# Subscriptions of the gRPC app of `grpc-hub`.
SUBSCRIPTIONS = "---\n".join(f"""apiVersion: dapr.io/v2alpha1
kind: Subscription
metadata:
  name: {topic}
spec:
  pubsubname: broker
  topic: {topic}
  routes:
    default: /on-{topic}
{more}scopes: [@grpc-hub@]
""" for topic, more in (("plain", ""), ("raw", "  metadata:\n    rawPayload: 'true'\n")))

CONFIGURATION = "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  name: differential\nspec:\n"
STRICT = """
  httpPipeline:
    handlers:
    - {{ name: any-route, type: middleware.http.routerchecker }}
  appHttpPipeline:
    handlers:
    - {{ name: any-route, type: middleware.http.routerchecker }}
  accessControl:
    defaultAction: allow
    trustDomain: public
    policies:
    - appId: {bare}
      trustDomain: public
      namespace: default
      defaultAction: allow
      operations:
      - {{ name: /denied, httpVerb: ["*"], action: deny }}
      - {{ name: /post-only, httpVerb: ["POST"], action: allow }}
      - {{ name: /post-only, httpVerb: ["*"], action: deny }}
"""
TRACED = """
  tracing:
    samplingRate: "1"
"""
ENDPOINT = """apiVersion: dapr.io/v1alpha1
kind: HTTPEndpoint
metadata:
  name: endpoint
spec:
  baseUrl: http://127.0.0.1:{port}/base
  headers:
  - name: x-endpoint
    value: given
"""


class Product:
    """Six sidecars with their environment: `http` and `grpc` have an app of that protocol, `bare` has none, `strict` has the
    HTTP app, an API token, limits, CORS, access control and middleware. `grpc` traces every call. `hub` and `grpc-hub` have an
    app each, a broker, and the product's own scheduler and placement; `hub` hosts actors."""

    def __init__(self, name, fleet, binaries, redis, number):
        self.name, self.fleet = name, fleet
        self.apps = [apps.HttpApp("app"), apps.HttpApp("outside"), apps.GrpcApp("grpc-app"),
                     apps.HttpApp("hub-app", FIXED), apps.GrpcApp("grpc-hub-app")]
        self.app, self.outside, self.grpc_app, self.hub_app, self.grpc_hub_app = self.apps
        self.ids = {name: f"{name}-{fleet.suffix}" for name in SIDECARS}
        self.placeholders = {f"@{name}@": app_id for name, app_id in self.ids.items()}
        self.folder = fleet.dir / "files"
        self.folder.mkdir()
        self.sidecars, self.channels = {}, {}
        self.binaries = binaries
        resources = f"--resources-path={self._resources(redis, number)}"
        own = {"APP_API_TOKEN": APP_TOKEN, "DIFFERENTIAL_SECRET": SECRET}
        self.options = {"http": {"app_port": self.app.port, "env": own},
                        "grpc": {"app_port": self.grpc_app.port, "protocol": "grpc",
                                 "flags": [self._configuration("traced", TRACED)]},
                        "bare": {},
                        "strict": {"app_port": self.app.port, "env": {"DAPR_API_TOKEN": TOKEN}, "flags": [
                            self._configuration("strict", STRICT), f"--max-body-size={BODY_LIMIT}",
                            "--read-buffer-size=8Ki",
                            "--allowed-origins=http://good.example,https://*.wild.example"]}}
        clock = [fleet.placement(binaries=binaries), fleet.scheduler(binaries=binaries)]
        self.options["hub"] = {"app_port": self.hub_app.port, "flags": clock}
        self.options["grpc-hub"] = {"app_port": self.grpc_hub_app.port, "protocol": "grpc", "flags": clock}
        for name, options in self.options.items():
            options["flags"] = [resources, *options.get("flags", ())]
            self._start(name)
        self.worker = worker.Worker(self.sidecars["hub"].grpc)
        self.started = self.records()
        self._names()

    def _start(self, name, ports=None):
        sidecar = self.fleet.sidecar(name, binaries=self.binaries, ports=ports, **self.options[name])
        self.sidecars[name] = sidecar
        self.channels[name] = grpc.insecure_channel(f"{fleets.HOST}:{sidecar.grpc}", options=(
            ("grpc.max_receive_message_length", -1), ("grpc.max_metadata_size", 1 << 18),
            ("grpc.absolute_max_metadata_size", 1 << 19), ("grpc.enable_retries", 0)))

    def revive(self, wait):
        """Restarts sidecars that have ended; returns their names. With `wait`, one is probably about to end."""
        deadline = time.monotonic() + END_SECONDS
        while wait and time.monotonic() < deadline and all(s.process.poll() is None for s in self.sidecars.values()):
            time.sleep(0.02)
        ended = [name for name, sidecar in self.sidecars.items() if sidecar.process.poll() is not None]
        for name in ended:
            del self.fleet.processes[f"daprd-{name}"]
            self.channels[name].close()
            # The first requests of a restarted sidecar to the app do not belong to a case.
            self.reply(apps.Reply(404, body=b""), apps.GrpcReply(code=grpc.StatusCode.UNIMPLEMENTED))
            self._start(name, self.sidecars[name].ports)
        if ended:
            self.records()
        return ended

    def _configuration(self, name, text):
        file = self.folder / f"{name}.yaml"
        file.write_text(CONFIGURATION + text.format(**self.ids).lstrip("\n"))
        return f"--config={file}"

    def _resources(self, redis, number):
        keys = self.folder / "keys"
        keys.mkdir()
        (keys / "symmetric").write_bytes(bytes(range(32)))
        (self.folder / "local").mkdir()
        secrets = self.folder / "secrets.json"
        secrets.write_text(json.dumps({"plain": SECRET, "deep": {"er": "green", "list": ["a", "b"]}, "empty": ""}))
        outside = f"http://{wire.HOST}:{self.outside.port}"
        documents = [
            component("memory", "state.in-memory"),
            component("sqlite", "state.sqlite", connectionString=self.folder / "state.db"),
            component("vault", "secretstores.local.file", secretsFile=secrets),
            component("deep-vault", "secretstores.local.file", secretsFile=secrets, multiValued="true"),
            component("env", "secretstores.local.env", prefix="DIFFERENTIAL_"),
            component("web", "bindings.http", url=f"{outside}/bound"),
            component("lenient-web", "bindings.http", url=f"{outside}/bound", errorIfNot2XX="false"),
            component("files", "bindings.localstorage", rootPath=self.folder / "local"),
            component("keys", "crypto.dapr.localstorage", path=keys),
            component("echo", "conversation.echo"),
            component("any-route", "middleware.http.routerchecker", rule=".*"),
            ENDPOINT.format(port=self.outside.port)]
        hubs = "scopes: [{hub}, {grpc-hub}]\n".format(**self.ids)
        documents += [text + hubs for text in (
            component("broker", "pubsub.in-memory"),
            component("guarded", "pubsub.in-memory", allowedTopics="open,secret,other", protectedTopics="secret",
                      publishingScopes=f"{self.ids['hub']}=open;{self.ids['grpc-hub']}=open,secret"),
            component("cabin", "state.in-memory", actorStateStore="true"))]
        documents.append(self.fill(SUBSCRIPTIONS, {}))
        if redis:
            at = {"redisHost": redis.address, "redisDB": number}
            documents += [component("redis", "state.redis", **at), component("lock", "lock.redis", **at),
                          component("cache", "bindings.redis", **at),
                          component("settings", "configuration.redis", redisHost=redis.address, redisDB=number + 2)]
            for key, value in (("colour", "green||1"), ("size", "12"), ("empty", "")):
                redis.command("SET", key, value, database=number + 2)
        folder = self.folder / "resources"
        folder.mkdir()
        (folder / "all.yaml").write_text("---\n".join(documents))
        return folder

    def _names(self):
        """Values that differ between products and runs, and their replacements."""
        words = {f"{name}-{self.fleet.suffix}": f"ID-OF-{name.upper()}" for name in SIDECARS}
        ports = [app.port for app in self.apps]
        ports += [port for sidecar in self.sidecars.values() for port in sidecar.ports]
        # Numbers replace numbers, so that JSON stays valid.
        words.update((str(port), str(FIRST_PORT + number)) for number, port in enumerate(ports))
        words[str(self.fleet.dir)] = "FOLDER"
        self.words = words
        patterns = (rf"(?<![0-9A-Za-z]){name}(?![0-9A-Za-z])" if name.isdigit() else re.escape(name) for name in words)
        self.pattern = re.compile("|".join(patterns))
        self.placeholders |= {
            "@app@": f"{wire.HOST}:{self.app.port}", "@outside@": f"{wire.HOST}:{self.outside.port}"}

    def neutral(self, text):
        return self.pattern.sub(lambda found: self.words[found[0]], text)

    def fill(self, text, captured):
        """Replaces placeholders for ids, addresses and fields of earlier responses in a text or bytes."""
        if isinstance(text, bytes):
            return self.fill(text.decode("latin-1"), captured).encode("latin-1")
        if "@" in text:
            for placeholder, value in {**self.placeholders, **captured}.items():
                text = text.replace(placeholder, value)
        return text

    def reply(self, http_reply, grpc_reply):
        self.app.reply = self.outside.reply = self.hub_app.reply = http_reply
        self.grpc_app.reply = self.grpc_hub_app.reply = grpc_reply

    def received(self):
        """The number of requests that the apps have received since the last call of `received`."""
        return sum(len(app.records) for app in self.apps)

    def records(self):
        """The requests that the apps have received since the last call."""
        taken = []
        for app in self.apps:
            while app.records:
                taken.append(app.records.popleft())
        return taken

    def close(self):
        self.worker.close()
        for channel in self.channels.values():
            channel.close()
        for app in self.apps:
            app.close()
