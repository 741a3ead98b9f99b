"""Our control plane and Dapr's, mixed in one cluster, with sidecars of both. Run by the script `mixed`.

usage: mixed.py OUR_DIR DAPR_DIR KUBE_APISERVER RENDER DAPR_CHART [TEXT]
"""

import sys

from world import (CHART, PARTS, RESOURCES, SECRET, SYSTEM, chart, component, containers, holds, own_network, perform, same,
                   session, wait)

SIDES = {"ours": "theirs", "theirs": "ours"}
# The permissions of a part, in addition to its service account: Dapr's need more than ours.
RIGHTS = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
OWNERS = {"sentry": ("dapr-sentry",), "operator": ("dapr-operator", "dapr-operator-admin"), "injector": ("dapr-injector",),
          "placement": ("dapr-placement",), "scheduler": ("dapr-scheduler",)}
SCHEDULERS = 3


class Mixed:
    """A control plane with parts of both products."""

    def __init__(self, world, folders, charts):
        self.world, self.folders = world, folders
        self.objects = {side: chart.render(world.program, path, {"one": {}})["one"]["objects"]
                        for side, path in charts.items()}
        # Processes of the control plane and sidecars, each with its product.
        self.running = {}
        self.number = 0

    def prepare(self):
        """Objects that precede the control plane, and resources shared by apps."""
        self.world.cluster.namespace(SYSTEM)
        self.world.define()
        for one in self.objects["ours"]:
            self.world.api.apply(one)
        self.world.begin("shop")
        self.world.api.apply({"apiVersion": "dapr.io/v1alpha1", "kind": "Configuration",
                              "metadata": {"name": "appconfig", "namespace": "shop"},
                              "spec": {"features": [{"name": "HotReload", "enabled": True}]}})
        self.world.api.apply(component("store", "state.in-memory", actorStateStore="true"))

    def forget_authority(self):
        """Empties the trust bundle, so that the next sentry creates a new CA."""
        for path in (SECRET, SECRET.replace("/secrets/", "/configmaps/")):
            self.world.api.delete(path)
        for one in self.objects["ours"]:
            if one["metadata"]["name"] == "dapr-trust-bundle":
                self.world.api.apply(one)

    def start(self, sides):
        """Starts a control plane; `sides` has the product of each part."""
        world, names = self.world, {}
        for part, side in sides.items():
            self._allow(part, side)
            for number in range(SCHEDULERS if part == "scheduler" else 1):
                names[world.create(part, self.objects[side], number)] = side
        world.cluster.publish()
        for name, side in names.items():
            self.running[name] = side
            world.run(name, self.folders[side])
        wait("sentry publishes its root certificate", world.anchors)
        world.cluster.refresh()
        for name, side in names.items():
            world.healthy(name, self.folders[side])
        wait("the API server trusts both webhooks", world.registered)

    def _allow(self, part, side):
        """Grants a part the permissions of its product's chart."""
        for one in self.objects[side]:
            if one["kind"] not in RIGHTS or one["metadata"]["name"] not in OWNERS[part]:
                continue
            path = self.world.api.collection(one["apiVersion"], one["kind"], one["metadata"].get("namespace"))
            # Role bindings cannot be changed, only replaced.
            if one["kind"].endswith("Binding") and not self.world.api.missing(f"{path}/{one['metadata']['name']}"):
                self.world.api.delete(f"{path}/{one['metadata']['name']}")
            self.world.api.apply(one)

    def end(self):
        """Stops all processes, sidecars first. How Dapr's processes end is not checked."""
        fleet = self.world.fleet
        names = {name: side for name, side in self.running.items() if name in fleet.processes}
        for sidecars in (True, False):
            stage = [name for name in names if name.startswith("daprd-") == sidecars]
            for name in stage:
                if fleet.processes[name].poll() is None:
                    fleet.processes[name].terminate()
            for name in stage:
                before = list(fleet.problems)
                fleet.end(name, ask=False)
                if names[name] == "theirs":
                    fleet.problems[:] = before
                self.world.cluster.discard(name)
        self.running.clear()

    def deploy(self, side, actors):
        """Creates an app with a sidecar of one product; returns its name."""
        name = f"{side}-{self.number}"
        self.world.expose(name)
        self.running[f"daprd-{name}"] = side
        self.world.deploy(name, actors=actors, binaries=self.folders[side], config="appconfig")
        return name

    def check(self, sides):
        """Checks everything that sidecars of both products need from a control plane."""
        world, self.number = self.world, self.number + 1
        try:
            self.start(sides)
            names = [self.deploy(side, [f"of-{side}"]) for side in SIDES]
            for name in names:
                found = world.api.get(f"/api/v1/namespaces/shop/pods/{name}")
                same(containers(found), ["app", "daprd"], f"containers of {name}")
                holds("store" in world.components(name), f"components of {name}: {world.components(name)}")
            for caller, callee in (names, names[::-1]):
                wait(f"{caller} calls {callee}", lambda caller=caller, callee=callee: world.call(caller, callee) == 200)
            self._change(names)
            for side, name in zip(SIDES, names):
                self._job(name)
                self._actor(f"of-{side}", name, names[0] if name == names[1] else names[1])
        finally:
            self.end()
            for name in [name for name in world.apps if name.endswith(f"-{self.number}")]:
                world.api.delete(f"/api/v1/namespaces/shop/pods/{name}?gracePeriodSeconds=0")

    def _change(self, names):
        """A component is created, then deleted."""
        late = f"late-{self.number}"
        self.world.api.apply(component(late, "state.in-memory"))
        for name in names:
            wait(f"{name} has the new component", lambda name=name: late in self.world.components(name))
        self.world.api.delete(f"{RESOURCES}/shop/components/{late}")
        for name in names:
            wait(f"{name} has lost the component", lambda name=name: late not in self.world.components(name))

    def _job(self, name):
        """A job is due at once."""
        sidecar, path = self.world.sidecars[name], "/v1.0-alpha1/jobs/now"
        wait(f"the scheduler takes a job of {name}",
             lambda: sidecar.ask("POST", path, {"dueTime": "1s", "data": "x", "overwrite": True})[0] == 204)
        wait(f"the job of {name} is triggered", lambda: self.world.apps[name].seen["/job/now"])

    def _actor(self, kind, host, caller):
        """A turn of an actor of one app, called through the other's sidecar."""
        path = f"/v1.0/actors/{kind}/one/method/turn"
        wait(f"{caller} reaches an actor of {host}",
             lambda: self.world.sidecars[caller].ask("PUT", path, {"a": 1})[0] == 200)
        holds(self.world.apps[host].seen[f"/actors/{kind}/one/method/turn"], f"the app {host} has seen no turn")


def combinations():
    """For each product, its pure control plane, then with each part replaced by the other product's."""
    for side, other in SIDES.items():
        yield f"all parts {side}", {part: side for part in PARTS}
        for odd in PARTS:
            yield f"{odd} {other}, the others {side}", {part: other if part == odd else side for part in PARTS}


def main():
    ours, theirs, server, program, their_chart, *text = sys.argv[1:]
    own_network("conformance/kubernetes/mixed")
    with session(ours, server, program) as world:
        mixed = Mixed(world, {"ours": ours, "theirs": theirs}, {"ours": CHART, "theirs": their_chart})
        mixed.prepare()
        checks = []
        for name, sides in combinations():
            if not text or text[0] in name:
                def check(_, sides=sides, fresh=bool(checks) and name.startswith("all ")):
                    if fresh:
                        mixed.forget_authority()
                    mixed.check(sides)
                checks.append((name, check))
        passed, failed = perform(world, checks)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
