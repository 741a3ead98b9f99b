"""A cluster of some nodes with our images, and our chart as a release."""

import json
import pathlib
import time

import dns
import images
from client import Client, same, wait
from control import Control
from machine import Machine
from node import Node

CHART = images.ROOT / "charts" / "outrigger"
SYSTEM = "dapr-system"
RELEASE = "dapr"
OURS = {"global": {"registry": "outrigger", "tag": "1.18.3", "imagePullPolicy": "Never"}}
# Ready is what the kubelet says of them.
WORKLOADS = {"deployment/dapr-sentry": 1, "deployment/dapr-operator": 1, "deployment/dapr-sidecar-injector": 1,
             "statefulset/dapr-placement-server": 1, "statefulset/dapr-scheduler-server": 3}
# Volumes of schedulers and placement; one that was released is not used again.
VOLUMES = 48


def merged(one, other):
    """Values of a chart, those of `other` first."""
    found = dict(one)
    for key, value in other.items():
        found[key] = merged(found[key], value) if isinstance(value, dict) and isinstance(found.get(key), dict) else value
    return found


class Cluster:
    """A context manager. The folder `ours` has our images."""

    def __init__(self, folder, cgroups, programs, nodes):
        self.folder, self.programs = pathlib.Path(folder), pathlib.Path(programs)
        self.machine, self.count = Machine(folder, cgroups), nodes
        self.nodes, self.control, self.client = [], None, None
        self.begun = time.monotonic()

    def __enter__(self):
        self.machine.__enter__()
        try:
            self.begin()
        except BaseException:
            self.machine.__exit__()
            raise
        return self

    def __exit__(self, *exception):
        self.machine.__exit__(*exception)

    def say(self, text):
        print(f"{time.monotonic() - self.begun:5.0f} s  {text}", flush=True)

    def begin(self):
        """Brings the cluster up: Kubernetes, DNS, and the images of the checks."""
        self.nodes = [Node(self.machine, number) for number in range(1, self.count + 1)]
        for node in self.nodes:
            node.begin([other for other in self.nodes if other is not node])
        self.control = Control(self.nodes[0], self.programs)
        for node in self.nodes:
            self.control.token(f"system:node:{node.name}", "system:nodes")
        self.control.token("system:kube-proxy")
        self.control.start()
        self.client = Client(self.control.config("admin"), self.programs, self.folder)
        made = images.own(self.folder, self.programs)
        for layout in (made, self.folder / "ours"):
            self.load(layout)
        self.start_kubelets()
        self.client.apply(*dns.objects(), *self.volumes())
        self.client.rolled("kube-system", "deployment/coredns")
        self.say(f"{self.count} nodes and DNS are ready")

    def start_kubelets(self):
        self.ready("the API server", lambda: self.client.kubectl("get", "--raw", "/readyz") == "ok")
        self.say("the API server is ready")
        for node in self.nodes:
            node.start_kubelet(self.control, self.programs)
            node.start_proxy(self.control, self.programs)
        self.ready("every node is ready", lambda: self.ready_nodes() == self.count)

    def reboot(self):
        """Ends everything at once, as a power failure of all nodes does, and starts it again."""
        for node in self.nodes:
            node.space.end(node.cgroups)
        for node in self.nodes:
            node.space.begin()
        for node in self.nodes:
            node.begin([other for other in self.nodes if other is not node])
        self.control.start()
        self.start_kubelets()

    def ready(self, what, condition):
        """Waits for a condition, unless a process ends."""
        def holds():
            self.machine.check()
            return condition()
        try:
            wait(what, holds)
        except AssertionError:
            for name in ("node1-apiserver", "node1-kubelet", "node1-containerd"):
                if self.machine.log(name).exists():
                    print(f"-- {name}", *self.machine.log(name).read_text(errors="replace").splitlines()[-15:], sep="\n")
            raise

    def ready_nodes(self):
        return sum(any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions", []))
                   for node in self.client.get("nodes"))

    def volumes(self):
        """Folders of this machine, which every node sees, as volumes; nothing provisions others."""
        for number in range(VOLUMES):
            folder = self.folder / "volumes" / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)
            yield {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"volume-{number}"}, "spec": {
                "capacity": {"storage": "20Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": str(folder)}}}

    def load(self, layout, nodes=None):
        """Loads the images of a layout into nodes."""
        archive = images.archive(layout, self.folder / f"{layout.name}.tar")
        for node in nodes or self.nodes:
            wait(f"containerd of {node.name} answers", lambda node=node: node.ctr("version"))
            node.load(archive)
        archive.unlink()

    def install(self, values=None, chart=CHART, verb="install"):
        """Installs or upgrades the release, and waits until its workloads are ready."""
        path = self.folder / "values.json"
        path.write_text(json.dumps(merged(OURS, values or {}) if chart == CHART else values or {}))
        if chart == CHART:
            self.client.kubectl("apply", "--server-side", "--force-conflicts", "-f", CHART / "crds")
        self.client.helm(verb, RELEASE, chart, "--namespace", SYSTEM, "--create-namespace", "--values", path)

    def clean(self):
        """Removes the release and the apps of a journey."""
        if RELEASE in self.client.helm("list", "-q", "-n", SYSTEM).split():
            self.client.helm("uninstall", RELEASE, "-n", SYSTEM, "--wait")
        kept = ("kube", "default")
        mine = [name for one in self.client.get("namespaces") if not (name := one["metadata"]["name"]).startswith(kept)]
        if mine:
            self.client.kubectl("delete", "namespaces", *mine)

    def settled(self, timeout=240):
        """Waits until every part of the control plane is ready."""
        for name in WORKLOADS:
            self.client.rolled(SYSTEM, name, timeout)

    def place(self, name, namespace="shop", node=None, replicas=1, labels=None, environment=(), **annotations):
        """A Deployment of the app with a sidecar; `_` in the annotations is `-`."""
        return workload("Deployment", name, template(name, node, environment, labels, **annotations), namespace, replicas=replicas)

    def only(self, name, namespace="shop"):
        """The one pod of an app."""
        found = wait(f"one pod of {name}", lambda: self.client.pods(namespace, f"app={name}"))
        same(len(found), 1, f"pods of {name}")
        return found[0]


def template(name, node=None, environment=(), labels=None, **annotations):
    """The pod template of an app."""
    noted = {"enabled": "true", "app_id": name, "app_port": "8080", **annotations}
    noted = {f"dapr.io/{key.replace('_', '-')}": str(value) for key, value in noted.items()} if noted["enabled"] else {}
    return {"metadata": {"labels": {"app": name, **(labels or {})}, "annotations": noted}, "spec": {
        **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
        "containers": [{"name": "app", "image": "cluster/app:1", "imagePullPolicy": "Never",
                        "env": [{"name": key, "value": str(value)} for key, value in dict(environment).items()],
                        "ports": [{"containerPort": 8080}],
                        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1}}]}}


def workload(kind, name, pods, namespace="shop", **spec):
    """A workload with these pods."""
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": {
        "selector": {"matchLabels": {"app": name}}, "template": pods, **spec}}


def namespace(name):
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
