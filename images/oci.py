"""Writes images as an OCI layout, without a container engine. The same input gives the same bytes."""

import gzip
import hashlib
import io
import json
import pathlib
import platform
import subprocess
import tarfile

MEDIA = "application/vnd.oci.image."
EMPTY = b"{}"
# The user of the images, as in distroless images.
USER = 65532
# Processors by the architecture's name in images.
PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}
MACHINE = next((name for name, processor in PROCESSORS.items() if processor == platform.machine()), platform.machine())


class File:
    """An entry of a layer: contents, or the target of a link, or a folder if it has neither."""

    def __init__(self, path, data=None, link=None, mode=None, user=0):
        self.path, self.data, self.link, self.user = path.strip("/"), data, link, user
        self.mode = mode if mode is not None else 0o644 if data is not None else 0o755


def program(path, source):
    return File(path, pathlib.Path(source).read_bytes(), mode=0o755)


def tar(files, when=0):
    """The files and their folders as a tar, in the order of their paths."""
    found = {}
    for one in files:
        for folder in list(pathlib.PurePosixPath(one.path).parents)[:-1]:
            found.setdefault(str(folder), File(str(folder)))
        found[one.path] = one
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, one in sorted(found.items()):
            entry = tarfile.TarInfo(path)
            entry.mode, entry.uid, entry.gid, entry.mtime = one.mode, one.user, one.user, when
            if one.link is not None:
                entry.type, entry.linkname = tarfile.SYMTYPE, one.link
            elif one.data is None:
                entry.type = tarfile.DIRTYPE
            else:
                entry.size = len(one.data)
            archive.addfile(entry, None if one.data is None else io.BytesIO(one.data))
    return out.getvalue()


def package(path, wanted):
    """The files of a Debian package that `wanted` accepts, with links."""
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for entry in archive:
            name = entry.name.removeprefix(".")
            if not wanted(name):
                continue
            if entry.issym():
                yield File(name, link=entry.linkname)
            elif entry.isfile() or entry.islnk():
                yield File(name, archive.extractfile(entry).read(), mode=entry.mode)


class Layout:
    """A folder in the OCI image layout, with any number of images."""

    def __init__(self, folder, when=0, compress=True):
        self.folder, self.when, self.compress = pathlib.Path(folder), when, compress
        self.blobs = self.folder / "blobs" / "sha256"
        self.blobs.mkdir(parents=True, exist_ok=True)
        self.index = []

    def blob(self, data, media, **more):
        """Stores contents; returns their descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        (self.blobs / digest).write_bytes(data)
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data), **more}

    def layer(self, files):
        """Stores a layer; returns its descriptor and the digest of its tar."""
        data = tar(files, self.when)
        plain = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if not self.compress:
            return self.blob(data, MEDIA + "layer.v1.tar"), plain
        return self.blob(gzip.compress(data, 6, mtime=0), MEDIA + "layer.v1.tar+gzip"), plain

    def manifest(self, architecture, layers, config=None, labels=None):
        """Stores an image; returns the descriptor of its manifest."""
        created = subprocess.run(["date", "-u", f"-d@{self.when}", "+%Y-%m-%dT%H:%M:%SZ"], check=True, capture_output=True,
                                 text=True).stdout.strip()
        held = {"created": created, "architecture": architecture, "os": "linux",
                "config": {**(config or {}), "Labels": labels or {}},
                "rootfs": {"type": "layers", "diff_ids": [plain for _, plain in layers]},
                "history": [{"created": created, "created_by": "images/build"} for _ in layers]}
        manifest = {"schemaVersion": 2, "mediaType": MEDIA + "manifest.v1+json",
                    "config": self.blob(encoded(held), MEDIA + "config.v1+json"),
                    "layers": [descriptor for descriptor, _ in layers], "annotations": labels or {}}
        return self.blob(encoded(manifest), MEDIA + "manifest.v1+json", platform={"architecture": architecture, "os": "linux"})

    def tag(self, name, manifests):
        """Names an image, or the images of several architectures as one; returns the descriptor."""
        if len(manifests) == 1:
            found = manifests[0]
        else:
            found = self.blob(encoded({"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": manifests}),
                              MEDIA + "index.v1+json")
        self.index.append({**found, "annotations": {"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name}})
        return found

    def image(self, name, layers, config=None):
        """Adds an image for this machine's architecture."""
        self.tag(name, [self.manifest(MACHINE, layers, config)])

    def attach(self, subject, data, media):
        """Attaches a document to an image, as a referrer (OCI 1.1)."""
        manifest = {"schemaVersion": 2, "mediaType": MEDIA + "manifest.v1+json", "artifactType": media,
                    "config": self.blob(EMPTY, "application/vnd.oci.empty.v1+json"),
                    "layers": [self.blob(data, media)], "subject": subject}
        self.index.append(self.blob(encoded(manifest), MEDIA + "manifest.v1+json", artifactType=media))

    def write(self):
        (self.folder / "oci-layout").write_bytes(encoded({"imageLayoutVersion": "1.0.0"}))
        (self.folder / "index.json").write_bytes(encoded(
            {"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": self.index}))


def encoded(document):
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
