"""Sidecars of one app, each with a worker, on a store that can be stopped; how to kill and restart each part."""

import collections
import concurrent.futures
import json
import logging
import pathlib
import sys
import threading
import time
import urllib.request

import figures
import servers
from faults_journal import STEPS, Journal
from sdk.world import component

HERE = pathlib.Path(__file__).resolve().parent
TIMEOUT = 240
# Timeout of one of many instances, in seconds; all share two cores.
TIMEOUT_EACH = 0.3
STARTERS = 8
PLANE = ("placement", "scheduler")
CONFIGURATION = """
apiVersion: dapr.io/v1alpha1
kind: Configuration
metadata: {name: faults}
spec: {workflow: {maxActivityLosses: 3}}
"""


def order():
    """The name of a workflow of `faults_worker.py`."""


class Redis(servers.Redis):
    """A Redis that persists what it confirms, and can be stopped."""

    process = "app-redis"

    def __init__(self, fleet):
        super().__init__(fleet)
        self.fleet = fleet
        self.command("CONFIG", "SET", "appendonly", "yes")
        self.command("CONFIG", "SET", "appendfsync", "always")
        arguments = fleet.processes[self.process].args
        self.arguments = [*arguments[:-1], "yes", "--appendfsync", "always"]
        self.resource = component("store", "state.redis", redisHost=self.address, actorStateStore="true", maxRetries="0")

    def stop(self):
        self.fleet.kill(self.process)

    def start(self):
        self.fleet.app(self.process, self.arguments, self.port)
        self.fleet.until(self.process, self.has_loaded, "PING")

    def has_loaded(self):
        try:
            return self.command("PING").startswith(b"+PONG")
        except RuntimeError:
            return False


class Postgres(servers.Postgres):
    """A PostgreSQL that can be stopped."""

    process = "app-postgres"

    def __init__(self, fleet):
        super().__init__(fleet)
        self.fleet = fleet
        self.resource = component("store", "state.postgresql", connectionString=self.text, actorStateStore="true")

    def stop(self):
        self.kill()

    def start(self):
        super().start()
        # Before its clients end, because it waits for them.
        self.fleet.processes = {self.process: self.fleet.processes[self.process], **self.fleet.processes}


def has_worker(port):
    """Whether a workflow worker is connected to the sidecar with this HTTP API."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1.0/metadata", timeout=5) as answer:
            return bool(json.load(answer).get("workflows", {}).get("connectedWorkers"))
    except OSError:
        return False


class Peaks(threading.Thread):
    """Measures the largest resident memory of processes, in bytes, until it is stopped."""

    def __init__(self, processes):
        super().__init__(daemon=True)
        self.processes, self.most, self.over = processes, 0, threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(0.1):
            for process in self.processes():
                try:
                    self.most = max(self.most, figures.resident_bytes(process))
                except (OSError, StopIteration):
                    pass  # It has ended.

    def end(self):
        self.over.set()
        self.join()
        return self.most


class World:
    """Sidecars of one app, each with a worker, on a shared store."""

    def __init__(self, fleet, store, pairs):
        self.fleet, self.store = fleet, store
        self.journal = Journal(fleet.dir / "journal")
        self.notes = []
        self.waiting = []
        folder = fleet.dir / "resources"
        folder.mkdir()
        (folder / "store.yaml").write_text(store.resource)
        config = fleet.dir / "config.yaml"
        config.write_text(CONFIGURATION)
        self.flags = [f"--resources-path={folder}", f"--config={config}"]
        self.ports = {}
        self.starts = collections.Counter()
        self.names = [f"{n}" for n in range(pairs)]
        for name in self.names:
            self.start_sidecar(name)
            self.start_worker(name)
        # Without worker; killed only together with all others.
        self.start_sidecar("asked")
        from dapr.ext.workflow import DaprWorkflowClient
        from dapr.ext.workflow.logger import LoggerOptions
        self.client = DaprWorkflowClient(host="127.0.0.1", port=str(self.asked.grpc),
                                         logger_options=LoggerOptions(log_level=logging.CRITICAL))

    def start_sidecar(self, name):
        sidecar = self.fleet.sidecar(name, app_id="shop", flags=self.flags, ports=self.ports.get(name))
        self.ports[name] = sidecar.ports
        if name == "asked":
            self.asked = sidecar

    def worker(self, name):
        """The journal's name of the current worker of a sidecar."""
        return f"{name}.{self.starts[name]}"

    def start_worker(self, name):
        self.starts[name] += 1
        self.fleet.start(f"app-worker-{name}", [
            sys.executable, "-W", "ignore", HERE / "faults_worker.py", self.worker(name), str(self.ports[name][1]),
            self.journal.path])

    def when_there(self, names, mended):
        """Records when sidecars have a worker again: then they host workflows, and instances move to them."""
        deadline = time.monotonic() + TIMEOUT

        def wait():
            for name in names:
                while not has_worker(self.ports[name][0]) and time.monotonic() < deadline:
                    time.sleep(0.02)
            mended()

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        self.waiting.append(waiting)

    def kill_sidecar(self, name):
        mended = self.journal.broken()
        self.fleet.kill(f"daprd-{name}")
        self.start_sidecar(name)
        self.when_there([name], mended)

    def kill_worker(self, name):
        mended = self.journal.broken()
        self.fleet.kill(f"app-worker-{name}")
        self.start_worker(name)
        self.when_there([name], mended)

    def roll(self, name):
        """Like a rolling restart."""
        mended = self.journal.broken()
        self.fleet.end(f"app-worker-{name}")
        self.fleet.end(f"daprd-{name}")
        self.start_sidecar(name)
        self.start_worker(name)
        self.when_there([name], mended)

    def lose_power(self):
        """Kills every process, and restarts all on their data."""
        mended = self.journal.broken()
        plane = {name: self.fleet.processes[name].args for name in PLANE}
        everybody = [f"app-worker-{name}" for name in self.names]
        everybody += [f"daprd-{name}" for name in (*self.names, "asked")] + list(PLANE)
        for name in everybody:
            self.fleet.processes[name].kill()
        self.store.stop()
        for name in everybody:
            self.fleet.kill(name)
        self.store.start()
        for name, command in plane.items():
            self.fleet.start(name, command)
        for name in self.names:
            self.start_sidecar(name)
            self.start_worker(name)
        self.start_sidecar("asked")
        self.when_there(self.names, mended)

    def sidecars(self):
        """Processes of the sidecars with workers."""
        found = (self.fleet.processes.get(f"daprd-{name}") for name in self.names)
        return [process for process in found if process]

    def start(self, count, seconds=0.05, at=None):
        """Starts instances, optionally at a given time; returns their ids."""
        ids = [f"order-{n}" for n in range(count)]

        def start(id):
            self.client.schedule_new_workflow(order, input=seconds, instance_id=id, start_at=at)
        with concurrent.futures.ThreadPoolExecutor(STARTERS) as starters:
            for _ in starters.map(start, ids):
                pass
        return ids

    def start_whatever_comes(self, id, deadline, seconds=0.05):
        """Starts an instance, with retries until it is confirmed."""
        while True:
            try:
                self.client.schedule_new_workflow(order, input=seconds, instance_id=id)
                return
            except Exception:
                if time.monotonic() > deadline:
                    raise
            try:
                # It was started, but the confirmation was lost.
                if self.client.get_workflow_state(id) is not None:
                    return
            except Exception:
                time.sleep(0.2)

    def start_until_works(self, name, first, since):
        """Starts instances until the worker of a sidecar has started an activity; returns their ids, numbered from `first`."""
        deadline = time.monotonic() + TIMEOUT
        ids = []
        while not any(line.worker == self.worker(name) and line.at > since and line.key.split("/")[0] in ids
                      for line in self.journal.update().lines):
            if time.monotonic() > deadline:
                raise AssertionError(f"sidecar {name} hosts nothing again")
            ids.append(f"order-{first + len(ids)}")
            self.start_whatever_comes(ids[-1], deadline)
            time.sleep(0.5)
        return ids

    def until_done(self, part, of):
        """Waits until a share of the activities of `of` instances has ended."""
        deadline = time.monotonic() + TIMEOUT + of * TIMEOUT_EACH
        while len(self.journal.update().ended) < part * len(STEPS) * of:
            if time.monotonic() > deadline:
                raise AssertionError(f"{part} of the activities did not end in time")
            time.sleep(0.05)

    def completed(self, id, deadline):
        """The state of an ended instance, or the last state seen; retries while the store is down."""
        state = None
        while time.monotonic() < deadline:
            try:
                state = self.client.get_workflow_state(id)
                if state is not None and state.runtime_status.name not in ("RUNNING", "PENDING"):
                    break
            except Exception as error:
                state = error
            time.sleep(0.02)
        return state

    def until_completed(self, ids):
        """Waits until instances have completed, each with the same result as without faults."""
        deadline = time.monotonic() + TIMEOUT + len(ids) * TIMEOUT_EACH
        for id in ids:
            state = self.completed(id, deadline)
            if isinstance(state, (Exception, type(None))) or state.runtime_status.name != "COMPLETED" or state.serialized_output != "15":
                raise AssertionError(f"{id}: {state}\n{self.asked.ask('GET', f'/v1.0-alpha1/workflows/dapr/{id}/waits')}")

    def check_history(self, id):
        """Checks that an instance completed once, with one result of each activity, that of the execution it started; returns
        the executions by activity."""
        status, _, told = self.asked.ask("GET", f"/v1.0-alpha1/workflows/dapr/{id}/history")
        events = told["events"] if status == 200 else []
        ends = [event for event in events if "executionCompleted" in event]
        begun = sorted((event["eventId"], event["taskScheduled"]["taskExecutionId"]) for event in events if "taskScheduled" in event)
        ended = sorted((event["taskCompleted"]["taskScheduledId"], event["taskCompleted"]["taskExecutionId"])
                       for event in events if "taskCompleted" in event)
        if len(ends) != 1 or "executionCompleted" not in events[-1] or len(begun) != len(STEPS) or begun != ended:
            raise AssertionError(f"{id} has not completed once, with one result of each activity: {json.dumps(told)}")
        # They started in the order of the steps.
        return {f"{id}/{step}": execution for step, (_, execution) in zip(STEPS, begun)}

    def check(self, ids):
        """Checks the invariants of instances; returns the number of repeated activities."""
        self.until_completed(ids)
        taken = {}
        for id in ids:
            taken |= self.check_history(id)
        for waiting in self.waiting:
            waiting.join()
        again = self.journal.check(ids, taken)
        self.client.close()
        return again
