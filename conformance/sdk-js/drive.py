"""Starts the fleet that the JavaScript SDK's checks run against, then the checks. usage: drive.py BIN_DIR [BLOCK]..."""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import fleet as fleets  # noqa: E402  (after the path above)
from sdk.world import component  # noqa: E402

TOKEN = "only-for-this-check"


def main(binaries, *blocks):
    with fleets.Fleet(binaries) as fleet:
        folder = fleet.dir / "resources"
        folder.mkdir()
        (folder / "all.yaml").write_text("---\n".join([
            component("state", "state.in-memory"),
            component("actors", "state.sqlite", connectionString=fleet.dir / "actors.db", actorStateStore="true"),
            component("events", "pubsub.sqlite", connectionString=fleet.dir / "events.db", redeliverInterval="100ms",
                      protectedTopics="secret")]))
        flags = [f"--resources-path={folder}"]
        fleet.control_plane()
        sidecars = {}
        for kind in ("http", "grpc"):
            (port,) = fleets.free_ports(1)
            ports = fleets.free_ports(4)
            # The app listens before it waits for its sidecar.
            own = ports[1 if kind == "grpc" else 0]
            fleet.app(f"app-{kind}", ["node", HERE / "app.js", kind, str(port), str(own)], port)
            sidecars[kind] = fleet.sidecar(kind, port, kind, flags=flags, ports=ports)
        caller = fleet.sidecar("caller", env={"DAPR_API_TOKEN": TOKEN}, flags=flags)
        env = {"DAPR_API_TOKEN": TOKEN, "CHECK_HTTP_PORT": str(caller.http), "CHECK_GRPC_PORT": str(caller.grpc),
               "CHECK_HTTP_APP": sidecars["http"].app_id, "CHECK_GRPC_APP": sidecars["grpc"].app_id,
               "CHECK_CALLER": caller.app_id}
        status = subprocess.run(["node", HERE / "checks.js", *blocks], env={**os.environ, **env}).returncode
        if status != 0:
            fleet.keep_logs()
    return status


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
