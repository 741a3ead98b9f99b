"""Changes unrelated to an app neither restart its sidecar nor reopen its components."""

from world import RESOURCES, adder, component, holds, same, wait

CHECKS = []
check = adder(CHECKS)
APPS = ("orders", "billing")
LOADED = "Component loaded: "


def pods(world):
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in world.api.get("/api/v1/namespaces/shop/pods")["items"]}


def running(world):
    """The processes of the sidecars, which must be running."""
    processes = {name: world.fleet.processes[f"daprd-{name}"] for name in APPS}
    ended = [name for name, process in processes.items() if process.poll() is not None]
    same(ended, [], "sidecars that have ended")
    return {name: process.pid for name, process in processes.items()}


def configuration(name, namespace, value):
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Configuration", "metadata": {"name": name, "namespace": namespace},
            "spec": {"tracing": {"samplingRate": value}}}


def change(world):
    """Creates, changes and deletes labels, and resources of other apps, namespaces and names."""
    world.cluster.namespace("elsewhere")
    note = {"metadata": {"labels": {"changed": "by-nobody"}}}
    world.api.merge("/api/v1/namespaces/shop", note)
    for name in APPS:
        world.api.merge(f"/api/v1/namespaces/shop/pods/{name}", note)
    world.api.merge(f"{RESOURCES}/shop/components/store", note)
    for value in ("0", "1"):
        world.api.apply(component("of-others", "state.in-memory", scopes=["nobody"], padding=value))
        world.api.apply(component("of-others", "state.in-memory", "elsewhere", padding=value))
        world.api.apply(configuration("of-others", "shop", value))
        world.api.apply(configuration("appconfig", "elsewhere", value))
        world.api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "of-others", "namespace": "shop"},
                         "stringData": {"value": value}})
    for place in ("shop/components/of-others", "elsewhere/components/of-others", "shop/configurations/of-others",
                  "elsewhere/configurations/appconfig"):
        world.api.delete(f"{RESOURCES}/{place}")


@check("an unrelated change restarts no sidecar and no pod, and reopens no component")
def unrelated(world):
    # An in-memory store loses its data when it is reopened.
    for name in APPS:
        status, _, _ = world.sidecars[name].ask("POST", "/v1.0/state/store", [{"key": "kept", "value": name}])
        same(status, 204, f"saving by {name}")
    processes, before = running(world), pods(world)
    loaded = {name: world.said(f"daprd-{name}", LOADED) for name in APPS}
    change(world)
    # Changes are ordered: a sidecar with this one has all earlier ones.
    world.api.apply(component("last", "state.in-memory"))
    for name in APPS:
        wait(f"{name} has the last change", lambda name=name: "last" in world.components(name))
    same(running(world), processes, "process ids of the sidecars")
    same(pods(world), before, "pods")
    for name in APPS:
        same(world.said(f"daprd-{name}", LOADED) - loaded[name], 1, f"components that {name} opened")
        status, _, told = world.sidecars[name].ask("GET", "/v1.0/state/store/kept")
        same((status, told), (200, name), f"what {name} saved")
        holds("of-others" not in world.components(name), f"{name} was given another's component")
    world.api.delete(f"{RESOURCES}/shop/components/last")
    for name in APPS:
        wait(f"{name} is without it", lambda name=name: "last" not in world.components(name))
