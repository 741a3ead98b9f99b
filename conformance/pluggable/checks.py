"""Pluggable components, through a sidecar. usage: checks.py BIN_DIR COMPONENTS

COMPONENTS is the program built from peer/. Its socket `ship` has a state store and bindings, `chest` a secret store.
"""

import http.server
import pathlib
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import fleet as fleets  # noqa: E402  (after the path above)

TIMEOUT = 20
COMPONENT = """apiVersion: dapr.io/v1alpha1
kind: Component
metadata:
  name: {name}
spec:
  ignoreErrors: true
  type: {kind}
  version: v1
  metadata:
"""
ITEM = "  - name: {}\n    value: {!r}\n"
world = {}


class App(http.server.BaseHTTPRequestHandler):
    """Responds to events in capitals; refuses `bad` ones."""

    protocol_version = "HTTP/1.1"

    def do_OPTIONS(self):
        self.answer(200, b"")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        world["events"].append((self.path, body.decode(), dict(self.headers.items())))
        self.answer(500 if body == b"bad" else 200, body.upper())

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def setUpModule():
    app = http.server.ThreadingHTTPServer(("127.0.0.1", 0), App)
    threading.Thread(target=app.serve_forever, daemon=True).start()
    unittest.addModuleCleanup(app.server_close)
    unittest.addModuleCleanup(app.shutdown)
    # A socket path has at most 107 bytes.
    sockets = tempfile.TemporaryDirectory(prefix="ship-", dir="/tmp")
    unittest.addModuleCleanup(sockets.cleanup)
    fleet = fleets.Fleet(sys.argv[1], sentry=False)
    fleet.__enter__()
    unittest.addModuleCleanup(fleet.__exit__, None, None, None)
    world.update(fleet=fleet, sockets=pathlib.Path(sockets.name), events=[])
    try:
        start_components()
        resources = fleet.dir / "resources"
        resources.mkdir()
        for name, kind, items in (
            ("one", "state.ship", {"colour": "red"}),
            ("two", "state.ship", {"colour": "blue"}),
            ("vault", "secretstores.chest", {"anchor": "iron", "sail": "white"}),
            ("horn", "bindings.ship", {"direction": "output", "loud": "very"}),
            ("bell", "bindings.ship", {"direction": "input", "route": "/rung"}),
        ):
            lines = "".join(ITEM.format(*item) for item in items.items())
            (resources / f"{name}.yaml").write_text(COMPONENT.format(name=name, kind=kind) + lines)
        world["sidecar"] = fleet.sidecar(
            "ship", app.server_port, env={"DAPR_COMPONENTS_SOCKETS_FOLDER": sockets.name},
            flags=[f"--resources-path={resources}"])
    except BaseException:
        fleet.stop()
        raise


def start_components():
    folder = world["sockets"]
    for socket in folder.iterdir():
        socket.unlink()
    fleet = world["fleet"]
    fleet.start("app-components", [sys.argv[2]], {"DAPR_COMPONENT_SOCKETS_FOLDER": str(folder)})
    fleet.until("app-components", lambda: len(list(folder.iterdir())) == 2, "its sockets")


def ask(method, path, body=None, headers=()):
    return world["sidecar"].ask(method, path, body, headers)


class State(unittest.TestCase):
    def save(self, store, *items):
        self.assertEqual(ask("POST", f"/v1.0/state/{store}", list(items))[0], 204)

    def value(self, store, key):
        status, _, value = ask("GET", f"/v1.0/state/{store}/{key}")
        return value if status == 200 else None

    def test_a_value_lives_from_save_to_delete(self):
        self.save("one", {"key": "k", "value": {"a": [1, "<b>"]}})
        self.assertEqual(self.value("one", "k"), {"a": [1, "<b>"]})
        self.assertEqual(ask("DELETE", "/v1.0/state/one/k")[0], 204)
        self.assertIsNone(self.value("one", "k"))

    def test_components_of_one_process_are_apart(self):
        self.save("one", {"key": "apart", "value": 1})
        self.assertIsNone(self.value("two", "apart"))

    def test_bulk(self):
        self.save("one", *({"key": f"b{n}", "value": n} for n in range(3)))
        status, _, items = ask("POST", "/v1.0/state/one/bulk", {"keys": ["b2", "none", "b0"]})
        self.assertEqual((status, [item.get("data") for item in items]), (200, [2, None, 0]))

    def test_a_transaction(self):
        self.save("one", {"key": "gone", "value": 1})
        status, _, _ = ask("POST", "/v1.0/state/one/transaction", {"operations": [
            {"operation": "upsert", "request": {"key": "new", "value": "x"}},
            {"operation": "delete", "request": {"key": "gone"}}]})
        self.assertEqual((status, self.value("one", "new"), self.value("one", "gone")), (204, "x", None))

    def test_a_stale_etag(self):
        self.save("one", {"key": "e", "value": 1})
        _, headers, _ = ask("GET", "/v1.0/state/one/e")
        self.save("one", {"key": "e", "value": 2, "etag": headers["etag"], "options": {"concurrency": "first-write"}})
        # The SDK reports it like any other error.
        status, _, error = ask("DELETE", "/v1.0/state/one/e", headers={"If-Match": headers["etag"]}.items())
        self.assertEqual((status, error["errorCode"]), (500, "ERR_STATE_DELETE"))
        self.assertIn("etag", error["message"])
        self.assertEqual(self.value("one", "e"), 2)

    def test_a_value_expires(self):
        self.save("one", {"key": "t", "value": 1, "metadata": {"ttlInSeconds": "1"}})
        _, headers, _ = ask("GET", "/v1.0/state/one/t")
        self.assertIn("metadata.ttlexpiretime", {name.lower() for name in headers})
        until(lambda: self.value("one", "t") is None)

    def test_queries_that_the_store_does_not_have(self):
        status, _, error = ask("POST", "/v1.0-alpha1/state/one/query", {"filter": {"EQ": {"a": 1}}})
        self.assertEqual((status, error["errorCode"]), (500, "ERR_STATE_QUERY"))
        self.assertIn("rpc error: code = Unimplemented", error["message"])

    def test_capabilities(self):
        _, _, metadata = ask("GET", "/v1.0/metadata")
        components = {component["name"]: component for component in metadata["components"]}
        self.assertEqual(components["one"]["type"], "state.ship")
        self.assertLessEqual({"ETAG", "TRANSACTIONAL", "TTL", "ACTOR"}, set(components["one"]["capabilities"]))


class Secrets(unittest.TestCase):
    def test_one(self):
        status, _, secret = ask("GET", "/v1.0/secrets/vault/anchor")
        self.assertEqual((status, secret), (200, {"anchor": "iron"}))

    def test_all(self):
        status, _, secrets = ask("GET", "/v1.0/secrets/vault/bulk")
        self.assertEqual((status, secrets), (200, {"anchor": {"anchor": "iron"}, "sail": {"sail": "white"}}))

    def test_none(self):
        status, _, error = ask("GET", "/v1.0/secrets/vault/rum")
        self.assertEqual((status, error["errorCode"]), (500, "ERR_SECRET_GET"))
        self.assertIn("rpc error: code = NotFound desc = there is no rum in the chest", error["message"])


def need_bindings(case):
    """A build without the block logs that at start and continues."""
    _, _, metadata = ask("GET", "/v1.0/metadata")
    if not any(component["name"] == "horn" for component in metadata["components"]):
        case.skipTest("this sidecar has no bindings")


class Bindings(unittest.TestCase):
    def setUp(self):
        need_bindings(self)

    def invoke(self, operation, data):
        return ask("POST", "/v1.0/bindings/horn", {"operation": operation, "data": data})

    def test_output(self):
        status, headers, data = self.invoke("echo", {"a": 1})
        self.assertEqual((status, data, headers["metadata.loud"]), (200, {"a": 1}, "very"))

    def test_input_takes_the_answer_of_the_app_back(self):
        status, _, data = self.invoke("say", "ahoy")
        self.assertEqual((status, data), (200, "AHOY"))
        path, body, headers = next(event for event in world["events"] if event[1] in ("ahoy", '"ahoy"'))
        self.assertEqual((path, headers.get("Tide") or headers.get("tide")), ("/rung", "high"))

    def test_an_unknown_operation(self):
        status, _, error = self.invoke("sing", "ahoy")
        self.assertEqual((status, error["errorCode"]), (500, "ERR_INVOKE_OUTPUT_BINDING"))


class ZRestart(unittest.TestCase):
    """Runs last, in this order, because the stores lose their data. Dapr's sidecar neither initialises a restarted process nor
    reads its events."""

    def test_a_process_that_was_killed_and_started_again(self):
        process = world["fleet"].processes.pop("app-components")
        process.kill()
        process.wait()
        status, _, error = ask("GET", "/v1.0/state/one/k")
        self.assertEqual((status, error["errorCode"]), (500, "ERR_STATE_GET"))
        start_components()
        until(lambda: ask("POST", "/v1.0/state/one", [{"key": "k", "value": "back"}])[0] == 204)
        self.assertEqual(ask("GET", "/v1.0/state/one/k")[2], "back")

    def test_b_it_knows_its_properties_again(self):
        self.assertEqual(ask("GET", "/v1.0/secrets/vault/anchor")[2], {"anchor": "iron"})

    def test_c_its_events_are_read_again(self):
        need_bindings(self)
        until(lambda: ask("POST", "/v1.0/bindings/horn", {"operation": "say", "data": "again"})[2] == "AGAIN")


def until(condition):
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("timed out")
        time.sleep(0.05)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    result = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result
    failed, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    print(f"{result.testsRun - failed - skipped} passed, {failed} failed, {skipped} skipped")
    sys.exit(0 if result.wasSuccessful() else 1)
