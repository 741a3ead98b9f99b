"""Workflows while things break. Run by the script `faults`.

After each fault: every instance has completed, once, with the result that it has without faults; every activity has ended at
least once, and its history has one result of it; and what was begun again was begun again for a reason (see
`faults_journal.py`).
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

# Instances of a fault, and of one that takes long.
FEW, MANY = 30, 2000
# Longer than placement waits for a host that is silent, in seconds.
SILENCE = 12
# How long it takes to start one of many, about, in seconds.
TO_START = 0.015


def doomed():
    """The name of a workflow of `faults_worker.py`."""


def sidecars_killed(world, count):
    """Sidecars are killed in any step."""
    ids = world.start(count)
    for part in (0.1, 0.3, 0.5, 0.7, 0.9):
        world.until_done(part, count)
        world.kill_sidecar(random.choice(world.names))
    return ids


def sidecar_frozen(world, count):
    """A sidecar stands still for longer than placement waits for it, and goes on: others have its instances by then."""
    ids = world.start(count)
    world.until_done(0.1, count)
    mended = world.journal.broken()
    process = world.fleet.processes["daprd-0"]
    process.send_signal(signal.SIGSTOP)
    try:
        frozen = time.monotonic()
        # Without it all goes on to its end: what it wakes up with is out of date.
        world.until_completed(ids)
        world.notes.append(f"completed {time.monotonic() - frozen:.1f} s after it stood still")
        time.sleep(max(0.0, SILENCE - (time.monotonic() - frozen)))
    finally:
        process.send_signal(signal.SIGCONT)
    woken = time.time()
    late = world.start_until_works("0", count, woken)
    mended()
    return ids + late


def apps_killed(world, count):
    """Apps are killed during activities."""
    ids = world.start(count, seconds=0.2)
    for part in (0.1, 0.3, 0.5, 0.7, 0.9):
        world.until_done(part, count)
        world.kill_worker(random.choice(world.names))
    return ids


def store_stopped(world, count, seconds=10):
    """The store is down for ten seconds."""
    ids = world.start(count)
    world.until_done(0.3, count)
    store_down(world, seconds)
    return ids


def store_stopped_for_a_minute(world, count):
    """The same for a minute, in which instances are started all the time."""
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
    """Waits until all have completed, and notes how long that takes from now on."""
    began = time.monotonic()
    world.until_completed(ids)
    world.notes.append(f"all completed {time.monotonic() - began:.1f} s later, a sidecar had up to {peaks.end() / 1e6:.0f} MB")


def power_lost(world, count):
    """All processes are killed at once, the store and the control plane too, and started again on the same data."""
    # All begin together: what is started one after the other has ended before the last one begins.
    at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=2 + count * TO_START)
    ids = world.start(count, at=at)
    world.until_done(0.2, count)
    ended = world.journal.update().ended
    flying = sum(any(f"{id}/{step}" not in ended for step in (3, 4, 5)) for id in ids)
    began = time.monotonic()
    world.lose_power()
    world.notes.append(f"{flying} in flight, all there again after {time.monotonic() - began:.1f} s")
    recovered(world, ids, Peaks(world.sidecars))
    return ids


def control_plane_restarted(world, count):
    """Scheduler and placement are killed, and come back after three seconds."""
    ids = world.start(count)
    world.until_done(0.3, count)
    for name in reversed(PLANE):
        command = world.fleet.processes[name].args
        # Without placement everything may be another host's when it is back.
        mended = world.journal.broken()
        world.fleet.kill(name)
        time.sleep(3)
        world.fleet.start(name, command)
        world.until_done(0.5, count)
        mended()
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
    # Who starts it waits until it runs, and that may be with the second worker.
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
    """An instance whose worker has gone says what it waits for."""
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
    """Sidecars and apps are killed for some time, under many instances."""
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
# Made in every run of the tests.
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
