"""A separate network for a script with fixed ports, if the system allows it."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys

import suite

MARK = "OUTRIGGER_OWN_NETWORK"


def outside():
    """Whether this is still the shared network."""
    return MARK not in os.environ


def own():
    """Restarts the script in a separate network, if possible, and brings up its loopback.

    Documents and defaults name ports from 50001 on, so outgoing connections there use lower ones.
    """
    if not outside():
        with socket.socket() as any_socket:
            # SIOCSIFFLAGS: IFF_UP and IFF_RUNNING on `lo`.
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
        with contextlib.suppress(OSError):
            pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("32768 49999")
        stop_by_signals()
        return
    unshare = ["unshare", "--net"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
    if shutil.which("unshare") and subprocess.run([*unshare, "true"], capture_output=True).returncode == 0:
        env = dict(os.environ, **{MARK: "yes", "PEER_CACHE": str(suite.cache())})
        os.execvpe(unshare[0], [*unshare, sys.executable, *sys.argv], env)
    stop_by_signals()


def stop_by_signals():
    """`kill` and a closed terminal end the script as Ctrl-C does: with everything that it started, and without a traceback."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    shown = sys.excepthook
    sys.excepthook = lambda kind, *rest: None if kind is KeyboardInterrupt else shown(kind, *rest)
