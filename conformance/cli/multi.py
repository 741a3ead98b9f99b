"""The official CLI runs apps with jobs and workflows: `dapr run -f .`, with a control plane on the default ports.
usage: multi.py BIN_DIR CLI

The CLI learns only from the version that daprd prints that there is a scheduler. The ports are fixed, so this runs in a
separate network, or is skipped.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.request

import home
from home import HOST, Home, wait

import network
import suite
from fleet import free_ports

APPS = pathlib.Path(__file__).resolve().parent / "apps"
PYTHON = [os.environ["CHECK_PYTHON"]]
GO = [str(suite.cache() / "bin/sdk-go-apps")]
NODE = ["node"]
# Placement and the scheduler as docs/how-to/local.md starts them on a laptop.
CONTROL = {"placement": ["--healthz-port", "58080", "--metrics-port", "59090"],
           "scheduler": ["--healthz-port", "58081", "--metrics-port", "59091"]}
STORE = ("apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: statestore\nspec:\n  type: state.in-memory\n"
         "  version: v1\n  metadata:\n  - {name: actorStateStore, value: 'true'}\n")


class Apps(Home):
    """A folder with a `dapr.yaml`."""

    def run_apps(self, *apps):
        folder = self.home / "apps"
        (folder / "components").mkdir(parents=True)
        (folder / "components/store.yaml").write_text(STORE)
        template = {"version": 1, "common": {"resourcesPath": "components", "appLogDestination": "console"},
                    "apps": home.with_ports({"appDirPath": ".", "env": {"NODE_PATH": os.environ.get("CHECK_NODE_PATH", "")}, **app}
                                            for app in apps)}
        (folder / "dapr.yaml").write_text(json.dumps(template))
        log = self.home / "run.log"
        with open(log, "wb") as out:
            process = subprocess.Popen([home.CLI, "run", "-f", "."], env=self.env, cwd=folder, stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=out, start_new_session=True)
        self.addCleanup(self.finish, process)

        def printed(*parts):
            text = log.read_text(errors="replace")
            return all(part in text for part in parts)

        return lambda *parts: wait(parts, lambda: printed(*parts), process, log)

    def jobs(self, command, protocol="http"):
        (port,) = free_ports(1)
        service = self.name("service")
        printed = self.run_apps(
            {"appID": service, "appPort": port, "appProtocol": protocol, "command": [*command, "service", str(port)]},
            {"appID": self.name("caller"), "command": [*command, "caller", service]})
        printed("planned", "1s")
        printed("took job voyage", "salt")

    def workflow(self, command):
        printed = self.run_apps({"appID": self.name("order"), "command": command})
        printed("reserved anchor", 'workflow COMPLETED: "anchor shipped"')


class Multi(Apps):
    """Apps in Python and Go."""

    def test_jobs_in_python(self):
        self.jobs([*PYTHON, str(APPS / "jobs.py")])

    def test_jobs_in_go(self):
        self.jobs(GO, "grpc")

    def test_workflow_in_python(self):
        self.workflow([*PYTHON, str(APPS / "order.py")])

    def test_workflow_in_go(self):
        self.workflow([*GO, "order"])


class WithNode(Apps):
    """The same in JavaScript, if Node.js is installed."""

    def test_jobs_in_javascript(self):
        self.jobs([*NODE, str(APPS / "jobs.js")])

    def test_workflow_in_javascript(self):
        self.workflow([*NODE, str(APPS / "order.js")])


def control_plane(stack):
    """Starts placement and the scheduler, until the stack closes."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="outrigger-control-"))
    for service, flags in CONTROL.items():
        with open(f"{folder}/{service}.log", "wb") as log:
            data = ["--etcd-data-dir", f"{folder}/data"] if service == "scheduler" else []
            process = subprocess.Popen([home.DAPRD.parent / service, "--listen-address", HOST, *flags, *data], stdout=log,
                                       stderr=log)
        stack.callback(process.wait)
        stack.callback(process.kill)
        url = f"http://{HOST}:{flags[1]}/healthz"
        wait(service, lambda url=url: urllib.request.urlopen(url, timeout=5).status == 200, process,
             pathlib.Path(log.name))


def main():
    network.own()
    if network.outside():
        print("skipped: jobs and workflows under `dapr run -f .`: no separate network available here")
        return 0
    cases = [Multi]
    if os.environ.get("CHECK_NODE_PATH") and shutil.which("node"):
        cases.append(WithNode)
    else:
        print("skipped: the apps in JavaScript: Node.js 18 or later is not installed")
    with contextlib.ExitStack() as stack:
        control_plane(stack)
        return home.report(*cases)


if __name__ == "__main__":
    sys.exit(main())
