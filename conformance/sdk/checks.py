"""What an app written with Dapr's Python SDK does first, against sentry and two sidecars. usage: checks.py BIN_DIR"""

import asyncio
import json
import os
import pathlib
import sys
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import fleet as fleets  # noqa: E402  (the path above has to come first)

HERE = pathlib.Path(__file__).resolve().parent
TOKEN = "only-for-this-check"
APP_TOKEN = "from-the-sidecar"
started = {}


def setUpModule():
    """Three sidecars: one beside each app, and one without an app that asks for an API token."""
    fleet = fleets.Fleet(sys.argv[1])
    fleet.__enter__()
    unittest.addModuleCleanup(fleet.__exit__, None, None, None)
    try:
        start(fleet)
    except BaseException:
        fleet.stop()
        raise


def start(fleet):
    http_port, grpc_port = fleets.free_ports(2)
    fleet.app("app-http", [sys.executable, HERE / "app_http.py", str(http_port)], http_port)
    fleet.app("app-grpc", [sys.executable, HERE / "app_grpc.py", str(grpc_port)], grpc_port)
    started.update(
        fleet=fleet,
        http=fleet.sidecar("http", http_port, env={"APP_API_TOKEN": APP_TOKEN}),
        grpc=fleet.sidecar("grpc", grpc_port, "grpc"),
        caller=fleet.sidecar("caller", env={"DAPR_API_TOKEN": TOKEN}),
    )
    # The SDK reads its settings once, when it is imported.
    os.environ.update(
        DAPR_HTTP_PORT=str(started["caller"].http),
        DAPR_GRPC_PORT=str(started["caller"].grpc),
        DAPR_API_TOKEN=TOKEN,
        DAPR_HEALTH_TIMEOUT="20",
    )


def client(protocol):
    """An SDK client of the caller's sidecar that invokes over the protocol named."""
    from dapr.clients import DaprClient
    from dapr.conf import settings
    settings.DAPR_API_METHOD_INVOCATION_PROTOCOL = protocol
    return DaprClient()


class Invocation(unittest.TestCase):
    """invoke_method in its four combinations."""

    def test_http_to_http_app(self):
        with client("http") as dapr:
            answer = dapr.invoke_method(
                started["http"].app_id, "echo", "ahoy", content_type="text/plain", http_verb="PUT",
                http_querystring=(("depth", "3 m"),), metadata=(("x-tide", "high"),))
        seen = answer.json()
        self.assertEqual((answer.status_code, seen["method"], seen["text"]), (200, "PUT", "ahoy"))
        self.assertEqual(seen["query"], {"depth": "3 m"})
        self.assertEqual(seen["headers"]["x-tide"], "high")
        self.assertEqual(seen["headers"]["content-type"], "text/plain")
        self.assertEqual(seen["headers"]["dapr-caller-app-id"], started["caller"].app_id)
        self.assertEqual(seen["headers"]["dapr-callee-app-id"], started["http"].app_id)
        self.assertEqual(seen["headers"]["dapr-api-token"], APP_TOKEN, "the app's token, not the caller's")

    def test_http_to_grpc_app(self):
        with client("http") as dapr:
            answer = dapr.invoke_method(started["grpc"].app_id, "echo", b"ahoy", "text/plain", http_verb="POST")
        self.assertEqual((answer.status_code, answer.json()["text"]), (200, "ahoy"))
        self.assertEqual(answer.content_type, "application/json")

    def test_grpc_to_http_app(self):
        with client("grpc") as dapr:
            answer = dapr.invoke_method(
                started["http"].app_id, "echo", b"ahoy", "text/plain", metadata=(("x-tide", "low"),),
                http_verb="POST", http_querystring=(("depth", "3 m"),))
        seen = answer.json()
        self.assertEqual((seen["method"], seen["text"], seen["query"]), ("POST", "ahoy", {"depth": "3 m"}))
        self.assertEqual(seen["headers"]["x-tide"], "low")

    def test_grpc_to_grpc_app(self):
        with client("grpc") as dapr:
            answer = dapr.invoke_method(
                started["grpc"].app_id, "echo", b"ahoy", "text/plain", metadata=(("x-tide", "low"),))
        seen = answer.json()
        self.assertEqual((seen["text"], seen["content_type"]), ("ahoy", "text/plain"))
        self.assertEqual(seen["metadata"]["x-tide"], ["low"])
        self.assertEqual(seen["metadata"]["dapr-caller-app-id"], [started["caller"].app_id])
        self.assertIn("app-grpc", answer.headers.get("x-answered-by", ()))

    def test_every_verb(self):
        with client("http") as dapr:
            for verb in ("GET", "POST", "PUT", "DELETE", "PATCH"):
                answer = dapr.invoke_method(started["http"].app_id, "echo", http_verb=verb)
                self.assertEqual(answer.json()["method"], verb)

    def test_bytes_survive(self):
        body = bytes(range(256)) * 4096
        for protocol in ("http", "grpc"):
            with client(protocol) as dapr:
                for app in ("http", "grpc"):
                    answer = dapr.invoke_method(
                        started[app].app_id, "bytes", body, "application/octet-stream", http_verb="POST")
                    self.assertEqual(answer.data, body, f"{protocol} to {app} app")

    def test_many_at_once(self):
        from dapr.aio.clients import DaprClient
        from dapr.conf import settings
        settings.DAPR_API_METHOD_INVOCATION_PROTOCOL = "http"

        async def all_at_once():
            async with DaprClient() as dapr:
                calls = (dapr.invoke_method(started["http"].app_id, "echo", f"number {n}", http_verb="POST")
                         for n in range(100))
                return [answer.json()["text"] for answer in await asyncio.gather(*calls)]
        self.assertEqual(asyncio.run(all_at_once()), [f"number {n}" for n in range(100)])


class Errors(unittest.TestCase):
    """What the SDK turns into its own exceptions."""

    def test_status_of_an_http_app(self):
        from dapr.clients.exceptions import DaprHttpError
        with client("http") as dapr, self.assertRaises(DaprHttpError) as raised:
            dapr.invoke_method(started["http"].app_id, "status/418", http_verb="GET")
        self.assertEqual(raised.exception.as_dict()["status_code"], 418)

    def test_status_of_an_http_app_over_grpc(self):
        import grpc
        with client("grpc") as dapr, self.assertRaises(grpc.RpcError) as raised:
            dapr.invoke_method(started["http"].app_id, "status/404", http_verb="GET")
        self.assertEqual(raised.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_unknown_method_of_a_grpc_app(self):
        import grpc
        with client("grpc") as dapr, self.assertRaises(grpc.RpcError) as raised:
            dapr.invoke_method(started["grpc"].app_id, "nowhere", b"")
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNIMPLEMENTED)

    def test_unknown_app(self):
        from dapr.clients.exceptions import DaprHttpError
        with client("http") as dapr, self.assertRaises(DaprHttpError) as raised:
            dapr.invoke_method(f"nobody-{started['fleet'].suffix}", "echo", http_verb="GET")
        self.assertEqual(raised.exception.as_dict()["status_code"], 500)
        self.assertIn("ERR_DIRECT_INVOKE", str(raised.exception.as_dict()))

    def test_wrong_token(self):
        import grpc
        from dapr.proto import api_service_v1, api_v1
        with grpc.insecure_channel(f"127.0.0.1:{started['caller'].grpc}") as channel:
            for metadata in ((), (("dapr-api-token", "wrong"),)):
                with self.assertRaises(grpc.RpcError) as raised:
                    api_service_v1.DaprStub(channel).GetMetadata(api_v1.GetMetadataRequest(), metadata=metadata)
                self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAUTHENTICATED)
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{started['caller'].http}/v1.0/metadata")
        refused.exception.close()
        self.assertEqual(refused.exception.code, 401)


class Sidecars(unittest.TestCase):
    """The APIs about the sidecar itself."""

    def test_wait(self):
        with client("http") as dapr:
            dapr.wait(5)

    def test_metadata(self):
        with client("http") as dapr:
            dapr.set_metadata("anchor", "dropped")
            metadata = dapr.get_metadata()
        self.assertEqual(metadata.application_id, started["caller"].app_id)
        self.assertEqual(metadata.extended_metadata["anchor"], "dropped")
        self.assertIn("daprRuntimeVersion", metadata.extended_metadata)

    def test_metadata_over_http_is_the_same(self):
        with client("http") as dapr:
            dapr.set_metadata("sail", "set")
        request = urllib.request.Request(
            f"http://127.0.0.1:{started['caller'].http}/v1.0/metadata", headers={"dapr-api-token": TOKEN})
        with urllib.request.urlopen(request) as answer:
            metadata = json.load(answer)
        self.assertEqual((metadata["id"], metadata["extended"]["sail"]), (started["caller"].app_id, "set"))

    def test_shutdown(self):
        from dapr.clients import DaprClient
        doomed = started["fleet"].sidecar("doomed", env={"DAPR_API_TOKEN": TOKEN})
        with DaprClient(address=f"127.0.0.1:{doomed.grpc}") as dapr:
            dapr.shutdown()
        self.assertEqual(started["fleet"].end("daprd-doomed", ask=False), 0)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    result = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(0 if result.wasSuccessful() else 1)
