"""The official CLI starts, lists, calls and stops a folder's daprd. usage: checks.py BIN_DIR CLI

Each test has an empty home with what the CLI insists on: the binary, a configuration, a folder of components.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from fleet import HOST, free_ports  # noqa: E402  (the path above has to come first)

DAPRD = pathlib.Path(sys.argv[1]).resolve() / "daprd"
CLI = pathlib.Path(sys.argv[2]).resolve()
PATIENCE = 90
UP = "You're up and running!"
CONFIGURATION = "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  name: daprConfig\n"
STORE = ("apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {}\n"
         "spec:\n  type: state.in-memory\n  version: v1\n  metadata: []\n")


def wait(what, condition, process=None, log=None):
    """The first true value of a condition; a process that ends, or time that passes, fails the test with the log."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if value := condition():
                return value
        except OSError:
            pass  # not yet
        ended = process is not None and process.poll() is not None
        if ended or time.monotonic() > deadline:
            text = log.read_text(errors="replace") if log else ""
            raise AssertionError(f"{'ended before' if ended else 'in vain waited for'}: {what}\n{text}")
        time.sleep(0.05)


class Official(unittest.TestCase):
    """A home of its own for every test."""

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
        """One command of the CLI, to its end; returns what it prints."""
        done = subprocess.run([CLI, *words], env=self.env, cwd=self.home, capture_output=True, text=True,
                              timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, f"dapr {words}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def start(self, *words):
        """`dapr run` with these words, until it says that both are up: its process and its log."""
        log = self.home / f"run-{uuid.uuid4().hex}.log"
        with open(log, "wb") as out:
            process = subprocess.Popen([CLI, "run", *map(str, words)], env=self.env, cwd=self.home,
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        self.addCleanup(self.finish, process)
        wait("dapr run", lambda: UP in log.read_text(errors="replace"), process, log)
        return process, log

    def finish(self, process):
        """What a failed test left: the CLI, its sidecars and its apps are one session."""
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
        """This test's rows of `dapr list`; other sidecars of this machine are there too."""
        printed = self.dapr("list", "--output", "json")
        rows = json.loads(printed) if printed.lstrip().startswith("[") else []
        return [row for row in rows if row["appId"].endswith(self.suffix)]

    def name(self, name):
        return f"{name}-{self.suffix}"

    def gone(self, process, log):
        wait("the CLI ends", lambda: process.poll() is not None, log=log)
        self.assertEqual(process.returncode, 0, log.read_text(errors="replace"))
        wait("the list is empty", lambda: not self.listed(), log=log)

    def test_run_list_invoke_stop(self):
        (port,) = free_ports(1)
        name = self.name("ship")
        process, log = self.start("--app-id", name, "--app-port", port, "--",
                                  sys.executable, "-m", "http.server", port, "--bind", HOST)
        (row,) = self.listed()
        self.assertEqual((row["appPort"], row["cliPid"]), (port, process.pid), row)
        self.assertTrue(row["command"].startswith(sys.executable[:15]) and row["appPid"] > 0, row)
        self.assertIn(name, self.dapr("list"))
        answer = wait("the app answers", lambda: self.invoked(name, "greeting"), process, log)
        self.assertIn("ahoy from the app", answer)
        metadata = json.load(urllib.request.urlopen(f"http://{HOST}:{row['httpPort']}/v1.0/metadata", timeout=10))
        self.assertEqual([c["name"] for c in metadata["components"]], ["default-store"])
        self.assertIn("app stopped successfully", self.dapr("stop", "--app-id", name))
        self.gone(process, log)

    def invoked(self, name, method):
        done = subprocess.run([CLI, "invoke", "--app-id", name, "--method", method, "--verb", "GET"], env=self.env,
                              capture_output=True, text=True, timeout=PATIENCE)
        return done.stdout if done.returncode == 0 else None

    def test_run_without_an_app(self):
        name = self.name("alone")
        process, log = self.start("--app-id", name)
        text = log.read_text(errors="replace")
        self.assertIn("Dapr sidecar is up and running.", text)
        (row,) = self.listed()
        self.assertEqual((row["appPort"], row["appPid"]), (0, 0))
        self.dapr("stop", "--app-id", name)
        self.gone(process, log)

    def test_every_flag_of_run(self):
        app, http, grpc, internal, metrics, profile = free_ports(6)
        (self.home / "mine").mkdir()
        (self.home / "mine/store.yaml").write_text(STORE.format("my-store"))
        (self.home / "mine.yaml").write_text(CONFIGURATION)
        name = self.name("all")
        process, log = self.start(
            "--app-id", name, "--app-port", app, "--app-protocol", "HTTP", "--app-channel-address", "localhost",
            "--app-max-concurrency", 5, "--config", "mine.yaml", "--resources-path", "mine", "--dapr-http-port", http,
            "--dapr-grpc-port", grpc, "--dapr-internal-grpc-port", internal, "--metrics-port", metrics,
            "--enable-profiling", "--profile-port", profile, "--log-level", "debug", "--enable-api-logging",
            "--dapr-listen-addresses", HOST, "--placement-host-address", "", "--dapr-http-max-request-size", 8,
            "--dapr-http-read-buffer-size", 16, "--enable-app-health-check", "--app-health-check-path", "/greeting",
            "--app-health-probe-interval", 1, "--app-health-probe-timeout", 900, "--app-health-threshold", 2,
            "--log-as-json", "--", sys.executable, "-m", "http.server", app, "--bind", HOST)
        self.assertIn("ahoy", wait("the app answers", lambda: self.invoked(name, "greeting"), process, log))
        metadata = json.load(urllib.request.urlopen(f"http://{HOST}:{http}/v1.0/metadata", timeout=10))
        self.assertEqual([c["name"] for c in metadata["components"]], ["my-store"])
        connection = metadata["appConnectionProperties"]
        self.assertEqual((connection["port"], connection["channelAddress"], connection["maxConcurrency"]),
                         (app, "localhost", 5))
        self.assertEqual(urllib.request.urlopen(f"http://{HOST}:{metrics}/", timeout=10).status, 200)
        self.assertIn('"msg":"HTTP API Called"', log.read_text(errors="replace"))
        self.dapr("stop", "--app-id", name)
        self.gone(process, log)

    def test_flags_of_old(self):
        (app,) = free_ports(1)
        name = self.name("old")
        (self.home / "old").mkdir()
        # App and sidecar speak TLS by the old flag: the sidecar is up and waits for an app that never comes.
        log = self.home / "old.log"
        with open(log, "wb") as out:
            process = subprocess.Popen(
                [CLI, "run", "--app-id", name, "--app-port", str(app), "--app-ssl", "--components-path", "old", "--",
                 "sleep", "1000"], env=self.env, cwd=self.home, stdout=out, stderr=out, start_new_session=True)
        self.addCleanup(self.finish, process)
        wait("the sidecar waits", lambda: "application protocol: https" in log.read_text(errors="replace"), process,
             log)
        self.dapr("stop", "--app-id", name)

    def test_sockets(self):
        name = self.name("socket")
        process, log = self.start("--app-id", name, "--unix-domain-socket", self.home)
        self.assertTrue((self.home / f"dapr-{name}-http.socket").is_socket())
        (row,) = self.listed()
        self.assertEqual(row["cliPid"], process.pid)
        self.dapr("stop", "--app-id", name)
        self.gone(process, log)

    def test_run_file(self):
        (port,) = free_ports(1)
        (self.home / "bow").mkdir()
        (self.home / "bow/greeting").write_text("ahoy from the bow\n")
        (self.home / "stern").mkdir()
        template = self.home / "dapr.yaml"
        template.write_text(json.dumps({
            "version": 1,
            "common": {"daprdLogDestination": "console"},
            "apps": [
                {"appID": self.name("bow"), "appDirPath": "bow", "appPort": port,
                 "command": [sys.executable, "-m", "http.server", str(port), "--bind", HOST]},
                {"appID": self.name("stern"), "appDirPath": "stern", "env": {"SIDE": "aft"}, "command": [
                    "sh", "-c", "echo stern $SIDE $DAPR_HTTP_PORT; exec sleep 1000"]},
            ]}))
        process, log = self.start("--run-file", template)
        rows = wait("both", lambda: len(found := self.listed()) == 2 and all(r["appPid"] for r in found) and found,
                    process, log)
        self.assertEqual({row["runTemplatePath"] for row in rows}, {str(template)})
        stern = next(row for row in rows if row["appId"] == self.name("stern"))
        wait("its app", lambda: f"stern aft {stern['httpPort']}" in log.read_text(errors="replace"), process, log)
        url = f"http://{HOST}:{stern['httpPort']}/v1.0/invoke/{self.name('bow')}/method/greeting"
        answer = wait("a call between them", lambda: urllib.request.urlopen(url, timeout=10).read(), process, log)
        self.assertIn(b"ahoy from the bow", answer)
        self.assertIn("stopped successfully", self.dapr("stop", "--run-file", str(template)))
        wait("the CLI ends", lambda: process.poll() is not None, log=log)
        wait("the list is empty", lambda: not self.listed(), log=log)

    def test_versions(self):
        self.assertRegex(self.dapr("--version"), r"Runtime version: (edge|1\.17\.\d+)")
        self.assertRegex(self.dapr("build-info"), r"Version: (edge|1\.17\.\d+)")

    def test_the_command_line_of_newer_versions(self):
        """As 1.17 starts it: ports that it does not choose are passed all the same."""
        http, grpc, internal, metrics = map(str, free_ports(4))
        log = self.home / "daprd.log"
        with open(log, "wb") as out:
            process = subprocess.Popen(
                [DAPRD, "--config", self.install / "config.yaml", "--app-protocol", "http", "--log-level", "info",
                 "--app-max-concurrency", "-1", "--placement-host-address", "localhost:50005", "--components-path",
                 self.install / "components", "--max-body-size", "4Mi", "--read-buffer-size", "4Ki",
                 "--scheduler-host-address", "localhost:50006", "--app-id", self.name("new"), "--app-port", "0",
                 "--dapr-http-port", http, "--dapr-grpc-port", grpc, "--profile-port", "-1", "--metrics-port", metrics,
                 "--dapr-internal-grpc-port", internal], env=self.env, cwd=self.home, stdout=out, stderr=out)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        url = f"http://{HOST}:{http}/v1.0/metadata"
        wait("an answer", lambda: urllib.request.urlopen(url, timeout=5).status == 200, process, log)
        process.terminate()
        self.assertEqual(process.wait(PATIENCE), 0, log.read_text(errors="replace"))


if __name__ == "__main__":
    suite = unittest.TestLoader().loadTestsFromTestCase(Official)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    failed = len(result.failures) + len(result.errors)
    print(f"{max(result.testsRun - failed, 0)} passed, {failed} failed")
    sys.exit(0 if result.wasSuccessful() else 1)
