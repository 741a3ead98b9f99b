"""State over HTTP and gRPC, on each kind of store."""

import json

from differential.cases import Case, Grpc, Http
from differential.compare import binary

STORES = ("memory", "sqlite", "redis")
JSON = (("content-type", "application/json"),)
VALUES = (
    "1",
    "0",
    "-0",
    "-1.5",
    "1e3",
    "1E400",
    "-1E400",
    "12345678901234567890",
    "0.1234567890123456789",
    "1.0",
    "true",
    "null",
    '""',
    '"a"',
    '"<&>"',
    '"\\u003c"',
    '"\u00fc"',
    '"\\ud83d\\ude00"',
    '"\\ud800"',
    '"\\udc00 x"',
    '"\\ud800\\u0041"',
    '"\\u0000"',
    '"a\\/b"',
    "[]",
    "{}",
    "[1, 2,3]",
    '{"b": 1, "a": {"d": [], "c": null}}',
    '{"a": 1, "a": 2}',
    '{"\\ud800": 1}',
    '{"\\u00e9": "\\t"}',
    '"\u2028"',
    '"\x7f"',
)
BODIES = (
    "",
    " ",
    "null",
    "[]",
    "{}",
    "[null]",
    "[[]]",
    "1",
    '"x"',
    "[",
    "[{}]",
    '[{"key": ""}]',
    '[{"key": "@key@"}]',
    '[{"Key": "@key@", "VALUE": 1}]',
    '[{"key": "@key@", "value": 1}] x',
    '[{"key": "@key@", "value": 1}][]',
    '[{"key": "@key@", "value": 1},]',
    '[{"key": 1, "value": 1}]',
    '[{"key": "@key@", "value": 1, "other": 2}]',
    '[{"key": "@key@", "value": 1, "metadata": {"a": 1}}]',
    '[{"key": "@key@", "value": 1, "metadata": {"a": null}}]',
    '[{"key": "@key@", "value": 1, "metadata": null, "options": null, "etag": null}]',
    '[{"key": "a||b", "value": 1}]',
    '[{"key": "@key@", "value": 1, "etag": 5}]',
    '[{"key": "@key@", "value": 1, "options": {"concurrency": "odd"}}]',
    '[{"key": "@key@", "value": 1, "options": {"consistency": "odd"}}]',
    '[{"key": "\\ud800@key@", "value": 1}]',
    '{"key": "@key@", "value": 1}',
    "\ufeff[]",
    "[{'key': 1}]",
    '[{"key": "@key@", "value": NaN}]',
    '[{"key": "@key@", "value": 01}]',
    '[{"key": "@key@", "value": tru}]',
    '[{"key": "@key@", "value": "\t"}]',
    '[{"key": "@key@", "key": "x@key@", "value": 1}]',
    '[{"key": "@key@", "value": "\xff"}]',
)
TTLS = (
    "1000",
    "-1",
    "0",
    "-2",
    "x",
    "",
    "1.5",
    "99999999999",
    "2147483647",
    "2147483648",
    "99999999999999999999",
    "+5",
    " 5",
)


def save(store, items, headers=JSON, query=""):
    body = items if isinstance(items, str) else json.dumps(items)
    return Http("bare", "POST", f"/v1.0/state/{store}{query}", headers, body.encode())


def get(store, key="@key@", query=""):
    return Http("bare", "GET", f"/v1.0/state/{store}/{key}{query}")


def delete(store, key="@key@", etag=None, query=""):
    return Http("bare", "DELETE", f"/v1.0/state/{store}/{key}{query}", () if etag is None else (("if-match", etag),))


def transaction(store, *operations, **more):
    body = json.dumps({"operations": operations, **more}).encode()
    return Http("bare", "POST", f"/v1.0/state/{store}/transaction", JSON, body)


def bulk(store, body):
    return Http("bare", "POST", f"/v1.0/state/{store}/bulk", JSON, body.encode())


def item(value, **more):
    return {"key": "@key@", "value": value, **more}


def upsert(value=1, **more):
    return {"operation": "upsert", "request": item(value, **more)}


def of_values(store):
    for value in VALUES:
        yield (
            f"value {value!r}",
            (
                save(store, f'[{{"key": "@key@", "value": {value}}}]'),
                get(store),
                bulk(store, '{"keys": ["@key@"]}'),
                Grpc("bare", "GetState", ({"storeName": store, "key": "@key@"},)),
            ),
        )
    for body in BODIES:
        yield f"save of {body!r}", (save(store, body), get(store))
    for key in (
        "a%20b@key@",
        "a/b",
        "a%2Fb@key@",
        "a+b@key@",
        "%C3%BC@key@",
        "%ff@key@",
        "a%7C%7Cb",
        "a%zz",
        "..",
        "%2e%2e",
        "a;b@key@",
        "@key@/",
        "bulk",
        "x" * 500,
    ):
        yield f"key {key!r}", (get(store, key), delete(store, key))
    for ttl in TTLS:
        yield f"expiry {ttl!r}", (save(store, [item(1, metadata={"ttlInSeconds": ttl})]), get(store))
    yield "expiry in the query", (save(store, [item(1)], query="?metadata.ttlInSeconds=100"), get(store))
    yield "expiry in a transaction", (transaction(store, upsert(metadata={"ttlInSeconds": "100"})), get(store))
    yield "a type", (save(store, [item({"a": "<b>"}, metadata={"contentType": "application/json"})]), get(store))
    yield "no type", (save(store, [item("x")], headers=()), get(store))
    yield "PUT", (Http("bare", "PUT", f"/v1.0/state/{store}", JSON, b'[{"key": "@key@", "value": 1}]'), get(store))
    yield (
        "lower case",
        (Http("bare", "put", f"/v1.0/state/{store}", JSON, b'[{"key": "@key@", "value": 1}]'), get(store)),
    )
    yield "a consistency", (get(store, query="?consistency=strong"), get(store, query="?consistency=odd"))


def of_versions(store):
    first = {"concurrency": "first-write"}
    yield (
        "versions",
        (
            save(store, [item(1)]),
            get(store),
            save(store, [item(2, etag="@2.etag@")]),
            get(store),
            save(store, [item(3, etag="@2.etag@")]),
            get(store),
            delete(store, etag="@2.etag@"),
            delete(store, etag="@4.etag@"),
            get(store),
        ),
    )
    for etag in ("", "x", "0", "1", "-1", "99", "1.0", " 1", "00000000-0000-0000-0000-000000000000"):
        yield f"version {etag!r} of nothing", (save(store, [item(1, etag=etag)]), get(store))
        yield f"version {etag!r} of something", (save(store, [item(1)]), save(store, [item(2, etag=etag)]), get(store))
        yield (
            f"delete of version {etag!r}",
            (save(store, [item(1)]), delete(store, etag=etag), get(store), delete(store, "n@key@", etag)),
        )
        yield (
            f"transaction with version {etag!r}",
            (save(store, [item(1)]), transaction(store, upsert(2, etag=etag)), get(store)),
        )
    yield (
        "first write",
        (
            save(store, [item(1, options=first)]),
            save(store, [item(2, options=first)]),
            get(store),
            save(store, [item(3)]),
            get(store),
        ),
    )
    yield "first write over a plain one", (save(store, [item(1)]), save(store, [item(2, options=first)]), get(store))
    yield (
        "first write in a transaction",
        (
            transaction(store, upsert(1, options=first)),
            transaction(store, upsert(2, options=first)),
            save(store, [item(3)]),
            get(store),
            save(store, [item(4, options=first)]),
            get(store),
        ),
    )
    yield "first delete", (save(store, [item(1)]), delete(store, query="?concurrency=first-write"), get(store))
    yield (
        "one wrong version of two",
        (
            save(store, [item(1)]),
            save(store, [item(2, etag="77"), {"key": "n@key@", "value": 3}]),
            get(store),
            get(store, "n@key@"),
        ),
    )
    yield (
        "a wrong version in a transaction",
        (
            save(store, [item(1)]),
            transaction(store, {"operation": "upsert", "request": {"key": "n@key@", "value": 1}}, upsert(2, etag="77")),
            get(store),
            get(store, "n@key@"),
        ),
    )


def of_transactions(store):
    yield (
        "transaction",
        (
            transaction(store, upsert({"a": 1}), {"operation": "upsert", "request": {"key": "n@key@", "value": 2}}),
            get(store),
            transaction(store, {"operation": "delete", "request": {"key": "@key@"}}),
            get(store),
            get(store, "n@key@"),
        ),
    )
    for name, operations in (
        ("nothing", ()),
        ("an odd operation", ({"operation": "odd", "request": {"key": "@key@"}},)),
        ("no operation", ({},)),
        ("a bad key", ({"operation": "upsert", "request": {"key": "a||b", "value": 1}},)),
        ("a request that is none", ({"operation": "upsert", "request": 1},)),
        ("capitals", ({"operation": "UPSERT", "request": {"key": "@key@", "value": 1}},)),
        ("a null operation", (None,)),
        ("twice the same", (upsert(1), upsert(2), {"operation": "delete", "request": {"key": "@key@"}}, upsert(3))),
    ):
        yield f"transaction of {name}", (transaction(store, *operations), get(store))
    yield "transaction with metadata of null", (transaction(store, upsert(1, metadata={"a": None})), get(store))
    for name, more in (("request", {}), ("key", {"request": {"value": 1}})):
        # Hides data that one product stores under the empty key from later cases.
        steps = [{"operation": operation, **more} for operation in ("upsert", "delete")]
        yield f"transaction of no {name}", [transaction(store, step) for step in steps]
    for body in (
        "",
        "null",
        "[]",
        "{}",
        '{"operations": null}',
        '{"operations": {}}',
        "x",
        '{"operations": []} x',
        '{"Operations": []}',
        '{"operations": [], "metadata": null}',
        '{"operations": [], "metadata": {"a": 1}}',
        '{"operations": [], "metadata": {"a": null}}',
    ):
        yield f"transaction {body!r}", (Http("bare", "POST", f"/v1.0/state/{store}/transaction", JSON, body.encode()),)
        yield f"bulk {body!r}", (bulk(store, body.replace("operations", "keys").replace("Operations", "Keys")),)
    yield (
        "bulk",
        (
            save(store, [item(1), {"key": "n@key@", "value": "x"}]),
            bulk(store, '{"keys": ["@key@", "n@key@", "m@key@"], "parallelism": 1}'),
        ),
    )
    for body in (
        '{"keys": ["a||b"]}',
        '{"keys": [""]}',
        '{"keys": [1]}',
        '{"keys": [null]}',
        '{"keys": ["@key@"], "metadata": {"a": null}}',
        '{"keys": ["\\ud800"]}',
        '{"keys": ["@key@"], "parallelism": -1}',
        '{"keys": ["@key@"], "parallelism": "x"}',
    ):
        yield f"bulk {body!r}", (bulk(store, body),)


def over_grpc(store):
    def put(value, **more):
        return Grpc(
            "bare", "SaveState", ({"storeName": store, "states": [{"key": "@key@", "value": binary(value), **more}]},)
        )

    read = Grpc("bare", "GetState", ({"storeName": store, "key": "@key@"},))
    for name, value in (("text", b"ahoy"), ("JSON", b'{"a": "<b>"}'), ("nothing", b""), ("bytes", bytes(range(256)))):
        yield f"gRPC value {name}", (put(value), read, get(store))
        yield f"gRPC value {name} with a type", (put(value, metadata={"contentType": "application/json"}), read)
    yield (
        "gRPC versions",
        (
            put(b"1"),
            put(b"2", etag={"value": "77"}),
            put(b"2", etag={"value": "x"}),
            put(b"2", etag={"value": ""}),
            read,
        ),
    )
    yield "gRPC first write", (put(b"1"), put(b"2", options={"concurrency": "CONCURRENCY_FIRST_WRITE"}), read)
    yield (
        "gRPC no key",
        (
            Grpc("bare", "SaveState", ({"storeName": store, "states": [{"value": "eA=="}]},)),
            Grpc("bare", "GetState", ({"storeName": store},)),
        ),
    )
    yield (
        "gRPC bad key",
        (
            Grpc("bare", "SaveState", ({"storeName": store, "states": [{"key": "a||b", "value": "eA=="}]},)),
            Grpc("bare", "GetState", ({"storeName": store, "key": "a||b"},)),
        ),
    )
    yield (
        "gRPC nothing",
        (Grpc("bare", "SaveState", ({"storeName": store},)), Grpc("bare", "DeleteBulkState", ({"storeName": store},))),
    )
    yield (
        "gRPC delete",
        (
            put(b"1"),
            Grpc("bare", "DeleteState", ({"storeName": store, "key": "@key@", "etag": {"value": "77"}},)),
            Grpc("bare", "DeleteBulkState", ({"storeName": store, "states": [{"key": "@key@"}, {"key": "n@key@"}]},)),
            read,
        ),
    )
    yield (
        "gRPC bulk",
        (
            put(b"1"),
            Grpc("bare", "GetBulkState", ({"storeName": store, "keys": ["@key@", "n@key@"], "parallelism": 1},)),
            Grpc("bare", "GetBulkState", ({"storeName": store},)),
        ),
    )
    for kind in ("upsert", "delete", "odd", ""):
        operation = {"operationType": kind, "request": {"key": "@key@", "value": "MQ=="}}
        yield (
            f"gRPC transaction {kind!r}",
            (
                put(b"0"),
                Grpc("bare", "ExecuteStateTransaction", ({"storeName": store, "operations": [operation]},)),
                read,
            ),
        )
    yield "gRPC query", (Grpc("bare", "QueryStateAlpha1", ({"storeName": store, "query": "{}"},)),)


def cases():
    for store in STORES:
        for part in (of_values, of_versions, of_transactions, over_grpc):
            for name, steps in part(store):
                yield Case(f"state: {store}: {name}", steps)
        query = Http("bare", "POST", f"/v1.0-alpha1/state/{store}/query", JSON, b"{}")
        yield Case(f"state: {store}: query", (query,))
    for name, step in (
        ("get", get("none")),
        ("save", save("none", [item(1)])),
        ("delete", delete("none")),
        ("bulk", bulk("none", "{}")),
        ("transaction", transaction("none")),
        ("save of nonsense", save("none", "x")),
        ("a secret store", get("vault")),
        ("gRPC", Grpc("bare", "GetState", ({"storeName": "none", "key": "a"},))),
    ):
        yield Case(f"state: no such store: {name}", (step,))
