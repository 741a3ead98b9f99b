"""The outbox under faults: part of the script `deliveries`.

Replicas of an app write transactions to a store with an outbox. Faults: a sidecar, the broker or the store is killed, the
connections to the broker are cut, also for 30 s, all consumers are restarted in turn, replicas join and leave, the app that gets
the events is slow, or events are poison. Invariants: the events of every stored transaction have arrived, with the projected data,
whether its caller got success, failure or no response; every successful transaction is stored; no event arrived before its value
was stored; only poison is a dead letter; and no event stays unfinished that can be finished.
"""

import functools
import random
import statistics
import sys
import threading
import time
import uuid

import deliveries_servers as kinds
import figures
import fleet as fleets
import proxies
from deliveries_servers import TOPIC, collect, subscribe
from sdk.world import component

MEMBERS = ["0", "1"]
# Replicas that join for a while.
GUESTS = ["2", "3"]
GROUP = "writers"
# Transactions a second, of all writer threads.
RATE, THREADS = 100, 4
# Store and broker of the delay measurement.
LIGHT_RATE = 20
# The writes of a transaction: for the first a projection is published, for the second the value.
PARTS = ("order", "line")
JSON = {"content-type": "application/json"}


class Pair:
    """A store and the broker of its outbox. `discards`: events without a transaction are dropped after 10 s instead of staying
    at the broker for an hour; then everything must be finished at the end."""

    def __init__(self, store, broker, discards):
        self.store, self.broker, self.discards = store, broker, discards
        self.name = f"outbox {store.name} over {broker.name}"


PAIRS = [Pair(kinds.SqliteStore, kinds.SqliteBroker, True), Pair(kinds.RedisStore, kinds.RedisBroker, False),
         Pair(kinds.Postgres, kinds.RabbitMq, True), Pair(kinds.Etcd, kinds.JetStream, False),
         Pair(kinds.RedisStore, kinds.Kafka, False)]


class World:
    """Two replicas of a writing app, a reader of its events, and a collector of dead letters."""

    def __init__(self, fleet, pair, count, rate=RATE, proxy=None, poisons=frozenset(), work=0):
        self.fleet, self.pair, self.count, self.rate = fleet, pair, count, rate
        # Seconds that the app spends on some of the events.
        self.work = work
        # Transaction numbers whose events the app refuses.
        self.poisons = poisons
        self.internal = f"default{GROUP}-{fleet.suffix}{TOPIC}outbox"
        self.broker = pair.broker(fleet, [self.internal])
        if proxy:
            self.broker.behind(proxy)
        self.store = pair.store(fleet)
        self.journal = fleet.dir / "journal"
        self.journal.touch()
        # Transaction numbers: those begun, and the times at which they were confirmed.
        self.begun, self.told = 0, {}
        self.refused = 0
        self.lock = threading.Lock()
        self.kills = 0
        self.ports = {}
        for member in ("reader", "collector"):
            self.start_consumer(member)
        self.writers = {}
        for member in MEMBERS:
            self.start_sidecar(member)

    def flags(self, member):
        folder = self.fleet.dir / f"resources-{member}"
        folder.mkdir(exist_ok=True)
        group = GROUP if member in MEMBERS + GUESTS else member
        properties = {name: str(value).format(member=member, group=group) for name, value in self.broker.properties.items()}
        (folder / "broker.yaml").write_text(component("broker", f"pubsub.{self.broker.kind}", **properties))
        # The reader checks the keys of the writers; it has no outbox.
        properties = {**self.store.properties, "keyPrefix": "none"}
        if member in MEMBERS + GUESTS:
            properties |= {"outboxPublishPubsub": "broker", "outboxPublishTopic": TOPIC}
            if self.pair.discards:
                properties["outboxDiscardWhenMissingState"] = "true"
        (folder / "store.yaml").write_text(component("store", f"state.{self.store.kind}", **properties))
        if member == "reader":
            # It asks the store for each value, which may be unavailable for a while; not with poison.
            subscribe(folder, "stored", retries=50 if self.poisons else -1)
        elif member == "collector":
            collect(folder)
        return [f"--resources-path={folder}"]

    def start_consumer(self, member):
        """An app that gets events, and its sidecar."""
        if member not in self.ports:
            app, *ports = fleets.free_ports(5)
            self.ports[member] = app, ports
        app, ports = self.ports[member]
        self.fleet.app(f"app-{member}", [
            sys.executable, "-W", "ignore", f"{fleets.HERE}/deliveries_app.py", member, str(app), self.journal, str(self.work)], app,
            {"DAPR_HTTP_PORT": str(ports[0])})
        setattr(self, member, self.fleet.sidecar(member, app, flags=self.flags(member), ports=ports))

    def start_sidecar(self, member):
        self.writers[member] = self.fleet.sidecar(
            member, app_id=GROUP, flags=self.flags(member), ports=self.ports.get(member))
        self.ports[member] = self.writers[member].ports

    def write(self):
        """One transaction, by either replica, without retries."""
        with self.lock:
            number = self.begun
            self.begun += 1
        upserts = [{"key": f"{part}-{number}", "value": {"number": number, "part": part, "stored": True},
                    "contentType": "application/json"} for part in PARTS]
        projected = {"number": number, "part": PARTS[0], "projected": True}
        if number in self.poisons:
            for data in (projected, upserts[1]["value"]):
                data["poison"] = True
        upserts.append({**upserts[0], "value": projected, "metadata": {"outbox.projection": "true"}})
        body = {"operations": [{"operation": "upsert", "request": upsert} for upsert in upserts]}
        try:
            status, *_ = random.choice(list(self.writers.values())).ask("POST", "/v1.0/state/store/transaction", body, JSON)
        except OSError:
            status = 0
        with self.lock:
            if status == 204:
                self.told[number] = time.time()
            else:
                self.refused += 1
        return status == 204

    def load(self):
        """Writes at an even rate until enough transactions have succeeded, in the background; returns the threads."""
        def run():
            pause, due = THREADS / self.rate, time.monotonic()
            while len(self.told) < self.count:
                due = max(due + pause, time.monotonic() - 1)
                time.sleep(max(0, due - time.monotonic()))
                self.write()
        threads = [threading.Thread(target=run, daemon=True) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        return threads

    def until_told(self, part):
        """Waits until this share of the transactions has succeeded, and a random moment longer."""
        of = int(self.count * part)
        fleets.eventually(lambda: f"{of} of {self.count} transactions done, but {len(self.told)}", lambda: len(self.told) >= of)
        time.sleep(random.uniform(0, 0.3))

    def came(self, kind):
        """The journal of the apps: time, part and number, and the id of the event."""
        text = self.journal.read_text()
        for line in text[:text.rfind("\n") + 1].splitlines():
            at, _, what, key, number = line.split(" ")
            if what == kind:
                part, _, marker = key.partition("/")
                yield float(at), (part, int(number)), marker

    def handled(self):
        return {event for _, event, _ in self.came("end")}

    def parked(self):
        return {event for _, event, _ in self.came("parked")}

    def kept(self, keys):
        """The keys that are in the store."""
        found = set()
        for at in range(0, len(keys), 100):
            status, _, items = self.reader.ask("POST", "/v1.0/state/store/bulk", {"keys": keys[at:at + 100]}, JSON)
            if status != 200 or any(item.get("error") for item in items):
                raise AssertionError(f"the store cannot be read: {status} {items}")
            found |= {item["key"] for item in items if item.get("data") is not None}
        return found

    def stored(self):
        """The parts and numbers that are stored."""
        keys = {f"{part}-{number}": (part, number) for part in PARTS for number in range(self.begun)}
        return {keys[key] for key in self.kept(list(keys))}

    def settle(self):
        """Waits until redeliveries in flight have arrived, then longer than any lease lasts: nothing more may arrive."""
        time.sleep(2 * kinds.LEASE)
        before = len(list(self.came("end")))
        time.sleep(2 * kinds.LEASE)
        if more := len(list(self.came("end"))) - before:
            raise AssertionError(f"{more} events were redelivered after all had been handled")

    def in_work(self):
        """Internal events that sidecars have received and not finished."""
        total = 0
        for writer in self.writers.values():
            text = fleets.scraped(writer)
            total += sum(float(line.split()[-1]) for line in text.splitlines() if "outbox\"" in line and line.startswith(
                ("dapr_component_pubsub_ingress_in_flight", "dapr_component_pubsub_ingress_waiting")))
        return total

    def check(self, threads):
        """Checks the invariants; returns a summary."""
        for thread in threads:
            thread.join(fleets.TIMEOUT)
            if thread.is_alive():
                raise AssertionError(f"{len(self.told)} of {self.count} transactions have succeeded, and no others do")
        told, poison = ({(part, number) for part in PARTS for number in numbers} for numbers in (self.told, self.poisons))
        fleets.eventually(lambda: f"events of transactions that succeeded: {sorted(told - poison - self.handled())[:10]}",
                          lambda: told - poison <= self.handled())
        stored = self.stored()
        if lost := told - stored:
            raise AssertionError(f"succeeded, but not stored: {sorted(lost)[:10]}")
        if halves := {event for event in stored if any((part, event[1]) not in stored for part in PARTS)}:
            raise AssertionError(f"half a transaction is stored: {sorted(halves)[:10]}")
        fleets.eventually(lambda: f"events of stored transactions: {sorted(stored - poison - self.handled())[:10]}",
                          lambda: stored - poison <= self.handled())
        fleets.eventually(lambda: f"dead letters: {sorted(stored & poison - self.parked())}",
                          lambda: stored & poison <= self.parked())
        if self.pair.discards:
            fleets.eventually(lambda: f"{self.in_work()} internal events finished", lambda: not self.in_work())
        if invented := (self.handled() | self.parked()) - stored:
            raise AssertionError(f"events of transactions that were never stored: {sorted(invented)[:10]}")
        if others := self.parked() - poison:
            raise AssertionError(f"unexpected dead letters: {sorted(others)[:10]}")
        for wrong, what in (("early", "before their values were stored"), ("unprojected", "without the projected data")):
            if events := [event for _, event, _ in self.came(wrong)]:
                raise AssertionError(f"events came {what}: {sorted(events)[:10]}")
        report = self.told_of(stored - told)
        # In order, with events that wait for a marker, and while all their servers run.
        for member in [*MEMBERS, "reader", "collector"]:
            self.fleet.end(f"daprd-{member}")
        return report

    def told_of(self, unconfirmed):
        again = len(list(self.came("end"))) - len(self.handled())
        markers = self.kept(list({marker for *_, marker in self.came("end")}))
        return (f"{len(self.told)} transactions, {self.refused} failed of which {len(unconfirmed) // len(PARTS)} are stored, "
                f"{self.kills} kills, {again} events again, {len(markers)} markers left")


def sidecars_killed(pair, fleet, count):
    """Kills writing and publishing sidecars, one at random each time, and finally both."""
    world = World(fleet, pair, count)
    threads = world.load()
    for part, members in ((0.1, 1), (0.3, 1), (0.5, 1), (0.7, 2)):
        world.until_told(part)
        killed = random.sample(MEMBERS, members)
        for member in killed:
            world.kills += 1
            fleet.kill(f"daprd-{member}")
        for member in killed:
            world.start_sidecar(member)
    return world.check(threads)


def server_killed(world, server):
    threads = world.load()
    for part in (0.2, 0.6):
        world.until_told(part)
        world.kills += 1
        server.kill()
        time.sleep(2)
        server.start()
    return world.check(threads)


def broker_killed(pair, fleet, count):
    """Kills the broker and restarts it after two seconds."""
    world = World(fleet, pair, count)
    return server_killed(world, world.broker)


def store_killed(pair, fleet, count):
    """Kills the store and restarts it after two seconds."""
    world = World(fleet, pair, count)
    return server_killed(world, world.store)


def connections_cut(pair, fleet, count):
    """Cuts the connections of all sidecars to the broker for three seconds."""
    with proxies.Proxy() as proxy:
        world = World(fleet, pair, count, proxy=proxy)
        threads = world.load()
        cut = 0
        for part in (0.2, 0.6):
            world.until_told(part)
            cut += proxy.cut()
            time.sleep(3)
            proxy.restore()
        if not cut:
            raise AssertionError("no sidecar used the proxy")
        return f"{world.check(threads)}, {cut} connections cut"


def long_outage(pair, fleet, count):
    """Cuts the connections of all sidecars to the broker for longer than leases last, so that transactions fail. Once all
    events are handled, none is redelivered."""
    with proxies.Proxy() as proxy:
        world = World(fleet, pair, count, proxy=proxy)
        threads = world.load()
        world.until_told(0.3)
        if not proxy.cut():
            raise AssertionError("no sidecar used the proxy")
        time.sleep(kinds.OUTAGE)
        if len(world.told) == count:
            raise AssertionError("transactions succeeded without their broker")
        proxy.restore()
        for thread in threads:
            thread.join(fleets.TIMEOUT)
        fleets.eventually(
            lambda: "events of transactions that succeeded",
            lambda: {(part, number) for part in PARTS for number in world.told} <= world.handled())
        world.settle()
        return world.check(threads)


def slow_reader(pair, fleet, count):
    """The reading app spends longer on some events than leases last; transactions do not wait for it."""
    world = World(fleet, pair, count, work=kinds.LEASE + 2)
    threads = world.load()
    for thread in threads:
        thread.join(fleets.TIMEOUT)
    if {(part, number) for part in PARTS for number in world.told} <= world.handled():
        raise AssertionError("the app was not slow")
    return world.check(threads)


def members_join(pair, fleet, count):
    """Replicas join and leave under load, which moves partitions of the others each time."""
    world = World(fleet, pair, count)
    threads = world.load()
    for part, member in zip((0.2, 0.4), GUESTS):
        world.until_told(part)
        world.start_sidecar(member)
    for part, member in zip((0.6, 0.8), GUESTS):
        world.until_told(part)
        with world.lock:
            del world.writers[member]
        fleet.end(f"daprd-{member}")
    return world.check(threads)


def rolling_restart(pair, fleet, count):
    """Restarts all consumers gracefully in turn under load: the writers and the reader."""
    world = World(fleet, pair, count)
    threads = world.load()
    for part, member in zip((0.2, 0.4, 0.6), [*MEMBERS, "reader"]):
        world.until_told(part)
        world.kills += 1
        fleet.end(f"daprd-{member}")
        if member in MEMBERS:
            world.start_sidecar(member)
        else:
            fleet.end(f"app-{member}")
            world.start_consumer(member)
    return world.check(threads)


def poison(pair, fleet, count):
    """Mixes events that the app refuses with good ones, and puts foreign messages on the internal topic: invalid ones, and
    events whose markers never appear."""
    world = World(fleet, pair, count, poisons=frozenset({count // 4, count // 2}))
    threads = world.load()
    for part in (0.2, 0.4, 0.6):
        world.until_told(part)
        for query in ("metadata.rawPayload=true", f"metadata.cloudevent.id=outbox-{uuid.uuid4()}"):
            body = {"number": -1, "part": PARTS[1]}
            status, _, text = world.reader.ask("POST", f"/v1.0/publish/broker/{world.internal}?{query}", body, JSON)
            if status != 204:
                raise AssertionError(f"publishing: {status} {text}")
    return world.check(threads)


def delay(pair, fleet, count):
    """At light load: the delay from the response of a transaction to its event, compared with that of a directly published
    event. There is no fixed delay: half of the events take less than a quarter of a second."""
    world = World(fleet, pair, count, LIGHT_RATE)
    threads, published = world.load(), {}
    for thread in threads:
        thread.join()
    for number in range(world.begun, world.begun + count):
        body = {"number": number, "part": "plain"}
        status, _, text = random.choice(list(world.writers.values())).ask("POST", f"/v1.0/publish/broker/{TOPIC}", body, JSON)
        if status != 204:
            raise AssertionError(f"publishing: {status} {text}")
        published["plain", number] = time.time()
        time.sleep(1 / LIGHT_RATE)
    world.check(threads)
    fleets.eventually(lambda: "what was published", lambda: published.keys() <= {event for _, event, _ in world.came("begin")})
    arrived = {}
    for at, event, _ in world.came("begin"):
        arrived.setdefault(event, at)
    outbox = [1000 * (arrived[part, number] - at) for part in PARTS for number, at in world.told.items()]
    direct = [1000 * (arrived[event] - at) for event, at in published.items()]
    if statistics.median(outbox) > 250:
        raise AssertionError(f"events arrive {statistics.median(outbox):.0f} ms after their transactions")
    shown = [f"{statistics.median(values):.1f} ms (p99 {figures.percentile(values, 99):.1f} ms)" for values in (outbox, direct)]
    return f"{len(world.told)} transactions, events after {shown[0]}; directly published ones after {shown[1]}"


def checks():
    """The checks: a function of fleet and count, and a name."""
    for pair in PAIRS:
        faults = [sidecars_killed, rolling_restart, members_join, slow_reader, poison]
        # Killing Redis as the store once is enough.
        if pair.broker.process:
            faults += [broker_killed, connections_cut, long_outage]
        if pair.store.process and pair.broker is not kinds.Kafka:
            faults.append(store_killed)
        if pair.store.name == pair.broker.name:
            faults.append(delay)
        for fault in faults:
            yield functools.partial(fault, pair), f"{pair.name} {fault.__name__.replace('_', ' ')}"
