"""Dapr's chart becomes ours under load and Dapr's again, as docs/how-to/migrate.md describes it."""

import json
import os
import socket

import images
from client import ask, holds, same, wait
from cluster import RELEASE, SYSTEM, namespace
from load import Load, actors, invocation, publication
from short import succeeded
from workloads import finished, redis

# Of Dapr, with its binaries in the folder of the first two parts.
VERSION = os.environ.get("DAPR_VERSION", "1.18.0")
# Calls of services a second.
RATE = int(os.environ.get("RATE", "200"))
# As in failures.py: the sidecar accepts calls for longer than DNS caches its address, and the app outlives it.
DELAY = {"STOP_DELAY": "24s"}
STOPPING = {"block_shutdown_duration": "16s", "graceful_shutdown_seconds": "4"}
SETS = ("dapr-placement-server", "dapr-scheduler-server")
APPS = ("goal", "fleet", "reader", "flows")
FLOWS = 20
# Longer than the switch to ours takes.
SLEEP = 240


def run(cluster):
    yield f"Dapr {VERSION} is installed", lambda: theirs(cluster)
    yield "apps run on it, and workflows sleep", lambda: begin(cluster)
    yield "the control plane becomes ours under load", lambda: upgrade(cluster)
    yield "sidecars of apps become ours under load", lambda: roll(cluster, "outrigger/daprd")
    yield "the calling app gets our sidecar", lambda: source(cluster, "outrigger/daprd")
    yield "workflows that slept wake", lambda: woken(cluster)
    yield "the control plane becomes Dapr's again under load", lambda: back(cluster)
    yield "sidecars of apps become Dapr's again under load", lambda: roll(cluster, "dapr/daprd")
    yield "the calling app gets Dapr's sidecar again", lambda: source(cluster, "dapr/daprd")
    yield "every event arrived", lambda: arrived(cluster)


def chart(cluster):
    """Dapr's chart, from the modules of Go."""
    found = cluster.programs.parent / "mod/github.com/dapr" / f"dapr@v{VERSION}" / "charts/dapr"
    holds(found.exists(), f"{found} does not exist: conformance/build reference reference-1.17")
    return found


def theirs_loaded(cluster):
    """Loads the images of Dapr's binaries."""
    binaries = cluster.programs / ".".join(VERSION.split(".")[:2])
    lacking = [one for one in images.PARTS if not (binaries / one).exists()]
    same(lacking, [], f"programs of Dapr that are missing in {binaries}: conformance/build reference reference-1.17")
    cluster.load(images.theirs(cluster.folder, binaries, VERSION))


def theirs(cluster):
    theirs_loaded(cluster)
    cluster.install({"global": {"registry": "dapr", "tag": VERSION, "imagePullPolicy": "Never"}}, chart(cluster))
    cluster.settled()


def begin(cluster):
    client, first = cluster.client, cluster.nodes[0].name
    client.apply(namespace("shop"), *redis())
    client.rolled("shop", "deployment/redis")
    client.apply(cluster.place("source", node=first),
                 cluster.place("goal", replicas=2, environment=DELAY, **STOPPING),
                 cluster.place("fleet", replicas=2, environment={**DELAY, "ACTORS": "ship"}, **STOPPING),
                 cluster.place("reader", replicas=2, environment={**DELAY, "TOPICS": "orders", "TALLY": "redis.shop:6379"}, **STOPPING),
                 cluster.place("flows", environment={"WORKFLOWS": "1"}))
    for name in ("source", *APPS):
        client.rolled("shop", f"deployment/{name}")
    pod = cluster.only("source")
    wait("calls succeed", lambda: succeeded(ask(pod, "/sidecar/v1.0/invoke/goal/method/echo", {})) == {})
    wait("actors answer", lambda: succeeded(ask(pod, "/sidecar/v1.0/actors/ship/0/method/sail", {})))
    flow = client.pods("shop", "app=flows")[0]
    for number in range(FLOWS):
        start = f"/sidecar/v1.0/workflows/dapr/sleeper/start?instanceID=sleeper-{number}"
        wait("a workflow starts", lambda start=start: ask(flow, start, str(SLEEP).encode())[0] == 202)


class Counted(Load):
    """Counts the events that were published."""

    published = 0

    def __exit__(self, *exception):
        try:
            super().__exit__(*exception)
        finally:
            Counted.published += self.found["publish"]["sent"] - self.found["publish"]["failed"]


def load(cluster):
    return Counted(cluster.only("source"), invoke=invocation("goal", RATE), publish=publication("orders", RATE // 10),
                   actors=actors("ship", RATE // 4))


def pause(cluster, strategy):
    for name in SETS:
        cluster.client.kubectl("patch", "-n", SYSTEM, "statefulset", name, "-p", json.dumps({"spec": {"updateStrategy": strategy}}))


def replace(cluster, change):
    """The steps of docs/how-to/migrate.md around a change of the release."""
    pause(cluster, {"type": "OnDelete", "rollingUpdate": None})
    change()
    # The chart has the strategy of its own, so it is paused only if the release does not set it.
    cluster.client.rolled(SYSTEM, "deployment/dapr-sentry")
    for name in SETS:
        cluster.client.kubectl("delete", "pod", "-n", SYSTEM, "-l", f"app={name}", "--wait=false")
    pause(cluster, {"type": "RollingUpdate"})
    cluster.settled()


def upgrade(cluster):
    with load(cluster) as calls:
        replace(cluster, lambda: cluster.install(verb="upgrade"))
    return calls.told()


def back(cluster):
    client = cluster.client
    with load(cluster) as calls:
        history = json.loads(client.helm("history", RELEASE, "-n", SYSTEM, "-o", "json"))
        revision = next(one["revision"] for one in history if one["chart"].startswith("dapr-"))
        replace(cluster, lambda: client.helm("rollback", RELEASE, revision, "-n", SYSTEM))
    return calls.told()


def roll(cluster, image):
    client = cluster.client
    with load(cluster) as calls:
        for name in APPS:
            client.restart("shop", f"deployment/{name}")
    for name in APPS:
        same({image in one["image"] for pod in client.pods("shop", f"app={name}") for one in pod["spec"]["containers"]
              if one["name"] == "daprd"}, {True}, f"the image of the sidecars of {name}")
    return calls.told()


def source(cluster, image):
    cluster.client.restart("shop", "deployment/source")
    pod = cluster.only("source")
    holds(any(image in one["image"] for one in pod["spec"]["containers"]), "it has another sidecar")
    wait("calls succeed", lambda: succeeded(ask(pod, "/sidecar/v1.0/invoke/goal/method/echo", {})) == {})


def woken(cluster):
    pod = cluster.client.pods("shop", "app=flows")[0]
    ended = [wait(f"workflow {number} ends", lambda number=number: finished(pod, f"sleeper-{number}"), SLEEP + 60)
             for number in range(FLOWS)]
    same({one["runtimeStatus"] for one in ended}, {"COMPLETED"}, "states of the workflows")
    return f"{len(ended)} workflows"


def arrived(cluster):
    def count():
        with socket.create_connection((cluster.only("redis")["status"]["podIP"], 6379), 5) as connection:
            connection.sendall(b"GET /event/orders\r\n")
            return int(connection.recv(100).split()[1])
    wait("every event arrives", lambda: count() >= Counted.published)
    return f"{Counted.published} published, {count()} arrived"
