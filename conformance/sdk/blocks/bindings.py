"""Output bindings, and events of input bindings."""

import json
import time
import unittest
import urllib.request

from world import client, component, started


def resources(data):
    files = data / "files"
    return [component("files", "bindings.localstorage", rootPath=files),
            component("tick", "bindings.cron", schedule="@every 200ms", direction="input")]


def events(name):
    """The number of binding events handled by a sidecar's app, from the sidecar's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{started[name].metrics}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    family = "dapr_component_input_binding_count{"
    taken = (line for line in lines if line.startswith(family) and 'success="true"' in line)
    return sum(float(line.rsplit(" ", 1)[1]) for line in taken)


class Bindings(unittest.TestCase):
    """invoke_binding, and the callbacks of the gRPC extension."""

    def test_output(self):
        with client() as dapr:
            made = dapr.invoke_binding("files", "create", "ahoy, there", {"fileName": "log/one.txt"})
            self.assertEqual(json.loads(made.data), {"fileName": "log/one.txt"})
            self.assertEqual((started["data"] / "files/log/one.txt").read_text(), "ahoy, there")
            found = dapr.invoke_binding("files", "get", binding_metadata={"fileName": "log/one.txt"})
            self.assertEqual(found.text(), "ahoy, there")
            dapr.invoke_binding("files", "delete", binding_metadata={"fileName": "log/one.txt"})
            self.assertFalse((started["data"] / "files/log/one.txt").exists())

    def test_errors(self):
        import grpc
        for name, operation, text in (("files", "sing", "does not support operation sing"),
                                      ("nowhere", "get", "couldn't find output binding nowhere")):
            with client() as dapr, self.assertRaises(grpc.RpcError) as raised:
                dapr.invoke_binding(name, operation)
            self.assertEqual(raised.exception.code(), grpc.StatusCode.INTERNAL)
            self.assertIn(text, raised.exception.details())

    def test_events_reach_both_apps(self):
        for name in ("http", "grpc"):
            deadline = time.monotonic() + 20
            while events(name) < 2:
                self.assertLess(time.monotonic(), deadline, f"no events for the app {name}")
                time.sleep(0.1)
