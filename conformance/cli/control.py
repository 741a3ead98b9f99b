"""Checks the official CLI with events, jobs and workflows, on a folder's control plane. usage: control.py BIN_DIR CLI

The CLI looks for the scheduler at etcd's own port, so this runs in a separate network if possible.
"""

import json
import os
import pathlib
import sys
import urllib.request

import home
from home import HOST, Home, wait

import fleet as fleets
import network
import servers

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = os.environ["CHECK_PYTHON"]
COMPONENT = ("apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {}\n"
             "spec:\n  type: {}\n  version: v1\n  metadata:\n")


class Control(Home):
    """`dapr publish`, `dapr scheduler` and `dapr workflow`, with an app that `dapr run` started."""

    fleet = redis = None

    def setUp(self):
        super().setUp()
        (port,) = fleets.free_ports(1)
        self.app = self.name("app")
        (self.install / "components/all.yaml").write_text("---\n".join([
            COMPONENT.format("events", "pubsub.in-memory"),
            COMPONENT.format("actors", "state.redis") + f"  - {{name: redisHost, value: '{self.redis.address}'}}\n"
            "  - {name: redisPassword, value: ''}\n  - {name: actorStateStore, value: 'true'}\n"]))
        addresses = [part for address in self.fleet.addresses for part in address.split("=")]
        self.process, self.log = self.start("--app-id", self.app, "--app-port", port, *addresses, "--",
                                            PYTHON, HERE / "app.py", port)
        (row,) = self.listed()
        self.url = f"http://{HOST}:{row['httpPort']}"
        metadata = f"{self.url}/v1.0/metadata"
        wait("the worker", lambda: json.load(urllib.request.urlopen(metadata, timeout=5)).get("workflows"), self.process,
             self.log)

    def tearDown(self):
        self.dapr("stop", "--app-id", self.app)
        self.gone(self.process, self.log)

    def took(self, what):
        wait(what, lambda: f"took {what}" in self.log.read_text(errors="replace"), self.process, self.log)

    def schedule(self, name, **job):
        request = urllib.request.Request(f"{self.url}/v1.0-alpha1/jobs/{name}", json.dumps(job).encode())
        self.assertEqual(urllib.request.urlopen(request, timeout=10).status, 204)

    def jobs(self, *filter):
        """This test's names of `dapr scheduler list`."""
        printed = self.dapr("scheduler", "list", "-o", "json", *filter)
        rows = json.loads(printed) if printed.lstrip().startswith("[") else []
        return {row["name"]: row for row in rows if self.suffix in row["name"]}

    def flow(self, *words):
        return self.dapr("workflow", *words, "--app-id", self.app)

    def instances(self):
        """`dapr workflow list`, by instance."""
        printed = self.flow("list", "-o", "json", "-c", f"redis://{self.redis.address}")
        rows = json.loads(printed) if printed.lstrip().startswith("[") else []
        return {row["instanceID"]: row for row in rows}

    def is_now(self, id, status):
        wait(f"{id} is {status}", lambda: self.instances()[id]["runtimeStatus"] == status, self.process, self.log)

    def test_publish(self):
        printed = self.dapr("publish", "--publish-app-id", self.app, "--pubsub", "events", "--topic", "ships",
                            "--data", '{"bell":8}')
        self.assertIn("Event published successfully", printed)
        self.took("/ships")
        self.assertIn('"data":{"bell":8}', self.log.read_text().replace('": ', '":'))

    def test_jobs(self):
        for name in ("one", "two", "three"):
            self.schedule(name, dueTime="10h", data=name, repeats=3, schedule="@every 10h")
        names = {f"app/{self.app}/{name}" for name in ("one", "two", "three")}
        self.assertEqual(set(self.jobs()), names)
        self.assertEqual(set(self.jobs("--filter", "app")), names)
        self.assertEqual(self.jobs("--filter", "actor"), {})
        (job,) = json.loads(self.dapr("scheduler", "get", f"app/{self.app}/one", "-o", "json"))
        self.assertEqual((job["schedule"], job["dueTime"], job["repeats"]), ("@every 10h", "10h", 3))
        file = str(self.home / "jobs.bin")
        self.dapr("scheduler", "export", "--output-file", file)
        self.dapr("scheduler", "delete", f"app/{self.app}/one")
        self.assertEqual(set(self.jobs()), names - {f"app/{self.app}/one"})
        self.dapr("scheduler", "delete-all", f"app/{self.app}")
        self.assertEqual(self.jobs(), {})
        self.dapr("scheduler", "import", "--input-file", file)
        self.assertEqual(set(self.jobs()), names)
        found = json.load(urllib.request.urlopen(f"{self.url}/v1.0-alpha1/jobs/one", timeout=10))
        self.assertEqual((found["schedule"], found["data"]["value"]), ("@every 10h", "one"))
        self.dapr("scheduler", "delete-all", "all")
        self.assertEqual(self.jobs(), {})

    def test_jobs_that_came_by_import_are_triggered(self):
        self.schedule("tick", schedule="@every 1s", data="tock")
        self.took("/job/tick")
        file = str(self.home / "jobs.bin")
        self.dapr("scheduler", "export", "--output-file", file)
        self.dapr("scheduler", "delete", f"app/{self.app}/tick")
        count = self.log.read_text().count("took /job/tick")
        self.dapr("scheduler", "import", "--input-file", file)
        wait("triggers", lambda: self.log.read_text().count("took /job/tick") >= count + 2, self.process, self.log)
        self.dapr("scheduler", "delete", f"app/{self.app}/tick")

    def test_workflows(self):
        id = self.name("instance")
        self.flow("run", "waits", "--instance-id", id, "--input", "ahoy")
        wait("custom status", lambda: self.instances()[id]["customStatus"] == "waiting", self.process, self.log)
        self.assertEqual([name.rsplit("/", 1)[0] for name in self.jobs("--filter", "workflow")],
                         [f"workflow/{self.app}/{id}"])
        # This CLI reads histories as actor state, which v1.18 refuses; newer ones call GetInstanceHistory.
        self.assertIsNone(json.loads(self.flow("history", id, "-o", "json")))
        self.flow("suspend", id)
        self.is_now(id, "SUSPENDED")
        self.flow("resume", id)
        self.is_now(id, "RUNNING")
        self.flow("raise-event", f"{id}/answer", "--input", "aye")
        self.is_now(id, "COMPLETED")
        again = self.name("again")
        # Python numbers the actions of a workflow from 1.
        self.flow("rerun", id, "--event-id", "1", "--new-instance-id", again)
        wait("custom status", lambda: self.instances()[again]["customStatus"] == "waiting", self.process, self.log)
        self.flow("terminate", again)
        self.is_now(again, "TERMINATED")
        self.flow("purge", id)
        self.assertNotIn(id, self.instances())
        self.flow("purge", "--all", "-c", f"redis://{self.redis.address}")
        self.assertEqual(self.instances(), {})
        wait("no reminders", lambda: not self.jobs(), self.process, self.log)


def main():
    network.own()
    with fleets.Fleet(sys.argv[1], sentry=False) as fleet:
        try:
            Control.redis = servers.Redis(fleet)
        except servers.Missing as missing:
            print(f"skipped: events, jobs and workflows: {missing}")
            return 0
        fleet.control_plane(client=2379)
        Control.fleet = fleet
        status = home.report(Control)
        if status:
            fleet.keep_logs()
    return status


if __name__ == "__main__":
    sys.exit(main())
