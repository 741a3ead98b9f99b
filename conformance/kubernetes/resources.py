"""Other tasks of the operator: HTTP endpoints, policies, and services of rollouts."""

from cluster import ADDRESS
from world import PARTS, RESOURCES, WATCHDOG, App, adder, holds, pod, same, wait

CHECKS = []
check = adder(CHECKS)
ENDPOINT = f"{RESOURCES}/shop/httpendpoints/outside"
POLICIES = f"{RESOURCES}/shop/resiliencies/policies"
ROLLOUTS = "/apis/argoproj.io/v1alpha1/namespaces/shop/rollouts"
OPERATOR = f"{PARTS['operator']}-0"
# The part of Argo's definition that the API server needs for rollouts.
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "rollouts.argoproj.io"},
    "spec": {"group": "argoproj.io", "scope": "Namespaced",
             "names": {"kind": "Rollout", "listKind": "RolloutList", "plural": "rollouts", "singular": "rollout"},
             "versions": [{"name": "v1alpha1", "served": True, "storage": True, "schema": {
                 "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}}


def address(app, path):
    return f"http://{ADDRESS}:{app.port}{path}"


def token(key):
    """Headers of an endpoint, with the value in a secret."""
    return [{"name": "x-token", "secretKeyRef": {"name": "tokens", "key": key}}]


def invoke(world, caller, path="outside/method/x"):
    return world.sidecars[caller].ask("POST", f"/v1.0/invoke/{path}", {"a": 1})


@check("apps in its scopes get an HTTP endpoint with a header from a secret, and changes of both")
def endpoints(world):
    outside = App()
    world.api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tokens", "namespace": "shop"},
                     "stringData": {"old": "sesame", "new": "mellon"}})
    world.api.apply({"apiVersion": "dapr.io/v1alpha1", "kind": "HTTPEndpoint",
                     "metadata": {"name": "outside", "namespace": "shop"}, "scopes": ["orders", "customer"],
                     "spec": {"baseUrl": address(outside, "/one"), "headers": token("old")}})
    wait("orders has it", lambda: "outside" in world.endpoints("orders"))
    status, _, told = invoke(world, "orders")
    same((status, told), (200, {"a": 1}), "a call")
    same([sent["x-token"] for sent in outside.headers["/one/x"]], ["sesame"], "the header")
    world.api.merge(ENDPOINT, {"spec": {"baseUrl": address(outside, "/two"), "headers": token("new")}})
    wait("calls go to the other address", lambda: invoke(world, "orders")[0] == 200 and outside.seen["/two/x"])
    same({sent["x-token"] for sent in outside.headers["/two/x"]}, {"mellon"}, "the other header")
    # Not in its scopes.
    holds("outside" not in world.endpoints("billing"), "billing has it")
    holds(invoke(world, "billing")[0] != 200, "billing has called it")


def attempts(world):
    """How often a call of the customer reaches the failing app."""
    seen = world.apps["failing"].seen["/fails"]
    before = len(seen)
    same(invoke(world, "customer", "failing/method/fails")[0], 500, "a call that fails")
    return len(seen) - before


@check("a sidecar starts with the policies and HTTP endpoints of its app")
def policies(world):
    world.api.apply({"apiVersion": "dapr.io/v1alpha1", "kind": "Resiliency",
                     "metadata": {"name": "policies", "namespace": "shop"}, "scopes": ["customer"], "spec": {
                         "policies": {"retries": {"few": {"policy": "constant", "duration": "10ms", "maxRetries": 2}}},
                         "targets": {"apps": {"failing": {"retry": "few"}}}}})
    world.expose("failing")
    world.deploy("failing", failing=["/fails"], config="appconfig")
    world.deploy("customer", app=False, config="appconfig")
    same(world.endpoints("customer"), {"outside"}, "endpoints")
    same(attempts(world), 3, "calls of the app")


@check("changes that the operator does not stream arrive within a minute: a changed policy, and a deleted HTTP endpoint")
def listed_again(world):
    world.api.merge(POLICIES, {"spec": {"policies": {"retries": {"few": {"maxRetries": 1}}}}})
    world.api.delete(ENDPOINT)
    wait("calls follow the changed policy", lambda: attempts(world) == 2)
    for name in ("orders", "customer"):
        wait(f"{name} has no such endpoint", lambda name=name: "outside" not in world.endpoints(name))
    holds(invoke(world, "orders")[0] != 200, "orders has called it")
    world.dismiss("customer", "failing")


def rollout(world, name, spec):
    return world.api.post(ROLLOUTS, {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "metadata": {"name": name},
                                     "spec": spec})


@check("with services for Argo rollouts enabled: without their definition deployments get services, with it rollouts too")
def rollouts(world):
    begun = world.cluster.audit.stat().st_size
    world.again("operator", world.objects({"global": {"argoRolloutServiceReconciler": {"enabled": True}}, **WATCHDOG},
                                          "dapr-operator"))
    wait("a request for rollouts has failed", lambda: any(
        "/rollouts" in call["requestURI"] and call.get("responseStatus", {}).get("code") == 404
        for call in world.cluster.calls(begun)))
    world.expose("beside")
    world.api.apply(DEFINITION)
    wait("rollouts are served", lambda: world.api.collection("argoproj.io/v1alpha1", "Rollout", "shop"))
    # Its pods are created like those of a deployment.
    rollout(world, "of-another", {"workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "beside"}})
    template = pod("cart", enabled="true", app_id="cart")
    meta = {key: template["metadata"][key] for key in ("labels", "annotations")}
    made = rollout(world, "cart", {"selector": {"matchLabels": meta["labels"]},
                                   "template": {"metadata": meta, "spec": template["spec"]}})
    service = wait("the service of the rollout", lambda: world.api.get("/api/v1/namespaces/shop/services/cart-dapr"))
    owner = service["metadata"]["ownerReferences"][0]
    same((owner["kind"], owner["name"], owner["uid"]), ("Rollout", "cart", made["metadata"]["uid"]), "the owner")
    holds(not world.logged(OPERATOR, "cannot use rollouts"), "it cannot use one of them")
    world.cluster.publish()
    world.deploy("cart", config="appconfig")
    same(world.call("billing", "cart"), 200, "a call by the name of the service")
    world.dismiss("cart")
