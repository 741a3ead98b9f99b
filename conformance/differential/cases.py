"""A case: a sequence of requests, the apps' responses, and the observations."""

import base64
import dataclasses
import functools
import json
import re
import time

import grpc
from dapr.proto.runtime.v1 import dapr_pb2
from google.protobuf import json_format, message_factory, text_format
from google.rpc import error_details_pb2, status_pb2  # noqa: F401  (registers the details for printing)

from differential import apps, compare, wire

DAPR = "/dapr.proto.runtime.v1.Dapr/"
STATUS = "grpc-status-details-bin"
# Bytes in a CloudEvent.
BASE64 = re.compile(r'(?<="data_base64":)"([A-Za-z0-9+/=]+)"')


def opened(found):
    """A CloudEvent nested in a CloudEvent, so that its variable parts are compared."""
    try:
        inner = base64.b64decode(found[1], validate=True).decode()
        return json.dumps({"opened": json.loads(inner)})
    except ValueError:
        return found[0]


@dataclasses.dataclass(frozen=True)
class Http:
    """A raw request to a sidecar's HTTP API. Placeholders @name@ are replaced."""
    sidecar: str
    method: str
    target: str
    headers: tuple = ()
    body: bytes = None
    framing: str = "length"
    raw: bytes = None

    def ask(self, product, captured):
        request = product.fill(self.raw if self.raw is not None else self._written(), captured)
        method = product.fill(self.method, captured)
        if self.raw is None and self.body is not None:
            # The length is that of the body after replacement.
            body = product.fill(self.body, captured)
            length = b"Content-Length: %d\r\n\r\n" % len(body)
            request += wire.chunked(body) if self.framing == "chunked" else length + body
        return wire.ask(product.sidecars[self.sidecar].http, request, method)

    def _written(self):
        headers = list(self.headers)
        if not any(wire.octets(name).lower() == b"host" for name, _ in headers):
            headers.insert(0, ("Host", "sidecar"))
        head = b"%s %s HTTP/1.1\r\n" % (wire.octets(self.method), wire.octets(self.target)) + wire.block(headers)
        if self.body is None:
            return head + b"\r\n"
        return head + b"Transfer-Encoding: chunked\r\n\r\n" if self.framing == "chunked" else head


@dataclasses.dataclass(frozen=True)
class Grpc:
    """A call of a sidecar's gRPC API: a method of Dapr's service by its name, with messages as dictionaries of their
    JSON form, or any method by its whole path with bytes. `data` is that of an InvokeService: it has no JSON form."""
    sidecar: str
    method: str
    messages: tuple = ()
    metadata: tuple = ()
    data: bytes = b""
    timeout: float = wire.TIMEOUT

    def ask(self, product, captured):
        path = self.method if self.method.startswith("/") else DAPR + self.method
        messages = [product.fill(message, captured) if isinstance(message, bytes)
                    else self._written(product.fill(json.dumps(message), captured)) for message in self.messages]
        metadata = [(name, product.fill(value, captured)) for name, value in self.metadata]
        call = product.channels[self.sidecar].stream_stream(path)
        answers, seen = [], {}
        try:
            stream = call(iter(messages), timeout=self.timeout, metadata=metadata)
        except ValueError as error:
            raise ValueError(f"{self}: cannot be sent: {error}") from None
        try:
            for answer in stream:
                answers.append(answer)
        except grpc.RpcError:
            pass  # its status is checked below
        seen["status"] = stream.code().name
        if stream.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            seen["status"] = f"no answer in {self.timeout} s"
        seen["message"] = stream.details() or ""
        seen.update(apps.described(stream.initial_metadata() or (), "header"))
        trailers = list(stream.trailing_metadata() or ())
        for name, value in trailers:
            if name == STATUS:
                seen["details"] = printed(status_pb2.Status.FromString(value))
        seen.update(apps.described([field for field in trailers if field[0] != STATUS], "trailer"))
        seen["body"] = " | ".join(self._read(answer) for answer in answers)
        return seen

    def _written(self, text):
        message = json_format.Parse(text, methods()[self.method][0]())
        if self.data:
            message.message.data.value = self.data
        return message.SerializeToString()

    def _read(self, answer):
        if self.method not in methods():
            return answer.decode("latin-1")
        return printed(methods()[self.method][1].FromString(answer))


@dataclasses.dataclass(frozen=True)
class Wait:
    """Waits until the apps have received this many requests since the case began."""
    count: int

    def ask(self, product, _):
        deadline = time.monotonic() + wire.TIMEOUT
        while product.received() < self.count and time.monotonic() < deadline:
            time.sleep(0.005)
        return {"status": f"{product.received()} received"}


@dataclasses.dataclass(frozen=True)
class Until:
    """Repeats a request until its response matches a pattern; the last response counts."""
    step: Http
    pattern: str

    def ask(self, product, captured):
        deadline = time.monotonic() + wire.TIMEOUT
        while True:
            seen = self.step.ask(product, captured)
            if re.search(self.pattern, seen.get("body", "")) or time.monotonic() > deadline:
                return seen
            time.sleep(0.02)


def printed(message):
    try:
        return json_format.MessageToJson(message, indent=None, sort_keys=True)
    except TypeError:  # it has an Any of an unknown type
        return text_format.MessageToString(message, as_one_line=True)


@functools.cache
def methods():
    """Dapr's methods with their request and response types."""
    service = dapr_pb2.DESCRIPTOR.services_by_name["Dapr"]
    return {method.name: (message_factory.GetMessageClass(method.input_type),
                          message_factory.GetMessageClass(method.output_type)) for method in service.methods}


@dataclasses.dataclass(frozen=True)
class Case:
    """Steps, and the responses of the HTTP apps and of the gRPC app. A step can use `@N.name@`, a field of the response to step
    N, counted from 1, and `@key@`, a key unique to the case."""
    name: str
    steps: tuple
    reply: apps.Reply = apps.Reply()
    grpc_reply: apps.GrpcReply = apps.GrpcReply()
    # Whether the apps may receive in any order.
    any_order: bool = False

    def run(self, product, key):
        """All observations: {field: text}."""
        product.records()
        product.reply(self.reply, self.grpc_reply)
        seen, captured = {}, {"@key@": key}
        for number, step in enumerate(self.steps, 1):
            answer = step.ask(product, captured)
            captured.update((f"@{number}.{name.removeprefix('header.')}@", value) for name, value in answer.items())
            seen.update((f"answer {number}: {name}", value) for name, value in answer.items())
        records = product.records()
        for record in records:
            if record.get("body", "").startswith("{"):
                record["body"] = BASE64.sub(opened, record["body"])
        if self.any_order:
            records.sort(key=lambda record: compare.neutral("", product.neutral(str([record.get("request"), record.get("body")]))))
        for number, record in enumerate(records, 1):
            name = record.pop("app")
            seen.update((f"{name} {number}: {field}", value) for field, value in record.items())
        return {field: product.neutral(value) for field, value in seen.items()}
