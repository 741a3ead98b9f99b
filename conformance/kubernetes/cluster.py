"""A cluster without nodes: etcd and a kube-apiserver, and what stands in for the kubelet, for kube-proxy and for DNS.

Everything is in a network of its own. A pod is a process with an address there, which sees the volumes of its container where
they are mounted, a root that cannot be written, and nothing but its variables.
"""

import asyncio
import base64
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import fleet as fleets
from api import ADDRESS, ADMIN, TIMEOUT, Api, Refused, wait

PODS = "10.244.1.{}"
SERVICES = "10.96.0.0/16"
DOMAIN = "cluster.local"
# The user of our images.
USER = 65532
# What controllers would make: they are not here.
ROOT_CA = "kube-root-ca.crt"
# What a process of a pod does first.
BEGIN = """
set -e
bin=$1 etcd=$2 resolv=$3 user=$4 address=$5 binds=$6
shift 6
until ip link show eth0 >/dev/null 2>&1; do sleep 0.01; done
ip link set lo up
ip link set eth0 up
ip addr add "$address/16" dev eth0
ip route add default via %s
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/bin /run/etcd
mount --bind "$bin" /run/bin
mount --bind "$etcd" /run/etcd
mount --bind "$resolv" /etc/resolv.conf
printf '%%s\\n' "$binds" | while read -r from to; do
  [ -n "$to" ] || continue
  mkdir -p "$to"
  mount --bind "$from" "$to"
done
mount -o remount,bind,ro /run
mount -o remount,bind,ro /
cd /
[ -z "$user" ] || set -- setpriv --reuid="$user" --regid="$user" --clear-groups "$@"
exec "$@"
""" % ADDRESS


def ip(*lines):
    """Commands of ip, of one group."""
    done = subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"ip: {lines}: {done.stderr}")


def private_key():
    """An EC key, as PEM (RFC 5915). Any 32 bytes will do that are smaller than the order of P-256."""
    der = bytes.fromhex("30310201010420") + b"\x01" + os.urandom(31) + bytes.fromhex("a00a06082a8648ce3d030107")
    return f"-----BEGIN EC PRIVATE KEY-----\n{base64.b64encode(der).decode()}\n-----END EC PRIVATE KEY-----\n"


class Cluster:
    """etcd, the API server, DNS and services; a context manager. Processes belong to a fleet of the other checks."""

    def __init__(self, fleet, server, binaries):
        self.fleet, self.server, self.binaries = fleet, server, pathlib.Path(binaries).resolve()
        fleet.dir.chmod(0o755)
        self.folder = fleet.dir / "cluster"
        self.folder.mkdir()
        self.audit = self.folder / "audit.log"
        self.program = pathlib.Path(shutil.which("etcd")).resolve()
        self.etcd, self.port = fleets.free_ports(2)
        # What the API server generates: its certificate, and after it the authority.
        self.authority = self.folder / "apiserver.crt"
        self.api = Api(self.port, self.authority)
        # Services by name, addresses that are listened at for them, and pods by process.
        self.services, self.listening, self.pods = {}, set(), {}
        # Pods with a process that runs, or is about to.
        self.exists = {}
        # The parts of the log of calls in which the API server was starting.
        self.unready = []
        # Of pods, by namespace and name.
        self.addresses, self.links = {}, 0
        # The link of the last process at an address.
        self.plugged = {}
        # What config maps, secrets and tokens are written to: folders, and of which pod and volume.
        self.volumes = {}

    def __enter__(self):
        # Without an address of its own a bridge has that of a port, which its neighbours would have to learn again.
        ip("link add name br0 address 02:00:0a:f4:00:01 type bridge", f"addr add {ADDRESS}/16 dev br0", "link set br0 up",
           # All of it is this machine's then.
           "addr add 10.96.255.254/16 dev lo")
        threading.Thread(target=self._dns, daemon=True).start()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        peers, = fleets.free_ports(1)
        clients, others = f"http://127.0.0.1:{self.etcd}", f"http://127.0.0.1:{peers}"
        self.fleet.app("app-etcd", [
            str(self.program), "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", clients,
            "--advertise-client-urls", clients, "--listen-peer-urls", others, "--initial-advertise-peer-urls", others,
            "--initial-cluster", f"default={others}", "--unsafe-no-fsync"], self.etcd, timeout=TIMEOUT)
        (self.folder / "tokens").write_text(f'{ADMIN},admin,0,"system:masters"\n')
        (self.folder / "account.key").write_text(private_key())
        rules = [{"level": "None", "users": ["admin", "system:apiserver"]},
                 {"level": "Metadata", "omitStages": ["RequestReceived"]}]
        (self.folder / "audit.json").write_text(
            json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))
        self.start_server()
        for name in ("default", "kube-system"):
            wait(f"the namespace {name}", lambda name=name: not self.api.missing(f"/api/v1/namespaces/{name}"))
        return self

    def __exit__(self, *_):
        for name in ("app-apiserver", "app-etcd"):
            if name in self.fleet.processes:
                self.fleet.kill(name)

    @contextlib.contextmanager
    def away(self):
        """Ends the API server, and starts it again."""
        begun = self.audit.stat().st_size
        self.fleet.kill("app-apiserver")
        try:
            yield
        finally:
            self.start_server()
            # It refuses everybody who is faster than it reads its roles.
            self.unready.append((begun, self.audit.stat().st_size))

    @contextlib.contextmanager
    def elsewhere(self):
        """Ends the API server, and starts it again. Meanwhile there is one at another port, which pods do not know."""
        with self.away():
            port = self.port
            self.port = self.api.port = fleets.free_ports(1)[0]
            try:
                self.start_server()
                yield
            finally:
                self.fleet.kill("app-apiserver")
                self.port = self.api.port = port

    @contextlib.contextmanager
    def slow(self, stopped=0.4, running=0.1):
        """Stops etcd for most of the time, in seconds: whatever the API server asks of it takes that long."""
        etcd, over = self.fleet.processes["app-etcd"], threading.Event()

        def hold():
            while not over.is_set():
                etcd.send_signal(signal.SIGSTOP)
                over.wait(stopped)
                etcd.send_signal(signal.SIGCONT)
                over.wait(running)
        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @contextlib.contextmanager
    def frozen(self):
        """Stops etcd."""
        etcd = self.fleet.processes["app-etcd"]
        etcd.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            etcd.send_signal(signal.SIGCONT)

    def compact(self):
        """Makes etcd forget all versions but the newest."""
        def ask(path, body):
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.etcd, timeout=30)) as connection:
                connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
            if answer.status != 200:
                raise OSError(f"etcd: {path}: {answer.status} {text[:200]}")
            return json.loads(text)
        newest = ask("/v3/maintenance/status", {})["header"]["revision"]
        ask("/v3/kv/compaction", {"revision": newest})

    def start_server(self):
        """Starts the API server, and waits until it is ready."""
        folder = self.folder
        self.fleet.start("app-apiserver", [
            str(self.server), f"--etcd-servers=http://127.0.0.1:{self.etcd}", f"--secure-port={self.port}",
            f"--advertise-address={ADDRESS}", f"--cert-dir={folder}", f"--token-auth-file={folder / 'tokens'}",
            f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}", "--authorization-mode=RBAC",
            f"--service-account-key-file={folder / 'account.key'}", f"--service-cluster-ip-range={SERVICES}",
            f"--service-account-signing-key-file={folder / 'account.key'}", "--endpoint-reconciler-type=none",
            f"--audit-policy-file={folder / 'audit.json'}", f"--audit-log-path={self.audit}", "--profiling=false"])
        self.fleet.until("app-apiserver", self.ready, "/readyz", TIMEOUT)

    def ready(self):
        """Whether the API server is ready: it says so, with what it asks of etcd."""
        try:
            return self.authority.exists() and self.api.get("/readyz") == "ok"
        except (Refused, http.client.HTTPException):
            return False

    def namespace(self, name):
        """A namespace, with what controllers put there."""
        if self.api.missing(f"/api/v1/namespaces/{name}"):
            self.api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        self.account(name, "default")
        self.api.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": ROOT_CA, "namespace": name},
                        "data": {"ca.crt": self.authority.read_text()}})

    def account(self, namespace, name):
        """A service account."""
        return self.api.apply({"apiVersion": "v1", "kind": "ServiceAccount",
                               "metadata": {"name": name, "namespace": namespace}})

    def token(self, namespace, account, audience=None, pod=None, seconds=3600):
        """A token of an account, for the API server or another audience; of a pod, which it ends with."""
        spec = {"expirationSeconds": max(600, seconds)}
        if audience:
            spec["audiences"] = [audience]
        if pod:
            meta = pod["metadata"]
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return self.api.post(path, asked)["status"]["token"]

    def while_ready(self):
        """All calls but those of times in which the API server was starting."""
        begins = [0, *(end for _, end in self.unready)]
        ends = [*(begin for begin, _ in self.unready), None]
        return [call for begin, end in zip(begins, ends) for call in self.calls(begin, end)]

    def idle(self, seconds):
        """Whether nobody called for so long."""
        before = self.audit.stat().st_size
        time.sleep(seconds)
        return self.audit.stat().st_size == before

    def calls(self, since=0, until=None):
        """What the API server was asked by anybody but the administrator, between two offsets of its log."""
        with open(self.audit, "rb") as log:
            log.seek(since)
            lines = log.read(-1 if until is None else until - since).splitlines()
        found = {}
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # not written to its end yet
            # A watch has two: its begin and its end.
            found.setdefault(event["auditID"], event)
        return list(found.values())

    # Services

    def publish(self):
        """Makes the services known to DNS, and forwards what comes to their addresses."""
        for service in self.api.get("/api/v1/services")["items"]:
            meta, spec = service["metadata"], service["spec"]
            self.services[f"{meta['name']}.{meta['namespace']}.svc.{DOMAIN}"] = service
            for port in spec["ports"] if spec["clusterIP"] != "None" else []:
                place = (spec["clusterIP"], port["port"])
                if spec.get("selector") and place not in self.listening:
                    self.listening.add(place)
                    listen = self._listen(place, service, port["targetPort"])
                    asyncio.run_coroutine_threadsafe(listen, self.loop).result(10)

    def _behind(self, service):
        """The pods of a service that run; of some services, those that are to run as well."""
        meta, spec = service["metadata"], service["spec"]
        pods = {process: pod for process, pod in list(self.pods.items())
                if (running := self.fleet.processes.get(process)) and running.poll() is None}
        if spec.get("publishNotReadyAddresses"):
            pods |= self.exists
        selector = (spec.get("selector") or {}).items()
        return [pod for pod in pods.values()
                if pod["metadata"]["namespace"] == meta["namespace"] and selector <= pod["metadata"]["labels"].items()]

    async def _listen(self, place, service, target):
        async def forward(reader, writer):
            for pod in self._behind(service):
                ports = {port.get("name"): port["containerPort"] for container in pod["spec"]["containers"]
                         for port in container.get("ports", [])}
                try:
                    there = await asyncio.open_connection(self.address(pod), ports.get(target, target))
                    break
                except OSError:
                    continue
            else:
                writer.close()
                return

            async def copy(source, sink):
                try:
                    while data := await source.read(65536):
                        sink.write(data)
                        await sink.drain()
                except OSError:
                    pass
                sink.close()
            await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))
        await asyncio.start_server(forward, *place)

    def _resolve(self, name):
        """Addresses of a service, or of a pod of one; None where there is no such name."""
        if service := self.services.get(name):
            address = service["spec"]["clusterIP"]
            return [self.address(pod) for pod in self._behind(service)] if address == "None" else [address]
        first, _, rest = name.partition(".")
        if rest in self.services:
            return [self.address(pod) for pod in self._behind(self.services[rest]) if pod["metadata"]["name"] == first] or None
        return None

    def _dns(self):
        """Answers questions for addresses of services (RFC 1035)."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
            server.bind((ADDRESS, 53))
            while True:
                asked, who = server.recvfrom(4096)
                labels, at = [], 12
                while length := asked[at]:
                    labels.append(asked[at + 1:at + 1 + length].decode("latin-1").lower())
                    at += 1 + length
                question = asked[12:at + 5]
                found = self._resolve(".".join(labels))
                told = found if found and question[-4:-2] == b"\x00\x01" else []
                flags = 0x8583 if found is None else 0x8580
                answer = asked[:2] + struct.pack(">HHHHH", flags, 1, len(told), 0, 0) + question
                for address in told:
                    answer += b"\xc0\x0c\x00\x01\x00\x01" + struct.pack(">IH", 1, 4) + socket.inet_aton(address)
                server.sendto(answer, who)

    # Pods

    def pod(self, manifest):
        """Creates a pod, which the API server and its webhooks complete."""
        return self.api.post(f"/api/v1/namespaces/{manifest['metadata']['namespace']}/pods",
                             {"apiVersion": "v1", "kind": "Pod", **manifest})

    def address(self, pod):
        """Of a pod."""
        key = pod["metadata"]["namespace"], pod["metadata"]["name"]
        return self.addresses.setdefault(key, PODS.format(len(self.addresses) + 1))

    def start(self, name, pod, container, more=(), binaries=None, clock=0):
        """Starts a container of a pod, as the process `name`; `more` are arguments beside its own, `binaries` is the folder
        of its program if that is another one, and its clock is some seconds ahead."""
        meta = pod["metadata"]
        # Native sidecars are among those that start first.
        every = pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
        container = next(one for one in every if one["name"] == container)
        variables = {one["name"]: self._variable(pod, one) for one in container.get("env", [])}

        def expand(text):
            return re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), text)
        words = [expand(word) for word in container.get("command", []) + container.get("args", [])] + list(more)
        binds = []
        self.forget(name)
        for mount in container.get("volumeMounts", []):
            volume = next((one for one in pod["spec"].get("volumes", []) if one["name"] == mount["name"]),
                          {"name": mount["name"]})
            binds.append((self._volume(name, pod, volume), mount["mountPath"]))
        if clock:
            binds.append((self._clock(), "/run/clock"))
            variables |= {"LD_PRELOAD": "/run/clock/clock.so", "CLOCK_AHEAD": str(clock)}
        # Their sources are below /tmp.
        binds.sort(key=lambda bind: bind[1] == "/tmp")
        resolv = self.folder / f"resolv-{meta['namespace']}"
        search = f"{meta['namespace']}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}"
        resolv.write_text(f"nameserver {ADDRESS}\nsearch {search}\noptions ndots:5\n")
        variables |= {"KUBERNETES_SERVICE_HOST": ADDRESS, "KUBERNETES_SERVICE_PORT": str(self.port),
                      "PATH": "/run/etcd:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        # Where root is the only user of its namespace, nobody else's id can be had.
        begin, _, count = map(int, pathlib.Path("/proc/self/uid_map").read_text().split()[:3])
        user = str(USER) if begin <= USER < begin + count else ""
        if not user:
            variables["DAPR_UNSAFE_SKIP_CONTAINER_UID_GID_CHECK"] = "true"
        words[0] = f"/run/bin/{words[0].lstrip('/')}"
        address = self.address(pod)
        folder = pathlib.Path(binaries or self.binaries).resolve()
        process = self.fleet.start(name, [
            "unshare", "--net", "--mount", "sh", "-c", BEGIN, "sh", str(folder), str(self.program.parent), str(resolv),
            user, address, "\n".join(f"{source} {target}" for source, target in binds),
            "env", "-i", *(f"{key}={value}" for key, value in variables.items()), *words])
        ours = os.readlink("/proc/self/ns/net")
        wait("it has a network of its own", lambda: os.readlink(f"/proc/{process.pid}/ns/net") != ours)
        self._unplug(address)
        self.links += 1
        self.plugged[address] = f"veth{self.links}"
        # The same for a pod at all times: neighbours remember it.
        mac = ":".join(f"{int(part):02x}" for part in ("2", "0", *address.split(".")))
        ip(f"link add name veth{self.links} type veth peer name eth0 address {mac} netns {process.pid}",
           f"link set veth{self.links} master br0 up")
        self.pods[name] = pod

    def _unplug(self, address):
        """Takes the link of who had an address before: its network ends some time after its processes, and answers until then."""
        if link := self.plugged.pop(address, None):
            subprocess.run(["ip", "link", "delete", link], capture_output=True)

    def _clock(self):
        """The folder of the library with the other clock."""
        folder = self.folder / "clock"
        if not folder.exists():
            folder.mkdir()
            source = pathlib.Path(__file__).with_name("clock.c")
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", folder / "clock.so", source], check=True)
        return folder

    def _variable(self, pod, variable):
        source = variable.get("valueFrom")
        if not source:
            return variable.get("value", "")
        if field := source.get("fieldRef"):
            return self._field(pod, field["fieldPath"])
        secret = source["secretKeyRef"]
        found = self.api.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/secrets/{secret['name']}")
        return base64.b64decode(found["data"][secret["key"]]).decode()

    def _field(self, pod, path):
        return {"metadata.name": pod["metadata"]["name"], "metadata.namespace": pod["metadata"]["namespace"],
                "status.podIP": self.address(pod)}[path]

    def _volume(self, process, pod, volume):
        """The folder of a volume, filled."""
        folder = self.folder / "volumes" / process / volume["name"]
        folder.mkdir(parents=True, exist_ok=True)
        if not {"projected", "configMap", "secret"} & volume.keys():
            folder.chmod(0o777)  # emptyDir, or a claim
            return folder
        self.volumes[folder] = (pod, volume)
        self._fill(folder, pod, volume)
        return folder

    def discard(self, process):
        """What a process kept, which will not come back."""
        self.forget(process)
        shutil.rmtree(self.folder / "volumes" / process, ignore_errors=True)

    def forget(self, process):
        """The volumes of a process that will not come back."""
        gone = self.folder / "volumes" / process
        self.volumes = {folder: of for folder, of in self.volumes.items() if folder.parent != gone}

    def refresh(self):
        """Writes what config maps, secrets and tokens are now into the volumes, as a kubelet does now and then."""
        for folder, (pod, volume) in self.volumes.items():
            self._fill(folder, pod, volume)

    def _fill(self, folder, pod, volume):
        namespace = pod["metadata"]["namespace"]
        files = {}

        def take(kind, name, decode, items):
            try:
                data = self.api.get(f"/api/v1/namespaces/{namespace}/{kind}/{name}").get("data") or {}
            except Refused as refused:
                # A kubelet leaves what was there.
                if refused.status == 404 and (folder / "..data").exists():
                    return False
                raise
            wanted = {one["key"]: one["path"] for one in items} if items else {key: key for key in data}
            files.update({path: decode(data[key]) for key, path in wanted.items()})
            return True
        for source in volume["projected"]["sources"] if "projected" in volume else [volume]:
            if token := source.get("serviceAccountToken"):
                files[token["path"]] = self.token(
                    namespace, pod["spec"]["serviceAccountName"], token.get("audience"), pod,
                    token.get("expirationSeconds", 3600)).encode()
            if config := source.get("configMap"):
                if not take("configmaps", config["name"], str.encode, config.get("items")):
                    return
            if secret := source.get("secret"):
                if not take("secrets", secret["secretName"], base64.b64decode, secret.get("items")):
                    return
            for item in source.get("downwardAPI", {}).get("items", []):
                files[item["path"]] = self._field(pod, item["fieldRef"]["fieldPath"]).encode()
        write(folder, files)


def write(folder, files):
    """Writes files so that readers see all of them or none: through a link to a folder."""
    now = folder / f"..{time.monotonic_ns()}"
    now.mkdir()
    for name, data in files.items():
        (now / name).write_bytes(data)
    before = os.readlink(folder / "..data") if (folder / "..data").is_symlink() else None
    os.symlink(now.name, folder / "..next")
    os.replace(folder / "..next", folder / "..data")
    for name in files:
        if not (folder / name).is_symlink():
            os.symlink(f"..data/{name}", folder / name)
    if before:
        shutil.rmtree(folder / before)
