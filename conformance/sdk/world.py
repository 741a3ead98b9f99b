"""The sidecars and apps that every block's checks share."""

import os
import pathlib
import sys

import fleet as fleets

HERE = pathlib.Path(__file__).resolve().parent
TOKEN = "only-for-this-check"
APP_TOKEN = "from-the-sidecar"
started = {}


def start(fleet, blocks):
    """Three sidecars: one beside each app, and one without an app that asks for an API token. All have the resources
    that the blocks' `resources(folder)` return as YAML documents; what they need beside them goes into the folder."""
    folder = fleet.dir / "resources"
    folder.mkdir()
    data = fleet.dir / "data"
    data.mkdir()
    started.update(fleet=fleet, data=data)
    for block in blocks:
        if hasattr(block, "resources"):
            name = block.__name__.split(".")[-1]
            (folder / f"{name}.yaml").write_text("---\n".join(block.resources(data)))
    flags = [f"--resources-path={folder}"]
    http_port, grpc_port = fleets.free_ports(2)
    fleet.app("app-http", [sys.executable, HERE / "app_http.py", str(http_port)], http_port)
    fleet.app("app-grpc", [sys.executable, HERE / "app_grpc.py", str(grpc_port)], grpc_port)
    started.update(
        app=f"http://127.0.0.1:{http_port}",
        http=fleet.sidecar("http", http_port, env={"APP_API_TOKEN": APP_TOKEN}, flags=flags),
        grpc=fleet.sidecar("grpc", grpc_port, "grpc", flags=flags),
        caller=fleet.sidecar("caller", env={"DAPR_API_TOKEN": TOKEN}, flags=flags),
    )
    # The SDK reads its settings once, when it is imported.
    os.environ.update(
        DAPR_HTTP_PORT=str(started["caller"].http),
        DAPR_GRPC_PORT=str(started["caller"].grpc),
        DAPR_API_TOKEN=TOKEN,
        DAPR_HEALTH_TIMEOUT="20",
    )


def client(protocol="http"):
    """An SDK client of the caller's sidecar that invokes over the protocol named."""
    from dapr.clients import DaprClient
    from dapr.conf import settings
    settings.DAPR_API_METHOD_INVOCATION_PROTOCOL = protocol
    return DaprClient()


def component(name, kind, **properties):
    """A Component resource, as YAML."""
    items = "".join(f"  - name: {key}\n    value: '{value}'\n" for key, value in properties.items())
    return (f"apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\n"
            f"spec:\n  type: {kind}\n  version: v1\n" + (f"  metadata:\n{items}" if items else ""))
