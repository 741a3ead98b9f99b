"""CPU time and memory of containers, as kubelets report them."""

import calendar
import collections
import json
import time

from client import wait

# When the kubelet read the counters, in seconds; seconds of CPU since the container's start; bytes of memory without mapped files.
Used = collections.namedtuple("Used", "time cpu memory")


def containers(client, namespace, wanted):
    """Of some containers, by pod and name: what they used, not older than this call."""
    begun = int(time.time())

    def fresh():
        found = {key: used for key, used in read(client, namespace).items() if used.time >= begun}
        return found if wanted <= found.keys() else None
    # A kubelet reads the counters every 10 to 20 seconds.
    return wait("the kubelets read the counters", fresh, 60, 1)


def read(client, namespace):
    found = {}
    for node in client.get("nodes"):
        path = f"/api/v1/nodes/{node['metadata']['name']}/proxy/stats/summary?only_cpu_and_memory=true"
        for pod in json.loads(client.kubectl("get", "--raw", path))["pods"]:
            if pod["podRef"]["namespace"] != namespace:
                continue
            for one in pod.get("containers", []):
                cpu, memory = one.get("cpu", {}), one.get("memory", {})
                when = calendar.timegm(time.strptime(cpu["time"], "%Y-%m-%dT%H:%M:%SZ")) if "time" in cpu else 0
                found[pod["podRef"]["name"], one["name"]] = Used(
                    when, cpu.get("usageCoreNanoSeconds", 0) / 1e9, memory.get("rssBytes") or memory.get("workingSetBytes", 0))
    return found
