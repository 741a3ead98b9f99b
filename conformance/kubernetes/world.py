"""Shared by checks and measurements with a real API server: the chart, the control plane as pods, apps and sidecars."""

import base64
import collections
import contextlib
import http.server
import json
import pathlib
import sys
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "chart")]
import checks as chart  # conformance/chart: not this file, which is __main__
import fleet as fleets
import network
from cluster import ADDRESS, Cluster, Refused, wait
from expect import holds, same

CHART = HERE.parent.parent / "charts" / "outrigger"
SYSTEM = chart.NAMESPACE
WORKLOADS = ("Deployment", "StatefulSet")
PARTS = {"sentry": "dapr-sentry", "operator": "dapr-operator", "injector": "dapr-sidecar-injector",
         "placement": "dapr-placement-server", "scheduler": "dapr-scheduler-server"}
KINDS = ("Component", "Configuration", "HTTPEndpoint", "Resiliency", "Subscription")
RESOURCES = "/apis/dapr.io/v1alpha1/namespaces"
SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/dapr-trust-bundle"
# The operator's values when the chart is applied again.
WATCHDOG = {"dapr_operator": {"watchInterval": "1s"}}


class App:
    """An app that records requests, hosts actors of some types, and fails at some paths."""

    def __init__(self, actors=(), failing=()):
        # Bodies and headers, by path.
        self.seen, self.headers = collections.defaultdict(list), collections.defaultdict(list)
        app = self
        config = json.dumps({"entities": list(actors)}).encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.keep()

            def do_PUT(self):
                self.keep()

            def do_DELETE(self):
                self.answer(200, b"")

            def keep(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                app.headers[self.path].append(self.headers)
                app.seen[self.path].append(body)
                self.answer(500 if self.path in failing else 200, body)

            def do_GET(self):
                told = actors and self.path == "/dapr/config"
                self.answer(200 if told else 404, config if told else b"")

            def answer(self, status, body):
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer((ADDRESS, 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def pod(name, namespace="shop", labels=None, **annotations):
    """An app's pod; annotations are those of Dapr, with `_` for `-`."""
    noted = {f"dapr.io/{key.replace('_', '-')}": str(value) for key, value in annotations.items()}
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels or {"app": name}, "annotations": noted},
            "spec": {"containers": [{"name": "app", "image": "example.com/app"}]}}


def containers(found):
    return [one["name"] for one in found["spec"]["containers"]]


def component(name, kind, namespace="shop", scopes=(), **metadata):
    items = [{"name": key, **(value if isinstance(value, dict) else {"value": value})} for key, value in metadata.items()]
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": {"name": name, "namespace": namespace},
            "spec": {"type": kind, "version": "v1", "metadata": items}, **({"scopes": list(scopes)} if scopes else {})}


def subscription(name, topic, route, namespace="shop"):
    return {"apiVersion": "dapr.io/v2alpha1", "kind": "Subscription", "metadata": {"name": name, "namespace": namespace},
            "spec": {"pubsubname": "events", "topic": topic, "routes": {"default": route}}}


class Sidecar(fleets.Sidecar):
    """A sidecar in a pod."""

    def __init__(self, address):
        self.http, self.host = 3500, address


class World:
    """The state shared by the checks."""

    def __init__(self, fleet, cluster, program, path=CHART):
        self.fleet, self.cluster, self.api, self.program, self.chart = fleet, cluster, cluster.api, program, path
        self.apps, self.sidecars, self.pods = {}, {}, {}
        self.controller = None

    def render(self, cases):
        return chart.render(self.program, self.chart, cases)

    def objects(self, values, of=""):
        """The objects of the chart for some values; optionally only those with a name prefix."""
        return [one for one in self.render({"one": values})["one"]["objects"] if one["metadata"]["name"].startswith(of)]

    def define(self):
        """Applies the definitions of the chart, and waits until the API server serves them."""
        for one in self.render({"one": {}})["crds"]["objects"]:
            self.api.apply(one)
        self.served()

    def served(self):
        """Waits until the API server serves every kind of the objects."""
        for kind in KINDS:
            wait(f"{kind} is served", lambda kind=kind: self.api.collection(
                "dapr.io/v2alpha1" if kind == "Subscription" else "dapr.io/v1alpha1", kind, "default"))

    def begin(self, *namespaces):
        """Creates the namespaces of apps, and the account of the controller that creates pods, which the injector looks up at start."""
        self.cluster.account("kube-system", "replicaset-controller")
        self.controller = self.cluster.token("kube-system", "replicaset-controller")
        for name in namespaces:
            self.cluster.namespace(name)

    # The control plane

    def create(self, part, objects, number=0):
        """The pod of a workload of the chart, as its controller creates it."""
        workload = next(one for one in objects if one["kind"] in WORKLOADS and one["metadata"]["name"] == PARTS[part])
        template = workload["spec"]["template"]
        name = f"{PARTS[part]}-{number}"
        spec = json.loads(json.dumps(template["spec"]))
        claims = workload["spec"].get("volumeClaimTemplates", [])
        spec.setdefault("volumes", []).extend({"name": one["metadata"]["name"], "emptyDir": {}} for one in claims)
        if not self.api.missing(f"/api/v1/namespaces/{SYSTEM}/pods/{name}"):
            self.api.delete(f"/api/v1/namespaces/{SYSTEM}/pods/{name}?gracePeriodSeconds=0")
        meta = {**template["metadata"], "name": name, "namespace": SYSTEM}
        self.pods[name] = self.cluster.exists[name] = self.cluster.pod({"metadata": meta, "spec": spec})
        return name

    def run(self, name, binaries=None, clock=0, more=()):
        """Starts the process of a control plane pod. `binaries` overrides its folder, `clock` shifts its clock by seconds, and
        `more` are additional arguments."""
        found = self.pods[name]
        self.cluster.start(name, found, found["spec"]["containers"][0]["name"], more, binaries=binaries, clock=clock)

    def again(self, part, objects, more=()):
        """Applies other objects of the chart and replaces the pod of a part."""
        name = f"{PARTS[part]}-0"
        self.fleet.end(name)
        for one in objects:
            self.api.apply(one)
        self.create(part, objects)
        self.cluster.publish()
        self.run(name, more=more)
        self.healthy(name)

    def remove(self, name):
        """Stops the process of a control plane pod, and deletes the pod."""
        if name in self.fleet.processes:
            self.fleet.end(name)
        self.cluster.discard(name)
        self.cluster.exists.pop(name, None)
        self.pods.pop(name, None)
        self.api.delete(f"/api/v1/namespaces/{SYSTEM}/pods/{name}?gracePeriodSeconds=0")

    def healthy(self, name, binaries=None):
        """Waits until it is ready; restarts it up to twice, as a kubelet does."""
        for left in (2, 1, 0):
            try:
                return self.answers(name, f"http://{self.cluster.address(self.pods[name])}:8080/healthz")
            except RuntimeError as error:
                if not left or self.fleet.processes[name].poll() is None:
                    raise
                print(f"    started again: {error}")
                self.fleet.processes.pop(name)
                self.run(name, binaries)

    def answers(self, name, url):
        """Waits until a process responds with success at an address."""
        def answered():
            with urllib.request.urlopen(url, timeout=2) as answer:
                return 200 <= answer.status < 300
        self.fleet.until(name, answered, url, 60)

    # Sidecars

    def deploy(self, name, namespace="shop", app=True, actors=(), failing=(), binaries=None, clock=0, **annotations):
        """Creates an app's pod like the controller of replica sets, and starts its sidecar. `binaries` overrides its folder,
        and `clock` shifts its clock by seconds."""
        if app:
            self.apps[name] = App(actors, failing)
            annotations["app_port"] = self.apps[name].port
        self.sidecar(name, self.injected(name, namespace, **annotations), binaries=binaries, clock=clock)

    def injected(self, name, namespace="shop", **annotations):
        """Creates an app's pod like the controller of replica sets. Its app and the callers of its sidecar are outside."""
        annotations = {"enabled": "true", "app_id": name, "sidecar_listen_addresses": "0.0.0.0",
                       "app_channel_address": ADDRESS, **annotations}
        return self.api.post(f"/api/v1/namespaces/{namespace}/pods",
                             {"apiVersion": "v1", "kind": "Pod", **pod(name, namespace, **annotations)},
                             token=self.controller)

    def dismiss(self, *names):
        """Ends sidecars."""
        for name in names:
            self.fleet.end(f"daprd-{name}")
            self.cluster.forget(f"daprd-{name}")

    def expose(self, name, namespace="shop", **annotations):
        """Creates the deployment of an app and waits for the service that the operator creates; registers both as the API
        server has them. `deploy` creates pods of the deployment."""
        template = pod(name, namespace, enabled="true", app_id=name, **annotations)
        meta = {"labels": template["metadata"]["labels"], "annotations": template["metadata"]["annotations"]}
        deployment = self.api.post(f"/apis/apps/v1/namespaces/{namespace}/deployments", {
            "metadata": {"name": name}, "spec": {"selector": {"matchLabels": meta["labels"]},
                                                 "template": {"metadata": meta, "spec": template["spec"]}}})
        service = wait(f"the service of {name}",
                       lambda: self.api.get(f"/api/v1/namespaces/{namespace}/services/{name}-dapr"))
        self.cluster.publish()
        return deployment, service

    def sidecar(self, name, found, more=(), ready=True, **options):
        """Starts the sidecar of a pod, with options of `Cluster.start`."""
        self.cluster.start(f"daprd-{name}", found, "daprd", more, **options)
        self.sidecars[name] = Sidecar(self.cluster.address(found))
        if ready:
            self.answers(f"daprd-{name}", f"http://{self.cluster.address(found)}:3501/v1.0/healthz")

    def metadata(self, name):
        return self.sidecars[name].ask("GET", "/v1.0/metadata")[2]

    def components(self, name):
        return {one["name"] for one in self.metadata(name)["components"]}

    def endpoints(self, name):
        return {one["name"] for one in self.metadata(name).get("httpEndpoints", [])}

    def call(self, caller, callee):
        """The status of a call of an app through another one's sidecar."""
        return self.sidecars[caller].ask("POST", f"/v1.0/invoke/{callee}/method/hello", {"a": 1})[0]

    def said(self, name, text):
        """How often a text occurs in the log of a process."""
        return (self.fleet.dir / f"{name}.log").read_text(errors="replace").count(text)

    def logged(self, name, text):
        return self.said(name, text) > 0

    def anchors(self):
        """The root certificate that sentry published."""
        return self.api.get(f"/api/v1/namespaces/{SYSTEM}/configmaps/dapr-trust-bundle").get("data", {}).get("ca.crt")

    def registered(self):
        """Whether the API server has the root certificate for both webhooks."""
        def names(config):
            return base64.b64decode(config.get("caBundle") or "").strip() == self.anchors().strip().encode()
        hook = self.api.get("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/dapr-sidecar-injector")
        crd = self.api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/subscriptions.dapr.io")
        convert = crd["spec"]["conversion"]["webhook"]["clientConfig"]
        return (names(hook["webhooks"][0]["clientConfig"]) and names(convert)
                and convert["service"]["namespace"] == SYSTEM)

    def holder(self, lease="operator.dapr.io"):
        path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{lease}"
        return self.api.get(path)["spec"]["holderIdentity"]


def adder(checks):
    """A decorator that adds a check to a list: a name and a function of the world."""
    def check(name):
        def add(function):
            checks.append((name, function))
            return function
        return add
    return check


@contextlib.contextmanager
def session(binaries, server, program, path=CHART):
    """A cluster in this separate network, and the stack that ends it."""
    with fleets.Fleet(binaries, sentry=False) as fleet, Cluster(fleet, server, binaries) as cluster:
        yield World(fleet, cluster, program, path)
        for name in [name for name in fleet.processes if not name.startswith("app-")]:
            fleet.end(name)


def own_network(script):
    """Restarts the script in a separate network, if it is not in one."""
    network.own()
    if network.outside():
        sys.exit(f"{script}: separate networks are not available on this machine (unshare --net)")


def perform(world, checks):
    """Runs checks (a name and a function of the world), prints each result, and returns the numbers of passed and failed ones."""
    passed = failed = 0
    for number, (name, function) in enumerate(checks, 1):
        began = time.monotonic()
        try:
            function(world)
        except Exception as error:  # the other checks continue
            failed += 1
            print(f"FAILED {number:2} {name}: {type(error).__name__} {error}", flush=True)
        else:
            passed += 1
            print(f"ok     {number:2} {name} ({time.monotonic() - began:.1f} s)", flush=True)
    if failed:
        world.fleet.keep_logs()
    return passed, failed
