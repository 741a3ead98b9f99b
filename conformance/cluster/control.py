"""The control plane of Kubernetes: etcd, the API server, the controller manager and the scheduler, on the first node."""

import json
import secrets

from machine import environment, shell

DOMAIN = "cluster.local"
SERVICES = "10.96.0.0/16"
# The first address of the services.
KUBERNETES = "10.96.0.1"
DNS = "10.96.0.10"
PODS = "10.244.0.0/16"
PORT = 6443


class Authority:
    """A CA, and certificates of it."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.certificate, self.key = folder / "ca.crt", folder / "ca.key"
        shell("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj",
              "/CN=cluster", "-addext", "keyUsage=critical,keyCertSign,digitalSignature", "-keyout", self.key, "-out", self.certificate)

    def issue(self, name, subject, *names, authority=False):
        """A certificate for servers and clients, or of an intermediate CA; returns the paths of certificate and key."""
        certificate, key, request = (self.folder / f"{name}.{end}" for end in ("crt", "key", "csr"))
        shell("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", subject, "-keyout", key,
              "-out", request)
        more = self.folder / f"{name}.ext"
        signs = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\n"
        more.write_text((signs if authority else "extendedKeyUsage=serverAuth,clientAuth\n")
                        + (f"subjectAltName={','.join(names)}\n" if names else ""))
        shell("openssl", "x509", "-req", "-days", "30", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial",
              "-extfile", more, "-out", certificate)
        return certificate, key


class Control:
    """Runs in the namespaces of a node."""

    def __init__(self, node, programs):
        self.node, self.programs, self.machine = node, programs, node.machine
        self.folder = self.machine.folder / "control"
        self.folder.mkdir()
        self.server = f"https://{node.address}:{PORT}"
        self.authority = Authority(self.folder / "certificates")
        self.tokens = {}
        self.admin = self.token("admin", "system:masters")

    def token(self, user, *groups):
        """A token of a user, always the same; the API server reads them at its start."""
        return self.tokens.setdefault(user, (secrets.token_hex(16), groups))[0]

    def config(self, user):
        """A kubeconfig for a user of `token`."""
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        if path.exists():
            return path  # a running program may read it
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
            "clusters": [{"name": "cluster", "cluster": {"server": self.server,
                                                         "certificate-authority": str(self.authority.certificate)}}],
            "users": [{"name": "user", "user": {"token": self.tokens[user][0]}}],
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "user"}}]}))
        path.chmod(0o600)
        return path

    def start(self):
        self.token("system:kube-controller-manager")
        self.token("system:kube-scheduler")
        (self.folder / "tokens").write_text("".join(
            f'{token},{user},{user}' + (f',"{",".join(groups)}"' if groups else "") + "\n"
            for user, (token, groups) in self.tokens.items()))
        key = self.folder / "accounts.key"
        if not key.exists():
            shell("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
        clients, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        self.node.start("etcd", ["etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", clients,
                                 "--advertise-client-urls", clients, "--listen-peer-urls", peers,
                                 "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}",
                                 "--unsafe-no-fsync"], env=environment(self.programs / "etcd"))
        self.serving = self.authority.issue(
            "apiserver", "/CN=apiserver", f"IP:{self.node.address}", f"IP:{KUBERNETES}", "IP:127.0.0.1", "DNS:kubernetes",
            "DNS:kubernetes.default", "DNS:kubernetes.default.svc", f"DNS:kubernetes.default.svc.{DOMAIN}")
        self.client = self.authority.issue("kubelet-client", "/CN=apiserver-to-kubelet/O=system:masters")
        self.start_server()
        self.node.start("controllers", [
            self.programs / "kube-controller-manager", f"--kubeconfig={self.config('system:kube-controller-manager')}",
            f"--service-account-private-key-file={key}", f"--root-ca-file={self.authority.certificate}", "--leader-elect=false",
            f"--cluster-signing-cert-file={self.authority.certificate}", f"--cluster-signing-key-file={self.authority.key}",
            "--use-service-account-credentials", "--node-monitor-grace-period=20s", "--profiling=false", f"--cert-dir={self.folder}",
            "--authorization-always-allow-paths=/healthz,/metrics", "--secure-port=0"])
        self.node.start("scheduler", [
            self.programs / "kube-scheduler", f"--kubeconfig={self.config('system:kube-scheduler')}", "--leader-elect=false",
            "--profiling=false", f"--cert-dir={self.folder}", "--secure-port=0"])

    def start_server(self):
        key, (certificate, private), (client, client_key) = self.folder / "accounts.key", self.serving, self.client
        self.node.start("apiserver", [
            self.programs / "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", f"--secure-port={PORT}",
            f"--advertise-address={self.node.address}", f"--tls-cert-file={certificate}", f"--tls-private-key-file={private}",
            f"--client-ca-file={self.authority.certificate}", f"--token-auth-file={self.folder / 'tokens'}",
            f"--kubelet-client-certificate={client}", f"--kubelet-client-key={client_key}",
            f"--kubelet-certificate-authority={self.authority.certificate}",
            "--kubelet-preferred-address-types=InternalIP", "--authorization-mode=Node,RBAC", "--allow-privileged",
            f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", f"--service-cluster-ip-range={SERVICES}", "--profiling=false",
            f"--cert-dir={self.folder}"])
