"""What a platform team runs: every kind of workload with sidecars, every building block between pods, annotations."""

import json
import pathlib
import time

from client import ask, holds, same, wait
from cluster import namespace, template, workload
from short import succeeded

# Annotations, and the part of the sidecar's container that they set.
ANNOTATIONS = {
    "log_level=debug": lambda one: pair(one, "--log-level", "debug"),
    "app_protocol=http": lambda one: pair(one, "--app-protocol", "http"),
    "app_max_concurrency=7": lambda one: pair(one, "--app-max-concurrency", "7"),
    "metrics_port=9099": lambda one: pair(one, "--metrics-port", "9099"),
    "grpc_port=50011": lambda one: pair(one, "--dapr-grpc-port", "50011"),
    "internal_grpc_port=50012": lambda one: pair(one, "--dapr-internal-grpc-port", "50012"),
    "enable_app_health_check=true": lambda one: "--enable-app-health-check" in one["args"],
    "app_health_check_path=/healthz": lambda one: pair(one, "--app-health-check-path", "/healthz"),
    "app_health_probe_interval=2": lambda one: pair(one, "--app-health-probe-interval", "2"),
    "app_health_threshold=4": lambda one: pair(one, "--app-health-threshold", "4"),
    "enable_api_logging=true": lambda one: pair(one, "--enable-api-logging", "true"),
    "disable_builtin_k8s_secret_store=true": lambda one: "--disable-builtin-k8s-secret-store" in one["args"],
    "read_buffer_size=8Ki": lambda one: pair(one, "--read-buffer-size", "8Ki"),
    "log_as_json=true": lambda one: "--log-as-json" in one["args"],
    "max_body_size=1Mi": lambda one: pair(one, "--max-body-size", "1Mi"),
    "graceful_shutdown_seconds=3": lambda one: pair(one, "--dapr-graceful-shutdown-seconds", "3"),
    "sidecar_memory_limit=96Mi": lambda one: one["resources"]["limits"]["memory"] == "96Mi",
    "sidecar_memory_request=48Mi": lambda one: one["resources"]["requests"]["memory"] == "48Mi",
    "sidecar_cpu_limit=700m": lambda one: one["resources"]["limits"]["cpu"] == "700m",
    "sidecar_liveness_probe_threshold=9": lambda one: one["livenessProbe"]["failureThreshold"] == 9,
    "sidecar_liveness_probe_delay_seconds=5": lambda one: one["livenessProbe"]["initialDelaySeconds"] == 5,
    "sidecar_readiness_probe_timeout_seconds=4": lambda one: one["readinessProbe"]["timeoutSeconds"] == 4,
    "api_token_secret=word": lambda one: any(each["name"] == "DAPR_API_TOKEN" and each["valueFrom"]["secretKeyRef"]["name"] == "word"
                                             for each in one["env"]),
    "sidecar_cpu_request=30m": lambda one: one["resources"]["requests"]["cpu"] == "30m",
    "env=SHIP=anchor": lambda one: {"name": "SHIP", "value": "anchor"} in one["env"],
    "sidecar_readiness_probe_period_seconds=2": lambda one: one["readinessProbe"]["periodSeconds"] == 2,
    "sidecar_seccomp_profile_type=RuntimeDefault": lambda one: one["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault",
}
LIMIT = 96


def pair(container, flag, value):
    words = container["args"]
    return any(one == f"{flag}={value}" or [one, other] == [flag, value] for one, other in zip(words, [*words[1:], ""]))


def sidecar(pod):
    every = pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
    found = next((one for one in every if one["name"] == "daprd"), None)
    holds(found, f"{pod['metadata']['name']} has no sidecar")
    return found


def component(name, kind, **metadata):
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": {"name": name, "namespace": "shop"}, "spec": {
        "type": kind, "version": "v1", "metadata": [{"name": key, "value": value} for key, value in metadata.items()]}}


def redis(folder=None):
    """Redis, and the components of the apps on it; with a folder of this machine it keeps its data there."""
    words = ["--save", "", "--protected-mode", "no"]
    held = {"name": "redis", "image": "cluster/redis:1", "imagePullPolicy": "Never", "args": words}
    pod = {"containers": [held]}
    if folder:
        folder.mkdir()
        held["args"] = [*words, "--appendonly", "yes", "--dir", "/data"]
        held["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        pod["volumes"] = [{"name": "data", "hostPath": {"path": str(folder)}}]
    server = {"metadata": {"labels": {"app": "redis"}}, "spec": pod}
    yield workload("Deployment", "redis", server)
    yield {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "redis", "namespace": "shop"},
           "spec": {"selector": {"app": "redis"}, "ports": [{"port": 6379}]}}
    yield component("store", "state.redis", redisHost="redis.shop:6379", actorStateStore="true")
    yield component("events", "pubsub.redis", redisHost="redis.shop:6379")


def run(cluster):
    yield "the chart is installed and every part is ready", lambda: installed(cluster)
    yield "a Deployment, a StatefulSet, a DaemonSet, a Job and a CronJob get sidecars", lambda: kinds(cluster)
    yield "pods of two nodes call each other", lambda: invoke(cluster)
    yield "events reach the pods of a subscriber once", lambda: publish(cluster)
    yield "actors take turns on two pods", lambda: actors(cluster)
    yield "a job arrives", lambda: jobs(cluster)
    yield "a workflow sleeps and ends", lambda: workflow(cluster)
    yield f"{len(ANNOTATIONS)} annotations set the sidecar's container", lambda: annotations(cluster)
    yield "limits of memory are those of the sidecar's cgroup", lambda: limits(cluster)
    yield "a native sidecar starts after init containers and ends with its Job", lambda: native(cluster)


def installed(cluster):
    if "dapr" not in cluster.client.helm("list", "-q", "-n", "dapr-system").split():
        cluster.install()
    cluster.settled()
    cluster.client.apply(namespace("shop"))


def job(name, kind="Job", **annotations):
    """Calls the app `server` and ends."""
    pods = template(name, **{"app_port": "", **annotations})
    del pods["metadata"]["annotations"]["dapr.io/app-port"]
    app = pods["spec"]["containers"][0]
    app.pop("readinessProbe")
    app["command"] = ["/app", "once", "POST", "/v1.0/invoke/server/method/from-" + name, "{}"]
    if "enable_native_sidecar" not in annotations:
        app["env"] = [{"name": "SHUTDOWN", "value": "1"}]
    pods["spec"]["restartPolicy"] = "Never"
    spec = {"template": pods, "backoffLimit": 2}
    if kind == "CronJob":
        spec = {"schedule": "* * * * *", "jobTemplate": {"spec": spec}}
    return {"apiVersion": "batch/v1", "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": spec}


def kinds(cluster):
    client, last = cluster.client, cluster.nodes[-1].name
    client.apply(
        cluster.place("server", replicas=2), workload("StatefulSet", "set", template("set"), serviceName="set", replicas=2),
        workload("DaemonSet", "every", template("every")), job("once"), job("timed", "CronJob"), cluster.place("caller", node=last))
    for name in ("deployment/server", "statefulset/set", "daemonset/every", "deployment/caller"):
        client.rolled("shop", name)
    same(len(client.pods("shop", "app=every")), len(cluster.nodes), "pods of the DaemonSet")
    client.kubectl("wait", "-n", "shop", "job/once", "--for=condition=complete", "--timeout=90s")
    wait("the CronJob ends", lambda: any(one["status"].get("succeeded") for one in client.get("jobs", "-n", "shop")
                                         if one["metadata"]["name"].startswith("timed-")), 150)
    client.kubectl("delete", "cronjob", "-n", "shop", "timed")
    for pod in client.get("pods", "-n", "shop"):
        sidecar(pod)


def invoke(cluster):
    caller = cluster.only("caller")
    servers = cluster.client.pods("shop", "app=server")
    for body in ({"number": number} for number in range(50)):
        same(ask(caller, "/sidecar/v1.0/invoke/server/method/echo", body), (200, body), "an answer")
    reached = [ask(pod, "/counts")[1].get("/echo", 0) for pod in servers]
    same(sum(reached), 50, "calls that arrived")
    return f"{reached} calls on {[pod['spec']['nodeName'] for pod in servers]}"


def publish(cluster):
    client = cluster.client
    client.apply(*redis())
    client.rolled("shop", "deployment/redis")
    client.apply(cluster.place("reader", replicas=2, environment={"TOPICS": "orders"}),
                 cluster.place("writer", node=cluster.nodes[-1].name))
    client.rolled("shop", "deployment/reader")
    client.rolled("shop", "deployment/writer")
    writer = cluster.only("writer")
    for number in range(100):
        same(ask(writer, "/sidecar/v1.0/publish/events/orders", {"number": number})[0], 204, "a publication")

    def arrived():
        return [ask(pod, "/counts")[1].get("/event/orders", 0) for pod in client.pods("shop", "app=reader")]
    wait("all events arrive", lambda: sum(arrived()) >= 100)
    time.sleep(3)  # for copies
    same(sum(arrived()), 100, "events that arrived")


def actors(cluster):
    client = cluster.client
    client.apply(cluster.place("fleet", replicas=2, environment={"ACTORS": "ship"}))
    client.rolled("shop", "deployment/fleet")
    client.restart("shop", "deployment/caller")
    caller = cluster.only("caller")
    hosts = set()
    for number in range(60):
        path = f"/sidecar/v1.0/actors/ship/{number % 20}/method/sail"
        hosts.add(wait("an actor answers", lambda path=path: succeeded(ask(caller, path, {}))))
    same(len(hosts), 2, "pods that host actors")
    for pod in client.pods("shop", "app=fleet"):
        same(ask(pod, "/counts")[1].get("overlaps", 0), 0, "overlapping turns")


def jobs(cluster):
    server = cluster.client.pods("shop", "app=server")
    same(ask(server[0], "/sidecar/v1.0-alpha1/jobs/voyage", {"dueTime": "1s", "data": "salt"})[0], 204, "a job is scheduled")
    wait("the job arrives", lambda: sum(ask(pod, "/counts")[1].get("/job/voyage", 0) for pod in server))


def workflow(cluster):
    client = cluster.client
    client.apply(cluster.place("flows", environment={"WORKFLOWS": "1"}))
    client.rolled("shop", "deployment/flows")
    pod = cluster.only("flows")
    start = "/sidecar/v1.0/workflows/dapr/sleeper/start?instanceID=one"
    wait("the workflow starts", lambda: ask(pod, start, b"5")[0] == 202)
    ended = wait("the workflow ends", lambda: finished(pod, "one"))
    same(json.loads(ended["properties"]["dapr.workflow.output"]), "woke", "its output")


def finished(pod, instance):
    """The state of a workflow that ended."""
    status, found = ask(pod, f"/sidecar/v1.0/workflows/dapr/{instance}")
    return found if status == 200 and found["runtimeStatus"] in ("COMPLETED", "FAILED", "TERMINATED") else None


def annotations(cluster):
    given = {key: value for key, _, value in (one.partition("=") for one in ANNOTATIONS)}
    cluster.client.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "word", "namespace": "shop"},
                          "stringData": {"token": "sesame"}}, cluster.place("noted", **given))
    cluster.client.rolled("shop", "deployment/noted")
    pod = cluster.only("noted")
    container = sidecar(pod)
    wrong = [one for one, check in ANNOTATIONS.items() if not check(container)]
    same(wrong, [], f"annotations without effect, of {json.dumps(container)}")
    same(ask(pod, "/sidecar/v1.0/invoke/server/method/echo", {})[0], 401, "a call without the API token")


def processes(word):
    """Processes with a word in their command, which this PID namespace sees."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if word in (folder / "cmdline").read_text().split("\0"):
                yield int(folder.name)
        except OSError:
            continue  # it ended


def limits(cluster):
    pid, = (one for one in processes("noted") if "daprd" in pathlib.Path(f"/proc/{one}/cmdline").read_text())
    found = dict(line.split(":", 2)[1:] for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    root = pathlib.Path("/sys/fs/cgroup")
    files = [root / "memory" / found.get("memory", "/x").lstrip("/") / "memory.limit_in_bytes",
             root / found.get("", "/x").lstrip("/") / "memory.max"]
    held = [one.read_text().strip() for one in files if one.exists()]
    same(held[0], str(LIMIT << 20), "the limit of the sidecar's memory")


def native(cluster):
    manifest = job("native", enable_native_sidecar="true")
    pods = manifest["spec"]["template"]["spec"]
    pods["initContainers"] = [{"name": "before", "image": "cluster/app:1", "imagePullPolicy": "Never", "command": ["/app", "none"]}]
    cluster.client.apply(manifest)
    cluster.client.kubectl("wait", "-n", "shop", "job/native", "--for=condition=complete", "--timeout=120s")
    pod, = cluster.client.get("pods", "-n", "shop", "-l", "app=native")
    same([one["name"] for one in pod["spec"]["initContainers"]], ["before", "daprd"], "init containers")
    state = pod["status"]["initContainerStatuses"][1]["state"]
    holds("terminated" in state, f"the sidecar still runs: {state}")
