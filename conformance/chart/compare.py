"""Compares the objects that two charts render. Intended differences are listed here, with reasons."""

import json
import re

# Values that Dapr's chart does not have, or fails with.
ONLY_HERE = ("only here", "another's actors", "namespaced elsewhere", "placement by a lease", "other ports",
             "large numbers", "small numbers", "lists as texts", "jobs in PostgreSQL")
# Objects that are not rendered here: roles without rules, and permissions of disabled parts.
LEFT_OUT = {
    ("ClusterRole", "dapr-placement"), ("ClusterRoleBinding", "dapr-placement"),
    ("Role", "dapr-placement"), ("RoleBinding", "dapr-placement"),
}
WITHOUT_INJECTOR = {(kind, "dapr-injector") for kind in
                    ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")}
# Objects that are rendered only here: separate roles for permissions in one namespace, and a disruption budget for every
# part with high availability.
ADDED = {
    ("Role", "dapr-operator-admin"), ("RoleBinding", "dapr-operator-admin"),
    ("PodDisruptionBudget", "dapr-placement-server-disruption-budget"),
}
# Permissions that exist only here: without them a namespaced sentry cannot read pods.
MORE_RIGHTS = {
    ("dapr-sentry", ("dapr-system", "", "pods", "", "get")),
    # A pod's annotation tells which Configuration a sidecar uses.
    ("dapr-operator", ("dapr-system", "", "pods", "", "watch")),
    # An upgrade corrects the definition again.
    *(("dapr-operator", ("", "apiextensions.k8s.io", "customresourcedefinitions", "subscriptions.dapr.io", verb))
      for verb in ("list", "watch")),
}
# Differences by object and field, as regular expressions, with reasons.
EXPECTED = [
    (r".*", r"(/spec/template)?(/metadata/labels|/spec/template/metadata/labels)/app\.kubernetes\.io/version",
     "the chart has its own version"),
    (r"PodDisruptionBudget/.*", r"/spec/selector/matchLabels/.*",
     "a budget for the pods of one version counts too few while another is rolled out"),
    (r"(Cluster)?Role(Binding)?/.*", r".*", "see `rights`"),
    (r".*/dapr-operator", r".*/ports/19443", "the webhook's port is named too"),
    (r".*", r".*/image", "images are ours"),
    (r".*/dapr-sidecar-injector", r".*/env/SIDECAR_IMAGE.*", "likewise"),
    (r".*/dapr-sidecar-injector", r".*/env/IGNORE_ENTRYPOINT_TOLERATIONS.*",
     "Dapr's chart escapes quotes, which is invalid JSON"),
    (r"StatefulSet/.*", r".*/volumeMounts/.*/readOnly", "a token is read-only; false is omitted here"),
    (r".*/dapr-sentry", r".*/args/--oidc-server-(listen-port|tls-enabled)", "values without effect in Dapr's chart"),
    (r"Deployment/dapr-(operator|sentry)", r".*/args/--port", "targetPort is also the listening port"),
    (r"Service/dapr-placement-server", r".*/api/targetPort", "apiPort is only the Service's, because sidecars use 50005"),
    (r".*/dapr-placement-server", r".*/podAntiAffinity", "its replicas are spread too"),
    (r".*/dapr-sidecar-injector", r".*/env/SIDECAR_RUN_AS_USER", "Dapr's chart omits 0"),
    (r".*/dapr-sidecar-injector", r"/spec/template/spec/dnsPolicy", "on the host network Dapr's does not find sentry"),
    (r"MutatingWebhookConfiguration/.*", r"/webhooks/.*/objectSelector(/matchExpressions)?",
     "the control plane is exempt from the injector"),
]
# Definitions: as in v1.17.13, a name resolver needs no version; v1.18.1 added the limits; a name of a header is not empty, and
# one rule is written otherwise; one setting is ours.
EXPECTED_DEFINITIONS = [
    r"configurations.*/workflow/properties/(activity|workflow)ConcurrencyLimits",
    r"configurations.*/workflow/properties/globalMaxConcurrent(Activity|Workflow)Invocations",
    r"mcpservers.*/(headers|env)/items/properties/name/minLength",
    r"mcpservers.*/endpoint/x-kubernetes-validations",
    r"configurations.*/nameResolution/required.*",
    r"configurations.*/workflow/properties/maxActivityLosses",
]


def flags(args):
    """Arguments as flags with values, in any order."""
    found, rest = {}, list(args)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not equals and rest and not rest[0].startswith("--"):
            value = rest.pop(0)
        found.setdefault(name, []).append(value)
    return found


def plain(value, key=""):
    """Lists of named items as dictionaries, without empty values."""
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
    """Permissions by service account, as (namespace, group, resource, name, verb)."""
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
    """`expected`: further differences, in addition to `EXPECTED`."""
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
        problems += [f"{account} has more permissions than in Dapr's chart: {one}" for one in more]
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
