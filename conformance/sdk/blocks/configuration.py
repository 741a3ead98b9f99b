"""Configuration: get, subscribe, unsubscribe."""

import queue
import sqlite3
import time
import unittest

from world import client, component, started

STORE = "settings"
TIMEOUT = 20


def resources(data):
    return [component(STORE, "configuration.sqlite", connectionString=data / "configuration.db",
                      pollInterval="50ms")]


def write(key, value, version="1"):
    """Writes a value like another process."""
    database = sqlite3.connect(started["data"] / "configuration.db", timeout=10)
    with database:
        database.execute("INSERT OR REPLACE INTO configuration (key, value, version) VALUES (?, ?, ?)",
                         (key, value, version))
    database.close()


class Configuration(unittest.TestCase):
    """get_configuration, subscribe_configuration, unsubscribe_configuration."""

    def test_get(self):
        write("read-a", "1", "7")
        write("read-b", "2")
        with client() as dapr:
            items = dapr.get_configuration(STORE, ["read-a", "read-b", "read-none"]).items
            self.assertEqual({key: item.value for key, item in items.items()}, {"read-a": "1", "read-b": "2"})
            self.assertEqual(items["read-a"].version, "7")
            self.assertLessEqual(items.keys(), dapr.get_configuration(STORE, []).items.keys())

    def test_changes_arrive_until_unsubscribed(self):
        write("watched", "before")
        changes = queue.Queue()
        # The SDK sends no API token with this call, so it uses a sidecar without one.
        from dapr.clients import DaprClient
        with DaprClient(address=f"127.0.0.1:{started['grpc'].grpc}") as dapr:
            id = dapr.subscribe_configuration(STORE, ["watched"], lambda id, change: changes.put((id, change)))
            self.assertTrue(id)
            write("other", "never seen")
            write("watched", "after", "2")
            seen, change = changes.get(timeout=TIMEOUT)
            self.assertEqual((seen, list(change.items)), (id, ["watched"]))
            self.assertEqual((change.items["watched"].value, change.items["watched"].version), ("after", "2"))
            self.assertTrue(dapr.unsubscribe_configuration(STORE, id))
            write("watched", "too late")
            time.sleep(0.5)
            self.assertTrue(changes.empty())
            self.assertFalse(dapr.unsubscribe_configuration(STORE, id), "it is over")

    def test_errors(self):
        import grpc
        with client() as dapr, self.assertRaises(grpc.RpcError) as raised:
            dapr.get_configuration("nowhere", ["k"])
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
