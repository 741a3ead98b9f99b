"""Effects of annotations on a pod: native sidecars, and invalid values."""

import time

from world import Refused, adder, containers, holds, pod, same, wait

CHECKS = []
check = adder(CHECKS)
PODS = "/api/v1/namespaces/shop/pods"


def new(name, **annotations):
    return {"apiVersion": "v1", "kind": "Pod", **pod(name, enabled="true", app_id=name, **annotations)}


@check("a native sidecar: the API server accepts it, it runs, and a watchdog recognises it")
def native(world):
    found = world.injected("native", enable_native_sidecar="true", config="appconfig")
    same(world.api.warnings, [], "warnings")
    same(containers(found), ["app"], "containers")
    sidecar = found["spec"]["initContainers"][-1]
    same((sidecar["name"], sidecar["restartPolicy"]), ("daprd", "Always"), "the init container")
    world.sidecar("native", found)
    probe = sidecar["startupProbe"]["httpGet"]
    world.answers("daprd-native", f"http://{world.cluster.address(found)}:{probe['port']}{probe['path']}")
    holds("store" in world.components("native"), "it has no components")
    # A second review does not add another sidecar.
    again = {"apiVersion": "v1", "kind": "Pod", "spec": found["spec"], "metadata": {
        "name": "native-again", "labels": found["metadata"]["labels"], "annotations": found["metadata"]["annotations"]}}
    same(len(world.api.post(PODS, again, token=world.controller)["spec"]["initContainers"]), 1, "init containers")
    # By now the watchdog polls every second.
    asked = world.cluster.audit.stat().st_size

    def looks():
        return sum(call["verb"] == "list" and "/pods" in call["requestURI"] for call in world.cluster.calls(asked)) >= 2
    wait("the watchdog has polled", looks)
    time.sleep(1)
    same(world.api.get(f"{PODS}/native")["metadata"]["uid"], found["metadata"]["uid"], "the pod")
    world.dismiss("native")


@check("an annotation that is invalid in a container is refused by name, one that sidecars do not accept is ignored")
def values(world):
    for name, value in (("metrics_port", 99999), ("sidecar_seccomp_profile_type", "Localhost"),
                        ("sidecar_liveness_probe_period_seconds", -1), ("sidecar_memory_limit", "-1Gi"),
                        ("volume_mounts", "data:"), ("volume_mounts", "data:/x,data:/x"),
                        ("sidecar_image", "example.com/daprd "), ("env_from_secret", "A=s:a/b"), ("env", "N\u00c4ME=x")):
        annotation = f"dapr.io/{name.replace('_', '-')}"
        wrong = new("refused", **{name: value})
        wrong["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
        try:
            world.api.post(PODS, wrong, token=world.controller)
        except Refused as refused:
            holds(annotation in refused.message, f"{annotation}: {refused.message}")
        else:
            raise AssertionError(f"{annotation} {value} was taken")
    found = world.api.post(PODS, new("odd-values", app_protocol="soap", log_level="loud"), token=world.controller)
    told = " ".join(world.api.warnings)
    holds("dapr.io/app-protocol" in told and "dapr.io/log-level" in told, f"warnings: {told!r}")
    args = next(one for one in found["spec"]["containers"] if one["name"] == "daprd")["args"]
    holds("soap" not in args and "loud" not in args, f"{args}")
    # Zero means the default of Kubernetes.
    same(containers(world.api.post(PODS, new("zero", sidecar_liveness_probe_period_seconds=0), token=world.controller)),
         ["app", "daprd"], "with a zero")
