"""Simulated sidecars: clients of the operator's API with an identity, each on its own connection."""

import asyncio
import base64
import gc
import subprocess
import threading
import time

import grpc

SERVICE = "/dapr.proto.operator.v1.Operator"
# Names in the operator's certificate besides its identity.
HOST = "dapr-webhook.dapr-system.svc"
# Connections being opened concurrently.
AT_ONCE = 16
TIMEOUT = 300


def identity(world, namespace, folder):
    """A sidecar certificate of the issuer in sentry's secret: roots, key and chain as PEM."""
    data = world.api.get("/api/v1/namespaces/dapr-system/secrets/dapr-trust-bundle")["data"]
    for name in ("ca.crt", "issuer.crt", "issuer.key"):
        (folder / name).write_bytes(base64.b64decode(data[name]))
    (folder / "extensions").write_text(
        "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=clientAuth,serverAuth\n"
        f"subjectAltName=URI:spiffe://public/ns/{namespace}/simulated\n")

    def openssl(*arguments):
        done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"openssl {arguments[0]}: {done.stderr}")
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "key.pem")
    openssl("req", "-new", "-key", "key.pem", "-subj", "/O=simulated", "-out", "request.pem")
    openssl("x509", "-req", "-in", "request.pem", "-CA", "issuer.crt", "-CAkey", "issuer.key", "-CAcreateserial", "-days", "1",
            "-extfile", "extensions", "-out", "leaf.pem")
    chain = (folder / "leaf.pem").read_bytes() + (folder / "issuer.crt").read_bytes()
    return (folder / "ca.crt").read_bytes(), (folder / "key.pem").read_bytes(), chain


def text(field, value):
    """A string of a message, of less than 128 bytes."""
    return bytes([field << 3 | 2, len(value)]) + value.encode()


class Fleet:
    """Sidecars that have listed their components and receive changes; a context manager."""

    def __init__(self, address, identity, namespace, count):
        self.address, self.identity, self.namespace, self.count = address, identity, namespace, count
        # For each change, by component name: when each sidecar received it.
        self.told, self.lengths, self.problems = {}, [], []
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.tasks = []

    def __enter__(self):
        """Returns once every sidecar has its list; their streams are open or opening."""
        asyncio.run_coroutine_threadsafe(self._begin(), self.loop).result(TIMEOUT)
        return self

    def __exit__(self, *_):
        async def end():
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            # Pending cleanup of the library for unreferenced connections.
            self.tasks.clear()
            gc.collect()
            await asyncio.sleep(1)
        asyncio.run_coroutine_threadsafe(end(), self.loop).result(TIMEOUT)
        self.loop.call_soon_threadsafe(self.loop.stop)

    async def _begin(self):
        self.places = asyncio.Semaphore(AT_ONCE)
        listed = [self.loop.create_future() for _ in range(self.count)]
        self.tasks = [self.loop.create_task(self._sidecar(number, listed[number])) for number in range(self.count)]
        await asyncio.gather(*listed)

    async def _sidecar(self, number, listed):
        root, key, chain = self.identity
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", HOST),
                   ("grpc.max_receive_message_length", -1)]
        credentials = grpc.ssl_channel_credentials(root, key, chain)
        request = text(1, self.namespace) + text(2, f"simulated-{number}")
        try:
            async with grpc.aio.secure_channel(self.address, credentials, options=options) as channel:
                async with self.places:
                    found = await channel.unary_unary(f"{SERVICE}/ListComponents")(request, timeout=TIMEOUT)
                self.lengths.append(len(found))
                stream = channel.unary_stream(f"{SERVICE}/ComponentUpdate")(request)
                listed.set_result(None)
                async for event in stream:
                    self._tell(number, event)
                self.problems.append(f"the stream of {number} has ended")
        except grpc.RpcError as error:
            self.problems.append(f"{number}: {error.code()} {error.details()}")
            if not listed.done():
                listed.set_exception(error)

    def _tell(self, number, event):
        now = time.perf_counter()
        for name, seen in self.told.items():
            if name.encode() in event:
                seen.setdefault(number, now)

    def await_all(self, name, timeout=TIMEOUT):
        """Waits until all have received a change; returns the times of half and of all, or None on a timeout."""
        deadline = time.monotonic() + timeout
        while len(self.told[name]) < self.count:
            if self.problems:
                raise OSError(f"{len(self.problems)} streams: {self.problems[0]}")
            if time.monotonic() > deadline:
                return None
            time.sleep(0.002)
        times = sorted(self.told[name].values())
        return times[len(times) // 2], times[-1]
