"""The APIs about the sidecar itself."""

import json
import unittest
import urllib.request

from world import TOKEN, client, started


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
