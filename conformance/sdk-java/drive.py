"""Starts the fleet that the Java SDK's checks run against, then the checks. usage: drive.py BIN_DIR CLASSPATH [BLOCK]..."""

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import fleet as fleets  # noqa: E402  (after the path above)
from sdk.world import component  # noqa: E402

TOKEN = "only-for-this-check"


def main(binaries, classes, *blocks):
    # Two short-lived processes: optimising them would take longer than they run.
    java = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", classes, "Checks"]
    with fleets.Fleet(binaries) as fleet:
        folder = fleet.dir / "resources"
        folder.mkdir()
        (folder / "all.yaml").write_text("---\n".join([
            component("actors", "state.sqlite", connectionString=fleet.dir / "actors.db", actorStateStore="true"),
            component("events", "pubsub.sqlite", connectionString=fleet.dir / "events.db", redeliverInterval="100ms",
                      protectedTopics="secret")]))
        flags = [f"--resources-path={folder}"]
        fleet.control_plane()
        (port,) = fleets.free_ports(1)
        ports = fleets.free_ports(4)
        fleet.app("app", [*java, "app", str(port)], port,
                  {"DAPR_HTTP_PORT": str(ports[0]), "DAPR_GRPC_PORT": str(ports[1])})
        app = fleet.sidecar("app", port, flags=flags, ports=ports)
        caller = fleet.sidecar("caller", env={"DAPR_API_TOKEN": TOKEN}, flags=flags)
        env = {"DAPR_API_TOKEN": TOKEN, "DAPR_HTTP_PORT": str(caller.http), "DAPR_GRPC_PORT": str(caller.grpc),
               "CHECK_APP": app.app_id, "CHECK_APP_HTTP_PORT": str(app.http), "CHECK_APP_GRPC_PORT": str(app.grpc)}
        status = subprocess.run([*java, *blocks], env={**os.environ, **env}).returncode
        if status != 0:
            fleet.keep_logs()
    return status


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
