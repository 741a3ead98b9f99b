"""Jobs, actors and workflows, which need a scheduler and placement."""

import json
import urllib.parse

from differential.apps import GrpcReply, Reply
from differential.cases import Case, Grpc, Http, Until, Wait
from differential.compare import binary
from differential.product import SPAN, TRACE
from differential.table.api import JSON, get, post

TRACED = (("traceparent", f"00-{TRACE}-{SPAN}-01"), ("x-mine", "1"), ("cookie", "c"))


def scheduled_jobs():
    path = "/v1.0-alpha1/jobs/@key@"

    def job(**more):
        return post(path, more, "hub")

    def read():
        return get(path, "hub")

    def delete():
        return get(path, "hub", method="DELETE")

    for fields in (
        {"dueTime": "1h"},
        {"dueTime": "PT1H", "data": "ahoy"},
        {"dueTime": "2099-01-01T00:00:00Z", "data": {"b": [1, None], "a": 1.5}},
        {"schedule": "@daily", "repeats": 3, "data": 7},
        {"schedule": "@every 1h", "ttl": "24h", "data": True},
        {"schedule": "0 30 * * * *", "data": None},
        {"schedule": "CRON_TZ=Europe/Oslo 0 30 5 * * 1-5"},
        {"schedule": "@every 1h", "dueTime": "10m", "repeats": 2},
        {"dueTime": "1h", "failurePolicy": {"drop": {}}},
        {"dueTime": "1h", "failurePolicy": {"constant": {"interval": "5s", "maxRetries": 3}}},
        {"dueTime": "1h", "failure_policy": {"constant": {"interval": "5s"}}},
        {"dueTime": "1h", "data": {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": "ahoy"}},
    ):
        yield f"{fields}", (job(**fields), read(), job(**fields), job(**fields, overwrite=True), read(), delete(), read(), delete())
    for fields in (
        {}, {"schedule": ""}, {"schedule": "odd"}, {"schedule": "* * * * *"}, {"schedule": "61 * * * * *"}, {"schedule": "@every x"},
        {"schedule": "@yearly "}, {"dueTime": "odd"}, {"dueTime": "1h", "ttl": "odd"},
        {"dueTime": "1h", "ttl": "10m"}, {"schedule": "@daily", "repeats": 0}, {"dueTime": "1h", "repeats": 5},
        {"dueTime": "R3/PT1H"}, {"dueTime": "P1M"}, {"name": "x", "dueTime": "1h"}, {"dueTime": "1h", "unknown": 1},
        {"dueTime": "1h", "failurePolicy": {}}, {"dueTime": "1h", "failurePolicy": {"constant": {"maxRetries": -1}}},
    ):
        yield f"refused {fields}", (job(**fields), read(), delete())
    for name in ("a%20b", "a%7Cb", "a%7C%7Cb", "%C3%BC", "a.b", "A_B-c", "a%2Fb", "x" * 300, ".", "%40"):
        yield f"name {name[:20]}", tuple(Http("hub", method, f"/v1.0-alpha1/jobs/{name}", JSON, b'{"dueTime": "1h"}' if method == "POST" else None)
                                         for method in ("POST", "GET", "DELETE"))
    for data in ("ahoy", {"b": 1, "a": [None]}, 7, None, {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": "x"}):
        yield f"triggered with {data!r}", (job(dueTime="0s", data=data), Wait(1))
    for fields in (
        {"schedule": "@hourly"}, {"schedule": "@midnight"}, {"schedule": "@weekly"}, {"schedule": "@monthly"}, {"schedule": "@annually"},
        {"schedule": "@DAILY"}, {"schedule": "0 0 0 1 JAN ?"}, {"schedule": "*/15 0 9-17 * * MON-FRI"}, {"schedule": "0 0 0 31 2 *"},
        {"schedule": "TZ=Asia/Tokyo 0 0 5 * * *"}, {"schedule": "TZ=Nowhere/At 0 0 5 * * *"}, {"schedule": "@every 500ms", "dueTime": "1h"},
        {"schedule": "@every 1h30m"}, {"schedule": "PT1H"}, {"schedule": "0 0 0 * * 7"}, {"schedule": "0 0 0 0 * *"}, {"schedule": "* * * * * * *"},
        {"dueTime": "1h30m"}, {"dueTime": "1.5h"}, {"dueTime": "3600"}, {"dueTime": "2099-01-01T00:00:00+02:00"},
        {"dueTime": "1h", "ttl": "2099-01-01T00:00:00Z"}, {"dueTime": "1h", "ttl": "PT2H"}, {"dueTime": "1h", "repeats": 1},
        {"schedule": "@daily", "repeats": 4294967295}, {"schedule": "@daily", "repeats": 4294967296}, {"schedule": "@daily", "repeats": "3"},
        {"dueTime": "1h", "overwrite": "true"}, {"dueTime": "1h", "data": {"@type": "type.googleapis.com/nobody.Knows", "value": 1}},
        {"dueTime": "1h", "data": {"@type": 1}}, {"dueTime": "1h", "data": []}, {"dueTime": "1h", "data": ""},
        {"dueTime": "1h", "failurePolicy": {"drop": None}}, {"dueTime": "1h", "failurePolicy": {"constant": {"interval": "x"}}},
        {"dueTime": "1h", "failurePolicy": {"drop": {}, "constant": {}}}, {"dueTime": "1h", "failurePolicy": {"constant": {}}},
    ):
        yield f"given {fields}", (job(**fields), read(), delete())
    for body in (b"", b"null", b"[]", b"x", b'{"dueTime": "1h"} x', b'{"dueTime": "1h", "dueTime": "2h"}', b'{"DueTime": "1h"}'):
        yield f"body {body!r}", (Http("hub", "POST", path, JSON, body), read(), delete())
    yield "PUT", (post(path, {"dueTime": "1h"}, "hub", "PUT"), read(), delete())
    yield "another content type", (Http("hub", "POST", path, (("content-type", "text/plain"),), b'{"dueTime": "1h"}'), read(), delete())
    yield "overwritten", (job(dueTime="1h", data=1), job(dueTime="2h", data=2, overwrite=True), read(), job(dueTime="0s", data=3, overwrite=True), Wait(1))
    yield "of an app over gRPC", (post(path, {"dueTime": "0s", "data": {"a": 1}}, "grpc-hub"), Wait(1))
    for status in (201, 204, 404, 500):
        yield f"dropped after {status}", (job(dueTime="0s", data=1, failurePolicy={"drop": {}}), Wait(1)), Reply(status)
    yield "tried again", (job(dueTime="0s", data=1, failurePolicy={"constant": {"interval": "100ms", "maxRetries": 2}}), Wait(3)), Reply(500)
    yield "triggered without data", (job(dueTime="0s"), Wait(1))
    yield "triggered twice", (job(schedule="@every 1s", repeats=2, data=1), Wait(2))

    def over_grpc(sidecar, **more):
        return Grpc(sidecar, "ScheduleJobAlpha1", ({"job": {"name": "@key@", **more}},))

    for sidecar in ("hub", "grpc-hub"):
        for data in (None, {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": "x"},
                     {"@type": "type.googleapis.com/google.protobuf.BytesValue", "value": binary(b"\xff")},
                     {"@type": "type.googleapis.com/google.protobuf.Struct", "value": {"a": 1}}):
            fields = {"dueTime": "0s", **({"data": data} if data else {})}
            yield f"gRPC {sidecar} triggered with {data}", (over_grpc(sidecar, **fields), Wait(1))
        name = ({"name": "@key@"},)
        yield f"gRPC {sidecar}", (over_grpc(sidecar, dueTime="1h"), Grpc(sidecar, "GetJobAlpha1", name), over_grpc(sidecar, dueTime="1h"),
                                  Grpc(sidecar, "DeleteJobAlpha1", name), Grpc(sidecar, "GetJobAlpha1", name))
        for fields in ({"schedule": "odd"}, {"dueTime": "odd"}, {}, {"dueTime": "1h", "ttl": "1m"}):
            yield f"gRPC {sidecar} refused {fields}", (over_grpc(sidecar, **fields),)
        yield f"gRPC {sidecar} with bars", (over_grpc(sidecar, name="a||b", dueTime="1h"), Grpc(sidecar, "DeleteJobAlpha1", ({"name": "a||b"},)))
    more = [Grpc("grpc-hub", "ScheduleJobAlpha1", ({"job": {"name": f"@key@-{number}", "dueTime": "1h"}},)) for number in range(3)]
    yield "gRPC lists", (*more, Grpc("grpc-hub", "ListJobsAlpha1", ({},)), Grpc("grpc-hub", "DeleteJobsByPrefixAlpha1", ({"namePrefix": "@key@-"},)),
                         Grpc("grpc-hub", "ListJobsAlpha1", ({},)), Grpc("grpc-hub", "DeleteJobsByPrefixAlpha1", ({"namePrefix": "none"},)))


def actor(path, method="POST", body=None, headers=JSON, sidecar="hub", kind="Boat", name="@key@"):
    body = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    return Http(sidecar, method, f"/v1.0/actors/{kind}/{name}/{path}", headers, body)


def call(method="m", body=b"ahoy", **more):
    return actor(f"method/{method}", more.pop("verb", "POST"), body, more.pop("headers", (("content-type", "text/plain"),)), **more)


def invoked(**more):
    return Grpc("hub", "InvokeActor", ({"actorType": "Boat", "actorId": "@key@", "method": "m", "data": binary(b"ahoy"), **more},))


def calls():
    for verb in ("GET", "POST", "PUT", "DELETE", "PATCH"):
        yield f"{verb}", (call(verb=verb),)
    for name, headers in (("nothing", ()), ("more", TRACED), ("a type", (("content-type", "application/json"),))):
        yield f"with headers: {name}", (call(headers=headers),)
    for method in ("a%20b", "a/b", "%C3%BC", "a%2Fb", ""):
        yield f"method {method!r}", (call(method),)
    for body in (None, b"", b"\xff\0", b"x" * 70_000):
        yield f"body {(body or b'')[:5]!r}, {body is None}", (call(body=body),)
    yield "gRPC", (invoked(), invoked(metadata={"x-mine": "1"}), invoked(data=""))
    for fields in ((("dapr-reentrancy-id", "mine"),), (("content-type", "application/json"), ("accept", "a/b"), ("x-a", "1"), ("x-a", "2")),
                   (("content-length", "4"), ("expect", "100-continue")), (("dapr-caller-app-id", "forged"), ("x-latin", "caf\xe9"))):
        yield f"with headers: {fields}", (call(headers=fields),) if fields[0][0] != "content-length" else (call(headers=fields[1:]),)
    forged = (("dapr-caller-app-id", "admin"), ("dapr-caller-namespace", "kube"), ("dapr-callee-app-id", "x"))
    yield "a forged caller", (call(headers=forged), call(headers=forged, sidecar="grpc-hub"), invoked(metadata=dict(forged)))
    for method in ("m?a=b&c=%20d", "m?", "%2e%2e", "m%3Fa=b", "timer/m", "remind/m", "x" * 300):
        yield f"method {method[:20]!r}", (call(method),)
    yield "in chunks", (Http("hub", "POST", "/v1.0/actors/Boat/@key@/method/m", (("content-type", "text/plain"),), b"ahoy" * 1000, "chunked"),)
    yield "HEAD and OPTIONS", (call(verb="HEAD", body=None), call(verb="OPTIONS", body=None))
    for framing in ("chunked", "close"):
        yield f"answered {framing}", (call(), invoked()), Reply(framing=framing)
    yield "answered with nothing", (call(), invoked()), Reply(body=b"", headers=())
    yield "answered with bytes", (call(), invoked(), call(sidecar="grpc-hub")), Reply(body=bytes(range(256)), headers=(("content-type", "application/octet-stream"),))
    yield "paths that are none", tuple(Http("hub", method, f"/v1.0/actors/{path}", JSON, b"{}") for method, path in (
        ("POST", "Boat"), ("POST", "Boat/a"), ("POST", "Boat/a/method"), ("POST", "Boat/a/nothing/m"), ("DELETE", "Boat/a"), ("GET", "Boat/a/state"),
        ("POST", "Boat/a/reminders"), ("PATCH", "Boat/a/reminders/r"), ("GET", "Boat/a/timers/t")))
    yield "remote", (call(sidecar="grpc-hub"), Grpc("grpc-hub", "InvokeActor", ({"actorType": "Boat", "actorId": "@key@", "method": "m"},)))
    for status in (200, 201, 204, 400, 404, 500, 503):
        yield f"answered with {status}", (call(), invoked(), call(sidecar="grpc-hub")), Reply(status)
    yield "answered with headers", (call(), invoked()), Reply(headers=(("x-a", "1"), ("content-type", "a/b"), ("set-cookie", "c")))
    yield "answered with an error of the SDK", (call(), invoked()), Reply(500, (("X-DaprErrorResponseHeader", "true"),), b"broken")
    for kind, name in (("Boat", "a%7C%7Cb"), ("Boat", "%23"), ("Boat", "%C3%BC"), ("Boat", "."), ("Boat", "a%20b"), ("Bo%2Fat", "a"), ("Boat", "a%2Fb"),
                       ("Boat", "a%00")):
        yield f"named {kind} {name}", (call(kind=kind, name=name),)
    yield "without placement", (call(sidecar="bare"), Grpc("bare", "InvokeActor", ({"actorType": "Boat", "actorId": "a", "method": "m"},)),
                                actor("state/a", "GET", sidecar="bare"), actor("reminders/a", "GET", sidecar="bare"),
                                actor("timers/a", body={}, sidecar="bare"))
    yield "of a type that is nobody's", (call(kind="Raft"),)
    yield "gRPC of nothing", (invoked(method=""), invoked(actorId=""), invoked(actorType=""))
    yield "gRPC of a type that is nobody's", (invoked(actorType="Raft"),)


def states():
    def change(*steps, **more):
        return actor("state", body=list(steps), **more)

    def put(key="a", value=1, **more):
        return {"operation": "upsert", "request": {"key": key, "value": value, **more}}

    gone = {"operation": "delete", "request": {"key": "a"}}
    read = actor("state/a", "GET")
    yield "written and read", (call(), change(put(value={"b": 1, "a": "<"})), read, change(gone), read, change(gone))
    yield "several", (call(), change(put(), put("b", "x"), gone), read, actor("state/b", "GET"))
    yield "expires", (call(), change(put(metadata={"ttlInSeconds": "1000"})), read, change(put(metadata={"ttlInSeconds": "x"})))
    yield "with a version", (call(), change(put(etag="1")), read)
    yield "of an actor that is not active", (change(put()), read)
    yield "PUT", (call(), actor("state", "PUT", [put()]), read)
    for value in ("ahoy", None, True, 1.5, [], {}, "", "\u00fc", [1, {"a": None}]):
        yield f"value {value!r}", (call(), change(put(value=value)), read)
    for key in ("a b", "\u00fc", "", "x" * 300):
        yield f"key {key[:20]!r}", (call(), change(put(key)), actor(f"state/{urllib.parse.quote(key)}", "GET"))
    for request in ("x", [], {"key": 7, "value": 1}, {"key": "a", "value": 1, "etag": 7}, {"KEY": "a", "VALUE": 1}):
        yield f"request {request!r}", (call(), change({"operation": "upsert", "request": request}), read)
    for metadata in ({"ttlInSeconds": "-1"}, {"ttlInSeconds": "0"}, {"ttlInSeconds": 5}, {"mine": "x"}, None):
        yield f"metadata {metadata}", (call(), change(put(metadata=metadata)), read)
    yield "a key twice", (call(), change(put(), put(value=2), gone, put(value=3)), read)
    yield "of a type that is nobody's", (change(put(), kind="Raft"), actor("state/a", "GET", kind="Raft"))
    yield "of its metadata", (call(), actor("state", body=[put()]), actor("state/a?metadata.x=1", "GET"))
    yield "of another's", (call(), change(put(), sidecar="grpc-hub"), actor("state/a", "GET", sidecar="grpc-hub"))
    for body in (b"", b"null", b"[]", b"{}", b"[{}]", b"x", b'[{"operation": "odd", "request": {"key": "a"}}]',
                 b'[{"operation": "upsert", "request": {}}]', b'[{"operation": "upsert"}]', b'[{"operation": "upsert", "request": {"key": "a||b"}}]'):
        yield f"{body!r}", (call(), actor("state", body=body), read)
    of = {"actorType": "Boat", "actorId": "@key@"}
    value = {"@type": "type.googleapis.com/google.protobuf.Value", "value": {"a": 1}}
    yield "gRPC", (call(), Grpc("hub", "ExecuteActorStateTransaction", ({**of, "operations": [
        {"operationType": "upsert", "key": "a", "value": value}, {"operationType": "delete", "key": "b"}]},)),
        Grpc("hub", "GetActorState", ({**of, "key": "a"},)), Grpc("hub", "GetActorState", ({**of, "key": "none"},)),
        Grpc("hub", "GetActorState", ({**of},)), Grpc("hub", "ExecuteActorStateTransaction", ({**of, "operations": [{"operationType": "odd"}]},)))


def reminders():
    def remind(path="reminders/r", **more):
        return actor(path, body=more)

    read, delete = actor("reminders/r", "GET"), actor("reminders/r", "DELETE")
    for fields in ({"dueTime": "1h"}, {"dueTime": "PT1H", "data": {"a": 1}}, {"dueTime": "1h", "period": "10s", "data": "x"},
                   {"dueTime": "1h", "period": "R3/PT10S"}, {"dueTime": "1h", "ttl": "2h", "data": 7}, {"period": "1h"},
                   {"dueTime": "2099-01-01T00:00:00Z"}, {"dueTime": "1h", "overwrite": False}):
        yield f"{fields}", (remind(**fields), read, remind(**fields), delete, read, delete)
    for fields in ({"dueTime": "odd"}, {"dueTime": "1h", "period": "odd"}, {"dueTime": "1h", "ttl": "odd"}, {"dueTime": "1h", "period": "P1M"},
                   {"dueTime": "1h", "period": "R0/PT1S"}, {"dueTime": "1h", "ttl": "-1h"}, {"dueTime": 7}):
        yield f"refused {fields}", (remind(**fields), read, delete)
    for body in (b"", b"[]", b"x"):
        yield f"body {body!r}", (actor("reminders/r", body=body), read, delete)
    for fields in ({"dueTime": "0s", "data": {"b": 1, "a": "<"}}, {"dueTime": "0s"}, {"dueTime": "0s", "data": "x", "ttl": "1h"}):
        yield f"fired {fields}", (remind(**fields), Wait(1))
        yield f"timer fired {fields}", (call(), remind("timers/t", **fields, callback="back"), Wait(2), actor("timers/t", "DELETE"))
        yield f"of another host, fired {fields}", (actor("reminders/r", body=fields, sidecar="grpc-hub"),)
    for fields in ({"period": ""}, {"dueTime": "1h", "period": "PT1H30M"}, {"dueTime": "1h", "period": "R5/PT0S"},
                   {"dueTime": "1h", "period": "R3"}, {"dueTime": "1h", "period": "R-1/PT1S"}, {"dueTime": "1h", "period": "-1s"},
                   {"dueTime": "1h", "period": "P1D"}, {"dueTime": "R2/PT1H"}, {"dueTime": "1h", "ttl": "2099-01-01T00:00:00Z"},
                   {"dueTime": "1h", "ttl": "10m"}, {"dueTime": "1h", "callback": "back"}, {"dueTime": "1h", "unknown": 1}, {"DueTime": "2h"},
                   {"dueTime": "1h", "data": None}, {"dueTime": "1h", "data": []}, {"dueTime": "1h", "period": 7}, {"dueTime": "1h", "ttl": 7},
                   {"dueTime": "1h", "overwrite": True}, {"dueTime": "1h", "failurePolicy": {"drop": {}}}):
        given = {"dueTime": "1h", **fields}
        yield f"given {given}", (remind(**given), read, delete)
        yield f"timer given {given}", (call(), remind("timers/t", **given), actor("timers/t", "DELETE"))
    yield "repeated", (remind(dueTime="0s", period="R2/PT1S", data=1), Wait(2), delete)
    yield "timer repeated", (call(), remind("timers/t", dueTime="0s", period="R2/PT1S", data=1), Wait(3), actor("timers/t", "DELETE"))
    yield "of others", (remind("reminders/a%7C%7Cb", dueTime="1h"), actor("reminders/r", body={"dueTime": "1h"}, kind="Raft"),
                        actor("reminders/r", "GET", kind="Raft"), actor("reminders/r", "DELETE", kind="Raft"))
    for fields in ({"dueTime": "1h"}, {"dueTime": "odd"}, {"dueTime": "1h", "period": "odd"}, {}, {"dueTime": "1h", "ttl": "odd"}):
        due = () if fields else (Wait(2),)
        yield f"timer {fields}", (call(), remind("timers/t", **fields), *due, actor("timers/t", "DELETE"), actor("timers/t", "DELETE"))
    yield "timer of an actor that is not active", (remind("timers/t", dueTime="1h"), actor("timers/t", "DELETE"))
    yield "timer of a type that is nobody's", (actor("timers/t", body={"dueTime": "1h"}, kind="Raft"),)
    of = {"actorType": "Boat", "actorId": "@key@", "name": "r"}
    single = {"actorType": "Boat", "actorID": "@key@", "name": "r"}
    yield "gRPC", tuple(Grpc("hub", method, (message,)) for method, message in (
        ("RegisterActorReminder", {**of, "dueTime": "1h", "data": binary(b'"x"')}), ("GetActorReminder", single), ("ListActorReminders", {"actorType": "Boat", "actorId": "@key@"}),
        ("RegisterActorReminder", {**of, "dueTime": "odd"}), ("RegisterActorReminder", {**of, "actorType": "Raft", "dueTime": "1h"}),
        ("UnregisterActorReminder", of), ("GetActorReminder", single), ("UnregisterActorReminder", of),
        ("RegisterActorTimer", {**of, "dueTime": "1h"}), ("UnregisterActorTimer", of), ("UnregisterActorRemindersByType", {"actorType": "Raft"})))


def workflow(path, method="POST", body=b"", version="v1.0", name="@key@"):
    return Http("hub", method, f"/{version}/workflows/dapr/{name}{'/' + path if path else ''}", JSON, body or None)


def start(name, query="?instanceID=@key@", body=b""):
    return workflow(f"start{query}", name=name, body=body)


def has(status):
    """Polls until an instance has a status."""
    return Until(workflow("", "GET"), f'"{status}"')


def workflows():
    """Workflows of `hub`'s worker: `echo` returns its input, `waits` waits for the event `go`, `fails` fails."""
    read = workflow("", "GET")
    yield "echo", (start("echo", body=b'{"b": 1, "a": "<"}'), has("COMPLETED"), workflow("purge"), read)
    yield "echo of nothing", (start("echo"), has("COMPLETED"))
    yield "echo of text", (start("echo", body=b"ahoy"), Until(workflow("", "GET"), '"COMPLETED"|"FAILED"'))
    yield "fails", (start("fails", body=b"1"), has("FAILED"), workflow("purge"))
    yield "unknown", (start("nothing"), has("FAILED"))
    yield "an event", (start("waits"), has("RUNNING"), workflow("raiseEvent/go", body=b'{"a": 1}'), has("COMPLETED"))
    yield "an event in other letters", (start("waits"), has("RUNNING"), workflow("raiseEvent/GO", body=b"1"), has("COMPLETED"))
    yield "suspended", (start("waits"), has("RUNNING"), workflow("pause"), has("SUSPENDED"), workflow("raiseEvent/go", body=b"1"),
                        workflow("resume"), has("COMPLETED"))
    yield "terminated", (start("waits"), has("RUNNING"), workflow("terminate"), has("TERMINATED"), workflow("terminate"),
                         workflow("pause"), workflow("purge"), read)
    # Not purged, because with Dapr the outcome is a race.
    yield "raised after its end", (start("waits"), has("RUNNING"), workflow("terminate"), has("TERMINATED"),
                                   workflow("raiseEvent/go"), workflow("pause"))
    yield "purged while it runs", (start("waits"), has("RUNNING"), workflow("purge"), read, workflow("terminate"), has("TERMINATED"))
    yield "started twice", (start("waits"), has("RUNNING"), start("waits"), workflow("terminate"), has("TERMINATED"),
                            start("echo", body=b"2"), has("COMPLETED"))
    for path in ("raiseEvent/go", "pause", "resume", "terminate", "purge"):
        yield f"{path} of nobody", (workflow(path),)
    yield "of nobody", (read, workflow("", "GET", version="v1.0-beta1"), workflow("", "GET", version="v1.0-alpha1"))
    for query in ("", "?instanceID=", "?instanceID=a%20b", "?instanceID=" + "x" * 65, "?instanceID=a.b", "?instanceID=%C3%BC"):
        yield f"id {query[:20]}", (start("echo", query),)
    for name in ("%20", "a%20b", "%C3%BC"):
        yield f"name {name}", (start(name),)
    for version in ("v1.0-alpha1", "v1.0-beta1"):
        yield version, (workflow("start?instanceID=@key@", name="echo", version=version), has("COMPLETED"))
    of = {"instanceID": "@key@", "workflowComponent": "dapr"}
    for version in ("Alpha1", "Beta1"):
        def ask(method, message=of, version=version):
            return Grpc("hub", f"{method}Workflow{version}", (message,))
        began = ask("Start", {**of, "workflowName": "waits"})
        yield f"gRPC {version}", (began, has("RUNNING"), ask("Get"), ask("Pause"), has("SUSPENDED"), ask("Resume"), has("RUNNING"),
                                  ask("RaiseEvent", {**of, "eventName": "go", "eventData": binary(b'"x"')}), has("COMPLETED"), ask("Purge"), ask("Get"))
        yield f"gRPC {version} terminated", (began, has("RUNNING"), ask("Terminate"), has("TERMINATED"))
        yield f"gRPC {version} of nobody", tuple(ask(method) for method in ("Get", "Pause", "Resume", "Terminate", "Purge", "RaiseEvent"))
        yield f"gRPC {version} of nothing", tuple(ask(method, {}) for method in ("Get", "Pause", "Resume", "Terminate", "Purge", "RaiseEvent", "Start"))


def hub_metadata():
    yield "both", tuple(step for sidecar in ("hub", "grpc-hub") for step in (get("/v1.0/metadata", sidecar), Grpc(sidecar, "GetMetadata", ({},))))


def cases():
    parts = {"metadata of the hubs": hub_metadata, "scheduled jobs": scheduled_jobs, "actors: call": calls, "actors: state": states,
             "actors: reminder": reminders, "workflows": workflows}
    for title, part in parts.items():
        for name, steps, *reply in part():
            name = f"{title} {name}" if ":" in title else f"{title}: {name}"
            yield Case(name, steps, *(reply or (Reply(),)), GrpcReply(), any_order=True)
