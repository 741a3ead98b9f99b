"""Cryptography: documents that the SDK encrypts and decrypts in a stream."""

import os
import unittest

from world import client, component

STORE = "keys"
KEY = "symmetric"


def resources(data):
    folder = data / "keys"
    folder.mkdir()
    (folder / KEY).write_bytes(bytes(range(32)))
    (folder / "other").write_bytes(bytes(32))
    return [component(STORE, "crypto.dapr.localstorage", path=folder)]


class Cryptography(unittest.TestCase):
    """encrypt and decrypt."""

    def encrypt(self, dapr, plain, **more):
        from dapr.clients.grpc._crypto import EncryptOptions
        options = EncryptOptions(component_name=STORE, key_name=KEY, key_wrap_algorithm="AES", **more)
        return dapr.encrypt(plain, options).read()

    def decrypt(self, dapr, document, key=""):
        from dapr.clients.grpc._crypto import DecryptOptions
        return dapr.decrypt(document, DecryptOptions(component_name=STORE, key_name=key)).read()

    def test_documents_come_back(self):
        # For an empty input the SDK sends no message, not even the options.
        for size in (5, 65536, 1_000_000):
            plain = os.urandom(size)
            for cipher in ("aes-gcm", "chacha20-poly1305"):
                with client() as dapr:
                    document = self.encrypt(dapr, plain, data_encryption_cipher=cipher)
                    self.assertTrue(document.startswith(b"dapr.io/enc/v1\n"))
                    self.assertEqual(self.decrypt(dapr, document), plain)

    def test_a_document_may_keep_quiet_about_its_key(self):
        import grpc
        with client() as dapr:
            document = self.encrypt(dapr, b"x", omit_decryption_key_name=True)
            with self.assertRaises(grpc.RpcError):
                self.decrypt(dapr, document)
            self.assertEqual(self.decrypt(dapr, document, KEY), b"x")

    def test_what_was_tampered_with_is_refused(self):
        import grpc
        with client() as dapr:
            document = self.encrypt(dapr, b"x" * 100)
            for wrong in (document[:-1], document[:-1] + bytes([document[-1] ^ 1]), b"hello"):
                with self.assertRaises(grpc.RpcError) as raised:
                    self.decrypt(dapr, wrong)
                self.assertEqual(raised.exception.code(), grpc.StatusCode.INTERNAL)
            with self.assertRaises(grpc.RpcError):
                self.decrypt(dapr, document, "other")
