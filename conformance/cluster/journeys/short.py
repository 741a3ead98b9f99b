"""One app calls another through both sidecars."""

from client import ask, same, wait
from cluster import namespace


def run(cluster):
    """Yields the name of each check and its function."""
    yield "the chart is installed and every part is ready", lambda: (cluster.install(), cluster.settled())
    yield "a pod gets its sidecar and calls another pod", lambda: call(cluster)


def call(cluster):
    client = cluster.client
    client.apply(namespace("shop"), cluster.place("caller"), cluster.place("callee", node=cluster.nodes[-1].name))
    for name in ("caller", "callee"):
        client.rolled("shop", f"deployment/{name}")
    pod = cluster.only("caller")
    same(sorted(one["name"] for one in pod["spec"]["containers"]), ["app", "daprd"], "containers")
    answer = wait("the call succeeds", lambda: succeeded(ask(pod, "/sidecar/v1.0/invoke/callee/method/echo", {"hello": 1})))
    same(answer, {"hello": 1}, "the answer")


def succeeded(answer):
    status, body = answer
    if status != 200:
        raise ValueError(f"{status} {body}")
    return body
