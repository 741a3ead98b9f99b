"""A consumer group whose members are sidecars of two builds. Run by the script `groups`."""

import collections
import json
import pathlib
import sys
import threading
import time

import fleet as fleets
import http_app
import servers
from sdk.world import component

# Timeout of any step: a broker needs time to notice that a member is gone.
TIMEOUT = 90
TOPIC = "catch"
# Messages published at a time.
ROUND = 24
PARTITIONS = 6
SUBSCRIPTION = """apiVersion: dapr.io/v2alpha1
kind: Subscription
metadata:
  name: catch
spec:
  pubsubname: broker
  topic: catch
  routes:
    default: /take
"""


class App:
    """An app that records its messages; while holding, it does not respond."""

    def __init__(self):
        self.taken = collections.Counter()
        self.waiting = set()
        self.going = threading.Event()
        self.going.set()
        self.events = {}
        app = self

        class Handler(http_app.Handler):
            def do_GET(self):
                self.answer(404)

            def do_POST(self):
                event = json.loads(self.body())
                number = event["data"]["number"]
                app.events[number] = event
                app.waiting.add(number)
                app.going.wait()
                app.waiting.discard(number)
                app.taken[number] += 1
                self.answer(200)

        self.server = http_app.start(Handler)
        self.port = self.server.server_address[1]

    def close(self):
        self.going.set()
        self.server.shutdown()


def until(what, condition):
    """Waits until a condition is true; returns its value."""
    deadline = time.monotonic() + TIMEOUT
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {TIMEOUT} s still not: {what}")
        time.sleep(0.02)
    return found


class Group:
    """Two sidecars with the same app id, each with its own app."""

    def __init__(self, fleet, name, binaries, properties):
        self.fleet, self.name, self.binaries = fleet, name, binaries
        folder = fleet.dir / f"resources-{name}"
        folder.mkdir()
        (folder / "broker.yaml").write_text(component("broker", f"pubsub.{name}", **properties))
        (folder / "subscription.yaml").write_text(SUBSCRIPTION)
        self.flags = [f"--resources-path={folder}"]
        self.number, self.started = 0, 0
        self.apps, self.members = {}, {}
        for side in binaries:
            self.join(side)

    def join(self, side):
        """Starts a member with a fresh app."""
        self.started += 1
        if side in self.apps:
            self.apps[side].close()
        self.apps[side] = App()
        self.members[side] = self.fleet.sidecar(
            f"{self.name}-{side}-{self.started}", self.apps[side].port, binaries=self.binaries[side], flags=self.flags,
            app_id=self.name)

    def leave(self, side, kill):
        name = next(process for process in self.fleet.processes if process.startswith(f"daprd-{self.name}-{side}-"))
        self.fleet.kill(name) if kill else self.fleet.end(name)

    def publish(self, side):
        """Publishes a round of messages with one of the members; returns their numbers."""
        numbers = range(self.number, self.number + ROUND)
        self.number += ROUND
        for number in numbers:
            # Keys spread the messages over Kafka's partitions.
            path = f"/v1.0/publish/broker/{TOPIC}?metadata.partitionKey=k{number}"
            status, _, told = self.members[side].ask(
                "POST", path, {"number": number, "by": side}, {"content-type": "application/json"})
            if status != 204:
                raise AssertionError(f"{side} cannot publish: {status} {told}")
        return numbers

    def taken(self, numbers):
        """Whether each of these messages was received by a member."""
        return all(any(app.taken[number] for app in self.apps.values()) for number in numbers)

    def shares(self, side):
        """Publishes until both members have received some and all are received; returns how many of how many were duplicates."""
        before = {name: app.taken.total() for name, app in self.apps.items()}
        first = self.number

        def both():
            numbers = self.publish(side)
            until(f"all of {numbers} taken", lambda: self.taken(numbers))
            return all(app.taken.total() > before[name] for name, app in self.apps.items())
        until("both take some", both)
        twice = sum(1 for number in range(first, self.number)
                    if sum(app.taken[number] for app in self.apps.values()) > 1)
        return f"{self.number - first} messages, {twice} of them twice"

    def envelopes(self):
        """Envelopes of both products have the same fields."""
        seen = collections.defaultdict(set)
        for name, app in self.apps.items():
            for event in app.events.values():
                seen[event["data"]["by"]].add(tuple(sorted(event)))
        if set(seen) != set(self.binaries) or len({fields for found in seen.values() for fields in found}) != 1:
            raise AssertionError(f"the fields of events by who published them: {dict(seen)}")
        return f"{len(next(iter(seen['ours'])))} fields"

    def take_over(self, victim, heir):
        """Kills a member that holds messages; the other one receives them."""
        app = self.apps[victim]
        app.going.clear()
        held = []

        def holding():
            held.extend(self.publish(heir))
            time.sleep(0.2)
            return app.waiting
        until(f"{victim} holds a message", holding)
        orphans = set(app.waiting)
        self.leave(victim, kill=True)
        heir_app = self.apps[heir]
        until(f"{heir} takes {sorted(orphans)}", lambda: all(heir_app.taken[number] for number in orphans))
        until("all is taken", lambda: all(heir_app.taken[number] for number in held))
        return f"{len(orphans)} held when it was killed, {len(held)} messages"

    def hand_over(self, leaver, stayer):
        """A gracefully stopped member leaves no messages behind."""
        numbers = list(self.publish(stayer))
        self.leave(leaver, kill=False)
        numbers += self.publish(stayer)
        until(f"all of {numbers} taken", lambda: self.taken(numbers))
        return f"{len(numbers)} messages"

    def steps(self):
        yield "ours publishes, both take", lambda: self.shares("ours")
        yield "Dapr's publishes, both take", lambda: self.shares("theirs")
        yield "the fields of the events", self.envelopes
        for victim, heir in (("ours", "theirs"), ("theirs", "ours")):
            yield f"{victim} is killed, {heir} takes over", lambda v=victim, h=heir: self.take_over(v, h)
            yield f"{victim} is back, both take", lambda v=victim, h=heir: (self.join(v), self.shares(h))[1]
        for leaver, stayer in (("ours", "theirs"), ("theirs", "ours")):
            yield f"{leaver} ends in order", lambda v=leaver, h=stayer: self.hand_over(v, h)
            yield f"{leaver} is back, both take", lambda v=leaver, h=stayer: (self.join(v), self.shares(h))[1]

    def check(self):
        """Returns the numbers of passed and failed steps; steps after a failure are skipped."""
        passed = 0
        for name, step in self.steps():
            try:
                told = step()
            except Exception as error:  # the other brokers are still checked
                print(f"FAILED  {self.name}, {name}: {type(error).__name__} {error}", flush=True)
                return passed, 1
            passed += 1
            print(f"ok      {self.name}, {name}: {told}", flush=True)
        return passed, 0

    def close(self):
        for side, app in self.apps.items():
            app.going.set()
            for name in [name for name in self.fleet.processes if name.startswith(f"daprd-{self.name}-{side}-")]:
                self.fleet.end(name)
            app.close()


def redis(fleet):
    return {"redisHost": servers.Redis(fleet).address, "processingTimeout": "3s", "redeliverInterval": "1s"}


def rabbitmq(fleet):
    # Without a limit one member would get all queued messages.
    return {"connectionString": servers.RabbitMq(fleet).url, "durable": "true", "deletedWhenUnused": "false",
            "prefetchCount": "4", "requeueInFailure": "true", "concurrency": "parallel"}


def kafka(fleet):
    return {"brokers": servers.Kafka(fleet, partitions=PARTITIONS).address, "authType": "none",
            "initialOffset": "oldest", "sessionTimeout": "3s", "heartbeatInterval": "500ms"}


BROKERS = {"redis": redis, "rabbitmq": rabbitmq, "kafka": kafka}


def main(ours, theirs, *names):
    binaries = {"ours": pathlib.Path(ours).resolve(), "theirs": pathlib.Path(theirs).resolve()}
    passed = failed = 0
    with fleets.Fleet(ours, sentry=False) as fleet:
        for name in names or BROKERS:
            try:
                properties = BROKERS[name](fleet)
            except servers.Missing as missing:
                sys.exit(f"conformance/groups: {missing}")
            group = Group(fleet, name, binaries, properties)
            try:
                done = group.check()
            finally:
                group.close()
            passed, failed = passed + done[0], failed + done[1]
        if failed:
            fleet.keep_logs()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
