"""The official CLI starts, lists, calls and stops a folder's daprd. usage: checks.py BIN_DIR CLI

Each test has an empty home with the files that the CLI requires: the binary, a configuration, a folder of components.
"""

import json
import subprocess
import sys
import urllib.request

import home
from home import CONFIGURATION, DAPRD, CLI, HOST, TIMEOUT, STORE, Home, report, wait

import network
from fleet import free_ports


class Official(Home):
    """`dapr run` and related commands."""

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
            "--dapr-listen-addresses", HOST, "--placement-host-address", "", "--max-body-size", "8Mi",
            "--read-buffer-size", "16Ki", "--enable-app-health-check", "--app-health-check-path", "/greeting",
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
        # The deprecated flag enables TLS to the app: the sidecar starts and waits for an app that never listens.
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
            "apps": home.with_ports([
                {"appID": self.name("bow"), "appDirPath": "bow", "appPort": port,
                 "command": [sys.executable, "-m", "http.server", str(port), "--bind", HOST]},
                {"appID": self.name("stern"), "appDirPath": "stern", "env": {"SIDE": "aft"}, "command": [
                    "sh", "-c", "echo stern $SIDE $DAPR_HTTP_PORT; exec sleep 1000"]},
            ])}))
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
        self.assertRegex(self.dapr("--version"), r"Runtime version: 1\.18\.\d+")
        self.assertRegex(self.dapr("build-info"), r"Version: 1\.18\.\d+")

    def test_the_command_lines_of_other_versions(self):
        """Flags of 1.17 and of 1.12 work: ports that these versions do not choose are passed too."""
        for flags in (["--max-body-size", "4Mi", "--read-buffer-size", "4Ki", "--scheduler-host-address", "localhost:50006"],
                      ["--dapr-http-max-request-size", "8", "--dapr-http-read-buffer-size", "16"]):
            with self.subTest(flags):
                self.started_with(flags)

    def started_with(self, flags):
        http, grpc, internal, metrics = map(str, free_ports(4))
        log = self.home / "daprd.log"
        with open(log, "wb") as out:
            process = subprocess.Popen(
                [DAPRD, "--config", self.install / "config.yaml", "--app-protocol", "http", "--log-level", "info",
                 "--app-max-concurrency", "-1", "--placement-host-address", "localhost:50005", "--components-path",
                 self.install / "components", *flags, "--app-id", self.name("other"), "--app-port", "0",
                 "--dapr-http-port", http, "--dapr-grpc-port", grpc, "--profile-port", "-1", "--metrics-port", metrics,
                 "--dapr-internal-grpc-port", internal], env=self.env, cwd=self.home, stdout=out, stderr=out)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        url = f"http://{HOST}:{http}/v1.0/metadata"
        wait("an answer", lambda: urllib.request.urlopen(url, timeout=5).status == 200, process, log)
        process.terminate()
        self.assertEqual(process.wait(TIMEOUT), 0, log.read_text(errors="replace"))


if __name__ == "__main__":
    # The CLI picks ports from the ephemeral range of the machine.
    network.own()
    sys.exit(report(Official))
