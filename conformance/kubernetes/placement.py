"""Replicas of placement that elect by a Lease: who leads, what that asks of the API server, and with which rights."""

import datetime
import time
import urllib.request

from world import PARTS, SYSTEM, adder, component, holds, same, wait

CHECKS = []
check = adder(CHECKS)
LEASE = "placement.dapr.io"
ACCOUNT = "dapr-placement"
NAMES = [f"{PARTS['placement']}-{number}" for number in range(3)]
# What docs/reference/placement.md promises of a leader that dies, in seconds, with some more for a machine that is busy; and sooner than
# a lease is over that nobody gave back.
FOLLOWED = (7, 20)
AT_ONCE = 7
# Seconds between two renewals, at the least.
RENEWAL = 4
# Types of actors, each of an app of that name.
HOSTS = ("cats", "dogs", "birds", "fish")


def leader(world):
    """The only replica that says that it leads, where the lease says so too."""
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
    """A new app with a type of actors: its own sidecar and those of the types before reach one."""
    world.deploy(kind, actors=[kind], config="appconfig")
    for caller in HOSTS[:HOSTS.index(kind) + 1]:
        path = f"/v1.0/actors/{kind}/of-{caller}/method/turn"
        wait(f"{caller} reaches an actor of {kind}",
             lambda caller=caller, path=path: world.sidecars[caller].ask("PUT", path, {"a": 1})[0] == 200)
        holds(world.apps[kind].seen[f"/actors/{kind}/of-{caller}/method/turn"], f"the app {kind} has seen no turn")


def rights(world):
    """What the account of placement may do here, but for what everybody may: verbs, resources and names."""
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": SYSTEM}}
    told = world.api.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review,
                          token=world.cluster.token(SYSTEM, ACCOUNT))
    return {(verb, f"{resource}.{group}", *rule.get("resourceNames", []))
            for rule in told["status"]["resourceRules"] for group in rule["apiGroups"] for resource in rule["resources"]
            for verb in rule["verbs"] if not group.startswith(("authorization.", "authentication."))}


def asked(world, since=0):
    """Calls of the account of placement, but for those of `rights`."""
    user = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
    return [call for call in world.cluster.calls(since)
            if call["user"]["username"] == user and "selfsubject" not in call["requestURI"]]


@check("placement by a lease: of three replicas one leads, and sidecars reach actors by its table")
def elected(world):
    objects = world.objects({"dapr_placement": {"ha": True, "leaderElection": "lease"}}, ACCOUNT)
    # Replicas that elect in different ways do not know of each other.
    world.fleet.end(NAMES[0])
    for one in objects:
        world.api.apply(one)
    wait("its rights are known to the API server", lambda: rights(world))
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


@check("the leader is killed: another leads once its lease is over, and tells sidecars of a new type of actors")
def killed(world):
    first = wait("one leads", lambda: leader(world))
    world.fleet.kill(first)
    began = time.monotonic()
    second = wait("another leads", lambda: leader(world))
    took = time.monotonic() - began
    holds(second != first and FOLLOWED[0] < took < FOLLOWED[1], f"{second} after {took:.1f} s")
    begin(world, first)
    hosts(world, "dogs")


@check("the leader is told to stop: another leads at once, and tells sidecars of a new type of actors")
def stopped(world):
    first = wait("one leads", lambda: leader(world))
    began = time.monotonic()
    world.fleet.end(first)
    second = wait("another leads", lambda: leader(world))
    took = time.monotonic() - began
    holds(second != first and took < AT_ONCE, f"{second} after {took:.1f} s")
    begin(world, first)
    hosts(world, "birds")


@check("at rest the leader renews its lease as often as docs/reference/placement.md says, and the others ask nothing")
def rest(world):
    first = wait("one leads", lambda: leader(world))
    # One that has just begun looks at the lease, and opens its watch.
    since = world.cluster.audit.stat().st_size
    wait("two renewals, and nothing between", lambda: [call["verb"] for call in asked(world, since)][-2:] == ["update"] * 2)
    since = world.cluster.audit.stat().st_size
    wait("five renewals", lambda: len(asked(world, since)) >= 5)
    calls = asked(world, since)
    same({(call["verb"], call["requestURI"].rpartition("/")[2]) for call in calls}, {("update", LEASE)}, "what they ask")
    times = [datetime.datetime.fromisoformat(call["requestReceivedTimestamp"].replace("Z", "+00:00")) for call in calls]
    took = (times[-1] - times[0]).total_seconds()
    # What the way of a call takes is not always the same.
    holds(took > RENEWAL * (len(times) - 1) - 0.5, f"{len(times)} renewals within {took:.1f} s")
    same(leader(world), first, "who leads")


@check("placement has the rights on its lease that it uses, and no other right")
def enough(world):
    leases = "leases.coordination.k8s.io"
    wanted = {("create", leases), *((verb, leases, LEASE) for verb in ("get", "watch", "update"))}
    same(rights(world), wanted, "rights")
    same({call["verb"] for call in asked(world)}, {verb for verb, *_ in wanted}, "verbs of its calls")


@check("back to Raft, when all replicas with a lease have ended: the one that there is leads, and asks the API server nothing")
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
