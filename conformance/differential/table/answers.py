"""Invocations over HTTP: how responses of apps reach a caller."""

import gzip

import grpc

from differential.apps import GrpcReply, Reply
from differential.table.targets import TO_HTTP_APPS, over_http

PLAIN = (("content-type", "text/plain"),)
STATUSES = (
    200,
    201,
    202,
    203,
    204,
    205,
    206,
    207,
    226,
    299,
    300,
    301,
    302,
    303,
    304,
    307,
    308,
    400,
    401,
    403,
    404,
    405,
    408,
    409,
    410,
    413,
    418,
    422,
    429,
    431,
    451,
    499,
    500,
    501,
    502,
    503,
    504,
    507,
    511,
    599,
    600,
    999,
)
GRPC_APPS = ("own gRPC app", "remote gRPC app")
HEADERS = {
    "plain ones": (("X-Plain", "1"), ("x-lower", "2")),
    "one twice": (("set-cookie", "a=b"), ("set-cookie", "c=d; Path=/")),
    "an empty one": (("x-empty", ""),),
    "Latin-1": (("x-latin", "caf\xe9"),),
    "UTF-8": (("x-utf8", "caf\xc3\xa9"),),
    "hop-by-hop": (("keep-alive", "timeout=5"), ("proxy-authenticate", "x"), ("upgrade", "h2c"), ("te", "x")),
    "one that Connection names": (("connection", "x-hop"), ("x-hop", "1"), ("x-stays", "2")),
    "permanent ones": (
        ("cache-control", "no-store"),
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("via", "1.1 x"),
        ("accept-ranges", "bytes"),
        ("pragma", "no-cache"),
        ("warning", "199 - x"),
        ("server", "app/1"),
        ("etag", '"x"'),
        ("last-modified", "x"),
        ("vary", "accept"),
        ("age", "1"),
        ("location", "/x"),
    ),
    "a trace": (("traceparent", "00-11111111111111111111111111111111-2222222222222222-01"), ("tracestate", "x=1")),
    "Dapr's": (
        ("dapr-http-status", "500"),
        ("dapr-api-token", "x"),
        ("dapr-caller-app-id", "x"),
        ("destination-app-id", "x"),
        ("x-daprerrorresponseheader", "1"),
        ("metadata.x", "1"),
    ),
    "a -bin one": (("x-data-bin", "AQID"),),
    "a bad -bin one": (("x-data-bin", "!!"), ("x-other", "1")),
    "gRPC's": (("grpc-status", "5"), ("grpc-message", "x"), ("grpc-encoding", "gzip")),
    "CORS": (("access-control-allow-origin", "*"), ("access-control-expose-headers", "x")),
    "a big one": (("x-big", "b" * 3000),),
    "one of 60 KB": (("x-big", "b" * 60_000),),
    "200 of them": tuple((f"x-{n}", "1") for n in range(200)),
    "no type": (),
}
BODIES = {
    "of length 0": Reply(body=b""),
    "of 3,000 bytes": Reply(body=b"x" * 3000),
    "of 100,000 bytes": Reply(body=b"x" * 100_000),
    "chunked": Reply(framing="chunked"),
    "chunked and empty": Reply(framing="chunked", body=b""),
    "chunked, of 100,000 bytes": Reply(framing="chunked", body=b"x" * 100_000),
    "chunked, with trailers": Reply(framing="chunked", headers=(*PLAIN, ("trailer", "x-t")), trailers=(("x-t", "1"),)),
    "until the end": Reply(framing="close"),
    "without a type": Reply(headers=()),
    "of bytes": Reply(headers=(("content-type", "application/octet-stream"),), body=bytes(range(256))),
    "HTML without a type": Reply(headers=(), body=b"<html><body>ahoy</body></html>"),
    "JSON without a type": Reply(headers=(), body=b'{"a": 1}'),
    "gzip": Reply(headers=(*PLAIN, ("content-encoding", "gzip")), body=gzip.compress(b"ahoy" * 100, mtime=0)),
    "gzip that is none": Reply(headers=(*PLAIN, ("content-encoding", "gzip")), body=b"ahoy"),
    "an event stream": Reply(
        headers=(("content-type", "text/event-stream"),), framing="chunked", body=b"data: 1\n\ndata: 2\n\n"
    ),
    "shorter than its length": Reply(
        raw=b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100\r\n\r\nahoy"
    ),
    "longer than its length": Reply(
        raw=b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nahoy"
    ),
    "chunks that break off": Reply(raw=b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nahoy\r\n"),
    "of HTTP/1.0": Reply(raw=b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nahoy"),
    "after 100": Reply(raw=b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nahoy"),
    "after 103": Reply(
        raw=b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nahoy"
    ),
    "with 101": Reply(raw=b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nahoy"),
    "that is not HTTP": Reply(raw=b"ahoy, this is not HTTP\r\n\r\n"),
    "with another reason": Reply(raw=b"HTTP/1.1 200 Fine\r\ncontent-length: 4\r\n\r\nahoy"),
    "without a reason": Reply(raw=b"HTTP/1.1 200\r\ncontent-length: 4\r\n\r\nahoy"),
    "with bare line feeds": Reply(raw=b"HTTP/1.1 200 OK\ncontent-length: 4\n\nahoy"),
    "with two lengths": Reply(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\nahoy!"),
    "with a split header": Reply(raw=b"HTTP/1.1 200 OK\r\nx: a\rb\r\ncontent-length: 4\r\n\r\nahoy"),
}
CODES = tuple(code for code in grpc.StatusCode)


def statuses():
    for status in STATUSES:
        yield from over_http(f"status {status}", TO_HTTP_APPS, Reply(status))
    for status in (200, 404, 500):
        yield from over_http(f"status {status} without a body", TO_HTTP_APPS, Reply(status, body=b""))
        yield from over_http(f"status {status} to HEAD", TO_HTTP_APPS, Reply(status), method="HEAD")
    chunked = Reply(404, framing="chunked")
    yield from over_http("status 404 in chunks to HEAD", TO_HTTP_APPS, chunked, method="HEAD")
    for status in (301, 302, 307, 308):
        moved = Reply(status, headers=(("location", "/elsewhere"),), body=b"")
        yield from over_http(f"status {status} with a place", TO_HTTP_APPS, moved)
        yield from over_http(f"status {status} with a place, POST", TO_HTTP_APPS, moved, method="POST", body=b"ahoy")
    for status in (204, 304, 200, 404):
        stream = (("accept", "text/event-stream"),)
        yield from over_http(f"status {status} to an event stream", TO_HTTP_APPS, Reply(status), headers=stream)


def of_http_apps():
    for name, fields in HEADERS.items():
        headers = fields if name == "no type" else (*PLAIN, *fields)
        yield from over_http(f"answer: headers: {name}", TO_HTTP_APPS, Reply(headers=headers))
        yield from over_http(f"answer: headers of 404: {name}", ("own", "remote"), Reply(404, headers=headers))
    for name, reply in BODIES.items():
        yield from over_http(f"answer: body {name}", TO_HTTP_APPS, reply)
        if reply.raw is None:
            yield from over_http(
                f"answer: body {name} to a POST", ("own", "remote"), reply, method="POST", body=b"ahoy"
            )
            yield from over_http(f"answer: body {name} to HEAD", ("own", "remote"), reply, method="HEAD")
    stream = (("accept", "text/event-stream"),)
    for name in ("an event stream", "chunked", "of 3,000 bytes", "without a type"):
        yield from over_http(f"answer: body {name} to an event stream", TO_HTTP_APPS, BODIES[name], headers=stream)


def of_grpc_apps():
    for code in CODES:
        if code is not grpc.StatusCode.OK:
            reply = GrpcReply(code=code, details="so it is")
            yield from over_http(f"gRPC answer: {code.name}", GRPC_APPS, grpc_reply=reply)
    for name, initial, trailing in (
        ("plain headers", (("x-plain", "1"),), ()),
        ("plain trailers", (), (("x-plain", "1"),)),
        ("binary headers", (("x-data-bin", b"\1\2"),), ()),
        ("binary trailers", (), (("x-data-bin", b"\1\2"),)),
        ("permanent ones", (("cache-control", "x"), ("cookie", "y"), ("date", "z")), ()),
        ("one twice", (("x-twice", "1"), ("x-twice", "2")), (("x-twice", "3"),)),
        ("Dapr's", (("dapr-http-status", "404"), ("dapr-api-token", "x")), ()),
    ):
        reply = GrpcReply(initial=initial, trailing=trailing)
        yield from over_http(f"gRPC answer: {name}", GRPC_APPS, grpc_reply=reply)
    for accept in ("text/event-stream", "application/json"):
        yield from over_http(f"gRPC answer: {accept} asked for", GRPC_APPS, headers=(("accept", accept),))
    yield from over_http("gRPC answer: not a message", GRPC_APPS, grpc_reply=GrpcReply(messages=(b"\xff\xff",)))
    yield from over_http("gRPC answer: an empty message", GRPC_APPS, grpc_reply=GrpcReply(messages=(b"",)))
    yield from over_http("gRPC answer: no message", GRPC_APPS, grpc_reply=GrpcReply(messages=()))


def cases():
    for part in (statuses, of_http_apps, of_grpc_apps):
        yield from part()
