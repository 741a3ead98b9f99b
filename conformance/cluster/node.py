"""A node: containerd with runc, a kubelet, kube-proxy and the network of its pods."""

import json
import pathlib
import shutil

from control import DNS, DOMAIN, PODS
from machine import Namespaces, cgroup, environment, shell

SOCKET = "/run/containerd/containerd.sock"
PAUSE = "cluster/pause:1"
# MiB for volumes and for files of the kubelet.
DISK = 400
# Gives a process another clock.
FAKETIME = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
CONTAINERD = """version = 2
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Processes of the machine may be refused a lower score than their own.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


class Node:
    """Starts in the namespaces of a node; its pods are 10.244.NUMBER.0/24."""

    def __init__(self, machine, number):
        self.machine, self.number, self.name = machine, number, f"node{number}"
        self.space = Namespaces(machine, self.name, number)
        self.address, self.folder = self.space.address, self.space.folder
        self.pods = f"10.244.{number}.0/24"
        self.cgroups = f"{machine.cgroups}/{self.name}"
        cgroup(self.cgroups)
        shell("ip", "route", "add", self.pods, "via", self.address)

    def begin(self, others):
        """Starts containerd, when the namespaces exist."""
        for other in others:
            self.space.inside("ip", "route", "add", other.pods, "via", other.address)
        self.start_containerd()

    def start(self, *words, **options):
        return self.space.start(*words, **options)

    def start_containerd(self):
        (self.folder / "cni").mkdir(exist_ok=True)
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [
            {"type": "ptp", "ipam": {"type": "host-local", "dataDir": "/run/cni-pods", "ranges": [[{"subnet": self.pods}]],
                                     "routes": [{"dst": "0.0.0.0/0"}]}},
            {"type": "portmap", "capabilities": {"portMappings": True}}]}))
        config = self.folder / "containerd.toml"
        config.write_text(CONTAINERD.format(folder=self.folder, socket=SOCKET, pause=PAUSE))
        self.start("containerd", ["containerd", "--config", config], env=environment())

    def ctr(self, *words, **options):
        return self.space.inside("ctr", "--address", SOCKET, "--namespace", "k8s.io", *words, **options)

    def load(self, archive):
        """Loads the images of an archive."""
        self.ctr("images", "import", archive)

    def start_kubelet(self, control, programs):
        certificate, key = control.authority.issue(self.name, f"/CN={self.name}", f"IP:{self.address}", f"DNS:{self.name}")
        (self.folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        # A disk that a check can fill without filling that of the machine.
        self.disk = self.folder / "kubelet"
        self.disk.mkdir(exist_ok=True)
        self.space.inside("mount", "-t", "tmpfs", "-o", f"size={DISK}m,mode=755", "tmpfs", self.disk)
        config = self.folder / "kubelet.json"
        config.write_text(json.dumps({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True},
                               "x509": {"clientCAFile": str(control.authority.certificate)}},
            "authorization": {"mode": "Webhook"}, "address": self.address, "healthzBindAddress": "127.0.0.1",
            "tlsCertFile": str(certificate), "tlsPrivateKeyFile": str(key),
            "cgroupDriver": "cgroupfs", "cgroupRoot": self.cgroups, "failCgroupV1": False, "failSwapOn": False, "oomScoreAdj": 0,
            "clusterDNS": [DNS], "clusterDomain": DOMAIN, "resolvConf": str(self.folder / "resolv.conf"),
            "containerRuntimeEndpoint": f"unix://{SOCKET}", "volumePluginDir": str(self.folder / "plugins"),
            # The roots that sentry writes reach mounted volumes at this interval, by default a minute.
            "syncFrequency": "10s", "nodeStatusUpdateFrequency": "5s",
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "5%"}, "evictionPressureTransitionPeriod": "10s",
            # Images that are loaded cannot be fetched again.
            "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99}))
        self.kubelet = [programs / "kubelet", f"--config={config}", f"--kubeconfig={control.config(f'system:node:{self.name}')}",
                        f"--hostname-override={self.name}", f"--node-ip={self.address}", f"--root-dir={self.disk}",
                        f"--cert-dir={self.disk}"]
        self.environment = environment()
        self.start("kubelet", self.kubelet, env=self.environment)

    def start_proxy(self, control, programs):
        config = self.folder / "proxy.json"
        none = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
        config.write_text(json.dumps({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "iptables",
            "clusterCIDR": PODS, "conntrack": none, "oomScoreAdj": 0, "hostnameOverride": self.name,
            "clientConnection": {"kubeconfig": str(control.config("system:kube-proxy"))},
            "healthzBindAddress": "127.0.0.1:10256", "metricsBindAddress": "127.0.0.1:10249"}))
        self.start("proxy", [programs / "kube-proxy", f"--config={config}"], env=environment())


def missing():
    """What a machine lacks."""
    for program, package in {"containerd": "containerd", "runc": "runc", "iptables": "iptables", "conntrack": "conntrack",
                             "openssl": "openssl", "/usr/lib/cni/ptp": "containernetworking-plugins"}.items():
        if not shutil.which(program, path=environment()["PATH"]):
            yield f"{program} is not installed: apt-get install {package}"
    if not FAKETIME:
        yield "libfaketime is not installed: apt-get install libfaketime"
