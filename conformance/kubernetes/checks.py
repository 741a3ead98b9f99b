"""Checks of the chart and our binaries against a real API server.

usage: checks.py BIN_DIR KUBE_APISERVER RENDER
"""

import base64
import collections
import json
import sys
import time

import annotations
import outages
import placement
import resources
import tokens
import unrelated
from world import (PARTS, RESOURCES, SECRET, SYSTEM, WATCHDOG, Refused, adder, chart, component, containers, holds,
                   own_network, perform, pod, same, session, subscription, wait)

# Kinds of other projects.
FOREIGN = ("PodMonitor",)
# Seconds of rest, and the expected calls in it: docs/reference/kubernetes.md promises two a minute by the operator, one in five
# minutes by the injector, and none by the others.
REST = 60
AT_REST = {"dapr-operator": 2, "dapr-injector": 1, "dapr-sentry": 0, "dapr-scheduler": 0, "dapr-placement": 0}


# The checks depend on each other. Outages come before the last one.
CHECKS = []
check = adder(CHECKS)


@check("the API server accepts the chart's definitions, in a dry run and applied")
def definitions(world):
    world.crds = world.render({"one": {}})["crds"]["objects"]
    problems = []
    for trial in (True, False):
        for one in world.crds:
            world.api.apply(one, trial)
            problems += [f"{one['metadata']['name']}: {warning}" for warning in world.api.warnings]
    same(problems, [], "warnings")
    for one in world.crds:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{one['metadata']['name']}"

        def conditions(path=path):
            told = {item["type"]: item["status"] for item in world.api.get(path)["status"]["conditions"]}
            return told if told.get("Established") == "True" else None
        told = wait(f"{one['metadata']['name']} is established", conditions)
        same(told.get("NonStructuralSchema", "False"), "False", f"NonStructuralSchema of {one['metadata']['name']}")
    world.served()


@check("a dry run of every object of the chart, for all kinds of values, has no error and no warning")
def tried(world):
    # The operator's permissions may be in another namespace.
    for name in (SYSTEM, "shop"):
        world.cluster.namespace(name)
    seen, problems = set(), []
    for name, case in world.render(chart.CASES).items():
        for one in case["objects"] if name in chart.CASES else []:
            text = json.dumps(one, sort_keys=True)
            if text in seen or one["kind"] in FOREIGN:
                continue
            seen.add(text)
            what = f"{name}: {one['kind']} {one['metadata']['name']}"
            try:
                world.api.apply(one, True)
                problems += [f"{what}: {warning}" for warning in world.api.warnings]
            except Refused as refused:
                problems.append(f"{what}: {refused.message}")
    same(problems, [], "problems")
    holds(len(seen) > 80, f"only {len(seen)} objects")


@check("the chart is applied with default values")
def applied(world):
    world.default = world.objects({})
    for one in world.default:
        world.api.apply(one)
    found = {(one["kind"], one["metadata"]["name"]) for one in world.default}
    holds({("Deployment", "dapr-operator"), ("StatefulSet", "dapr-scheduler-server")} <= found, f"{found}")


@check("all parts of the control plane start together with the arguments, accounts and permissions of the chart")
def started(world):
    world.begin("shop", "other")
    names = [world.create(part, world.default) for part in PARTS]
    names += [world.create("scheduler", world.default, number) for number in (1, 2)]
    world.cluster.publish()
    for name in reversed(names):
        world.run(name)
    wait("sentry publishes its root certificate", world.anchors)
    world.cluster.refresh()
    for name in names:
        world.healthy(name)


@check("sentry fills the trust bundle: the secret, and the public part in the config map")
def bundle(world):
    secret = world.api.get(SECRET)["data"]
    same(set(secret), {"ca.crt", "issuer.crt", "issuer.key", "ca-rotation.json"}, "keys of the secret")
    same(base64.b64decode(secret["ca.crt"]).decode(), world.anchors(), "ca.crt")
    public = world.api.get(f"/api/v1/namespaces/{SYSTEM}/configmaps/dapr-trust-bundle")["data"]
    same(set(public), {"ca.crt"}, "keys of the config map")


@check("the API server gets the CA bundles of both webhooks, for pods and for subscriptions")
def registered(world):
    wait("both name the root certificate", world.registered)


@check("one operator leads, another waits without calls and takes over as soon as the first ends")
def leases(world):
    first = wait("the first leads", world.holder)
    second = world.create("operator", world.default, 1)
    world.run(second)
    world.healthy(second)
    same(world.holder(), first, "the leader, with another operator running")
    wait("it watches the lease", lambda: any(
        call["verb"] == "watch" and "/leases" in call["requestURI"] and call["user"]["username"].endswith(":dapr-operator")
        for call in world.cluster.calls()))
    world.fleet.end("dapr-operator-0")
    began = time.monotonic()
    wait("the second leads", lambda: world.holder() not in ("", first))
    holds(time.monotonic() - began < 20, f"after {time.monotonic() - began:.0f} s")
    world.run("dapr-operator-0")
    world.healthy("dapr-operator-0")
    world.fleet.end(second)
    wait("the first leads again", lambda: world.logged("dapr-operator-0", "leads (operator.dapr.io)"))


@check("an annotated pod gets its sidecar through the webhook, and a token for sentry")
def injected(world):
    world.api.apply({"apiVersion": "dapr.io/v1alpha1", "kind": "Configuration",
                     "metadata": {"name": "appconfig", "namespace": "shop"},
                     "spec": {"features": [{"name": "HotReload", "enabled": True}]}})
    found = world.api.post("/api/v1/namespaces/shop/pods", {"apiVersion": "v1", "kind": "Pod", **pod(
        "first", enabled="true", app_id="first", app_port="80")}, token=world.controller)
    same(world.api.warnings, [], "warnings")
    same(containers(found), ["app", "daprd"], "containers")
    same(found["metadata"]["labels"].get("dapr.io/sidecar-injected"), "true", "the label")
    sidecar = found["spec"]["containers"][1]
    mounts = {mount["mountPath"] for mount in sidecar["volumeMounts"]}
    holds({"/var/run/secrets/dapr.io/sentrytoken", "/var/run/secrets/kubernetes.io/serviceaccount"} <= mounts, f"{mounts}")
    volume = next(one for one in found["spec"]["volumes"] if one["name"] == "dapr-identity-token")
    same(volume["projected"]["sources"][0]["serviceAccountToken"]["audience"],
         f"spiffe://cluster.local/ns/{SYSTEM}/dapr-sentry", "the audience")
    variables = {one["name"]: one.get("value") for one in sidecar["env"]}
    same(variables["DAPR_TRUST_ANCHORS"], world.anchors(), "DAPR_TRUST_ANCHORS")
    world.first = found


@check("pods in a dry run, without annotation, or with a sidecar are not changed")
def untouched(world):
    pods = "/api/v1/namespaces/shop/pods"
    trial = {"apiVersion": "v1", "kind": "Pod", **pod("trial", enabled="true")}
    same(containers(world.api.post(f"{pods}?dryRun=All", trial)), ["app", "daprd"], "a trial")
    holds(world.api.missing(f"{pods}/trial"), "a trial was stored")
    for name, annotations in (("plain", {}), ("off", {"enabled": "false"}), ("other-word", {"enabled": "yes"})):
        found = world.api.post(pods, {"apiVersion": "v1", "kind": "Pod", **pod(name, **annotations)}, token=world.controller)
        same(containers(found), ["app"], name)
        same(found["metadata"]["labels"], {"app": name}, f"labels of {name}")
    again = {"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": "again", "labels": world.first["metadata"]["labels"], "annotations": world.first["metadata"]["annotations"]},
        "spec": world.first["spec"]}
    found = world.api.post(pods, again, token=world.controller)
    same(found["spec"]["containers"], world.first["spec"]["containers"], "containers of a pod that has its sidecar")


@check("wrong annotations: a bad app id is refused with the reason, an ignored one causes a warning")
def wrong(world):
    pods = "/api/v1/namespaces/shop/pods"
    for app_id in ("Not_A_Name", "x" * 60):
        try:
            world.api.post(pods, {"apiVersion": "v1", "kind": "Pod", **pod("wrong", enabled="true", app_id=app_id)})
        except Refused as refused:
            holds("sidecar-injector.dapr.io" in refused.message and app_id in refused.message, refused.message)
        else:
            raise AssertionError(f"{app_id} was taken")
    holds(world.api.missing(f"{pods}/wrong"), "the pod was stored")
    world.api.post(pods, {"apiVersion": "v1", "kind": "Pod", **pod("odd", enabled="true", app_port="http", app_prot="x")})
    told = " ".join(world.api.warnings)
    holds("whole number" in told and "dapr.io/app-protocol" in told, f"warnings: {told!r}")


@check("an account without permission for sidecars gets pods without them")
def strangers(world):
    world.cluster.account("shop", "deployer")
    meta = {"name": "deployer", "namespace": "shop"}
    group = "rbac.authorization.k8s.io"
    world.api.apply({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta,
                     "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}]})
    world.api.apply({"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": meta,
                     "roleRef": {"apiGroup": group, "kind": "Role", "name": "deployer"},
                     "subjects": [{"kind": "ServiceAccount", "name": "deployer", "namespace": "shop"}]})
    token = world.cluster.token("shop", "deployer")
    asked = {"apiVersion": "v1", "kind": "Pod", **pod("strange", enabled="true")}

    def create():
        # Permissions reach the API server's cache a moment later.
        return world.api.post("/api/v1/namespaces/shop/pods", asked, token=token)
    same(containers(wait("the pod is created", create)), ["app"], "containers")
    holds(world.logged("dapr-sidecar-injector-0", "system:serviceaccount:shop:deployer"), "the log has no reason")


@check("sidecars of these pods run: with identity, and configuration, components, secrets and subscriptions from the operator")
def served(world):
    # The name is in a secret, the contents are not.
    colours = world.fleet.dir / "colours.json"
    colours.write_text(json.dumps({"colour": "green"}))
    world.api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "places", "namespace": "shop"},
                     "stringData": {"file": str(colours)}})
    for one in (component("store", "state.in-memory"), component("private", "state.in-memory", scopes=["billing"]),
                component("events", "pubsub.in-memory"), component("elsewhere", "state.in-memory", "other"),
                component("keys", "secretstores.local.file", secretsFile={"secretKeyRef": {"name": "places", "key": "file"}}),
                subscription("orders", "orders", "/orders")):
        world.api.apply(one)
    world.deploy("orders", config="appconfig")
    world.deploy("billing", config="appconfig")
    told = world.metadata("orders")
    holds("HotReload" in told["enabledFeatures"], f"features: {told['enabledFeatures']}")
    found = told["subscriptions"]
    same([(one["topic"], one["rules"][0]["path"]) for one in found], [("orders", "/orders")], "subscriptions")


@check("scopes and namespaces are enforced")
def scopes(world):
    world.deploy("stranger", "other", app=False)
    # The built-in store of the cluster's secrets needs no component.
    same(world.components("orders"), {"kubernetes", "store", "events", "keys"}, "components of orders")
    same(world.components("billing"), {"kubernetes", "store", "events", "keys", "private"}, "components of billing")
    same(world.components("stranger"), {"kubernetes", "elsewhere"}, "components of another namespace")


@check("secret references are resolved; a missing secret keeps its component from loading, and is logged")
def secrets(world):
    status, _, told = world.sidecars["orders"].ask("GET", "/v1.0/secrets/keys/colour")
    same((status, told), (200, {"colour": "green"}), "a secret of the store whose name is in a secret")
    world.api.apply(component("lost", "state.in-memory", value={"secretKeyRef": {"name": "nowhere", "key": "x"}}))
    wait("the operator logs its name", lambda: world.logged("dapr-operator-0", "shop/nowhere"))
    world.api.delete(f"{RESOURCES}/shop/components/lost")
    holds("lost" not in world.components("orders"), "the component is loaded")


@check("an app reads secrets of the cluster with the chart's role; without it the error names the missing permission")
def readers(world):
    def ask(path):
        status, _, told = world.sidecars["orders"].ask("GET", f"/v1.0/secrets/kubernetes/{path}")
        return status, told

    def refused(path, *parts):
        status, told = ask(path)
        same((status, told.get("errorCode")), (500, "ERR_SECRET_GET"), path)
        for part in parts:
            holds(part in told["message"], f"{path}: {told['message']}")
    refused("places", "the Secret places in the namespace shop", "get secrets in the namespace shop")
    # The chart creates the role in one namespace.
    role = [one for one in world.objects({"dapr_rbac": {"secretReader": {"namespace": "shop"}}})
            if one["metadata"]["name"] in ("secret-reader", "dapr-secret-reader")]
    same(sorted(one["kind"] for one in role), ["Role", "RoleBinding"], "objects of the chart")
    for one in role:
        world.api.apply(one)

    def granted():
        status, told = ask("places")
        return told if status == 200 else None
    # Permissions reach the API server's cache a moment later.
    same(wait("the secret is read", granted), {"file": str(world.fleet.dir / "colours.json")}, "the secret")
    refused("nowhere", "the Secret nowhere in the namespace shop")
    # Only secrets of this namespace, and no list.
    refused(f"dapr-trust-bundle?metadata.namespace={SYSTEM}", f"get secrets in the namespace {SYSTEM}")
    refused("bulk", "list secrets in the namespace shop")


@check("changes are reloaded: components created, scoped and deleted, and a new subscription that delivers")
def reloaded(world):
    world.api.apply(component("late", "state.in-memory"))
    wait("a new component", lambda: "late" in world.components("orders") and "late" in world.components("billing"))
    world.api.merge(f"{RESOURCES}/shop/components/late", {"scopes": ["billing"]})
    wait("it is scoped to another app now", lambda: "late" not in world.components("orders"))
    holds("late" in world.components("billing"), "billing has lost it")
    world.api.delete(f"{RESOURCES}/shop/components/late")
    wait("it is gone", lambda: "late" not in world.components("billing"))
    world.api.apply(subscription("late", "late", "/late"))
    wait("a new subscription", lambda: any(one["topic"] == "late" for one in world.metadata("orders")["subscriptions"]))
    for topic in ("orders", "late"):
        same(world.sidecars["orders"].ask("POST", f"/v1.0/publish/events/{topic}", {"of": topic})[0], 204, "publish")
        wait(f"{topic} is delivered", lambda topic=topic: world.apps["orders"].seen[f"/{topic}"])


@check("certificates are issued only for the pod's app id and audience")
def refused(world):
    found = world.injected("thief")
    world.sidecar("thief", found, ["--app-id", "orders"], ready=False)
    wait("sentry refuses the id", lambda: world.logged("daprd-thief", "app-id mismatch"))
    world.fleet.kill("daprd-thief")
    volume = next(one for one in found["spec"]["volumes"] if one["name"] == "dapr-identity-token")
    volume["projected"]["sources"][0]["serviceAccountToken"]["audience"] = "somebody-else"
    world.sidecar("thief", found, ready=False)
    wait("sentry refuses the audience", lambda: world.logged("daprd-thief", "invalid token"))
    world.fleet.kill("daprd-thief")


@check("an annotated deployment gets a service, which is updated and restored after edits and deletion; sidecars use it for calls")
def services(world):
    path = "/apis/apps/v1/namespaces/shop/deployments"
    deployment, service = world.expose("orders", grpc_port=6001)
    owner = service["metadata"]["ownerReferences"][0]
    same((owner["kind"], owner["name"], owner["uid"], owner["controller"]),
         ("Deployment", "orders", deployment["metadata"]["uid"], True), "the owner")

    def ports():
        found = world.api.get("/api/v1/namespaces/shop/services/orders-dapr")
        return {one["name"]: (one["port"], one["targetPort"]) for one in found["spec"]["ports"]}
    same(ports(), {"dapr-http": (80, 3500), "dapr-grpc": (6001, 6001), "dapr-internal": (50002, 50002),
                   "dapr-metrics": (9090, 9090)}, "ports")
    world.api.merge(f"{path}/orders", {"spec": {"template": {"metadata": {"annotations": {"dapr.io/grpc-port": "6002"}}}}})
    wait("the other port", lambda: ports()["dapr-grpc"] == (6002, 6002))
    # Edits and deletion of the service do not change the workload.
    address = "/api/v1/namespaces/shop/services/orders-dapr"
    world.api.merge(address, {"spec": {"selector": {"app": "another"}}, "metadata": {"labels": {"dapr.io/enabled": None}}})

    def corrected():
        found = world.api.get(address)
        return found["spec"]["selector"] == {"app": "orders"} and found["metadata"]["labels"] == {"dapr.io/enabled": "true"}
    wait("the edit is reverted", corrected)
    before = world.api.get(address)["metadata"]["uid"]
    world.api.delete(address)

    def again():
        return not world.api.missing(address) and world.api.get(address)["metadata"]["uid"] != before
    wait("a deleted service is recreated", again)
    same(ports()["dapr-grpc"], (6002, 6002), "the port of the recreated service")
    world.cluster.publish()
    status, _, told = world.sidecars["billing"].ask("POST", "/v1.0/invoke/orders/method/hello", {"a": 1})
    same((status, told), (200, {"a": 1}), "a call by the name of the service")


@check("subscriptions of both versions are converted by the webhook")
def converted(world):
    one, two = f"{RESOURCES}/other/subscriptions", "/apis/dapr.io/v2alpha1/namespaces/other/subscriptions"
    world.api.post(one, {"apiVersion": "dapr.io/v1alpha1", "kind": "Subscription", "metadata": {"name": "old"},
                         "spec": {"pubsubname": "p", "topic": "t", "route": "/r", "deadLetterTopic": "d"},
                         "scopes": ["a"]})
    found = world.api.get(f"{two}/old")
    same((found["spec"], found["scopes"]), ({"pubsubname": "p", "topic": "t", "routes": {"default": "/r"},
                                             "deadLetterTopic": "d"}, ["a"]), "version 1 read as 2")
    world.api.post(two, subscription("new", "t", "/n", "other"))
    same(world.api.get(f"{one}/new")["spec"]["route"], "/n", "version 2 read as 1")
    world.api.merge(f"{one}/new", {"spec": {"route": "/m"}})
    same(world.api.get(f"{two}/new")["spec"]["routes"], {"default": "/m"}, "changed as version 1")
    same({item["metadata"]["name"] for item in world.api.get(one)["items"]}, {"old", "new"}, "listed as version 1")


@check("jobs of a namespace are deleted with it")
def namespaces(world):
    stranger = world.sidecars["stranger"]
    same(stranger.ask("POST", "/v1.0-alpha1/jobs/later", {"dueTime": "1h", "data": "x"})[0], 204, "schedule")
    same(stranger.ask("GET", "/v1.0-alpha1/jobs/later")[0], 200, "the job")
    world.api.delete("/api/v1/namespaces/other")
    # The namespace controller, which does not run here, would first delete its contents.
    found = world.api.get("/api/v1/namespaces/other")
    found["spec"]["finalizers"] = []
    world.api.call("PUT", "/api/v1/namespaces/other/finalize", found)
    wait("the job is gone", lambda: stranger.ask("GET", "/v1.0-alpha1/jobs/later")[0] != 200)
    world.dismiss("stranger")


@check(f"at rest, no part calls the API server more often than docs/reference/kubernetes.md promises ({REST} s)")
def rest(world):
    # Follow-up calls of earlier checks, such as each scheduler's for a deleted namespace, are over.
    wait("the API server is idle", lambda: world.cluster.idle(3))
    since = world.cluster.audit.stat().st_size
    time.sleep(REST)
    counted, asked = collections.Counter(), collections.Counter()
    for call in world.cluster.calls(since):
        prefix, _, account = call["user"]["username"].rpartition(":")
        if prefix == f"system:serviceaccount:{SYSTEM}":
            counted[account] += 1
            asked[f"{account}: {call['verb']} {call['requestURI'].split('?')[0]}"] += 1
    print(f"    calls in {REST} s: {dict(asked) or 'none'}")
    for account, most in AT_REST.items():
        holds(counted[account] <= most, f"{account}: {counted[account]} calls in {REST} s, want {most} at the most")


@check("definitions and chart are applied again, now with a watchdog: it deletes only the pod without its sidecar")
def upgraded(world):
    objects = world.objects(WATCHDOG)
    for one in objects + world.crds:
        world.api.apply(one)
    wait("the operator corrects the definition", world.registered)
    path = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/dapr-sidecar-injector/status"
    world.api.merge(path, {"status": {"replicas": 1, "readyReplicas": 1}})
    world.fleet.end("dapr-operator-0")
    world.create("operator", objects)
    world.run("dapr-operator-0")
    world.healthy("dapr-operator-0")
    wait("the pod is deleted", lambda: world.api.missing("/api/v1/namespaces/shop/pods/strange"))
    for name in ("orders", "plain", "off"):
        holds(not world.api.missing(f"/api/v1/namespaces/shop/pods/{name}"), f"{name} was deleted too")


@check("no part of the control plane made a call that the chart's roles do not allow")
def rights(world):
    told, accounts = set(), set()
    for call in world.cluster.while_ready():
        prefix, _, account = call["user"]["username"].rpartition(":")
        if prefix == f"system:serviceaccount:{SYSTEM}":
            accounts.add(account)
            if call.get("responseStatus", {}).get("code") in (401, 403):
                told.add(f"{account}: {call['verb']} {call['requestURI'].split('?')[0]}")
    same(sorted(told), [], "refused calls")
    same(accounts, {"dapr-operator", "dapr-injector", "dapr-sentry", "dapr-scheduler", "dapr-placement"}, "who asked")


def main():
    binaries, server, program = sys.argv[1:]
    own_network("conformance/kubernetes")
    with session(binaries, server, program) as world:
        passed, failed = perform(world, [
            *CHECKS[:-1], *annotations.CHECKS, *unrelated.CHECKS, *resources.CHECKS, *placement.CHECKS, *tokens.CHECKS,
            *outages.CHECKS, CHECKS[-1]])
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
