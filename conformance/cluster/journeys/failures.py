"""Restarts and failures, with calls at a fixed rate between pods: of apps, nodes, kubelets and the control plane."""

import calendar
import os
import re
import signal
import time

from client import ask, holds, same, wait
from cluster import SYSTEM, WORKLOADS, merged, namespace, template, workload
from load import Load, invocation
from node import FAKETIME
from short import succeeded
from workloads import processes

# Callers may use an address for as long as DNS caches it, twice 5 s. The sidecar accepts calls for longer, and the app outlives it.
DELAY = {"STOP_DELAY": "20s"}
# Seconds. Sentry dates certificates back by 15 minutes.
CLOCKS = {"early": -600, "late": 600}


def run(cluster):
    yield "the chart is highly available on the nodes", lambda: available(cluster)
    yield "apps for the checks run", lambda: begin(cluster)
    yield "a sidecar that hangs is not ready, and ready when it continues", lambda: hang(cluster)
    yield "a sidecar that crashes starts again", lambda: crash(cluster)
    yield "an app that is not ready gets no calls", lambda: unready(cluster)
    yield "rollout restart of an app under load fails no call", lambda: restart(cluster)
    yield "the control plane restarts under load, with the same roots", lambda: renew(cluster)
    yield "a node is drained under load", lambda: drain(cluster)
    yield "a kubelet is killed under load and starts again", lambda: kubelet(cluster)
    yield "sidecars with clocks 20 minutes apart call each other", lambda: skew(cluster)


# A drained node takes along the only injector otherwise, and pods that are created then get no sidecar.
AVAILABLE = {"global": {"ha": {"enabled": True, "topologyKey": "kubernetes.io/hostname"}}}


def available(cluster, more=None, verb="install"):
    cluster.install(merged(AVAILABLE, more or {}), verb=verb)
    cluster.settled()


def begin(cluster):
    client, first, last = cluster.client, cluster.nodes[0].name, cluster.nodes[-1].name
    client.apply(namespace("shop"), cluster.place("source", node=first),
                 cluster.place("goal", replicas=3, environment=DELAY, block_shutdown_duration="12s"), cluster.place("lone", node=last))
    for name in ("source", "goal", "lone"):
        client.rolled("shop", f"deployment/{name}")
    wait("calls succeed", lambda: called(cluster, "source", "goal"))


def called(cluster, caller, callee):
    """Whether a call between two apps succeeds."""
    answer = ask(cluster.only(caller), f"/sidecar/v1.0/invoke/{callee}/method/echo", {"from": caller}, timeout=5)
    return succeeded(answer) == {"from": caller}


def load(cluster):
    return Load(cluster.only("source"), invoke=invocation("goal"))


def of(app):
    """The process of an app's sidecar."""
    return [pid for pid in processes(app) if "daprd" in os.readlink(f"/proc/{pid}/exe")]


def sidecar(cluster):
    """The state of the sidecar of `lone`."""
    return next(one for one in cluster.only("lone")["status"]["containerStatuses"] if one["name"] == "daprd")


def hang(cluster):
    process = of("lone")[0]
    os.kill(process, signal.SIGSTOP)
    try:
        wait("its pod is not ready", lambda: not sidecar(cluster)["ready"])
    finally:
        os.kill(process, signal.SIGCONT)
    wait("its pod is ready", lambda: sidecar(cluster)["ready"])
    same(sidecar(cluster)["restartCount"], 0, "restarts: the liveness probe only connects")


def crash(cluster):
    os.kill(of("lone")[0], signal.SIGKILL)
    wait("the kubelet restarts it", lambda: sidecar(cluster)["restartCount"] == 1 and sidecar(cluster)["ready"])


def unready(cluster):
    one, *others = cluster.client.pods("shop", "app=goal")
    same(ask(one, "/sick", {})[0], 200, "the app reports that it is sick")

    def gone():
        slices = cluster.client.get("endpointslices", "-n", "shop", "-l", "kubernetes.io/service-name=goal-dapr")
        ready = [address for each in slices for end in each["endpoints"] if end["conditions"]["ready"] for address in end["addresses"]]
        return one["status"]["podIP"] not in ready and len(ready) == len(others)
    try:
        wait("its address is not ready", gone)
        # DNS and the sidecar cache addresses, for 5 s each.
        time.sleep(11)
        before = ask(one, "/counts")[1].get("/echo", 0)
        for _ in range(50):
            holds(called(cluster, "source", "goal"), "a call fails")
        same(ask(one, "/counts")[1].get("/echo", 0), before, "calls that reached it")
    finally:
        ask(one, "/sick", method="DELETE")
    cluster.client.rolled("shop", "deployment/goal")


def restart(cluster):
    with load(cluster) as calls:
        cluster.client.restart("shop", "deployment/goal")
    return calls.told()


def roots(cluster):
    return cluster.client.get("secret", "dapr-trust-bundle", "-n", SYSTEM)["data"]["ca.crt"]


def renew(cluster):
    client, before = cluster.client, roots(cluster)
    with load(cluster) as calls:
        for name in WORKLOADS:
            client.kubectl("rollout", "restart", "-n", SYSTEM, name)
        cluster.settled()
        client.restart("shop", "deployment/lone")
        wait("a pod with new certificates calls", lambda: called(cluster, "lone", "goal"))
    same(roots(cluster), before, "the roots")
    return calls.told()


def drain(cluster):
    client, node = cluster.client, cluster.nodes[-1].name
    with load(cluster) as calls:
        client.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s")
        left = [one["metadata"]["name"] for one in client.get("pods", "-n", "shop", f"--field-selector=spec.nodeName={node}")
                if one["metadata"].get("ownerReferences", [{}])[0].get("kind") == "ReplicaSet"]
        same(left, [], f"pods of {node}")
    client.kubectl("uncordon", node)
    cluster.settled()
    client.restart("shop", "deployment/goal")
    client.rolled("shop", "deployment/lone")
    bare = [one["metadata"]["name"] for name in ("goal", "lone") for one in client.pods("shop", f"app={name}")
            if len(one["spec"]["containers"]) < 2]
    same(bare, [], "pods without a sidecar")
    return calls.told()


def kubelet(cluster):
    node = cluster.nodes[-1]
    with load(cluster) as calls:
        node.space.stop("kubelet", number=signal.SIGKILL)
        wait("the node is not ready", lambda: cluster.ready_nodes() == cluster.count - 1)
        node.start("kubelet", node.kubelet, env=node.environment)
        wait("the node is ready", lambda: cluster.ready_nodes() == cluster.count)
    cluster.client.rolled("shop", "deployment/goal")
    return calls.told()


def skew(cluster):
    client = cluster.client
    for name, seconds in CLOCKS.items():
        pods = template(name, env=f"LD_PRELOAD=/faketime/{FAKETIME.name},FAKETIME={seconds:+},FAKETIME_DONT_FAKE_MONOTONIC=1",
                        volume_mounts="faketime:/faketime")
        pods["spec"]["volumes"] = [{"name": "faketime", "hostPath": {"path": str(FAKETIME.parent)}}]
        client.apply(workload("Deployment", name, pods))
    for name in CLOCKS:
        client.rolled("shop", f"deployment/{name}")
    for name, seconds in CLOCKS.items():
        said = re.search(r'time="([^".]+)', client.logs("shop", cluster.only(name)["metadata"]["name"], "daprd"))[1]
        age = time.time() + seconds - calendar.timegm(time.strptime(said, "%Y-%m-%dT%H:%M:%S"))
        holds(-5 < age < 300, f"the clock of {name} is not skewed: {said}")
    pairs = [("early", "late"), ("late", "early"), ("source", "early"), ("source", "late"), ("early", "goal"), ("late", "goal")]
    for caller, callee in pairs:
        wait(f"{caller} calls {callee}", lambda caller=caller, callee=callee: called(cluster, caller, callee), 30)
    for name in CLOCKS:
        client.kubectl("delete", "-n", "shop", "deployment", name)
