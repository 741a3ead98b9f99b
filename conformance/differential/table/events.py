"""Publishing, single and in bulk, and delivery to apps over HTTP and gRPC."""

import json

from differential.apps import GrpcReply, Reply
from differential.cases import Case, Grpc, Http, Wait
from differential.compare import binary
from differential.product import SPAN, TRACE
from differential.table.api import JSON, post

CLOUD = "application/cloudevents+json"
EVENT = {"specversion": "1.0", "id": "7", "source": "me", "type": "red", "datacontenttype": "application/json",
         "data": {"size": 1}}
TRACED = (("traceparent", f"00-{TRACE}-{SPAN}-01"), ("tracestate", "a=1"), ("baggage", "b=2"))
BODIES = (
    ("text/plain", b"ahoy"),
    ("text/plain", b""),
    ("text/plain; charset=utf-8", "\u00fc".encode()),
    ("text/html", b"<b>"),
    ("application/json", b'{"b": 1, "a": "<&>"}'),
    ("application/json", b'"ahoy"'),
    ("application/json", b"[1, 2]"),
    ("application/json", b"null"),
    ("application/json", b"1.50"),
    ("application/json", b"{torn"),
    ("application/json", b""),
    ("application/json; charset=utf-8", b'{"a": 1}'),
    ("APPLICATION/JSON", b'{"a": 1}'),
    ("application/vnd.me+json", b'{"a": 1}'),
    ("application/xml", b"<a/>"),
    ("application/octet-stream", bytes(range(250, 256))),
    ("image/png", b"\x89PNG"),
    ("odd", b"ahoy"),
    ("", b"ahoy"),
)


def without(*names):
    return {name: value for name, value in EVENT.items() if name not in names}


EVENTS = {
    "whole": EVENT,
    "without id": without("id"),
    "without source and type": without("source", "type"),
    "without specversion": without("specversion"),
    "without data": without("data"),
    "without datacontenttype": without("datacontenttype"),
    "nothing": {},
    "specversion 0.3": {**EVENT, "specversion": "0.3"},
    "with more": {**EVENT, "subject": "s", "mine": "x", "number": 5, "time": "2020-02-02T02:02:02Z"},
    "with its topic": {**EVENT, "topic": "elsewhere", "pubsubname": "other"},
    "traced": {**EVENT, "traceid": f"00-{TRACE}-{SPAN}-01", "traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "c=3"},
    "text": {**EVENT, "datacontenttype": "text/plain", "data": "ahoy"},
    "base64": {**without("data"), "datacontenttype": "application/octet-stream", "data_base64": binary(b"\xff\0")},
    "an id that is a number": {**EVENT, "id": 7},
    "expired": {**EVENT, "expiration": "2020-02-02T02:02:02Z"},
    "null for data": {**EVENT, "data": None},
    "a list for data": {**EVENT, "data": [1, "b", None]},
    "both kinds of data": {**EVENT, "data_base64": binary(b"ahoy")},
    "JSON in a text": {**EVENT, "data": '{"a": 1}'},
    "null for an id": {**EVENT, "id": None},
    "an empty type": {**EVENT, "type": ""},
    "names in capitals": {**EVENT, "ID": "8", "Type": "blue"},
    "an extension that is an object": {**EVENT, "mine": {"a": [1, {"b": None}]}},
    "a charset": {**EVENT, "datacontenttype": "application/json; charset=utf-8"},
    "a trace that is none": {**EVENT, "traceparent": "x"},
    "an expiration that is none": {**EVENT, "expiration": "soon"},
}
OVERRIDES = {
    "id": "cloudevent.id=mine",
    "source and type": "cloudevent.source=me&metadata.cloudevent.type=red",
    "subject": "cloudevent.subject=s",
    "an extension": "cloudevent.mine=x",
    "the trace": f"cloudevent.traceparent=00-{TRACE}-{SPAN}-01&metadata.cloudevent.tracestate=d=4",
    "the topic": "cloudevent.topic=elsewhere",
    "a time to live": "ttlInSeconds=1000",
    "a time to live that is none": "ttlInSeconds=x",
    "no time to live": "ttlInSeconds=-1",
    "raw": "rawPayload=true",
    "raw, in capitals": "rawPayload=TRUE",
    "raw, odd": "rawPayload=odd",
    "of the broker": "partitionKey=k",
    "an id twice": "cloudevent.id=a&metadata.cloudevent.id=b",
    "an empty id": "cloudevent.id=",
    "escapes": "cloudevent.subject=a%20b%26c%C3%BC",
    "a name in capitals": "CLOUDEVENT.ID=mine",
    "data": "cloudevent.data=mine",
    "a version": "cloudevent.specversion=0.3",
    "a content type": "cloudevent.datacontenttype=text/html",
    "a time": "cloudevent.time=2020-02-02T02:02:02Z",
    "a trace id": f"cloudevent.traceid=00-{TRACE}-{SPAN}-01",
}


def publish(topic="plain", body=b"ahoy", kind="text/plain", query="", headers=(), broker="broker", method="POST", sidecar="hub"):
    fields = (*((("content-type", kind),) if kind else ()), *headers)
    return Http(sidecar, method, f"/v1.0/publish/{broker}/{topic}{'?metadata.' + query if query else ''}", fields, body)


def over_grpc(topic="plain", body=b"ahoy", kind="text/plain", sidecar="grpc-hub", broker="broker", fields=(), **metadata):
    metadata = {name.replace("_", "."): value for name, value in metadata.items()}
    message = {"pubsubName": broker, "topic": topic, "data": binary(body), "dataContentType": kind, "metadata": metadata}
    return Grpc(sidecar, "PublishEvent", (message,), fields)


def events():
    """Published events are delivered to the only subscribed app before the case ends."""
    for kind, body in BODIES:
        yield f"{kind!r} {body[:20]!r}", (publish(body=body, kind=kind), Wait(1))
        yield f"{kind!r} {body[:20]!r}, gRPC", (over_grpc(body=body, kind=kind), Wait(1))
    for name, event in EVENTS.items():
        body = json.dumps(event).encode()
        if name != "expired":
            yield f"CloudEvent {name}", (publish(body=body, kind=CLOUD), Wait(1))
            yield f"CloudEvent {name}, gRPC", (over_grpc(body=body, kind=CLOUD), Wait(1))
        yield f"CloudEvent {name}, raw", (publish("raw", body, CLOUD, "rawPayload=true"), Wait(1))
    for name, query in OVERRIDES.items():
        # Refused events are not delivered.
        waits = () if name == "raw, odd" else (Wait(1),)
        yield f"with {name}", (publish(query=query), *waits)
        yield f"CloudEvent with {name}", (publish(body=json.dumps(EVENT).encode(), kind=CLOUD, query=query), *waits)
    yield "gRPC with an id", (over_grpc(cloudevent_id="mine", cloudevent_type="red"), Wait(1))
    yield "traced", (publish(headers=TRACED), Wait(1))
    yield "traced, gRPC", (over_grpc(fields=TRACED), Wait(1))
    yield "PUT", (publish(method="PUT"), Wait(1))
    for kind, body in BODIES:
        yield f"raw {kind!r} {body[:20]!r}", (publish("raw", body, kind, "rawPayload=true"), Wait(1))
        yield f"raw {kind!r} {body[:20]!r}, gRPC", (over_grpc("raw", body, kind, rawPayload="true"), Wait(1))
    yield "wrapped for a raw subscription", (publish("raw"), Wait(1))
    yield "raw for a wrapped subscription", (publish("plain", query="rawPayload=true"), Wait(1))
    # From one protocol to the other.
    for kind, body in BODIES[::3]:
        yield f"{kind!r} {body[:20]!r}, gRPC to HTTP", (over_grpc(body=body, kind=kind, sidecar="hub"), Wait(1))
        yield f"{kind!r} {body[:20]!r}, HTTP to gRPC", (publish(body=body, kind=kind, sidecar="grpc-hub"), Wait(1))
        yield f"raw {kind!r} {body[:20]!r}, gRPC to HTTP", (over_grpc("raw", body, kind, sidecar="hub", rawPayload="true"), Wait(1))
        yield f"raw {kind!r} {body[:20]!r}, HTTP to gRPC", (publish("raw", body, kind, "rawPayload=true", sidecar="grpc-hub"), Wait(1))
    for to, sidecar in (("HTTP", "hub"), ("gRPC", "grpc-hub")):
        yield f"raw, traced, gRPC to {to}", (over_grpc("raw", sidecar=sidecar, fields=TRACED, rawPayload="true"), Wait(1))
        yield f"with metadata, gRPC to {to}", (over_grpc(sidecar=sidecar, mine="x", ttlInSeconds="1000", cloudevent_subject="s"), Wait(1))
        yield f"without metadata or data, gRPC to {to}", (Grpc(sidecar, "PublishEvent", ({"pubsubName": "broker", "topic": "plain"},)), Wait(1))


def event_deliveries():
    for name, event in (("the type", {**EVENT, "data": {"size": 50}}), ("the data", {**EVENT, "type": "x", "data": {"size": 50}}),
                        ("no rule", {**EVENT, "type": "x"}), ("no data", {**without("data"), "type": "x"})):
        yield f"routed by {name}", (publish("routed", json.dumps(event).encode(), CLOUD), Wait(1))
    for answer in (b"", b"ahoy", b"{}", b'{"status": "SUCCESS"}', b'{"status": "DROP"}', b'{"status": ""}', b'{"status": "success"}'):
        yield f"answered {answer!r}", (publish(), Wait(1)), Reply(headers=JSON, body=answer)
    for status in (201, 204, 404):
        yield f"answered with {status}", (publish(), Wait(1)), Reply(status)
    for status in (404, 500):
        # A failed event is dead-lettered, whatever the response to its dead letter.
        yield f"to the dead letters after {status}", (publish("failing", kind="application/json", body=b'{"a": 1}'), Wait(2)), Reply(status)
    yield "dropped to the dead letters", (publish("failing"), Wait(2)), Reply(headers=JSON, body=b'{"status": "DROP"}')


def bulk(entries, topic="many", query="", headers=JSON):
    body = entries if isinstance(entries, str) else json.dumps(entries)
    return Http("hub", "POST", f"/v1.0-alpha1/publish/bulk/broker/{topic}{'?metadata.' + query if query else ''}",
                headers, body.encode())


def entry(name, event="ahoy", kind="text/plain", **more):
    return {"entryId": name, "event": event, "contentType": kind, **more}


def bulks():
    yield "one to one", (bulk([entry("1")], "plain"), Wait(1))
    yield "two to one", (bulk([entry("1", "first"), entry("2", "second")], "plain"), Wait(2))
    yield "three in bulk", (bulk([entry(str(number), f"number {number}") for number in range(3)]), Wait(3))
    yield "raw", (bulk([entry("1")], "raw", "rawPayload=true"), Wait(1))
    yield "raw in bulk", (bulk([entry(str(number), f"number {number}") for number in range(3)], query="rawPayload=true"), Wait(3))
    yield "three in bulk with metadata", (bulk([entry(str(number), metadata={"mine": "x"}) for number in range(3)]), Wait(3))
    yield "three in bulk, traced", (bulk([entry(str(number)) for number in range(3)], headers=(*JSON, *TRACED)), Wait(3))
    yield "traced", (bulk([entry("1")], "plain", headers=(*JSON, *TRACED)), Wait(1))
    yield "with metadata of both", (bulk([entry("1", metadata={"mine": "x", "cloudevent.subject": "own"})], "plain",
                                         "cloudevent.subject=s&metadata.other=y"), Wait(1))
    yield "with an event that is null", (bulk([entry("1", None)], "plain"),)
    yield "with an event that is null, JSON", (bulk([entry("1", None, "application/json")], "plain"), Wait(1))
    yield "with metadata that are none", (bulk([entry("1", metadata="x")], "plain"),)
    yield "with metadata that are null", (bulk([entry("1", metadata={"a": None})], "plain"), Wait(1))
    yield "with metadata that are numbers", (bulk([entry("1", metadata={"a": 1})], "plain"),)
    for kind, event in (("text/plain", "ahoy"), ("application/json", {"b": 1, "a": 2}), ("application/json", "ahoy"),
                        ("application/octet-stream", binary(b"\xff")), ("application/octet-stream", "!"),
                        ("application/xml", "<a/>"), (CLOUD, EVENT), (CLOUD, {}), ("text/plain", {"a": 1}), ("odd", "x"), ("", "x")):
        fine = not (event == "!" or kind in ("odd", "") or kind == "text/plain" and event == {"a": 1})
        yield f"of {kind!r} {event!r}", (bulk([entry("1", event, kind)], "plain"), *((Wait(1),) if fine else ()))
    yield "with an id of its own", (bulk([entry("1", metadata={"cloudevent.id": "mine"})], "plain", "cloudevent.type=x"), Wait(1))
    yield "without metadata", (bulk([entry("1")], "plain", "cloudevent.type=x"), Wait(1))
    for name, entries in (("none", []), ("null", "null"), ("an object", "{}"), ("torn", "[{"), ("nothing", ""),
                          ("without an id", [{"event": "x", "contentType": "text/plain"}]),
                          ("with an id twice", [entry("1"), entry("1")]), ("with a number for an id", [entry(1)]),
                          ("with more", [entry("1", other=1)]), ("without an event", [{"entryId": "1", "contentType": "text/plain"}])):
        yield name, (bulk(entries, "nobody"),)
    yield "to a topic that is forbidden", (Http("hub", "POST", "/v1.0-alpha1/publish/bulk/guarded/other", JSON, b"[]"),)
    yield "to nothing", (Http("hub", "POST", "/v1.0-alpha1/publish/bulk/none/a", JSON, b"[]"),
                         Http("hub", "POST", "/v1.0-alpha1/publish/bulk/broker/", JSON, b"[]"),
                         Http("hub", "POST", "/v1.0/publish/bulk/broker/nobody", JSON, b"[]"))
    for entries in ([{"entryId": "1", "event": binary(b"ahoy"), "contentType": "text/plain"}],
                    [{"entryId": "1", "event": binary(b'{"a": 1}'), "contentType": "application/json"}],
                    [{"entryId": "1", "event": binary(json.dumps(EVENT).encode()), "contentType": CLOUD}]):
        for method in ("BulkPublishEventAlpha1", "BulkPublishEvent"):
            yield f"gRPC {method} {entries[0]['contentType']}", (
                Grpc("grpc-hub", method, ({"pubsubName": "broker", "topic": "plain", "entries": entries},)), Wait(1))
    for to, sidecar in (("HTTP", "hub"), ("gRPC", "grpc-hub")):
        raw = {"pubsubName": "broker", "topic": "raw", "entries": [{"entryId": "1", "event": binary(b"ahoy"), "contentType": "text/plain"}],
               "metadata": {"rawPayload": "true"}}
        yield f"gRPC raw to {to}", (Grpc(sidecar, "BulkPublishEvent", (raw,)), Wait(1))
        more = {**raw, "topic": "plain", "metadata": {"cloudevent.subject": "s"}}
        yield f"gRPC with metadata, traced, to {to}", (Grpc(sidecar, "BulkPublishEvent", (more,), TRACED), Wait(1))
    for name, message in (("nothing", {}), ("no topic", {"pubsubName": "broker"}), ("no broker", {"pubsubName": "none", "topic": "a"}),
                          ("no id", {"pubsubName": "broker", "topic": "a", "entries": [{"event": binary(b"x")}]}),
                          ("an id twice", {"pubsubName": "broker", "topic": "a", "entries": [{"entryId": "1"}, {"entryId": "1"}]}),
                          ("a forbidden topic", {"pubsubName": "guarded", "topic": "other", "entries": [{"entryId": "1"}]})):
        yield f"gRPC {name}", (Grpc("grpc-hub", "BulkPublishEventAlpha1", (message,)),)


def publish_errors():
    for path in ("none/a", "broker", "broker/", "%20/a", "broker/%20", "broker/a/b", "broker/a%2Fb", "broker/%C3%BC", "guarded/open",
                 "guarded/secret", "guarded/other", "guarded/unlisted", "BROKER/a", "cabin/a"):
        yield path, (post(f"/v1.0/publish/{path}", "x", "hub"), post(f"/v1.0/publish/{path}?metadata.rawPayload=odd", "x", "hub"))
        broker, _, topic = path.partition("/")
        yield f"gRPC {path}", (over_grpc(topic, broker=broker), over_grpc(topic, broker=broker, sidecar="hub"))
    for sidecar in ("http", "grpc", "bare"):
        yield f"without a broker, {sidecar}", (post("/v1.0/publish/broker/a", "x", sidecar), over_grpc("a", sidecar=sidecar))
    for method in ("GET", "DELETE", "PATCH"):
        yield method, (publish("nobody", method=method),)
    yield "a body that is cut", (Http("hub", "POST", "/v1.0/publish/broker/nobody", JSON, raw=(
        b"POST /v1.0/publish/broker/nobody HTTP/1.1\r\nHost: sidecar\r\nContent-Length: 9\r\nConnection: close\r\n\r\nx")),)
    yield "gRPC, nothing", (Grpc("grpc-hub", "PublishEvent", ({},)), Grpc("hub", "PublishEvent", ({"pubsubName": "broker"},)))


def cases():
    for part in (events, event_deliveries, bulks, publish_errors):
        for name, steps, *reply in part():
            name = f"{'events' if part is bulks else part.__name__.replace('_', ' ')}: {'bulk ' * (part is bulks)}{name}"
            yield Case(name, steps, *(reply or (Reply(body=b""),)), GrpcReply(), any_order=True)
