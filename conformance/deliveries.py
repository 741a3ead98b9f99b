"""Publish/subscribe under faults. Run by the script `deliveries`.

Invariants after each fault: an app has finished every event whose publish call succeeded; if the broker keeps the order of a
key, no event started before its predecessor was finished; and only poison became a dead letter.
"""

import argparse
import collections
import functools
import itertools
import os
import random
import sys
import threading
import time
import traceback

import deliveries_outbox
import fleet as fleets
import proxies
from deliveries_servers import BROKERS, LEASE, OUTAGE, TOPIC, collect, subscribe
from sdk.world import component

KEYS = 8
# Approximate event rate of a publisher, per second.
RATE = 100


class World:
    """A publisher, and consumers of one group, each with an app."""

    def __init__(self, fleet, broker, count, proxy):
        self.fleet, self.broker, self.count, self.proxy = fleet, broker, count, proxy
        if proxy:
            broker.behind(proxy)
        self.journal = fleet.dir / "journal"
        self.journal.touch()
        self.members = ["0", "1", "2"] if broker.has_groups else ["0"]
        self.starts = collections.Counter()
        self.ports, self.work = {}, collections.defaultdict(lambda: 0.005)
        self.told = set()
        self.kills = 0
        self.publisher = fleet.sidecar("publisher", flags=self.flags("publisher"))
        for member in ["collector", *self.members]:
            self.start_app(member)
            self.start_sidecar(member)

    def flags(self, member):
        folder = self.fleet.dir / f"resources-{member}"
        folder.mkdir(exist_ok=True)
        properties = {name: str(value).format(member=member, group=self.group(member)) for name, value in self.broker.properties.items()}
        (folder / "broker.yaml").write_text(component("broker", f"pubsub.{self.broker.kind}", **properties))
        if member in self.members:
            subscribe(folder, "take", retries=100)
        elif member == "collector":
            collect(folder)
        return [f"--resources-path={folder}"]

    def group(self, member):
        """The app id of a sidecar: members of a group share the events."""
        return "members" if member in self.members else member

    def start_app(self, member):
        self.starts[member] += 1
        self.ports.setdefault(f"app {member}", fleets.free_ports(1)[0])
        port = self.ports[f"app {member}"]
        self.fleet.app(f"app-{member}", [
            sys.executable, "-W", "ignore", f"{fleets.HERE}/deliveries_app.py", f"{member}.{self.starts[member]}", str(port),
            self.journal, str(self.work[member])], port)

    def start_sidecar(self, member):
        sidecar = self.fleet.sidecar(member, self.ports[f"app {member}"], app_id=self.group(member), flags=self.flags(member),
                                     ports=self.ports.get(member))
        self.ports[member] = sidecar.ports

    def kill_sidecar(self, member):
        self.kills += 1
        self.fleet.kill(f"daprd-{member}")
        self.start_sidecar(member)

    def kill_app(self, member):
        self.kills += 1
        self.fleet.kill(f"app-{member}")
        self.start_app(member)

    def roll(self, member):
        """Like a rolling restart: stops the sidecar gracefully, then its app."""
        self.kills += 1
        self.fleet.end(f"daprd-{member}")
        self.fleet.end(f"app-{member}")
        self.start_app(member)
        self.start_sidecar(member)

    def publish(self, number, poison=False):
        """Publishes one event until the call succeeds; this may duplicate it."""
        data = {"number": number, "key": number % KEYS, **({"poison": True} if poison else {})}
        path = f"/v1.0/publish/broker/{TOPIC}?metadata.partitionKey=k{data['key']}"
        deadline = time.monotonic() + fleets.TIMEOUT
        while True:
            try:
                status, _, text = self.publisher.ask("POST", path, data, {"content-type": "application/json"})
            except OSError as error:
                status, text = 0, error
            if status == 204:
                self.told.add(number)
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"publishing keeps failing: {status} {text}")
            time.sleep(0.1)

    def load(self, poisons=()):
        """Publishes all events at an even rate, in the background; returns the thread, which holds an error."""
        def run():
            try:
                begun = time.monotonic()
                for number in range(self.count):
                    time.sleep(max(0, begun + number / RATE - time.monotonic()))
                    self.publish(number, number in poisons)
            except BaseException as error:
                thread.wrong = error
        thread = threading.Thread(target=run, daemon=True)
        thread.wrong = None
        thread.start()
        return thread

    def lines(self):
        """The journal of the apps: app, action, key, number; an incomplete last line is ignored."""
        text = self.journal.read_text()
        for line in text[:text.rfind("\n") + 1].splitlines():
            _at, who, what, key, number = line.split(" ")
            yield who.split(".")[0], what, int(key), int(number)

    def numbers(self, kind):
        return {number for _, what, _, number in self.lines() if what == kind}

    def ends(self):
        return sum(1 for _, what, *_ in self.lines() if what == "end")

    until = staticmethod(fleets.eventually)

    def until_taken(self, part):
        of = int(self.count * part)
        self.until(lambda: f"{of} of {self.count} handled, but {len(self.numbers('end'))}, with {len(self.told)} published",
                   lambda: len(self.numbers("end")) >= of)

    def check(self, loading, poisons=frozenset()):
        """Checks the invariants; returns the number of duplicate events."""
        loading.join(fleets.TIMEOUT)
        if loading.is_alive() or loading.wrong:
            raise AssertionError(f"publishing: {loading.wrong or 'it hangs'}")
        good = self.told - poisons
        self.until(lambda: f"handled: {sorted(good - self.numbers('end'))[:10]}", lambda: good <= self.numbers("end"))
        lines = list(self.lines())
        if self.broker.keeps_order:
            ended, first = set(), set()
            for _, what, key, number in lines:
                if what == "begin" and number not in first:
                    first.add(number)
                    early = [n for n in range(key, number, KEYS) if n not in ended and n not in poisons]
                    if early:
                        raise AssertionError(f"{number} of key {key} was begun before {early[:5]} had been handled")
                elif what == "end":
                    ended.add(number)
        self.until(lambda: f"dead letters: {sorted(poisons - self.numbers('parked'))}",
                   lambda: poisons <= self.numbers("parked"))
        if others := self.numbers("parked") - poisons:
            raise AssertionError(f"unexpected dead letters: {sorted(others)[:10]}")
        return self.ends() - len(self.numbers("end"))


def killed(world, kill):
    """Kills members under load, one at random each time."""
    loading = world.load()
    for part in (0.1, 0.3, 0.5, 0.7):
        world.until_taken(part)
        kill(random.choice(world.members))
    return world.check(loading)


def sidecars_killed(world):
    """Kills consumer sidecars during deliveries."""
    return killed(world, world.kill_sidecar)


def apps_killed(world):
    """Kills apps while they handle events."""
    return killed(world, world.kill_app)


def publisher_killed(world):
    """Kills the publisher's sidecar; unconfirmed events are published again."""
    loading = world.load()
    for part in (0.2, 0.5, 0.8):
        world.until_taken(part)
        world.kills += 1
        world.fleet.kill("daprd-publisher")
        time.sleep(0.2)
        world.publisher = world.fleet.sidecar("publisher", flags=world.flags("publisher"))
    return world.check(loading)


def broker_killed(world):
    """Kills the broker and restarts it after two seconds."""
    loading = world.load()
    for part in (0.2, 0.6):
        world.until_taken(part)
        world.kills += 1
        world.broker.kill()
        time.sleep(2)
        world.broker.start()
    return world.check(loading)


def connections_cut(world):
    """Cuts the connections of all sidecars to the broker for longer than leases last. Once all events are handled, none is
    redelivered."""
    loading = world.load()
    world.until_taken(0.3)
    if not world.proxy.cut():
        raise AssertionError("no sidecar used the proxy")
    time.sleep(OUTAGE)
    if len(world.told) == world.count:
        raise AssertionError("events were accepted without their broker")
    world.proxy.restore()
    loading.join(fleets.TIMEOUT)
    world.until(lambda: f"handled: {sorted(world.told - world.numbers('end'))[:10]}",
                lambda: world.told <= world.numbers("end"))
    time.sleep(2 * LEASE)
    before = world.ends()
    time.sleep(2 * LEASE)
    if more := world.ends() - before:
        raise AssertionError(f"{more} events were redelivered after all had been handled")
    return world.check(loading)


def rolling_restart(world):
    """Restarts all consumers in turn under load."""
    loading = world.load()
    for part, member in zip((0.2, 0.4, 0.6), world.members):
        world.until_taken(part)
        world.roll(member)
    return world.check(loading)


def slow_beside_fast(world):
    """One consumer is slow; only its own events wait for it, and those of its keys if the broker keeps their order."""
    slow = world.members[0]
    world.work[slow] = 0.5
    world.fleet.end(f"app-{slow}")
    world.start_app(slow)
    loading = world.load()
    loading.join(fleets.TIMEOUT)

    def waiting():
        lines = list(world.lines())
        keys = {key for who, _, key, _ in lines if who == slow} if world.broker.keeps_order else ()
        begun = {number for *_, number in lines}
        return [number for number in world.told if number not in begun and number % KEYS not in keys]
    world.until(lambda: f"begun: {waiting()[:10]}", lambda: not waiting(), timeout=10)
    return world.check(loading)


def poison(world):
    """Mixes events that the app refuses with good ones, of the same key and of others."""
    poisons = frozenset({world.count // 4, world.count // 2})
    return world.check(world.load(poisons), poisons)


FAULTS = [sidecars_killed, apps_killed, publisher_killed, broker_killed, connections_cut, rolling_restart, slow_beside_fast, poison]
# Run by every test run.
QUICK = {"sqlite sidecars killed", "redis sidecars killed", "redis broker killed", "sqlite poison",
         "outbox redis over redis sidecars killed", "outbox redis over redis connections cut"}


def checks():
    """The checks: a function of fleet and count, and a name."""
    for broker, fault in itertools.product(BROKERS, FAULTS):
        if fault is broker_killed and not (broker.process and broker.keeps_groups):
            continue
        # SQLite has no connections.
        if fault is connections_cut and not broker.process:
            continue
        if fault in (rolling_restart, slow_beside_fast) and not broker.has_groups:
            continue
        yield functools.partial(subscribers, broker, fault), f"{broker.name} {fault.__name__.replace('_', ' ')}"
    yield from deliveries_outbox.checks()


def subscribers(broker, fault, fleet, count):
    with proxies.Proxy() as proxy:
        world = World(fleet, broker(fleet), count, proxy if fault is connections_cut else None)
        again = fault(world)
    return f"{len(world.told)} events, {world.kills} kills, {again} events again"


def run(binaries, check, count):
    with fleets.Fleet(binaries, sentry=False) as fleet:
        try:
            begun = time.monotonic()
            return f"{check(fleet, count)}, {time.monotonic() - begun:.1f} s"
        except BaseException:
            fleet.keep_logs()
            raise


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binaries")
    parser.add_argument("texts", nargs="*")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_intermixed_args()
    passed = failed = 0
    for check, name in checks():
        if given.quick and name not in QUICK or given.texts and not any(text in name for text in given.texts):
            continue
        try:
            print(f"ok      {name}: {run(given.binaries, check, given.count)}", flush=True)
            passed += 1
        except Exception:
            print(f"FAILED  {name}", flush=True)
            traceback.print_exc()
            failed += 1
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
