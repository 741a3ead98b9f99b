"""Each product finishes what the other one began. Run by the script `handover`."""

import collections
import contextlib
import datetime
import json
import pathlib
import sys
import time

import fleet as fleets
import http_app
import servers
from handover_actors import actors
from sdk.world import component

TIMEOUT = 90
HOSTS = (("theirs", "ours"), ("ours", "theirs"))
# A timer that fires after the other product has taken over, in seconds.
SLEEP = 12


def until(what, condition):
    """Waits until a condition is true; returns its value."""
    deadline = time.monotonic() + TIMEOUT
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {TIMEOUT} s still not: {what}")
        time.sleep(0.05)
    return found


def same(got, expected, what):
    if got != expected:
        raise AssertionError(f"{what}: got {got!r}, expected {expected!r}")


# The workflows. Executions of activities are counted: a finished activity must not run again.

DONE = collections.Counter()


def step(_context, given):
    DONE[given["key"]] += 1
    return given["number"] + 1


def journey(context, key):
    """Activities around two events, the second one after the handover, then a timer and a child."""
    number = yield context.call_activity(step, input={"key": f"{key}-1", "number": 0})
    first = yield context.wait_for_external_event("first")
    number = yield context.call_activity(step, input={"key": f"{key}-2", "number": number})
    second = yield context.wait_for_external_event("second")
    number = yield context.call_activity(step, input={"key": f"{key}-3", "number": number})
    yield context.create_timer(datetime.timedelta(seconds=1))
    number = yield context.call_sub_orchestrator(child, input={"key": key, "number": number})
    return [first, second, number]


def child(context, given):
    return (yield context.call_activity(step, input={"key": f"{given['key']}-4", "number": given["number"]}))


def sleeper(context, key):
    """Sleeps during the handover."""
    yield context.create_timer(datetime.timedelta(seconds=SLEEP))
    return (yield context.call_activity(step, input={"key": f"{key}-1", "number": 6}))


def again(context, given):
    """Continues as new with an event each time; the first one before the handover."""
    event = yield context.wait_for_external_event("next")
    if given["left"] == 1:
        return [*given["seen"], event]
    # Events may arrive faster than turns.
    context.continue_as_new({"left": given["left"] - 1, "seen": [*given["seen"], event]}, save_events=True)


class Workflows:
    """A sidecar and its worker, whose product changes."""

    def __init__(self, fleet, name, store, flags, binaries):
        self.fleet, self.name, self.binaries = fleet, name, binaries
        folder = fleet.dir / f"resources-{name}"
        folder.mkdir()
        (folder / "store.yaml").write_text(store)
        self.flags = [f"--resources-path={folder}", *flags]
        self.ports, self.started = fleets.free_ports(4), 0

    @contextlib.contextmanager
    def under(self, side):
        from durabletask.worker import TaskHubGrpcWorker
        self.started += 1
        name = f"{self.name}-{self.started}-{side}"
        self.sidecar = self.fleet.sidecar(name, app_id=self.name, binaries=self.binaries[side], flags=self.flags,
                                          ports=self.ports)
        worker = TaskHubGrpcWorker(host_address=f"{fleets.HOST}:{self.sidecar.grpc}")
        for workflow in (journey, child, sleeper, again):
            worker.add_orchestrator(workflow)
        worker.add_activity(step)
        worker.start()
        try:
            yield
        finally:
            worker.stop()
            self.fleet.end(f"daprd-{name}")

    def ask(self, method, path, body=None):
        return self.sidecar.ask(method, f"/v1.0/workflows/dapr/{path}", body, {"content-type": "application/json"})

    def begin(self, workflow, instance, given):
        status, _, told = self.ask("POST", f"{workflow}/start?instanceID={instance}", given)
        same((status, told), (202, {"instanceID": instance}), f"the start of {instance}")

    def told(self, instance):
        # A read by Dapr's sidecar during a save may fail.
        status, _, told = until(f"{instance} is read", lambda: "transient" not in str(answer := self.ask("GET", instance)) and answer)
        same(status, 200, f"{instance}, {told}")
        return told

    def tell(self, instance, event, data):
        same(self.ask("POST", f"{instance}/raiseEvent/{event}", data)[0], 202, f"{event} for {instance}")

    def ended(self, instance, output):
        told = until(f"{instance} has ended",
                     lambda: (now := self.told(instance))["runtimeStatus"] not in ("PENDING", "RUNNING") and now)
        same(told["runtimeStatus"], "COMPLETED", f"{instance}, {told}")
        same(json.loads(told["properties"]["dapr.workflow.output"]), output, f"the output of {instance}")
        return told

    def check(self, first, second):
        """Instances that start under one product, continue under the other, and end under the first again."""
        key = f"{self.name}-{first}"
        names = {kind: f"{kind}-{key}" for kind in ("journey", "sleeper", "again", "ended", "waiting")}
        with self.under(first):
            self.begin("journey", names["journey"], names["journey"])
            self.begin("journey", names["waiting"], names["waiting"])
            self.begin("sleeper", names["sleeper"], names["sleeper"])
            self.begin("again", names["again"], {"left": 3, "seen": []})
            self.begin("again", names["ended"], {"left": 1, "seen": [0]})
            self.tell(names["ended"], "next", 1)
            before = self.ended(names["ended"], [0, 1])
            self.tell(names["again"], "next", "a")
            # An event that no instance waits for yet is kept.
            self.tell(names["waiting"], "second", "early")
            until("the first step is done", lambda: DONE[f"{names['journey']}-1"] and DONE[f"{names['waiting']}-1"])
        with self.under(second):
            same(self.ended(names["ended"], [0, 1]), before, "the status of an ended instance")
            self.tell(names["journey"], "first", {"a": 1})
            until("the second step is done", lambda: DONE[f"{names['journey']}-2"])
            self.tell(names["again"], "next", "b")
            self.tell(names["waiting"], "first", "late")
            self.ended(names["waiting"], ["late", "early", 4])
            self.ended(names["sleeper"], 7)
            same(self.ask("POST", f"{names['sleeper']}/purge")[0], 202, "purge")
            same(self.ask("GET", names["sleeper"])[0], 404, "get of a purged instance")
        with self.under(first):
            self.tell(names["again"], "next", "c")
            self.ended(names["again"], ["a", "b", "c"])
            self.tell(names["journey"], "second", "x")
            self.ended(names["journey"], [{"a": 1}, "x", 4])
            self.ended(names["waiting"], ["late", "early", 4])
            same(self.ask("GET", names["sleeper"])[0], 404, "get of an instance purged by the other")
        steps = [f"{names['journey']}-{number}" for number in range(1, 5)] + [f"{names['sleeper']}-1"]
        same({name: DONE[name] for name in steps}, dict.fromkeys(steps, 1), "how often activities ran")


def workflows(fleet, binaries, wanted):
    """The workflow checks: a name and a function."""
    stores = {}

    def store(kind):
        if kind not in stores:
            stores[kind] = {
                "sqlite": lambda: {"connectionString": fleet.dir / "state.db"},
                "redis": lambda: {"redisHost": servers.Redis(fleet).address},
                "postgresql": lambda: {"connectionString": servers.Postgres(fleet).text}}[kind]()
        return component("store", f"state.{kind}", actorStateStore="true", **stores[kind])

    planes = {}

    def plane(side):
        if side not in planes:
            planes[side] = [fleet.placement(f"placement-{side}", binaries[side]), fleet.scheduler(f"scheduler-{side}", binaries[side])]
        return planes[side]

    for kind in ("sqlite", "redis", "postgresql"):
        for control in ("ours", "theirs") if kind == "redis" else ("ours",):
            for first, second in HOSTS:
                name = f"workflows on {kind}, control plane {control}: begun by {first}, continued by {second}"
                if wanted in name:
                    def check(kind=kind, control=control, first=first, second=second):
                        app = f"{kind}-{control}-{first}"
                        Workflows(fleet, app, store(kind), plane(control), binaries).check(first, second)
                    yield name, check


class JobApp:
    """An app that counts its jobs."""

    def __init__(self):
        self.seen = collections.Counter()
        self.bodies = {}
        app = self

        class Handler(http_app.Handler):
            def do_POST(self):
                body = self.body()
                if self.path.startswith("/job/"):
                    name = self.path.removeprefix("/job/")
                    app.bodies[name] = body
                    app.seen[name] += 1
                self.answer(200)

            def do_GET(self):
                self.answer(404)

        self.server = http_app.start(Handler)
        self.port = self.server.server_address[1]


class Jobs:
    """A scheduler whose product changes on the same data, with permanent sidecars of both."""

    def __init__(self, fleet, name, binaries, flags=()):
        self.fleet, self.name, self.binaries, self.more = fleet, name, binaries, list(flags)
        self.folder = fleet.dir / f"jobs-{name}"
        self.ports, self.started = fleets.free_ports(5), 0
        self.sidecars = {}

    def change(self, side):
        if self.started:
            self.fleet.end(self.running)
        self.started += 1
        self.running = f"scheduler-{self.name}-{self.started}-{side}"
        flag = self.fleet.scheduler(self.running, self.binaries[side], self.folder, self.more, self.ports)
        if not self.sidecars:
            for name, binaries in self.binaries.items():
                app = JobApp()
                self.sidecars[name] = (app, self.fleet.sidecar(
                    f"{self.name}-{name}", app.port, app_id=f"{self.name}-{name}", binaries=binaries, flags=[flag]))

    def each(self, action):
        for name, (app, sidecar) in self.sidecars.items():
            action(name, app, sidecar)

    def schedule(self, prefix):
        """Schedules jobs of every kind with each sidecar."""
        soon = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=SLEEP)).isoformat()
        # Dapr's sidecar cannot read a job without data.
        jobs = {"later": {"dueTime": "1h", "data": {"a": [1, None]}}, "soon": {"dueTime": soon, "data": "ahoy"},
                "often": {"schedule": "@every 1s", "repeats": 2 * SLEEP, "data": 7},
                "yearly": {"schedule": "0 0 0 1 1 *", "ttl": "9000h", "data": True},
                "tried": {"dueTime": "1h", "data": "x", "failurePolicy": {"constant": {"interval": "5s", "maxRetries": 3}}}}

        def on(_name, _app, sidecar):
            for kind, job in jobs.items():
                status, _, told = sidecar.ask("POST", f"/v1.0-alpha1/jobs/{prefix}-{kind}", job)
                same(status, 204, f"schedule {kind}: {told}")
        self.each(on)

    def read(self, prefix):
        found = {}

        def on(name, _app, sidecar):
            for kind in ("later", "often", "yearly", "tried"):
                status, _, told = sidecar.ask("GET", f"/v1.0-alpha1/jobs/{prefix}-{kind}")
                same(status, 200, f"get {kind}: {told}")
                # The remaining repetitions and TTL change.
                found[name, kind] = {field: value for field, value in told.items() if field not in ("repeats", "ttl")}
        self.each(on)
        return found

    def fires(self, prefix, kind, times):
        def on(name, app, _sidecar):
            until(f"{prefix}-{kind} of {name} came {times} times", lambda: app.seen[f"{prefix}-{kind}"] >= times)
        self.each(on)

    def close(self):
        """Stops the processes of this check, because another one may use the same etcd."""
        for name in [name for name in self.fleet.processes if name.startswith((f"daprd-{self.name}-", f"scheduler-{self.name}-"))]:
            self.fleet.end(name)
        for app, _ in self.sidecars.values():
            app.server.shutdown()

    def check(self, first, second):
        self.change(first)
        self.schedule("one")
        self.fires("one", "often", 2)
        before = self.read("one")
        self.change(second)
        same(self.read("one"), before, "the jobs")
        self.fires("one", "soon", 1)
        self.schedule("two")
        before = self.read("two")
        self.change(first)
        same(self.read("two"), before, "the jobs")
        self.fires("two", "soon", 1)
        self.fires("one", "often", 2 * SLEEP)
        self.fires("two", "often", 2 * SLEEP)

        def on(name, app, sidecar):
            for prefix in ("one", "two"):
                same(app.seen[f"{prefix}-soon"], 1, f"how often {prefix}-soon of {name} came")
                # Triggers in flight when a scheduler ended are redelivered.
                often = app.seen[f"{prefix}-often"]
                same(2 * SLEEP <= often <= 2 * SLEEP + 2, True, f"{prefix}-often of {name} came {often} times")
                same(sidecar.ask("DELETE", f"/v1.0-alpha1/jobs/{prefix}-later")[0], 204, "delete")
                same(sidecar.ask("GET", f"/v1.0-alpha1/jobs/{prefix}-later")[0], 500, "get of a deleted job")
        self.each(on)


class Group:
    """Schedulers of both products in one group on one etcd, with a sidecar of each product."""

    # Each member owns some jobs, chosen at random for each job.
    JOBS = 16
    # Ticks of a job, one a second: they last beyond the time without each member.
    TICKS = 60
    # Triggers in flight when members join or leave are redelivered: two are killed and two join.
    AGAIN = 6

    def __init__(self, fleet, binaries, flags):
        self.fleet, self.binaries, self.more = fleet, binaries, list(flags)
        self.members = {side: (f"dapr-scheduler-server-{number}", fleets.free_ports(5))
                        for number, side in enumerate(("ours", "theirs"))}
        self.apps = {}

    def join(self, side):
        name, ports = self.members[side]
        flags = [f"--id={name}", f"--etcd-initial-cluster={name}=http://{fleets.HOST}:{ports[4]}", *self.more]
        self.fleet.scheduler(f"scheduler-group-{side}", self.binaries[side], flags=flags, ports=ports)

    def kill(self, side):
        self.fleet.kill(f"scheduler-group-{side}")

    def start(self):
        for side in self.members:
            self.join(side)
        hosts = ",".join(f"{fleets.HOST}:{ports[0]}" for _, ports in self.members.values())
        for side in self.members:
            app = JobApp()
            sidecar = self.fleet.sidecar(f"group-{side}", app.port, app_id=f"group-{side}", binaries=self.binaries[side],
                                         flags=[f"--scheduler-host-address={hosts}"])
            self.apps[side] = app, sidecar

    def counts(self):
        return {(side, f"group-{number}"): app.seen[f"group-{number}"]
                for side, (app, _) in self.apps.items() for number in range(self.JOBS)}

    def goes_on(self, what):
        """Waits for two more triggers of every job: the first may have been in flight."""
        before = self.counts()

        def more():
            now = self.counts()
            return all(now[job] >= min(before[job] + 2, self.TICKS) for job in before)
        until(what, more)

    def check(self):
        self.start()
        for side, (_, sidecar) in self.apps.items():
            for number in range(self.JOBS):
                job = {"schedule": "@every 1s", "repeats": self.TICKS, "data": number}
                status, _, told = sidecar.ask("POST", f"/v1.0-alpha1/jobs/group-{number}", job)
                same(status, 204, f"schedule group-{number} under {side}: {told}")
        self.goes_on("all jobs are triggered with both members")
        for side, other in (("ours", "theirs"), ("theirs", "ours")):
            self.kill(side)
            self.goes_on(f"{other} has taken over from {side}, which was killed")
            self.join(side)
            self.goes_on(f"all jobs are triggered after {side} has joined again")
        until("all jobs have had their ticks", lambda: min(self.counts().values()) >= self.TICKS)
        for side, (_, sidecar) in self.apps.items():
            for number in range(self.JOBS):
                until(f"group-{number} of {side} is over",
                      lambda: sidecar.ask("GET", f"/v1.0-alpha1/jobs/group-{number}")[0] == 500)
        # A job owned by both would have had twice as many.
        wrong = {job: count for job, count in self.counts().items() if not self.TICKS <= count <= self.TICKS + self.AGAIN}
        same(wrong, {}, f"jobs not triggered {self.TICKS} to {self.TICKS + self.AGAIN} times")

    def close(self):
        for name in [name for name in self.fleet.processes if name.startswith(("daprd-group-", "scheduler-group-"))]:
            self.fleet.end(name)
        for app, _ in self.apps.values():
            app.server.shutdown()


def etcd(fleet):
    """A separate etcd; returns the flags for schedulers that use it."""
    return ["--etcd-embed=false", f"--etcd-client-endpoints={servers.Etcd(fleet).address}"]


def jobs(fleet, binaries, wanted):
    """The checks of schedulers. In a folder Dapr's must start, because ours alone does not write an etcd folder."""
    name = "jobs in a folder: filled by theirs, taken over by ours"
    if wanted in name:
        yield name, lambda: checked(Jobs(fleet, "folder", binaries), "theirs", "ours")
    cluster = []
    for first, second in HOSTS:
        name = f"jobs in a separate etcd: filled by {first}, taken over by {second}"
        if wanted in name:
            def check(first=first, second=second):
                if not cluster:
                    cluster.extend(etcd(fleet))
                checked(Jobs(fleet, f"etcd-{first}", binaries, cluster), first, second)
            yield name, check
    name = "jobs in a separate etcd: schedulers of both in one group, each killed and joined"
    if wanted in name:
        def together():
            if not cluster:
                cluster.extend(etcd(fleet))
            checked(Group(fleet, binaries, cluster))
        yield name, together


def checked(found, *sides):
    try:
        found.check(*sides)
    finally:
        found.close()


def main(ours, theirs, wanted=""):
    binaries = {"ours": pathlib.Path(ours).resolve(), "theirs": pathlib.Path(theirs).resolve()}
    passed = failed = 0
    with fleets.Fleet(ours, sentry=False) as fleet:
        for part in (workflows, jobs, actors):
            for name, check in part(fleet, binaries, wanted):
                began = time.monotonic()
                try:
                    check()
                except servers.Missing as missing:
                    sys.exit(f"conformance/handover: {missing}")
                except Exception as error:  # the other checks continue
                    failed += 1
                    print(f"FAILED  {name}: {type(error).__name__} {error}", flush=True)
                else:
                    passed += 1
                    print(f"ok      {name} ({time.monotonic() - began:.0f} s)", flush=True)
        if failed:
            fleet.keep_logs()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
