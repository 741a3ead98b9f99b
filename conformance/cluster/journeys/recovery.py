"""Bad days: a full disk, tokens that expire, a power failure of all nodes, and another root for the certificates."""

import base64
import json
import re
import time

from client import ask, holds, same, wait
from cluster import SYSTEM, merged, namespace, template
from control import Authority
from failures import DELAY, available, called, roots
from load import Load, invocation
from node import DISK
from workloads import finished, redis

# The shortest lifetime of a token that Kubernetes accepts. Kubelets replace it after 80 % of it.
TOKEN = 600
# Of certificates. It is shorter than the clock skew that sentry tolerates, so sidecars renew them every 10 s.
LIFETIME = 120
ROTATED = "dapr_runtime_mtls_workload_cert_rotated_total"
# Seconds that the workflow sleeps; the power failure takes part of it.
SLEEP = 60


def run(cluster):
    keeper = Keeper(cluster)
    yield f"the chart is highly available, with certificates of {LIFETIME} s", lambda: begin(cluster)
    yield f"a pod has a token of {TOKEN} s", keeper.begin
    yield "the pods of a node with a full disk move, and calls succeed", lambda: disk(cluster)
    yield "sidecars renew certificates with new tokens under load, and no call fails", keeper.renewed
    yield "pods call each other after a power failure of all nodes", lambda: reboot(cluster)
    yield "a workflow and a job continue, and the roots are the same", lambda: survived(cluster)
    yield "the CA is replaced as docs/how-to/certificates.md describes it, and no call fails", lambda: replaced(cluster)


VALUES = {"global": {"mtls": {"workloadCertTTL": f"{LIFETIME}s"}}}


def begin(cluster):
    client, first = cluster.client, cluster.nodes[0].name
    available(cluster, VALUES)
    client.apply(namespace("shop"), *redis(cluster.folder / "redis"))
    client.rolled("shop", "deployment/redis")
    client.apply(cluster.place("source", node=first), cluster.place("server"),
                 cluster.place("goal", replicas=3, environment=DELAY, block_shutdown_duration="12s"),
                 cluster.place("flows", environment={"WORKFLOWS": "1"}))
    for name in ("source", "goal", "server", "flows"):
        client.rolled("shop", f"deployment/{name}")
    wait("calls succeed", lambda: called(cluster, "source", "goal"))


class Keeper:
    """A pod whose identity ends soon, unless the kubelet replaces its token."""

    def __init__(self, cluster):
        self.cluster, self.client, self.node = cluster, cluster.client, cluster.nodes[0]

    def begin(self):
        pod = {"apiVersion": "v1", "kind": "Pod", **template("keeper", self.node.name)}
        pod["metadata"] |= {"name": "keeper", "namespace": "shop"}
        # With the sidecar of the injector, but another lifetime of the token.
        made = json.loads(self.client.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", given=json.dumps(pod)))
        tokens = [source["serviceAccountToken"] for volume in made["spec"]["volumes"] if volume["name"] == "dapr-identity-token"
                  for source in volume["projected"]["sources"]]
        same(len(tokens), 1, "tokens of the sidecar")
        tokens[0]["expirationSeconds"] = TOKEN
        pod["spec"], pod["metadata"]["labels"] = made["spec"], made["metadata"]["labels"]
        self.client.apply(pod)
        self.client.kubectl("wait", "-n", "shop", "pod/keeper", "--for=condition=Ready", "--timeout=90s")
        wait("it calls", lambda: called(self.cluster, "keeper", "goal"))
        self.uid = self.cluster.only("keeper")["metadata"]["uid"]
        self.first = self.token()
        same(self.first["exp"] - self.first["iat"], TOKEN, "seconds from issue to expiry")

    def token(self):
        """The claims of its token."""
        folder = self.node.disk / "pods" / self.uid / "volumes/kubernetes.io~projected/dapr-identity-token"
        claims = self.node.space.inside("cat", folder / "token").split(".")[1]
        return json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))

    def rotations(self):
        _, text = ask(self.cluster.only("keeper"), "/metrics", port=9090)
        return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(ROTATED + r"[{ ]", line))

    def renewed(self):
        source, keeper = (Load(self.cluster.only(name), invoke=invocation("goal")) for name in ("source", "keeper"))
        with source, keeper:
            wait("the kubelet replaces the token", lambda: self.token()["iat"] > self.first["iat"], TOKEN)
            time.sleep(max(0, self.first["exp"] + 1 - time.time()))
            before = self.rotations()
            wait("the sidecar gets a certificate after the first token ended", lambda: self.rotations() > before, LIFETIME)
            many = self.rotations()
        return f"{many:.0f} renewals; {source.told()}; {keeper.told()}"


def pressure(cluster, node):
    """Whether a node reports a full disk."""
    conditions = cluster.client.get("node", node.name)["status"]["conditions"]
    return next(one["status"] for one in conditions if one["type"] == "DiskPressure") == "True"


def disk(cluster):
    client, node = cluster.client, cluster.nodes[-1]
    at = ("-n", "shop", f"--field-selector=spec.nodeName={node.name},status.phase=Running")
    holds(client.get("pods", *at), f"no pod runs on {node.name}")
    # The kubelet kills pods without a grace period. A call can fail that has begun there.
    with Load(cluster.only("source"), allowed=20, invoke=invocation("goal")) as calls:
        node.space.inside("fallocate", "-l", f"{DISK * 97 // 100}M", node.disk / "full")
        try:
            wait("the node reports it", lambda: pressure(cluster, node))
            wait("its pods are gone", lambda: not client.get("pods", *at), 180)
            for name in ("goal", "server", "flows", "redis"):
                client.rolled("shop", f"deployment/{name}")
            cluster.settled()
        finally:
            node.space.inside("rm", node.disk / "full")
        wait("the node has space", lambda: not pressure(cluster, node))
    client.restart("shop", "deployment/goal")
    return calls.told()


def reboot(cluster):
    client, pod = cluster.client, cluster.only("flows")
    cluster.kept = roots(cluster)
    start = "/sidecar/v1.0/workflows/dapr/sleeper/start?instanceID=night"
    wait("a workflow starts", lambda: ask(pod, start, str(SLEEP).encode())[0] == 202)
    job = {"schedule": "@every 2s", "data": "salt"}
    same(ask(cluster.only("server"), "/sidecar/v1.0-alpha1/jobs/watch", job)[0], 204, "a job is scheduled")
    failed = time.time()
    cluster.reboot()
    up = time.time()

    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(failed))

    def started(pod):
        states = pod["status"].get("containerStatuses", [])
        return states and all(one["ready"] and one["state"]["running"]["startedAt"] >= since for one in states)
    wait("every container started again", lambda: all(map(started, client.pods("shop", "app") + client.pods(SYSTEM, "app"))), 300, 1)
    for caller in ("source", "keeper"):
        wait(f"{caller} calls", lambda caller=caller: called(cluster, caller, "goal"))
    return f"the nodes were up after {up - failed:.0f} s, and the pods called each other {time.time() - up:.0f} s later"


def survived(cluster):
    ended = wait("the workflow ends", lambda: finished(cluster.only("flows"), "night"), SLEEP + 60)
    same(json.loads(ended["properties"]["dapr.workflow.output"]), "woke", "its output")
    # The pod counts from its start.
    wait("the job arrives", lambda: ask(cluster.only("server"), "/counts")[1].get("/job/watch", 0))
    same(roots(cluster), cluster.kept, "the roots")


def replaced(cluster):
    client = cluster.client
    held = client.get("secret", "dapr-trust-bundle", "-n", SYSTEM)["data"]
    root, certificate, key = (base64.b64decode(held[name]).decode() for name in ("ca.crt", "issuer.crt", "issuer.key"))
    other = Authority(cluster.folder / "replacing")
    new = other.certificate.read_text()
    issuer = [one.read_text() for one in other.issue("issuer", "/CN=issuer", authority=True)]

    def use(roots, certificate, key):
        tls = {"root": {"certPEM": roots}, "issuer": {"certPEM": certificate, "keyPEM": key}}
        available(cluster, merged(VALUES, {"dapr_sentry": {"tls": tls}}), "upgrade")
    use(root + new, certificate, key)
    # An app that has only the old root refuses certificates of the new one.
    for name in ("source", "goal", "server", "flows"):
        client.restart("shop", f"deployment/{name}")
    with Load(cluster.only("source"), invoke=invocation("goal")) as calls:
        use(root + new, *issuer)
        time.sleep(LIFETIME)
        use(new, *issuer)
        time.sleep(LIFETIME)
    client.restart("shop", "deployment/server")
    wait("a new pod calls", lambda: called(cluster, "server", "goal"))
    return calls.told()
