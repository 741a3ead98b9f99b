"""CoreDNS as a Deployment."""

from control import DNS, DOMAIN

COREFILE = """.:53 {
  errors
  health
  ready
  kubernetes DOMAIN in-addr.arpa {
    pods insecure
    ttl 5
  }
  cache 5
}
""".replace("DOMAIN", DOMAIN)
LABELS = {"k8s-app": "kube-dns"}
META = {"name": "coredns", "namespace": "kube-system"}


def objects():
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": META}
    yield {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "system:coredns"}, "rules": [
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}]}
    yield {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "system:coredns"},
           "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:coredns"},
           "subjects": [{"kind": "ServiceAccount", **META}]}
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": META, "data": {"Corefile": COREFILE}}
    yield {"apiVersion": "v1", "kind": "Service", "metadata": {**META, "name": "kube-dns"}, "spec": {
        "clusterIP": DNS, "selector": LABELS,
        "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]}}
    yield {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": META, "spec": {
        "selector": {"matchLabels": LABELS}, "template": {"metadata": {"labels": LABELS}, "spec": {
            "serviceAccountName": "coredns", "dnsPolicy": "Default", "priorityClassName": "system-cluster-critical",
            "containers": [{
                "name": "coredns", "image": "cluster/coredns:1", "args": ["-conf", "/etc/coredns/Corefile"],
                "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
                "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}]}],
            "volumes": [{"name": "config", "configMap": {"name": "coredns"}}]}}}}
