"""Random requests. Each depends only on the seed and its number, so that it can be reproduced.

Known differences from the table are not generated, because they would hide new ones: paths that are not canonical, bytes in
headers, broken baggage, responses without a body.
"""

import json
import random

from differential.apps import GrpcReply, Reply
from differential.cases import Case, Grpc, Http
from differential.compare import binary
from differential.table import answers, calls, requests, state
from differential.table.targets import GRPC, HTTP, call, service

LETTERS = "abz-_~09AZ"
ESCAPES = ("%20", "%C3%BC", "/a", ".b", "%5E", "%7C", "z")
MARKS = "!$&'()*,;=:/?{}|^~-._"
NAMES = (
    "x-a",
    "X-B",
    "x-c_d",
    "accept",
    "accept-language",
    "cookie",
    "authorization",
    "cache-control",
    "if-none-match",
    "origin",
    "referer",
    "dapr-x",
    "range",
    "content-language",
    "x-request-id",
)
TYPES = (
    "text/plain",
    "application/json",
    "application/octet-stream",
    "text/html; charset=utf-8",
    "application/x-protobuf",
    "odd",
    "",
)
METHODS = ("GET", "GET", "POST", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")
TEXTS = (
    "",
    "a",
    "\u00fc",
    "<&>",
    '"',
    "\\",
    "\n",
    "\u2028",
    "\U0001f600",
    "\ud800",
    "1",
    "null",
    "a||b",
    "%2F",
    " ",
    "x" * 300,
)


def of(chance, pieces, low, high):
    return "".join(chance.choice(pieces) for _ in range(chance.randint(low, high)))


def path(chance):
    made = of(chance, [*LETTERS, *LETTERS, *ESCAPES], 0, 12)
    if chance.random() < 0.5:
        made += "?" + of(chance, [*LETTERS, *MARKS, "%2F", "%7B"], 0, 12)
    return made


def fields(chance, most=4):
    found = [
        (chance.choice(NAMES), of(chance, [*LETTERS, *MARKS, " ", '"'], 1, 10).strip() or "v")
        for _ in range(chance.randint(0, most))
    ]
    return tuple(found)


def octets(chance):
    size = chance.choice((0, 1, 10, 100, 2047, 2048, 2049, 5000, 70_000))
    return (
        bytes(chance.choice(b'abc{}"<>\n \xff\0') for _ in range(min(size, 100))) * max(1, size // 100) if size else b""
    )


def http_reply(chance):
    status = chance.choice((200, 200, 200, 201, 206, 400, 404, 409, 418, 429, 500, 502, 503))
    kind = chance.choice(TYPES)
    headers = (*fields(chance), *((("content-type", kind),) if kind else ()))
    return Reply(status, headers, octets(chance), chance.choice(("length", "length", "chunked", "close")))


def grpc_reply(chance):
    def metadata():
        return tuple((f"x-{chance.choice('abc')}", of(chance, LETTERS, 1, 5)) for _ in range(chance.randint(0, 3)))

    code = chance.choice(calls.CODES) if chance.random() < 0.4 else calls.CODES[0]
    return GrpcReply(None, metadata(), metadata(), code, of(chance, [*LETTERS, " ", "\u00fc"], 0, 8))


def invoked(chance):
    method = chance.choice(METHODS)
    body = octets(chance) if chance.random() < (0.1 if method in ("GET", "HEAD") else 0.8) else None
    kind = chance.choice(TYPES)
    headers = (*fields(chance), *((("content-type", kind),) if kind and body is not None else ()))
    framing = chance.choice(("length", "length", "chunked"))
    return (call(chance.choice(list(HTTP)), method, path(chance), headers, body, framing),)


def served(chance):
    metadata = tuple((name.lower(), value) for name, value in fields(chance) if value.isascii())
    verb = chance.choice(("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"))
    return (
        service(
            chance.choice(list(GRPC)),
            of(chance, [*LETTERS, "/z"], 1, 8),
            octets(chance),
            chance.choice(TYPES),
            verb,
            of(chance, [*LETTERS, "&", "="], 0, 6),
            metadata,
        ),
    )


def proxied(chance):
    metadata = tuple((name.lower(), value) for name, value in fields(chance) if value.isascii())
    messages = tuple(octets(chance) for _ in range(chance.choice((0, 1, 1, 1, 2, 5))))
    return (
        Grpc(
            chance.choice(("grpc", "bare")),
            f"/a.{of(chance, 'ABC', 1, 3)}/{of(chance, 'xyz', 1, 3)}",
            messages,
            (("dapr-app-id", "@grpc@"), *metadata),
        ),
    )


def value(chance, depth=0):
    """A JSON value with numbers that Dapr does not round; rounding is a known difference."""
    kind = chance.randrange(7 if depth < 3 else 5)
    if kind == 5:
        return [value(chance, depth + 1) for _ in range(chance.randint(0, 3))]
    if kind == 6:
        return {chance.choice(TEXTS) + str(number): value(chance, depth + 1) for number in range(chance.randint(0, 3))}
    return (
        None,
        chance.random() < 0.5,
        chance.randint(-(10**6), 10**6),
        chance.randint(0, 99) / 4,
        chance.choice(TEXTS),
    )[kind]


def stored(chance):
    store = chance.choice(state.STORES)
    steps = []
    for _ in range(chance.randint(1, 6)):
        item = {"key": f"{chance.choice('pq')}@key@", "value": value(chance)}
        if chance.random() < 0.2:
            item["metadata"] = {"ttlInSeconds": chance.choice(("1000", "-1", "0"))}
        steps.append(
            chance.choice(
                (
                    state.save(store, [item]),
                    state.save(store, [item, {**item, "key": "r@key@"}]),
                    state.get(store, item["key"]),
                    state.delete(store, item["key"]),
                    state.transaction(store, {"operation": "upsert", "request": item}),
                    state.bulk(store, json.dumps({"keys": ["p@key@", "q@key@"], "parallelism": 1})),
                    Grpc("bare", "GetState", ({"storeName": store, "key": item["key"]},)),
                    Grpc(
                        "bare",
                        "SaveState",
                        ({"storeName": store, "states": [{"key": item["key"], "value": binary(octets(chance)[:50])}]},),
                    ),
                )
            )
        )
    return (*steps, state.get(store, "p@key@"), state.get(store, "q@key@"))


def torn(chance):
    """Mutated JSON."""
    whole = chance.choice(
        (
            '[{"key": "@key@", "value": {"a": [1, "b", null]}}]',
            '{"operations": [{"operation": "upsert", "request": {"key": "@key@", "value": 1}}]}',
            '{"keys": ["@key@"], "parallelism": 1}',
            '{"resourceId": "@key@", "lockOwner": "ann", "expiryInSeconds": 60}',
            '{"operation": "post", "data": {"a": 1}, "metadata": {"path": "/x"}}',
        )
    )
    at = chance.randrange(len(whole))
    text = chance.choice(
        (whole[:at], whole[:at] + whole[at + 1 :], whole[:at] + chance.choice('{}[]",:1x \\') + whole[at:], whole[at:])
    )
    target = chance.choice(
        (
            "/v1.0/state/memory",
            "/v1.0/state/memory/bulk",
            "/v1.0/state/memory/transaction",
            "/v1.0-alpha1/lock/lock",
            "/v1.0-alpha1/unlock/lock",
            "/v1.0/bindings/web",
        )
    )
    return (Http("bare", "POST", target, (("content-type", "application/json"),), text.encode()),)


KINDS = ((invoked, 8), (served, 4), (proxied, 2), (stored, 4), (torn, 2))
# Names of the table's cases, by which allowances match.
PREFIXES = {invoked: "invoke: ", served: "invoke: InvokeService: ", proxied: "invoke: proxied: "}


def cases(seed, count):
    for number in range(count):
        chance = random.Random(f"{seed}-{number}")
        kind = chance.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0]
        steps = kind(chance)
        prefix = PREFIXES.get(kind, "")
        yield Case(f"{prefix}random {number}", steps, http_reply(chance), grpc_reply(chance))


def everything(seed, count):
    """The table's cases, then the random ones."""
    from differential.table import api, clock, events

    for part in (requests, answers, calls, state, api, events, clock):
        yield from part.cases()
    yield from cases(seed, count)
