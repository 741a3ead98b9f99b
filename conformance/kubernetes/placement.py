"""Placement replicas with leader election by a Lease: leadership, API calls and permissions."""

import datetime
import time
import urllib.request

from world import PARTS, SYSTEM, adder, component, holds, same, wait

CHECKS = []
check = adder(CHECKS)
LEASE = "placement.dapr.io"
ACCOUNT = "dapr-placement"
NAMES = [f"{PARTS['placement']}-{number}" for number in range(3)]
# The failover time promised in docs/reference/placement.md for a dead leader, in seconds, plus slack for a busy machine; and a time
# below the expiry of a lease that was not released.
FOLLOWED = (7, 20)
AT_ONCE = 7
# Minimum seconds between two renewals.
RENEWAL = 4
# Actor types, each of an app of that name.
HOSTS = ("cats", "dogs", "birds", "fish")


def leader(world):
    """The only replica that reports to lead, if the lease agrees."""
    found = []
    for name in NAMES:
        if name in world.fleet.processes:
            address = world.cluster.address(world.pods[name])
            with urllib.request.urlopen(f"http://{address}:9090/metrics", timeout=5) as answer:
                found += [name] * ("dapr_placement_leader_status 1" in answer.read().decode().splitlines())
    holds(len(found) < 2, f"several lead: {found}")
    return found[0] if found and world.holder(LEASE).startswith(f"{found[0]}_") else None


def begin(world, name):
    world.run(name)
    world.healthy(name)


def hosts(world, kind):
    """Creates an app with a new actor type; its sidecar and the earlier ones reach an actor."""
    world.deploy(kind, actors=[kind], config="appconfig")
    for caller in HOSTS[:HOSTS.index(kind) + 1]:
        path = f"/v1.0/actors/{kind}/of-{caller}/method/turn"
        wait(f"{caller} reaches an actor of {kind}",
             lambda caller=caller, path=path: world.sidecars[caller].ask("PUT", path, {"a": 1})[0] == 200)
        holds(world.apps[kind].seen[f"/actors/{kind}/of-{caller}/method/turn"], f"the app {kind} has seen no turn")


def rights(world):
    """The permissions of placement's account, except those of all accounts: verbs, resources and names."""
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": SYSTEM}}
    told = world.api.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review,
                          token=world.cluster.token(SYSTEM, ACCOUNT))
    return {(verb, f"{resource}.{group}", *rule.get("resourceNames", []))
            for rule in told["status"]["resourceRules"] for group in rule["apiGroups"] for resource in rule["resources"]
            for verb in rule["verbs"] if not group.startswith(("authorization.", "authentication."))}


def asked(world, since=0):
    """Calls of placement's account, except those of `rights`."""
    user = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
    return [call for call in world.cluster.calls(since)
            if call["user"]["username"] == user and "selfsubject" not in call["requestURI"]]


@check("placement with a lease: one of three replicas leads, and sidecars reach actors by its table")
def elected(world):
    objects = world.objects({"dapr_placement": {"ha": True, "leaderElection": "lease"}}, ACCOUNT)
    # Replicas with different election modes do not know each other.
    world.fleet.end(NAMES[0])
    for one in objects:
        world.api.apply(one)
    wait("its permissions have reached the API server", lambda: rights(world))
    for number, name in enumerate(NAMES):
        same(world.create("placement", objects, number), name, "a pod")
    world.cluster.publish()
    for name in NAMES:
        world.run(name)
    for name in NAMES:
        world.healthy(name)
    wait("one leads", lambda: leader(world))
    world.api.apply(component("turns", "state.in-memory", scopes=HOSTS, actorStateStore="true"))
    hosts(world, "cats")


@check("the leader is killed: another one leads once its lease expires, and publishes a new actor type")
def killed(world):
    first = wait("one leads", lambda: leader(world))
    world.fleet.kill(first)
    began = time.monotonic()
    second = wait("another leads", lambda: leader(world))
    took = time.monotonic() - began
    holds(second != first and FOLLOWED[0] < took < FOLLOWED[1], f"{second} after {took:.1f} s")
    begin(world, first)
    hosts(world, "dogs")


@check("the leader is stopped: another one leads at once, and publishes a new actor type")
def stopped(world):
    first = wait("one leads", lambda: leader(world))
    began = time.monotonic()
    world.fleet.end(first)
    second = wait("another leads", lambda: leader(world))
    took = time.monotonic() - began
    holds(second != first and took < AT_ONCE, f"{second} after {took:.1f} s")
    begin(world, first)
    hosts(world, "birds")


@check("at rest, the leader renews its lease as often as docs/reference/placement.md says, and the others make no calls")
def rest(world):
    first = wait("one leads", lambda: leader(world))
    # A replica that has just started reads the lease and opens its watch.
    since = world.cluster.audit.stat().st_size
    wait("two renewals, and nothing between", lambda: [call["verb"] for call in asked(world, since)][-2:] == ["update"] * 2)
    since = world.cluster.audit.stat().st_size
    wait("five renewals", lambda: len(asked(world, since)) >= 5)
    calls = asked(world, since)
    same({(call["verb"], call["requestURI"].rpartition("/")[2]) for call in calls}, {("update", LEASE)}, "their calls")
    times = [datetime.datetime.fromisoformat(call["requestReceivedTimestamp"].replace("Z", "+00:00")) for call in calls]
    took = (times[-1] - times[0]).total_seconds()
    # Allows for variation of the calls' latency.
    holds(took > RENEWAL * (len(times) - 1) - 0.5, f"{len(times)} renewals within {took:.1f} s")
    same(leader(world), first, "who leads")


@check("placement has exactly the permissions on its lease that it uses")
def enough(world):
    leases = "leases.coordination.k8s.io"
    wanted = {("create", leases), *((verb, leases, LEASE) for verb in ("get", "watch", "update"))}
    same(rights(world), wanted, "rights")
    same({call["verb"] for call in asked(world)}, {verb for verb, *_ in wanted}, "verbs of its calls")


@check("back to Raft after all replicas with a lease have ended: the new one leads, and makes no API calls")
def back(world):
    for name in NAMES:
        world.remove(name)
    for one in world.default:
        if one["metadata"]["name"].startswith(ACCOUNT):
            world.api.apply(one)
    for kind in ("rolebindings", "roles"):
        world.api.delete(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SYSTEM}/{kind}/{ACCOUNT}")
    since = world.cluster.audit.stat().st_size
    world.create("placement", world.default)
    world.cluster.publish()
    begin(world, NAMES[0])
    hosts(world, "fish")
    same(asked(world, since), [], "what it asked")
    world.dismiss(*HOSTS)
