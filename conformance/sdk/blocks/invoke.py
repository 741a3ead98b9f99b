"""Service invocation and its errors."""

import asyncio
import unittest
import urllib.error
import urllib.request

from world import APP_TOKEN, client, started


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
    """Errors that the SDK turns into its exceptions."""

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
