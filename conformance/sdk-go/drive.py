"""Starts the fleet that the Go SDK's checks run against, then the checks. usage: drive.py BIN_DIR CHECKS [BLOCK]...

CHECKS is the program built from this folder; it also serves the apps.
"""

import json
import pathlib
import sqlite3
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import fleet as fleets  # noqa: E402  (after the path above)
import servers  # noqa: E402
from sdk.world import CONFIGURATION, component  # noqa: E402

TOKEN = "only-for-this-check"
DECLARED = """
apiVersion: dapr.io/v2alpha1
kind: Subscription
metadata: {{name: declared}}
scopes: [{}]
spec: {{pubsubname: broker, topic: declared, routes: {{default: /declared}}}}
"""


def resources(fleet, data):
    """The components, as YAML documents; whether PostgreSQL is among them."""
    secrets = data / "secrets.json"
    secrets.write_text(json.dumps({"plain": "sesame", "nested": {"user": "ahoy"}}))
    keys = data / "keys"
    keys.mkdir()
    (keys / "symmetric").write_bytes(bytes(range(32)))
    documents = [
        component("keys", "crypto.dapr.localstorage", path=keys),
        component("echo", "conversation.echo"),
        component("sqlite", "state.sqlite", connectionString=data / "state.db"),
        component("memory", "state.in-memory"),
        component("vault", "secretstores.local.file", secretsFile=secrets),
        component("settings", "configuration.sqlite", connectionString=data / "settings.db", pollInterval="50ms"),
        component("files", "bindings.localstorage", rootPath=data / "files"),
        component("locks", "lock.sqlite", connectionString=data / "locks.db"),
    ]
    try:
        postgres = servers.Postgres(fleet)
    except servers.Missing as missing:
        print(f"skipped: queries: {missing}")
        return documents, False
    return [*documents, component("postgres", "state.postgresql", connectionString=postgres.text)], True


def tick(file, stop):
    """Writes configuration like another process, ten times a second."""
    database = sqlite3.connect(file, timeout=10)
    write = "INSERT OR REPLACE INTO configuration (key, value, version) VALUES (?, ?, ?)"
    with database:
        database.execute(write, ("still", "water", "7"))
    number = 0
    while not stop.wait(0.1):
        number += 1
        with database:
            database.execute(write, ("ticking", str(number), str(number)))
    database.close()


def main(binaries, checks, *blocks):
    with fleets.Fleet(binaries) as fleet:
        data, folder = fleet.dir / "data", fleet.dir / "resources"
        data.mkdir()
        folder.mkdir()
        documents, postgres = resources(fleet, data)
        (folder / "all.yaml").write_text("---\n".join(documents))
        # Resources for all sidecars: for events of apps, actors and workflows.
        shared = fleet.dir / "shared"
        shared.mkdir()
        (shared / "all.yaml").write_text("---\n".join([
            component("clock", "bindings.cron", schedule="@every 200ms", direction="input"),
            component("broker", "pubsub.sqlite", connectionString=data / "events.db", redeliverInterval="100ms",
                      protectedTopics="secret"),
            component("actors", "state.sqlite", connectionString=data / "actors.db", actorStateStore="true"),
            DECLARED.format(f"http-{fleet.suffix}")]))
        config = fleet.dir / "config.yaml"
        config.write_text(CONFIGURATION)
        flags = [f"--resources-path={shared}", f"--config={config}"]
        fleet.control_plane()
        http_port, grpc_port = fleets.free_ports(2)
        ports = fleets.free_ports(4)
        # Actors access their state through their own sidecar.
        fleet.app("app-http", [checks, "app-http", str(http_port)], http_port, {"DAPR_GRPC_PORT": str(ports[1])})
        fleet.app("app-grpc", [checks, "app-grpc", str(grpc_port)], grpc_port)
        http = fleet.sidecar("http", http_port, flags=flags, ports=ports)
        grpc = fleet.sidecar("grpc", grpc_port, "grpc", flags=flags)
        caller = fleet.sidecar("caller", env={"DAPR_API_TOKEN": TOKEN}, flags=[*flags, f"--resources-path={folder}"])
        stop = threading.Event()
        writer = threading.Thread(target=tick, args=(data / "settings.db", stop))
        writer.start()
        env = {"DAPR_GRPC_PORT": str(caller.grpc), "DAPR_API_TOKEN": TOKEN, "CHECK_HTTP_APP": http.app_id,
               "CHECK_GRPC_APP": grpc.app_id, "CHECK_CALLER": caller.app_id,
               "CHECK_HTTP_PORT": str(http.grpc), "CHECK_GRPC_PORT": str(grpc.grpc), "CHECK_POSTGRES": "1" if postgres else ""}
        try:
            status = subprocess.run([checks, *blocks], env=env).returncode
        finally:
            stop.set()
            writer.join()
        if status != 0:
            fleet.keep_logs()
    return status


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
