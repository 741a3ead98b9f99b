"""Workflows under faults. Run by the script `faults`.

Invariants after each fault: every instance has completed once, with the same result as without faults; every activity has finished
at least once, and the history has one result of it; and every repeated activity was repeated for a reason (see `faults_journal.py`).
"""

import argparse
import datetime
import random
import signal
import sys
import threading
import time
import traceback

import faults_actors
import fleet as fleets
from faults_world import TIMEOUT, TIMEOUT_EACH, PLANE, Peaks, Postgres, Redis, World

# Instances of a fault, and of a slow one.
FEW, MANY = 30, 2000
# Longer than placement waits for a silent host, in seconds.
SILENCE = 12
# Approximate time to start one of many instances, in seconds.
TO_START = 0.015


def doomed():
    """The name of a workflow of `faults_worker.py`."""


def sidecars_killed(world, count):
    """Kills sidecars in any step."""
    ids = world.start(count)
    for part in (0.1, 0.3, 0.5, 0.7, 0.9):
        world.until_done(part, count)
        world.kill_sidecar(random.choice(world.names))
    return ids


def sidecar_frozen(world, count):
    """Freezes a sidecar for longer than placement waits for it, then resumes it: others have taken over its instances."""
    ids = world.start(count)
    world.until_done(0.1, count)
    mended = world.journal.broken()
    process = world.fleet.processes["daprd-0"]
    process.send_signal(signal.SIGSTOP)
    try:
        frozen = time.monotonic()
        # The others complete everything before it resumes with stale state.
        world.until_completed(ids)
        world.notes.append(f"completed {time.monotonic() - frozen:.1f} s after it was frozen")
        time.sleep(max(0.0, SILENCE - (time.monotonic() - frozen)))
    finally:
        process.send_signal(signal.SIGCONT)
    woken = time.time()
    late = world.start_until_works("0", count, woken)
    mended()
    return ids + late


def apps_killed(world, count):
    """Kills apps during activities."""
    ids = world.start(count, seconds=0.2)
    for part in (0.1, 0.3, 0.5, 0.7, 0.9):
        world.until_done(part, count)
        world.kill_worker(random.choice(world.names))
    return ids


def store_stopped(world, count, seconds=10):
    """Stops the store for ten seconds."""
    ids = world.start(count)
    world.until_done(0.3, count)
    store_down(world, seconds)
    return ids


def store_stopped_for_a_minute(world, count):
    """Stops the store for a minute while instances are started continuously."""
    early, late = world.start(count // 2), [f"order-{n}" for n in range(count // 2, count)]
    began, told = time.monotonic(), []

    def starting():
        for number, id in enumerate(late):
            time.sleep(max(0.0, began + 60 * number / len(late) - time.monotonic()))
            world.start_whatever_comes(id, began + TIMEOUT + count * TIMEOUT_EACH)
            told.append(id)

    starter = threading.Thread(target=starting)
    peaks = Peaks(world.sidecars)
    starter.start()
    store_down(world, 60)
    starter.join()
    if len(told) != len(late):
        raise AssertionError(f"{len(late) - len(told)} instances could not be started")
    recovered(world, early + late, peaks)
    return early + late


def store_down(world, seconds):
    mended = world.journal.broken()
    world.store.stop()
    time.sleep(seconds)
    world.store.start()
    mended()


def recovered(world, ids, peaks):
    """Waits until all have completed, and records the time."""
    began = time.monotonic()
    world.until_completed(ids)
    world.notes.append(f"all completed {time.monotonic() - began:.1f} s later, a sidecar had up to {peaks.end() / 1e6:.0f} MB")


def power_lost(world, count):
    """Kills all processes at once, including the store and the control plane, and restarts them on the same data."""
    # All activities begin together; started in turn, the first would have ended before the last one begins.
    at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=2 + count * TO_START)
    ids = world.start(count, at=at)
    world.until_done(0.2, count)
    ended = world.journal.update().ended
    flying = sum(any(f"{id}/{step}" not in ended for step in (3, 4, 5)) for id in ids)
    began = time.monotonic()
    world.lose_power()
    world.notes.append(f"{flying} in flight, all back after {time.monotonic() - began:.1f} s")
    recovered(world, ids, Peaks(world.sidecars))
    return ids


def control_plane_restarted(world, count):
    """Kills scheduler and placement, and restarts them after three seconds."""
    ids = world.start(count)
    world.until_done(0.3, count)
    for name in reversed(PLANE):
        command = world.fleet.processes[name].args
        # Without placement, any actor may have moved when it is back.
        mended = world.journal.broken()
        world.fleet.kill(name)
        time.sleep(3)
        world.fleet.start(name, command)
        world.until_done(0.5, count)
        mended()
    return ids


def rolling_restart(world, count):
    """Restarts all pairs of sidecar and app in turn under load."""
    ids = world.start(count)
    for part, name in zip((0.2, 0.4, 0.6), world.names):
        world.until_done(part, count)
        world.roll(name)
    return ids


def poison(world, _count):
    """An activity that kills its app is not retried forever."""
    client = world.client
    # The client call returns once it runs, which may be on the second worker.
    starting = threading.Thread(target=client.schedule_new_workflow, args=(doomed,), daemon=True,
                                kwargs={"input": 0, "instance_id": "doomed"})
    starting.start()
    deadline = time.monotonic() + TIMEOUT
    while (state := client.get_workflow_state("doomed")) is None or state.runtime_status.name != "COMPLETED":
        if time.monotonic() > deadline:
            raise AssertionError(f"still {state}; {world.asked.ask('GET', '/v1.0-alpha1/workflows/dapr/doomed/waits')}")
        for name in world.names:
            if world.fleet.processes[f"app-worker-{name}"].poll() is not None:
                world.kill_worker(name)
        time.sleep(0.1)
    starting.join()
    if "maxActivityLosses" not in state.serialized_output:
        raise AssertionError(f"the reason is missing: {state}")
    return world.start(3)


def no_worker(world, _count):
    """An instance without worker reports what it waits for."""
    ids = world.start(1, seconds=3)

    def waits(condition):
        deadline = time.monotonic() + TIMEOUT
        while True:
            told = world.asked.ask("GET", f"/v1.0-alpha1/workflows/dapr/{ids[0]}/waits")[2]["waitsFor"]
            if condition({wait["kind"]: wait for wait in told}):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"it waits for {told}")
            time.sleep(0.1)

    waits(lambda told: told.get("activity", {}).get("name") == "work" and "host" in told["activity"])
    mended = world.journal.broken()
    world.fleet.end("app-worker-0")
    waits(lambda told: "host" in told and "why" in told.get("activity", {}))
    world.start_worker("0")
    world.when_there("0", mended)
    return ids


def killed_for_long(world, count):
    """Kills sidecars and apps for some time, with many instances."""
    began = time.monotonic()
    ids = world.start(count, seconds=0)
    kills = 0
    while time.monotonic() - began < world.seconds:
        time.sleep(2)
        random.choice((world.kill_sidecar, world.kill_worker))(random.choice(world.names))
        kills += 1
    world.notes.append(f"{kills} kills")
    return ids


FAULTS = [(sidecars_killed, Redis, 2), (sidecars_killed, Postgres, 2), (sidecar_frozen, Redis, 2),
          (sidecar_frozen, Postgres, 2), (apps_killed, Redis, 2), (store_stopped, Redis, 2),
          (store_stopped, Postgres, 2), (power_lost, Redis, 2), (power_lost, Postgres, 2), (control_plane_restarted, Redis, 2),
          (rolling_restart, Postgres, 3), (poison, Redis, 1), (no_worker, Redis, 1)]
# Run by every test run.
QUICK = {"sidecars killed Redis", "power lost Postgres"}
LONG = [(killed_for_long, Redis, 3), (store_stopped_for_a_minute, Redis, 2), (store_stopped_for_a_minute, Postgres, 2),
        (power_lost, Redis, 2), (power_lost, Postgres, 2)]


def run(binaries, fault, store, pairs, count, seconds):
    with fleets.Fleet(binaries, sentry=False) as fleet:
        try:
            fleet.control_plane()
            world = World(fleet, store(fleet), pairs)
            world.seconds = seconds
            began = time.monotonic()
            ids = fault(world, count)
            again = world.check(ids)
            notes = "".join(f"{note}, " for note in world.notes)
            return f"{len(ids)} instances, {notes}{again} activities begun again, {time.monotonic() - began:.1f} s"
        except BaseException:
            fleet.keep_logs()
            raise


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binaries")
    parser.add_argument("texts", nargs="*")
    parser.add_argument("--count", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--long", type=float)
    given = parser.parse_intermixed_args()
    passed = failed = 0
    for fault, store, pairs in LONG if given.long else FAULTS:
        name = f"{fault.__name__.replace('_', ' ')} {store.__name__}"
        if given.quick and name not in QUICK or given.texts and not any(text in name for text in given.texts):
            continue
        try:
            count = given.count or (MANY if given.long else FEW)
            print(f"ok      {name}: {run(given.binaries, fault, store, pairs, count, given.long)}", flush=True)
            passed += 1
        except Exception:
            print(f"FAILED  {name}", flush=True)
            traceback.print_exc()
            failed += 1
    for fault in () if given.long or given.quick else faults_actors.FAULTS:
        name = fault.__name__.replace("_", " ")
        if given.texts and not any(text in name for text in given.texts):
            continue
        try:
            print(f"ok      {name}: {faults_actors.run(given.binaries, fault)}", flush=True)
            passed += 1
        except Exception:
            print(f"FAILED  {name}", flush=True)
            traceback.print_exc()
            failed += 1
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
