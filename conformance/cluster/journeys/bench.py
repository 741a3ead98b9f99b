"""Service invocation between pods of two nodes, as in Dapr's published report: Fortio to an app, with and without sidecars.

Sidecars of both products run under our control plane, so that their rounds alternate. The folder
BENCH_REPORT gets the results as outrigger-bench writes them, and its command `report` draws them. BENCH_QUICK=1 shortens the run.
"""

import json
import os
import pathlib
import platform
import statistics
import time

import usage
from client import holds, wait
from cluster import OURS, namespace, template, workload
from switch import VERSION, theirs_loaded
from workloads import installed

QUICK = os.environ.get("BENCH_QUICK") == "1"
REQUESTS, ROUNDS, CONNECTIONS, QPS, PAYLOAD = (2000 if QUICK else 60_000), (1 if QUICK else 2), 16, 1000, 1024
WARMUP = 1000 if QUICK else 10_000
SETTLE = 5 if QUICK else 60
SIDECARS = {"outrigger": f"docker.io/{OURS['global']['registry']}/daprd:{OURS['global']['tag']}",
            "reference": f"docker.io/dapr/daprd:{VERSION}"}
SYSTEMS = ("direct", *SIDECARS)
HTTP, GRPC = 8080, 8079
# The app's port and protocol, by protocol of the report.
PROTOCOLS = {"http": (HTTP, "http"), "proxy": (GRPC, "grpc")}
PERCENTILES = {"p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99, "p999": 99.9}
SKIPPED = ["full load, sweeps and first calls: the published test has none",
           "memory of mapped files, such as programs: the kubelet counts it for one process of all that map them"]
# Callers that an app accepts.
POLICIES = [{"appId": f"load-{protocol}-{system}", "defaultAction": "allow", "trustDomain": "public", "namespace": "bench"}
            for protocol in PROTOCOLS for system in SIDECARS]
CONFIGURATION = {"apiVersion": "dapr.io/v1alpha1", "kind": "Configuration", "metadata": {"name": "measured", "namespace": "bench"},
                 "spec": {"tracing": {"samplingRate": "0.1"},
                          "accessControl": {"defaultAction": "deny", "trustDomain": "public", "policies": POLICIES}}}


def run(cluster):
    measured = Bench(cluster)
    yield "our control plane and sidecars of both products are ready", measured.begin
    for protocol in PROTOCOLS:
        yield f"rounds of {protocol}", lambda protocol=protocol: measured.rounds(protocol)
    yield "the report is written", measured.write


def fortio(name, node, system, protocol):
    """A Deployment of Fortio, with a sidecar of a product."""
    port, kind = PROTOCOLS[protocol]
    noted = {"enabled": ""} if system == "direct" else {
        "app_port": port, "app_protocol": kind, "config": "measured", "sidecar_image": SIDECARS[system], "log_level": "error"}
    pods = template(name, node, **noted)
    app = pods["spec"]["containers"][0]
    app.update(image="cluster/fortio:1", ports=[{"containerPort": HTTP}], command=[
        "/fortio", "server", "-http-port", str(HTTP), "-grpc-port", str(GRPC), "-tcp-port", "disabled", "-udp-port", "disabled",
        "-redirect-port", "disabled", "-loglevel", "warning"])
    app["readinessProbe"]["httpGet"]["path"] = "/fortio/"
    return workload("Deployment", name, pods, "bench")


class Bench:
    def __init__(self, cluster):
        self.cluster, self.client, self.found = cluster, cluster.client, {}
        self.started = now()

    def begin(self):
        theirs_loaded(self.cluster)
        installed(self.cluster)
        self.client.apply(namespace("bench"))
        self.client.apply(CONFIGURATION)
        first, last = self.cluster.nodes[0].name, self.cluster.nodes[-1].name
        holds(first != last, "the published test needs two nodes")
        self.names = []
        for protocol in PROTOCOLS:
            for system in SYSTEMS:
                pair = fortio(f"load-{protocol}-{system}", first, system, protocol), fortio(f"goal-{protocol}-{system}", last, system, protocol)
                self.client.apply(*pair)
                self.names += [one["metadata"]["name"] for one in pair]
        for name in self.names:
            self.client.rolled("bench", f"deployment/{name}", 240)

    def pod(self, name):
        return self.cluster.only(name, "bench")

    def load(self, system, protocol, requests):
        """Runs Fortio in its pod; returns its report."""
        port, _ = PROTOCOLS[protocol]
        goal = f"goal-{protocol}-{system}"
        words = ["-quiet", "-json", "-", "-qps", QPS, "-n", requests, "-c", CONNECTIONS, "-payload-size", PAYLOAD, "-uniform",
                 "-nocatchup=false", "-r", "0.00001", "-p", ",".join(map(str, PERCENTILES.values()))]
        address = self.pod(goal)["status"]["podIP"] if system == "direct" else "localhost"
        if protocol == "http":
            url = f"http://{address}:{port}/echo" if system == "direct" else f"http://localhost:3500/v1.0/invoke/{goal}/method/echo"
        else:
            words += ["-grpc", "-ping"]
            words += [] if system == "direct" else ["-H", f"dapr-app-id:{goal}"]
            url = f"{address}:{port}" if system == "direct" else "localhost:50001"
        said = self.client.kubectl("exec", "-n", "bench", f"deployment/load-{protocol}-{system}", "-c", "app", "--", "/fortio", "load",
                                   *words, url, timeout=requests / QPS * 4 + 60)
        return json.loads(said[said.index("{"):])

    def used(self, system, protocol):
        """CPU seconds and bytes of memory by role."""
        places = {"load": (f"load-{protocol}-{system}", "app"), "app": (f"goal-{protocol}-{system}", "app")}
        if system != "direct":
            places |= {"caller": (f"load-{protocol}-{system}", "daprd"), "callee": (f"goal-{protocol}-{system}", "daprd")}
        keys = {role: (self.pod(name)["metadata"]["name"], container) for role, (name, container) in places.items()}
        stats = usage.containers(self.client, "bench", set(keys.values()))
        return {role: stats[key] for role, key in keys.items()}

    def rounds(self, protocol):
        found = self.found[protocol] = {system: {"rounds": [], "data": [], "idle": self.used(system, protocol)} for system in SYSTEMS}
        for system in SYSTEMS:
            wait("calls succeed", lambda system=system: not failed(self.load(system, protocol, WARMUP)))
        for number in range(ROUNDS):
            # Alternating, in another order each time.
            for system in SYSTEMS[number % 3:] + SYSTEMS[:number % 3]:
                before = self.used(system, protocol)
                report = self.load(system, protocol, REQUESTS)
                after = self.used(system, protocol)
                found[system]["rounds"].append(measurement(report, before, after))
                found[system]["data"] += report["DurationHistogram"]["Data"]
                found[system]["loaded"] = after
        time.sleep(SETTLE)
        for system in SYSTEMS:
            found[system]["settled"] = self.used(system, protocol)
        return "; ".join(f"{system} {told(found[system])}" for system in SYSTEMS)

    def write(self):
        path = folder() / "results.json"
        path.write_text(json.dumps({
            "schema": 1, "started": self.started, "finished": now(), "machine": machine(), "plan": plan(), "skipped": SKIPPED,
            "versions": {"outrigger": version(self.cluster), "reference": VERSION},
            "protocols": [{"protocol": protocol, "systems": [system_results(name, one) for name, one in systems.items()]}
                          for protocol, systems in self.found.items()]}, indent=1))
        return f"{path.resolve()}: outrigger-bench report --results draws it"


def folder():
    found = pathlib.Path(os.environ.get("BENCH_REPORT") or "bench-report/cluster")
    found.mkdir(parents=True, exist_ok=True)
    return found


def now():
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())


def failed(report):
    return sum(count for code, count in report["RetCodes"].items() if code not in ("200", "SERVING", "OK"))


def latency(buckets):
    """Latencies in microseconds, of the buckets of Fortio."""
    buckets = sorted(buckets, key=lambda one: one["End"])
    total = sum(one["Count"] for one in buckets)
    found = {"mean": sum(one["Count"] * (one["Start"] + one["End"]) / 2 for one in buckets) / total * 1e6,
             "min": buckets[0]["Start"] * 1e6, "max": buckets[-1]["End"] * 1e6}
    for name, percent in PERCENTILES.items():
        left = total * percent / 100
        for one in buckets:
            if left <= one["Count"]:
                # As Fortio interpolates.
                found[name] = (one["Start"] + left / one["Count"] * (one["End"] - one["Start"])) * 1e6
                break
            left -= one["Count"]
    return found


def spread(buckets, parts=20):
    """Microseconds and calls. The buckets are wider than bins of the report's charts, so the calls of each are spread over it."""
    for one in buckets:
        for part in range(parts):
            if count := one["Count"] * (part + 1) // parts - one["Count"] * part // parts:
                yield [(one["Start"] + (one["End"] - one["Start"]) * (part + 0.5) / parts) * 1e6, count]


NOTHING = {"mean": 0, "min": 0, "p50": 0, "p75": 0, "p90": 0, "p95": 0, "p99": 0, "p999": 0, "max": 0}


def measurement(report, before, after):
    histogram = report["DurationHistogram"]
    bad = failed(report)
    return {"driver": "fortio", "requested_qps": QPS, "connections": CONNECTIONS, "payload": PAYLOAD, "planned": REQUESTS,
            "requests": histogram["Count"] - bad, "errors": {"failed": bad} if bad else {}, "requested_seconds": REQUESTS / QPS,
            "seconds": report["ActualDuration"] / 1e9, "latency": latency(histogram["Data"]), "lag": NOTHING,
            "breakdown": {"waited": 0, "head": 0, "body": 0}, "connect": {"count": 0, "min": 0, "mean": 0, "max": 0},
            "sent": 0, "received": 0, "payload_sent": PAYLOAD * histogram["Count"], "payload_received": PAYLOAD * histogram["Count"],
            "cpu": {role: times(before[role], after[role]) for role in after},
            "resident": {role: one.memory for role, one in after.items()}}


def times(before, after):
    user = after.user - before.user
    return {"user": user, "system": max(after.cpu - before.cpu - user, 0)}


def total(one):
    """All rounds together."""
    first, *_ = rounds = one["rounds"]
    summed = dict(first)
    for key in ("planned", "requests", "requested_seconds", "seconds", "payload_sent", "payload_received"):
        summed[key] = sum(each[key] for each in rounds)
    summed["errors"] = {"failed": count} if (count := sum(sum(each["errors"].values()) for each in rounds)) else {}
    summed["latency"] = latency(one["data"])
    summed["cpu"] = {role: {kind: sum(each["cpu"][role][kind] for each in rounds) for kind in ("user", "system")}
                     for role in first["cpu"]}
    summed["resident"] = {role: max(each["resident"][role] for each in rounds) for role in first["resident"]}
    return summed


def system_results(name, one):
    resident = {when: {role: each.memory for role, each in one[when].items()} for when in ("idle", "loaded", "settled")}
    return {"system": name, "total": total(one), "rounds": one["rounds"], "first_call": [],
            "histogram": sorted(spread(one["data"])),
            "memory": {**resident, "saturated": {}, "per_connection": None},
            "saturation": None, "curve": [], "payloads": [], "connections": []}


def told(one):
    summed = total(one)
    hops = [sum(summed["cpu"][role].values()) for role in ("caller", "callee") if role in summed["cpu"]]
    memory = [summed["resident"][role] / 1e6 for role in ("caller", "callee") if role in summed["resident"]]
    return (f"p50 {summed['latency']['p50'] / 1000:.2f} ms, p99 {summed['latency']['p99'] / 1000:.2f} ms, "
            f"{sum(hops) / summed['requests'] * 1e6:.0f} us of CPU per call in sidecars, "
            f"{statistics.mean(memory) if memory else 0:.0f} MB each, {sum(summed['errors'].values())} of {summed['planned']} failed")


def plan():
    return {"profile": "quick" if QUICK else "full", "protocols": list(PROTOCOLS), "systems": list(SYSTEMS),
            "driver": {"fortio": "fortio"}, "resolver": "mdns", "rounds": ROUNDS, "requests": REQUESTS, "qps": QPS,
            "connections": CONNECTIONS, "payload": PAYLOAD, "warmup": WARMUP / QPS, "saturation": 0, "curve": [], "curve_point": 0,
            "payloads": [], "connection_counts": [], "sweep_point": 0, "starts": 0, "idle_connections": 0, "settle": SETTLE,
            "nginx_workers": 0, "envoy_workers": 0}


def machine():
    cpu = [line.partition(":")[2].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    memory = int(pathlib.Path("/proc/meminfo").read_text().split()[1]) * 1024
    return {"cpu": cpu[0] if cpu else "", "cores": os.cpu_count(), "memory_bytes": memory, "kernel": platform.release(),
            "load_before": os.getloadavg()[0]}


def version(cluster):
    found = json.loads((cluster.folder / "ours" / "index.json").read_text())["manifests"]
    return next(one["annotations"]["org.opencontainers.image.ref.name"] for one in found if "annotations" in one).split(":")[1]
