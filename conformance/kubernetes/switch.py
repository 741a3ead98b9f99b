"""A release of Dapr's chart is upgraded to ours, and back. Run by the script `switch`.

usage: switch.py HELM KUBE_APISERVER RENDER DAPR_CHART [TEXT]
"""

import base64
import json
import pathlib
import subprocess
import sys

from cluster import ADDRESS, ADMIN
from world import CHART, SECRET, SYSTEM, chart, holds, own_network, perform, same, session

RELEASE = "dapr"
# Objects that a running Dapr release writes to the cluster. Replacing them in an upgrade would invalidate the trust of
# running sidecars.
TRUST = {"ca.crt": "the roots", "issuer.crt": "the issuer", "issuer.key": "its key"}
HOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/dapr-sidecar-injector"
# Fields set by the API server.
VOLATILE = ("resourceVersion", "generation", "managedFields", "creationTimestamp", "uid")
# Values for both charts, as varied as possible.
CASES = {
    "by default": {},
    "highly available": {"global": {"ha": {"enabled": True}}},
    "without mTLS": {"global": {"mtls": {"enabled": False}}},
    "with rights in one namespace": {"global": {"rbac": {"namespaced": True}}},
    "with little": {"global": {"prometheus": {"enabled": False}, "actors": {"enabled": False},
                               "scheduler": {"enabled": False}}},
    "with in-memory jobs and a log level": {"global": {"logAsJson": True}, "dapr_scheduler": {
        "cluster": {"inMemoryStorage": True}}, "dapr_operator": {"logLevel": "debug"}},
}


class Releases:
    """Helm, with the cluster of the checks."""

    def __init__(self, world, program, theirs):
        self.world, self.program, self.theirs = world, program, theirs
        folder = world.cluster.folder
        self.config = folder / "kubeconfig"
        self.config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "checks",
            "clusters": [{"name": "checks", "cluster": {"server": f"https://{ADDRESS}:{world.api.port}",
                                                        "certificate-authority": str(world.api.authority)}}],
            "users": [{"name": "admin", "user": {"token": ADMIN}}],
            "contexts": [{"name": "checks", "context": {"cluster": "checks", "user": "admin"}}]}))
        self.config.chmod(0o600)
        self.values = folder / "values.json"
        # HOME too: otherwise Helm caches API discovery in the working directory.
        self.homes = {"HOME": str(folder), **{f"HELM_{name}_HOME": str(folder / "helm") for name in ("CACHE", "CONFIG", "DATA")}}

    def helm(self, *words):
        """Runs Helm; returns its output or raises with it."""
        done = subprocess.run([self.program, *words, "--namespace", SYSTEM, "--kubeconfig", str(self.config)],
                              env={"PATH": "/usr/bin:/bin", **self.homes}, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise AssertionError(f"helm {words[0]}: {done.stderr.strip()}")
        return done.stdout

    def objects(self, path, values):
        """The objects of a release on the API server, by kind and name."""
        found = {}
        for one in chart.render(self.world.program, path, {"one": values})["one"]["objects"]:
            meta = one["metadata"]
            path = self.world.api.collection(one["apiVersion"], one["kind"], meta.get("namespace", SYSTEM))
            found[one["kind"], meta["name"]] = self.world.api.get(f"{path}/{meta['name']}")
        return found

    def run(self):
        """Simulates what running Dapr services write to the release's objects."""
        data = {name: base64.b64encode(text.encode()).decode() for name, text in TRUST.items()}
        self.world.api.merge(SECRET, {"data": data})
        self.world.api.merge(SECRET.replace("/secrets/", "/configmaps/"), {"data": {"ca.crt": TRUST["ca.crt"]}})
        hook = self.world.api.get(HOOK)
        self.world.api.call("PATCH", HOOK, [{"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle",
                                             "value": data["ca.crt"]} for number in range(len(hook["webhooks"]))],
                            "application/json-patch+json")

    def trusted(self, when):
        """Checks that the trust bundle is unchanged."""
        found = self.world.api.get(SECRET)["data"]
        same({name: base64.b64decode(text).decode() for name, text in found.items()}, TRUST, f"the trust bundle {when}")
        same(self.world.api.get(SECRET.replace("/secrets/", "/configmaps/"))["data"], {"ca.crt": TRUST["ca.crt"]},
             f"the roots {when}")

    def check(self, values):
        """Upgrades to ours and back."""
        self.values.write_text(json.dumps(values))
        self.helm("install", RELEASE, self.theirs, "--create-namespace", "--values", str(self.values))
        try:
            self.run()
            before = self.objects(self.theirs, values)
            for one in self.world.render({"one": {}})["crds"]["objects"]:
                self.world.api.apply(one)
            self.helm("upgrade", RELEASE, str(CHART), "--values", str(self.values))
            self.trusted("after the upgrade")
            self.kept(before, self.objects(CHART, values))
            self.helm("rollback", RELEASE, "1")
            self.trusted("after switching back")
            after = self.objects(self.theirs, values)
            for key, one in before.items():
                same(lasting(after[key]), lasting(one), f"{' '.join(key)} after switching back")
        finally:
            self.helm("uninstall", RELEASE)

    def kept(self, before, after):
        """Checks that dependencies of apps are unchanged, and that images are ours."""
        for (kind, name), one in before.items():
            if kind in ("Service", "Deployment", "StatefulSet", "MutatingWebhookConfiguration", "ServiceAccount"):
                holds((kind, name) in after, f"{kind} {name} is gone")
                same(after[kind, name]["metadata"]["uid"], one["metadata"]["uid"], f"the uid of {kind} {name}")
            if kind == "Service":
                same(after[kind, name]["spec"]["clusterIP"], one["spec"]["clusterIP"], f"the address of {name}")
                had = {port["port"] for port in one["spec"]["ports"]}
                has = {port["port"] for port in after[kind, name]["spec"]["ports"]}
                holds(had <= has, f"ports of {name}: {sorted(has)}, before {sorted(had)}")
            if kind in ("Deployment", "StatefulSet"):
                images = [each["image"] for each in after[kind, name]["spec"]["template"]["spec"]["containers"]]
                holds(all("outrigger" in image for image in images), f"images of {name}: {images}")


def lasting(found):
    """An object without fields set by the API server."""
    found = json.loads(json.dumps(found))
    for field in VOLATILE:
        found["metadata"].pop(field, None)
    found.pop("status", None)
    return found


def main():
    program, server, renderer, theirs, *text = sys.argv[1:]
    own_network("conformance/kubernetes/switch")
    # No process of ours runs, so any folder of binaries will do.
    with session(pathlib.Path(renderer).parent, server, renderer) as world:
        releases = Releases(world, program, theirs)
        checks = [(f"Dapr's release {name} becomes ours, and Dapr's again", lambda _, values=values: releases.check(values))
                  for name, values in CASES.items() if not text or text[0] in name]
        passed, failed = perform(world, checks)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
