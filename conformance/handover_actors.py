"""Actors that move between hosts of both products. A part of `handover`."""

import collections
import json
import threading
import time
import urllib.request

import fleet as fleets
import http_app
import servers
from sdk.world import component

TIMEOUT = 90
TYPE = "counter"
ACTORS = [f"a{number}" for number in range(24)]
CONFIG = {"entities": [TYPE], "actorIdleTimeout": "1h", "drainOngoingCallTimeout": "5s", "drainRebalancedActors": True}


class Turns:
    """The observations of all apps: no actor runs two turns at once. Two turns on the host that only Dapr's sidecar serves are
    not checked."""

    def __init__(self):
        self.lock = threading.Lock()
        self.running = collections.Counter()
        self.done, self.reminded = collections.Counter(), collections.Counter()
        self.hosts = {}
        self.overlaps = []

    def begin(self, actor, host):
        with self.lock:
            self.running[actor] += 1
            if self.running[actor] > 1 and {host, self.hosts.get(actor)} != {"theirs"}:
                self.overlaps.append((actor, host, self.hosts.get(actor)))
            self.hosts[actor] = host

    def end(self, actor):
        with self.lock:
            self.running[actor] -= 1


class ActorApp:
    """An app whose actors count their calls in their state."""

    def __init__(self, host, turns):
        self.host, self.turns, self.sidecar = host, turns, None
        app = self

        class Handler(http_app.Handler):
            def do_GET(self):
                self.answer(200, json.dumps(CONFIG if self.path == "/dapr/config" else {}).encode())

            def do_DELETE(self):
                self.answer(200, json.dumps({}).encode())

            def do_PUT(self):
                self.body()
                _, _, _, actor, _, *method = self.path.split("/")
                app.turns.begin(actor, app.host)
                try:
                    if method[0] == "remind":
                        app.turns.reminded[actor, app.host] += 1
                        self.answer(200, json.dumps({}).encode())
                    else:
                        self.answer(200, json.dumps(app.add(actor)).encode())
                except OSError:
                    self.answer(500, json.dumps({}).encode())
                finally:
                    app.turns.end(actor)

        self.server = http_app.start(Handler)
        self.port = self.server.server_address[1]

    def state(self, actor, path="", body=None):
        url = f"http://{fleets.HOST}:{self.sidecar}/v1.0/actors/{TYPE}/{actor}/state{path}"
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=20) as answer:
            return json.loads(answer.read() or "0")

    def add(self, actor):
        count = self.state(actor, "/count") + 1
        self.state(actor, body=[{"operation": "upsert", "request": {"key": "count", "value": count}}])
        self.turns.done[actor] += 1
        return count


class Actors:
    """A host of each product, with one placement and one scheduler; both receive calls."""

    def __init__(self, fleet, name, binaries, store, flags):
        self.fleet, self.name, self.binaries = fleet, name, binaries
        folder = fleet.dir / f"resources-{name}"
        folder.mkdir()
        (folder / "store.yaml").write_text(store)
        self.flags = [f"--resources-path={folder}", *flags]
        self.turns = Turns()
        self.apps = {side: ActorApp(side, self.turns) for side in binaries}
        self.sidecars, self.ports, self.confirmed = {}, {}, collections.Counter()
        self.started = 0

    def process(self, side):
        return next(name for name in self.fleet.processes if name.startswith(f"daprd-{self.name}-{side}-"))

    def join(self, side):
        self.started += 1
        self.ports.setdefault(side, fleets.free_ports(4))
        self.apps[side].sidecar = self.ports[side][0]
        self.sidecars[side] = self.fleet.sidecar(
            f"{self.name}-{side}-{self.started}", self.apps[side].port, app_id=self.name,
            binaries=self.binaries[side], flags=self.flags, ports=self.ports[side])

    def call(self, actor, by):
        """Calls until it succeeds; a failed call may still have run a turn."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                status, _, told = self.sidecars[by].ask("POST", f"/v1.0/actors/{TYPE}/{actor}/method/add", 1)
            except OSError as error:
                status, told = 0, error
            if status == 200:
                self.confirmed[actor] += 1
                return told
            if time.monotonic() > deadline:
                raise AssertionError(f"{actor} by {by}: {status} {told}")
            time.sleep(0.1)

    def round(self, *sides):
        """Every actor counts up, through either sidecar; returns the hosts of the turns."""
        for actor in ACTORS:
            for by in sides:
                before = self.turns.done[actor]
                told = self.call(actor, by)
                if told <= self.confirmed[actor] - 1 or self.turns.done[actor] <= before:
                    raise AssertionError(f"{actor} counts {told} after {self.confirmed[actor]} calls")
        return {self.turns.hosts[actor] for actor in ACTORS}

    def until(self, what, condition):
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"after {TIMEOUT} s still not: {what}")
            time.sleep(0.05)

    def shared(self):
        self.until("both hosts have actors", lambda: len(self.round(*self.sidecars)) == 2)

    def reminded(self, side):
        """Reminders arrive at this host."""
        before = self.turns.reminded.copy()
        self.until(f"each reminder arrives at {side}", lambda: all(
            self.turns.reminded[actor, side] > before[actor, side] for actor in ACTORS[:4]))

    def check(self, first, second):
        for side in (first, second):
            self.join(side)
        self.shared()
        for actor in ACTORS[:4]:
            status, _, told = self.sidecars[first].ask(
                "POST", f"/v1.0/actors/{TYPE}/{actor}/reminders/tick", {"dueTime": "1s", "period": "1s"})
            if status != 204:
                raise AssertionError(f"reminder of {actor}: {status} {told}")
        for leaver, stayer, kill in ((first, second, False), (second, first, False), (first, second, True), (second, first, True)):
            name = self.process(leaver)
            self.fleet.kill(name) if kill else self.fleet.end(name)
            del self.sidecars[leaver]
            if self.round(stayer) != {stayer}:
                raise AssertionError(f"{leaver} has gone, and not all actors are at {stayer}")
            self.reminded(stayer)
            self.join(leaver)
            self.shared()
        if self.turns.overlaps:
            raise AssertionError(f"two turns of an actor at once: {self.turns.overlaps[:5]}")
        for actor in ACTORS:
            count = self.apps[first].state(actor, "/count") if self.turns.hosts[actor] == first else None
            count = self.apps[second].state(actor, "/count") if count is None else count
            if not self.confirmed[actor] <= count <= self.turns.done[actor]:
                raise AssertionError(f"{actor} has {count}: {self.confirmed[actor]} calls, {self.turns.done[actor]} turns")

    def close(self):
        for name in [name for name in self.fleet.processes if name.startswith(f"daprd-{self.name}-")]:
            self.fleet.end(name)
        for app in self.apps.values():
            app.server.shutdown()


def actors(fleet, binaries, wanted):
    """The actor checks: a name and a function, with the control plane of each product."""
    redis = []
    for control in binaries:
        for first, second in (("theirs", "ours"), ("ours", "theirs")):
            name = f"actors move, control plane {control}: {first} is first"
            if wanted not in name:
                continue

            def check(control=control, first=first, second=second):
                if not redis:
                    redis.append(servers.Redis(fleet, "redis-actors").address)
                app = f"actors-{control}-{first}"
                # A new control plane for each, so that checks do not interfere.
                flags = [fleet.placement(f"placement-{app}", binaries[control]),
                         fleet.scheduler(f"scheduler-{app}", binaries[control])]
                store = component("store", "state.redis", redisHost=redis[0], actorStateStore="true")
                world = Actors(fleet, app, binaries, store, flags)
                try:
                    world.check(first, second)
                finally:
                    world.close()
            yield name, check
