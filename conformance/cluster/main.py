"""Brings up a cluster and runs journeys in it. Run by the script `run`, in namespaces of its own.

usage: main.py STATE CGROUPS PROGRAMS NODES KEEP JOURNEY...
"""

import contextlib
import importlib
import os
import pathlib
import shlex
import signal
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "journeys"), str(HERE.parent)]
from cluster import Cluster  # noqa: E402


def perform(cluster, name):
    """Runs the checks of a journey; returns how many passed and failed."""
    passed = failed = 0
    for what, check in importlib.import_module(name).run(cluster):
        begun = time.monotonic()
        try:
            cluster.machine.check()
            told = check()
        except Exception as error:  # of any kind, because the others still run
            failed += 1
            print(f"failed: {name}: {what}: {str(error)[:1500]}", flush=True)
            if not isinstance(error, (AssertionError, OSError)):
                traceback.print_exc()
        else:
            passed += 1
            cluster.say(f"{name}: {what} ({time.monotonic() - begun:.0f} s){f': {told}' if isinstance(told, str) else ''}")
    return passed, failed


def main():
    state, cgroups, programs, nodes, keep, *names = sys.argv[1:]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    passed = failed = 0
    with Cluster(state, cgroups, programs, int(nodes)) as cluster:
        for number, name in enumerate(names):
            if number:
                cluster.clean()
            one, other = perform(cluster, name)
            passed, failed = passed + one, failed + other
        if keep == "keep":
            client = f"KUBECONFIG={shlex.quote(str(cluster.client.config))} {shlex.quote(programs + '/kubectl')}"
            print(f"use it: nsenter --net=/proc/{os.environ['OUTSIDE']}/ns/net env {client} get pods -A; Ctrl-C ends it", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
