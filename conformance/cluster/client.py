"""kubectl, Helm, and waiting, for the checks in a cluster."""

import http.client
import json
import subprocess
import time
import urllib.error
import urllib.request

from expect import holds, same
from machine import environment

TIMEOUT = 120


def wait(what, condition, timeout=TIMEOUT, pause=0.3):
    """Waits until a condition holds, and returns what it returned."""
    deadline = time.monotonic() + timeout
    while True:
        problem = "it does not hold"
        try:
            if found := condition():
                return found
        except (OSError, http.client.HTTPException, LookupError, ValueError) as error:
            problem = f"{type(error).__name__} {error}"
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what}: {problem}")
        time.sleep(pause)


class Client:
    """The administrator of a cluster."""

    def __init__(self, config, programs, folder):
        self.config, self.programs, self.folder = config, programs, folder
        self.environment = {**environment(programs), "KUBECONFIG": str(config), "HOME": str(folder)}

    def run(self, *command, timeout=300, given=None):
        """Runs a program with the cluster's kubeconfig; returns its output."""
        done = subprocess.run([str(word) for word in command], env=self.environment, input=given, capture_output=True, text=True,
                              timeout=timeout)
        if done.returncode != 0:
            raise OSError(f"{' '.join(map(str, command))[:300]}: {done.stderr.strip()[-1500:] or done.stdout.strip()[-1500:]}")
        return done.stdout

    def kubectl(self, *words, **options):
        return self.run(self.programs / "kubectl", *words, **options)

    def helm(self, *words, **options):
        return self.run(self.programs / "helm", *words, **options)

    def apply(self, *objects):
        """Applies objects."""
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-",
                     given=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def get(self, *words):
        """An object, or the items of a list."""
        found = json.loads(self.kubectl("get", *words, "-o", "json"))
        return found["items"] if found["kind"] == "List" else found

    def pods(self, namespace, label):
        """The pods of a label, without those that end or have ended."""
        return [one for one in self.get("pods", "-n", namespace, "-l", label)
                if not one["metadata"].get("deletionTimestamp") and one["status"]["phase"] in ("Pending", "Running")]

    def rolled(self, namespace, what, timeout=TIMEOUT):
        """Waits until a workload has all its pods ready."""
        try:
            self.kubectl("rollout", "status", "-n", namespace, what, f"--timeout={timeout}s", timeout=timeout + 30)
        except OSError as error:
            raise AssertionError(f"{error}; {self.explain(namespace)}") from None

    def restart(self, namespace, what):
        """Replaces the pods of a workload, and waits until the old ones are gone."""
        self.kubectl("rollout", "restart", "-n", namespace, what)
        self.rolled(namespace, what)
        name = what.split("/")[1]
        wait(f"old pods of {name} are gone", lambda: not [one for one in self.get("pods", "-n", namespace, "-l", f"app={name}")
                                                         if one["metadata"].get("deletionTimestamp")])

    def explain(self, namespace):
        """Why pods of a namespace are not ready."""
        told = []
        for pod in self.get("pods", "-n", namespace):
            for status in pod["status"].get("containerStatuses", []) + pod["status"].get("initContainerStatuses", []):
                if not status.get("ready") and (state := status.get("state", {})):
                    told.append(f"{pod['metadata']['name']}/{status['name']}: {json.dumps(state)[:300]}")
            if pod["status"]["phase"] == "Pending" and not pod["status"].get("containerStatuses"):
                told.append(f"{pod['metadata']['name']}: {json.dumps(pod['status'].get('conditions', []))[:400]}")
        events = self.kubectl("get", "events", "-n", namespace, "--field-selector=type=Warning", "-o",
                              "jsonpath={range .items[*]}{.involvedObject.name}: {.message}{'\\n'}{end}")
        return "; ".join([*told, *events.splitlines()[-6:]])

    def logs(self, namespace, pod, container):
        return self.kubectl("logs", "-n", namespace, pod, "-c", container, "--tail=-1")


def ask(pod, path, body=None, method=None, port=8080, timeout=30):
    """Calls a pod; returns the status and the body, parsed if it is JSON."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    url = f"http://{pod['status']['podIP']}:{port}{path}"
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        answer = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        text = answer.read()
    try:
        return answer.status, json.loads(text)
    except ValueError:
        return answer.status, text.decode(errors="replace")
