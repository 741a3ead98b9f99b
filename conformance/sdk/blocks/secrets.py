"""Secrets."""

import json
import unittest

from world import client, component

VALUES = {"plain": "sesame", "nested": {"user": "ahoy", "deep": {"er": "x"}}}


def resources(data):
    file = data / "secrets.json"
    file.write_text(json.dumps(VALUES))
    return [component("vault", "secretstores.local.file", secretsFile=file),
            component("environment", "secretstores.local.env")]


class Secrets(unittest.TestCase):
    """get_secret and get_bulk_secret."""

    def test_one(self):
        with client() as dapr:
            self.assertEqual(dapr.get_secret("vault", "plain").secret, {"plain": "sesame"})
            self.assertEqual(dapr.get_secret("vault", "nested:deep:er").secret, {"nested:deep:er": "x"})
            self.assertIn("HOME", dapr.get_secret("environment", "HOME").secret)

    def test_all(self):
        with client() as dapr:
            secrets = dapr.get_bulk_secret("vault").secrets
        self.assertEqual(secrets["nested:user"], {"nested:user": "ahoy"})
        self.assertEqual(len(secrets), 3)

    def test_errors(self):
        import grpc
        with client() as dapr:
            for store, key, code in (("vault", "missing", grpc.StatusCode.INTERNAL),
                                     ("nowhere", "plain", grpc.StatusCode.INVALID_ARGUMENT)):
                with self.assertRaises(grpc.RpcError) as raised:
                    dapr.get_secret(store, key)
                self.assertEqual(raised.exception.code(), code)
