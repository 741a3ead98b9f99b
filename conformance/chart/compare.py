"""Compares what two charts render, object by object. What is different on purpose is listed here, with the reason."""

import json
import re

# Values that Dapr's chart does not have, or fails for.
ONLY_HERE = ("only here", "another's actors", "namespaced elsewhere", "placement by a lease", "other ports",
             "large numbers", "small numbers", "lists as texts", "jobs in PostgreSQL")
# Objects that are not rendered here: roles without rules, and whoever is switched off has no rights.
LEFT_OUT = {
    ("ClusterRole", "dapr-placement"), ("ClusterRoleBinding", "dapr-placement"),
    ("Role", "dapr-placement"), ("RoleBinding", "dapr-placement"),
}
WITHOUT_INJECTOR = {(kind, "dapr-injector") for kind in
                    ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")}
# Objects that are rendered only here: rights in one namespace have a role of their own, and every kind of high
# availability has a budget.
ADDED = {
    ("Role", "dapr-operator-admin"), ("RoleBinding", "dapr-operator-admin"),
    ("PodDisruptionBudget", "dapr-placement-server-disruption-budget"),
}
# Rights that are given only here: without them sentry knows no pod where rights are a namespace's.
MORE_RIGHTS = {
    ("dapr-sentry", ("dapr-system", "", "pods", "", "get")),
    # Installed again, the definition is corrected again.
    *(("dapr-operator", ("", "apiextensions.k8s.io", "customresourcedefinitions", "subscriptions.dapr.io", verb))
      for verb in ("list", "watch")),
}
# Differences by object and place, as regular expressions, each with its reason.
EXPECTED = [
    (r".*", r"(/spec/template)?(/metadata/labels|/spec/template/metadata/labels)/app\.kubernetes\.io/version",
     "the chart has a version of its own"),
    (r"PodDisruptionBudget/.*", r"/spec/selector/matchLabels/.*",
     "a budget for the pods of one version counts too few while another is rolled out"),
    (r"(Cluster)?Role(Binding)?/.*", r".*", "see `rights`"),
    (r".*/dapr-scheduler-server", r".*/args/--etcd-(compaction|snapshot|backend|max-txn).*",
     "the suite's version of Dapr is older than the contract"),
    (r".*/dapr-scheduler-server", r"/spec/volumeClaimTemplates.*", "likewise"),
    (r".*/dapr-operator", r".*/ports/19443", "the webhook's port is named too"),
    (r".*", r".*/image", "images are ours"),
    (r".*/dapr-sidecar-injector", r".*/env/SIDECAR_IMAGE.*", "likewise"),
    (r".*/dapr-sidecar-injector", r".*/env/IGNORE_ENTRYPOINT_TOLERATIONS.*",
     "quotes are escaped there, which no reader of JSON takes"),
    (r"StatefulSet/.*", r".*/volumeMounts/.*/readOnly", "a token is read only; what is false there is left out here"),
    (r".*/dapr-sentry", r".*/args/--oidc-server-(listen-port|tls-enabled)", "values that have no effect there"),
    (r"Deployment/dapr-(operator|sentry)", r".*/args/--port", "targetPort is where they listen, too"),
    (r"Service/dapr-placement-server", r".*/api/targetPort", "apiPort is the Service's alone, as sidecars ask at 50005"),
    (r".*/dapr-placement-server", r".*/podAntiAffinity", "its own high availability is spread too"),
    (r".*/dapr-sidecar-injector", r".*/env/SIDECAR_RUN_AS_USER", "0 is not told there"),
    (r".*/dapr-sidecar-injector", r"/spec/template/spec/dnsPolicy", "on its node's network it does not find sentry there"),
    (r"MutatingWebhookConfiguration/.*", r"/webhooks/.*/objectSelector(/matchExpressions)?",
     "the control plane comes without its injector"),
]
# Definitions: the suite's version of Dapr is older than the contract, and one setting is ours.
EXPECTED_DEFINITIONS = [
    r"configurations.*/nameResolution/required.*",
    r"configurations.*/stateRetentionPolicy/.*",
    r"configurations.*/workflow/properties/maxActivityLosses",
]


def flags(args):
    """Arguments as flags with values: their order means nothing."""
    found, rest = {}, list(args)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not equals and rest and not rest[0].startswith("--"):
            value = rest.pop(0)
        found.setdefault(name, []).append(value)
    return found


def plain(value, key=""):
    """Lists of named things by their names, and nothing that is empty."""
    if isinstance(value, dict):
        return {name: plain(part, name) for name, part in value.items() if part not in ({}, [], None)}
    if not isinstance(value, list):
        return value
    if key == "args":
        return flags(value)
    names = [str(one.get("name") or one.get("containerPort") or one.get("port")) if isinstance(one, dict) else ""
             for one in value]
    if value and all(names) and "None" not in names and len(set(names)) == len(names):
        return {name: plain(one) for name, one in zip(names, value)}
    parts = [plain(one) for one in value]
    return sorted(parts, key=lambda part: json.dumps(part, sort_keys=True))


def differences(left, right, place=""):
    if isinstance(left, dict) and isinstance(right, dict):
        for name in sorted(left.keys() | right.keys()):
            yield from differences(left.get(name), right.get(name), f"{place}/{name}")
    elif left != right:
        yield place, f"{json.dumps(left)} there, {json.dumps(right)} here"


def rights(objects):
    """By service account: what it may do, as (where, group, resource, name, verb)."""
    roles = {(one["kind"], one["metadata"]["name"]): one.get("rules") or [] for one in objects if one["kind"].endswith("Role")}
    found = {}
    for one in objects:
        if not one["kind"].endswith("Binding"):
            continue
        where = "" if one["kind"].startswith("Cluster") else one["metadata"].get("namespace", "")
        for rule in roles[one["roleRef"]["kind"], one["roleRef"]["name"]]:
            for subject in one["subjects"]:
                mine = found.setdefault(subject["name"], set())
                mine |= {(where, group, resource, name, verb) for group in rule["apiGroups"] for resource in rule["resources"]
                         for name in rule.get("resourceNames", [""]) for verb in rule["verbs"]}
    return found


def covered(right, others):
    where, group, resource, name, verb = right
    return any((w, group, resource, n, verb) in others for w in (where, "") for n in (name, ""))


def objects(there, here, with_injector, expected=()):
    """`expected`: differences beside `EXPECTED`."""
    problems = []
    left_out = LEFT_OUT if with_injector else LEFT_OUT | WITHOUT_INJECTOR

    def named(objects):
        return {(one["kind"], one["metadata"]["name"]): one for one in objects}

    left, right = named(there), named(here)
    problems += [f"missing: {key}" for key in sorted(left.keys() - right.keys() - left_out)]
    problems += [f"only here: {key}" for key in sorted(right.keys() - left.keys() - ADDED)]
    for key in sorted(left.keys() & right.keys()):
        what = "/".join(key)
        for place, difference in differences(plain(left[key]), plain(right[key])):
            if not any(re.fullmatch(a, what) and re.fullmatch(b, place) for a, b, _ in [*EXPECTED, *expected]):
                problems.append(f"{what}{place}: {difference}")
    theirs = rights(there)
    for account, mine in rights(here).items():
        more = sorted(one for one in mine if not covered(one, theirs.get(account, set()))
                      and (account, one) not in MORE_RIGHTS)
        problems += [f"{account} may do more than there: {one}" for one in more]
    return problems


def definitions(there, here):
    def undescribed(value, key=""):
        if isinstance(value, list):
            return [undescribed(one) for one in value]
        if not isinstance(value, dict):
            return value
        texts = set() if key == "properties" else {"description"}
        return {name: undescribed(part, name) for name, part in value.items() if name not in texts}

    def named(objects):
        return {one["metadata"]["name"]: plain(undescribed(one["spec"])) for one in objects}

    left, right = named(there), named(here)
    return [f"{place}: {difference}" for place, difference in differences(left, right, "")
            if not any(re.fullmatch(f"/{one}", place) for one in EXPECTED_DEFINITIONS)]
