"""The images of a cluster's pods besides ours. None comes from a registry: each has programs of this machine."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "images"))
import oci  # noqa: E402
from machine import shell  # noqa: E402
from node import PAUSE  # noqa: E402

REGISTRY = "cluster"
# Those of the control plane and sidecars.
PARTS = ("daprd", "sentry", "placement", "scheduler", "operator", "injector")


def linked(program):
    """A program of the machine, in /, and the libraries that it needs."""
    yield oci.program(pathlib.Path(program).name, program)
    found = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    for library in re.findall(r"(/\S+) \(0x", found):
        yield oci.program(library, library)


def own(folder, programs):
    """Writes the images of the cluster itself and of its apps as a layout; returns it."""
    pause = folder / "pause"
    shell("cc", "-static", "-Os", "-s", "-o", pause, HERE / "pause.c")
    layout = oci.Layout(folder / "own", compress=False)
    system = [oci.File("etc/passwd", b"root:x:0:0::/:/\nnobody:x:65534:65534::/:/\n"), oci.File("tmp", mode=0o1777)]

    def add(name, files, *command):
        layout.image(name, [layout.layer([*system, *files])], {"Entrypoint": list(command)} if command else None)

    add(PAUSE, [oci.program("pause", pause)], "/pause")
    add(f"{REGISTRY}/coredns:1", [oci.program("coredns", programs / "coredns")], "/coredns")
    add(f"{REGISTRY}/app:1", [oci.program("app", programs / "sdk-go-cluster")], "/app", "8080")
    if (programs / "fortio").exists():
        add(f"{REGISTRY}/fortio:1", [oci.program("fortio", programs / "fortio")], "/fortio")
    if redis := shutil.which("redis-server"):
        add(f"{REGISTRY}/redis:1", list(linked(redis)), "/redis-server")
    layout.write()
    return layout.folder


def theirs(folder, binaries, version):
    """Writes Dapr's images, from its binaries, as its chart names them; returns the layout."""
    layout = oci.Layout(folder / f"dapr-{version}", compress=False)
    user = {"User": f"{oci.USER}:{oci.USER}", "WorkingDir": "/"}
    for name in PARTS:
        if (binaries / name).exists():
            # As Dapr builds its images.
            shell("strip", "-o", folder / name, binaries / name)
            files = [oci.program(name, folder / name), oci.File("tmp", mode=0o1777),
                     oci.File("etc/passwd", f"nonroot:x:{oci.USER}:{oci.USER}::/:/\n".encode())]
            layout.image(f"dapr/{name}:{version}", [layout.layer(files)], user)
            (folder / name).unlink()
    layout.write()
    return layout.folder


def archive(layout, path):
    """The images of a layout as the archive that containerd reads; without documents, and without the image of all programs."""
    index = json.loads((layout / "index.json").read_text())
    blobs, kept = set(), []
    for one in index["manifests"]:
        name = one.get("annotations", {}).get("io.containerd.image.name", "")
        if not name or "/dapr:" in name:
            continue
        manifest = json.loads((layout / "blobs" / one["digest"].replace(":", "/")).read_text())
        blobs |= {one["digest"], manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])}
        # As the kubelet's runtime completes names.
        kept.append({**one, "annotations": {"io.containerd.image.name": f"docker.io/{name}"}})
    changed = path.with_suffix(".index")
    changed.write_text(json.dumps({**index, "manifests": kept}))
    with tarfile.open(path, mode="w") as tar:
        tar.add(layout / "oci-layout", "oci-layout")
        tar.add(changed, "index.json")
        for digest in sorted(blobs):
            inside = f"blobs/{digest.replace(':', '/')}"
            tar.add(layout / inside, inside)
    return path
