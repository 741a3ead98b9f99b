"""Workflows while things break. Run by the script `faults`.

After each fault: every instance has completed, with the result that it has without faults; every activity has ended at
least once; and between two begins of one activity something ended that had it or its workflow in hand: a worker, a
sidecar, or the store that a turn was to be stored in.
"""

import argparse
import collections
import pathlib
import random
import sys
import time
import traceback

import fleet as fleets
import servers
from sdk.world import component

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE = 240
CONFIGURATION = """
apiVersion: dapr.io/v1alpha1
kind: Configuration
metadata: {name: faults}
spec: {workflow: {maxActivityLosses: 3}}
"""


def order():
    """The name of a workflow of `faults_worker.py`."""


def doomed():
    """As `order`."""


class World:
    """Sidecars of one app that share a store, each with a worker."""

    def __init__(self, fleet, store, pairs):
        self.fleet, self.store, self.ended = fleet, store, []
        self.journal = fleet.dir / "journal"
        self.journal.touch()
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
        from dapr.ext.workflow import DaprWorkflowClient
        # Asks a sidecar without a worker, which is not killed.
        self.asked = fleet.sidecar("asked", app_id="shop", flags=self.flags)
        self.client = DaprWorkflowClient(host="127.0.0.1", port=str(self.asked.grpc))

    def start_sidecar(self, name):
        sidecar = self.fleet.sidecar(name, app_id="shop", flags=self.flags, ports=self.ports.get(name))
        self.ports[name] = sidecar.ports

    def start_worker(self, name):
        self.starts[name] += 1
        self.fleet.start(f"app-worker-{name}", [
            sys.executable, "-W", "ignore", HERE / "faults_worker.py", f"{name}.{self.starts[name]}",
            str(self.ports[name][1]), self.journal])

    def ends(self):
        """What was begun may be begun again from now on."""
        self.ended.append(time.time())

    def kill_sidecar(self, name):
        self.ends()
        self.fleet.kill(f"daprd-{name}")
        self.start_sidecar(name)
        self.ends()

    def kill_worker(self, name):
        self.ends()
        self.fleet.kill(f"app-worker-{name}")
        self.start_worker(name)

    def roll(self, name):
        """As a rolling restart does."""
        self.ends()
        self.fleet.end(f"app-worker-{name}")
        self.fleet.end(f"daprd-{name}")
        self.start_sidecar(name)
        self.start_worker(name)
        self.ends()

    def start(self, count, seconds=0.05):
        ids = [f"order-{n}" for n in range(count)]
        for id in ids:
            self.client.schedule_new_workflow(order, input=seconds, instance_id=id)
        return ids

    def lines(self):
        """What workers wrote: time, what, of which activity."""
        for line in self.journal.read_text().splitlines():
            at, _worker, what, key = line.split(" ")
            yield float(at), what, key

    def until_done(self, part, of):
        """Waits until a part of the activities of `of` instances has ended."""
        deadline = time.monotonic() + PATIENCE
        while len({key for _, what, key in self.lines() if what == "end"}) < part * 5 * of:
            if time.monotonic() > deadline:
                raise AssertionError(f"{part} of the activities have not ended after {PATIENCE} s")
            time.sleep(0.05)

    def completed(self, id, deadline):
        """The state of an instance that has ended, or the last one that was seen; a store that is away is asked again."""
        state = None
        while time.monotonic() < deadline:
            try:
                state = self.client.get_workflow_state(id)
                if state.runtime_status.name not in ("RUNNING", "PENDING"):
                    break
            except Exception as error:
                state = error
            time.sleep(0.02)
        return state

    def check(self, ids, patience=PATIENCE):
        deadline = time.monotonic() + patience
        for id in ids:
            state = self.completed(id, deadline)
            if isinstance(state, (Exception, type(None))) or state.runtime_status.name != "COMPLETED" or state.serialized_output != "15":
                raise AssertionError(f"{id}: {state}\n{self.asked.ask('GET', f'/v1.0-alpha1/workflows/dapr/{id}/waits')}")
        begun, ended = collections.defaultdict(list), collections.Counter()
        for at, what, key in self.lines():
            if what == "begin":
                begun[key].append(at)
            else:
                ended[key] += 1
        expected = {f"{id}/{step}" for id in ids for step in range(1, 6)}
        if missing := expected - set(ended):
            raise AssertionError(f"activities that never ended: {sorted(missing)[:5]}")
        for key, begins in begun.items():
            for first, second in zip(begins, begins[1:]):
                # A worker's line is written a little after it was given the work.
                if not any(first - 2 < at < second for at in self.ended):
                    raise AssertionError(f"{key} was begun again although nothing had ended: {begins}, {self.ended}")
        self.client.close()
        return sum(len(begins) for begins in begun.values()) - len(expected)


class Redis(servers.Redis):
    """That keeps what it is told, and can be stopped."""

    def __init__(self, fleet):
        super().__init__(fleet)
        self.fleet = fleet
        self.command("CONFIG", "SET", "appendonly", "yes")
        self.arguments = fleet.processes["app-redis"].args
        self.resource = component("store", "state.redis", redisHost=self.address, actorStateStore="true",
                                  maxRetries="0")

    def stop(self):
        self.fleet.kill("app-redis")

    def start(self):
        arguments = [*self.arguments[:-1], "yes"]
        self.fleet.app("app-redis", arguments, self.port)


class Postgres(servers.Postgres):
    """That can be stopped."""

    def __init__(self, fleet):
        super().__init__(fleet)
        self.resource = component("store", "state.postgresql", connectionString=self.text, actorStateStore="true")


def sidecars_killed(world, count):
    """Sidecars are killed in any step."""
    ids = world.start(count)
    for part in (0.1, 0.3, 0.5, 0.7, 0.9):
        world.until_done(part, count)
        world.kill_sidecar(random.choice(world.names))
    return ids


def apps_killed(world, count):
    """Apps are killed during activities."""
    ids = world.start(count, seconds=0.2)
    for part in (0.1, 0.3, 0.5, 0.7, 0.9):
        world.until_done(part, count)
        world.kill_worker(random.choice(world.names))
    return ids


def store_stopped(world, count):
    """The store is down for ten seconds."""
    ids = world.start(count)
    world.until_done(0.3, count)
    world.ends()
    world.store.stop()
    time.sleep(10)
    world.store.start()
    world.ends()
    return ids


def control_plane_restarted(world, count):
    """Scheduler and placement are killed, and come back after three seconds."""
    ids = world.start(count)
    world.until_done(0.3, count)
    for name in ("scheduler", "placement"):
        command = world.fleet.processes[name].args
        # Without placement everything may be another host's when it is back.
        world.ends()
        world.fleet.kill(name)
        time.sleep(3)
        world.fleet.start(name, command)
        world.until_done(0.5, count)
        world.ends()
    return ids


def rolling_restart(world, count):
    """All pairs of sidecar and app are restarted, one after the other, under load."""
    ids = world.start(count)
    for part, name in zip((0.2, 0.4, 0.6), world.names):
        world.until_done(part, count)
        world.roll(name)
    return ids


def poison(world, _count):
    """An activity that kills its app is not run for good."""
    client = world.client
    client.schedule_new_workflow(doomed, input=0, instance_id="doomed")
    deadline = time.monotonic() + PATIENCE
    while (state := client.get_workflow_state("doomed")).runtime_status.name != "COMPLETED":
        if time.monotonic() > deadline:
            raise AssertionError(f"still {state}; {world.asked.ask('GET', '/v1.0-alpha1/workflows/dapr/doomed/waits')}")
        for name in world.names:
            if world.fleet.processes[f"app-worker-{name}"].poll() is not None:
                world.kill_worker(name)
        time.sleep(0.1)
    if "maxActivityLosses" not in state.serialized_output:
        raise AssertionError(f"the reason is missing: {state}")
    return world.start(3)


def no_worker(world, _count):
    """An instance whose worker has gone says what it waits for."""
    ids = world.start(1, seconds=3)

    def waits(condition):
        deadline = time.monotonic() + PATIENCE
        while True:
            told = world.asked.ask("GET", f"/v1.0-alpha1/workflows/dapr/{ids[0]}/waits")[2]["waitsFor"]
            if condition({wait["kind"]: wait for wait in told}):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"it waits for {told}")
            time.sleep(0.1)

    waits(lambda told: told.get("activity", {}).get("name") == "work" and "host" in told["activity"])
    world.ends()
    world.fleet.end("app-worker-0")
    waits(lambda told: "host" in told and "why" in told.get("activity", {}))
    world.start_worker("0")
    world.ends()
    return ids


FAULTS = [(sidecars_killed, Redis, 2), (sidecars_killed, Postgres, 2), (apps_killed, Redis, 2), (store_stopped, Redis, 2),
          (control_plane_restarted, Redis, 2), (rolling_restart, Postgres, 3), (poison, Redis, 1),
          (no_worker, Redis, 1)]


def long(world, count, seconds):
    """Sidecars and apps are killed for some time, under many instances."""
    began = time.monotonic()
    ids = world.start(count, seconds=0)
    kills = 0
    while time.monotonic() - began < seconds:
        time.sleep(2)
        random.choice((world.kill_sidecar, world.kill_worker))(random.choice(world.names))
        kills += 1
    again = world.check(ids, 3600)
    print(f"{count} instances, {kills} kills, {again} activities begun again, {time.monotonic() - began:.0f} s")


def run(binaries, fault, store, pairs, count):
    with fleets.Fleet(binaries, sentry=False) as fleet:
        try:
            fleet.control_plane()
            world = World(fleet, store(fleet), pairs)
            began = time.monotonic()
            ids = fault(world, count)
            again = world.check(ids)
            print(f"ok   {fault.__name__} {store.__name__}: {len(ids)} instances, {again} activities begun again, "
                  f"{time.monotonic() - began:.1f} s", flush=True)
        except BaseException:
            fleet.keep_logs()
            raise


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binaries")
    parser.add_argument("text", nargs="?", default="")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--long", type=float)
    given = parser.parse_args()
    passed = failed = 0
    if given.long:
        with fleets.Fleet(given.binaries, sentry=False) as fleet:
            fleet.control_plane()
            long(World(fleet, Redis(fleet), 3), given.count, given.long)
        return
    for fault, store, pairs in FAULTS:
        if given.text not in f"{fault.__name__} {store.__name__}":
            continue
        try:
            run(given.binaries, fault, store, pairs, given.count)
            passed += 1
        except Exception:
            print(f"FAIL {fault.__name__} {store.__name__}", file=sys.stderr)
            traceback.print_exc()
            failed += 1
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
