"""A home folder for the official CLI with a folder's daprd. Script arguments: BIN_DIR CLI."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from fleet import HOST, free_ports  # noqa: E402  (after the path above)

DAPRD = pathlib.Path(sys.argv[1]).resolve() / "daprd"
CLI = pathlib.Path(sys.argv[2]).resolve()
TIMEOUT = 90
# The CLI picks each port separately, and may pick one twice.
PORT_FLAGS = ["--dapr-internal-grpc-port", "--metrics-port"]
PORT_KEYS = ["daprHTTPPort", "daprGRPCPort", "daprInternalGRPCPort", "metricsPort"]
UP = "You're up and running!"
CONFIGURATION = "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  name: daprConfig\n"
STORE = ("apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {}\n"
         "spec:\n  type: state.in-memory\n  version: v1\n  metadata: []\n")


def wait(what, condition, process=None, log=None):
    """The first true value of a condition; fails the test with the log if the process ends or time is up."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            if value := condition():
                return value
        except OSError:
            pass  # not yet
        ended = process is not None and process.poll() is not None
        if ended or time.monotonic() > deadline:
            text = log.read_text(errors="replace") if log else ""
            raise AssertionError(f"{'ended before' if ended else 'timed out waiting for'}: {what}\n{text}")
        time.sleep(0.05)


def with_ports(apps):
    """The apps of a `dapr.yaml`, with ports that differ."""
    apps = list(apps)
    ports = iter(free_ports(len(apps) * len(PORT_KEYS)))
    return [{**{key: next(ports) for key in PORT_KEYS}, **app} for app in apps]


class Home(unittest.TestCase):
    """A separate home for each test."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="outrigger-cli-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        self.install = self.home / ".dapr"
        (self.install / "bin").mkdir(parents=True)
        (self.install / "components").mkdir()
        (self.install / "bin/daprd").symlink_to(DAPRD)
        (self.install / "config.yaml").write_text(CONFIGURATION)
        (self.install / "components/store.yaml").write_text(STORE.format("default-store"))
        (self.home / "greeting").write_text("ahoy from the app\n")
        self.env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "DAPR_HOST_IP": HOST}
        self.suffix = uuid.uuid4().hex[:6]

    def dapr(self, *words):
        """Runs one command of the CLI and returns its output."""
        done = subprocess.run([CLI, *words], env=self.env, cwd=self.home, capture_output=True, text=True,
                              timeout=TIMEOUT)
        self.assertEqual(done.returncode, 0, f"dapr {words}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def start(self, *words):
        """`dapr run` with these arguments, until it reports that both are up: its process and its log."""
        log = self.home / f"run-{uuid.uuid4().hex}.log"
        ports = [] if "--run-file" in words else zip(PORT_FLAGS, free_ports(len(PORT_FLAGS)))
        flags = [word for flag in ports for word in flag]
        with open(log, "wb") as out:
            process = subprocess.Popen([CLI, "run", *map(str, [*flags, *words])], env=self.env, cwd=self.home,
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        self.addCleanup(self.finish, process)
        wait("dapr run", lambda: UP in log.read_text(errors="replace"), process, log)
        return process, log

    def finish(self, process):
        """Ends the processes of a failed test: the CLI, its sidecars and its apps are one session."""
        listed = self.listed() if process.poll() is None else []
        for pid in [row[key] for row in listed for key in ("cliPid", "appPid", "daprdPid") if row[key]]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if process.poll() is None:
            process.kill()
        process.wait()

    def listed(self):
        """This test's rows of `dapr list`; the list also has other sidecars of this machine."""
        printed = self.dapr("list", "--output", "json")
        rows = json.loads(printed) if printed.lstrip().startswith("[") else []
        return [row for row in rows if row["appId"].endswith(self.suffix)]

    def name(self, name):
        return f"{name}-{self.suffix}"

    def gone(self, process, log):
        wait("the CLI ends", lambda: process.poll() is not None, log=log)
        self.assertEqual(process.returncode, 0, log.read_text(errors="replace"))
        wait("the list is empty", lambda: not self.listed(), log=log)

    def invoked(self, name, method):
        done = subprocess.run([CLI, "invoke", "--app-id", name, "--method", method, "--verb", "GET"], env=self.env,
                              capture_output=True, text=True, timeout=TIMEOUT)
        return done.stdout if done.returncode == 0 else None


def report(*cases):
    """Runs the tests of these classes and prints the number of passed ones; returns the exit status."""
    suite = unittest.TestSuite(map(unittest.TestLoader().loadTestsFromTestCase, cases))
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    failed = len(result.failures) + len(result.errors)
    print(f"{max(result.testsRun - failed, 0)} passed, {failed} failed")
    return 0 if result.wasSuccessful() else 1
