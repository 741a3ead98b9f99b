"""Starts a CA, placement, a scheduler, sidecars and apps as processes on free loopback ports, and stops them again."""

import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid

HERE = pathlib.Path(__file__).resolve().parent
READY_SECONDS = 60
END_SECONDS = 20
ANSWER_SECONDS = 20
# Timeout of a condition: a broker needs time to notice that a member is gone.
TIMEOUT = 120
HOST = "127.0.0.1"
PORTS = (10_000, 32_000)


def free_ports(count):
    """Distinct free ports, picked together so that none repeats. They are below the ephemeral range: a port of that range could
    be taken before its process listens."""
    held = []
    while len(held) < count:
        try:
            held.append(socket.create_server(("", random.randrange(*PORTS))))
        except OSError:
            continue  # in use
    ports = [listener.getsockname()[1] for listener in held]
    for listener in held:
        listener.close()
    return ports


def eventually(what, condition, timeout=TIMEOUT):
    """Waits for a condition; `what` describes what is missing on a timeout."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout} s still not: {what()}")
        time.sleep(0.05)


def scraped(sidecar):
    """The metrics of a sidecar, as text."""
    with urllib.request.urlopen(f"http://{HOST}:{sidecar.metrics}/metrics", timeout=ANSWER_SECONDS) as answer:
        return answer.read().decode()


class Sidecar:
    """A running sidecar: its ports and its process."""

    def __init__(self, app_id, process, ports):
        self.host = HOST
        self.app_id, self.process, self.ports = app_id, process, ports
        self.http, self.grpc, _, self.metrics = ports

    def ask(self, method, path, body=None, headers=()):
        """Calls the HTTP API; returns the status, the headers, and the body, parsed if it is JSON."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.host}:{self.http}{path}", data, dict(headers), method=method)
        try:
            answer = urllib.request.urlopen(request, timeout=ANSWER_SECONDS)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            text = answer.read()
        try:
            return answer.status, answer.headers, json.loads(text)
        except ValueError:
            return answer.status, answer.headers, text.decode()


class Fleet:
    """All processes of one check; a context manager that stops them and reports those that failed."""

    def __init__(self, binaries, sentry=True):
        self.binaries = pathlib.Path(binaries).resolve()
        self.sentry = sentry
        self.kept = False
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="outrigger-fleet-"))
        # Sidecars discover each other by multicast: the suffix separates fleets on one network.
        self.suffix = uuid.uuid4().hex[:6]
        self.processes = {}
        self.problems = []
        # Flags and variables of sidecars for the running parts of the control plane.
        self.addresses = []

    def __enter__(self):
        try:
            if self.sentry:
                self._start_sentry()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exception):
        self.stop()
        if exception[0] is None and not self.problems and not self.kept:
            shutil.rmtree(self.dir)
            return
        print(f"the logs of every process are in {self.dir}", file=sys.stderr)
        if exception[0] is None and self.problems:
            raise RuntimeError("; ".join(self.problems))

    def keep_logs(self):
        """Keeps the folder at the end although no process failed, because a check did."""
        self.kept = True

    def stop(self):
        """Ends every process, in reverse order of start; an exit status other than 0 is a problem."""
        for name in reversed(list(self.processes)):
            self.end(name)

    def end(self, name, ask=True):
        """Waits for one process to end, after SIGTERM unless it was stopped by other means."""
        process = self.processes.pop(name)
        asked = ask and process.poll() is None
        if asked:
            process.terminate()
        try:
            status = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = f"killed after {END_SECONDS} s"
        # Any exit status of an app is fine, as long as it ends.
        if status != 0 and not (name.startswith("app-") and asked and isinstance(status, int)):
            self.problems.append(f"{name} did not end cleanly: {status}")
        return status

    def kill(self, name):
        """Kills a process."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def start(self, name, command, env=None, **options):
        """Starts a process whose output goes to a log named after it; `options` are those of Popen."""
        with open(self.dir / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(os.environ, **(env or {})),
                **options)
        return self.processes[name]

    def app(self, name, command, port, env=None, timeout=READY_SECONDS, **options):
        """Starts an app and waits some seconds until its port accepts connections."""
        self.start(name, command, env, **options)

        def listening():
            with socket.create_connection((HOST, port), 1):
                return True
        self.until(name, listening, f"port {port}", timeout)

    def sidecar(self, name, app_port=None, protocol="http", env=None, flags=(), app_id=None, binaries=None,
                ports=None):
        """Starts a sidecar, with mTLS if there is a CA, and waits until it is healthy. `app_id` is made unique; `binaries`
        overrides the folder of its `daprd`; `ports` are those of a previous sidecar."""
        ports = ports or free_ports(4)
        http, grpc, internal, metrics = ports
        app_id = f"{app_id or name}-{self.suffix}"
        command = [
            pathlib.Path(binaries or self.binaries) / "daprd", f"--app-id={app_id}", f"--app-protocol={protocol}",
            f"--dapr-http-port={http}", f"--dapr-grpc-port={grpc}", f"--dapr-internal-grpc-port={internal}",
            f"--dapr-listen-addresses={HOST}", f"--dapr-internal-grpc-listen-address={HOST}",
            f"--metrics-port={metrics}", f"--metrics-listen-address={HOST}", "--enable-profiling=false",
            *self.addresses, *flags]
        env = {"DAPR_HOST_IP": HOST, **(env or {})}
        if self.sentry:
            command += ["--enable-mtls", f"--sentry-address=localhost:{self.sentry_port}",
                        "--control-plane-trust-domain=localhost", "--control-plane-namespace=default"]
            env = {"DAPR_TRUST_ANCHORS": self.anchors, **env}
        if app_port:
            command.append(f"--app-port={app_port}")
        process = self.start(f"daprd-{name}", command, env)
        self._healthy(f"daprd-{name}", f"http://{HOST}:{http}/v1.0/healthz")
        return Sidecar(app_id, process, ports)

    def control_plane(self, client=None):
        """Starts placement and a scheduler, with identities of the CA if there is one; sidecars started later use both.
        `client` sets the scheduler's etcd client port."""
        *ports, other, peers = free_ports(5)
        self.addresses += [self.placement(), self.scheduler(ports=[*ports, client or other, peers])]

    def scheduler(self, name="scheduler", binaries=None, folder=None, flags=(), ports=None):
        """Starts a scheduler and waits until it is healthy; returns the flag for sidecars. Its data are in `folder`, by default
        a new one; existing data are kept. `ports` are five, of a previous scheduler."""
        port, healthz, metrics, client, peers = ports or free_ports(5)
        folder = pathlib.Path(folder or self.dir / f"data-{name}")
        folder.mkdir(mode=0o700, exist_ok=True)
        # The same id and scheme, because etcd stores its member list.
        members = f"--etcd-initial-cluster=dapr-scheduler-server-0=http{'s' * self.sentry}://{HOST}:{peers}"
        self.start(name, [
            pathlib.Path(binaries or self.binaries) / "scheduler", "--id=dapr-scheduler-server-0", f"--port={port}",
            f"--listen-address={HOST}", f"--healthz-port={healthz}", f"--metrics-port={metrics}",
            f"--etcd-data-dir={folder}", f"--etcd-client-port={client}", members,
            f"--override-broadcast-host-port={HOST}:{port}", *self._of_the_control_plane(name), *flags])
        self._healthy(name, f"http://{HOST}:{healthz}/healthz")
        return f"--scheduler-host-address={HOST}:{port}"

    def placement(self, name="placement", binaries=None, flags=()):
        """Starts a placement service and waits until it is healthy; returns the flag for sidecars."""
        port, healthz, metrics, replicas = free_ports(4)
        self.start(name, [
            pathlib.Path(binaries or self.binaries) / "placement", f"--port={port}", f"--listen-address={HOST}",
            f"--healthz-port={healthz}", f"--metrics-port={metrics}",
            f"--initial-cluster=dapr-placement-0={HOST}:{replicas}", *self._of_the_control_plane(name), *flags])
        self._healthy(name, f"http://{HOST}:{healthz}/healthz")
        return f"--placement-host-address={HOST}:{port}"

    def _of_the_control_plane(self, name):
        """The flags that give a service its identity."""
        if not self.sentry:
            return []
        flags = ["--tls-enabled", "--trust-domain=localhost", f"--sentry-address=localhost:{self.sentry_port}",
                 f"--trust-anchors-file={self.dir / 'credentials' / 'ca.crt'}"]
        # etcd reads its certificates from files.
        return [*flags, f"--identity-directory-write={self.dir / f'identity-{name}'}"] if "scheduler" in name else flags

    def _start_sentry(self):
        credentials = self.dir / "credentials"
        credentials.mkdir()
        config = self.dir / "sentry.yaml"
        config.write_text(
            "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  name: sentry\nspec: {}\n")
        self.sentry_port, healthz, metrics = free_ports(3)
        self.start("sentry", [
            self.binaries / "sentry", f"--config={config}", f"--issuer-credentials={credentials}",
            "--trust-domain=localhost", f"--port={self.sentry_port}", f"--listen-address={HOST}",
            f"--healthz-port={healthz}", f"--metrics-port={metrics}"])
        self._healthy("sentry", f"http://{HOST}:{healthz}/healthz")
        self.anchors = (credentials / "ca.crt").read_text()

    def _healthy(self, name, url):
        def answered():
            with urllib.request.urlopen(url, timeout=2) as answer:
                return 200 <= answer.status < 300
        self.until(name, answered, url)

    def until(self, name, condition, what, timeout=READY_SECONDS):
        """Waits until a condition holds; fails if its process ends."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                if condition():
                    return
            except OSError:
                pass  # not yet
            ended = self.processes[name].poll()
            if ended is not None or time.monotonic() > deadline:
                state = f"ended with status {ended}" if ended is not None else f"not ready: {what}"
                tail = (self.dir / f"{name}.log").read_text(errors="replace").splitlines()[-15:]
                raise RuntimeError("\n  ".join([f"{name} {state}; the end of its log:", *tail]))
            time.sleep(0.02)
