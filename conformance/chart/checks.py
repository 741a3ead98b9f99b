"""Checks the rendered chart for many sets of values.

usage: checks.py RENDER CHART THEIR_CHART BIN_DIR      the last two may be empty
"""

import json
import pathlib
import re
import subprocess
import sys

import compare

NAMESPACE = "dapr-system"
# Most problems printed for a check.
MAX_SHOWN = 20
FAKE = "-----BEGIN CERTIFICATE-----\nZmFrZQ==\n-----END CERTIFICATE-----"
EVERYTHING = {
    "global": {
        "logAsJson": True,
        "imagePullSecrets": ["one", {"name": "two"}],
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "seccompProfile": "RuntimeDefault",
        "labels": {"team": "platform"},
        "daprControlPlaneArch": "amd64",
        "argoRolloutServiceReconciler": {"enabled": True},
        "operator": {"watchdogCanPatchPodLabels": True},
        "mtls": {"controlPlaneTrustDomain": "example.com", "sentryAddress": "sentry.example.com:443"},
        "extraVolumes": {"operator": [{"name": "more", "emptyDir": {}}]},
        "extraVolumeMounts": {"operator": [{"name": "more", "mountPath": "/more"}]},
        "extraContainers": {"operator": [{"name": "next", "image": "next:1"}]},
        "initContainers": {"sentry": [{"name": "before", "image": "before:1"}]},
    },
    "dapr_operator": {"watchInterval": "30s", "watchNamespace": "shop", "serviceReconciler": {"enabled": False}},
    "dapr_placement": {"metadataEnabled": True, "disseminateCoalesceWindow": "250ms", "extraEnvVars": {"A": "b"}},
    "dapr_scheduler": {"cluster": {"storageClassName": "fast"}, "overrideBroadcastHostPort": "scheduler.example.com:443"},
    "dapr_sidecar_injector": {
        "webhookFailurePolicy": "Fail",
        "sidecarRunAsUser": 1000,
        "sidecarRunAsGroup": 1000,
        "sidecarDropALLCapabilities": True,
        "allowedServiceAccounts": "a:b",
        "allowedServiceAccountsPrefixNames": "a*:b*",
        "namespaceSelector": {"matchLabels": {"sidecars": "yes"}},
    },
}
CASES = {
    "default": {},
    "high availability": {"global": {"ha": {"enabled": True}}},
    "replicas apart": {"global": {"ha": {"enabled": True, "podAntiAffinityPolicy": "requiredDuringSchedulingIgnoredDuringExecution"}}},
    "at least one": {"global": {"ha": {"enabled": True, "disruption": {"minimumAvailable": 1, "maximumUnavailable": ""}}}},
    "namespaced": {"global": {"rbac": {"namespaced": True}}},
    "namespaced elsewhere": {"global": {"rbac": {"namespaced": True}}, "dapr_operator": {"watchNamespace": "shop"}},
    "namespaced, with the webhook": {
        "global": {"rbac": {"namespaced": True}},
        "dapr_operator": {"extraEnvVars": {"ENABLE_WEBHOOKS": "true"}},
    },
    "everything": EVERYTHING,
    "little": {
        "global": {
            "prometheus": {"enabled": False},
            "scheduler": {"enabled": False},
            "actors": {"enabled": False},
            "mtls": {"mountSentryVolume": False},
        },
        "dapr_sidecar_injector": {"enabled": False},
        "dapr_rbac": {"secretReader": {"enabled": False}},
        "dapr_config": {"dapr_config_chart_included": False},
    },
    "own certificates": {"dapr_sentry": {"tls": {"issuer": {"certPEM": FAKE, "keyPEM": FAKE}, "root": {"certPEM": FAKE}}}},
    "other names of certificates": {
        "global": {"issuerFilenames": {"ca": "root.pem", "cert": "chain.pem", "key": "/elsewhere/chain.key"}},
        "dapr_sentry": {"tls": {"issuer": {"certPEM": FAKE, "keyPEM": FAKE}, "root": {"certPEM": FAKE}}},
    },
    "root alone": {"dapr_sentry": {"tls": {"root": {"certPEM": FAKE}}}},
    "tokens": {
        "dapr_sentry": {
            "jwt": {"enabled": True, "issuer": "https://issuer", "signingAlgorithm": "ES256"},
            "oidc": {"enabled": True, "allowedHosts": ["a", "b"], "tls": {"enabled": False}},
        }
    },
    "tokens that are off": {
        "dapr_sentry": {
            "jwt": {"issuer": "https://issuer", "signingAlgorithm": "ES256", "keyFilename": "/k", "jwksFilename": "/j", "keyID": "k"},
            "oidc": {"allowedHosts": ["a"], "pathPrefix": "/p"},
        }
    },
    "placement in memory": {"dapr_placement": {"ha": True, "cluster": {"forceInMemoryLog": True}}},
    "placement by a lease": {
        "global": {"networkPolicy": {"enabled": True}},
        "dapr_placement": {"ha": True, "leaderElection": "lease"},
    },
    "other ports": {
        "global": {"networkPolicy": {"enabled": True}},
        "dapr_operator": {"ports": {"port": 8443, "targetPort": 6600}},
        "dapr_sentry": {"ports": {"port": 8444, "targetPort": 50011}},
        "dapr_placement": {"ports": {"apiPort": 50105}},
    },
    "another configuration": {"dapr_config": {"dapr_default_system_config_name": "mine"}},
    "no placement": {"dapr_placement": {"scaleZero": True}},
    "another's actors": {
        "global": {"actors": {"serviceName": "mine"}, "reminders": {"serviceName": "kept"}},
        "dapr_sidecar_injector": {"extraEnvVars": {"ACTORS_SERVICE_ADDRESS": "hosts:7", "REMINDERS_SERVICE_ADDRESS": "keeper:8"}},
    },
    "scheduler in memory": {"dapr_scheduler": {"cluster": {"inMemoryStorage": True}}},
    "another etcd": {"dapr_scheduler": {"etcdEmbed": False, "etcdClientEndpoints": ["http://etcd:2379"], "etcdClientUsername": "u"}},
    "jobs in PostgreSQL": {
        "global": {"networkPolicy": {"enabled": True}},
        "dapr_scheduler": {"postgres": {"secretName": "jobs", "secretKey": "text"}, "cluster": {"inMemoryStorage": True}},
    },
    "lists as texts": {
        "dapr_sentry": {"oidc": {"enabled": True, "allowedHosts": "a, b"}},
        "dapr_scheduler": {"etcdEmbed": False, "etcdClientEndpoints": "http://one:2379,http://two:2379"},
    },
    "another mode, and anchors": {"x-levels": {"all": "warn"}, "dapr_sentry": {"mode": "standalone"}},
    "images by name": {"dapr_sentry": {"image": {"name": "example.com/sentry@sha256:0"}}},
    "the node's network": {"dapr_sidecar_injector": {"hostNetwork": True}},
    "some pods": {"dapr_sidecar_injector": {"objectSelector": {
        "matchLabels": {"sidecars": "yes"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]}}},
    "sidecars as root": {"dapr_sidecar_injector": {"sidecarRunAsNonRoot": False, "sidecarRunAsUser": 0}},
    "only here": {
        "global": {
            "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]},
            "prometheus": {"podMonitor": {"enabled": True}},
        },
        "dapr_sentry": {"oidc": {"enabled": True}},
        "dapr_sidecar_injector": {"nativeSidecar": True},
    },
}
# Helm reads them as floats, which templates print as 1e+06.
LARGE = 1_000_660_000
NUMBERS = {
    "global": {"tag": LARGE, "k8sLabels": {"build": LARGE}},
    "dapr_operator": {"maxPodRestartsPerMinute": LARGE, "extraEnvVars": {"A": LARGE}},
    "dapr_placement": {"ha": True, "replicationFactor": LARGE, "fsGroup": LARGE, "volumeclaims": {"storageSize": LARGE},
                       "maxActorApiLevel": LARGE, "minActorApiLevel": LARGE},
    "dapr_scheduler": {
        "securityContext": {"fsGroup": LARGE}, "cluster": {"storageSize": LARGE}, "workers": LARGE,
        **{f"etcd{name}": LARGE for name in ("SpaceQuota", "CompactionRetention", "SnapshotCount", "MaxSnapshots", "MaxWals",
           "BackendBatchLimit", "MaxTxnOps", "DefragThresholdMB")},
    },
    "dapr_sidecar_injector": {"sidecarRunAsUser": LARGE, "sidecarRunAsGroup": LARGE},
}
CASES["large numbers"] = NUMBERS


def changed(values, change, name=""):
    """The values with each number changed to text, and log levels in capitals."""
    if isinstance(values, dict):
        return {name: changed(value, change, name) for name, value in values.items()}
    if name == "logLevel":
        return values.upper()
    return change(values) if type(values) is int else values


CASES["small numbers"] = changed(NUMBERS, lambda _: 7)
# Expected differences from Dapr's chart with these values, with reasons.
NAMESPACED = [
    # Dapr's: its cluster-wide lists are refused, and it is never ready.
    (r"Deployment/dapr-operator", r".*/args/--watch-namespace", "watches the namespace of its permissions"),
    (r"Deployment/dapr-operator", r".*/env/ENABLE_WEBHOOKS", "cannot change definitions"),
]
NAMES = [
    # Dapr's: they wait for a file that sentry never writes.
    (r"(Deployment|StatefulSet)/.*", r".*/args/--trust-anchors-file", "path that sentry writes"),
    (r"Deployment/dapr-sidecar-injector", r".*/env/DAPR_TRUST_ANCHORS_FILE/value", "likewise"),
    (r"(Secret|ConfigMap)/dapr-trust-bundle", r"/data/(root.pem|chain.pem|chain.key)", "path that sentry reads"),
]
NAMED = [
    (r"Deployment/dapr-(operator|sentry)", r".*/args/--config", "Dapr's always look for daprsystem"),
    (r"Deployment/dapr-sidecar-injector", r".*/env/DAPR_CONTROL_PLANE_CONFIGURATION.*", "likewise"),
]
EXPECTED_IN = {"another configuration": NAMED, "other names of certificates": NAMES, "namespaced": NAMESPACED, "namespaced, with the webhook": NAMESPACED[:1]}
REFUSED = {
    "a root that is a user": ({"dapr_sidecar_injector": {"sidecarRunAsUser": 0}}, "sidecarRunAsUser"),
    "a user that is root": (
        {"dapr_sidecar_injector": {"sidecarRunAsNonRoot": False, "sidecarRunAsUser": 7}}, "sidecarRunAsUser"),
    "a word for a number": ({"dapr_operator": {"replicaCount": "two"}}, "replicaCount"),
    "an unknown level": ({"dapr_sentry": {"logLevel": "loud"}}, "logLevel"),
    "an unknown policy": ({"dapr_sidecar_injector": {"webhookFailurePolicy": "Perhaps"}}, "webhookFailurePolicy"),
    "a misspelt part": ({"dapr_operater": {"replicaCount": 2}}, "dapr_operater"),
    "a misspelt value": ({"dapr_operator": {"watchIntervall": "30s"}}, "watchIntervall"),
    "a misspelt value within": ({"dapr_scheduler": {"cluster": {"storagesize": "1Gi"}}}, "storagesize"),
    "a misspelt value of all": ({"global": {"prometeus": {"enabled": False}}}, "prometeus"),
    "a misspelt value within those of all": ({"global": {"ha": {"enable": True}}}, "enable"),
    "an unknown anti-affinity": (
        {"global": {"ha": {"podAntiAffinityPolicy": "never"}}}, "global.ha.podAntiAffinityPolicy must be either"),
    "no way to elect": ({"dapr_placement": {"leaderElection": "etcd"}}, "leaderElection"),
    "a text of no number": ({"dapr_placement": {"replicationFactor": "1e3"}}, "replicationFactor"),
    "a text of no port": ({"global": {"prometheus": {"port": "65536"}}}, "port"),
    "PostgreSQL and an etcd": (
        {"dapr_scheduler": {"postgres": {"secretName": "jobs"}, "etcdEmbed": False, "etcdClientEndpoints": ["e:2379"]}}, "etcdEmbed"),
    "a connection string instead of the name of its Secret": (
        {"dapr_scheduler": {"postgres": {"secretName": "postgres://scheduler@db/jobs"}}}, "secretName"),
    "another's actors without an address": ({"global": {"actors": {"serviceName": "mine"}}}, "ACTORS_SERVICE_ADDRESS"),
    "another's reminders without an address": ({"global": {"reminders": {"serviceName": "mine"}}}, "REMINDERS_SERVICE_ADDRESS"),
    "a user where nobody reads it": ({"dapr_scheduler": {"runAsNonRoot": False}}, "runAsNonRoot"),
    "no duration": ({"global": {"mtls": {"workloadCertTTL": "soon"}}}, "workloadCertTTL"),
}
BINARIES = ("operator", "sentry", "injector", "placement", "scheduler")


class Checks:
    def __init__(self):
        self.passed, self.failed = 0, 0

    def expect(self, what, problems):
        if problems:
            self.failed += 1
            print(f"failed: {what}")
            for problem in problems[:MAX_SHOWN]:
                print(f"    {problem}")
            if len(problems) > MAX_SHOWN:
                print(f"    and {len(problems) - MAX_SHOWN} more")
        else:
            self.passed += 1


def render(program, chart, cases):
    asked = [
        {"name": name, "namespace": NAMESPACE, "release": "dapr", "values": json.loads(json.dumps(values))}
        for name, values in cases.items()
    ]
    done = subprocess.run([program, chart], input=json.dumps(asked), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{chart}: {done.stderr}")
    return json.loads(done.stdout)


def by_name(objects):
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def pods(objects):
    return [one for one in objects if one["kind"] in ("Deployment", "StatefulSet")]


def sound(objects):
    """Invariants for all values."""
    problems = []
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects]
    problems += [f"twice: {name}" for name in set(names) if names.count(name) > 1]
    accounts = {one["metadata"]["name"] for one in objects if one["kind"] == "ServiceAccount"}
    apps = {one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"] for one in pods(objects)}
    for one in pods(objects):
        name, spec = one["metadata"]["name"], one["spec"]["template"]["spec"]
        # Extra containers come first.
        container = spec["containers"][-1]
        security = container["securityContext"]
        wanted = {"runAsNonRoot": True, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
        problems += [f"{name}: {key} is not {value}" for key, value in wanted.items() if security.get(key) is not value]
        if security.get("capabilities") != {"drop": ["ALL"]}:
            problems.append(f"{name}: keeps capabilities")
        if spec["serviceAccountName"] not in accounts:
            problems.append(f"{name}: no service account {spec['serviceAccountName']}")
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        volumes |= {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])}
        mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
        if volumes != mounts:
            problems.append(f"{name}: volumes {sorted(volumes)} do not match the mounts {sorted(mounts)}")
        if one["spec"]["selector"]["matchLabels"].items() - apps[name].items():
            problems.append(f"{name}: its selector does not match its pods")
        variables = [variable["name"] for variable in container["env"]]
        if len(variables) != len(set(variables)):
            problems.append(f"{name}: a variable twice")
        if any(value in (None, "<nil>", "") for value in container["args"]):
            problems.append(f"{name}: an empty argument: {container['args']}")
    for one in objects:
        selector = one.get("spec", {}).get("selector")
        if one["kind"] == "Service" and not any(selector.items() <= labels.items() for labels in apps.values()):
            problems.append(f"Service {one['metadata']['name']} selects nothing")
        if one["kind"] == "PodDisruptionBudget" and len(one["spec"]) != 2:
            problems.append(f"{one['metadata']['name']}: set either minAvailable or maxUnavailable")
        if one["kind"] == "MutatingWebhookConfiguration":
            unasked = {app for rule in one["webhooks"][0].get("objectSelector", {}).get("matchExpressions", [])
                       if (rule["key"], rule["operator"]) == ("app", "NotIn") for app in rule["values"]}
            problems += [f"{name}: is not exempt from the injector with webhookFailurePolicy Fail"
                         for name, labels in apps.items() if labels["app"] not in unasked]
        if one["kind"].endswith("Binding"):
            role = (one["roleRef"]["kind"], one["roleRef"]["name"])
            if role not in by_name(objects):
                problems.append(f"{one['metadata']['name']}: no {role}")
        for rule in one.get("rules", []) if one["kind"].endswith("Role") else []:
            if "*" in rule["verbs"] + rule["resources"] + rule["apiGroups"]:
                problems.append(f"{one['metadata']['name']}: a rule with wildcards")
    return problems


def known_arguments(folder, objects):
    """Runs a binary with the arguments of its pod and an unknown one; it must complain only about the latter."""
    problems = []
    for one in pods(objects):
        container = one["spec"]["template"]["spec"]["containers"][-1]
        program = folder / container["command"][0].lstrip("/")
        if not program.exists():
            problems.append(f"{program} is not built")
            continue
        ran = subprocess.run(
            [program, *container["args"], "--of-no-binary"], capture_output=True, text=True, timeout=20)
        if ran.returncode != 2 or not re.match(r"unknown flag: --of-no-binary\b", ran.stderr):
            problems.append(f"{program.name} {' '.join(container['args'])}: {ran.stderr.strip()}")
    return problems


def particular(rendered):
    """The meaning of single values, for which Dapr's chart is no reference because of its version."""
    found = {name: by_name(rendered[name]["objects"]) for name in CASES}

    def args(case, kind, name):
        return found[case][kind, name]["spec"]["template"]["spec"]["containers"][-1]["args"]

    def variables(case, kind, name):
        env = found[case][kind, name]["spec"]["template"]["spec"]["containers"][-1]["env"]
        return {one["name"]: one.get("value") for one in env}

    def follows(case):
        given = compare.flags(args(case, "Deployment", "dapr-operator"))
        return given.get("--watch-namespace")

    def placed(case, name):
        return {(one["kind"], one["metadata"].get("namespace")) for one in rendered[case]["objects"]
                if one["metadata"]["name"] == name and one["kind"].startswith("Role")}

    def allowed(case, name, place):
        """The permissions of a namespaced role, as resources and verbs."""
        roles = (one for one in rendered[case]["objects"]
                 if (one["kind"], one["metadata"]["name"], one["metadata"].get("namespace")) == ("Role", name, place))
        return {(resource, verb) for role in roles for rule in role["rules"] for resource in rule["resources"]
                for verb in rule["verbs"]}

    def placement(case):
        """Placement's arguments, port names, volume claims, and whether it has a role."""
        pods, service = found[case]["StatefulSet", "dapr-placement-server"], found[case]["Service", "dapr-placement-server"]
        ports = pods["spec"]["template"]["spec"]["containers"][-1]["ports"] + service["spec"]["ports"]
        claims = [claim["metadata"]["name"] for claim in pods["spec"].get("volumeClaimTemplates", [])]
        given = compare.flags(args(case, "StatefulSet", "dapr-placement-server"))
        return given, {port["name"] for port in ports}, claims, ("Role", "dapr-placement") in found[case]

    def scheduler(case):
        """The scheduler's arguments and variables, port names, and volumes."""
        pods, service = (found[case][kind, "dapr-scheduler-server"] for kind in ("StatefulSet", "Service"))
        spec = pods["spec"]["template"]["spec"]
        ports = spec["containers"][-1]["ports"] + service["spec"]["ports"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in pods["spec"].get("volumeClaimTemplates", [])}
        variables = {one["name"]: one.get("valueFrom") for one in spec["containers"][-1]["env"]}
        return compare.flags(spec["containers"][-1]["args"]), variables, {port.get("name") for port in ports}, volumes

    def network(case):
        spec = found[case]["Deployment", "dapr-sidecar-injector"]["spec"]["template"]["spec"]
        return spec.get("hostNetwork"), spec.get("dnsPolicy")

    def among(case, name):
        rules = found[case]["NetworkPolicy", name]["spec"]["ingress"]
        return [port["port"] for rule in rules for port in rule["ports"] if "from" in rule and "podSelector" in rule["from"][0]]

    def anchors(case):
        """The root certificate files in the arguments of the control plane, except sentry's."""
        told = {variables(case, "Deployment", "dapr-sidecar-injector")["DAPR_TRUST_ANCHORS_FILE"]}
        for kind, name in (("Deployment", "dapr-operator"), ("StatefulSet", "dapr-placement-server"),
                           ("StatefulSet", "dapr-scheduler-server")):
            told |= set(compare.flags(args(case, kind, name))["--trust-anchors-file"])
        return told

    def listens(case, app):
        """The port of an app's process, container, policy and Services, which must all be the same."""
        pod = next(one for one in pods(rendered[case]["objects"]) if one["metadata"]["name"] == app)
        container = pod["spec"]["template"]["spec"]["containers"][-1]
        told = [int(port) for port in compare.flags(container["args"]).get("--port", [])]
        opened = found[case]["NetworkPolicy", app]["spec"]["ingress"][0]["ports"][0]["port"]
        named = ("grpc", "legacy", "api")
        led = [port["targetPort"] for (kind, _), one in found[case].items()
               if kind == "Service" and one["spec"]["selector"] == {"app": app}
               for port in one["spec"]["ports"] if port.get("name") in named]
        return set(told) | {opened, container["ports"][0]["containerPort"], *led}

    on_etcd, on_postgres = scheduler("default"), scheduler("jobs in PostgreSQL")
    by_raft, by_lease = placement("high availability"), placement("placement by a lease")
    secret, bundle = ("Secret", "dapr-trust-bundle"), ("ConfigMap", "dapr-trust-bundle")
    asked = found["some pods"]["MutatingWebhookConfiguration", "dapr-sidecar-injector"]["webhooks"][0]["objectSelector"]
    checks = {
        "without certificates sentry fills the trust bundle":
            "data" not in found["default"][secret] and "data" not in found["default"][bundle],
        "own certificates are all in the secret":
            set(found["own certificates"][secret]["data"]) == {"ca.crt", "issuer.crt", "issuer.key"},
        "certificates use the configured file names too":
            set(found["other names of certificates"][secret]["data"])
            == {"ca.crt", "issuer.crt", "issuer.key", "root.pem", "chain.pem", "chain.key"}
            and set(found["other names of certificates"][bundle]["data"]) == {"ca.crt", "root.pem"},
        "the control plane reads the root from the path that sentry writes":
            anchors("other names of certificates") == {"/var/run/secrets/dapr.io/tls/root.pem"}
            and anchors("default") == {"/var/run/secrets/dapr.io/tls/ca.crt"},
        "the config map has only the root":
            "data" not in found["root alone"][secret] and set(found["root alone"][bundle]["data"]) == {"ca.crt"},
        "the root is not changed": found["root alone"][bundle]["data"]["ca.crt"].strip() == FAKE,
        "tokens are configured in sentry": {"--jwt-enabled=true", "--jwt-issuer=https://issuer", "--oidc-enabled=true",
            "--oidc-allowed-hosts=a,b", "--oidc-server-tls-enabled=false"} <= set(args("tokens", "Deployment", "dapr-sentry")),
        "without tokens sentry gets no token flags, with which it would not start":
            not any(re.match("--(jwt|jwks|oidc)", arg) for arg in args("tokens that are off", "Deployment", "dapr-sentry")),
        "lists may be texts": "--oidc-allowed-hosts=a,b" in args("lists as texts", "Deployment", "dapr-sentry")
            and compare.flags(args("lists as texts", "StatefulSet", "dapr-scheduler-server"))["--etcd-client-endpoints"]
            == ["http://one:2379", "http://two:2379"],
        "the scheduler keeps 16 GiB":
            found["default"]["StatefulSet", "dapr-scheduler-server"]["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]
            == {"requests": {"storage": "16Gi"}},
        "jobs are in etcd unless PostgreSQL is configured": "--etcd-initial-cluster" in on_etcd[0]
            and "SCHEDULER_POSTGRES" not in on_etcd[1] and {"etcd-client", "etcd-peer"} <= on_etcd[2]
            and "dapr-scheduler-data-dir" in on_etcd[3],
        "the connection string of PostgreSQL comes from its Secret":
            on_postgres[1].get("SCHEDULER_POSTGRES") == {"secretKeyRef": {"name": "jobs", "key": "text"}},
        "with PostgreSQL no etcd runs, and no volume is claimed":
            not any(flag.startswith("--etcd") or flag == "--postgres" for flag in on_postgres[0])
            and on_postgres[0].keys() < on_etcd[0].keys() and on_postgres[2] == {None, "api", "metrics"}
            and "dapr-scheduler-data-dir" not in on_postgres[3]
            and among("jobs in PostgreSQL", "dapr-scheduler-server") == []
            and among("only here", "dapr-scheduler-server") == [2379, 2380],
        "a namespaced operator has no cluster-wide permissions":
            not any(kind.startswith("Cluster") and "operator" in name for kind, name in found["namespaced"]),
        "an operator watches the namespace of its permissions": follows("namespaced") == [NAMESPACE] and follows("default") is None,
        "an operator watches the configured namespace": follows("namespaced elsewhere") == ["shop"]
            and follows("everything") == ["shop"],
        "operator, sentry and injector have permissions in the watched namespace and their own": all(
            placed("namespaced elsewhere", name)
            == {(kind, place) for kind in ("Role", "RoleBinding") for place in (NAMESPACE, "shop")}
            for name in ("dapr-operator-admin", "dapr-sentry", "dapr-injector")),
        "apps in other namespaces get identities and components, but secrets stay unreadable": [
            allowed("namespaced elsewhere", name, "shop") for name in ("dapr-sentry", "dapr-injector")]
            == [{("configurations", "get"), ("pods", "get")}, {("components", "list")}],
        "permissions of the release stay in its namespace":
            ("secrets", "update") in allowed("namespaced elsewhere", "dapr-sentry", NAMESPACE)
            and ("configurations", "get") in allowed("namespaced elsewhere", "dapr-injector", NAMESPACE),
        "other actor and reminder services are configured in sidecars": {
            ("ACTORS_SERVICE_NAME", "mine"), ("ACTORS_SERVICE_ADDRESS", "hosts:7"),
            ("REMINDERS_SERVICE_NAME", "kept"), ("REMINDERS_SERVICE_ADDRESS", "keeper:8"),
        } <= set(variables("another's actors", "Deployment", "dapr-sidecar-injector").items())
            and ("StatefulSet", "dapr-placement-server") not in found["another's actors"],
        "an operator that cannot change definitions serves no conversions":
            variables("namespaced", "Deployment", "dapr-operator").get("ENABLE_WEBHOOKS") == "false"
            and "ENABLE_WEBHOOKS" not in variables("default", "Deployment", "dapr-operator"),
        "an explicit setting wins":
            variables("namespaced, with the webhook", "Deployment", "dapr-operator")["ENABLE_WEBHOOKS"] == "true",
        "native sidecars are enabled":
            variables("only here", "Deployment", "dapr-sidecar-injector").get("NATIVE_SIDECAR_ENABLED") == "true"
            and variables("default", "Deployment", "dapr-sidecar-injector").get("NATIVE_SIDECAR_ENABLED") == "false",
        "on the host network the injector resolves cluster names": network("the node's network")
            == (True, "ClusterFirstWithHostNet") and network("default") == (None, None),
        "a pod selector is combined with the chart's own": asked["matchLabels"] == {"sidecars": "yes"}
            and asked["matchExpressions"][0] == {"key": "tier", "operator": "Exists"} and len(asked["matchExpressions"]) == 2,
        "placement elects by raft, without API permissions": "--initial-cluster" in by_raft[0]
            and "--leader-election" not in by_raft[0] and "raft-node" in by_raft[1] and by_raft[2] == ["raft-log"]
            and not by_raft[3],
        "placement elects by a lease, without a raft port or volume": by_lease[0].get("--leader-election") == ["lease"]
            and by_lease[0].get("--id") == ["$(PLACEMENT_ID)"] and "--mode" in by_lease[0]
            and not {"--initial-cluster", "--raft-logstore-path"} & set(by_lease[0])
            and by_lease[1] == {"api", "metrics"} and by_lease[2] == [],
        "operator and sentry listen on the ports of their Services":
            listens("other ports", "dapr-operator") == {6600} and listens("other ports", "dapr-sentry") == {50011},
        "placement keeps its port whatever its Service has":
            listens("other ports", "dapr-placement-server") == {50005}
            and variables("other ports", "Deployment", "dapr-sidecar-injector")["ACTORS_SERVICE_ADDRESS"]
            == "dapr-placement-server:50005"
            and found["other ports"]["Service", "dapr-placement-server"]["spec"]["ports"][0]["port"] == 50105,
        "a Configuration with another name is used": ("Configuration", "mine") in found["another configuration"]
            and all(compare.flags(args("another configuration", "Deployment", name)).get("--config") == ["mine"]
                    and "--config" not in compare.flags(args("default", "Deployment", name))
                    for name in ("dapr-operator", "dapr-sentry"))
            and variables("another configuration", "Deployment", "dapr-sidecar-injector").get("DAPR_CONTROL_PLANE_CONFIGURATION")
            == "mine",
        "large numbers are written like small ones": [
            str(one).replace(str(LARGE), "7") for one in rendered["large numbers"]["objects"]
        ] == [str(one) for one in rendered["small numbers"]["objects"]],
        "a user of a sidecar may have a large number":
            variables("large numbers", "Deployment", "dapr-sidecar-injector")["SIDECAR_RUN_AS_USER"] == str(LARGE),
        "it has permissions on that lease": by_lease[3] and [(rule["resources"], rule.get("resourceNames"), rule["verbs"])
            for rule in found["placement by a lease"]["Role", "dapr-placement"]["rules"]] == [
                (["leases"], ["placement.dapr.io"], ["get", "watch", "update"]), (["leases"], None, ["create"])],
        "the network policy for a lease needs no raft port": among("only here", "dapr-placement-server") == [8201]
            and among("placement by a lease", "dapr-placement-server") == [],
        "no watchdog, no deleted pods":
            not any("pods" in rule["resources"] and "delete" in rule["verbs"] for rule in found["default"]["ClusterRole", "dapr-operator-admin"]["rules"]),
        "every part of the control plane has a policy":
            sum(kind == "NetworkPolicy" for kind, _ in found["only here"]) == 5,
        "policies and monitors are rendered":
            not any(kind in ("NetworkPolicy", "PodMonitor") for kind, _ in found["everything"]),
        "a quota for critical pods": ("ResourceQuota", "system-critical-quota") in found["everything"],
    }
    return [what for what, holds in checks.items() if not holds]


def main():
    program, chart, theirs, binaries = sys.argv[1:]
    checks = Checks()
    wrong = {name: values for name, (values, _) in REFUSED.items()}
    ours = render(program, chart, CASES | wrong)
    for name in CASES:
        objects = ours[name]["objects"] or []
        checks.expect(f"rendering {name}", [ours[name]["error"]] if "error" in ours[name] else sound(objects))
        if binaries:
            checks.expect(f"arguments of {name}", known_arguments(pathlib.Path(binaries), objects))
    for name, (_, word) in REFUSED.items():
        error = ours[name].get("error", "")
        checks.expect(f"refusing {name}", [] if word in error else [f"want an error that names {word}: {error!r}"])
    checks.expect("what values mean", particular(ours))
    texts = changed(ours["values"]["objects"][0], str)
    texts = render(program, chart, {"texts": texts})["texts"]
    same = texts.get("objects") == ours["default"]["objects"]
    checks.expect("numbers as texts and levels in capitals are equivalent", [] if same else [texts.get("error", "they do not")])
    if not binaries:
        print("not checked without a folder of binaries: whether they accept their arguments")
    if theirs:
        alike = [name for name in CASES if name not in compare.ONLY_HERE]
        peer = render(program, theirs, {name: CASES[name] for name in alike})
        # Each part also has the values common to all charts.
        own = {name: {key: value for key, value in part.items() if name == "global" or key != "global"}
               for name, part in peer["values"]["objects"][0].items()}
        given = render(program, chart, {"own": own})["own"]
        checks.expect("every value of Dapr's chart is accepted", [given["error"]] if "error" in given else [])
        for name in alike:
            if "error" in peer[name]:
                checks.expect(f"{name} in Dapr's chart", [peer[name]["error"]])
                continue
            injector = CASES[name].get("dapr_sidecar_injector", {}).get("enabled", True)
            problems = compare.objects(peer[name]["objects"], ours[name]["objects"], injector, EXPECTED_IN.get(name, []))
            checks.expect(f"{name} as in Dapr's chart", problems)
        checks.expect("definitions match Dapr's chart", compare.definitions(peer["crds"]["objects"], ours["crds"]["objects"]))
    else:
        print("not compared with Dapr's chart: its module is not available from the Go module proxy")
    print(f"{checks.passed} passed, {checks.failed} failed")
    sys.exit(checks.failed > 0)


if __name__ == "__main__":
    main()
