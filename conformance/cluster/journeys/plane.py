"""CPU time and memory of the control plane, idle and with pods coming and going: our chart, then Dapr's, with default values.

The folder BENCH_REPORT gets the results as plane.json, and as a table in plane.md. BENCH_QUICK=1 shortens the run.
"""

import contextlib
import json
import statistics
import subprocess
import threading
import time

import usage
from bench import QUICK, folder, machine, now, version
from client import holds, same, wait
from cluster import SYSTEM, namespace, template, workload
from switch import VERSION, theirs

# A node runs at most 110 pods, and two cores start 20 within a minute.
APPS, REPLICAS, WAVES = 10, 2, (1 if QUICK else 5)
AT_ONCE, PODS = APPS * REPLICAS, APPS * REPLICAS * WAVES
SETTLE, IDLE = (5, 20) if QUICK else (30, 60)
# The default probe of a sidecar begins after 3 s and has a period of 6 s, longer than a sidecar's start.
PROBE = {"sidecar_readiness_probe_delay_seconds": 0, "sidecar_readiness_probe_period_seconds": 1}
PRODUCTS = {"outrigger": "Outrigger", "reference": "Dapr"}
# Name, ready, containers.
LINE = "{.object.metadata.name};{.object.status.conditions[?(@.type=='Ready')].status};{.object.spec.containers[*].name}\n"


def run(cluster):
    measured = Plane(cluster)
    for product, title in PRODUCTS.items():
        yield f"the chart of {title} is installed", lambda product=product: measured.install(product)
        yield f"{title} idle", lambda product=product: measured.idle(product)
        yield f"{title} with {PODS} pods coming and going, {AT_ONCE} at once", lambda product=product: measured.churn(product)
    yield "the table is written", measured.write


class Plane:
    def __init__(self, cluster):
        self.cluster, self.client = cluster, cluster.client
        self.started, self.found = now(), {}

    def install(self, product):
        self.cluster.clean()
        if product == "outrigger":
            self.cluster.install()
            self.cluster.settled()
        else:
            theirs(self.cluster)
        self.client.apply(namespace("plane"))
        pods = self.client.get("pods", "-n", SYSTEM)
        self.keys = {(pod["metadata"]["name"], one["name"]) for pod in pods for one in pod["spec"]["containers"]}
        self.found[product] = {"replicas": summed({key: 1 for key in self.keys})}
        time.sleep(SETTLE)

    def used(self):
        return usage.containers(self.client, SYSTEM, self.keys)

    def idle(self, product):
        before = self.used()
        time.sleep(IDLE)
        after = self.used()
        rates = {key: (after[key].cpu - before[key].cpu) / (after[key].time - before[key].time) for key in self.keys}
        memory = summed({key: after[key].memory for key in self.keys})
        found = self.found[product]["idle"] = {"cores": summed(rates), "memory": memory}
        return "; ".join(f"{part} {found['cores'][part] * 1000:.1f} millicores, {found['memory'][part] / 1e6:.1f} MB"
                         for part in found["cores"])

    def churn(self, product):
        most = {}

        def sample():
            for key, used in usage.read(self.client, SYSTEM).items():
                most[key] = max(most.get(key, 0), used.memory)
        with watched(self.client) as pods:
            before, begun = self.used(), time.monotonic()
            for wave in range(WAVES):
                self.wave(pods, wave, sample)
            seconds, after = time.monotonic() - begun, self.used()
            sample()
        ready = [pod["ready"] - pod["made"] for pod in pods.values() if "ready" in pod]
        restarted = [key for key in self.keys if after[key].cpu < before[key].cpu]
        same(restarted, [], "containers of the control plane that restarted")
        found = self.found[product]["churn"] = {
            "seconds": seconds, "pods": len(pods),
            "without_sidecar": sum("daprd" not in pod["containers"] for pod in pods.values()),
            "ready": {"median": statistics.median(ready), "p90": statistics.quantiles(ready, n=10)[-1], "max": max(ready)},
            "cpu": summed({key: after[key].cpu - before[key].cpu for key in self.keys}),
            "memory": summed({key: most[key] for key in self.keys})}
        return (f"{found['pods']} pods in {seconds:.0f} s, {found['without_sidecar']} without a sidecar, ready after "
                f"{found['ready']['median']:.1f} s, p90 {found['ready']['p90']:.1f} s; "
                + "; ".join(f"{part} {found['cpu'][part]:.2f} s of CPU, at most {found['memory'][part] / 1e6:.1f} MB"
                            for part in found["cpu"]))

    def wave(self, pods, number, sample):
        """Starts pods of some apps; ends them when all are ready."""
        names = [f"app-{number}-{app}" for app in range(APPS)]
        self.client.apply(*(workload("Deployment", name, template(name, **PROBE), "plane", replicas=REPLICAS) for name in names))

        def ready():
            sample()
            return sum("ready" in pod for pod in list(pods.values())) >= AT_ONCE * (number + 1)
        try:
            wait(f"{AT_ONCE} pods are ready", ready, 300, 3)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.client.explain('plane')}") from None
        self.client.kubectl("delete", "deployments", "--all", "-n", "plane", "--cascade=foreground")
        sample()

    def write(self):
        complete = [product for product, found in self.found.items() if "churn" in found]
        same(complete, list(PRODUCTS), "measured products")
        output = folder()
        (output / "plane.json").write_text(json.dumps({
            "started": self.started, "finished": now(), "machine": machine(), "pods": PODS, "at_once": AT_ONCE,
            "versions": {"outrigger": version(self.cluster), "reference": VERSION}, "products": self.found}, indent=1))
        table = "\n".join(rows(*(self.found[product] for product in PRODUCTS)))
        (output / "plane.md").write_text(f"{self.heading()}\n\n{table}\n")
        return f"{output.resolve()}/plane.md:\n{table}"

    def heading(self):
        found = machine()
        return (f"Outrigger {version(self.cluster)} and Dapr {VERSION} on {found['cores']} cores of {found['cpu']}: {IDLE} s idle, "
                f"then {PODS} pods with sidecars, {AT_ONCE} at once, of {APPS} apps. Memory is without mapped files. The kubelet "
                "probes the sidecars each second.")


@contextlib.contextmanager
def watched(client):
    """Pods by name, while they come and go: when they were created and ready, and their containers."""
    pods = {}
    process = subprocess.Popen(
        [client.programs / "kubectl", "get", "pods", "-n", "plane", "--watch", "--output-watch-events", "-o", f"jsonpath={LINE}"],
        env=client.environment, stdout=subprocess.PIPE, text=True)

    def read():
        for line in process.stdout:
            name, ready, containers = line.rstrip("\n").split(";")
            pod = pods.setdefault(name, {"made": time.monotonic(), "containers": containers.split()})
            if ready == "True":
                pod.setdefault("ready", time.monotonic())
    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield pods
        holds(process.poll() is None, f"the watch of pods ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()
        reader.join()


def summed(values):
    """Of all replicas, by container."""
    found = {}
    for (_, container), value in sorted(values.items(), key=lambda pair: pair[0][1]):
        found[container] = found.get(container, 0) + value
    return found


def rows(ours, theirs):
    """A Markdown table of both products."""
    yield "| figure | Outrigger | Dapr | ratio |"
    yield "| --- | ---: | ---: | ---: |"
    for phase, figure, unit, factor in (("idle", "cores", "CPU, millicores", 1e3), ("idle", "memory", "memory, MB", 1e-6),
                                        ("churn", "cpu", "CPU time, s", 1), ("churn", "memory", "peak memory, MB", 1e-6)):
        one, other = ours[phase][figure], theirs[phase][figure]
        name = "idle" if phase == "idle" else f"{PODS} pods"
        for part in one:
            many = f", {ours['replicas'][part]} replicas" if ours["replicas"][part] > 1 else ""
            yield row(f"{part.removeprefix('dapr-')}{many}, {name}: {unit}", one[part] * factor, other[part] * factor)
        yield row(f"together, {name}: {unit}", sum(one.values()) * factor, sum(other.values()) * factor)
    for key in ("median", "p90"):
        yield row(f"from a pod's creation until it is ready: {key}, s", ours["churn"]["ready"][key], theirs["churn"]["ready"][key])
    yield row(f"{PODS} pods: until all came and went, s", ours["churn"]["seconds"], theirs["churn"]["seconds"])
    yield row("pods without a sidecar", ours["churn"]["without_sidecar"], theirs["churn"]["without_sidecar"])


def row(name, one, other):
    ratio = f"{one / other:.2f}" if other else "–"
    return f"| {name} | {short(one)} | {short(other)} | {ratio} |"


def short(value):
    """Three digits."""
    return str(value) if isinstance(value, int) else f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
