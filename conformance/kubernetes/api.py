"""Calls of an API server, and waiting for conditions."""

import contextlib
import http.client
import json
import ssl
import time

# The address of the pods' bridge: the API server is here, DNS, and apps of pods.
ADDRESS = "10.244.0.1"
TIMEOUT = 90
ADMIN = "admin-of-these-checks"


class Refused(Exception):
    """An error response of the API server: `status`, `answer`."""

    def __init__(self, what, status, answer):
        message = answer.get("message", answer) if isinstance(answer, dict) else answer
        super().__init__(f"{what}: {status} {message}")
        self.status, self.answer, self.message = status, answer, str(message)


def wait(what, condition, timeout=TIMEOUT):
    """Waits until a condition holds, and returns what it returned."""
    deadline = time.monotonic() + timeout
    while True:
        problem = "it does not hold"
        try:
            if found := condition():
                return found
        except (OSError, http.client.HTTPException, Refused, LookupError, ValueError) as error:
            problem = f"{type(error).__name__} {error}"
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what}: {problem}")
        time.sleep(0.05)


class Api:
    """Calls of the API server, as its administrator or with a token."""

    def __init__(self, port, authority):
        self.port, self.authority = port, authority
        self.resources = {}
        # Warnings of the last call.
        self.warnings = []

    def call(self, method, path, body=None, content="application/json", token=ADMIN):
        """Returns the response; raises `Refused` on an error."""
        # The server closes idle connections, so each call opens a new one.
        context = ssl.create_default_context(cafile=self.authority)
        headers = {"authorization": f"Bearer {token}", "content-type": content, "accept": "application/json"}
        with contextlib.closing(http.client.HTTPSConnection(ADDRESS, self.port, context=context, timeout=30)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
        # 299 - "text"
        self.warnings = [value.split(" ", 2)[2].strip('"') for value in answer.headers.get_all("warning", [])]
        try:
            found = json.loads(text)
        except ValueError:
            found = text.decode(errors="replace")
        if not 200 <= answer.status < 300:
            raise Refused(f"{method} {path}", answer.status, found)
        return found

    def get(self, path, **options):
        return self.call("GET", path, **options)

    def post(self, path, body, **options):
        return self.call("POST", path, body, **options)

    def merge(self, path, body, **options):
        """Changes a part of an object."""
        return self.call("PATCH", path, body, "application/merge-patch+json", **options)

    def delete(self, path, **options):
        return self.call("DELETE", path, **options)

    def missing(self, path):
        """Whether there is no such object."""
        try:
            self.get(path)
        except Refused as refused:
            if refused.status == 404:
                return True
            raise
        return False

    def collection(self, version, kind, namespace):
        """The path of the collection of a kind; None if the cluster does not know it."""
        prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self.resources:
            try:
                found = self.get(prefix)["resources"]
            except Refused as refused:
                if refused.status == 404:
                    return None
                raise
            for one in found:
                if "/" not in one["name"]:
                    self.resources[version, one["kind"]] = (one["name"], one["namespaced"])
        if (version, kind) not in self.resources:
            return None
        plural, namespaced = self.resources[version, kind]
        return f"{prefix}/namespaces/{namespace or 'default'}/{plural}" if namespaced else f"{prefix}/{plural}"

    def apply(self, manifest, trial=False):
        """Applies an object as `kubectl apply --server-side` does, and fails on unknown fields."""
        meta = manifest["metadata"]
        collection = self.collection(manifest["apiVersion"], manifest["kind"], meta.get("namespace"))
        if not collection:
            raise Refused(f"apply of {manifest['kind']}", 404, "the cluster does not know the kind")
        query = "fieldManager=checks&force=true&fieldValidation=Strict" + ("&dryRun=All" if trial else "")
        return self.call("PATCH", f"{collection}/{meta['name']}?{query}", manifest, "application/apply-patch+yaml")
