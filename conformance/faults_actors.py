"""Actors whose hosts are killed or frozen. A part of `faults`.

Each call increments a count in the state of its actor, and callers make each call once. Invariants after each fault: no call has
started two turns; every successful call was one turn; no actor ran on two hosts at once; no count was repeated or skipped, except
by failed calls; reminders arrived at their interval throughout; and every running host serves again.
"""

import collections
import http.client
import json
import signal
import threading
import time
import urllib.error
import urllib.request

import fleet as fleets
import http_app
from faults_world import Redis

TIMEOUT = 90
# Longer than placement waits for a silent host, in seconds.
SILENCE = 12
TYPE = "counter"
ACTORS = [f"a{number}" for number in range(24)]
CALLERS = 8
# Time of a turn between reading and writing its state, in seconds.
TURN = 0.02
# How long an app waits for its sidecar, which may be frozen: the turn ends before another host gets the actor.
STATE_SECONDS = 3
# Actors with a reminder every second.
REMINDED = ACTORS[::4]
CONFIG = {"entities": [TYPE], "actorIdleTimeout": "1h", "drainOngoingCallTimeout": "5s", "drainRebalancedActors": True}


class Turns:
    """The observations of all apps."""

    def __init__(self):
        self.lock = threading.Lock()
        self.begun = collections.defaultdict(list)
        self.running = collections.defaultdict(list)
        self.overlaps = []
        self.reminded = collections.defaultdict(list)

    def begin(self, actor, call, host):
        with self.lock:
            self.begun[call].append((host, actor, time.time()))
            self.running[actor].append(host)
            if len(self.running[actor]) > 1:
                self.overlaps.append((actor, call, list(self.running[actor])))

    def end(self, actor, host):
        with self.lock:
            self.running[actor].remove(host)


def actor_of(call):
    return ACTORS[int(call) % len(ACTORS)]


def app(host, turns, sidecar):
    """An app whose actors count their calls; `sidecar` is the port of its sidecar."""

    def state(actor, path="", body=None):
        url = f"http://{fleets.HOST}:{sidecar}/v1.0/actors/{TYPE}/{actor}/state{path}"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=STATE_SECONDS) as answer:
            return answer.read()

    def count(actor):
        number = int(state(actor, "/count") or 0) + 1
        time.sleep(TURN)
        state(actor, body=json.dumps([{"operation": "upsert", "request": {"key": "count", "value": number}}]).encode())
        return number

    class Handler(http_app.Handler):
        def do_GET(self):
            self.answer(200, json.dumps(CONFIG if self.path == "/dapr/config" else {}).encode())

        def do_DELETE(self):
            self.answer(200, b"{}")

        def do_PUT(self):
            call = self.body().decode()
            actor = self.path.split("/")[3]
            if "/method/remind/" in self.path:
                turns.reminded[actor].append(time.time())
                return self.answer(200)
            turns.begin(actor, call, host)
            try:
                status, told = 200, count(actor)
            except (OSError, http.client.HTTPException) as error:  # its sidecar is down
                status, told = 500, repr(error)
            turns.end(actor, host)
            self.answer(status, json.dumps(told).encode())

    return http_app.start(Handler)


class Hosts:
    """Hosts of one actor type, and a sidecar without app for the callers."""

    def __init__(self, fleet, count=3):
        self.fleet, self.turns = fleet, Turns()
        self.names = [f"host-{number}" for number in range(count)]
        self.ports = {name: fleets.free_ports(4) for name in self.names}
        self.apps = {name: app(name, self.turns, self.ports[name][0]) for name in self.names}
        folder = fleet.dir / "resources"
        folder.mkdir()
        (folder / "store.yaml").write_text(Redis(fleet).resource)
        self.flags = [fleet.placement(flags=["--handover"]), "--actors-handover", fleet.scheduler(), f"--resources-path={folder}"]
        host, *_ = [self.start(name) for name in self.names]
        self.caller = fleet.sidecar("caller", flags=self.flags)
        # Successful calls, with the counts that they returned.
        self.calls, self.confirmed, self.failed, self.unanswered = 0, {}, [], []
        self.lock, self.over = threading.Lock(), threading.Event()
        self.callers = [threading.Thread(target=self.call_all_the_time, daemon=True) for _ in range(CALLERS)]
        for caller in self.callers:
            caller.start()
        self.until_all_serve(self.names)
        for actor in REMINDED:
            told = host.ask("POST", f"/v1.0/actors/{TYPE}/{actor}/reminders/tick", {"dueTime": "0s", "period": "1s"})
            if told[0] != 204:
                raise AssertionError(f"the reminder of {actor}: {told}")
        self.until_reminded()

    def start(self, name):
        return self.fleet.sidecar(name, self.apps[name].server_address[1], app_id="hosts", flags=self.flags,
                                  ports=self.ports[name])

    def call_all_the_time(self):
        while not self.over.is_set():
            with self.lock:
                self.calls += 1
                call = f"{self.calls}"
            url = f"http://{fleets.HOST}:{self.caller.http}/v1.0/actors/{TYPE}/{actor_of(call)}/method/turn"
            try:
                with urllib.request.urlopen(urllib.request.Request(url, call.encode()), timeout=TIMEOUT) as answer:
                    self.confirmed[call] = json.load(answer)
            except urllib.error.HTTPError as error:
                self.failed.append((call, error.read().decode()))
                time.sleep(0.1)
            except Exception as error:  # no response at all, so the outcome is unknown
                self.unanswered.append((call, repr(error)))

    def until_all_serve(self, names):
        """Waits until each of these hosts has begun another turn."""
        deadline = time.monotonic() + TIMEOUT
        since = time.time()
        while missing := set(names) - {host for begun in list(self.turns.begun.values()) for host, _, at in begun if at > since}:
            if time.monotonic() > deadline:
                raise AssertionError(f"no turns at {missing}")
            time.sleep(0.1)

    def until_left(self, name):
        """Waits until calls of every actor succeed without a host, and reminders arrive."""
        deadline = time.monotonic() + TIMEOUT
        since = len(self.confirmed)
        while missing := set(ACTORS) - {actor_of(call) for call in list(self.confirmed)[since:]}:
            if time.monotonic() > deadline:
                raise AssertionError(f"without {name} no call succeeds of {missing}")
            time.sleep(0.1)
        self.until_reminded()

    def until_reminded(self):
        """Waits until each reminder has arrived once more."""
        deadline = time.monotonic() + TIMEOUT
        since = time.time()
        while missing := [actor for actor in REMINDED if max(self.turns.reminded[actor], default=0) < since]:
            if time.monotonic() > deadline:
                raise AssertionError(f"no reminder arrives at {missing}")
            time.sleep(0.1)

    def check(self, gap):
        """Checks the invariants; reminders arrive at most `gap` seconds apart."""
        self.over.set()
        for caller in self.callers:
            caller.join(TIMEOUT)
        if self.unanswered or any(caller.is_alive() for caller in self.callers):
            raise AssertionError(f"calls without a response: {self.unanswered or 'the last ones'}")
        twice = {call: begun for call, begun in self.turns.begun.items() if len(begun) > 1}
        told = {call: begun for call, begun in twice.items() if call in dict(self.failed)}
        lost = [call for call in self.confirmed if call not in self.turns.begun]
        if twice or lost or self.turns.overlaps:
            raise AssertionError(f"calls with two turns: {twice} (of these failed: {list(told)}); succeeded without one: {lost}; "
                                 f"two turns of an actor at once: {self.turns.overlaps[:5]}")
        for actor in ACTORS:
            counts = sorted(count for call, count in self.confirmed.items() if actor_of(call) == actor)
            # The caller of a failed call does not know whether it was counted.
            unknown = sum(actor_of(call) == actor for call, _ in self.failed)
            if len(set(counts)) < len(counts) or counts[-1] > len(counts) + unknown:
                raise AssertionError(f"{actor} lost what it had counted, {unknown} calls failed: {counts}")
        return (f"{len(self.confirmed)} calls, {len(self.failed)} failed, none had two turns, each was counted, "
                f"{self.check_reminders(gap)}")

    def check_reminders(self, gap):
        def missing():
            """Reminders due while the actor had no host arrive later, and the last one may be in flight."""
            came = self.turns.reminded
            return [actor for actor in REMINDED if len(came[actor]) + 1 < time.time() - min(came[actor])]

        fleets.eventually(lambda: f"all reminders of {missing()}", lambda: not missing(), TIMEOUT)
        longest = 0
        for actor in REMINDED:
            came = [*sorted(self.turns.reminded[actor]), time.time()]
            longest = max(longest, *(after - before for before, after in zip(came, came[1:])))
            if longest > gap:
                raise AssertionError(f"the reminder of {actor} came too late: {came}")
        return f"reminders at most {longest:.1f} s apart"


def actor_host_killed(hosts):
    """Kills sidecars of hosts during turns, three times, and restarts them."""
    for name in hosts.names:
        hosts.fleet.kill(f"daprd-{name}")
        hosts.until_left(name)
        hosts.start(name)
        hosts.until_all_serve(hosts.names)


def actor_host_frozen(hosts):
    """Freezes a host for longer than placement waits for it. Calls that it had received are abandoned when it resumes: their
    callers got an error, or other hosts have processed them."""
    name = hosts.names[0]
    process = hosts.fleet.processes[f"daprd-{name}"]
    process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        hosts.until_left(name)
        time.sleep(max(0.0, SILENCE - (time.monotonic() - began)))
    finally:
        process.send_signal(signal.SIGCONT)
    hosts.until_all_serve(hosts.names)


# With the maximum delay of a reminder, in seconds. A host that forwarded one to a frozen host probes it after 10 s, waits 5
# s for a response, and retries after 1 s.
FAULTS = {actor_host_killed: 5, actor_host_frozen: 20}


def run(binaries, fault):
    with fleets.Fleet(binaries, sentry=False) as fleet:
        try:
            hosts = Hosts(fleet)
            began = time.monotonic()
            fault(hosts)
            return f"{hosts.check(FAULTS[fault])}, {time.monotonic() - began:.1f} s"
        except BaseException:
            fleet.keep_logs()
            raise
