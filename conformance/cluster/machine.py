"""Namespaces, processes and cgroups of a cluster on one machine.

Everything runs in the PID, mount and network namespace of this process, so that it ends with it. Only cgroups outlive them;
the script `run` removes those.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import time

# The network of the nodes; its bridge is in the namespace of this process.
FABRIC = "10.88.0.{}"
CGROUPS = pathlib.Path("/sys/fs/cgroup")
# A kubelet sets these for the whole machine unless they have these values already. The nodes see files instead.
KERNEL = {"vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
          "kernel/keys/root_maxkeys": 1000000, "kernel/keys/root_maxbytes": 25000000}
# The entry script of a node's namespaces. It runs until the node ends.
BEGIN = """
set -e
state=$1
ip link set lo up
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/netns /run/lock
mount -t overlay -o "lowerdir=/var/lib,upperdir=$state/upper,workdir=$state/work" overlay /var/lib
mount --bind "$state/log" /var/log
for file in "$state"/kernel/*; do
  name=$(basename "$file" | tr : /)
  [ ! -e "/proc/sys/$name" ] || mount --bind "$file" "/proc/sys/$name"
done
sysctl -q -w net.ipv4.ip_forward=1
touch "$state/begun"
exec sleep infinity
"""


def shell(*command, **options):
    """Runs a command; raises with what it printed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise OSError(f"{' '.join(map(str, command))}: {done.returncode} {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def hierarchies():
    """The roots of cgroups: one, or that of each controller."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [one for one in CGROUPS.iterdir() if one.is_dir() and not one.is_symlink() and (one / "cgroup.procs").exists()]


def cgroup(path):
    """Creates a cgroup in each hierarchy."""
    for root in hierarchies():
        at = root
        for part in path.strip("/").split("/"):
            if (at / "cgroup.subtree_control").exists():
                for controller in ("cpu", "cpuset", "memory", "pids", "io", "hugetlb"):
                    try:
                        (at / "cgroup.subtree_control").write_text(f"+{controller}")
                    except OSError:
                        pass  # not in this hierarchy
            at /= part
            at.mkdir(exist_ok=True)
            # A new cpuset is empty, and no process can join it.
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (at / name).exists() and not (at / name).read_text().strip():
                    (at / name).write_text((at.parent / name).read_text())


class Machine:
    """Starts processes with logs in a folder; a context manager that stops them."""

    def __init__(self, folder, cgroups):
        self.folder, self.cgroups = pathlib.Path(folder), cgroups
        self.processes = {}
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)

    def __enter__(self):
        shell("ip", "link", "set", "lo", "up")
        shell("ip", "link", "add", "fabric", "type", "bridge")
        shell("ip", "addr", "add", FABRIC.format(1) + "/24", "dev", "fabric")
        shell("ip", "link", "set", "fabric", "up")
        return self

    def __exit__(self, *_):
        for name in reversed(list(self.processes)):
            self.stop(name, 2)

    def log(self, name):
        return self.folder / "logs" / f"{name}.log"

    def start(self, name, command, **options):
        """Starts a process; its output goes to a log."""
        with open(self.log(name), "ab") as log:
            self.processes[name] = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log,
                                                    stderr=log, **options)
        return self.processes[name]

    def stop(self, name, seconds=10, number=signal.SIGTERM):
        """Stops a process, with SIGKILL after some seconds."""
        process = self.processes.pop(name)
        process.send_signal(number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def check(self):
        """Raises if a process ended."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                last = self.log(name).read_text(errors="replace").splitlines()[-3:]
                raise OSError(f"{name} ended with {process.returncode}: {' | '.join(last)[-900:]}; its log is {self.log(name)}")


class Namespaces:
    """The network, mounts and host name of a node."""

    def __init__(self, machine, name, number):
        self.machine, self.name, self.number = machine, name, number
        self.address = FABRIC.format(10 + number)
        self.folder = machine.folder / name
        for part in ("upper", "work", "log/pods", "log/containers", "kernel"):
            (self.folder / part).mkdir(parents=True)
        for path, value in KERNEL.items():
            (self.folder / "kernel" / path.replace("/", ":")).write_text(f"{value}\n")
        self.begin()

    def begin(self):
        """Creates the namespaces, also again after `end`."""
        begun = self.folder / "begun"
        begun.unlink(missing_ok=True)
        holder = self.machine.start(f"{self.name}-namespaces", [
            "unshare", "--net", "--mount", "--uts", "--propagation", "shared", "sh", "-c", BEGIN, "sh", self.folder])
        self.pid = holder.pid
        deadline = time.monotonic() + 20
        while not begun.exists():
            self.machine.check()
            if time.monotonic() > deadline:
                raise OSError(f"the namespaces of {self.name} did not begin")
            time.sleep(0.02)
        self.inside("hostname", self.name)
        shell("ip", "link", "add", self.name, "type", "veth", "peer", "name", "eth0", "netns", self.pid)
        shell("ip", "link", "set", self.name, "master", "fabric", "up")
        self.inside("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        self.inside("ip", "link", "set", "eth0", "up")
        # Without a default route the API server does not accept addresses of services.
        self.inside("ip", "route", "add", "default", "via", FABRIC.format(1))

    def enter(self, *command):
        """A command within the namespaces."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", f"--mount=/proc/{self.pid}/ns/mnt",
                f"--uts=/proc/{self.pid}/ns/uts", *command]

    def inside(self, *command, **options):
        return shell(*self.enter(*command), **options)

    def end(self, cgroups):
        """Kills everything in the namespaces and in the cgroups of the node's pods, as a power failure does."""
        mounts = os.readlink(f"/proc/{self.pid}/ns/mnt")
        for name in [one for one in self.machine.processes if one.startswith(f"{self.name}-")]:
            self.machine.stop(name, number=signal.SIGKILL)
        while left := [*within(mounts), *members(cgroups)]:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        remove(cgroups)
        # The namespace's end removes it too, but later.
        with contextlib.suppress(OSError):
            shell("ip", "link", "del", self.name)

    def start(self, name, command, **options):
        return self.machine.start(f"{self.name}-{name}", self.enter(*command), **options)

    def stop(self, name, **options):
        self.machine.stop(f"{self.name}-{name}", **options)


def remove(path):
    """Removes the cgroups below a cgroup, in each hierarchy."""
    for root in hierarchies():
        for folder in sorted((one for one in (root / path.strip("/")).rglob("*") if one.is_dir()), reverse=True):
            folder.rmdir()


def within(mounts):
    """Processes of a mount namespace. One that ended has none."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(folder / "ns/mnt") == mounts:
                yield int(folder.name)


def members(path):
    """Processes of a cgroup and of those below, in any hierarchy."""
    return {int(pid) for root in hierarchies() for file in (root / path.strip("/")).rglob("cgroup.procs")
            for pid in file.read_text().split()}


def environment(*folders):
    """Of programs that run others."""
    return {"PATH": ":".join([*map(str, folders), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]),
            "HOME": os.environ.get("HOME", "/root")}
