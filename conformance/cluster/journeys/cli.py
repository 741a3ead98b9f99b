"""The commands of Dapr's official CLI for Kubernetes."""

import re

from client import ask, holds, same, wait
from cluster import SYSTEM, WORKLOADS
from workloads import component, installed


def run(cluster):
    yield "the chart is installed and every part is ready", lambda: installed(cluster)
    yield "an app and a component exist", lambda: begin(cluster)
    yield "dapr status -k", lambda: status(cluster)
    yield "dapr list -k", lambda: listed(cluster)
    yield "dapr components -k and configurations -k", lambda: resources(cluster)
    yield "dapr mtls -k, expiry and export", lambda: mtls(cluster)
    yield "dapr logs -k", lambda: logs(cluster)
    yield "dapr annotate -k", lambda: annotate(cluster)
    yield "dapr upgrade -k without access to Dapr's charts changes nothing", lambda: upgrade(cluster)
    yield "dapr uninstall -k", lambda: uninstall(cluster)


def dapr(cluster, *words, **options):
    return cluster.client.run(cluster.programs / "dapr", *words, **options)


def begin(cluster):
    client = cluster.client
    client.apply(cluster.place("shown"), component("kept", "state.in-memory"),
                 {"apiVersion": "dapr.io/v1alpha1", "kind": "Configuration", "metadata": {"name": "chosen", "namespace": "shop"},
                  "spec": {"tracing": {"samplingRate": "0.1"}}})
    client.rolled("shop", "deployment/shown")


def status(cluster):
    said = dapr(cluster, "status", "-k")
    for name in WORKLOADS:
        line = next((one for one in said.splitlines() if name.split("/")[1] in one), "")
        holds("True" in line and "Running" in line, f"{name}: {line or said}")


def listed(cluster):
    said = dapr(cluster, "list", "-k", "--namespace", "shop")
    holds(re.search(r"shop\s+shown\s+8080", said), said)


def resources(cluster):
    holds("state.in-memory" in dapr(cluster, "components", "-k", "--namespace", "shop"), "the component is not listed")
    holds("chosen" in dapr(cluster, "configurations", "-k", "--namespace", "shop"), "the configuration is not listed")


def mtls(cluster):
    holds("enabled" in dapr(cluster, "mtls", "-k"), "mTLS is not enabled")
    said = dapr(cluster, "mtls", "expiry")
    holds("expires in" in said, said)
    folder = cluster.folder / "exported"
    dapr(cluster, "mtls", "export", "-o", folder)
    same(sorted(one.name for one in folder.iterdir()), ["ca.crt", "issuer.crt", "issuer.key"], "exported files")


def logs(cluster):
    said = dapr(cluster, "logs", "-k", "-a", "shown", "-n", "shop")
    holds("level=info" in said, said[:500])


def annotate(cluster):
    file = cluster.folder / "plain.yaml"
    file.write_text(PLAIN)
    said = dapr(cluster, "annotate", "-k", "-a", "plain", file)
    cluster.client.kubectl("apply", "-n", "shop", "-f", "-", given=said)
    cluster.client.rolled("shop", "deployment/plain")
    same([one["name"] for one in cluster.only("plain")["spec"]["containers"]], ["app", "daprd"], "containers")


PLAIN = """apiVersion: apps/v1
kind: Deployment
metadata: {name: plain, namespace: shop}
spec:
  selector: {matchLabels: {app: plain}}
  template:
    metadata: {labels: {app: plain}}
    spec:
      containers: [{name: app, image: "cluster/app:1", imagePullPolicy: Never}]
"""


def upgrade(cluster):
    before = cluster.client.helm("history", "dapr", "-n", SYSTEM)
    try:
        dapr(cluster, "upgrade", "-k", "--runtime-version", "1.18.0", timeout=120)
    except OSError as error:
        told = str(error).splitlines()[-1]
    else:
        raise AssertionError("it upgraded")
    same(cluster.client.helm("history", "dapr", "-n", SYSTEM), before, "the history of the release")
    return told[-200:]


def uninstall(cluster):
    dapr(cluster, "uninstall", "-k", timeout=300)
    wait("no pod of the control plane remains", lambda: not cluster.client.get("pods", "-n", SYSTEM))
    status, _ = ask(cluster.only("shown"), "/sidecar/v1.0/metadata")
    same(status, 200, "the sidecar of a running pod answers")
