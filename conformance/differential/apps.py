"""Apps that record raw requests and send scripted responses."""

import collections
import concurrent.futures
import dataclasses
import http
import socket
import threading

import grpc
from dapr.proto import appcallback_v1, common_v1
from google.protobuf import any_pb2, text_format

from differential import wire

CALLBACK = "/dapr.proto.runtime.v1.AppCallback"
# The fields of each callback.
CALLBACKS = {
    f"{CALLBACK}/OnInvoke": common_v1.InvokeRequest,
    f"{CALLBACK}/OnTopicEvent": appcallback_v1.TopicEventRequest,
    f"{CALLBACK}/OnBulkTopicEvent": appcallback_v1.TopicEventBulkRequest,
    f"{CALLBACK}Alpha/OnBulkTopicEventAlpha1": appcallback_v1.TopicEventBulkRequest,
    f"{CALLBACK}Alpha/OnJobEventAlpha1": appcallback_v1.JobEventRequest,
}


@dataclasses.dataclass(frozen=True)
class Reply:
    """A response of an HTTP app. `framing` is length, chunked, close (the body ends with the connection) or none; `raw` is sent
    unchanged instead, and the connection closed."""
    status: int = 200
    headers: tuple = (("content-type", "text/plain"),)
    body: bytes = b"ahoy"
    framing: str = "length"
    trailers: tuple = ()
    raw: bytes = None

    def sent(self, method):
        if self.raw is not None:
            return self.raw
        try:
            reason = http.HTTPStatus(self.status).phrase
        except ValueError:
            reason = "Other"
        bodiless = method == "HEAD" or self.status in (204, 304)
        headers = list(self.headers)
        if self.framing == "length" and self.status not in (204, 304):
            headers.append(("Content-Length", str(len(self.body))))
        elif self.framing == "chunked":
            headers.append(("Transfer-Encoding", "chunked"))
        elif self.framing == "close":
            headers.append(("Connection", "close"))
        body = wire.chunked(self.body, trailers=self.trailers) if self.framing == "chunked" else self.body
        head = f"HTTP/1.1 {self.status} {reason}\r\n".encode() + wire.block(headers) + b"\r\n"
        return head if bodiless or self.framing == "none" else head + body

    def closes(self):
        return self.raw is not None or self.framing == "close"


@dataclasses.dataclass(frozen=True)
class GrpcReply:
    """A response of a gRPC app; without `messages` each kind of call gets a suitable one."""
    messages: tuple = None
    initial: tuple = ()
    trailing: tuple = ()
    code: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""


class HttpApp:
    """An app or external server over HTTP/1.1. `fixed` maps paths to constant responses."""

    def __init__(self, name, fixed=()):
        self.name, self.fixed = name, dict(fixed)
        self.reply = Reply(404, body=b"")
        self.records = collections.deque()
        self.listener = socket.create_server((wire.HOST, 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return  # closed
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection:
            stream = wire.Stream(connection)
            try:
                while self._answer(connection, stream):
                    pass
            except (wire.Broken, OSError, ValueError):
                pass

    def _answer(self, connection, stream):
        start = stream.line()
        fields = stream.fields()
        record = {"app": self.name, "request": start, **wire.described(fields, "header")}
        if wire.values(fields, "expect"):
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            record["framing"], body, trailers = wire.message_body(stream, fields, to_end=False)
            record["body"] = body.decode("latin-1")
            record.update(wire.described(trailers, "trailer"))
        except wire.Broken:
            return False  # not recorded, because its arrival depends on timing
        if start.startswith("PRI "):
            return False  # the preface of HTTP/2, not a request
        self.records.append(record)
        reply = self.fixed.get(start.split(" ")[1], self.reply)
        connection.sendall(reply.sent(start.partition(" ")[0]))
        if reply.closes():
            connection.shutdown(socket.SHUT_WR)
        return not reply.closes()

    def close(self):
        self.listener.close()


class GrpcApp(grpc.GenericRpcHandler):
    """A gRPC app that accepts any method of any service."""

    def __init__(self, name):
        self.name = name
        self.reply = GrpcReply(code=grpc.StatusCode.UNIMPLEMENTED)
        self.records = collections.deque()
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(16), options=(
            ("grpc.max_metadata_size", 1 << 18), ("grpc.absolute_max_metadata_size", 1 << 19),
            ("grpc.max_receive_message_length", -1)))
        self.server.add_generic_rpc_handlers((self,))
        self.port = self.server.add_insecure_port(f"{wire.HOST}:0")
        self.server.start()

    def service(self, call):
        fields = [(name, value) for name, value in call.invocation_metadata]

        def handle(messages, context):
            record = {"app": self.name, "request": call.method,
                      "deadline": str((context.time_remaining() or 1e9) < 1e8), **described(fields, "metadata")}
            read = list(messages)
            record["messages"] = " | ".join(self._read(call.method, message) for message in read)
            self.records.append(record)
            reply = self.reply
            context.send_initial_metadata(reply.initial)
            context.set_trailing_metadata(reply.trailing)
            if reply.code is grpc.StatusCode.OK:
                yield from self._messages(call.method, read) if reply.messages is None else reply.messages
            else:
                yield from reply.messages or ()
                context.set_code(reply.code)
                context.set_details(reply.details)
        return grpc.stream_stream_rpc_method_handler(handle)

    @staticmethod
    def _read(method, message):
        if method in CALLBACKS:
            return text_format.MessageToString(CALLBACKS[method].FromString(message), as_one_line=True)
        return message.decode("latin-1")

    @staticmethod
    def _messages(method, read):
        if method == f"{CALLBACK}/OnInvoke":
            answer = common_v1.InvokeResponse(data=any_pb2.Any(value=b"ahoy"), content_type="text/plain")
            return [answer.SerializeToString()]
        return [b""] if method in CALLBACKS else read

    def close(self):
        self.server.stop(None)


def described(fields, prefix):
    """Metadata as an observation; binary values as text with one character for each byte."""
    return wire.described([(name, value.decode("latin-1") if isinstance(value, bytes) else value)
                           for name, value in fields], prefix)
