#!/usr/bin/env python3
"""Checks that ours and Dapr's sidecars decrypt each other's documents.
usage: conformance/documents.py BIN_DIR [REFERENCE_BIN_DIR]

BIN_DIR has our daprd and sentry; the reference folder has Dapr's daprd and defaults to the cache. Invalid requests must fail alike
in both. The last line is 'N passed, N failed'.
"""

import json
import os
import pathlib
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import fleet as fleets  # noqa: E402  (after the path above)
import suite  # noqa: E402

KEYS = HERE.parent / "crates/components/crypto/tests/data/keys.jwks.json"
SEGMENT = 64 << 10
sides = {}


def component(name, kind, **properties):
    items = "".join(f"  - name: {key}\n    value: '{value}'\n" for key, value in properties.items())
    return (f"apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\n"
            f"spec:\n  type: {kind}\n  version: v1\n  metadata:\n{items}")


def resources(folder):
    """A key set and a folder of keys; Dapr refuses a set with an unknown kind of key."""
    known = [key for key in json.loads(KEYS.read_text())["keys"] if key["kid"] != "x25519"]
    keys = folder / "keys"
    keys.mkdir()
    for key in known:
        (keys / f"{key['kid']}.json").write_text(json.dumps(key))
    (keys / "plain").write_bytes(bytes(range(100, 132)))
    found = folder / "resources"
    found.mkdir()
    (found / "set.yaml").write_text(component("set", "crypto.dapr.jwks", jwks=json.dumps({"keys": known})))
    (found / "folder.yaml").write_text(component("folder", "crypto.dapr.localstorage", path=keys))
    return found


class Side:
    """One of the two sidecars."""

    def __init__(self, sidecar):
        self.base = f"http://{fleets.HOST}:{sidecar.http}/v1.0-alpha1/crypto/"

    def put(self, path, body, headers):
        """Status and body of an answer."""
        request = urllib.request.Request(self.base + path, data=body, method="PUT", headers=headers)
        request.add_header("content-type", "application/octet-stream")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def encrypt(self, store, plain, **headers):
        return self.put(f"{store}/encrypt", plain, {f"dapr-{k.replace('_', '-')}": v for k, v in headers.items()})

    def decrypt(self, store, document, **headers):
        return self.put(f"{store}/decrypt", document, {f"dapr-{k.replace('_', '-')}": v for k, v in headers.items()})


class Documents(unittest.TestCase):
    """One encrypts, the other decrypts."""

    def exchange(self, store, plain, **headers):
        for writer, reader in (("ours", "dapr"), ("dapr", "ours"), ("ours", "ours")):
            with self.subTest(writer=writer, reader=reader, store=store, length=len(plain), **headers):
                status, document = sides[writer].encrypt(store, plain, **headers)
                self.assertEqual(status, 200, document[:300])
                status, read = sides[reader].decrypt(store, document)
                self.assertEqual(status, 200, read[:300])
                self.assertEqual(read, plain)

    def test_of_every_length(self):
        for length in (0, 1, SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT, 3_000_000):
            self.exchange("set", os.urandom(length), key_name="oct32", key_wrap_algorithm="AES")

    def test_with_every_algorithm(self):
        for key, algorithm in (("oct32", "A256KW"), ("oct32", "aes"), ("rsa", "RSA"), ("rsa", "rsa-oaep-256")):
            for cipher in ("aes-gcm", "CHACHA20-POLY1305"):
                self.exchange("set", b"ahoy", key_name=key, key_wrap_algorithm=algorithm,
                              data_encryption_cipher=cipher)

    def test_with_keys_from_files(self):
        for key, algorithm in (("plain", "AES"), ("oct32.json", "AES"), ("rsa.json", "RSA")):
            self.exchange("folder", b"ahoy" * 1000, key_name=key, key_wrap_algorithm=algorithm)

    def test_with_public_and_private_halves(self):
        for writer, reader in (("ours", "dapr"), ("dapr", "ours")):
            status, document = sides[writer].encrypt(
                "set", b"ahoy", key_name="rsa-public", key_wrap_algorithm="RSA", decryption_key_name="rsa")
            self.assertEqual(status, 200, document[:300])
            self.assertEqual(sides[reader].decrypt("set", document), (200, b"ahoy"))

    def test_that_keep_quiet_about_their_key(self):
        for writer, reader in (("ours", "dapr"), ("dapr", "ours")):
            _, document = sides[writer].encrypt(
                "set", b"ahoy", key_name="oct32", key_wrap_algorithm="AES", omit_decryption_key_name="true")
            self.assertEqual(sides[reader].decrypt("set", document, key_name="oct32"), (200, b"ahoy"))
            self.assertEqual(sides[reader].decrypt("set", document)[0], 500)


class Failures(unittest.TestCase):
    """Invalid requests fail alike."""

    def alike(self, what, answers, text=True):
        """Both responses have the same status and code, and the same text if it is part of the contract."""
        seen = {}
        for side, (status, body) in answers.items():
            parsed = json.loads(body)
            seen[side] = (status, parsed["errorCode"], parsed["message"] if text else "")
        with self.subTest(what):
            self.assertEqual(seen["ours"], seen["dapr"])

    def test_requests(self):
        with_key = {"key_name": "oct32", "key_wrap_algorithm": "AES"}
        for what, store, headers, text in (
                ("no headers", "set", {}, True),
                ("no algorithm", "set", {"key_name": "oct32"}, True),
                ("no such component", "other", with_key, True),
                ("no such algorithm", "set", {**with_key, "key_wrap_algorithm": "nope"}, True),
                ("no such cipher", "set", {**with_key, "data_encryption_cipher": "nope"}, True),
                ("no such key", "set", {**with_key, "key_name": "absent"}, False),
                ("a key of another kind", "set", {**with_key, "key_name": "rsa"}, False),
                ("a key outside the folder", "folder", {**with_key, "key_name": "../resources/set.yaml"}, False)):
            self.alike(what, {side: at.encrypt(store, b"x", **headers) for side, at in sides.items()}, text)

    def test_documents(self):
        _, document = sides["dapr"].encrypt("set", b"x" * 100_000, key_name="oct32", key_wrap_algorithm="AES")
        header = document.index(b"\n", document.index(b"\n", 15) + 1)
        for what, wrong in (
                ("nothing", b""), ("no document", b"hello, hello, hello"), ("a header", document[:15]),
                ("another scheme", b"dapr.io/enc/v9" + document[14:]),
                ("no MAC", document[:header - 5]),
                ("a changed MAC", document[:header - 10] + b"AAAAA" + document[header - 5:]),
                ("a changed manifest", document.replace(b'"cph":1', b'"cph":2', 1)),
                ("a changed segment", document[:-1] + bytes([document[-1] ^ 1])),
                ("a missing segment", document[:header + 1 + SEGMENT + 16]),
                ("something behind it", document + b"x")):
            self.alike(what, {side: at.decrypt("set", wrong) for side, at in sides.items()})
        for key in ("absent", "oct16", "rsa"):
            self.alike(key, {side: at.decrypt("set", document, key_name=key) for side, at in sides.items()})


def linked(ours, reference, folder):
    """A folder with Dapr's daprd, and our sentry for it."""
    for name, source in (("daprd", reference), ("sentry", ours)):
        (folder / name).symlink_to((pathlib.Path(source) / name).resolve())
    return folder


def main(ours, reference):
    with tempfile.TemporaryDirectory() as temporary:
        temporary = pathlib.Path(temporary)
        flags = [f"--resources-path={resources(temporary)}"]
        (temporary / "peer").mkdir()
        with fleets.Fleet(ours) as own, fleets.Fleet(linked(ours, reference, temporary / "peer")) as peer:
            sides.update(ours=Side(own.sidecar("ours", flags=flags)), dapr=Side(peer.sidecar("dapr", flags=flags)))
            cases = unittest.TestLoader().loadTestsFromModule(sys.modules["__main__"])
            result = unittest.TextTestRunner(verbosity=2).run(cases)
    failed = len(result.failures) + len(result.errors)
    print(f"{max(result.testsRun - failed, 0)} passed, {failed} failed")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    built = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else suite.cache() / "bin/1.18"
    if not (built / "daprd").exists():
        sys.exit(f"Dapr's daprd is not in {built}: build it with conformance/build reference")
    sys.exit(main(sys.argv[1], built))
