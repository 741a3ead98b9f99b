"""Faults of a cluster: API server, etcd, control plane, trust bundle and clocks."""

import base64
import calendar
import re
import time

from world import PARTS, RESOURCES, SECRET, SYSTEM, Refused, adder, component, containers, fleets, holds, pod, same, wait

CHECKS = []
check = adder(CHECKS)
WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/dapr-sidecar-injector"
PODS = "/api/v1/namespaces/shop/pods"
RENEWED = "renewed the workload identity"
# Seconds by which clocks are wrong: certificates are valid from 15 minutes before their issue.
WRONG = 600


def new_pod(name):
    return {"apiVersion": "v1", "kind": "Pod", **pod(name, enabled="true")}


def renewed(world):
    """Refreshes the trust bundle in the volumes of the control plane, and waits until each part has a certificate of the new CA
    and the API server has the CA bundle. Only etcd members have to be restarted."""
    names = [name for name in world.fleet.processes if name.startswith("dapr-") and name != "dapr-sentry-0"]
    before = {name: world.said(name, RENEWED) for name in names}
    world.cluster.refresh()
    for name in names:
        wait(f"{name} has a certificate of the new CA", lambda name=name: world.said(name, RENEWED) > before[name])
    wait("both webhooks name it", world.registered)
    schedulers = [f"{PARTS['scheduler']}-{number}" for number in range(3)]
    for name in schedulers:
        world.fleet.end(name)
        world.run(name)
    for name in schedulers:
        world.healthy(name)


def refuses_to_start(world, text):
    """Restarts sentry, which must end at once and log a text."""
    world.fleet.end("dapr-sentry-0")
    world.run("dapr-sentry-0")
    wait("it ends", lambda: world.fleet.processes["dapr-sentry-0"].poll() not in (None, 0))
    world.fleet.processes.pop("dapr-sentry-0")
    holds(world.said("dapr-sentry-0", text), f"the log lacks {text!r}")


@check("the API server restarts: sidecars keep working, and changes arrive afterwards")
def outage(world):
    with world.cluster.away():
        status, _, _ = world.sidecars["orders"].ask("POST", "/v1.0/publish/events/orders", {"of": "outage"})
        same(status, 204, "publish without an API server")
        wait("it is delivered", lambda: len(world.apps["orders"].seen["/orders"]) == 2)
        same(world.call("billing", "orders"), 200, "a call without one")
    world.api.apply(component("after", "state.in-memory"))
    wait("a change arrives", lambda: "after" in world.components("orders"))
    found = world.api.post("/api/v1/namespaces/shop/pods", {"apiVersion": "v1", "kind": "Pod", **pod(
        "after", enabled="true")}, token=world.controller)
    same(containers(found), ["app", "daprd"], "a new pod")
    wait("somebody leads", world.holder)


@check("the operator is killed: sidecars keep working, and changes arrive after its restart")
def killed(world):
    world.fleet.kill("dapr-operator-0")
    world.api.apply(component("meanwhile", "state.in-memory"))
    world.api.delete(f"{RESOURCES}/shop/components/after")
    same(world.sidecars["orders"].ask("POST", "/v1.0/publish/events/orders", {"of": "none"})[0], 204, "publish")
    world.run("dapr-operator-0")
    world.healthy("dapr-operator-0")
    wait("both changes arrive", lambda: "meanwhile" in world.components("orders")
         and "after" not in world.components("orders"))
    world.deploy("newcomer", app=False, config="appconfig")
    holds("meanwhile" in world.components("newcomer"), "a new sidecar is not served")


@check("a watch has expired: missed creations, changes and deletions are found by a new list")
def expired(world):
    for name in ("ending", "changing"):
        world.api.apply(component(name, "state.in-memory"))
    wait("both arrive", lambda: {"ending", "changing"} <= world.components("orders"))
    begun = world.cluster.audit.stat().st_size
    # The operator's API server is down, as one of several may be, and has lost its watch history.
    with world.cluster.elsewhere():
        components = f"{RESOURCES}/shop/components"
        wait("the other one serves components", lambda: world.api.get(components)["items"])
        world.api.delete(f"{components}/ending")
        world.api.merge(f"{components}/changing", {"scopes": ["billing"]})
        world.api.apply(component("beginning", "state.in-memory"))
        world.cluster.compact()

    def arrived():
        found = world.components("orders")
        return "beginning" in found and not found & {"ending", "changing"}
    wait("all of it arrives", arrived)
    holds("changing" in world.components("billing"), "billing has lost its component")
    listed = [call for call in world.cluster.calls(begun) if call["verb"] == "list"
              and call["user"]["username"].endswith(":dapr-operator") and "/components" in call["requestURI"]]
    holds(listed, "components were not listed again, so no watch had expired")


@check("etcd is slow: pods get sidecars, sidecars get certificates, changes arrive, and the operator keeps leading")
def slow(world):
    wait("the operator leads again", lambda: world.said("dapr-operator-0", "leads (operator.dapr.io)"))
    leader = world.holder()
    with world.cluster.slow():
        world.api.apply(component("slowly", "state.in-memory"))
        wait("a change arrives", lambda: "slowly" in world.components("orders"))
        world.deploy("patient", app=False, config="appconfig")
        holds("slowly" in world.components("patient"), "a new sidecar is not served")
    same(world.holder(), leader, "who leads")


@check("etcd is down: sidecars keep working, and later changes arrive")
def frozen(world):
    with world.cluster.frozen():
        wait("the API server is not ready", lambda: not world.cluster.ready())
        same(world.call("billing", "orders"), 200, "a call meanwhile")
        same(world.sidecars["orders"].ask("POST", "/v1.0/publish/events/orders", {"of": "frozen"})[0], 204, "publish")
    wait("the API server is ready", world.cluster.ready)
    world.api.apply(component("thawed", "state.in-memory"))
    wait("a change arrives", lambda: "thawed" in world.components("orders"))


@check("the injector is killed: pods are created without sidecars and deleted by the watchdog, or refused, depending on the chart's policy")
def uninjected(world):
    world.fleet.kill("dapr-sidecar-injector-0")
    same(containers(world.api.post(PODS, new_pod("bare"), token=world.controller)), ["app"], "a pod with the policy Ignore")
    wait("the watchdog deletes it", lambda: world.api.missing(f"{PODS}/bare"))

    def policy(value):
        patch = [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": value}]
        world.api.call("PATCH", WEBHOOK, patch, "application/json-patch+json")

    def refused():
        try:
            world.api.post(f"{PODS}?dryRun=All", new_pod("barred"))
        except Refused as told:
            holds("sidecar-injector.dapr.io" in told.message, told.message)
            return True
        return False
    policy("Fail")
    try:
        wait("pods are refused", refused)
        try:
            world.api.post(PODS, new_pod("barred"), token=world.controller)
        except Refused as told:
            same(told.status, 500, "status")
        else:
            raise AssertionError("a pod was accepted")
        holds(world.api.missing(f"{PODS}/barred"), "the pod was stored")
        world.run("dapr-sidecar-injector-0")
        world.healthy("dapr-sidecar-injector-0")
        wait("pods are taken", lambda: world.api.post(f"{PODS}?dryRun=All", new_pod("barred")))
        found = world.api.post(PODS, new_pod("late-pod"), token=world.controller)
        same(containers(found), ["app", "daprd"], "a pod afterwards")
    finally:
        policy("Ignore")


def is_off(world, name, clock):
    """Checks the shifted clock of a process by the time of its first log line."""
    log = (world.fleet.dir / f"{name}.log").read_text(errors="replace")
    off = calendar.timegm(time.strptime(re.search(r'time="([0-9T:-]+)', log)[1], "%Y-%m-%dT%H:%M:%S")) - time.time()
    holds(abs(off - clock) < WRONG / 2, f"its clock is {off:.0f} s off")


@check(f"sidecars with clocks {WRONG} s behind and ahead get certificates and call each other")
def clocks(world):
    for name, clock in (("behind", -WRONG), ("ahead", WRONG)):
        world.expose(name)
        world.deploy(name, clock=clock, config="appconfig")
        is_off(world, f"daprd-{name}", clock)
    for one, other in (("behind", "ahead"), ("ahead", "behind"), ("orders", "behind"), ("ahead", "orders")):
        wait(f"{one} calls {other}", lambda one=one, other=other: world.call(one, other) == 200)


@check(f"an operator with a clock {WRONG} s ahead gets its certificate, leads, and serves sidecars with other clocks")
def hasty(world):
    name = "dapr-operator-0"
    world.fleet.end(name)
    world.run(name, clock=WRONG)
    try:
        world.healthy(name)
        is_off(world, name, WRONG)
        wait("it leads", lambda: world.said(name, "leads (operator.dapr.io)"))
        world.api.apply(component("hasty", "state.in-memory"))
        for sidecar in ("orders", "behind", "ahead"):
            wait(f"the change arrives at {sidecar}", lambda sidecar=sidecar: "hasty" in world.components(sidecar))
    finally:
        world.fleet.end(name)
        world.run(name)
        world.healthy(name)


@check("sentry's secret is deleted: sentry continues, reports it at a restart, and creates a new CA when the chart is applied again")
def lost(world):
    before = world.anchors()
    same(world.sidecars["orders"].ask("POST", "/v1.0-alpha1/jobs/kept", {"dueTime": "1h", "data": "x"})[0], 204, "schedule")
    world.api.delete(SECRET)
    world.cluster.refresh()
    world.deploy("survivor", app=False)
    refuses_to_start(world, f"the Secret {SYSTEM}/dapr-trust-bundle")
    for one in world.default:
        if one["metadata"]["name"] == "dapr-trust-bundle":
            world.api.apply(one)
    world.run("dapr-sentry-0")
    world.healthy("dapr-sentry-0")
    wait("a new root certificate", lambda: world.anchors() != before)
    # Pods of apps have the old one in their environment.
    renewed(world)
    world.deploy("restored", config="appconfig", app=False, app_id="orders")
    holds("meanwhile" in world.components("restored"), "a new sidecar is not served")
    same(world.sidecars["restored"].ask("GET", "/v1.0-alpha1/jobs/kept")[0], 200, "a job from before")


@check("sentry's secret is replaced: invalid contents are refused, another CA is used")
def replaced(world):
    kept = world.api.get(SECRET)["data"]
    other = another_authority(world)
    world.api.merge(SECRET, {"data": {"issuer.key": other["issuer.key"]}})
    world.deploy("unmoved", app=False)
    refuses_to_start(world, f"Secret/{SYSTEM}/dapr-trust-bundle")
    # Both roots, as during a rotation: certificates of the old one stay valid.
    roots = base64.b64decode(other["ca.crt"]) + base64.b64decode(kept["ca.crt"])
    world.api.merge(SECRET, {"data": {**other, "ca.crt": base64.b64encode(roots).decode()}})
    world.run("dapr-sentry-0")
    world.healthy("dapr-sentry-0")
    wait("both roots are published", lambda: world.anchors().strip() == roots.decode().strip())
    world.cluster.refresh()
    wait("both webhooks name both", world.registered)
    world.deploy("moved", config="appconfig", app=False, app_id="orders")
    holds("meanwhile" in world.components("moved"), "a new sidecar is not served")
    same(world.sidecars["moved"].ask("GET", "/v1.0-alpha1/jobs/kept")[0], 200, "a job from before")


def another_authority(world):
    """Files of another sentry for the same trust domain, as data of a secret."""
    folder = world.fleet.dir / "elsewhere"
    folder.mkdir()
    config = world.fleet.dir / "elsewhere.yaml"
    config.write_text("apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  name: elsewhere\nspec: {}\n")
    port, healthz, metrics = fleets.free_ports(3)
    world.fleet.start("sentry-elsewhere", [
        world.fleet.binaries / "sentry", f"--config={config}", f"--issuer-credentials={folder}", "--trust-domain=cluster.local",
        f"--port={port}", f"--healthz-port={healthz}", f"--metrics-port={metrics}"], {"NAMESPACE": SYSTEM})
    world.answers("sentry-elsewhere", f"http://127.0.0.1:{healthz}/healthz")
    world.fleet.end("sentry-elsewhere")
    names = ("ca.crt", "issuer.crt", "issuer.key")
    return {name: base64.b64encode((folder / name).read_bytes()).decode() for name in names}
