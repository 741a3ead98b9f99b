"""Invocations over gRPC: InvokeService, and proxied calls."""

import gzip

import grpc

from differential.apps import CALLBACK, GrpcReply, Reply
from differential.cases import Case, Grpc
from differential.product import BODY_LIMIT, SPAN, TOKEN, TRACE
from differential.table.answers import BODIES, CODES, HEADERS
from differential.table.targets import over_service, proxied, service

PARENT = ("traceparent", f"00-{TRACE}-{SPAN}-01")
BINARY = bytes.fromhex(f"0000{TRACE}01{SPAN}0201")
TO_HTTP = ("own", "remote")
METADATA = {
    "plain": (("x-plain", "1"),),
    "twice": (("x-twice", "1"), ("x-twice", "2")),
    "empty": (("x-empty", ""),),
    "binary": (("x-data-bin", b"\1\2\3"),),
    "a trace": (PARENT, ("tracestate", "a=1")),
    "a binary trace": (("grpc-trace-bin", BINARY),),
    "two traces": (PARENT, ("grpc-trace-bin", BINARY)),
    "two states": (PARENT, ("tracestate", "a=1"), ("tracestate", "b=2")),
    "a state without a trace": (("tracestate", "a=1"),),
    "a bad trace": (("traceparent", "xyz"),),
    "baggage": (("baggage", "a=1"), ("baggage", "b=2")),
    "bad baggage": (("baggage", "=="),),
    "a forged caller": (
        ("dapr-caller-app-id", "admin"),
        ("dapr-caller-namespace", "kube"),
        ("dapr-callee-app-id", "@grpc@"),
    ),
    "a token": (("dapr-api-token", TOKEN),),
    "what browsers send": (
        ("cookie", "a=b"),
        ("accept", "text/html"),
        ("origin", "x"),
        ("authorization", "Bearer t"),
        ("cache-control", "no-cache"),
    ),
    "Dapr's": (("destination-app-id", "x"), ("dapr-http-status", "500"), ("x-dapr-remote", "true")),
    "a stream hint": (("dapr-stream", "true"),),
    "big": (("x-big", "b" * 3000),),
    "an event stream": (("accept", "text/event-stream"),),
    "hop-by-hop": (("keep-alive", "5"), ("proxy-connection", "x"), ("upgrade", "x"), ("trailer", "x")),
    "a content encoding": (("content-encoding", "gzip"),),
    "forwarding": (("x-forwarded-for", "1.2.3.4"), ("forwarded", "for=x")),
}


def requests():
    yield from over_service("plain", body=b"ahoy", content_type="text/plain")
    yield from over_service("nothing")
    yield from over_service("JSON without a type", body=b'{"a": 1}')
    yield from over_service("a query", query="a=b&c=d%20e")
    yield from over_service("a raw query", query='a={"b":1}&c=<d>')
    for verb in ("NONE", "GET", "HEAD", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"):
        yield from over_service(f"verb {verb}", verb=verb)
        yield from over_service(f"verb {verb} with a body", verb=verb, body=b"ahoy", content_type="text/plain")
    for path in (
        "a/b",
        "/a",
        "//a//b",
        "a/../b",
        "../a",
        "",
        "a?b=c",
        "a#b",
        "a%2Fb",
        "a%zz",
        "a b",
        "\u00fc",
        '{"a":1}',
        "a;b",
        "a\u0001",
        ".",
    ):
        yield from over_service(f"method {path!r}", method=path)
    for name, metadata in METADATA.items():
        yield from over_service(f"metadata {name}", metadata=metadata, body=b"ahoy", content_type="text/plain")
    for size in (0, 70_000):
        yield from over_service(f"{size} bytes", body=b"x" * size, content_type="text/plain")
    for name, message in (
        ("without a message", {"id": "@http@"}),
        ("without an extension", {"id": "@http@", "message": {"method": "a"}}),
        ("without an id", {"message": {"method": "a"}}),
        ("an unknown id", {"id": "nobody-here", "message": {"method": "a", "httpExtension": {"verb": "GET"}}}),
        ("an endpoint", {"id": "endpoint", "message": {"method": "a", "httpExtension": {"verb": "GET"}}}),
        ("a URL", {"id": "http://@outside@", "message": {"method": "a", "httpExtension": {"verb": "GET"}}}),
        ("a denied method", {"id": "@strict@", "message": {"method": "denied", "httpExtension": {"verb": "GET"}}}),
        (
            "an allowed method",
            {"id": "@strict@", "message": {"method": "post-only", "httpExtension": {"verb": "POST"}}},
        ),
        ("an app id with two dots", {"id": "a.b.c", "message": {"method": "a", "httpExtension": {"verb": "GET"}}}),
    ):
        for sidecar in ("bare", "http"):
            yield Case(
                f"invoke: InvokeService: {name}: through {sidecar}", (Grpc(sidecar, "InvokeService", (message,)),)
            )
    beyond = {"id": "@strict@", "message": {"method": "a", "httpExtension": {"verb": "POST"}}}
    for size in (BODY_LIMIT - 1000, BODY_LIMIT + 1):
        yield Case(
            f"invoke: InvokeService: {size} bytes where {BODY_LIMIT} are allowed",
            (Grpc("bare", "InvokeService", (beyond,), data=b"x" * size),),
        )


def answers():
    for status in (
        200,
        201,
        204,
        299,
        301,
        304,
        307,
        400,
        401,
        403,
        404,
        408,
        409,
        418,
        429,
        500,
        501,
        502,
        503,
        504,
        599,
    ):
        yield from over_service(
            f"status {status}", TO_HTTP, Reply(status, headers=(("content-type", "text/plain"), ("x-app", "1")))
        )
    for status in (400, 404, 500):
        yield from over_service(f"status {status} with a long body", TO_HTTP, Reply(status, body=b"so long " * 50))
        yield from over_service(f"status {status} without a body", TO_HTTP, Reply(status, body=b""))
    for name, fields in HEADERS.items():
        for status in (200, 404):
            yield from over_service(f"answer {status}: headers {name}", TO_HTTP, Reply(status, headers=fields))
    for name in (
        "of length 0",
        "of 3,000 bytes",
        "chunked",
        "without a type",
        "gzip",
        "shorter than its length",
        "of bytes",
        "HTML without a type",
        "that is not HTTP",
    ):
        yield from over_service(f"answer: body {name}", TO_HTTP, BODIES[name])
    for code in CODES:
        if code is not grpc.StatusCode.OK:
            yield from over_service(
                f"gRPC answer {code.name}",
                ("own gRPC app", "remote gRPC app"),
                grpc_reply=GrpcReply(code=code, details="so \u00fc it is", trailing=(("x-app", "1"),)),
            )
    yield from over_service(
        "gRPC answer with metadata",
        ("own gRPC app", "remote gRPC app"),
        grpc_reply=GrpcReply(
            initial=(("x-head", "1"), ("cache-control", "x"), ("x-data-bin", b"\1")),
            trailing=(("x-tail", "2"), ("x-tail-bin", b"\2")),
        ),
    )


def proxies():
    yield from proxied("plain")
    yield from proxied("nothing", messages=(b"",))
    yield from proxied("no message", messages=())
    yield from proxied("three messages", messages=(b"a", b"b", b"c"))
    yield from proxied("100,000 bytes", messages=(b"x" * 100_000,))
    for name, metadata in METADATA.items():
        if name != "a forged caller":
            yield from proxied(f"metadata {name}", metadata=metadata)
    for path in (
        "/Say",
        "/a/b/c",
        "/differential.Echo/",
        "/differential.Echo/../Say",
        "//Say",
        "/differential.Echo//Say",
        "/differential.Echo/S%61y",
        "/differential.Echo/Say;x",
        "/differential.Echo/Say?x=1",
        "/./Say",
        "/dapr.proto.runtime.v1.AppCallback/OnInvoke",
        "/dapr.proto.runtime.v1.Dapr/NoSuch",
        "/a.B/C\\D",
    ):
        yield from proxied(f"method {path}", path=path)
    for code in CODES:
        yield from proxied(
            f"answer {code.name}",
            grpc_reply=GrpcReply(code=code, details="so \u00fc it is", trailing=(("x-app", "1"),)),
        )
    yield from proxied(
        "answer with metadata",
        grpc_reply=GrpcReply(
            initial=(("x-head", "1"), ("cache-control", "x"), ("x-data-bin", b"\1")),
            trailing=(("x-tail", "2"), ("x-tail-bin", b"\2")),
        ),
    )
    yield from proxied("answer without a message", grpc_reply=GrpcReply(messages=()))
    yield from proxied("answer of three messages", grpc_reply=GrpcReply(messages=(b"a", b"b", b"c")))
    for name, metadata in (
        ("no id", ()),
        ("an unknown id", (("dapr-app-id", "nobody-here"),)),
        ("an empty id", (("dapr-app-id", ""),)),
        ("an HTTP app", (("dapr-app-id", "@http@"),)),
        ("no app", (("dapr-app-id", "@bare@"),)),
        ("an endpoint", (("dapr-app-id", "endpoint"),)),
        ("two ids", (("dapr-app-id", "@grpc@"), ("dapr-app-id", "x"))),
        ("the callee's id", (("dapr-callee-app-id", "@grpc@"),)),
    ):
        yield Case(f"invoke: proxied: {name}", (Grpc("bare", "/differential.Echo/Say", (b"ahoy",), metadata),))
    callback = Grpc("bare", f"{CALLBACK}/OnInvoke", (b"",), (("dapr-app-id", "@strict@"),))
    yield Case("invoke: proxied: a callback beside rules", (callback,))
    for name, metadata in (
        ("none", ()),
        ("a wrong one", (("dapr-api-token", "x"),)),
        ("the right one", (("dapr-api-token", TOKEN),)),
    ):
        yield Case(f"gRPC: token: {name}", (Grpc("strict", "GetMetadata", ({},), metadata),))
        yield Case(
            f"gRPC: token, proxied: {name}", (Grpc("strict", "/a.B/C", (b"",), (*metadata, ("dapr-app-id", "@grpc@"))),)
        )


def several():
    steps = (service("remote", body=b"a"), service("remote gRPC app", body=b"b"), service("own", verb="GET"))
    yield Case("invoke: InvokeService: several", steps)
    compressed = Reply(headers=(("content-encoding", "gzip"),), body=gzip.compress(b"ahoy", mtime=0))
    yield from over_service("gzip that was asked for", TO_HTTP, compressed, metadata=(("accept-encoding", "gzip"),))


def cases():
    for part in (requests, answers, proxies, several):
        yield from part()
