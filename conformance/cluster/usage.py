"""CPU time and memory of containers, as kubelets report them."""

import collections
import json
import time

from client import wait

Used = collections.namedtuple("Used", "cpu memory")


def containers(client, namespace, wanted):
    """Of some containers, by pod and name: seconds of CPU since their start, and resident bytes, not older than this call."""
    begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def fresh():
        found = {key: used for key, (when, used) in read(client, namespace).items() if when >= begun}
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
                used = Used(cpu.get("usageCoreNanoSeconds", 0) / 1e9, memory.get("rssBytes") or memory.get("workingSetBytes", 0))
                found[pod["podRef"]["name"], one["name"]] = (cpu.get("time", ""), used)
    return found
