"""CPU time and memory of containers, as kubelets report them."""

import collections
import re
import time

from client import wait

# When the kubelet read the counters, in seconds; seconds of CPU since the container's start, and those in user mode; bytes of
# memory without mapped files. A kubelet counts those for one process of all that map them, often the one that unpacked an image.
Used = collections.namedtuple("Used", "time cpu user memory")
METRICS = ("cpu_usage_seconds_total", "cpu_user_seconds_total", "memory_rss")
LINE = re.compile(rf"container_({'|'.join(METRICS)}){{(.*)}} (\S+) (\d+)")


def containers(client, namespace, wanted):
    """Of some containers, by pod and name: what they used, not older than this call."""
    begun = time.time()

    def fresh():
        found = {key: used for key, used in read(client, namespace).items() if used.time >= begun}
        return found if wanted <= found.keys() else None
    # A kubelet reads the counters every 10 to 20 seconds.
    return wait("the kubelets read the counters", fresh, 60, 1)


def read(client, namespace):
    found = {}
    for node in client.get("nodes"):
        for line in client.kubectl("get", "--raw", f"/api/v1/nodes/{node['metadata']['name']}/proxy/metrics/cadvisor").splitlines():
            if not (match := LINE.match(line)):
                continue
            metric, labels, value, when = match.groups()
            labels = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if labels["namespace"] == namespace and labels["container"]:
                found.setdefault((labels["pod"], labels["container"]), {})[metric] = float(value), int(when) / 1000
    return {key: Used(used[0][1], used[0][0], used[1][0], int(used[2][0])) for key, one in found.items()
            if len(used := [one[metric] for metric in METRICS if metric in one]) == len(METRICS)}
