"""Secrets, configuration, locks, bindings, cryptography, conversations, jobs; metadata, health, CORS, tokens, unknown paths."""

import gzip
import json

from differential.apps import Reply
from differential.cases import Case, Grpc, Http
from differential.compare import binary
from differential.product import TOKEN
from differential.table.answers import HEADERS, STATUSES

JSON = (("content-type", "application/json"),)
PASS = (("dapr-api-token", TOKEN),)


def post(path, body="", sidecar="bare", method="POST", headers=JSON):
    return Http(sidecar, method, path, headers, (body if isinstance(body, str) else json.dumps(body)).encode())


def get(path, sidecar="bare", headers=(), method="GET"):
    return Http(sidecar, method, path, headers)


def secrets():
    for store in ("vault", "deep-vault", "env", "none", "memory"):
        for key in (
            "plain",
            "deep",
            "deep:er",
            "deep%3Aer",
            "empty",
            "nothing",
            "SECRET",
            "bulk",
            "a%2Fb",
            "%C3%BC",
            "bulk?metadata.x=1",
        ):
            yield f"{store}, {key}", (get(f"/v1.0/secrets/{store}/{key}"), get(f"/v1.0/secrets/{store}/{key}", "http"))
        for key in ("plain", "deep:er", "", "nothing", "SECRET"):
            yield f"gRPC {store}, {key!r}", (Grpc("http", "GetSecret", ({"storeName": store, "key": key},)),)
        yield f"gRPC {store}, all", (Grpc("http", "GetBulkSecret", ({"storeName": store},)),)


def configuration():
    for store in ("settings", "none"):
        for version in ("v1.0", "v1.0-alpha1"):
            for query in ("", "?key=colour", "?key=colour&key=size&key=none", "?key=", "?key=empty", "?Key=colour"):
                yield f"{version} {store} {query}", (get(f"/{version}/configuration/{store}{query}"),)
        yield f"{store} subscription without an app", (get(f"/v1.0/configuration/{store}/subscribe?key=colour"),)
        yield f"{store} subscription that is none", (get(f"/v1.0/configuration/{store}/nothing/unsubscribe", "http"),)
        yield (
            f"gRPC {store}",
            (
                Grpc("bare", "GetConfiguration", ({"storeName": store, "keys": ["colour", "none"]},)),
                Grpc("bare", "GetConfiguration", ({"storeName": store},)),
                Grpc("bare", "UnsubscribeConfiguration", ({"storeName": store, "id": "none"},)),
            ),
        )


def locks():
    def lock(body, store="lock"):
        return post(f"/v1.0-alpha1/lock/{store}", body)

    def unlock(body, store="lock"):
        return post(f"/v1.0-alpha1/unlock/{store}", body)

    held = {"resourceId": "@key@", "lockOwner": "ann", "expiryInSeconds": 60}
    by_bob = {**held, "lockOwner": "bob"}
    yield (
        "lock and unlock",
        (lock(held), lock(by_bob), lock(held), unlock(by_bob), unlock(held), unlock(held), lock(by_bob)),
    )
    yield "in snake case", (lock({"resource_id": "@key@", "lock_owner": "ann", "expiry_in_seconds": 60}),)
    yield (
        "gRPC",
        (
            Grpc("bare", "TryLockAlpha1", ({"storeName": "lock", **held},)),
            Grpc("bare", "TryLockAlpha1", ({"storeName": "lock", **by_bob},)),
            Grpc("bare", "UnlockAlpha1", ({"storeName": "lock", "resourceId": "@key@", "lockOwner": "bob"},)),
            Grpc("bare", "UnlockAlpha1", ({"storeName": "none", "resourceId": "@key@", "lockOwner": "bob"},)),
            Grpc("bare", "TryLockAlpha1", ({"storeName": "lock"},)),
        ),
    )
    whole = json.dumps(held)
    for text in (
        "",
        "null",
        "{}",
        "[]",
        "x",
        whole + " x",
        whole + whole,
        whole[:-1] + ', "other": 1}',
        whole[:-1] + ', "lockOwner": "x"}',
        whole[:-1] + ', "lock_owner": "x"}',
        whole.replace("60", "0"),
        whole.replace("60", "-1"),
        whole.replace("60", '"60"'),
        whole.replace("60", "6e1"),
        whole.replace("60", "1.5"),
        whole.replace("60", "99999999999"),
        whole.replace('"ann"', "1"),
        whole.replace("ann", ""),
        whole.replace("@key@", ""),
        whole.replace("@key@", "a||b"),
        whole.replace("ann", "\\ud800"),
        whole.replace("lockOwner", "LOCKOWNER"),
        whole.replace('"ann"', "null"),
        whole[:-1] + ",}",
        whole[:-1] + ', "storeName": "none"}',
    ):
        yield f"lock {text!r}", (lock(text),)
        yield f"unlock {text!r}", (unlock(text),)
    for store in ("none", "memory"):
        yield f"{store}", (lock(held, store), unlock(held, store), lock({}, store))


def bindings():
    def bind(name, operation, data=None, **metadata):
        body = {"operation": operation, "data": data, "metadata": metadata}
        return post(f"/v1.0/bindings/{name}", body)

    for name in ("web", "lenient-web"):
        for operation in (
            "get",
            "post",
            "create",
            "put",
            "patch",
            "delete",
            "head",
            "options",
            "trace",
            "GET",
            "odd",
            "",
        ):
            yield f"{name} {operation!r}", (bind(name, operation, "ahoy"),)
        for path in ("/a", "a", "/a?b=c", "?b=c", "/a%2Fb", "//a", "/a b", "/\u00fc", "#a"):
            yield f"{name} path {path}", (bind(name, "get", path=path),)
        for path in ("/..", "../x", "/../../admin", "/%2e%2e/admin", "/a/../b"):
            yield f"{name} path beyond: {path}", (bind(name, "get", path=path),)
    for data in ("ahoy", {"a": "<b>"}, None, 1, [1, 2], "", True):
        yield f"web data {data!r}", (bind("web", "post", data),)
    yield (
        "web headers",
        (
            bind(
                "web",
                "post",
                "x",
                **{"X-One": "1", "x-two": "2", "Content-Type": "text/plain", "Accept": "a/b", "Host": "h"},
            ),
        ),
    )
    yield (
        "web trace",
        (
            post(
                "/v1.0/bindings/web",
                {"operation": "get"},
                headers=(
                    *JSON,
                    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
                    ("tracestate", "a=1"),
                    ("baggage", "a=1"),
                ),
            ),
            post("/v1.0/bindings/web", {"operation": "get"}, headers=(*JSON, ("baggage", "=="))),
        ),
    )
    yield (
        "files",
        (
            bind("files", "create", "ahoy", fileName="@key@"),
            bind("files", "get", fileName="@key@"),
            bind("files", "list", fileName=""),
            bind("files", "delete", fileName="@key@"),
            bind("files", "get", fileName="@key@"),
            bind("files", "get", fileName="../x"),
            bind("files", "odd"),
            bind("files", "create", "x"),
        ),
    )
    yield (
        "cache",
        (
            bind("cache", "create", "ahoy", key="@key@"),
            bind("cache", "get", key="@key@"),
            bind("cache", "get"),
            bind("cache", "increment", key="n@key@"),
            bind("cache", "get", key="n@key@"),
            bind("cache", "delete", key="@key@"),
            bind("cache", "get", key="@key@"),
            bind("cache", "odd", key="@key@"),
        ),
    )
    yield "none", (bind("none", "get"), post("/v1.0/bindings/none", "x"))
    for body in (
        "",
        "null",
        "{}",
        "[]",
        "x",
        '{"operation": 1}',
        '{"operation": "get"} x',
        '{"Operation": "get"}',
        '{"operation": "get", "metadata": null}',
        '{"operation": "get", "metadata": {"a": 1}}',
        '{"operation": "get", "metadata": {"path": null}}',
        '{"operation": "post", "data": "\\ud800"}',
        '{"operation": "post", "data": 1E400}',
        '{"operation": "post", "data": {"b": 1, "a": 2, "a": 3}}',
        '{"operation": "post", "data": 12345678901234567890}',
    ):
        yield f"web body {body!r}", (post("/v1.0/bindings/web", body),)
    yield (
        "PUT",
        (
            post("/v1.0/bindings/web", {"operation": "get"}, method="PUT"),
            post("/v1.0/bindings/web", {"operation": "get"}, method="DELETE"),
        ),
    )
    yield (
        "gRPC",
        (
            Grpc(
                "bare",
                "InvokeBinding",
                ({"name": "web", "operation": "post", "data": binary(b"ahoy"), "metadata": {"X-One": "1"}},),
                (("x-mine", "2"), ("cookie", "c")),
            ),
            Grpc("bare", "InvokeBinding", ({"name": "none", "operation": "post"},)),
            Grpc("bare", "InvokeBinding", ({"name": "web"},)),
            Grpc("bare", "InvokeBinding", ({"name": "web", "operation": "odd"},)),
        ),
    )


def binding_answers():
    call = post("/v1.0/bindings/web", {"operation": "get"})
    for status in STATUSES:
        if status >= 200:
            yield f"status {status}", (call,), Reply(status)
    for name, fields in HEADERS.items():
        yield f"headers {name}", (call,), Reply(headers=fields)
    packed = gzip.compress(b"ahoy", mtime=0)
    yield "gzip", (call,), Reply(headers=(("content-encoding", "gzip"),), body=packed)
    yield "nothing", (call,), Reply(body=b"")
    yield "chunked", (call,), Reply(framing="chunked")
    yield "hang up", (call,), Reply(raw=b"")


def cryptography():
    def encrypt(*fields, store="keys", operation="encrypt", body=b"ahoy"):
        return Http(
            "bare",
            "PUT",
            f"/v1.0-alpha1/crypto/{store}/{operation}",
            tuple((f"dapr-{name}", value) for name, value in fields),
            body,
        )

    key, wrap = ("key-name", "symmetric"), ("key-wrap-algorithm", "AES")
    for name, step in (
        ("no headers", encrypt()),
        ("no algorithm", encrypt(key)),
        ("no key", encrypt(wrap)),
        ("an odd algorithm", encrypt(key, ("key-wrap-algorithm", "odd"))),
        ("an odd cipher", encrypt(key, wrap, ("data-encryption-cipher", "odd"))),
        ("no such component", encrypt(key, wrap, store="none")),
        ("a document that is none", encrypt(operation="decrypt")),
        ("POST", post("/v1.0-alpha1/crypto/keys/encrypt", "x")),
        ("another version", post("/v1.0/crypto/keys/encrypt", "x", method="PUT")),
    ):
        yield name, (step,)
    for name in ("getkey", "encrypt", "decrypt", "wrapkey", "unwrapkey", "sign", "verify"):
        yield f"subtle {name}", (post(f"/v1.0-alpha1/subtlecrypto/keys/{name}", {}),)


def conversations():
    for version, inputs in (
        ("v1.0-alpha1", {"inputs": [{"content": "ahoy"}]}),
        ("v1.0-alpha2", {"inputs": [{"messages": [{"ofUser": {"content": [{"text": "ahoy"}]}}]}]}),
    ):
        at = f"/{version}/conversation"
        yield (
            version,
            (
                post(f"{at}/echo/converse", inputs),
                post(f"{at}/none/converse", inputs),
                post(f"{at}/echo/converse", {}),
                post(f"{at}/echo/converse", "x"),
            ),
        )


def about():
    for sidecar in ("http", "grpc", "bare"):
        yield f"metadata of {sidecar}", (get("/v1.0/metadata", sidecar), Grpc(sidecar, "GetMetadata", ({},)))
    yield (
        "metadata set",
        (
            post("/v1.0/metadata/colour", "green", method="PUT"),
            post("/v1.0/metadata/a%20b", "", method="PUT"),
            get("/v1.0/metadata"),
            Grpc("bare", "SetMetadata", ({"key": "grpc", "value": "1"},)),
            Grpc("bare", "SetMetadata", ({"key": "", "value": "1"},)),
            get("/v1.0/metadata"),
        ),
    )
    for path in (
        "/v1.0/healthz",
        "/v1.0/healthz/outbound",
        "/v1.0/healthz?appid=@bare@",
        "/v1.0/healthz?appid=x",
        "/v1.0/healthz/",
        "/v1.0/healthz/x",
    ):
        yield path, (get(path), get(path, method="HEAD"), get(path, method="POST"))
    for path in (
        "/",
        "",
        "/v1.0",
        "/v1.0/",
        "/v2.0/state/memory/a",
        "/v1.0/state",
        "/v1.0/state/memory",
        "/v1.0/unknown",
        "/v1.0/STATE/memory/a",
        "//v1.0//metadata",
        "/v1.0/./metadata",
        "/v1.0/x/../metadata",
        "/v1.0/%6Detadata",
        "/v1.0/metadata/",
        "/v1.0/metadata?x",
        "/favicon.ico",
        "/v1.0/state/memory/a/b/c",
    ):
        for method in ("GET", "POST", "DELETE", "HEAD", "OPTIONS"):
            if path:
                yield f"{method} {path}", (get(path, method=method),)
    for name, fields in (
        ("none", ()),
        ("a wrong one", (("dapr-api-token", "x"),)),
        ("the right one", PASS),
        ("two", (*PASS, ("dapr-api-token", "x"))),
        ("an empty one", (("dapr-api-token", ""),)),
    ):
        yield (
            f"token {name}",
            tuple(
                get(path, "strict", fields)
                for path in (
                    "/v1.0/metadata",
                    "/v1.0/healthz",
                    "/v1.0/healthz/outbound",
                    "/v1.0/unknown",
                    "/v1.0/invoke/@http@/method/a",
                )
            ),
        )


def cors():
    for origin in (
        None,
        "http://good.example",
        "https://a.wild.example",
        "http://bad.example",
        "null",
        "",
        "http://GOOD.example",
    ):
        fields = () if origin is None else (("origin", origin),)
        for path in ("/v1.0/metadata", "/v1.0/invoke/@http@/method/a", "/v1.0/unknown"):
            yield f"{origin} of {path}", (get(path, "strict", (*PASS, *fields)),)
            for wanted in (None, "", "GET", "PUT", "patch", "BREW", "OPTIONS"):
                asked = () if wanted is None else (("access-control-request-method", wanted),)
                yield (
                    f"preflight for {wanted!r} from {origin} of {path}",
                    (get(path, "strict", (*fields, *asked), "OPTIONS"),),
                )
        headers = (
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "X-One, content-type"),
            *fields,
        )
        yield (
            f"preflight for headers from {origin}",
            (
                get("/v1.0/metadata", "strict", headers, "OPTIONS"),
                get(
                    "/v1.0/metadata",
                    "strict",
                    (*headers, ("access-control-request-private-network", "true")),
                    "OPTIONS",
                ),
            ),
        )
        yield (
            f"without CORS from {origin}",
            (
                get("/v1.0/metadata", "http", fields),
                get("/v1.0/metadata", "http", (*fields, ("access-control-request-method", "GET")), "OPTIONS"),
            ),
        )


def jobs():
    """Without a scheduler; errors of the request are reported first."""
    path = "/v1.0-alpha1/jobs/one"
    for body in (
        "",
        "{}",
        {"dueTime": "1h"},
        {"due_time": "1h", "unknown": [{}]},
        {"schedule": "@daily", "data": {"a": [1, None]}, "failurePolicy": {"constant": {"interval": "1s"}}},
        {"name": "two", "dueTime": "1h"},
        {"dueTime": 7},
        {"repeats": -1, "dueTime": "1h"},
        "x",
    ):
        yield f"{body}", (post(path, body),)
    yield "name %20", (post("/v1.0-alpha1/jobs/%20", {"dueTime": "1h"}),)
    yield "read and delete", (get(path), get(path, method="DELETE"), get(path, method="PUT"))
    job = {"name": "one", "dueTime": "1h"}
    yield (
        "gRPC",
        (
            Grpc("bare", "ScheduleJobAlpha1", ({},)),
            Grpc("bare", "ScheduleJobAlpha1", ({"job": {}},)),
            Grpc("bare", "ScheduleJobAlpha1", ({"job": {"name": "one"}},)),
            Grpc("bare", "ScheduleJobAlpha1", ({"job": job},)),
            Grpc("bare", "GetJobAlpha1", ({},)),
            Grpc("bare", "GetJobAlpha1", ({"name": "one"},)),
            Grpc("bare", "DeleteJobAlpha1", ({},)),
            Grpc("bare", "DeleteJobAlpha1", ({"name": "one"},)),
            Grpc("bare", "DeleteJobsByPrefixAlpha1", ({"namePrefix": "o"},)),
            Grpc("bare", "ListJobsAlpha1", ({},)),
        ),
    )


def cases():
    parts = (secrets, configuration, locks, bindings, binding_answers, cryptography, conversations, jobs, about, cors)
    for part in parts:
        for name, steps, *reply in part():
            yield Case(f"{part.__name__.replace('_', ' ')}: {name}", steps, *reply)
