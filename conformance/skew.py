"""Sidecars and control planes of three versions. Run by the script `skew`."""

import contextlib
import datetime
import json
import pathlib
import sys
import traceback
import uuid

import fleet as fleets
import http_app
import suite
from dapr.ext.workflow import PropagationScope
from dapr.ext.workflow._durabletask.worker import TaskHubGrpcWorker
from handover import same, until
from sdk.world import component

OURS = "ours"
# Dapr's rule: no service of the control plane is older than a sidecar. Outrigger speaks 1.18 and also works below one of 1.17.
OLDER = {"1.18": ("1.17",)}
TYPE = "counter"
STORE = component("store", "state.in-memory", actorStateStore="true")
SIGNING = """apiVersion: dapr.io/v1alpha1
kind: Configuration
metadata:
  name: signing
spec:
  features:
  - name: WorkflowHistorySigning
    enabled: true
"""


# The workflows; `callee` is the id of the other app.

def order(context, callee):
    """An activity and a child in the other app, and a timer between them."""
    number = yield context.call_activity("double", input=21, app_id=callee)
    yield context.create_timer(datetime.timedelta(seconds=1))
    return (yield context.call_sub_orchestrator("ship", input=number, instance_id=f"{context.instance_id}-child", app_id=callee))


def refused(context, callee):
    """An activity of the other app that fails."""
    return (yield context.call_activity("refuse", input="no anchor", app_id=callee))


def ship(context, number):
    """Waits for an event in the other app."""
    event = yield context.wait_for_external_event("shipped")
    number = yield context.call_activity("double", input=number)
    return f"{event} {number}"


def heritage(context):
    """The workflows of a propagated history: the app, the name and the results of its activities `double`."""
    history = context.get_propagated_history()
    return history and [[seen.app_id, seen.name, [done.output for done in seen.get_activities_by_name("double")]]
                        for seen in history.get_workflows()]


def told(context, callee):
    """Propagates the history to an activity and to a child in the other app."""
    yield context.call_activity("double", input=21)
    by_activity = yield context.call_activity("hear", app_id=callee, propagation=PropagationScope.OWN_HISTORY)
    by_child = yield context.call_sub_orchestrator("pass_on", app_id=callee, propagation=PropagationScope.LINEAGE,
                                                   instance_id=f"{context.instance_id}-child")
    return [by_activity, by_child]


def pass_on(context, _):
    return [heritage(context), (yield context.call_activity("hear", propagation=PropagationScope.LINEAGE))]


def hear(context, _):
    return heritage(context)


def double(_context, number):
    return 2 * number


def refuse(_context, why):
    raise ValueError(why)


class App:
    """An app that echoes calls, hosts actors and receives jobs."""

    def __init__(self):
        self.jobs, self.reminders = [], []
        app = self

        class Handler(http_app.Handler):
            def do_GET(self):
                known = {"/dapr/config": {"entities": [TYPE]}, "/dapr/subscribe": []}
                found = known.get(self.path)
                self.answer(200 if found is not None else 404, json.dumps(found).encode() if found is not None else b"")

            def do_POST(self):
                body = self.body()
                if self.path.startswith("/job/"):
                    app.jobs.append(self.path.removeprefix("/job/"))
                self.answer(200, body)

            def do_PUT(self):
                body = self.body()
                *_, method = self.path.split("/")
                if "/remind/" in self.path:
                    app.reminders.append(method)
                self.answer(200, body)

            def do_DELETE(self):
                self.answer(200)

        self.server = http_app.start(Handler)
        self.port = self.server.server_address[1]


class Side:
    """A sidecar with its app and its workflow worker."""

    def __init__(self, fleet, name, build, actors, signed):
        folder = fleet.dir / f"resources-{name}"
        folder.mkdir()
        (folder / "store.yaml").write_text(STORE)
        flags = [f"--resources-path={folder}"]
        if signed:
            (folder / "signing.yaml").write_text(SIGNING)
            flags.append(f"--config={folder / 'signing.yaml'}")
        self.app = App()
        # The config of an app without actors is not read.
        self.sidecar = fleet.sidecar(name, self.app.port if actors else None, binaries=build, flags=flags)
        self.id = self.sidecar.app_id
        self.worker = TaskHubGrpcWorker(host_address=f"{fleets.HOST}:{self.sidecar.grpc}")
        for workflow in (order, refused, ship, told, pass_on):
            self.worker.add_orchestrator(workflow)
        for activity in (double, refuse, hear):
            self.worker.add_activity(activity)
        self.worker.start()

    def flow(self, method, path, body=None):
        return self.sidecar.ask(method, f"/v1.0/workflows/dapr/{path}", body, {"content-type": "application/json"})

    def begin(self, workflow, instance, callee):
        same(self.flow("POST", f"{workflow}/start?instanceID={instance}", callee)[0], 202, f"the start of {instance}")

    def state(self, instance):
        status, _, told = self.flow("GET", instance)
        return told if status == 200 else {"runtimeStatus": status}

    def reaches(self, instance, wanted):
        return until(f"{instance} is {wanted}", lambda: (now := self.state(instance))["runtimeStatus"] == wanted and now)


class Pair:
    """A caller and a callee of different builds."""

    def __init__(self, fleet, builds, caller, callee, signed):
        key = uuid.uuid4().hex[:6]
        self.fleet = fleet
        self.names = [f"caller-{key}", f"callee-{key}"]
        self.sides = []
        self.sides.append(Side(fleet, self.names[0], builds[caller], actors=False, signed=signed))
        self.sides.append(Side(fleet, self.names[1], builds[callee], actors=True, signed=signed))
        self.caller, self.callee = self.sides

    def close(self):
        for side in self.sides:
            side.worker.stop()
        for name in self.names:
            if f"daprd-{name}" in self.fleet.processes:
                self.fleet.end(f"daprd-{name}")
        for side in self.sides:
            side.app.server.shutdown()

    def invocation(self):
        path = f"/v1.0/invoke/{self.callee.id}/method/echo"
        until("a call is answered", lambda: self.caller.sidecar.ask("POST", path, {"n": 1})[::2] == (200, {"n": 1}))

    def actors(self):
        actor = f"/v1.0/actors/{TYPE}/a"
        until("an actor answers", lambda: self.caller.sidecar.ask("PUT", f"{actor}/method/add", 7)[::2] == (200, 7))
        status, _, told = self.callee.sidecar.ask("POST", f"{actor}/reminders/wake", {"dueTime": "1s"})
        same(status, 204, f"a reminder, {told}")
        until("the reminder fires", lambda: "wake" in self.callee.app.reminders)

    def jobs(self):
        status, _, told = self.callee.sidecar.ask("POST", "/v1.0-alpha1/jobs/haul", {"dueTime": "1s", "data": 1})
        same(status, 204, f"a job, {told}")
        until("the job is triggered", lambda: "haul" in self.callee.app.jobs)

    def workflows(self):
        # Each app creates the other's child, so requests and results cross in both directions.
        for caller, callee in (self.sides, reversed(self.sides)):
            id = f"order-{caller.id}"
            caller.begin("order", id, callee.id)
            callee.reaches(f"{id}-child", "RUNNING")
            same(callee.flow("POST", f"{id}-child/raiseEvent/shipped", "on time")[0], 202, "the event")
            ended = caller.reaches(id, "COMPLETED")
            same(json.loads(ended["properties"]["dapr.workflow.output"]), "on time 84", "the output")

    def failures(self):
        for caller, callee in (self.sides, reversed(self.sides)):
            id = f"refused-{caller.id}"
            caller.begin("refused", id, callee.id)
            ended = caller.reaches(id, "FAILED")
            assert "no anchor" in json.dumps(ended["properties"]), ended

    def propagation(self):
        for caller, callee in (self.sides, reversed(self.sides)):
            id = f"told-{caller.id}"
            caller.begin("told", id, callee.id)
            ended = caller.reaches(id, "COMPLETED")
            first, last = [caller.id, "told", ["42"]], [callee.id, "pass_on", []]
            same(json.loads(ended["properties"]["dapr.workflow.output"]), [[first], [[first], [first, last]]], "the histories")

    def terminations(self):
        """Terminating a parent ends its child in the other app; purging it deletes both."""
        id = f"ended-{self.caller.id}"
        self.caller.begin("order", id, self.callee.id)
        self.callee.reaches(f"{id}-child", "RUNNING")
        same(self.caller.flow("POST", f"{id}/terminate")[0], 202, "terminate")
        self.caller.reaches(id, "TERMINATED")
        self.callee.reaches(f"{id}-child", "TERMINATED")


WORKFLOWS = (Pair.workflows, Pair.failures, Pair.propagation, Pair.terminations)
CHECKS = (Pair.invocation, Pair.actors, Pair.jobs, *WORKFLOWS)


def checks(caller, callee, signed):
    """The checks that can pass. A parent in Dapr 1.17 looks for a child of another app in its own app, and one in Dapr 1.18 looks
    for a child in Dapr 1.17 without end: neither is terminated."""
    hopeless = caller == "1.17" or (caller, callee) == ("1.18", "1.17")
    # Dapr 1.17 does not propagate histories.
    left = {Pair.terminations: hopeless, Pair.propagation: "1.17" in (caller, callee)}
    return [check for check in (WORKFLOWS if signed else CHECKS) if not left.get(check)]


def combinations():
    """The control plane, the caller's and the callee's build; one of them is ours."""
    versions = (OURS, "1.17", "1.18")
    for control in versions:
        for caller in versions:
            for callee in versions:
                allowed = control not in OLDER.get(caller, ()) and control not in OLDER.get(callee, ())
                if caller != callee and OURS in (control, caller, callee) and allowed:
                    yield control, caller, callee


def main(ours, wanted=""):
    bin = suite.cache() / "bin"
    builds = {OURS: pathlib.Path(ours).resolve(), "1.17": bin / "1.17", "1.18": bin / "1.18"}
    for build in builds.values():
        suite.need_binaries(build, "daprd", "sentry", "placement", "scheduler")
    passed = failed = 0
    planes = {}
    for control, caller, callee in combinations():
        # Dapr 1.17 does not sign histories.
        for signed in (False,) if "1.17" in (control, caller, callee) else (False, True):
            name = f"control plane {control}, caller {caller}, callee {callee}{', signed histories' if signed else ''}"
            if wanted in name:
                planes.setdefault(control, []).append((name, caller, callee, signed))
    for control, pairs in planes.items():
        with fleets.Fleet(builds[control]) as fleet:
            fleet.control_plane()
            for name, caller, callee, signed in pairs:
                with contextlib.ExitStack() as stack:
                    try:
                        pair = Pair(fleet, builds, caller, callee, signed)
                        stack.callback(pair.close)
                    except Exception as error:  # the other combinations continue
                        failed += 1
                        print(f"FAILED  {name}: {type(error).__name__} {error}", flush=True)
                        fleet.keep_logs()
                        continue
                    for check in checks(caller, callee, signed):
                        try:
                            check(pair)
                        except Exception as error:  # the other checks continue
                            failed += 1
                            print(f"FAILED  {name}: {check.__name__}: {type(error).__name__} {error}", flush=True)
                            if not isinstance(error, AssertionError):
                                traceback.print_exc()
                            fleet.keep_logs()
                        else:
                            passed += 1
                            print(f"ok      {name}: {check.__name__}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
