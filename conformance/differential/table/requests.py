"""Invocations over HTTP: how requests reach an app."""

from differential.apps import Reply
from differential.cases import Case, Http
from differential.product import BODY_LIMIT, SPAN, TOKEN, TRACE
from differential.table.targets import HTTP, MAIN, TO_HTTP_APPS, call, over_http

PLAIN = (("content-type", "text/plain"),)
PARENT = ("traceparent", f"00-{TRACE}-{SPAN}-01")
PATHS = {
    "two segments": "a/b",
    "nothing": "",
    "an encoded slash": "a%2Fb",
    "an encoded space": "a%20b",
    "a plus": "a+b",
    "an encoded per cent": "a%25b",
    "dots": "a/./b/../c",
    "a dot": ".",
    "dots beyond the root": "../../a",
    "encoded dots": "a/%2e%2e/b",
    "double slashes": "a//b",
    "a slash at the end": "a/",
    "a semicolon": "a;b=c/d",
    "UTF-8": "%C3%BC",
    "other bytes": "%ff%fe",
    "a bad escape": "a%zz",
    "half an escape": "a%2",
    "a control character": "a%01b",
    "NUL": "a%00b",
    "an encoded question mark": "a%3Fb",
    "an encoded hash": "a%23b",
    "encoded JSON": "%7B%22a%22%3A1%7D",
    "colons": "a:b@c",
    "marks": "a-b_c.d~e!$&'()*,=",
    "the word method": "method/a/method/b",
    "raw JSON": 'a?filter={"a":1}',
    "raw JSON in the path": '{"a":1}',
    "raw angles": "<a>?b=<c>",
    "a raw backtick": "`a`?b=`c`",
    "a raw caret and pipe": "a^b|c?d=^|",
    "a raw backslash": "a\\b?c=\\",
    "raw brackets": "a[0]?b[]=1",
    "raw UTF-8": "\xc3\xbc?b=\xc3\xbc",
    "a query": "a?b=c&d=e",
    "an empty query": "a?",
    "an odd query": "a?b&&=c&d=%2",
    "a query with plus and space": "a?b=c+d%20e",
    "a query twice": "a?b=1&b=2&B=3",
    "a query with a semicolon": "a?b=1;c=2",
    "a query with a question mark": "a?b=c?d",
    "a query with UTF-8": "a?b=%C3%BC%ff",
    "a query with a slash": "a?b=/../c//d",
    "metadata in the query": "a?metadata.x=1",
}
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE")
ODD_METHODS = ("patch", "get", "Post", "PROPFIND", "BREW", "M-SEARCH", "CONNECT")
HEADERS = {
    "plain ones": (("X-Plain", "1"), ("x-lower", "2"), ("X_Under", "3")),
    "one twice": (("x-twice", "1"), ("X-Twice", "2")),
    "an empty one": (("x-empty", ""),),
    "Latin-1": (("x-latin", "caf\xe9"),),
    "UTF-8": (("x-utf8", "caf\xc3\xa9"),),
    "tabs and spaces": (("x-spaced", "  a \t b  "),),
    "hop-by-hop": (
        ("te", "trailers"),
        ("keep-alive", "5"),
        ("proxy-connection", "keep-alive"),
        ("upgrade", "websocket"),
        ("trailer", "x-t"),
        ("proxy-authorization", "x"),
        ("http2-settings", "AAMA"),
    ),
    "one that Connection names": (("connection", "x-hop"), ("x-hop", "1"), ("x-stays", "2")),
    "what browsers send": (
        ("cookie", "a=b"),
        ("cookie", "c=d"),
        ("accept", "text/html, */*;q=0.1"),
        ("accept-language", "de"),
        ("accept-encoding", "gzip, br"),
        ("user-agent", "browser/1"),
        ("referer", "http://x/"),
        ("origin", "http://x"),
        ("cache-control", "no-cache"),
        ("if-none-match", '"x"'),
        ("authorization", "Bearer t"),
        ("pragma", "no-cache"),
        ("via", "1.1 x"),
        ("from", "a@b"),
        ("max-forwards", "3"),
        ("warning", "199 - x"),
        ("date", "yesterday"),
        ("if-match", '"y"'),
        ("range", "bytes=0-1"),
    ),
    "no user agent": (("user-agent", ""),),
    "an event stream": (("accept", "text/event-stream"),),
    "an event stream and more": (("accept", "text/event-stream, */*"),),
    "a trace": (PARENT,),
    "a trace with state": (PARENT, ("tracestate", "a=1,b=2")),
    "a trace with two states": (PARENT, ("tracestate", "a=1"), ("tracestate", "b=2")),
    "a state without a trace": (("tracestate", "a=1"),),
    "a bad trace": (("traceparent", "00-xyz-1-01"),),
    "a trace that is not sampled": (("traceparent", f"00-{TRACE}-{SPAN}-00"),),
    "baggage": (("baggage", "a=1,b=2;c"), ("baggage", "d=3")),
    "bad baggage": (("baggage", "=="),),
    "a forged caller": (
        ("dapr-caller-app-id", "admin"),
        ("dapr-caller-namespace", "kube"),
        ("dapr-callee-app-id", "x"),
    ),
    "an API token": (("dapr-api-token", TOKEN),),
    "forwarding": (
        ("x-forwarded-for", "1.2.3.4"),
        ("x-forwarded-host", "h"),
        ("forwarded", "for=1.2.3.4"),
        ("x-forwarded-proto", "https"),
        ("x-real-ip", "1.1.1.1"),
    ),
    "a -bin one": (("x-data-bin", "AQID"),),
    "a -bin one without padding": (("x-data-bin", "AQI"),),
    "a bad -bin one": (("x-data-bin", "!!"), ("x-other", "1")),
    "gRPC's": (("grpc-timeout", "1S"), ("grpc-encoding", "gzip"), ("grpc-trace-bin", "AAAA"), ("grpc-x", "1")),
    "Dapr's own": (
        ("destination-app-id", "x"),
        ("dapr-http-status", "500"),
        ("dapr-method", "x"),
        ("dapr-stream", "true"),
        ("x-dapr-remote", "true"),
        ("dapr-api-call", "true"),
    ),
    "a host": (("host", "other.example:81"),),
    "a big one": (("x-big", "b" * 3000),),
    "a body type without a body": (("content-type", "application/json"),),
    "Expect": (("expect", "100-continue"),),
}
BODIES = {
    "text": (PLAIN, b"ahoy", "length"),
    "nothing, of length 0": (PLAIN, b"", "length"),
    "without a type": ((), b"ahoy", "length"),
    "JSON": ((("content-type", "application/json"),), b'{"a": 1}', "length"),
    "bytes": ((("content-type", "application/octet-stream"),), bytes(range(256)).replace(b"@", b""), "length"),
    "chunked": (PLAIN, b"ahoy" * 1000, "chunked"),
    "chunked and empty": (PLAIN, b"", "chunked"),
    "70,000 bytes": (PLAIN, b"x" * 70_000, "length"),
    "70,000 bytes chunked": (PLAIN, b"x" * 70_000, "chunked"),
    "a type in capitals": ((("Content-Type", "Text/Plain; Charset=UTF-8"),), b"x", "length"),
    "a gRPC type": ((("content-type", "application/grpc"),), b"x", "length"),
    "gzip": ((("content-encoding", "gzip"), *PLAIN), b"\x1f\x8b not really", "length"),
    "a form": ((("content-type", "application/x-www-form-urlencoded"),), b"a=b&c=d", "length"),
}


def paths():
    for name, path in PATHS.items():
        yield from over_http(f"path with {name}", path=path)


def methods():
    for method in METHODS:
        yield from over_http(f"method {method}", method=method)
        yield from over_http(f"method {method} with a body", MAIN, method=method, body=b"ahoy", headers=PLAIN)
    for method in ODD_METHODS:
        yield from over_http(f"method {method}", method=method)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        yield from over_http(f"method {method}, length 0", MAIN, method=method, body=b"")


def headers():
    for name, fields in HEADERS.items():
        yield from over_http(f"headers: {name}", MAIN if name == "Expect" else tuple(HTTP), headers=fields)
        if name != "a body type without a body":
            yield from over_http(
                f"headers of a POST: {name}", MAIN, method="POST", headers=(*fields, *PLAIN), body=b"ahoy"
            )
    sixty = (("x-big", "b" * 60_000),)
    yield from over_http("headers: 60 KB", MAIN, headers=sixty)
    yield from over_http("headers: 200 of them", MAIN, headers=tuple((f"x-{n}", "1") for n in range(200)))


def bodies():
    for name, (fields, body, framing) in BODIES.items():
        yield from over_http(f"body: {name}", method="POST", headers=fields, body=body, framing=framing)
    for method in ("GET", "HEAD", "DELETE", "OPTIONS", "TRACE"):
        for size, body in (("empty", b""), ("not empty", b"ahoy")):
            yield from over_http(f"body: chunked, {size}, {method}", method=method, body=body, framing="chunked")
    beyond = b"x" * (BODY_LIMIT + 1)
    for framing in ("length", "chunked"):
        yield from over_http(
            f"body: beyond the limit, {framing}",
            ("own behind middleware", "remote behind middleware"),
            method="POST",
            headers=PLAIN,
            body=beyond,
            framing=framing,
        )
        yield from over_http(
            f"body: at the limit, {framing}",
            ("own behind middleware", "remote behind middleware"),
            method="POST",
            headers=PLAIN,
            body=beyond[1:],
            framing=framing,
        )


def by_header():
    """The app id outside of the path."""
    basic = ("authorization", "Basic ZGFwci1hcHAtaWQ6cmVtb3Rl")  # dapr-app-id:remote
    for name, sidecar, target, fields in (
        ("own", "http", "/a/b?c=d", (("dapr-app-id", "@http@"),)),
        ("remote", "bare", "/a/b?c=d", (("dapr-app-id", "@http@"),)),
        ("remote gRPC app", "bare", "/a", (("dapr-app-id", "@grpc@"),)),
        ("an endpoint", "bare", "/a", (("dapr-app-id", "endpoint"),)),
        ("a URL", "bare", "/a", (("dapr-app-id", "http://@outside@"),)),
        ("the root", "http", "/", (("dapr-app-id", "@http@"),)),
        ("beside a path with another id", "bare", "/v1.0/invoke/@grpc@/method/a", (("dapr-app-id", "@http@"),)),
        ("empty, beside a path", "bare", "/v1.0/invoke/@http@/method/a", (("dapr-app-id", ""),)),
        ("not ASCII, beside a path", "bare", "/v1.0/invoke/@http@/method/a", (("dapr-app-id", b"\xc3\xbc"),)),
        ("not ASCII", "bare", "/a", (("dapr-app-id", b"\xc3\xbc"),)),
        ("twice", "bare", "/a", (("dapr-app-id", "@http@"), ("dapr-app-id", "@grpc@"))),
        ("a path of the API", "http", "/v1.0/metadata", (("dapr-app-id", "@http@"),)),
        ("an unknown path of the API", "http", "/v1.0/nothing/here", (("dapr-app-id", "@http@"),)),
        ("a path that is no API", "http", "/a", ()),
        ("a basic one", "bare", "/a", (basic,)),
        ("dots", "http", "/a/../b//c/./d", (("dapr-app-id", "@http@"),)),
        ("raw JSON", "http", '/a?b={"c":1}', (("dapr-app-id", "@http@"),)),
    ):
        yield Case(f"invoke: by header: {name}", (Http(sidecar, "GET", target, fields),))
        yield Case(f"invoke: by header, POST: {name}", (Http(sidecar, "POST", target, (*fields, *PLAIN), b"ahoy"),))


def targets_that_fail():
    for name, sidecar, prefix in (
        ("no such app", "bare", "/v1.0/invoke/nobody-here/method/a"),
        ("two dots", "bare", "/v1.0/invoke/a.b.c/method/a"),
        ("another namespace", "bare", "/v1.0/invoke/@http@.elsewhere/method/a"),
        ("its own namespace", "bare", "/v1.0/invoke/@http@.default/method/a"),
        ("no app at all", "bare", "/v1.0/invoke/@bare@/method/a"),
        ("nothing", "bare", "/v1.0/invoke/"),
        ("no method", "bare", "/v1.0/invoke/@http@"),
        ("no method, with a slash", "bare", "/v1.0/invoke/@http@/method/"),
        ("no id", "bare", "/v1.0/invoke//method/a"),
        ("no method, without a slash", "bare", "/v1.0/invoke/@http@/method"),
        ("an escaped id", "bare", "/v1.0/invoke/%2e%2e/method/a"),
        ("an id with a space", "bare", "/v1.0/invoke/a%20b/method/a"),
        ("a URL without a scheme", "bare", "/v1.0/invoke/@outside@/method/a"),
        ("an escaped URL", "bare", "/v1.0/invoke/http%3A%2F%2F@outside@/method/a"),
        ("a URL with a path", "bare", "/v1.0/invoke/http://@outside@/deep/er/method/a"),
        ("a URL of another scheme", "bare", "/v1.0/invoke/ftp://@outside@/method/a"),
        ("a URL that refuses", "bare", "/v1.0/invoke/http://127.0.0.1:1/method/a"),
        ("more slashes", "bare", "/v1.0//invoke//@http@//method//a"),
        ("another version", "bare", "/v1.0-alpha1/invoke/@http@/method/a"),
    ):
        yield Case(f"invoke: target: {name}", (Http(sidecar, "GET", prefix),))
    for path, method in (
        ("denied", "GET"),
        ("denied/x", "POST"),
        ("post-only", "GET"),
        ("post-only", "POST"),
        ("DENIED", "GET"),
        ("denied;x", "GET"),
        ("%64enied", "GET"),
        ("a/../denied", "GET"),
        ("post-only", "BREW"),
        ("post-only", "post"),
    ):
        yield from over_http(
            f"access control: {method} {path}", ("remote behind middleware",), method=method, path=path
        )


def oddly_written():
    """Raw requests."""
    at = "/v1.0/invoke/@http@/method/a"
    for name, raw in (
        ("an absolute target", f"GET http://sidecar{at} HTTP/1.1\r\nhost: other\r\nconnection: close\r\n\r\n"),
        ("HTTP/1.0", f"GET {at} HTTP/1.0\r\n\r\n"),
        (
            "HTTP/1.0 kept alive, without a host",
            f"GET {at} HTTP/1.0\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n",
        ),
        ("no host", f"GET {at} HTTP/1.1\r\nconnection: close\r\n\r\n"),
        ("two hosts", f"GET {at} HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: close\r\n\r\n"),
        (
            "two lengths",
            f"POST {at} HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\nconnection: close\r\n\r\nab",
        ),
        (
            "the same length twice",
            f"POST {at} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\ncontent-length: 2\r\nconnection: close\r\n\r\nab",
        ),
        (
            "a length and chunks",
            f"POST {at} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n1\r\na\r\n0\r\n\r\n",
        ),
        (
            "another transfer coding",
            f"POST {at} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\nconnection: close\r\n\r\n0\r\n\r\n",
        ),
        (
            "chunks with extensions",
            f"POST {at} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n2;a=b\r\nab\r\n0;c\r\n\r\n",
        ),
        (
            "chunks with trailers",
            f"POST {at} HTTP/1.1\r\nhost: a\r\ntrailer: x-t\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n2\r\nab\r\n0\r\nx-t: 1\r\n\r\n",
        ),
        (
            "a bad chunk",
            f"POST {at} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\nzz\r\nab\r\n0\r\n\r\n",
        ),
        (
            "a last chunk with a bare line feed",
            f"POST {at} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n2\r\nab\r\n0\r\n\n",
        ),
        ("a name with a space", f"GET {at} HTTP/1.1\r\nhost: a\r\nx y: 1\r\nconnection: close\r\n\r\n"),
        ("a folded header", f"GET {at} HTTP/1.1\r\nhost: a\r\nx-f: 1\r\n 2\r\nconnection: close\r\n\r\n"),
        ("a header without a colon", f"GET {at} HTTP/1.1\r\nhost: a\r\nx-f\r\nconnection: close\r\n\r\n"),
        ("a space before the colon", f"GET {at} HTTP/1.1\r\nhost: a\r\nx-f : 1\r\nconnection: close\r\n\r\n"),
        ("bare line feeds", f"GET {at} HTTP/1.1\nhost: a\nconnection: close\n\n"),
        ("an empty line before", f"\r\nGET {at} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"),
        ("HTTP/2.5", f"GET {at} HTTP/2.5\r\nhost: a\r\nconnection: close\r\n\r\n"),
        ("a space in the target", f"GET {at} b HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"),
        ("a fragment", f"GET {at}#b HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"),
        ("an asterisk", "OPTIONS * HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"),
        ("no target", "GET HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"),
    ):
        method = raw.lstrip().partition(" ")[0]
        for sidecar in ("http", "bare"):
            yield Case(f"invoke: written: {name}: through {sidecar}", (Http(sidecar, method, "", raw=raw.encode()),))


def repeats():
    """An app that disconnects: retries."""
    broken = Reply(raw=b"")
    for method in ("GET", "POST"):
        body = None if method == "GET" else b"ahoy"
        yield from over_http(f"an app that hangs up, {method}", TO_HTTP_APPS, reply=broken, method=method, body=body)
    yield from over_http(
        "an app that hangs up, chunked", ("own", "remote"), reply=broken, method="POST", body=b"ahoy", framing="chunked"
    )


def sequences():
    """Several calls of one app, so that connections are reused."""
    for target in TO_HTTP_APPS:
        steps = (
            call(target),
            call(target, "POST", "b", PLAIN, b"x"),
            call(target, "HEAD"),
            call(target, "DELETE", "c"),
        )
        yield Case(f"invoke: several: to {target}", steps)


def cases():
    for part in (paths, methods, headers, bodies, by_header, targets_that_fail, oddly_written, repeats, sequences):
        yield from part()
