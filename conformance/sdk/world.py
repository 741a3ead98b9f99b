"""The sidecars and apps shared by the checks of all blocks."""

import os
import pathlib
import sys
import time

import fleet as fleets

HERE = pathlib.Path(__file__).resolve().parent
TOKEN = "only-for-this-check"
APP_TOKEN = "from-the-sidecar"
TIMEOUT = 20
CONFIGURATION = """
apiVersion: dapr.io/v1alpha1
kind: Configuration
metadata: {name: sdk}
spec: {features: [{name: ActorStateTTL, enabled: true}]}
"""
started = {}


def start(fleet, blocks):
    """Three sidecars: one for each app, and one without app that requires an API token. All load the resources that the blocks'
    `resources(folder)` return as YAML documents; `folder` may hold further files."""
    folder = fleet.dir / "resources"
    folder.mkdir()
    data = fleet.dir / "data"
    data.mkdir()
    started.update(fleet=fleet, data=data)
    # The store of actors and workflows; a sidecar supports one for both.
    (folder / "world.yaml").write_text(
        component("actors", "state.sqlite", connectionString=data / "actors.db", actorStateStore="true"))
    for block in blocks:
        if hasattr(block, "resources"):
            name = block.__name__.split(".")[-1]
            (folder / f"{name}.yaml").write_text("---\n".join(block.resources(data)))
    config = fleet.dir / "config.yaml"
    config.write_text(CONFIGURATION)
    flags = [f"--resources-path={folder}", f"--config={config}"]
    fleet.control_plane()
    http_port, grpc_port = fleets.free_ports(2)
    ports = fleets.free_ports(4)
    # An app with actors waits for its sidecar before it listens, while the sidecar waits for the app.
    fleet.start("app-http", [sys.executable, HERE / "app_http.py", str(http_port)], {"DAPR_HTTP_PORT": str(ports[0])})
    fleet.app("app-grpc", [sys.executable, HERE / "app_grpc.py", str(grpc_port)], grpc_port)
    started.update(
        app=f"http://127.0.0.1:{http_port}",
        http=fleet.sidecar("http", http_port, env={"APP_API_TOKEN": APP_TOKEN}, flags=flags, ports=ports),
        grpc=fleet.sidecar("grpc", grpc_port, "grpc", flags=flags),
        caller=fleet.sidecar("caller", env={"DAPR_API_TOKEN": TOKEN}, flags=flags),
    )
    # The SDK reads its settings once, at import.
    os.environ.update(
        DAPR_HTTP_PORT=str(started["caller"].http),
        DAPR_GRPC_PORT=str(started["caller"].grpc),
        DAPR_API_TOKEN=TOKEN,
        DAPR_HEALTH_TIMEOUT="20",
    )


def client(protocol="http"):
    """An SDK client of the caller's sidecar that invokes over this protocol."""
    from dapr.clients import DaprClient
    from dapr.conf import settings
    settings.DAPR_API_METHOD_INVOCATION_PROTOCOL = protocol
    return DaprClient()


def beside(name):
    """An SDK client of an app's sidecar, which requires no token."""
    from dapr.clients import DaprClient
    return DaprClient(address=f"127.0.0.1:{started[name].grpc}")


def taken(name, what, count=1, matching=lambda _: True):
    """An app's events of a topic or job, once there are this many; `matching` filters them."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        with client("http" if name == "http" else "grpc") as dapr:
            told = dapr.invoke_method(started[name].app_id, "taken", http_verb="GET").json()
        found = [event for event in told.get(what, []) if matching(event)]
        if len(found) >= count:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"the app {name} took {len(found)} of {what}, not {count}: {told.get(what)}")
        time.sleep(0.05)


def component(name, kind, **properties):
    """A Component resource, as YAML."""
    items = "".join(f"  - name: {key}\n    value: '{value}'\n" for key, value in properties.items())
    return (f"apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\n"
            f"spec:\n  type: {kind}\n  version: v1\n" + (f"  metadata:\n{items}" if items else ""))
