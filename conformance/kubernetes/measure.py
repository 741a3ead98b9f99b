"""Measures the operator and the injector at scale. Run by scripts/measure-kubernetes.

Each product has a separate API server, etcd and network; the products run one after the other. CPU time is user plus system time of
a process, from /proc. Memory is resident memory, and its maximum since the start of the step. API calls are counted in the audit
log. Each simulated sidecar has a connection with mTLS, lists its components, and receives changes on a stream.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import simulated
from world import ADDRESS, CHART, RESOURCES, SYSTEM, component, holds, own_network, pod, session, wait

TICK = os.sysconf("SC_CLK_TCK")
PARTS = ("sentry", "operator", "injector")
OPERATOR, INJECTOR = "dapr-operator-0", "dapr-sidecar-injector-0"
# Approximate size of a component, in bytes of JSON.
SIZE = 1400
CONNECTIONS = 4
# The interval of the watchdog in seconds, and the number of rounds to wait for.
WATCHDOG, ROUNDS = 5, 2
# Limits for ours on any machine: API calls a minute at rest (docs/reference/kubernetes.md), and pods deleted because of unrelated
# changes. The leading operator renews its lease, the injector its webhook registration, each every five minutes.
MAX_CALLS = {"dapr-operator": 2, "dapr-injector": 1}
MAX_DELETED = 0


class Process:
    """Resource usage of a process, from the kernel."""

    def __init__(self, process):
        self.path = pathlib.Path(f"/proc/{process.pid}")

    def cpu(self):
        """User and system time, in seconds."""
        fields = (self.path / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def memory(self, field="VmRSS"):
        """In MB."""
        return int((self.path / "status").read_text().split(f"{field}:")[1].split()[0]) * 1024 / 1e6

    def forget_peak(self):
        """Resets the maximum of resident memory."""
        (self.path / "clear_refs").write_text("5")


class Measure:
    """One product."""

    def __init__(self, world, options):
        self.world, self.options = world, options
        self.rows, self.missed = {}, []

    def note(self, what, unit, value, most=None):
        """Records a figure; ours over its limit is a failure, reported after all measurements."""
        self.rows[f"{what}, {unit}"] = value
        print(f"  {what}: {value:,.2f} {unit}", flush=True)
        if most is not None and value > most and self.options.one == "ours":
            self.missed.append(f"{what}: {value:,.2f} {unit}, want {most} at the most")

    def process(self, name):
        return Process(self.world.fleet.processes[name])

    def begin(self):
        """Sentry, the operator and the injector."""
        world = self.world
        world.cluster.namespace(SYSTEM)
        world.define()
        self.objects = world.objects({})
        for one in self.objects:
            world.api.apply(one)
        world.begin("shop")
        for part in PARTS:
            name = world.create(part, self.objects)
            world.cluster.publish()
            world.run(name)
            if part == "sentry":
                wait("sentry publishes its root certificate", world.anchors)
        world.cluster.refresh()
        for part in PARTS:
            world.healthy(f"{'dapr-sidecar-' if part == 'injector' else 'dapr-'}{part}-0")
        wait("the API server trusts both webhooks", world.registered)

    def many(self, requests):
        """Concurrent calls of the administrator on persistent connections."""
        held, api = threading.local(), self.world.api

        def call(request):
            method, path, body, *content = request
            if not hasattr(held, "connection"):
                context = ssl.create_default_context(cafile=api.authority)
                held.connection = http.client.HTTPSConnection(ADDRESS, api.port, context=context, timeout=60)
            headers = {"authorization": "Bearer admin-of-these-checks", "content-type": (content or ["application/json"])[0]}
            held.connection.request(method, path, json.dumps(body), headers)
            answer = held.connection.getresponse()
            told = answer.read()
            holds(answer.status < 300, f"{method} {path}: {answer.status} {told[:300]}")
        with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
            for _ in pool.map(call, requests):
                pass

    def calls(self, since, account):
        """The API calls of a part since an offset of the log, by request."""
        counted = collections.Counter()
        for call in self.world.cluster.calls(since):
            if call["user"]["username"] == f"system:serviceaccount:{SYSTEM}:{account}":
                counted[f"{call['verb']} {call['requestURI'].split('?')[0]}"] += 1
        return counted

    def rest(self, what, parts, is_promised=True):
        """API calls and CPU time of parts a minute at rest. In less than a minute a single call would exceed the limit."""
        is_promised = is_promised and self.options.rest >= 60
        since, seconds = self.world.cluster.audit.stat().st_size, self.options.rest
        before = {name: self.process(name).cpu() for name in parts}
        time.sleep(seconds)
        for name, account in parts.items():
            kind = account.removeprefix("dapr-")
            counted = self.calls(since, account)
            print(f"    {kind}: {dict(counted) or 'no calls'}")
            self.note(f"{kind}, {what}: calls of the API a minute", "", counted.total() * 60 / seconds,
                      MAX_CALLS[account] if is_promised else None)
            self.note(f"{kind}, {what}: CPU time a minute", "ms",
                      (self.process(name).cpu() - before[name]) * 1e3 * 60 / seconds)

    def settled(self, name):
        """The resident memory once it is stable: the minimum of some seconds."""
        found = []
        for _ in range(5):
            found.append(self.process(name).memory())
            time.sleep(1)
        return min(found)

    def components(self):
        self.note("operator, at the start: memory", "MB", self.settled(OPERATOR))
        self.note("injector, at the start: memory", "MB", self.settled(INJECTOR))
        operator, count = self.process(OPERATOR), self.options.components
        before = operator.cpu()
        bodies = (component(f"number-{number}", "state.in-memory", padding="x" * (SIZE - 400)) for number in range(count))
        self.many(("POST", f"{RESOURCES}/shop/components", body) for body in bodies)
        wait("it is at rest", lambda: self.quiet(operator))
        self.note(f"operator, {count:,} components made: CPU time each", "µs", (operator.cpu() - before) / count * 1e6)
        self.note(f"operator, {count:,} components: memory", "MB", self.settled(OPERATOR))

    @staticmethod
    def quiet(process):
        """Whether a process uses almost no CPU time for a second."""
        before = process.cpu()
        time.sleep(1)
        return process.cpu() - before <= 0.05

    def sidecars(self):
        """Sidecars that start, stay connected, and receive changes."""
        world, count = self.world, self.options.sidecars
        operator = self.process(OPERATOR)
        address = f"{world.cluster.address(world.pods[OPERATOR])}:6500"
        with tempfile.TemporaryDirectory() as folder:
            own = simulated.identity(world, "shop", pathlib.Path(folder))
        operator.forget_peak()
        before = operator.cpu()
        with simulated.Fleet(address, own, "shop", count) as fleet:
            self.note(f"operator, {count} sidecars begin and list {self.options.components:,} components: CPU time each", "ms",
                      (operator.cpu() - before) / count * 1e3)
            self.note(f"operator, {count} sidecars begin: most memory", "MB", operator.memory("VmHWM"))
            self.change(fleet, "warming", until_all=True)
            self.note(f"operator, {count} sidecars: memory", "MB", self.settled(OPERATOR))
            halves, alls = [], []
            wait("it is at rest", lambda: self.quiet(operator))
            before = operator.cpu()
            for number in range(self.options.changes):
                half, last = self.change(fleet, f"change-{number}-of-many")
                halves.append(half)
                alls.append(last)
            self.note(f"operator, a change to {count} sidecars: CPU time", "ms",
                      (operator.cpu() - before) / self.options.changes * 1e3)
            self.note(f"operator, from a change to half of {count} sidecars", "ms", statistics.median(halves) * 1e3)
            self.note(f"operator, from a change to all {count} sidecars", "ms", statistics.median(alls) * 1e3)
            self.rest(f"{count} sidecars", {OPERATOR: "dapr-operator"})
            holds(not fleet.problems, f"{len(fleet.problems)} streams: {fleet.problems[:1]}")
        wait("it is at rest", lambda: self.quiet(operator))
        self.note(f"operator, {count} sidecars gone: memory", "MB", self.settled(OPERATOR))

    def change(self, fleet, name, until_all=False):
        """Creates a component; returns the seconds until half of the sidecars and all of them have it."""
        for attempt in range(10 if until_all else 1):
            # If a stream is not open yet, the time would include that.
            each = f"{name}-{attempt}"
            fleet.told[each] = {}
            began = time.perf_counter()
            self.world.api.post(f"{RESOURCES}/shop/components", component(each, "state.in-memory"))
            if found := fleet.await_all(each, 10 if until_all else simulated.TIMEOUT):
                return found[0] - began, found[1] - began
        raise AssertionError(f"{name} did not come to all: {len(fleet.told[each])} of {fleet.count}")

    def reviews(self):
        """Admission reviews of a pod, as the API server sends them."""
        world, count = self.world, self.options.reviews
        host, port = world.cluster.address(world.pods[INJECTOR]), 4000
        injector = self.process(INJECTOR)
        spec = pod("reviewed", enabled="true", app_id="reviewed", app_port=80, config="appconfig")
        review = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"}, "name": "reviewed", "namespace": "shop",
            "operation": "CREATE", "userInfo": {"username": "admin", "uid": "1", "groups": ["system:masters"]},
            "object": {"apiVersion": "v1", "kind": "Pod", **spec}}}).encode()
        context = ssl.create_default_context(cadata=world.anchors())
        context.check_hostname = False  # the connection uses its address

        def ask(number):
            times = []
            with contextlib.closing(http.client.HTTPSConnection(host, port, context=context, timeout=60)) as connection:
                for _ in range(number):
                    began = time.perf_counter()
                    connection.request("POST", "/mutate?timeout=10s", review, {"content-type": "application/json"})
                    told = json.loads(connection.getresponse().read())
                    times.append(time.perf_counter() - began)
                    holds(told["response"].get("patch"), f"no patch: {told}")
            return times
        ask(min(100, count))  # warm-up, not counted
        injector.forget_peak()
        since, before = world.cluster.audit.stat().st_size, injector.cpu()
        times = sorted(ask(count))
        self.note("injector, one review after another: p50", "ms", times[len(times) // 2] * 1e3)
        self.note("injector, one review after another: p99", "ms", times[len(times) * 99 // 100] * 1e3)
        with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(ask, [count // CONNECTIONS] * CONNECTIONS))
        done, used = count + count // CONNECTIONS * CONNECTIONS, injector.cpu() - before
        self.note("injector, reviews per second of CPU time", "", done / max(used, 1 / TICK))
        self.note("injector, calls of the API for a review", "", self.calls(since, "dapr-injector").total() / done)
        self.note("injector, under reviews: most memory", "MB", injector.memory("VmHWM"))

    def pods(self):
        """Pods with sidecars, without processes."""
        count, path = self.options.pods, "/api/v1/namespaces/shop/pods"
        for process in (OPERATOR, INJECTOR):
            self.process(process).forget_peak()
        self.many(("POST", path, placed(f"pod-{number}", number)) for number in range(count))
        since = "2030-01-01T00:00:00Z"
        ready = [{"type": kind, "status": "True", "lastTransitionTime": since} for kind in ("Ready", "ContainersReady")]
        states = [{"name": name, "image": "i", "imageID": "i", "ready": True, "restartCount": 0,
                   "state": {"running": {"startedAt": since}}} for name in ("app", "daprd")]
        status = {"status": {"phase": "Running", "conditions": ready, "containerStatuses": states}}
        self.many(("PATCH", f"{path}/pod-{number}/status", status, "application/merge-patch+json") for number in range(count))
        for process in (OPERATOR, INJECTOR):
            wait("it is at rest", lambda process=process: self.quiet(self.process(process)))
        self.note(f"operator, {count:,} pods: memory", "MB", self.settled(OPERATOR))
        self.note(f"injector, {count:,} pods were reviewed: memory", "MB", self.settled(INJECTOR))
        self.rest(f"{count:,} pods", {OPERATOR: "dapr-operator", INJECTOR: "dapr-injector"})

    def watchdog(self):
        """An operator that watches for pods without sidecars, and an unrelated change."""
        world, count = self.world, self.options.pods
        path = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/dapr-sidecar-injector/status"
        world.api.merge(path, {"status": {"replicas": 1, "readyReplicas": 1}})
        world.fleet.end(OPERATOR)
        world.create("operator", world.objects({"dapr_operator": {"watchInterval": f"{WATCHDOG}s"}}))
        since = world.cluster.audit.stat().st_size
        world.run(OPERATOR)
        world.healthy(OPERATOR)
        world.api.post(f"{RESOURCES}/shop/components", component("unrelated", "state.in-memory"))
        # It may list pods, or keep a watch.
        wait("it looks for pods", lambda: any(what.endswith("/pods") for what in self.calls(since, "dapr-operator")))
        time.sleep(WATCHDOG * ROUNDS)
        operator = self.process(OPERATOR)
        self.note(f"operator with watchdog, {count:,} pods: most memory", "MB", operator.memory("VmHWM"))
        # A watchdog lists pods at its interval.
        self.rest(f"watchdog each {WATCHDOG} s, {count:,} pods", {OPERATOR: "dapr-operator"}, is_promised=False)
        left = world.api.get("/api/v1/namespaces/shop/pods?limit=1")
        self.note("pods deleted after an unrelated change", "",
                  count - len(left["items"]) - left["metadata"].get("remainingItemCount", 0), MAX_DELETED)


def placed(name, number):
    """A pod that is bound to a node."""
    made = pod(name, enabled="true", app_id=name, app_port=80)
    made["spec"]["nodeName"] = f"node-{number % 50}"
    return {"apiVersion": "v1", "kind": "Pod", **made}


def one(options):
    """Measures one product in a separate network, and writes the figures."""
    own_network("scripts/measure-kubernetes")
    chart = CHART if options.one == "ours" else options.their_chart
    with session(options.ours, options.server, options.render, chart) as world:
        measure = Measure(world, options)
        try:
            measure.begin()
            for part in options.parts.split(","):
                getattr(measure, part)()
        finally:
            pathlib.Path(options.out).write_text(json.dumps(measure.rows))
            # How Dapr's processes end is not checked.
            for name in [name for name in world.fleet.processes if not name.startswith("app-")]:
                world.fleet.end(name)
            if options.one != "ours":
                world.fleet.problems.clear()
        for text in measure.missed:
            print(f"failed: {text}", flush=True)
    return 1 if measure.missed else 0


def table(found):
    """Markdown: a row for each figure, with the ratio if there are two products."""
    rows = list(dict.fromkeys(what for figures in found.values() for what in figures))
    lines = ["| | " + " | ".join({"ours": "Outrigger", "theirs": "Dapr"}[name] for name in found)
             + (" | ratio |" if len(found) > 1 else " |")]
    lines.append("| --- |" + " ---: |" * (lines[0].count("|") - 2))
    for what in rows:
        values = [figures.get(what) for figures in found.values()]
        cells = [what.removesuffix(", "), *("–" if value is None else f"{value:,.{digits(value)}f}" for value in values)]
        if len(values) > 1:
            cells.append(f"{values[0] / values[1]:.2f}" if None not in values and values[1] else "–")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def digits(value):
    return 0 if value == int(value) or value >= 100 else 1 if value >= 10 else 2


def main():
    parser = argparse.ArgumentParser(prog="scripts/measure-kubernetes", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours")
    parser.add_argument("peer", nargs="?")
    parser.add_argument("--parts", default="components,sidecars,reviews,pods,watchdog")
    parser.add_argument("--components", type=int, default=1000)
    parser.add_argument("--sidecars", type=int, default=500)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--reviews", type=int, default=2000)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--rest", type=int, default=60, help="seconds at rest in which calls are counted")
    parser.add_argument("--markdown", help="a file for the table")
    for name in ("--server", "--render", "--their-chart", "--one", "--out"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return one(options)
    found, failed = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        for name, binaries in (("ours", options.ours), ("theirs", options.peer)):
            if not binaries:
                continue
            print(f"{name}:", flush=True)
            out = pathlib.Path(folder) / f"{name}.json"
            arguments = [item for item in sys.argv[1:] if item not in (options.ours, options.peer)]
            failed += subprocess.run(
                [sys.executable, __file__, binaries, *arguments, "--one", name, "--out", str(out)]).returncode != 0
            found[name] = json.loads(out.read_text()) if out.exists() else {}
    text = table(found)
    print(text)
    if options.markdown:
        pathlib.Path(options.markdown).write_text(text + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
