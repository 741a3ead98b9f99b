"""Calls at a fixed rate by an app through its sidecar."""

import time

from client import ask, holds


class Load:
    """Several kinds of calls from a pod; a context manager, at whose end no more than `allowed` may have failed."""

    def __init__(self, pod, allowed=0, **kinds):
        self.pod, self.allowed, self.kinds, self.found = pod, allowed, kinds, {}

    def __enter__(self):
        self.begun = time.monotonic()
        for name, order in self.kinds.items():
            status, said = ask(self.pod, f"/loads/{name}", order)
            holds(status == 200, f"the load {name}: {status} {said}")
        return self

    def __exit__(self, *exception):
        # Calls after the last change count too.
        time.sleep(2)
        seconds = time.monotonic() - self.begun
        for name in self.kinds:
            self.found[name] = ask(self.pod, f"/loads/{name}", method="DELETE", timeout=60)[1]
        if exception[0] is None:
            failed = sum(one["failed"] for one in self.found.values())
            slow = [name for name, one in self.found.items() if one["sent"] < 0.9 * self.kinds[name]["rate"] * seconds]
            holds(failed <= self.allowed and not slow, f"in {seconds:.0f} s: {'; '.join(self.rows())}")

    def rows(self):
        """A line for each kind, with the causes of failures."""
        for name, one in self.found.items():
            line = f"{name}: {one['sent']} calls, {one['failed']} failed, the slowest {one['slowest']} ms"
            causes = sorted(one["causes"].items(), key=lambda pair: -pair[1])[:4]
            yield line + "".join(f"; {count} times {cause[:300]}" for cause, count in causes)

    def told(self):
        return "; ".join(self.rows())


def invocation(app, rate=100):
    return {"method": "POST", "path": f"/v1.0/invoke/{app}/method/echo", "body": "{}", "rate": rate}


def publication(topic, rate=20):
    return {"method": "POST", "path": f"/v1.0/publish/events/{topic}", "body": "{}", "rate": rate}


def actors(kind, rate=50, many=40):
    return {"method": "PUT", "path": f"/v1.0/actors/{kind}/#/method/sail", "body": "{}", "rate": rate, "many": many}
